//! A batch of rows, column by column, as scans return it.
//!
//! ```text
//! fixed width   values:  rows × width bytes, little-endian; BOOL is one byte
//! any length    offsets: rows + 1 numbers into bytes
//! nullable      validity: one bit per row, least significant first, 1 = not NULL
//! ```
//!
//! This is Kudu's columnar wire layout and, but for BOOL, Arrow's: both ends use the buffers unchanged.
//! A NULL cell is zero bytes of its width, or empty.

use super::{ColumnSchema, DataType, PhysicalType};
use crate::ids::ColumnId;

/// Bits, least significant first.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Bitmap {
    bytes: Vec<u8>,
    len: usize,
}

impl Bitmap {
    pub fn new(len: usize, value: bool) -> Bitmap {
        let mut bytes = vec![if value { 0xff } else { 0 }; len.div_ceil(8)];
        if let (true, Some(last)) = (value && !len.is_multiple_of(8), bytes.last_mut()) {
            *last = (1 << (len % 8)) - 1;
        }
        Bitmap { bytes, len }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the bits as bytes; those past the end are 0.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns what [`Bitmap::as_bytes`] does.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    pub fn get(&self, i: usize) -> bool {
        debug_assert!(i < self.len);
        self.bytes[i / 8] >> (i % 8) & 1 == 1
    }

    pub fn set(&mut self, i: usize, value: bool) {
        debug_assert!(i < self.len);
        let bit = 1 << (i % 8);
        if value { self.bytes[i / 8] |= bit } else { self.bytes[i / 8] &= !bit }
    }

    pub fn push(&mut self, value: bool) {
        if self.len.is_multiple_of(8) {
            self.bytes.push(0);
        }
        self.len += 1;
        self.set(self.len - 1, value);
    }

    /// Creates a bitmap of the first `len` bits of `bytes`; `None` if there are fewer. Bits past `len` are cleared.
    pub fn from_bytes(mut bytes: Vec<u8>, len: usize) -> Option<Bitmap> {
        if bytes.len() < len.div_ceil(8) {
            return None;
        }
        bytes.truncate(len.div_ceil(8));
        let mut bitmap = Bitmap { bytes, len };
        bitmap.clear_past_end();
        Some(bitmap)
    }

    fn clear_past_end(&mut self) {
        if let (true, Some(last)) = (!self.len.is_multiple_of(8), self.bytes.last_mut()) {
            *last &= (1 << (self.len % 8)) - 1;
        }
    }

    /// Appends `count` bits of the same value.
    pub fn extend_with(&mut self, value: bool, count: usize) {
        let from = self.len;
        self.len += count;
        self.bytes.resize(self.len.div_ceil(8), if value { 0xff } else { 0 });
        if value && !from.is_multiple_of(8) {
            self.bytes[from / 8] |= 0xff << (from % 8);
        }
        self.clear_past_end();
    }

    /// Appends the bits `from..to` of `other`, eight at a time.
    pub fn extend_from(&mut self, other: &Bitmap, from: usize, to: usize) {
        debug_assert!(from <= to && to <= other.len);
        let (start, shift) = (self.len, self.len % 8);
        self.len += to - from;
        self.bytes.resize(self.len.div_ceil(8) + 1, 0);
        for (at, bit) in (start / 8..).zip((from..to).step_by(8)) {
            let byte = other.byte_at(bit) as u16;
            let keep = if to - bit < 8 { (1u16 << (to - bit)) - 1 } else { 0xff };
            let placed = (byte & keep) << shift;
            self.bytes[at] |= placed as u8;
            self.bytes[at + 1] |= (placed >> 8) as u8;
        }
        self.bytes.truncate(self.len.div_ceil(8));
    }

    /// Returns eight bits from bit `at` on; 0 past the end.
    fn byte_at(&self, at: usize) -> u8 {
        let low = self.bytes.get(at / 8).copied().unwrap_or(0) as u16;
        let high = self.bytes.get(at / 8 + 1).copied().unwrap_or(0) as u16;
        ((high << 8 | low) >> (at % 8)) as u8
    }

    /// Keeps the bits that are also in `other`.
    pub fn and(&mut self, other: &Bitmap) {
        debug_assert_eq!(self.len, other.len);
        for (mine, theirs) in self.bytes.iter_mut().zip(&other.bytes) {
            *mine &= theirs;
        }
    }

    /// Keeps the bits that are not in `other`.
    pub fn and_not(&mut self, other: &Bitmap) {
        debug_assert_eq!(self.len, other.len);
        for (mine, theirs) in self.bytes.iter_mut().zip(&other.bytes) {
            *mine &= !theirs;
        }
    }

    /// Removes every bit and keeps the memory.
    pub fn truncate_all(&mut self) {
        self.bytes.clear();
        self.len = 0;
    }

    /// Unsets every bit.
    pub fn clear(&mut self) {
        self.bytes.fill(0);
    }

    /// Keeps the bits whose position satisfies a cheap condition, which is evaluated for whole bytes at a time.
    #[inline]
    pub fn retain(&mut self, mut keep: impl FnMut(usize) -> bool) {
        let whole = self.len / 8;
        for (at, byte) in self.bytes[..whole].iter_mut().enumerate() {
            if *byte != 0 {
                let mut mask = 0;
                for bit in 0..8 {
                    mask |= (keep(at * 8 + bit) as u8) << bit;
                }
                *byte &= mask;
            }
        }
        for i in whole * 8..self.len {
            if self.get(i) && !keep(i) {
                self.set(i, false);
            }
        }
    }

    /// Keeps the bits whose position satisfies a condition, which is evaluated only for bits that are set.
    #[inline]
    pub fn retain_some(&mut self, mut keep: impl FnMut(usize) -> bool) {
        for (at, byte) in self.bytes.iter_mut().enumerate() {
            let mut rest = *byte;
            while rest != 0 {
                let bit = rest.trailing_zeros() as usize;
                rest &= rest - 1;
                if !keep(at * 8 + bit) {
                    *byte &= !(1 << bit);
                }
            }
        }
    }

    pub fn count(&self) -> usize {
        self.bytes.iter().map(|byte| byte.count_ones() as usize).sum()
    }

    pub fn any(&self) -> bool {
        self.bytes.iter().any(|byte| *byte != 0)
    }

    pub fn all(&self) -> bool {
        self.count() == self.len
    }

    /// Returns the positions of the bits that are set, ascending.
    pub fn ones(&self) -> impl Iterator<Item = usize> + '_ {
        self.bytes.iter().enumerate().flat_map(|(at, byte)| {
            let mut rest = *byte;
            std::iter::from_fn(move || {
                let bit = (rest != 0).then(|| rest.trailing_zeros() as usize)?;
                rest &= rest - 1;
                Some(at * 8 + bit)
            })
        })
    }
}

