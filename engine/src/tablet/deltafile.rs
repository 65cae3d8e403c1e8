//! Delta files: streams of REDO deltas (from the base to newer states) or UNDO deltas (to older ones).
//!
//! ```text
//! page     count u32 | packed rows | packed timestamps (u64) | packed lengths | row changes back to back
//! order    by row; REDO oldest first within a row, UNDO newest first: the order of application
//! index    per page: position, first and last row, smallest and largest timestamp
//! ```
//!
//! *Packed* is [`crate::cfile::bitshuffle`], and pages are compressed with LZ4. So the UNDO DELETE that each row of a
//! new rowset has takes almost no space. A row change is encoded as in [`crate::schema::row_change`]. UNDO streams are
//! in the rowset's own file; each delta flush creates a file with a REDO stream.

use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::cfile::bitshuffle::{Signedness, pack, pack_u32, unpack, unpack_u32};
use crate::cfile::cache::CachePriority;
use crate::cfile::compress::PAGE_BYTES_MAX;
use crate::cfile::page_file::{PageFile, PageRef, PageWriter, index_of, stream};
use crate::cfile::reader::{CachedFile, LazyResident, ResidentRef};
use crate::codec::ByteReader;
use crate::error::{Error, Result};
use crate::ids::RowId;
use crate::schema::Compression;
use crate::schema::row_change::RowChange;
use crate::time::Timestamp;

/// Most deltas of a page.
const PAGE_DELTAS_MAX: usize = 1 << 16;

/// Direction of a stream of deltas.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum DeltaDirection {
    Undo,
    Redo,
}

impl DeltaDirection {
    fn stream(self) -> u32 {
        match self {
            DeltaDirection::Undo => stream::UNDO,
            DeltaDirection::Redo => stream::REDO,
        }
    }
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

    fn overlaps(self, low: Timestamp, high: Timestamp) -> bool {
        high >= self.from && self.before.is_none_or(|before| low < before)
    }
}

/// Deltas copied out of their stores, in order of application per row.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeltaBatch {
    entries: Vec<(RowId, Timestamp, u32, u32)>,
    bytes: Vec<u8>,
}

impl DeltaBatch {
    /// Returns the bytes of memory allocated.
    pub fn allocated(&self) -> usize {
        self.entries.capacity() * size_of::<(RowId, Timestamp, u32, u32)>() + self.bytes.capacity()
    }

    pub fn push(&mut self, row: RowId, ts: Timestamp, change: &[u8]) {
        self.entries.push((row, ts, self.bytes.len() as u32, change.len() as u32));
        self.bytes.extend_from_slice(change);
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn iter(&self) -> impl Iterator<Item = (RowId, Timestamp, &[u8])> {
        let slice = |(row, ts, at, len): &(RowId, Timestamp, u32, u32)| {
            (*row, *ts, &self.bytes[*at as usize..(*at + *len) as usize])
        };
        self.entries.iter().map(slice)
    }

    /// Sorts deltas of several stores into the order of application.
    pub fn sort(&mut self, direction: DeltaDirection) {
        match direction {
            DeltaDirection::Redo => self.entries.sort_by_key(|(row, ts, ..)| (*row, *ts)),
            DeltaDirection::Undo => self.entries.sort_by_key(|(row, ts, ..)| (*row, std::cmp::Reverse(*ts))),
        }
    }
}

/// Index entry of one page of deltas.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct DeltaEntry {
    at: PageRef,
    first_row: RowId,
    last_row: RowId,
    oldest: Timestamp,
    newest: Timestamp,
}

/// Location and statistics of a finished stream of deltas.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeltaMeta {
    pub direction: DeltaDirection,
    pub count: u64,
    /// Deltas that delete or reinsert their row.
    pub deletes: u64,
    pub reinserts: u64,
    pub oldest: Timestamp,
    pub newest: Timestamp,
    pub index: PageRef,
}

/// Writer of one stream of deltas.
pub struct DeltaWriter {
    direction: DeltaDirection,
    page_bytes: usize,
    rows: Vec<u32>,
    times: Vec<u8>,
    lengths: Vec<u32>,
    changes: Vec<u8>,
    index: Vec<DeltaEntry>,
    last: Option<(RowId, Timestamp)>,
    total: DeltaMeta,
    page_times: (Timestamp, Timestamp),
}

const NO_TIMES: (Timestamp, Timestamp) = (Timestamp::MAX, Timestamp::MIN);

