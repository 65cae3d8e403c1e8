//! From keys to rows and back: searches a rowset's key index.
//!
//! A key of one column is searched in that column's own pages; encoded keys of several columns have a stream of
//! their own. Either way the cells are in order, pages' bounds are exact, and a lookup is two binary searches.

use std::cmp::Ordering;

use super::cache::Worth;
use super::page::Page;
use super::reader::StreamReader;
use crate::error::Result;
use crate::ids::RowId;
use crate::schema::Physical;

/// What the cells of the searched stream are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyForm {
    /// Encoded keys, or a key of one column of bytes, whose encoding is itself.
    Encoded,
    /// Integers, little-endian: a key of one column.
    Integer(Physical),
}

impl KeyForm {
    /// The form of a key of these physical types.
    pub fn of(key: &[Physical]) -> KeyForm {
        match key {
            [Physical::Binary] => KeyForm::Encoded,
            [integer] => KeyForm::Integer(*integer),
            _ => KeyForm::Encoded,
        }
    }

    /// The order of a cell and an encoded key.
    fn compare(self, cell: &[u8], key: &[u8]) -> Ordering {
        match self {
            KeyForm::Encoded => cell.cmp(key),
            KeyForm::Integer(physical) => {
                let mut buffer = [0; 16];
                big_endian(physical, cell, &mut buffer).cmp(key)
            }
        }
    }

    /// Appends the encoded key of a cell.
    pub fn encode(self, cell: &[u8], out: &mut Vec<u8>) {
        match self {
            KeyForm::Encoded => out.extend_from_slice(cell),
            KeyForm::Integer(physical) => {
                let mut buffer = [0; 16];
                out.extend_from_slice(big_endian(physical, cell, &mut buffer));
            }
        }
    }
}

/// The order-preserving encoding of an integer: big-endian, the sign bit flipped.
fn big_endian<'a>(physical: Physical, cell: &[u8], buffer: &'a mut [u8; 16]) -> &'a [u8] {
    let out = &mut buffer[..cell.len()];
    out.copy_from_slice(cell);
    out.reverse();
    let signed = matches!(
        physical,
        Physical::Int8 | Physical::Int16 | Physical::Int32 | Physical::Int64 | Physical::Int128
    );
    if signed && let Some(first) = out.first_mut() {
        *first ^= 0x80;
    }
    out
}

/// The key index of a rowset.
pub struct KeyIndex {
    pub stream: StreamReader,
    pub form: KeyForm,
}

impl KeyIndex {
    /// The row that has exactly this key.
    pub fn find(&self, key: &[u8]) -> Result<Option<RowId>> {
        let (row, exact) = self.seek(key)?;
        Ok(exact.then_some(row))
    }

    /// The first row whose key is not below `key`; the number of rows if there is none.
    pub fn lower_bound(&self, key: &[u8]) -> Result<RowId> {
        Ok(self.seek(key)?.0)
    }

    fn seek(&self, key: &[u8]) -> Result<(RowId, bool)> {
        let index = self.stream.resident_index()?;
        let below = |low: &[u8]| self.form.compare(low, key) != Ordering::Greater;
        let page =
            index.pages.partition_point(|page| page.bounds.as_ref().is_some_and(|(low, _)| below(low)));
        // The key is before the first page, in the page whose lower bound is the last not above it, or after it.
        let Some(ordinal) = page.checked_sub(1) else { return Ok((0, false)) };
        let entry = &index.pages[ordinal];
        let cells = self.stream.page(index, ordinal, Worth::Lookup)?;
        let at = self.search(&cells, key);
        let exact = at < cells.rows && self.form.compare(cells.raw(at), key) == Ordering::Equal;
        Ok((entry.first_row + at as u32, exact))
    }

    /// The first cell of the page that is not below `key`.
    fn search(&self, page: &Page, key: &[u8]) -> usize {
        let (mut low, mut high) = (0, page.rows);
        while low < high {
            let middle = low + (high - low) / 2;
            match self.form.compare(page.raw(middle), key) {
                Ordering::Less => low = middle + 1,
                _ => high = middle,
            }
        }
        low
    }
}