/// Cells of one column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ColumnValues {
    Fixed {
        width: usize,
        bytes: Vec<u8>,
    },
    /// `offsets` has one number more than there are cells.
    Var {
        offsets: Vec<u32>,
        bytes: Vec<u8>,
    },
}

/// One column of a [`RowBlock`]. `validity` is `Some` exactly for nullable columns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ColumnBlock {
    pub values: ColumnValues,
    pub validity: Option<Bitmap>,
}

impl ColumnBlock {
    pub fn new(physical: PhysicalType, nullable: bool) -> ColumnBlock {
        let values = match physical.width() {
            Some(width) => ColumnValues::Fixed { width, bytes: Vec::new() },
            None => ColumnValues::Var { offsets: vec![0], bytes: Vec::new() },
        };
        ColumnBlock { values, validity: nullable.then(Bitmap::default) }
    }

    /// Creates an empty column with capacity for `rows` cells, except for the bytes of cells of any length.
    fn with_capacity(physical: PhysicalType, nullable: bool, rows: usize) -> ColumnBlock {
        let values = match physical.width() {
            Some(width) => ColumnValues::Fixed { width, bytes: Vec::with_capacity(width * rows) },
            None => {
                let mut offsets = Vec::with_capacity(1 + rows);
                offsets.push(0);
                ColumnValues::Var { offsets, bytes: Vec::new() }
            }
        };
        ColumnBlock { values, validity: nullable.then(Bitmap::default) }
    }

