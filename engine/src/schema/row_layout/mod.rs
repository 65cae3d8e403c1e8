//! The layout of a row as contiguous bytes, for rows in memory.
//!
//! ```text
//! null bitmap   1 bit per column, 1 = NULL; only if the schema has nullable columns
//! slots         in column order: fixed-width cells; u32 offset (from the row's start), u32 length for the
//! rest data          the bytes of any-length cells
//! ```
//!
//! NULL cells keep a slot of zeros.

use super::Schema;
use super::row_block::{ColumnBlock, ColumnValues};
use super::row_ops::ClientCell;

#[derive(Debug, Clone, Copy)]
struct Slot {
    offset: u32,
    /// Bytes of a fixed-width cell, [`VARIABLE`] for cells of any length.
    width: u32,
}

const VARIABLE: u32 = u32::MAX;

/// Offsets of the cells of a schema's rows.
#[derive(Debug, Clone)]
pub struct RowLayout {
    slots: Vec<Slot>,
    bitmap: usize,
    /// Bytes before the data.
    fixed: usize,
    any_length: bool,
}

impl RowLayout {
    pub fn new(schema: &Schema) -> RowLayout {
        let bitmap = if schema.has_nullable() { schema.columns().len().div_ceil(8) } else { 0 };
        let mut at = bitmap;
        let mut slots = Vec::with_capacity(schema.columns().len());
        for column in schema.columns() {
            let width = column.ty.width();
            slots.push(Slot { offset: at as u32, width: width.map_or(VARIABLE, |width| width as u32) });
            at += width.unwrap_or(8);
        }
        let any_length = slots.iter().any(|slot| slot.width == VARIABLE);
        RowLayout { slots, bitmap, fixed: at, any_length }
    }

    /// Returns the bytes of every row, before the data of cells of any length.
    pub fn fixed_len(&self) -> usize {
        self.fixed
    }

    /// Returns the bytes of the row made of these cells.
    pub fn encoded_len(&self, cells: &[ClientCell<'_>]) -> usize {
        let data = |(slot, cell): (&Slot, &ClientCell<'_>)| match cell {
            ClientCell::Value(value) if slot.width == VARIABLE => value.len(),
            _ => 0,
        };
        if !self.any_length {
            return self.fixed;
        }
        self.fixed + self.slots.iter().zip(cells).map(data).sum::<usize>()
    }

    /// Appends the row made of `cells`, one per column of the schema. A cell that is not set counts as NULL.
    ///
    /// Panics if a fixed-width cell has another width, or a cell is NULL in a schema without nullable
    /// columns.
    pub fn encode(&self, cells: &[ClientCell<'_>], out: &mut Vec<u8>) {
        assert_eq!(cells.len(), self.slots.len(), "a row has one cell per column");
        let start = out.len();
        out.resize(start + self.fixed, 0);
        for (i, (slot, cell)) in self.slots.iter().zip(cells).enumerate() {
            let at = start + slot.offset as usize;
            match cell {
                ClientCell::Value(value) if slot.width == VARIABLE => {
                    let offset = (out.len() - start) as u32;
                    out[at..at + 4].copy_from_slice(&offset.to_le_bytes());
                    out[at + 4..at + 8].copy_from_slice(&(value.len() as u32).to_le_bytes());
                    out.extend_from_slice(value);
                }
                ClientCell::Value(value) => out[at..at + slot.width as usize].copy_from_slice(value),
                ClientCell::Null | ClientCell::Unset => {
                    assert!(self.bitmap > 0, "NULL in a schema without nullable columns");
                    out[start + i / 8] |= 1 << (i % 8);
                }
            }
        }
    }

    /// Returns the bytes of a column's cell in an encoded row; `None` for NULL.
    #[inline]
    pub fn cell<'r>(&self, row: &'r [u8], column: usize) -> Option<&'r [u8]> {
        if self.bitmap > 0 && row[column / 8] >> (column % 8) & 1 == 1 {
            return None;
        }
        let slot = self.slots[column];
        let at = slot.offset as usize;
        Some(if slot.width == VARIABLE { variable(row, at) } else { &row[at..at + slot.width as usize] })
    }

    /// Appends a column's cells of encoded rows to `out`.
    pub fn copy_column<'r>(
        &self,
        rows: impl ExactSizeIterator<Item = &'r [u8]> + Clone,
        column: usize,
        out: &mut ColumnBlock,
    ) {
        let at = self.slots[column].offset as usize;
        if let Some(valid) = &mut out.validity {
            let null = |row: &[u8]| self.bitmap > 0 && row[column / 8] >> (column % 8) & 1 == 1;
            rows.clone().for_each(|row| valid.push(!null(row)));
        }
        // The slot of a NULL is zeros, as is its cell in a block.
        match &mut out.values {
            ColumnValues::Fixed { width: 1, bytes } => copy_fixed::<1>(rows, at, bytes),
            ColumnValues::Fixed { width: 2, bytes } => copy_fixed::<2>(rows, at, bytes),
            ColumnValues::Fixed { width: 4, bytes } => copy_fixed::<4>(rows, at, bytes),
            ColumnValues::Fixed { width: 8, bytes } => copy_fixed::<8>(rows, at, bytes),
            ColumnValues::Fixed { width, bytes } => {
                rows.for_each(|row| bytes.extend_from_slice(&row[at..at + *width]));
            }
            ColumnValues::Var { offsets, bytes } => copy_variable(rows, at, offsets, bytes),
        }
    }

    /// Returns all cells of an encoded row, in column order.
    pub fn cells<'r>(&self, row: &'r [u8]) -> impl Iterator<Item = Option<&'r [u8]>> {
        (0..self.slots.len()).map(move |column| self.cell(row, column))
    }
}

/// Copies cells of a width known at compile time: one move each.
fn copy_fixed<'r, const WIDTH: usize>(rows: impl Iterator<Item = &'r [u8]>, at: usize, out: &mut Vec<u8>) {
    out.reserve(WIDTH * rows.size_hint().0);
    for row in rows {
        let cell: [u8; WIDTH] = row[at..at + WIDTH].try_into().expect("a row has its fixed part");
        out.extend_from_slice(&cell);
    }
}

/// Copies cells of any length. Their size is summed first, so that the bytes grow once.
fn copy_variable<'r>(
    rows: impl Iterator<Item = &'r [u8]> + Clone,
    at: usize,
    offsets: &mut Vec<u32>,
    bytes: &mut Vec<u8>,
) {
    bytes.reserve(rows.clone().map(|row| variable(row, at).len()).sum());
    offsets.reserve(rows.size_hint().0);
    for row in rows {
        bytes.extend_from_slice(variable(row, at));
        offsets.push(bytes.len() as u32);
    }
}

/// Returns the cell of any length whose slot is at `at`.
#[inline]
fn variable(row: &[u8], at: usize) -> &[u8] {
    let number = |at: usize| u32::from_le_bytes(row[at..at + 4].try_into().expect("four bytes")) as usize;
    let (offset, len) = (number(at), number(at + 4));
    &row[offset..offset + len]
}

#[cfg(test)]
mod tests;
