//! The deltas that a snapshot of a DiskRowSet needs, and their application to the base by row.
//!
//! ```text
//!   UNDO files      base       REDO files        frozen      recent
//!   ts >= T ◀────── values ──▶ ts < T ─────────▶ ts < T ───▶ ts < T        state at snapshot T
//!   newest first               oldest first
//! ```
//!
//! Rows without deltas cost nothing: a batch collects the deltas of its rows once, and a column without any is copied
//! from its pages.

use std::ops::Range;
use std::sync::Arc;

use super::deltafile::{DeltaBatch, DeltaDirection, DeltaReader, TimeRange};
use super::deltamemstore::DeltaMemStore;
use crate::error::{Error, Result};
use crate::ids::{ColumnId, RowId};
use crate::schema::row_block::{Bitmap, ColumnBlock, ColumnValues};
use crate::schema::row_change::RowChange;
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

impl RowsetDeltas {
    /// Returns the deltas of `rows` from the base to the state below `before`. For a diff scan it also returns those
    /// back to `diff_from`.
    pub fn collect(
        &self,
        rows: Range<RowId>,
        before: Timestamp,
        diff_from: Option<Timestamp>,
    ) -> Result<RowDeltas> {
        let mut undo = DeltaBatch::default();
        let back_to = TimeRange::from(diff_from.unwrap_or(before));
        for file in &self.undo {
            file.collect(rows.clone(), back_to, &mut undo)?;
        }
        if self.undo.len() > 1 {
            undo.sort(DeltaDirection::Undo);
        }
        let mut redo = DeltaBatch::default();
        let up_to = TimeRange::before(before);
        for file in &self.redo {
            file.collect(rows.clone(), up_to, &mut redo)?;
        }
        for store in self.frozen.iter().chain([&self.recent]) {
            store.collect(rows.clone(), up_to, &mut redo);
        }
        redo.sort(DeltaDirection::Redo);
        Ok(RowDeltas { rows, before, diff_from, undo, redo })
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

/// New cells of a column: row within the batch, and cell. Ordered by row, one cell per row.
pub type CellOverrides<'a> = Vec<(usize, Option<&'a [u8]>)>;

/// The deltas of a batch of rows.
pub struct RowDeltas {
    rows: Range<RowId>,
    before: Timestamp,
    diff_from: Option<Timestamp>,
    /// UNDO deltas at or above the snapshot or the start of the diff; by row, newest first.
    undo: DeltaBatch,
    /// REDO deltas below the snapshot; by row, oldest first.
    redo: DeltaBatch,
}

impl RowDeltas {
    /// Returns the UNDO deltas, newest first within a row, and the REDO deltas, oldest first; both by row.
    pub fn batches(&self) -> (&DeltaBatch, &DeltaBatch) {
        (&self.undo, &self.redo)
    }

    /// Returns the UNDO and the REDO deltas as owned batches.
    pub fn into_batches(self) -> (DeltaBatch, DeltaBatch) {
        (self.undo, self.redo)
    }

    /// Returns true if the base is the state at the snapshot.
    pub fn is_empty(&self) -> bool {
        self.undo.is_empty() && self.redo.is_empty()
    }

    /// Returns the deltas from the base to the state at `before`, in order of application. Rows are relative to the
    /// batch's first row.
    fn deltas_for_snapshot(&self, before: Timestamp) -> impl Iterator<Item = (usize, &[u8])> {
        let undo = self.undo.iter().filter(move |(_, ts, _)| *ts >= before);
        let redo = self.redo.iter().filter(move |(_, ts, _)| *ts < before);
        undo.chain(redo).map(|(row, _, change)| ((row - self.rows.start) as usize, change))
    }

    /// Returns the rows that are live at `before`.
    fn live_rows_at(&self, before: Timestamp) -> Result<Bitmap> {
        let mut live = Bitmap::new(self.rows.len(), true);
        for (row, change) in self.deltas_for_snapshot(before) {
            match RowChange::parse(change)? {
                RowChange::Delete => live.set(row, false),
                RowChange::Reinsert(_) => live.set(row, true),
                RowChange::Update(_) => {}
            }
        }
        Ok(live)
    }

    /// Returns the rows that are live at the snapshot.
    pub fn alive(&self) -> Result<Bitmap> {
        self.live_rows_at(self.before)
    }