    pub fn len(&self) -> usize {
        match &self.values {
            ColumnValues::Fixed { width, bytes } => bytes.len() / width,
            ColumnValues::Var { offsets, .. } => offsets.len() - 1,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of cell data.
    pub fn byte_size(&self) -> usize {
        match &self.values {
            ColumnValues::Fixed { bytes, .. } => bytes.len(),
            ColumnValues::Var { offsets, bytes } => bytes.len() + 4 * offsets.len(),
        }
    }

    /// Bytes of memory allocated.
    pub fn allocated(&self) -> usize {
        let validity = self.validity.as_ref().map_or(0, |valid| valid.bytes.capacity());
        validity
            + match &self.values {
                ColumnValues::Fixed { bytes, .. } => bytes.capacity(),
                ColumnValues::Var { offsets, bytes } => bytes.capacity() + 4 * offsets.capacity(),
            }
    }

    pub fn is_null(&self, row: usize) -> bool {
        self.validity.as_ref().is_some_and(|valid| !valid.get(row))
    }

    /// Returns the cell's bytes; `None` for NULL.
    pub fn cell(&self, row: usize) -> Option<&[u8]> {
        (!self.is_null(row)).then(|| self.raw(row))
    }

    /// Returns the cell's bytes, even if it is NULL.
    pub fn raw(&self, row: usize) -> &[u8] {
        match &self.values {
            ColumnValues::Fixed { width, bytes } => &bytes[row * width..(row + 1) * width],
            ColumnValues::Var { offsets, bytes } => &bytes[offsets[row] as usize..offsets[row + 1] as usize],
        }
    }

    /// Reserves capacity for `cells` more cells, except for the bytes of cells of any length.
    pub fn reserve(&mut self, cells: usize) {
        match &mut self.values {
            ColumnValues::Fixed { width, bytes } => bytes.reserve(*width * cells),
            ColumnValues::Var { offsets, .. } => offsets.reserve(cells),
        }
    }

    /// Appends a cell; `None` is NULL and only for nullable columns.
    ///
    /// Panics if a fixed-width cell has another width.
    pub fn push(&mut self, cell: Option<&[u8]>) {
        match &mut self.values {
            ColumnValues::Fixed { width, bytes } => match cell {
                Some(cell) => {
                    assert_eq!(cell.len(), *width, "a cell has its column's width");
                    bytes.extend_from_slice(cell);
                }
                None => bytes.resize(bytes.len() + *width, 0),
            },
            ColumnValues::Var { offsets, bytes } => {
                bytes.extend_from_slice(cell.unwrap_or_default());
                offsets.push(bytes.len() as u32);
            }
        }
        match &mut self.validity {
            Some(valid) => valid.push(cell.is_some()),
            None => assert!(cell.is_some(), "NULL in a column that is not nullable"),
        }
    }

    /// Appends cells. Their bytes are counted first, so that the column grows once.
    pub fn push_all<'c>(&mut self, cells: impl ExactSizeIterator<Item = Option<&'c [u8]>> + Clone) {
        self.reserve(cells.len());
        if let ColumnValues::Var { bytes, .. } = &mut self.values {
            bytes.reserve(cells.clone().flatten().map(<[u8]>::len).sum());
        }
        cells.for_each(|cell| self.push(cell));
    }

    /// Appends the same cell `count` times.
    pub fn push_many(&mut self, cell: Option<&[u8]>, count: usize) {
        for _ in 0..count {
            self.push(cell);
        }
    }

    /// Appends the rows `from..from + len` of a column of the same type and nullability.
    pub fn extend(&mut self, other: &ColumnBlock, from: usize, len: usize) {
        match (&mut self.values, &other.values) {
            (ColumnValues::Fixed { width, bytes }, ColumnValues::Fixed { bytes: theirs, .. }) => {
                bytes.extend_from_slice(&theirs[from * *width..(from + len) * *width]);
            }
            (ColumnValues::Var { offsets, bytes }, ColumnValues::Var { offsets: ends, bytes: theirs }) => {
                let (start, end) = (ends[from], ends[from + len]);
                let base = bytes.len() as u32;
                offsets.extend(ends[from + 1..=from + len].iter().map(|at| base + (at - start)));
                bytes.extend_from_slice(&theirs[start as usize..end as usize]);
            }
            _ => panic!("columns of different types"),
        }
        match (&mut self.validity, &other.validity) {
            (Some(valid), Some(theirs)) => valid.extend_from(theirs, from, from + len),
            (None, None) => {}
            _ => panic!("columns of different nullability"),
        }
    }

    /// Appends the rows of a column of the same type and nullability: without a copy if there are none before them.
    pub fn append(&mut self, other: ColumnBlock) {
        if self.is_empty() { *self = other } else { self.extend(&other, 0, other.len()) }
    }

    /// Reserves capacity for `times` as many cells as there are, of the same length on average.
    fn reserve_times(&mut self, times: usize) {
        match &mut self.values {
            ColumnValues::Fixed { bytes, .. } => bytes.reserve_exact(times * bytes.len()),
            ColumnValues::Var { offsets, bytes } => {
                offsets.reserve_exact(times * offsets.len());
                bytes.reserve_exact(times * bytes.len());
            }
        }
    }

    /// Returns an empty column of the same type and nullability.
    pub fn empty_like(&self) -> ColumnBlock {
        let values = match &self.values {
            ColumnValues::Fixed { width, .. } => ColumnValues::Fixed { width: *width, bytes: Vec::new() },
            ColumnValues::Var { .. } => ColumnValues::Var { offsets: vec![0], bytes: Vec::new() },
        };
        ColumnBlock { values, validity: self.validity.as_ref().map(|_| Bitmap::default()) }
    }

    /// Returns the rows whose bit is set.
    pub fn filter(&self, selection: &Bitmap) -> ColumnBlock {
        debug_assert_eq!(selection.len(), self.len());
        let values = match &self.values {
            ColumnValues::Fixed { width, bytes } => {
                let mut selected = Vec::with_capacity(selection.count() * width);
                for row in selection.ones() {
                    selected.extend_from_slice(&bytes[row * width..(row + 1) * width]);
                }
                ColumnValues::Fixed { width: *width, bytes: selected }
            }
            ColumnValues::Var { offsets, bytes } => {
                let mut ends = Vec::with_capacity(selection.count() + 1);
                ends.push(0);
                let mut selected = Vec::new();
                for row in selection.ones() {
                    selected.extend_from_slice(&bytes[offsets[row] as usize..offsets[row + 1] as usize]);
                    ends.push(selected.len() as u32);
                }
                ColumnValues::Var { offsets: ends, bytes: selected }
            }
        };
        let validity = self.validity.as_ref().map(|valid| {
            let mut selected = Bitmap::default();
            selection.ones().for_each(|row| selected.push(valid.get(row)));
            selected
        });
        ColumnBlock { values, validity }
    }

    pub fn clear(&mut self) {
        match &mut self.values {
            ColumnValues::Fixed { bytes, .. } => bytes.clear(),
            ColumnValues::Var { offsets, bytes } => {
                offsets.truncate(1);
                bytes.clear();
            }
        }
        if let Some(valid) = &mut self.validity {
            valid.truncate_all();
        }
    }
}

/// A column of a scan's result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProjectedColumn {
    /// `None` only for the virtual IS_DELETED column of a diff scan.
    pub id: Option<ColumnId>,
    pub name: String,
    pub ty: DataType,
    pub nullable: bool,
    pub read_default: Option<Vec<u8>>,
}

