//! A decoded page: cells of one column, ready to be copied into blocks.
//!
//! The cache holds this form, so that a lookup is a binary search and a warm scan is a copy. Pages of few
//! distinct values stay small: codes into a shared dictionary, runs, or one value that stands for all. So do
//! integers of a narrow range: they are widened as they are copied.

use std::ops::{Deref, Range};
use std::sync::Arc;

use super::narrow_ints::NarrowInts;
use crate::schema::row_block::{Bitmap, ColumnBlock, ColumnValues};

/// The distinct values of a dictionary column; a page holds positions in it.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Dictionary {
    /// One offset more than there are values.
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

    /// Returns true if every value is a single byte, as status codes often are.
    fn single_bytes(&self) -> bool {
        self.bytes.len() == self.len() && self.offsets.iter().zip(0..).all(|(offset, at)| *offset == at)
    }

    pub fn value(&self, code: u32) -> &[u8] {
        let at = code as usize;
        &self.bytes[self.offsets[at] as usize..self.offsets[at + 1] as usize]
    }
}

/// Cells of a page. The bytes of a NULL cell are zeros, nothing, or any code.
#[derive(Debug, PartialEq, Eq)]
pub enum PageCells {
    Fixed {
        width: usize,
        bytes: Vec<u8>,
    },
    /// Integers of `width` bytes, at most 8: `base` and what each cell is above it, wrapping at the width.
    Narrow {
        width: usize,
        base: u64,
        above: NarrowInts,
    },
    /// One offset more than there are cells.
    Var {
        offsets: Vec<u32>,
        bytes: Vec<u8>,
    },
    /// Invariant: every code is within the dictionary.
    Codes {
        codes: NarrowInts,
        dictionary: Arc<Dictionary>,
    },
    /// Runs of equal cells: the row after each run, and each run's cell.
    ///
    /// Invariant: the ends ascend up to the page's rows, and there is a cell for each.
    Runs {
        width: usize,
        ends: Vec<u32>,
        cells: Vec<u8>,
    },
    /// The one value of all cells. For fixed widths it has that width.
    Same(Vec<u8>),
}

/// Returns the runs that overlap the rows `from..to`: their rows among those, and their cells.
pub fn runs_within<'a>(
    (width, ends, cells): (usize, &'a [u32], &'a [u8]),
    from: usize,
    to: usize,
) -> impl Iterator<Item = (Range<usize>, &'a [u8])> {
    let first = ends.partition_point(|end| *end as usize <= from);
    let mut start = from;
    ends.iter().zip(cells.chunks_exact(width)).skip(first).map_while(move |(end, cell)| {
        let rows = start..to.min(*end as usize);
        start = rows.end;
        (!rows.is_empty()).then_some((rows, cell))
    })
}

/// Bytes of one cell of a page.
#[derive(Debug)]
pub enum PageCell<'a> {
    Stored(&'a [u8]),
    /// The first bytes of a number.
    Widened([u8; 8], usize),
}

impl Deref for PageCell<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            PageCell::Stored(bytes) => bytes,
            PageCell::Widened(bytes, width) => &bytes[..*width],
        }
    }
}

/// A decoded page of a column.
#[derive(Debug, PartialEq, Eq)]
pub struct DecodedPage {
    pub rows: usize,
    /// `None` when no cell is NULL.
    pub validity: Option<Bitmap>,
    pub cells: PageCells,
}

