//! The deltas of a DiskRowSet, and those of them that a snapshot needs.
//!
//! ```text
//!   UNDO files      base       REDO files        frozen      recent
//!   ts >= T ◀────── values ──▶ ts < T ─────────▶ ts < T ───▶ ts < T        state at snapshot T
//!   newest first               oldest first
//! ```
//!
//! Rows without deltas cost nothing: a batch collects the deltas of its rows once, and a column without any is copied
//! from its pages. Pages of deltas that change none of the scan's columns are not read.

use std::ops::Range;
use std::sync::Arc;

use super::deltafile::{DeltaBatch, DeltaDirection, DeltaReader, TimeRange};
use super::deltamemstore::DeltaMemStore;
use super::row_deltas::{DeltaRun, RowDeltas};
use super::row_fold::RowFold;
use super::row_version::RowVersion;
use crate::error::Result;
use crate::ids::{ColumnId, RowId};
use crate::schema::row_block::ProjectedColumn;
use crate::time::Timestamp;

/// All deltas of one rowset at one point in time. A delta flush replaces it as a whole.
#[derive(Clone)]
pub struct RowsetDeltas {
    pub undo: Vec<Arc<DeltaReader>>,
    /// Oldest first.
    pub redo: Vec<Arc<DeltaReader>>,
    /// The DeltaMemStore that a flush is writing.
    pub frozen: Option<Arc<DeltaMemStore>>,
    pub recent: Arc<DeltaMemStore>,
}

/// The deltas that a scan needs: those from the base to the state below `before` that concern its columns. A diff scan
/// needs all of them, and those back to `diff_from`.
#[derive(Debug, Clone, Copy)]
pub(super) struct DeltaQuery<'a> {
    pub before: Timestamp,
    pub diff_from: Option<Timestamp>,
    pub columns: &'a [ColumnId],
}

impl RowsetDeltas {
    /// Returns the deltas of `rows` from the base to the state below `before` that a scan of `columns` needs. A diff
    /// scan needs all of them, and those back to `diff_from`.
    pub fn for_scan(
        &self,
        rows: Range<RowId>,
        before: Timestamp,
        diff_from: Option<Timestamp>,
        columns: &[ColumnId],
    ) -> Result<RowDeltas> {
        let query = DeltaQuery { before, diff_from, columns };
        let deltas = self.for_scan_within(&rows, query, usize::MAX)?;
        Ok(deltas.expect("no deltas exceed an unlimited budget"))
    }

    /// Returns the deltas of `rows` that a scan needs; `None` if they have more than `bytes_max` bytes.
    pub(super) fn for_scan_within(
        &self,
        rows: &Range<RowId>,
        query: DeltaQuery<'_>,
        bytes_max: usize,
    ) -> Result<Option<RowDeltas>> {
        let DeltaQuery { before, diff_from, columns } = query;
        let columns = diff_from.is_none().then_some(columns);
        let undo_times = TimeRange::from(diff_from.unwrap_or(before));
        let undo = self.collect_undo(rows, undo_times, columns, bytes_max)?;
        let mut bytes = undo.byte_size();
        let (up_to, mut redo) = (TimeRange::before(before), Vec::new());
        let Some(left) = bytes_max.checked_sub(bytes) else { return Ok(None) };
        bytes += self.redo_runs(rows, up_to, columns, left, &mut redo)?;
        for store in self.frozen.iter().chain([&self.recent]) {
            let mut batch = DeltaBatch::default();
            store.collect_within(rows, up_to, bytes_max.saturating_sub(bytes), &mut batch);
            bytes += batch.byte_size();
            redo.extend(DeltaRun::of_batch(batch));
        }
        let deltas = || RowDeltas::new(rows.clone(), before, diff_from, undo, redo);
        Ok((bytes <= bytes_max).then(deltas))
    }