impl DeltaWriter {
    pub fn new(direction: DeltaDirection, page_bytes: usize) -> DeltaWriter {
        let (oldest, newest) = NO_TIMES;
        let index = PageRef { offset: 0, len: 0 };
        DeltaWriter {
            direction,
            page_bytes,
            rows: Vec::new(),
            times: Vec::new(),
            lengths: Vec::new(),
            changes: Vec::new(),
            index: Vec::new(),
            last: None,
            total: DeltaMeta { direction, count: 0, deletes: 0, reinserts: 0, oldest, newest, index },
            page_times: NO_TIMES,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.total.count == 0
    }

    /// Returns the bytes of memory allocated.
    pub fn allocated(&self) -> usize {
        let words = self.rows.capacity() + self.lengths.capacity();
        let index = self.index.capacity() * size_of::<DeltaEntry>();
        4 * words + self.times.capacity() + self.changes.capacity() + index
    }

    /// Returns the bytes that wait for their page to fill up.
    pub fn pending_bytes(&self) -> usize {
        self.changes.len() + 16 * self.rows.len()
    }

    /// Appends a delta; `Invalid` if it is out of order. One operation may have changed a row several times.
    pub fn push(&mut self, row: RowId, ts: Timestamp, change: &[u8], out: &mut PageWriter) -> Result<()> {
        let in_order = self.last.is_none_or(|(last_row, last_ts)| match self.direction {
            _ if row != last_row => row > last_row,
            DeltaDirection::Redo => ts >= last_ts,
            DeltaDirection::Undo => ts <= last_ts,
        });
        if !in_order {
            let (last_row, last_ts) = self.last.unwrap_or_default();
            return Err(Error::invalid(format!(
                "{:?} of row {row} at {} cannot follow row {last_row} at {}",
                self.direction, ts.0, last_ts.0
            )));
        }
        self.last = Some((row, ts));
        match RowChange::parse(change)? {
            RowChange::Delete => self.total.deletes += 1,
            RowChange::Reinsert(_) => self.total.reinserts += 1,
            RowChange::Update(_) => {}
        }
        self.total.count += 1;
        self.page_times = (self.page_times.0.min(ts), self.page_times.1.max(ts));
        self.rows.push(row);
        self.times.extend_from_slice(&ts.0.to_le_bytes());
        self.lengths.push(change.len() as u32);
        self.changes.extend_from_slice(change);
        if self.pending_bytes() >= self.page_bytes || self.rows.len() == PAGE_DELTAS_MAX {
            self.flush(out)?;
        }
        Ok(())
    }

    fn flush(&mut self, out: &mut PageWriter) -> Result<()> {
        let (Some(first), Some(last)) = (self.rows.first(), self.rows.last()) else { return Ok(()) };
        let mut body = (self.rows.len() as u32).to_le_bytes().to_vec();
        pack_u32(&self.rows, &mut body);
        pack(&self.times, 8, Signedness::Unsigned, &mut body);
        pack_u32(&self.lengths, &mut body);
        body.extend_from_slice(&self.changes);
        let ordinal = self.index.len() as u32;
        let at = out.append(self.direction.stream(), ordinal, Compression::Lz4, &body)?;
        let (oldest, newest) = std::mem::replace(&mut self.page_times, NO_TIMES);
        self.index.push(DeltaEntry { at, first_row: *first, last_row: *last, oldest, newest });
        self.total.oldest = self.total.oldest.min(oldest);
        self.total.newest = self.total.newest.max(newest);
        self.rows.clear();
        self.times.clear();
        self.lengths.clear();
        self.changes.clear();
        Ok(())
    }

    /// Writes the pending page and the index. Returns `None` if there was no delta.
    pub fn finish(mut self, out: &mut PageWriter) -> Result<Option<DeltaMeta>> {
        self.flush(out)?;
        if self.is_empty() {
            return Ok(None);
        }
        let index = postcard::to_stdvec(&self.index).expect("integers always encode");
        self.total.index = out.append(index_of(self.direction.stream()), 0, Compression::None, &index)?;
        Ok(Some(self.total))
    }
}

/// A decoded page of deltas.
#[derive(Debug, PartialEq, Eq)]
struct DeltaPage {
    rows: Vec<u32>,
    times: Vec<u8>,
    /// Start of each row change, and the end of the last one.
    offsets: Vec<u32>,
    changes: Vec<u8>,
}

impl DeltaPage {
    /// Decodes and checks a page: rows must be in order, and every row change well formed.
    fn decode(body: &[u8]) -> Result<DeltaPage> {
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
        let changes = input.take(total as usize)?.to_vec();
        input.finish()?;
        let mut offsets = vec![0u32];
        for length in &lengths {
            let start = offsets[offsets.len() - 1];
            RowChange::parse(&changes[start as usize..(start + length) as usize])?;
            offsets.push(start + length);
        }
        Ok(DeltaPage { rows, times, offsets, changes })
    }