impl DecodedPage {
    /// Returns the cell's bytes, even if it is NULL.
    pub fn raw(&self, row: usize) -> PageCell<'_> {
        PageCell::Stored(match &self.cells {
            PageCells::Fixed { width, bytes } => &bytes[row * width..(row + 1) * width],
            PageCells::Narrow { width, base, above } => {
                return PageCell::Widened(base.wrapping_add(above.get(row)).to_le_bytes(), *width);
            }
            PageCells::Var { offsets, bytes } => &bytes[offsets[row] as usize..offsets[row + 1] as usize],
            PageCells::Codes { codes, dictionary } => dictionary.value(codes.get(row) as u32),
            PageCells::Runs { width, ends, cells } => {
                let run = ends.partition_point(|end| *end as usize <= row);
                &cells[run * width..(run + 1) * width]
            }
            PageCells::Same(cell) => cell,
        })
    }

    /// Returns the cell's bytes; `None` for NULL.
    pub fn cell(&self, row: usize) -> Option<PageCell<'_>> {
        let null = self.validity.as_ref().is_some_and(|valid| !valid.get(row));
        (!null).then(|| self.raw(row))
    }

    /// Bytes of memory that the cache accounts for.
    pub fn byte_size(&self) -> usize {
        let cells = match &self.cells {
            PageCells::Fixed { bytes, .. } => bytes.len(),
            PageCells::Var { offsets, bytes } => 4 * offsets.len() + bytes.len(),
            PageCells::Narrow { above, .. } => above.as_bytes().len(),
            PageCells::Codes { codes, .. } => codes.as_bytes().len(),
            PageCells::Runs { ends, cells, .. } => 4 * ends.len() + cells.len(),
            PageCells::Same(cell) => cell.len(),
        };
        cells + self.validity.as_ref().map_or(0, |valid| valid.as_bytes().len()) + size_of::<DecodedPage>()
    }

    /// Appends the cells `from..to` to a block of the same physical type.
    pub fn copy_range(&self, from: usize, to: usize, out: &mut ColumnBlock) {
        match (&self.cells, &mut out.values) {
            (PageCells::Fixed { width, bytes }, ColumnValues::Fixed { bytes: out, .. }) => {
                out.extend_from_slice(&bytes[from * width..to * width]);
            }
            (PageCells::Narrow { width, base, above }, ColumnValues::Fixed { bytes: out, .. }) => {
                above.copy_cells(from..to, *base, *width, out);
            }
            (PageCells::Var { offsets, bytes }, ColumnValues::Var { offsets: out_offsets, bytes: out }) => {
                let base = offsets[from];
                let shift = (out.len() as u32).wrapping_sub(base);
                out.extend_from_slice(&bytes[base as usize..offsets[to] as usize]);
                out_offsets.extend(offsets[from + 1..=to].iter().map(|end| end.wrapping_add(shift)));
            }
            (PageCells::Codes { codes, dictionary }, ColumnValues::Var { offsets, bytes }) => {
                copy_codes(codes, from..to, dictionary, offsets, bytes);
            }
            (PageCells::Runs { width, ends, cells }, values) => {
                for (rows, cell) in runs_within((*width, ends, cells), from, to) {
                    repeat_cell(cell, rows.len(), values);
                }
            }
            (PageCells::Same(cell), values) => repeat_cell(cell, to - from, values),
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
            (PageCells::Fixed { width, bytes }, ColumnValues::Fixed { bytes: out, .. }) => match width {
                4 => gather_fixed::<4>(bytes, rows.clone(), out),
                8 => gather_fixed::<8>(bytes, rows.clone(), out),
                width => {
                    rows.clone().for_each(|row| out.extend_from_slice(&bytes[row * width..(row + 1) * width]))
                }
            },
            (PageCells::Narrow { width, base, above }, ColumnValues::Fixed { bytes: out, .. }) => {
                above.gather_cells(rows.clone(), *base, *width, out);
            }
            (PageCells::Runs { width, ends, cells }, ColumnValues::Fixed { bytes: out, .. }) => {
                // Rows ascend, so the search for each run begins at the previous one.
                let mut run = 0;
                for row in rows.clone() {
                    run += ends[run..].partition_point(|end| *end as usize <= row);
                    out.extend_from_slice(&cells[run * width..(run + 1) * width]);
                }
            }
            (PageCells::Same(cell), values) => repeat_cell(cell, rows.clone().count(), values),
            (_, ColumnValues::Var { offsets, bytes }) => {
                for row in rows.clone() {
                    bytes.extend_from_slice(&self.raw(row));
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

/// Appends the values of the codes at `range`.
fn copy_codes(
    codes: &NarrowInts,
    range: Range<usize>,
    dictionary: &Dictionary,
    offsets: &mut Vec<u32>,
    bytes: &mut Vec<u8>,
) {
    let count = range.len();
    // A check of the whole dictionary pays off only if it is small compared with the codes.
    if codes.width() == 1 && dictionary.len() <= count && dictionary.single_bytes() {
        // A table for all codes of one byte needs no check of bounds.
        let mut table = [0; 256];
        let known = dictionary.len().min(table.len());
        table[..known].copy_from_slice(&dictionary.bytes[..known]);
        let first = bytes.len() as u32 + 1;
        bytes.extend(codes.as_bytes()[range].iter().map(|code| table[usize::from(*code)]));
        offsets.extend(first..first + count as u32);
        return;
    }
    offsets.reserve(count);
    codes.for_each(range, |code| {
        bytes.extend_from_slice(dictionary.value(code as u32));
        offsets.push(bytes.len() as u32);
    });
}

fn gather_fixed<const W: usize>(bytes: &[u8], rows: impl Iterator<Item = usize>, out: &mut Vec<u8>) {
    let (cells, _) = bytes.as_chunks::<W>();
    rows.for_each(|row| out.extend_from_slice(&cells[row]));
}

/// Appends `cell` `count` times.
fn repeat_cell(cell: &[u8], count: usize, out: &mut ColumnValues) {
    match out {
        ColumnValues::Fixed { bytes, .. } => match cell {
            [first, rest @ ..] if rest.iter().all(|byte| byte == first) => {
                bytes.resize(bytes.len() + count * cell.len(), *first);
            }
            _ => {
                bytes.reserve(count * cell.len());
                (0..count).for_each(|_| bytes.extend_from_slice(cell));
            }
        },
        ColumnValues::Var { offsets, bytes } => {
            for _ in 0..count {
                bytes.extend_from_slice(cell);
                offsets.push(bytes.len() as u32);
            }
        }
    }
}
