//! Row blocks of a Scan response as sidecars, row-wise or columnar.
//!
//! ```text
//! row-wise   rows      per row: the cells in projection order (any-length ones as u64 offset, u64 length into
//!                      `indirect`), then, if any column is nullable, a bitmap with 1 = NULL
//!            indirect  the bytes of any-length cells
//! columnar   per column: data, then varlen (any length only), then bitmap (nullable only) with 1 = not NULL
//! ```
//!
//! Source: `rows.md` §6. The columnar layout equals the layout of [`RowBlock`] in memory. A scan appends to the block
//! that becomes the columnar sidecars, so cells are copied once before the socket; for rows, the block is a small
//! buffer that stays in the processor's cache.

use bytes::Bytes;
use engine::schema::DataType;
use engine::schema::row_block::{ColumnBlock, ColumnValues, ProjectedColumn, RowBlock};

use crate::sidecars::Sidecars;
use nyala_proto::kudu::columnar_row_block_pb::Column as ColumnPb;
use nyala_proto::kudu::{ColumnarRowBlockPb, RowwiseRowBlockPb};

/// Width in bytes of an any-length cell in a row: u64 offset and u64 length.
const VAR_SLOT_BYTES: usize = 16;

/// Layout of the rows in a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowsFormat {
    /// Row by row. With `pad_timestamps` a UNIXTIME_MICROS cell takes 16 bytes, the last 8 of them zero.
    RowWise { pad_timestamps: bool },
    /// Column by column.
    Columnar,
}

/// Rows from which on a response is full: it counts its rows in an `int32`, and rows without columns have no bytes.
const ROWS_MAX: usize = 1 << 30;

/// Message field that describes the sidecars.
#[derive(Debug, Clone, PartialEq)]
pub enum RowBlockPb {
    RowWise(RowwiseRowBlockPb),
    Columnar(ColumnarRowBlockPb),
}

/// Builder of one response's rows.
pub struct RowsBuilder {
    rows: Inner,
    /// Size in bytes of a full response.
    limit: usize,
}

enum Inner {
    RowWise(RowWise),
    Columnar(Columnar),
}

impl RowsBuilder {
    /// Creates a builder for a response that is full at `limit` bytes.
    pub fn new(layout: RowsFormat, projection: &[ProjectedColumn], limit: usize) -> RowsBuilder {
        let rows = match layout {
            RowsFormat::RowWise { pad_timestamps } => {
                Inner::RowWise(RowWise::new(projection, pad_timestamps))
            }
            RowsFormat::Columnar => Inner::Columnar(Columnar::new(projection)),
        };
        RowsBuilder { rows, limit }
    }

    /// Adds the rows that `append` appends to a block with the columns of the projection, which may have rows already.
    pub fn add_with<T>(&mut self, append: impl FnOnce(&mut RowBlock) -> T) -> T {
        match &mut self.rows {
            Inner::RowWise(rows) => {
                let mut block = std::mem::take(&mut rows.block);
                let result = append(&mut block);
                rows.add(&block, self.limit);
                block.clear();
                rows.block = block;
                result
            }
            Inner::Columnar(columns) => {
                columns.reserve(self.limit);
                append(&mut columns.block)
            }
        }
    }

    pub fn rows(&self) -> usize {
        match &self.rows {
            Inner::RowWise(rows) => rows.count,
            Inner::Columnar(columns) => columns.block.rows,
        }
    }

    pub fn byte_size(&self) -> usize {
        match &self.rows {
            Inner::RowWise(rows) => rows.rows.len() + rows.indirect.len(),
            Inner::Columnar(columns) => columns.block.byte_size(),
        }
    }

    /// Returns true if no more rows should be added.
    pub fn is_full(&self) -> bool {
        self.byte_size() >= self.limit || self.rows() >= ROWS_MAX
    }

    /// Returns the message field and the sidecars to which it refers.
    pub fn finish(self) -> (RowBlockPb, Sidecars) {
        match self.rows {
            Inner::RowWise(rows) => rows.finish(),
            Inner::Columnar(columns) => columns.finish(),
        }
    }
}

/// Position of a cell in a row.
#[derive(Clone, Copy)]
struct Slot {
    offset: usize,
    width: usize,
}

struct RowWise {
    slots: Vec<Slot>,
    /// Offset of the NULL bitmap in a row, if any column is nullable.
    nulls: Option<usize>,
    stride: usize,
    count: usize,
    /// Buffer for the rows that are added next.
    block: RowBlock,
    rows: Vec<u8>,
    indirect: Vec<u8>,
}

