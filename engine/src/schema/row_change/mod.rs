//! Row changes: the bytes of one modification of an existing row, shared by memory stores, delta files and replay.
//!
//! ```text
//! u8 kind                 1 DELETE, 2 UPDATE, 3 REINSERT
//! per column, ascending   varint column id
//!                         varint 0 for NULL, else length + 1 and the cell's bytes
//! ```
//!
//! DELETE names no columns. UPDATE names the columns it sets; REINSERT all that are not in the key (a column
//! it does not name is NULL or its default). The same forms serve REDO (towards newer) and UNDO (towards
//! older).

use crate::error::{Error, Result};
use crate::ids::ColumnId;

const DELETE: u8 = 1;
const UPDATE: u8 = 2;
const REINSERT: u8 = 3;

/// Encodes an UPDATE or a REINSERT column by column.
pub struct RowChangeBuilder<'a> {
    out: &'a mut Vec<u8>,
    last: Option<ColumnId>,
}

/// Appends a DELETE.
pub fn encode_delete(out: &mut Vec<u8>) {
    out.push(DELETE);
}

impl<'a> RowChangeBuilder<'a> {
    pub fn update(out: &'a mut Vec<u8>) -> RowChangeBuilder<'a> {
        out.push(UPDATE);
        RowChangeBuilder { out, last: None }
    }

    pub fn reinsert(out: &'a mut Vec<u8>) -> RowChangeBuilder<'a> {
        out.push(REINSERT);
        RowChangeBuilder { out, last: None }
    }

    /// Sets a column; columns come in any order, each once.
    pub fn set(&mut self, column: ColumnId, cell: Option<&[u8]>) -> &mut Self {
        debug_assert_ne!(self.last, Some(column), "a column is set once");
        self.last = Some(column);
        push_varint(column.0 as u64, self.out);
        match cell {
            Some(cell) => {
                push_varint(cell.len() as u64 + 1, self.out);
                self.out.extend_from_slice(cell);
            }
            None => self.out.push(0),
        }
        self
    }

    /// Returns true if no column has been set.
    pub fn is_empty(&self) -> bool {
        self.last.is_none()
    }
}

fn push_varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// A row change parsed from its bytes, which have been checked once as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowChange<'a> {
    Delete,
    Update(RowChangeCells<'a>),
    Reinsert(RowChangeCells<'a>),
}

/// The columns that a row change sets and their new cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowChangeCells<'a> {
    bytes: &'a [u8],
}

impl<'a> RowChange<'a> {
    /// Parses a row change. Returns `Corrupt` unless `bytes` is exactly one, as [`RowChangeBuilder`] writes it.
    pub fn parse(bytes: &'a [u8]) -> Result<RowChange<'a>> {
        let corrupt = || Error::corrupt(format!("not a row change: {} bytes", bytes.len()));
        let (kind, cells) = bytes.split_first().ok_or_else(corrupt)?;
        let (mut rest, mut last) = (cells, None);
        while !rest.is_empty() {
            let (column, _) = take_cell(&mut rest).ok_or_else(corrupt)?;
            if last.replace(column) == Some(column) {
                return Err(Error::corrupt(format!("a row change sets column {} twice", column.0)));
            }
        }
        let cells = RowChangeCells { bytes: cells };
        match *kind {
            DELETE if cells.bytes.is_empty() => Ok(RowChange::Delete),
            UPDATE => Ok(RowChange::Update(cells)),
            REINSERT => Ok(RowChange::Reinsert(cells)),
            _ => Err(corrupt()),
        }
    }

    /// Returns a row change that has been parsed before: neither its kind nor its cells are checked again.
    pub fn parsed_before(bytes: &'a [u8]) -> RowChange<'a> {
        let (kind, cells) = bytes.split_first().unwrap_or((&DELETE, &[]));
        match *kind {
            DELETE => RowChange::Delete,
            REINSERT => RowChange::Reinsert(RowChangeCells { bytes: cells }),
            _ => RowChange::Update(RowChangeCells { bytes: cells }),
        }
    }

    /// Returns true if the row is deleted after this change.
    pub fn deletes(&self) -> bool {
        matches!(self, RowChange::Delete)
    }

    /// Returns the columns set; none for DELETE.
    pub fn cells(&self) -> RowChangeCells<'a> {
        match self {
            RowChange::Delete => RowChangeCells { bytes: &[] },
            RowChange::Update(cells) | RowChange::Reinsert(cells) => *cells,
        }
    }

    /// Returns the cell to which the change sets this column; `None` if it does not set it.
    pub fn get(&self, column: ColumnId) -> Option<Option<&'a [u8]>> {
        self.cells().find_map(|(id, cell)| (id == column).then_some(cell))
    }

    /// Appends the inverse change, which leads from the row after this change to the row before it.
    ///
    /// `columns` are the columns outside the key, and `before` their cells before the change.
    pub fn encode_inverse<'b>(
        &self,
        columns: &[ColumnId],
        before: impl Fn(ColumnId) -> Option<&'b [u8]>,
        out: &mut Vec<u8>,
    ) {
        match self {
            RowChange::Delete => {
                let mut undo = RowChangeBuilder::reinsert(out);
                for column in columns {
                    undo.set(*column, before(*column));
                }
            }
            RowChange::Update(cells) => {
                let mut undo = RowChangeBuilder::update(out);
                for (column, _) in *cells {
                    undo.set(column, before(column));
                }
            }
            RowChange::Reinsert(_) => encode_delete(out),
        }
    }
}

impl<'a> Iterator for RowChangeCells<'a> {
    type Item = (ColumnId, Option<&'a [u8]>);

    fn next(&mut self) -> Option<Self::Item> {
        take_cell(&mut self.bytes)
    }
}

fn take_cell<'a>(bytes: &mut &'a [u8]) -> Option<(ColumnId, Option<&'a [u8]>)> {
    let column = ColumnId(u32::try_from(take_varint(bytes)?).ok()?);
    let len = take_varint(bytes)?;
    if len == 0 {
        return Some((column, None));
    }
    let (cell, rest) = bytes.split_at_checked(usize::try_from(len - 1).ok()?)?;
    *bytes = rest;
    Some((column, Some(cell)))
}

fn take_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f).checked_shl(shift)?;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests;
