//! A decoded page: cells of one column, ready to be copied into blocks.
//!
//! What is cached is this form, so that a lookup is a binary search and a warm scan is a copy. Pages of few
//! distinct values stay small: codes into a shared dictionary, or one value that stands for all.

use std::sync::Arc;

use crate::schema::block::{Bitmap, ColumnBlock, Values};

/// The distinct values of a dictionary column; a page holds positions in it.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Dictionary {
    /// One more than there are values.
    pub offsets: Vec<u32>,
    pub bytes: Vec<u8>,
}

impl Dictionary {
    pub fn len(&self) -> usize {
        self.offsets.len().saturating_sub(1)
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn value(&self, code: u32) -> &[u8] {
        let at = code as usize;
        &self.bytes[self.offsets[at] as usize..self.offsets[at + 1] as usize]
    }
}

/// Cells of a page. NULL cells have zeros, nothing, or any code in their place.
#[derive(Debug, PartialEq, Eq)]
pub enum Cells {
    Fixed {
        width: usize,
        bytes: Vec<u8>,
    },
    /// One offset more than there are cells.
    Var {
        offsets: Vec<u32>,
        bytes: Vec<u8>,
    },
    /// Invariant: every code is within the dictionary.
    Codes {
        codes: Vec<u32>,
        dictionary: Arc<Dictionary>,
    },
    /// Every cell is this one; for fixed widths it has the width.
    Same(Vec<u8>),
}

/// A decoded page of a column.
#[derive(Debug, PartialEq, Eq)]
pub struct Page {
    pub rows: usize,
    /// `None` when no cell is NULL.
    pub validity: Option<Bitmap>,
    pub cells: Cells,
}

impl Page {
    /// The cell's bytes whether or not it is NULL.
    pub fn raw(&self, row: usize) -> &[u8] {
        match &self.cells {
            Cells::Fixed { width, bytes } => &bytes[row * width..(row + 1) * width],
            Cells::Var { offsets, bytes } => &bytes[offsets[row] as usize..offsets[row + 1] as usize],
            Cells::Codes { codes, dictionary } => dictionary.value(codes[row]),
            Cells::Same(cell) => cell,
        }
    }

    /// The cell's bytes, `None` for NULL.
    pub fn cell(&self, row: usize) -> Option<&[u8]> {
        let null = self.validity.as_ref().is_some_and(|valid| !valid.get(row));
        (!null).then(|| self.raw(row))
    }

    /// Bytes of memory it takes, for the cache's accounting.
    pub fn byte_size(&self) -> usize {
        let cells = match &self.cells {
            Cells::Fixed { bytes, .. } => bytes.len(),
            Cells::Var { offsets, bytes } => 4 * offsets.len() + bytes.len(),
            Cells::Codes { codes, .. } => 4 * codes.len(),
            Cells::Same(cell) => cell.len(),
        };
        cells + self.validity.as_ref().map_or(0, |valid| valid.as_bytes().len()) + size_of::<Page>()
    }

    /// Appends the cells `from..to` to a block of the same physical type.
    pub fn copy_range(&self, from: usize, to: usize, out: &mut ColumnBlock) {
        match (&self.cells, &mut out.values) {
            (Cells::Fixed { width, bytes }, Values::Fixed { bytes: out, .. }) => {
                out.extend_from_slice(&bytes[from * width..to * width]);
            }
            (Cells::Var { offsets, bytes }, Values::Var { offsets: out_offsets, bytes: out }) => {
                let base = offsets[from];
                let shift = (out.len() as u32).wrapping_sub(base);
                out.extend_from_slice(&bytes[base as usize..offsets[to] as usize]);
                out_offsets.extend(offsets[from + 1..=to].iter().map(|end| end.wrapping_add(shift)));
            }
            (Cells::Codes { codes, dictionary }, Values::Var { offsets, bytes }) => {
                for code in &codes[from..to] {
                    bytes.extend_from_slice(dictionary.value(*code));
                    offsets.push(bytes.len() as u32);
                }
            }
            (Cells::Same(cell), values) => repeat_cell(cell, to - from, values),
            _ => panic!("a page is copied into a block of its own physical type"),
        }
        if let Some(out) = &mut out.validity {
            match &self.validity {
                Some(valid) => out.extend_from(valid, from, to),
                None => out.extend_with(true, to - from),
            }
        }
    }

    /// Appends the cells at `rows` to a block of the same physical type.
    pub fn gather(&self, rows: impl Iterator<Item = usize> + Clone, out: &mut ColumnBlock) {
        match (&self.cells, &mut out.values) {
            (Cells::Fixed { width, bytes }, Values::Fixed { bytes: out, .. }) => match width {
                4 => gather_fixed::<4>(bytes, rows.clone(), out),
                8 => gather_fixed::<8>(bytes, rows.clone(), out),
                width => {
                    rows.clone().for_each(|row| out.extend_from_slice(&bytes[row * width..(row + 1) * width]))
                }
            },
            (Cells::Same(cell), values) => repeat_cell(cell, rows.clone().count(), values),
            (_, Values::Var { offsets, bytes }) => {
                for row in rows.clone() {
                    bytes.extend_from_slice(self.raw(row));
                    offsets.push(bytes.len() as u32);
                }
            }
            _ => panic!("a page is copied into a block of its own physical type"),
        }
        if let Some(out) = &mut out.validity {
            match &self.validity {
                Some(valid) => rows.for_each(|row| out.push(valid.get(row))),
                None => out.extend_with(true, rows.count()),
            }
        }
    }
}

fn gather_fixed<const W: usize>(bytes: &[u8], rows: impl Iterator<Item = usize>, out: &mut Vec<u8>) {
    let (cells, _) = bytes.as_chunks::<W>();
    rows.for_each(|row| out.extend_from_slice(&cells[row]));
}

/// Appends `cell` `count` times.
fn repeat_cell(cell: &[u8], count: usize, out: &mut Values) {
    match out {
        Values::Fixed { bytes, .. } => {
            let zero = cell.iter().all(|byte| *byte == 0);
            if zero {
                bytes.resize(bytes.len() + count * cell.len(), 0);
            } else {
                (0..count).for_each(|_| bytes.extend_from_slice(cell));
            }
        }
        Values::Var { offsets, bytes } => {
            for _ in 0..count {
                bytes.extend_from_slice(cell);
                offsets.push(bytes.len() as u32);
            }
        }
    }
}