    /// Appends to `runs` the pages of REDO files that have deltas of `rows`, oldest first. Returns the bytes of these
    /// deltas: if they are more than `bytes_max`, some are missing.
    fn redo_runs(
        &self,
        rows: &Range<RowId>,
        times: TimeRange,
        columns: Option<&[ColumnId]>,
        bytes_max: usize,
        runs: &mut Vec<DeltaRun>,
    ) -> Result<usize> {
        let mut bytes = 0;
        for file in &self.redo {
            if bytes > bytes_max {
                break;
            }
            file.visit_pages(rows, times, columns, |page| {
                let run = DeltaRun::of_page(page, rows);
                bytes += run.as_ref().map_or(0, DeltaRun::byte_size);
                runs.extend(run);
                bytes <= bytes_max
            })?;
        }
        Ok(bytes)
    }

    /// Returns deltas that lead a row to the same states as those that a scan needs, in the memory of one row.
    pub(super) fn folded(&self, row: RowId, query: DeltaQuery<'_>) -> Result<RowDeltas> {
        let DeltaQuery { before, diff_from, columns } = query;
        let (from, of_scan) = (diff_from.unwrap_or(before), diff_from.is_none().then_some(columns));
        let mut undo = RowFold::new(row, columns, before);
        // Order: the UNDO deltas of the column file, which is the last one, are newer than those of the base.
        for file in self.undo.iter().rev() {
            file.visit_row(row, TimeRange::from(from), of_scan, |ts, change| undo.add(ts, change))?;
        }
        let (up_to, mut redo) = (TimeRange::before(before), RowFold::new(row, columns, from));
        for file in &self.redo {
            file.visit_row(row, up_to, of_scan, |ts, change| redo.add(ts, change))?;
        }
        let rows = row..row + 1;
        for store in self.frozen.iter().chain([&self.recent]) {
            store.visit(&rows, up_to, |_, ts, change| {
                redo.add(ts, change);
                true
            });
        }
        let redo = DeltaRun::of_batch(redo.into_batch(DeltaDirection::Redo));
        let undo = undo.into_batch(DeltaDirection::Undo);
        Ok(RowDeltas::new(rows, before, diff_from, undo, redo.into_iter().collect()))
    }

    /// Returns true if a delta of `rows` from the base to the state below `before` may set this column.
    pub(super) fn may_set(&self, rows: &Range<RowId>, before: Timestamp, column: ColumnId) -> Result<bool> {
        let (undo_times, up_to) = (TimeRange::from(before), TimeRange::before(before));
        for (files, times) in [(&self.undo, undo_times), (&self.redo, up_to)] {
            for file in files {
                if file.may_set(rows, times, column)? {
                    return Ok(true);
                }
            }
        }
        let mut stores = self.frozen.iter().chain([&self.recent]);
        Ok(stores.any(|store| store.may_set(rows, up_to, column)))
    }

    /// Returns the REDO deltas of `rows` below `before`, by row and oldest first within a row. If they have more than
    /// `bytes_max` bytes, some are missing.
    pub(super) fn collect_redo(
        &self,
        rows: &Range<RowId>,
        before: Timestamp,
        bytes_max: usize,
    ) -> Result<DeltaBatch> {
        let (up_to, mut redo) = (TimeRange::before(before), DeltaBatch::default());
        for file in &self.redo {
            file.collect_within(rows, up_to, None, bytes_max, &mut redo)?;
        }
        if redo.byte_size() > bytes_max {
            return Ok(redo);
        }
        for store in self.frozen.iter().chain([&self.recent]) {
            store.collect(rows.clone(), up_to, &mut redo);
        }
        redo.sort(DeltaDirection::Redo);
        Ok(redo)
    }