    fn change(&self, at: usize) -> &[u8] {
        &self.changes[self.offsets[at] as usize..self.offsets[at + 1] as usize]
    }

    fn time(&self, at: usize) -> Timestamp {
        let bytes = self.times[8 * at..8 * at + 8].try_into().expect("eight bytes");
        Timestamp(u64::from_le_bytes(bytes))
    }

    fn byte_size(&self) -> usize {
        16 * self.rows.len() + self.changes.len()
    }
}

/// One stream of deltas of an open file.
pub struct DeltaReader {
    file: Arc<CachedFile>,
    meta: DeltaMeta,
    index: LazyResident<Vec<DeltaEntry>>,
}

impl DeltaReader {
    pub fn new(file: Arc<CachedFile>, meta: DeltaMeta) -> DeltaReader {
        file.holds(size_of::<DeltaReader>() + 2 * size_of::<usize>());
        DeltaReader { file, meta, index: LazyResident::default() }
    }

    pub fn meta(&self) -> &DeltaMeta {
        &self.meta
    }

    /// Returns the file that contains the deltas.
    pub fn file(&self) -> &PageFile {
        &self.file.file
    }

    fn stream(&self) -> u32 {
        self.meta.direction.stream()
    }

    fn index(&self) -> Result<ResidentRef<'_, Vec<DeltaEntry>>> {
        self.index.get(&self.file, || {
            let (stream, at) = (index_of(self.stream()), self.meta.index);
            let body = self.file.file.read(stream, 0, at)?;
            let index: Vec<DeltaEntry> = postcard::from_bytes(&body).map_err(|error| {
                let error = Error::corrupt(format!("delta index: does not decode: {error}"));
                self.file.file.in_page(stream, 0, at, error)
            })?;
            let bytes = size_of_val(&index[..]);
            Ok((index, bytes))
        })
    }

    fn page(&self, ordinal: usize, at: PageRef) -> Result<Arc<DeltaPage>> {
        self.file.page(self.stream(), ordinal as u32, at, CachePriority::Scan, |body| {
            let page = DeltaPage::decode(body)?;
            let bytes = page.byte_size();
            Ok((page, bytes))
        })
    }

    /// Returns true if the stream may have deltas within `times`.
    pub fn concerns(&self, times: TimeRange) -> bool {
        times.overlaps(self.meta.oldest, self.meta.newest)
    }

    /// Appends to `out` the deltas of `rows` within `times`, in order.
    pub fn collect(&self, rows: Range<RowId>, times: TimeRange, out: &mut DeltaBatch) -> Result<()> {
        if !self.concerns(times) || rows.is_empty() {
            return Ok(());
        }
        let index = self.index()?;
        let first = index.partition_point(|entry| entry.last_row < rows.start);
        for (i, entry) in index.iter().enumerate().skip(first) {
            if entry.first_row >= rows.end {
                break;
            }
            if !times.overlaps(entry.oldest, entry.newest) {
                continue;
            }
            let page = self.page(i, entry.at)?;
            let start = page.rows.partition_point(|row| *row < rows.start);
            for at in (start..page.rows.len()).take_while(|at| page.rows[*at] < rows.end) {
                if times.contains(page.time(at)) {
                    out.push(page.rows[at], page.time(at), page.change(at));
                }
            }
        }
        Ok(())
    }

    /// Returns true if the row is live after its last delta in this REDO stream; `None` if it has none.
    pub fn is_live(&self, row: RowId) -> Result<Option<bool>> {
        Ok(self.last_change(row)?.map(|(_, live)| live))
    }

    /// Returns the timestamp of the row's last delta in this REDO stream, and true if the row is live after it.
    pub fn last_change(&self, row: RowId) -> Result<Option<(Timestamp, bool)>> {
        let mut changes = DeltaBatch::default();
        self.collect(row..row + 1, TimeRange::from(Timestamp::MIN), &mut changes)?;
        let Some((_, ts, change)) = changes.iter().last() else { return Ok(None) };
        Ok(Some((ts, !RowChange::parse(change)?.deletes())))
    }
}