impl From<&ColumnSchema> for ProjectedColumn {
    fn from(column: &ColumnSchema) -> ProjectedColumn {
        ProjectedColumn {
            id: Some(column.id),
            name: column.name.clone(),
            ty: column.ty,
            nullable: column.nullable,
            read_default: column.read_default.clone(),
        }
    }
}

/// Rows by column, in the order of a projection.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RowBlock {
    /// Number of rows, valid also if there are no columns.
    pub rows: usize,
    pub columns: Vec<ColumnBlock>,
}

impl RowBlock {
    pub fn new(projection: &[ProjectedColumn]) -> RowBlock {
        let column = |c: &ProjectedColumn| ColumnBlock::new(c.ty.physical(), c.nullable);
        RowBlock { rows: 0, columns: projection.iter().map(column).collect() }
    }

    /// Creates an empty block with capacity for `rows` rows, except for the bytes of cells of any length.
    pub fn with_capacity(projection: &[ProjectedColumn], rows: usize) -> RowBlock {
        let column = |c: &ProjectedColumn| ColumnBlock::with_capacity(c.ty.physical(), c.nullable, rows);
        RowBlock { rows: 0, columns: projection.iter().map(column).collect() }
    }

    pub fn byte_size(&self) -> usize {
        self.columns.iter().map(ColumnBlock::byte_size).sum()
    }

