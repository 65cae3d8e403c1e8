//! Deltas in memory: those of a decoded page, or those copied out of their stores.

use std::cmp::Reverse;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::cfile::bitshuffle::{Signedness, pack, pack_u32, unpack, unpack_u32};
use crate::cfile::compress::PAGE_BYTES_MAX;
use crate::codec::ByteReader;
use crate::error::{Error, Result};
use crate::ids::{ColumnId, RowId};
use crate::schema::row_change::RowChange;
use crate::time::Timestamp;

/// Most deltas of a page.
pub(super) const PAGE_DELTAS_MAX: usize = 1 << 16;

/// Direction of a stream of deltas.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum DeltaDirection {
    Undo,
    Redo,
}

/// Timestamps from `from` up to but not including `before`; without `before`, all from `from` on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimeRange {
    pub from: Timestamp,
    pub before: Option<Timestamp>,
}

impl TimeRange {
    /// Returns the range of everything older than `ts`.
    pub fn before(ts: Timestamp) -> TimeRange {
        TimeRange { from: Timestamp::MIN, before: Some(ts) }
    }

    /// Returns the range of everything not older than `ts`.
    pub fn from(ts: Timestamp) -> TimeRange {
        TimeRange { from: ts, before: None }
    }

    pub fn contains(self, ts: Timestamp) -> bool {
        ts >= self.from && self.before.is_none_or(|before| ts < before)
    }

    pub(super) fn overlaps(self, low: Timestamp, high: Timestamp) -> bool {
        high >= self.from && self.before.is_none_or(|before| low < before)
    }
}

/// Columns that some deltas set, and whether they delete or reinsert rows.
///
/// A scan passes over deltas that neither set a column of it nor change which rows are live.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangedColumns {
    /// Columns set by UPDATEs, ascending.
    columns: Vec<ColumnId>,
    deletes: bool,
    /// A REINSERT sets every column.
    reinserts: bool,
}

impl ChangedColumns {
    /// Returns the summary of deltas of which nothing is known.
    pub fn unknown() -> ChangedColumns {
        ChangedColumns { columns: Vec::new(), deletes: true, reinserts: true }
    }

    pub(super) fn add(&mut self, change: &RowChange<'_>) {
        match change {
            RowChange::Delete => self.deletes = true,
            RowChange::Reinsert(_) => self.reinserts = true,
            RowChange::Update(cells) => cells.into_iter().for_each(|(id, _)| self.add_column(id)),
        }
    }

    fn add_column(&mut self, id: ColumnId) {
        if let Err(at) = self.columns.binary_search(&id) {
            self.columns.insert(at, id);
        }
    }

    /// Returns true if a delta may have made a row live or dead.
    pub fn moves_rows(&self) -> bool {
        self.deletes || self.reinserts
    }

    /// Returns true if a delta may set this column.
    pub fn sets(&self, column: ColumnId) -> bool {
        self.reinserts || self.columns.binary_search(&column).is_ok()
    }

    /// Returns true if a scan of these columns needs the deltas.
    pub fn concerns(&self, columns: &[ColumnId]) -> bool {
        self.moves_rows() || columns.iter().any(|column| self.sets(*column))
    }

    /// Returns the bytes of memory allocated.
    pub(super) fn allocated(&self) -> usize {
        self.columns.capacity() * size_of::<ColumnId>()
    }

    /// Returns an error unless the columns ascend, as a writer leaves them.
    pub(super) fn check(&self) -> Result<()> {
        if self.columns.is_sorted_by(|a, b| a < b) {
            return Ok(());
        }
        Err(Error::corrupt("delta index: the columns of a page are out of order"))
    }
}

/// Returns true if a row change, which has been parsed before, may set this column.
pub(super) fn may_set(change: &[u8], column: ColumnId) -> bool {
    match RowChange::parsed_before(change) {
        RowChange::Delete => false,
        RowChange::Update(cells) => cells.into_iter().any(|(id, _)| id == column),
        RowChange::Reinsert(_) => true,
    }
}

/// Deltas in order of application per row, with their bytes in one piece.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeltaBatch {
    entries: Vec<Delta>,
    bytes: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Delta {
    ts: Timestamp,
    row: RowId,
    len: u32,
    /// Not a `u32`, unlike in a page: deltas collected from several stores may have more than 4 GiB.
    start: u64,
}

impl DeltaBatch {
    /// Returns the bytes of memory allocated.
    pub fn allocated(&self) -> usize {
        self.entries.capacity() * size_of::<Delta>() + self.bytes.capacity()
    }

    /// Returns the bytes of memory used.
    pub fn byte_size(&self) -> usize {
        size_of_val(&self.entries[..]) + self.bytes.len()
    }

