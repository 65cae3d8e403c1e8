//! The deltas of as many rows as fit a budget of bytes, for scans and for jobs that read all history of a rowset.
//!
//! ```text
//!   rows wanted    0 ─────────────── 4096      too many bytes
//!                  0 ─────── 2048              too many bytes
//!                  0 ── 1024                   collected; next time from 1024 to at most 3072
//! ```
//!
//! Rows are as many as their base allows, but their history may be any number of times longer. So a range that exceeds
//! the budget is halved, down to one row. The next range has at most twice the rows of the last one, because neighbours
//! usually have histories of similar lengths.
//!
//! One row may still have any number of deltas. A job needs them all. A scan needs the states that they lead to, so its
//! deltas are folded page by page (`row_fold`).

use std::ops::Range;

use super::delta_tracker::{DeltaQuery, RowsetDeltas};
use super::deltafile::{DeltaBatch, TimeRange};
use super::row_deltas::RowDeltas;
use crate::error::Result;
use crate::ids::RowId;
use crate::time::Timestamp;

/// Deltas of consecutive rows, by row and in order of application within a row.
#[derive(Default)]
pub(super) struct RowHistory {
    pub rows: Range<RowId>,
    pub undo: DeltaBatch,
    pub redo: DeltaBatch,
}

impl RowHistory {
    /// Returns the bytes of memory allocated.
    pub(super) fn allocated(&self) -> usize {
        self.undo.allocated() + self.redo.allocated()
    }

    /// Returns the history if its deltas have at most `bytes_max` bytes.
    fn within(self, bytes_max: usize) -> Option<RowHistory> {
        (self.undo.byte_size() + self.redo.byte_size() <= bytes_max).then_some(self)
    }
}

/// Number of rows whose history is collected at once.
pub(super) struct HistoryWindow {
    bytes_max: usize,
    rows: u32,
}

impl HistoryWindow {
    pub(super) fn new(bytes_max: usize) -> HistoryWindow {
        HistoryWindow { bytes_max, rows: u32::MAX }
    }

    /// Returns the UNDO deltas of the first of `rows`, and their REDO deltas below `before`.
    pub(super) fn history(
        &mut self,
        deltas: &RowsetDeltas,
        rows: &Range<RowId>,
        before: Timestamp,
    ) -> Result<RowHistory> {
        self.collect(rows, |rows, bytes_max| {
            let undo = deltas.collect_undo(&rows, TimeRange::from(Timestamp::MIN), None, bytes_max)?;
            let redo = match bytes_max.checked_sub(undo.byte_size()) {
                Some(bytes_max) => deltas.collect_redo(&rows, before, bytes_max)?,
                None => DeltaBatch::default(),
            };
            Ok(RowHistory { rows, undo, redo }.within(bytes_max))
        })
    }

    /// Returns the REDO deltas of the first of `rows`, without UNDO deltas.
    pub(super) fn redo(&mut self, deltas: &RowsetDeltas, rows: &Range<RowId>) -> Result<RowHistory> {
        self.collect(rows, |rows, bytes_max| {
            let redo = deltas.collect_redo(&rows, Timestamp::MAX, bytes_max)?;
            Ok(RowHistory { rows, undo: DeltaBatch::default(), redo }.within(bytes_max))
        })
    }

    /// Returns the deltas of the first of `rows` that a scan needs.
    pub(super) fn for_scan(
        &mut self,
        deltas: &RowsetDeltas,
        rows: &Range<RowId>,
        query: DeltaQuery<'_>,
    ) -> Result<RowDeltas> {
        let budget = self.bytes_max;
        self.collect(rows, |rows, bytes_max| {
            match deltas.for_scan_within(&rows, query, bytes_max.min(budget))? {
                None if rows.end - rows.start == 1 => deltas.folded(rows.start, query).map(Some),
                within => Ok(within),
            }
        })
    }

    /// Halves the rows until what `collect` returns for them fits a budget of bytes. One row has no budget.
    fn collect<T>(
        &mut self,
        rows: &Range<RowId>,
        collect: impl Fn(Range<RowId>, usize) -> Result<Option<T>>,
    ) -> Result<T> {
        let mut len = (rows.end - rows.start).min(self.rows);
        loop {
            let bytes_max = if len > 1 { self.bytes_max } else { usize::MAX };
            if let Some(collected) = collect(rows.start..rows.start + len, bytes_max)? {
                self.rows = len.max(1).saturating_mul(2);
                return Ok(collected);
            }
            len /= 2;
        }
    }
}