    /// Bytes of memory allocated.
    pub fn allocated(&self) -> usize {
        let columns = self.columns.iter().map(ColumnBlock::allocated).sum::<usize>();
        columns + self.columns.capacity() * size_of::<ColumnBlock>()
    }

    /// Appends one row; one cell per column, `None` is NULL.
    pub fn push_row<'a>(&mut self, cells: impl IntoIterator<Item = Option<&'a [u8]>>) {
        let mut cells = cells.into_iter();
        for column in &mut self.columns {
            column.push(cells.next().expect("a row has one cell per column"));
        }
        self.rows += 1;
    }

    /// Returns the rows whose bit is set.
    pub fn filter(&self, selection: &Bitmap) -> RowBlock {
        let columns = self.columns.iter().map(|column| column.filter(selection)).collect();
        RowBlock { rows: selection.count(), columns }
    }

    /// Appends the rows `from..from + len` of a block of the same projection.
    pub fn extend(&mut self, other: &RowBlock, from: usize, len: usize) {
        for (mine, theirs) in self.columns.iter_mut().zip(&other.columns) {
            mine.extend(theirs, from, len);
        }
        self.rows += len;
    }

    /// Appends the rows of a block of the same projection: without a copy if there are none before them.
    pub fn append(&mut self, other: RowBlock) {
        self.rows += other.rows;
        for (mine, theirs) in self.columns.iter_mut().zip(other.columns) {
            mine.append(theirs);
        }
    }

    /// Reserves capacity for `times` as many rows as there are, of the same size on average.
    pub fn reserve_times(&mut self, times: usize) {
        self.columns.iter_mut().for_each(|column| column.reserve_times(times));
    }

    /// Removes every row and keeps the memory.
    pub fn clear(&mut self) {
        self.rows = 0;
        self.columns.iter_mut().for_each(ColumnBlock::clear);
    }

    /// Returns the rows `from..from + len`.
    pub fn slice(&self, from: usize, len: usize) -> RowBlock {
        let mut part =
            RowBlock { rows: 0, columns: self.columns.iter().map(ColumnBlock::empty_like).collect() };
        part.extend(self, from, len);
        part
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bitmap(bits: &[bool]) -> Bitmap {
        let mut bitmap = Bitmap::default();
        bits.iter().for_each(|bit| bitmap.push(*bit));
        bitmap
    }

    proptest! {
        #[test]
        fn bits_are_appended_as_if_one_by_one(
            head in prop::collection::vec(any::<bool>(), 0..40),
            tail in prop::collection::vec(any::<bool>(), 0..80),
            cut in (0usize..80, 0usize..80),
            fill in (any::<bool>(), 0usize..40),
        ) {
            let (a, b) = (cut.0.min(tail.len()), cut.1.min(tail.len()));
            let (from, to) = (a.min(b), a.max(b));
            let mut whole = bitmap(&head);
            whole.extend_from(&bitmap(&tail), from, to);
            whole.extend_with(fill.0, fill.1);
            let wanted: Vec<bool> =
                [&head[..], &tail[from..to], &vec![fill.0; fill.1][..]].concat();
            prop_assert_eq!(&whole, &bitmap(&wanted));
            let again = Bitmap::from_bytes(whole.as_bytes().to_vec(), whole.len());
            prop_assert_eq!(again, Some(whole));
        }
    }
}