    /// Returns the rows that a diff scan returns, and those of them that are deleted at the snapshot.
    pub fn diff(&self) -> Result<(Bitmap, Bitmap)> {
        let from = self.diff_from.unwrap_or(self.before);
        let rows = self.rows.len();
        let (old, new) = (self.live_rows_at(from)?, self.live_rows_at(self.before)?);
        let (mut returned, mut dead) = (Bitmap::new(rows, false), Bitmap::new(rows, false));
        let within = TimeRange { from, before: Some(self.before) };
        for (row, ts, _) in self.undo.iter().chain(self.redo.iter()) {
            let row = (row - self.rows.start) as usize;
            if within.contains(ts) && (old.get(row) || new.get(row)) {
                returned.set(row, true);
                dead.set(row, !new.get(row));
            }
        }
        Ok((returned, dead))
    }

    /// Returns true if a delta may set this column.
    pub fn may_change_column(&self, column: ColumnId) -> Result<bool> {
        for (_, _, change) in self.undo.iter().chain(self.redo.iter()) {
            let sets = match RowChange::parse(change)? {
                RowChange::Delete => false,
                RowChange::Update(cells) => cells.into_iter().any(|(id, _)| id == column),
                RowChange::Reinsert(_) => true,
            };
            if sets {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns the new cells of a column at the snapshot.
    ///
    /// `default` is the cell after a REINSERT from before the column existed. Key columns (`in_key`) never change.
    pub fn overrides<'a>(
        &'a self,
        column: ColumnId,
        in_key: bool,
        default: Option<&'a [u8]>,
    ) -> Result<CellOverrides<'a>> {
        let mut cells: CellOverrides<'a> = Vec::new();
        if in_key {
            return Ok(cells);
        }
        for (row, change) in self.deltas_for_snapshot(self.before) {
            let cell = match RowChange::parse(change)? {
                RowChange::Delete => None,
                update @ RowChange::Update(_) => update.get(column),
                reinsert @ RowChange::Reinsert(_) => Some(reinsert.get(column).unwrap_or(default)),
            };
            if let Some(cell) = cell {
                cells.push((row, cell));
            }
        }
        // The sort is stable, so the last of a row's cells is the one applied last; only that one is returned.
        cells.sort_by_key(|(row, _)| *row);
        let last_of_row = |i: usize| cells.get(i + 1).is_none_or(|next| next.0 != cells[i].0);
        Ok((0..cells.len()).filter(|i| last_of_row(*i)).map(|i| cells[i]).collect())
    }
}

/// Replaces cells in a column of a batch.
///
/// Fails with `Corrupt` if a cell does not fit the column.
pub fn apply_overrides(block: &mut ColumnBlock, overrides: &[(usize, Option<&[u8]>)]) -> Result<()> {
    if overrides.is_empty() {
        return Ok(());
    }
    let nullable = block.validity.is_some();
    if overrides.iter().any(|(_, cell)| cell.is_none()) && !nullable {
        return Err(Error::corrupt("row change: NULL in a column that is not nullable"));
    }
    match &mut block.values {
        ColumnValues::Fixed { width, bytes } => {
            for (row, cell) in overrides {
                let cell_bytes = &mut bytes[row * *width..(row + 1) * *width];
                match cell {
                    Some(cell) if cell.len() == *width => cell_bytes.copy_from_slice(cell),
                    Some(cell) => {
                        let len = cell.len();
                        return Err(Error::corrupt(format!(
                            "row change: cell of {len} bytes in a column of {width} bytes"
                        )));
                    }
                    None => cell_bytes.fill(0),
                }
            }
        }
        ColumnValues::Var { offsets, bytes } => (*offsets, *bytes) = splice(offsets, bytes, overrides),
    }
    if let Some(valid) = &mut block.validity {
        overrides.iter().for_each(|(row, cell)| valid.set(*row, cell.is_some()));
    }
    Ok(())
}

/// Replaces some cells of a variable-length column. Ranges between replaced cells are copied in one piece.
fn splice(offsets: &[u32], bytes: &[u8], overrides: &[(usize, Option<&[u8]>)]) -> (Vec<u32>, Vec<u8>) {
    let mut out_offsets = Vec::with_capacity(offsets.len());
    let mut out = Vec::with_capacity(bytes.len());
    out_offsets.push(0);
    let mut next = 0;
    let copy = |from: usize, to: usize, out: &mut Vec<u8>, out_offsets: &mut Vec<u32>| {
        let shift = (out.len() as u32).wrapping_sub(offsets[from]);
        out.extend_from_slice(&bytes[offsets[from] as usize..offsets[to] as usize]);
        out_offsets.extend(offsets[from + 1..=to].iter().map(|end| end.wrapping_add(shift)));
    };
    for (row, cell) in overrides {
        copy(next, *row, &mut out, &mut out_offsets);
        out.extend_from_slice(cell.unwrap_or_default());
        out_offsets.push(out.len() as u32);
        next = row + 1;
    }
    copy(next, offsets.len() - 1, &mut out, &mut out_offsets);
    (out_offsets, out)
}