impl RowWise {
    fn new(projection: &[ProjectedColumn], pad_timestamps: bool) -> RowWise {
        let mut stride = 0;
        let mut slots = Vec::with_capacity(projection.len());
        for column in projection {
            let width = column.ty.width().unwrap_or(VAR_SLOT_BYTES);
            slots.push(Slot { offset: stride, width });
            stride += if pad_timestamps && column.ty == DataType::UnixtimeMicros { 2 * width } else { width };
        }
        let nulls = projection.iter().any(|column| column.nullable).then_some(stride);
        if nulls.is_some() {
            stride += projection.len().div_ceil(8);
        }
        let (block, rows, indirect) = (RowBlock::new(projection), Vec::new(), Vec::new());
        RowWise { slots, nulls, stride, count: 0, block, rows, indirect }
    }

    /// Appends a block column by column, so that the cell width is constant in each inner loop.
    fn add(&mut self, block: &RowBlock, limit: usize) {
        let start = self.rows.len();
        if start > 0 && self.rows.capacity() - start < block.rows * self.stride {
            self.reserve(limit);
        }
        self.rows.resize(start + block.rows * self.stride, 0);
        let (stride, rows) = (self.stride, &mut self.rows[start..]);
        for (slot, column) in self.slots.iter().zip(&block.columns) {
            match &column.values {
                ColumnValues::Fixed { width, bytes } => put_fixed(rows, stride, slot.offset, *width, bytes),
                ColumnValues::Var { offsets, bytes } => {
                    put_var(rows, stride, *slot, offsets, self.indirect.len() as u64, column);
                    self.indirect.extend_from_slice(bytes);
                }
            }
        }
        if let Some(nulls) = self.nulls {
            for (i, column) in block.columns.iter().enumerate() {
                put_nulls(rows, stride, nulls + i / 8, 1 << (i % 8), column);
            }
        }
        self.count += block.rows;
    }

    /// Grows the buffers to the size that a full response of such rows needs. A second block usually means many
    /// blocks, so this saves repeated doubling.
    fn reserve(&mut self, limit: usize) {
        let bytes = self.rows.len() + self.indirect.len();
        for buffer in [&mut self.rows, &mut self.indirect] {
            buffer.reserve_exact((buffer.len() as u64 * limit as u64 / bytes as u64) as usize);
        }
    }

    fn finish(self) -> (RowBlockPb, Sidecars) {
        let mut sidecars = vec![Bytes::from(self.rows)];
        let indirect = !self.indirect.is_empty();
        if indirect {
            sidecars.push(Bytes::from(self.indirect));
        }
        let num_rows = i32::try_from(self.count).expect("a response ends at ROWS_MAX rows");
        let pb = RowwiseRowBlockPb {
            num_rows: Some(num_rows),
            rows_sidecar: Some(0),
            indirect_data_sidecar: indirect.then_some(1),
        };
        (RowBlockPb::RowWise(pb), sidecars.into())
    }
}

fn put_fixed(rows: &mut [u8], stride: usize, offset: usize, width: usize, cells: &[u8]) {
    match width {
        1 => put_width::<1>(rows, stride, offset, cells),
        2 => put_width::<2>(rows, stride, offset, cells),
        4 => put_width::<4>(rows, stride, offset, cells),
        8 => put_width::<8>(rows, stride, offset, cells),
        _ => put_width::<16>(rows, stride, offset, cells),
    }
}

fn put_width<const WIDTH: usize>(rows: &mut [u8], stride: usize, offset: usize, cells: &[u8]) {
    for (row, cell) in rows.chunks_exact_mut(stride).zip(cells.chunks_exact(WIDTH)) {
        row[offset..offset + WIDTH].copy_from_slice(cell);
    }
}

/// Writes offset and length of each cell. `base` is the start of this block's cell bytes in the indirect data. NULL
/// cells stay zero.
fn put_var(rows: &mut [u8], stride: usize, slot: Slot, offsets: &[u32], base: u64, column: &ColumnBlock) {
    let zero = u64::from(offsets[0]);
    for (i, row) in rows.chunks_exact_mut(stride).enumerate() {
        if column.is_null(i) {
            continue;
        }
        let (start, end) = (u64::from(offsets[i]), u64::from(offsets[i + 1]));
        let cell = &mut row[slot.offset..slot.offset + slot.width];
        cell[..8].copy_from_slice(&(base + start - zero).to_le_bytes());
        cell[8..].copy_from_slice(&(end - start).to_le_bytes());
    }
}

fn put_nulls(rows: &mut [u8], stride: usize, byte: usize, bit: u8, column: &ColumnBlock) {
    let Some(valid) = &column.validity else { return };
    if valid.all() {
        return;
    }
    for (i, row) in rows.chunks_exact_mut(stride).enumerate() {
        if !valid.get(i) {
            row[byte] |= bit;
        }
    }
}

/// Rows of a response from which on its buffers get the size of a full one.
const RESERVED_FROM_ROWS: usize = 256;

struct Columnar {
    block: RowBlock,
    /// True if the buffers have the capacity of a full response.
    is_reserved: bool,
}

