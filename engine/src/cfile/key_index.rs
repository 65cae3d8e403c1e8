//! The key index of a rowset, which maps keys to rows and back.
//!
//! A key of one column is searched in that column's own pages. Encoded keys of several columns have a stream of
//! their own. In both cases the cells are in order, zone maps are exact, and a lookup is two binary searches.

use super::cache::CachePriority;
use super::decoded_page::{DecodedPage, PageCells};
use super::narrow_ints::{with_width, word};
use super::page_index::PageEntry;
use super::reader::StreamReader;
use crate::error::Result;
use crate::ids::RowId;
use crate::schema::PhysicalType;
use std::cmp::Ordering;

/// Form of the cells in the searched stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyForm {
    /// Encoded keys, or a key of one column of bytes, whose encoding is itself.
    Encoded,
    /// Integers, little-endian: a key of one column.
    Integer(PhysicalType),
}

impl KeyForm {
    /// Returns the form of a key of these physical types.
    pub fn of(key: &[PhysicalType]) -> KeyForm {
        match key {
            [PhysicalType::Binary] => KeyForm::Encoded,
            [integer] => KeyForm::Integer(*integer),
            _ => KeyForm::Encoded,
        }
    }

    /// Compares a cell with an encoded key.
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

fn is_signed(physical: PhysicalType) -> bool {
    matches!(
        physical,
        PhysicalType::Int8
            | PhysicalType::Int16
            | PhysicalType::Int32
            | PhysicalType::Int64
            | PhysicalType::Int128
    )
}

/// Returns the order-preserving encoding of an integer: big-endian, the sign bit flipped.
fn big_endian<'a>(physical: PhysicalType, cell: &[u8], buffer: &'a mut [u8; 16]) -> &'a [u8] {
    let out = &mut buffer[..cell.len()];
    out.copy_from_slice(cell);
    out.reverse();
    if is_signed(physical)
        && let Some(first) = out.first_mut()
    {
        *first ^= 0x80;
    }
    out
}

/// The key index of a rowset.
pub struct KeyIndex {
    stream: StreamReader,
    form: KeyForm,
}

impl KeyIndex {
    pub fn new(stream: StreamReader, form: KeyForm) -> KeyIndex {
        KeyIndex { stream, form }
    }

    pub fn stream(&self) -> &StreamReader {
        &self.stream
    }

    pub fn form(&self) -> KeyForm {
        self.form
    }

    /// Returns the row that has exactly this key.
    pub fn find(&self, key: &[u8]) -> Result<Option<RowId>> {
        let (row, exact) = self.seek(key)?;
        Ok(exact.then_some(row))
    }

    /// Returns the first row whose key is not below `key`; the number of rows if there is none.
    pub fn lower_bound(&self, key: &[u8]) -> Result<RowId> {
        Ok(self.seek(key)?.0)
    }

    fn seek(&self, key: &[u8]) -> Result<(RowId, bool)> {
        let first_key = |page: &PageEntry| {
            let mut key = Vec::new();
            if let Some((low, _)) = &page.bounds {
                self.form.encode(low, &mut key);
            }
            key
        };
        let lookup = self.stream.lookup(first_key)?;
        // The row is before the first page, in the page whose first key is the last not above it, or after that page.
        let Some(ordinal) = lookup.separators.page_of(key) else { return Ok((0, false)) };
        let cells = self.stream.page(&lookup.index, ordinal, CachePriority::Lookup)?;
        let (at, exact) = self.form.search(&cells, key);
        Ok((lookup.index.pages[ordinal].first_row + at as u32, exact))
    }
}

impl KeyForm {
    /// Returns the first cell of the page that is not below `key`, and true if it equals `key`.
    fn search(self, page: &DecodedPage, key: &[u8]) -> (usize, bool) {
        let KeyForm::Integer(physical) = self else { return self.search_any(page, key) };
        let wide = |word: u32| u64::from(word) << if is_signed(physical) { 32 } else { 0 };
        match (&page.cells, key.len()) {
            (PageCells::Fixed { width: 8, bytes }, 8) => {
                search_integers::<8, 8>(bytes, key, physical, u64::from_le_bytes, u64::from_be_bytes)
            }
            (PageCells::Fixed { width: 4, bytes }, 4) => {
                let little = |cell| wide(u32::from_le_bytes(cell));
                search_integers::<4, 4>(bytes, key, physical, little, |key| wide(u32::from_be_bytes(key)))
            }
            (PageCells::Narrow { width: 8, base, above }, 8) => with_width!(above.width(), N => {
                let little = |cell| base.wrapping_add(word::<N>(&cell));
                search_integers::<N, 8>(above.as_bytes(), key, physical, little, u64::from_be_bytes)
            }),
            (PageCells::Narrow { width: 4, base, above }, 4) => with_width!(above.width(), N => {
                let little = |cell| wide(base.wrapping_add(word::<N>(&cell)) as u32);
                let big = |key| wide(u32::from_be_bytes(key));
                search_integers::<N, 4>(above.as_bytes(), key, physical, little, big)
            }),
            _ => self.search_any(page, key),
        }
    }

