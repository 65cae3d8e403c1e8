//! Delta files: streams of REDO deltas (from the base to newer states) or UNDO deltas (to older ones).
//!
//! ```text
//! page     count u32 | packed rows | packed timestamps (u64) | packed lengths | row changes back to back
//! order    by row; REDO oldest first within a row, UNDO newest first: the order of application
//! index    per page: position, first and last row, smallest and largest timestamp
//!          then per page: columns set, whether rows are deleted, whether rows are reinserted
//! ```
//!
//! The second part of the index lets a scan pass over pages that change none of its columns. Files of version 0.1 end
//! after the first part, and programs of that version do not read on: neither needs a conversion.
//!
//! *Packed* is [`crate::cfile::bitshuffle`], and pages are compressed with LZ4. So the UNDO DELETE that each row of a
//! new rowset has takes almost no space. A row change is encoded as in [`crate::schema::row_change`]. UNDO streams are
//! in the rowset's own file; each delta flush creates a file with a REDO stream.

use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub use super::delta_page::{ChangedColumns, DeltaBatch, DeltaDirection, TimeRange};
use super::delta_page::{DeltaPage, PAGE_DELTAS_MAX, may_set};
use crate::cfile::cache::CachePriority;
use crate::cfile::cached_reads;
use crate::cfile::page_file::{PageFile, PageRef, PageWriter, index_of, stream};
use crate::cfile::reader::{CachedFile, LazyResident, ResidentRef};
use crate::error::{Error, Result};
use crate::ids::{ColumnId, RowId};
use crate::schema::Compression;
use crate::schema::row_change::RowChange;
use crate::time::Timestamp;