impl Columnar {
    fn new(projection: &[ProjectedColumn]) -> Columnar {
        Columnar { block: RowBlock::new(projection), is_reserved: false }
    }

    /// Grows the buffers to the size that a full response of such rows and one more block needs, if there is a whole
    /// block already: a second one usually means many. After the few rows of a read by key there is mostly none, and
    /// buffers of that size cost more than the read.
    fn reserve(&mut self, limit: usize) {
        let bytes = self.block.byte_size();
        if self.block.rows >= RESERVED_FROM_ROWS && !self.is_reserved && bytes < limit {
            self.is_reserved = true;
            self.block.reserve_times(limit / bytes.max(1) + 1);
        }
    }

    fn finish(self) -> (RowBlockPb, Sidecars) {
        let rows = self.block.rows;
        let (columns, sidecars) = match self.block.byte_size() <= SHARED_BYTES_MAX {
            true => shared_sidecars(&self.block),
            false => separate_sidecars(self.block),
        };
        (RowBlockPb::Columnar(ColumnarRowBlockPb { columns, num_rows: Some(rows as i64) }), sidecars)
    }
}

/// Bytes of rows up to which all sidecars are parts of one buffer.
const SHARED_BYTES_MAX: usize = 4 << 10;

/// Returns the sidecars of a block, each the buffer that the scan has filled.
fn separate_sidecars(block: RowBlock) -> (Vec<ColumnPb>, Sidecars) {
    let mut sidecars = Vec::with_capacity(3 * block.columns.len());
    let mut add = |bytes: Vec<u8>| {
        sidecars.push(Bytes::from(bytes));
        Some(sidecars.len() as i32 - 1)
    };
    let columns = block.columns.into_iter().map(|column| {
        let (data_sidecar, varlen_data_sidecar) = match column.values {
            ColumnValues::Fixed { bytes, .. } => (add(bytes), None),
            ColumnValues::Var { offsets, bytes } => (add(offset_bytes(&offsets)), add(bytes)),
        };
        let non_null_bitmap_sidecar = column.validity.and_then(|valid| add(valid.into_bytes()));
        ColumnPb { data_sidecar, varlen_data_sidecar, non_null_bitmap_sidecar }
    });
    (columns.collect(), sidecars.into())
}

/// Parts of one buffer.
struct SharedParts {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl SharedParts {
    /// Ends a part and returns its number.
    fn end(&mut self) -> Option<i32> {
        self.ends.push(self.bytes.len());
        Some(self.ends.len() as i32 - 1)
    }

    fn add(&mut self, part: &[u8]) -> Option<i32> {
        self.bytes.extend_from_slice(part);
        self.end()
    }

    fn add_offsets(&mut self, offsets: &[u32]) -> Option<i32> {
        let offsets = sent_offsets(offsets).iter();
        offsets.for_each(|offset| self.bytes.extend_from_slice(&offset.to_le_bytes()));
        self.end()
    }

    fn finish(self) -> Sidecars {
        Sidecars::Shared { bytes: self.bytes.into(), ends: self.ends }
    }
}

/// Returns the same sidecars as parts of one buffer: those of a few cells are cheaper to copy than to own.
fn shared_sidecars(block: &RowBlock) -> (Vec<ColumnPb>, Sidecars) {
    let bytes = block.byte_size() + block.columns.len() * block.rows.div_ceil(8);
    let ends = Vec::with_capacity(3 * block.columns.len());
    let mut parts = SharedParts { bytes: Vec::with_capacity(bytes), ends };
    let columns = block.columns.iter().map(|column| {
        let (data_sidecar, varlen_data_sidecar) = match &column.values {
            ColumnValues::Fixed { bytes, .. } => (parts.add(bytes), None),
            ColumnValues::Var { offsets, bytes } => (parts.add_offsets(offsets), parts.add(bytes)),
        };
        let valid = column.validity.as_ref();
        let non_null_bitmap_sidecar = valid.and_then(|valid| parts.add(valid.as_bytes()));
        ColumnPb { data_sidecar, varlen_data_sidecar, non_null_bitmap_sidecar }
    });
    (columns.collect(), parts.finish())
}

/// Returns the offsets to send: none without cells. Kudu's C++ client fails a reply of 0 rows that has one.
fn sent_offsets(offsets: &[u32]) -> &[u32] {
    if offsets.len() > 1 { offsets } else { &[] }
}

fn offset_bytes(offsets: &[u32]) -> Vec<u8> {
    let offsets = sent_offsets(offsets);
    let mut bytes = vec![0; 4 * offsets.len()];
    for (bytes, offset) in bytes.as_chunks_mut().0.iter_mut().zip(offsets) {
        *bytes = offset.to_le_bytes();
    }
    bytes
}

#[cfg(test)]
mod tests;