    fn search_any(self, page: &DecodedPage, key: &[u8]) -> (usize, bool) {
        let (mut low, mut high) = (0, page.rows);
        while low < high {
            let middle = low + (high - low) / 2;
            match self.compare(&page.raw(middle), key) {
                Ordering::Less => low = middle + 1,
                _ => high = middle,
            }
        }
        (low, low < page.rows && self.compare(&page.raw(low), key) == Ordering::Equal)
    }
}

/// Searches cells of `N` bytes for a key of `W`. `little` and `big` return integers with the sign bit, if any, on top.
/// In keys it is already flipped.
fn search_integers<const N: usize, const W: usize>(
    bytes: &[u8],
    key: &[u8],
    physical: PhysicalType,
    little: impl Fn([u8; N]) -> u64,
    big: impl Fn([u8; W]) -> u64,
) -> (usize, bool) {
    let (cells, _) = bytes.as_chunks::<N>();
    let wanted = big(key.try_into().expect("the caller has compared the lengths"));
    let flip = if is_signed(physical) { 1 << 63 } else { 0 };
    let at = cells.partition_point(|cell| little(*cell) ^ flip < wanted);
    (at, cells.get(at).is_some_and(|cell| little(*cell) ^ flip == wanted))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cfile::encoding::{decode, encode};
    use crate::cfile::page_first_keys::PageFirstKeys;
    use crate::schema::Encoding;
    use crate::schema::row_block::{ColumnBlock, ColumnValues};

    proptest! {
        #[test]
        fn the_page_of_a_key_is_the_last_that_does_not_start_above_it(
            keys in prop::collection::btree_set(prop::collection::vec(0u8..3, 0..12), 0..40),
            wanted in prop::collection::vec(0u8..3, 0..12),
        ) {
            let keys: Vec<Vec<u8>> = keys.into_iter().collect();
            let expected = keys.iter().rposition(|key| *key <= wanted);
            prop_assert_eq!(PageFirstKeys::new(keys.into_iter()).page_of(&wanted), expected);
        }

        #[test]
        fn a_search_finds_the_first_cell_not_below(
            numbers in prop::collection::btree_set(any::<i64>(), 1..60),
            wanted: i64,
            narrow in 0u32..60,
            physical in prop::sample::select(vec![
                PhysicalType::Int64, PhysicalType::Uint64, PhysicalType::Int32, PhysicalType::Uint32, PhysicalType::Int16,
            ]),
            cut in 0usize..9,
        ) {
            let width = physical.width().unwrap();
            let form = KeyForm::Integer(physical);
            let encoded = |number: i64| {
                let mut key = Vec::new();
                form.encode(&(number >> narrow).to_le_bytes()[..width], &mut key);
                key
            };
            let mut cells: Vec<(Vec<u8>, Vec<u8>)> = numbers
                .iter()
                .map(|number| (encoded(*number), (number >> narrow).to_le_bytes()[..width].to_vec()))
                .collect();
            cells.sort();
            cells.dedup();
            let bytes: Vec<u8> = cells.iter().flat_map(|(_, cell)| cell.iter().copied()).collect();
            let values = ColumnValues::Fixed { width, bytes: bytes.clone() };
            let block = ColumnBlock { values, validity: None };
            let packed = encode(&block, physical, Encoding::BitShuffle, None);
            let pages = [
                DecodedPage { rows: cells.len(), validity: None, cells: PageCells::Fixed { width, bytes } },
                decode(&packed, physical, false, None).unwrap(),
            ];
            // Bounds of scans may be truncated or too long.
            for mut key in [encoded(wanted), cells[cells.len() / 2].0.clone(), vec![]] {
                if cut > 4 {
                    key.push(0);
                } else {
                    key.truncate(key.len().saturating_sub(cut));
                }
                let at = cells.partition_point(|(cell, _)| *cell < key);
                let exact = cells.get(at).is_some_and(|(cell, _)| *cell == key);
                for page in &pages {
                    prop_assert_eq!(form.search(page, &key), (at, exact), "{:?}", page);
                }
            }
        }
    }
}