/// Returns the stream of the deltas of a direction.
fn stream_of(direction: DeltaDirection) -> u32 {
    match direction {
        DeltaDirection::Undo => stream::UNDO,
        DeltaDirection::Redo => stream::REDO,
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

/// A decoded index.
struct DeltaIndex {
    pages: Vec<DeltaEntry>,
    /// One for each page, or none in files of version 0.1.
    changed: Vec<ChangedColumns>,
}

impl DeltaIndex {
    fn decode(body: &[u8]) -> Result<DeltaIndex> {
        let undecodable = |error| Error::corrupt(format!("delta index: does not decode: {error}"));
        let (pages, rest): (Vec<DeltaEntry>, _) = postcard::take_from_bytes(body).map_err(undecodable)?;
        if rest.is_empty() {
            return Ok(DeltaIndex { pages, changed: Vec::new() });
        }
        let changed: Vec<ChangedColumns> = postcard::from_bytes(rest).map_err(undecodable)?;
        if changed.len() != pages.len() {
            let (pages, changed) = (pages.len(), changed.len());
            return Err(Error::corrupt(format!(
                "delta index: columns of {changed} pages, but {pages} pages"
            )));
        }
        changed.iter().try_for_each(ChangedColumns::check)?;
        Ok(DeltaIndex { pages, changed })
    }

    /// Returns true if a scan of these columns needs the page; with `None`, every reader does.
    fn concerns(&self, page: usize, columns: Option<&[ColumnId]>) -> bool {
        let Some((changed, columns)) = self.changed.get(page).zip(columns) else { return true };
        changed.concerns(columns)
    }

    fn byte_size(&self) -> usize {
        let changed: usize = self.changed.iter().map(ChangedColumns::allocated).sum();
        size_of_val(&self.pages[..]) + size_of_val(&self.changed[..]) + changed
    }
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
    pending: DeltaBatch,
    pending_changed: ChangedColumns,
    index: Vec<DeltaEntry>,
    changed: Vec<ChangedColumns>,
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
            pending: DeltaBatch::default(),
            pending_changed: ChangedColumns::default(),
            index: Vec::new(),
            changed: Vec::new(),
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
        let index = self.index.capacity() * size_of::<DeltaEntry>();
        let summaries = self.changed.capacity() * size_of::<ChangedColumns>();
        let columns: usize = self.changed.iter().map(ChangedColumns::allocated).sum();
        self.pending.allocated() + index + summaries + columns
    }

    /// Returns the bytes that wait for their page to fill up.
    pub fn pending_bytes(&self) -> usize {
        self.pending.bytes_len() + 16 * self.pending.len()
    }

    /// Returns about the bytes of the index of the pages written so far.
    pub fn index_bytes(&self) -> usize {
        let columns: usize = self.changed.iter().map(ChangedColumns::allocated).sum();
        self.index.len() * size_of::<DeltaEntry>() + columns
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
        let parsed = RowChange::parse(change)?;
        match parsed {
            RowChange::Delete => self.total.deletes += 1,
            RowChange::Reinsert(_) => self.total.reinserts += 1,
            RowChange::Update(_) => {}
        }
        self.total.count += 1;
        self.page_times = (self.page_times.0.min(ts), self.page_times.1.max(ts));
        self.pending_changed.add(&parsed);
        self.pending.push(row, ts, change);
        if self.pending_bytes() >= self.page_bytes || self.pending.len() == PAGE_DELTAS_MAX {
            self.flush(out)?;
        }
        Ok(())
    }

    fn flush(&mut self, out: &mut PageWriter) -> Result<()> {
        let Some((first_row, last_row)) = self.pending.row_bounds() else { return Ok(()) };
        let mut body = Vec::new();
        self.pending.encode(&mut body);
        let ordinal = self.index.len() as u32;
        let at = out.append(stream_of(self.direction), ordinal, Compression::Lz4, &body)?;
        let (oldest, newest) = std::mem::replace(&mut self.page_times, NO_TIMES);
        self.index.push(DeltaEntry { at, first_row, last_row, oldest, newest });
        self.changed.push(std::mem::take(&mut self.pending_changed));
        self.total.oldest = self.total.oldest.min(oldest);
        self.total.newest = self.total.newest.max(newest);
        self.pending.clear();
        Ok(())
    }

    /// Writes the pending page and the index. Returns `None` if there was no delta.
    pub fn finish(mut self, out: &mut PageWriter) -> Result<Option<DeltaMeta>> {
        self.flush(out)?;
        if self.is_empty() {
            return Ok(None);
        }
        let index = postcard::to_stdvec(&self.index).expect("integers always encode");
        let index = postcard::to_extend(&self.changed, index).expect("integers always encode");
        let stream = index_of(stream_of(self.direction));
        self.total.index = out.append(stream, 0, Compression::None, &index)?;
        Ok(Some(self.total))
    }
}

/// One stream of deltas of an open file.
pub struct DeltaReader {
    file: Arc<CachedFile>,
    meta: DeltaMeta,
    index: LazyResident<DeltaIndex>,
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
        stream_of(self.meta.direction)
    }

    fn index(&self) -> Result<ResidentRef<'_, DeltaIndex>> {
        self.index.get(&self.file, || {
            let (stream, at) = (index_of(self.stream()), self.meta.index);
            cached_reads::refuse()?;
            let body = self.file.file.read(stream, 0, at)?;
            let index = DeltaIndex::decode(&body);
            let index = index.map_err(|error| self.file.file.in_page(stream, 0, at, error))?;
            let bytes = index.byte_size();
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
        self.collect_within(&rows, times, None, usize::MAX, out)
    }

    /// Like [`DeltaReader::collect`], but ends after the page with which `out` has more than `bytes_max` bytes. Takes
    /// `columns` like [`DeltaReader::for_each_page`].
    pub(super) fn collect_within(
        &self,
        rows: &Range<RowId>,
        times: TimeRange,
        columns: Option<&[ColumnId]>,
        bytes_max: usize,
        out: &mut DeltaBatch,
    ) -> Result<()> {
        self.visit_pages(rows, times, columns, |page| {
            page.deltas.copy_to(rows, times, out);
            out.byte_size() <= bytes_max
        })
    }

    /// Calls `visit` with the pages that may have deltas of `rows` within `times`, in order. With `columns`, pages that
    /// a scan of these columns does not need are left out.
    pub(super) fn for_each_page(
        &self,
        rows: &Range<RowId>,
        times: TimeRange,
        columns: Option<&[ColumnId]>,
        mut visit: impl FnMut(Arc<DeltaPage>),
    ) -> Result<()> {
        self.visit_pages(rows, times, columns, |page| {
            visit(page);
            true
        })
    }

    /// Calls `visit` with timestamp and row change of each delta of a row within `times`, in order. Takes `columns`
    /// like [`DeltaReader::for_each_page`].
    pub(super) fn visit_row(
        &self,
        row: RowId,
        times: TimeRange,
        columns: Option<&[ColumnId]>,
        mut visit: impl FnMut(Timestamp, &[u8]),
    ) -> Result<()> {
        let rows = row..row + 1;
        self.for_each_page(&rows, times, columns, |page| {
            let within = page.deltas.of(&rows).filter(|(_, ts, _)| times.contains(*ts));
            within.for_each(|(_, ts, change)| visit(ts, change));
        })
    }

    /// Returns true if a delta of `rows` within `times` may set this column. Pages after the first such delta are not
    /// read.
    pub(super) fn may_set(&self, rows: &Range<RowId>, times: TimeRange, column: ColumnId) -> Result<bool> {
        let mut is_set = false;
        self.visit_pages(rows, times, Some(&[column]), |page| {
            let mut within = page.deltas.of(rows).filter(|(_, ts, _)| times.contains(*ts));
            is_set = page.changed.sets(column) && within.any(|(_, _, change)| may_set(change, column));
            !is_set
        })?;
        Ok(is_set)
    }

    /// Like [`DeltaReader::for_each_page`], until `visit` returns false.
    pub(super) fn visit_pages(
        &self,
        rows: &Range<RowId>,
        times: TimeRange,
        columns: Option<&[ColumnId]>,
        mut visit: impl FnMut(Arc<DeltaPage>) -> bool,
    ) -> Result<()> {
        if !self.concerns(times) || rows.is_empty() {
            return Ok(());
        }
        let index = self.index()?;
        let first = index.pages.partition_point(|entry| entry.last_row < rows.start);
        for (i, entry) in index.pages.iter().enumerate().skip(first) {
            if entry.first_row >= rows.end {
                break;
            }
            let is_needed = times.overlaps(entry.oldest, entry.newest) && index.concerns(i, columns);
            if is_needed && !visit(self.page(i, entry.at)?) {
                break;
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
        let (index, rows) = (self.index()?, row..row + 1);
        let end = index.pages.partition_point(|entry| entry.first_row <= row);
        // The last page with a delta of the row has its newest one: a row may have any number of older pages.
        for (i, entry) in index.pages[..end].iter().enumerate().rev() {
            if entry.last_row < row {
                break;
            }
            let page = self.page(i, entry.at)?;
            if let Some((_, ts, change)) = page.deltas.of(&rows).last() {
                return Ok(Some((ts, !RowChange::parsed_before(change).deletes())));
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cfile::cache::PageCache;
    use crate::cfile::page_file::{FileKind, PageOwner};
    use crate::disk::mem::{DiskOpKind, MemDisk};
    use crate::ids::Uuid;
    use crate::schema::row_change::{RowChangeBuilder, encode_delete};

    const OWNER: PageOwner = PageOwner { tablet: Uuid([7; 16]), rowset: 3 };

    /// Returns an update with a cell of 20 bytes, or a delete every third time.
    fn change(number: u64) -> Vec<u8> {
        let mut change = Vec::new();
        if number.is_multiple_of(3) {
            encode_delete(&mut change);
        } else {
            RowChangeBuilder::update(&mut change).set(ColumnId(5), Some(&[number as u8; 20]));
        }
        change
    }

    /// Writes REDO deltas of these rows and numbers to a file of short pages. Nothing is cached.
    fn reader(disk: &MemDisk, deltas: impl IntoIterator<Item = (RowId, u64)>) -> DeltaReader {
        let mut out = PageWriter::create(Arc::new(disk.clone()), "f", FileKind::Delta, OWNER).unwrap();
        let mut writer = DeltaWriter::new(DeltaDirection::Redo, 64);
        for (row, number) in deltas {
            writer.push(row, Timestamp(number), &change(number), &mut out).unwrap();
        }
        let meta = writer.finish(&mut out).unwrap().unwrap();
        out.finish(b"").unwrap();
        let (file, _) = PageFile::open(disk, "f", FileKind::Delta, OWNER).unwrap();
        DeltaReader::new(CachedFile::new(file, PageCache::new(0)), meta)
    }

    /// Returns the last change as all deltas of the row tell it.
    fn last_of_all(reader: &DeltaReader, row: RowId) -> Option<(Timestamp, bool)> {
        let mut changes = DeltaBatch::default();
        reader.collect(row..row + 1, TimeRange::from(Timestamp::MIN), &mut changes).unwrap();
        let last = changes.iter().last();
        last.map(|(_, ts, change)| (ts, !RowChange::parse(change).unwrap().deletes()))
    }

    #[test]
    fn the_last_change_of_a_row_is_that_of_all_its_deltas() {
        let disk = MemDisk::new(1);
        // Rows of few deltas share pages. Row 4 has many pages of its own, and rows 2 and 6 have no delta.
        let count = |row: RowId| if row == 4 { 50 } else { 1 + u64::from(row) % 3 };
        let rows = [0, 1, 3, 4, 5, 7, 8, 9];
        let of_row = |row: RowId| (1..=count(row) + u64::from(row)).map(move |number| (row, number));
        let reader = reader(&disk, rows.into_iter().flat_map(of_row));
        assert!(reader.index().unwrap().pages.len() > 20);
        for row in 0..12 {
            assert_eq!(reader.last_change(row).unwrap(), last_of_all(&reader, row), "row {row}");
        }
    }

    #[test]
    fn a_row_of_many_pages_costs_one_read() {
        let disk = MemDisk::new(1);
        let reader = reader(&disk, (1..=400).map(|number| (3, number)));
        assert!(reader.index().unwrap().pages.len() > 100);
        let before = disk.op_count_of(DiskOpKind::Read);
        assert_eq!(reader.last_change(3).unwrap(), Some((Timestamp(400), true)));
        assert_eq!(disk.op_count_of(DiskOpKind::Read) - before, 1);
        assert_eq!(reader.last_change(2).unwrap(), None);
        assert_eq!(reader.last_change(4).unwrap(), None);
    }
}