    /// Returns the row at `before` as far as deltas determine it, for a scan of `columns`, `keys` of which are in
    /// the key. `None` if UNDO deltas matter, or if the row has REDO deltas of more than `bytes_max` bytes in files:
    /// then a [`HistoryWindow`](super::history_window::HistoryWindow) is needed. `runs` holds what is read from files.
    pub(super) fn version<'a>(
        &'a self,
        row: RowId,
        before: Timestamp,
        (columns, ids, keys): (&'a [ProjectedColumn], &[ColumnId], usize),
        bytes_max: usize,
        runs: &'a mut Vec<DeltaRun>,
    ) -> Result<Option<RowVersion<'a>>> {
        let rows = row..row + 1;
        // The first page with any is enough.
        if !self.collect_undo(&rows, TimeRange::from(before), Some(ids), 0)?.is_empty() {
            return Ok(None);
        }
        let mut version = RowVersion::new(columns, keys);
        for store in [Some(&self.recent), self.frozen.as_ref()].into_iter().flatten() {
            for change in store.newest_first(row, before) {
                if version.is_complete() {
                    return Ok(Some(version));
                }
                version.add(change);
            }
        }
        if version.is_complete() {
            return Ok(Some(version));
        }
        let bytes = self.redo_runs(&rows, TimeRange::before(before), Some(ids), bytes_max, runs)?;
        if bytes > bytes_max {
            return Ok(None);
        }
        let runs: &'a [DeltaRun] = runs;
        runs.iter().rev().for_each(|run| version.add_run(run, before));
        Ok(Some(version))
    }

    /// Returns the UNDO deltas of `rows` within `times`, by row and newest first within a row. If they have more than
    /// `bytes_max` bytes, some are missing.
    pub(super) fn collect_undo(
        &self,
        rows: &Range<RowId>,
        times: TimeRange,
        columns: Option<&[ColumnId]>,
        bytes_max: usize,
    ) -> Result<DeltaBatch> {
        let mut undo = DeltaBatch::default();
        for file in &self.undo {
            file.collect_within(rows, times, columns, bytes_max, &mut undo)?;
        }
        if self.undo.len() > 1 {
            undo.sort(DeltaDirection::Undo);
        }
        Ok(undo)
    }

    /// Returns true if the row is live after its newest delta, or `None` if that is unknown without reading files.
    pub fn is_live_without_io(&self, row: RowId) -> Option<bool> {
        let stores = [Some(&self.recent), self.frozen.as_ref()];
        let in_memory = stores.into_iter().flatten().find_map(|store| store.is_live(row));
        let none_deleted = || self.redo.iter().all(|file| file.meta().deletes == 0).then_some(true);
        in_memory.or_else(none_deleted)
    }

    /// Returns true if the row was deleted before `mark` and not reinserted.
    pub fn was_deleted_before(&self, row: RowId, mark: Timestamp) -> Result<bool> {
        for store in [Some(&self.recent), self.frozen.as_ref()].into_iter().flatten() {
            if let Some(live) = store.is_live(row) {
                return Ok(!live && store.last_change(row).is_some_and(|at| at < mark));
            }
        }
        for file in self.redo.iter().rev() {
            if let Some((at, live)) = file.last_change(row)? {
                return Ok(!live && at < mark);
            }
        }
        Ok(false)
    }

    /// Returns the number of deltas in files that only snapshots before `mark` need: those that a rewrite of the rowset
    /// would drop. Files that are still needed in part do not count.
    pub fn ancient(&self, mark: Timestamp) -> u64 {
        let undo = self.undo.iter().map(|file| file.meta()).filter(|meta| meta.newest < mark);
        // Each inserted row leaves one UNDO DELETE, which takes almost no space.
        let updates = undo.map(|meta| meta.count - meta.deletes.min(meta.count)).sum::<u64>();
        let redo = self.redo.iter().map(|file| file.meta()).filter(|meta| meta.newest < mark);
        updates + redo.map(|meta| meta.deletes.saturating_sub(meta.reinserts)).sum::<u64>()
    }

    /// Returns true if the row is live after its newest delta.
    pub fn is_live(&self, row: RowId) -> Result<bool> {
        if let Some(live) = self.is_live_without_io(row) {
            return Ok(live);
        }
        for file in self.redo.iter().rev() {
            if let Some(live) = file.is_live(row)? {
                return Ok(live);
            }
        }
        Ok(true)
    }
}