    pub fn push(&mut self, row: RowId, ts: Timestamp, change: &[u8]) {
        self.entries.push(Delta { ts, row, start: self.bytes.len() as u64, len: change.len() as u32 });
        self.bytes.extend_from_slice(change);
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn iter(&self) -> impl Iterator<Item = (RowId, Timestamp, &[u8])> {
        self.slice(0..self.entries.len())
    }

    /// Returns the deltas at these indexes.
    pub(super) fn slice(&self, indexes: Range<usize>) -> impl Iterator<Item = (RowId, Timestamp, &[u8])> {
        let change = |delta: &Delta| &self.bytes[delta.start as usize..][..delta.len as usize];
        self.entries[indexes].iter().map(move |delta| (delta.row, delta.ts, change(delta)))
    }

    /// Returns the indexes of the deltas of these rows. The batch must be ordered by row.
    pub(super) fn indexes_of(&self, rows: &Range<RowId>) -> Range<usize> {
        let start = self.entries.partition_point(|delta| delta.row < rows.start);
        let len = self.entries[start..].partition_point(|delta| delta.row < rows.end);
        start..start + len
    }

    /// Returns the deltas of these rows. The batch must be ordered by row.
    pub(super) fn of(&self, rows: &Range<RowId>) -> impl Iterator<Item = (RowId, Timestamp, &[u8])> {
        self.slice(self.indexes_of(rows))
    }

    /// Returns the bytes of memory used by the deltas at these indexes, if they are in the order they were pushed in.
    pub(super) fn byte_size_of(&self, indexes: &Range<usize>) -> usize {
        let entries = &self.entries[indexes.clone()];
        let Some((first, last)) = entries.first().zip(entries.last()) else { return 0 };
        size_of_val(entries) + (last.start + u64::from(last.len) - first.start) as usize
    }

    /// Appends to `out` the deltas of `rows` within `times`.
    pub(super) fn copy_to(&self, rows: &Range<RowId>, times: TimeRange, out: &mut DeltaBatch) {
        let within = self.of(rows).filter(|(_, ts, _)| times.contains(*ts));
        within.for_each(|(row, ts, change)| out.push(row, ts, change));
    }

    /// Returns the first and the last row.
    pub(super) fn row_bounds(&self) -> Option<(RowId, RowId)> {
        Some((self.entries.first()?.row, self.entries.last()?.row))
    }

    /// Sorts deltas of several stores into the order of application.
    pub fn sort(&mut self, direction: DeltaDirection) {
        match direction {
            DeltaDirection::Redo => self.entries.sort_by_key(|delta| (delta.row, delta.ts)),
            DeltaDirection::Undo => self.entries.sort_by_key(|delta| (delta.row, Reverse(delta.ts))),
        }
    }

    /// Appends the body of a page with these deltas.
    pub(super) fn encode(&self, body: &mut Vec<u8>) {
        body.extend_from_slice(&(self.entries.len() as u32).to_le_bytes());
        let (mut rows, mut times, mut lengths) = (Vec::new(), Vec::new(), Vec::new());
        for delta in &self.entries {
            rows.push(delta.row);
            times.extend_from_slice(&delta.ts.0.to_le_bytes());
            lengths.push(delta.len);
        }
        pack_u32(&rows, body);
        pack(&times, 8, Signedness::Unsigned, body);
        pack_u32(&lengths, body);
        body.extend_from_slice(&self.bytes);
    }

    /// Removes all deltas and keeps the memory.
    pub(super) fn clear(&mut self) {
        self.entries.clear();
        self.bytes.clear();
    }

    pub(super) fn bytes_len(&self) -> usize {
        self.bytes.len()
    }
}

/// Deltas ordered by row, and a summary of them.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct DeltaPage {
    pub deltas: DeltaBatch,
    pub changed: ChangedColumns,
}

impl DeltaPage {
    /// Decodes and checks a page: rows must be in order, and every row change well formed.
    pub(super) fn decode(body: &[u8]) -> Result<DeltaPage> {
        let mut input = ByteReader::new(body);
        let count = input.u32()? as usize;
        if count > PAGE_DELTAS_MAX {
            return Err(Error::corrupt(format!("delta page: too many deltas ({count})")));
        }
        let rows = unpack_u32(&mut input, count)?;
        let mut times = Vec::new();
        unpack(&mut input, count, 8, &mut times)?;
        let lengths = unpack_u32(&mut input, count)?;
        let total: u64 = lengths.iter().map(|length| u64::from(*length)).sum();
        if total > PAGE_BYTES_MAX as u64 || !rows.is_sorted() {
            return Err(Error::corrupt("delta page: out of order or too long"));
        }
        let bytes = input.take(total as usize)?.to_vec();
        input.finish()?;
        let (times, _) = times.as_chunks::<8>();
        let times = times.iter().map(|ts| Timestamp(u64::from_le_bytes(*ts)));
        let mut page = DeltaPage {
            deltas: DeltaBatch { entries: Vec::with_capacity(count), bytes },
            changed: ChangedColumns::default(),
        };
        let mut start = 0;
        for ((row, ts), len) in rows.into_iter().zip(times).zip(lengths) {
            page.deltas.entries.push(Delta { ts, row, len, start });
            let change = RowChange::parse(&page.deltas.bytes[start as usize..][..len as usize])?;
            page.changed.add(&change);
            start += u64::from(len);
        }
        Ok(page)
    }

    pub(super) fn byte_size(&self) -> usize {
        self.deltas.allocated() + self.changed.allocated()
    }
}
