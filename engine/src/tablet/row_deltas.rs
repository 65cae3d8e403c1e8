//! The deltas of a batch of rows, and their application to the base by column.
//!
//! ```text
//!   UNDO         sorted copy        newest first within a row
//!   REDO run     page of a file     oldest run first; within a run by row, oldest first within a row
//!   REDO run     copy of a store
//! ```
//!
//! A row's deltas in an older run are older than those in a newer one. So runs that are applied one after the other
//! need no sorting, and pages need no copying.

use std::ops::Range;
use std::sync::Arc;

use super::delta_page::{ChangedColumns, DeltaBatch, DeltaPage, TimeRange, may_set};
use crate::error::{Error, Result};
use crate::ids::{ColumnId, RowId};
use crate::schema::row_block::{Bitmap, ColumnBlock, ColumnValues};
use crate::schema::row_change::RowChange;
use crate::time::Timestamp;

/// The deltas of a batch of rows in one page of a file or one store in memory.
pub(super) struct DeltaRun {
    page: Arc<DeltaPage>,
    indexes: Range<usize>,
}

impl DeltaRun {
    /// Returns the deltas of `rows` in a page; `None` if there are none.
    pub(super) fn of_page(page: Arc<DeltaPage>, rows: &Range<RowId>) -> Option<DeltaRun> {
        let indexes = page.deltas.indexes_of(rows);
        (!indexes.is_empty()).then_some(DeltaRun { page, indexes })
    }

    /// Returns deltas that were copied out of a store; `None` if there are none.
    pub(super) fn of_batch(deltas: DeltaBatch) -> Option<DeltaRun> {
        let indexes = 0..deltas.len();
        let page = || Arc::new(DeltaPage { deltas, changed: ChangedColumns::unknown() });
        (!indexes.is_empty()).then(|| DeltaRun { page: page(), indexes })
    }

    fn iter(&self) -> impl Iterator<Item = (RowId, Timestamp, &[u8])> {
        self.page.deltas.slice(self.indexes.clone())
    }

    /// Returns the bytes of the deltas.
    pub(super) fn byte_size(&self) -> usize {
        self.page.deltas.byte_size_of(&self.indexes)
    }

    /// Returns the deltas of a run of one row, the last first.
    pub(super) fn newest_first(&self) -> impl Iterator<Item = (Timestamp, &[u8])> {
        let deltas = &self.page.deltas;
        self.indexes.clone().rev().flat_map(|at| deltas.slice(at..at + 1)).map(|(_, ts, change)| (ts, change))
    }
}

/// The deltas of a batch of rows.
pub struct RowDeltas {
    rows: Range<RowId>,
    before: Timestamp,
    diff_from: Option<Timestamp>,
    /// UNDO deltas at or above the snapshot or the start of the diff; by row, newest first.
    undo: DeltaBatch,
    /// REDO deltas; those at or above the snapshot are passed over.
    redo: Vec<DeltaRun>,
}

impl RowDeltas {
    /// Returns the deltas of `rows` for a snapshot, or for a diff from `diff_from` to it.
    pub(super) fn new(
        rows: Range<RowId>,
        before: Timestamp,
        diff_from: Option<Timestamp>,
        undo: DeltaBatch,
        redo: Vec<DeltaRun>,
    ) -> RowDeltas {
        RowDeltas { rows, before, diff_from, undo, redo }
    }

    /// Returns the rows of the batch.
    pub(super) fn rows(&self) -> Range<RowId> {
        self.rows.clone()
    }

    /// Returns true if the base is the state at the snapshot.
    pub fn is_empty(&self) -> bool {
        self.undo.is_empty() && self.redo.is_empty()
    }

    /// Returns the REDO deltas below the snapshot of the runs that `wanted` chooses, in order of application.
    fn redo(
        &self,
        wanted: impl Fn(&ChangedColumns) -> bool,
    ) -> impl Iterator<Item = (RowId, Timestamp, &[u8])> {
        let runs = self.redo.iter().filter(move |run| wanted(&run.page.changed));
        runs.flat_map(DeltaRun::iter).filter(|(_, ts, _)| *ts < self.before)
    }

    /// Returns the deltas from the base to the state at `before`, in order of application per row. Rows are relative to
    /// the batch's first row.
    fn deltas_for_snapshot(
        &self,
        before: Timestamp,
        wanted: impl Fn(&ChangedColumns) -> bool,
    ) -> impl Iterator<Item = (usize, &[u8])> {
        let undo = self.undo.iter().filter(move |(_, ts, _)| *ts >= before);
        let redo = self.redo(wanted).filter(move |(_, ts, _)| *ts < before);
        undo.chain(redo).map(|(row, _, change)| ((row - self.rows.start) as usize, change))
    }

    /// Returns the changes that restore the last values of rows which are deleted at the snapshot, and which the base
    /// has with later ones: they were inserted again. Only a diff scan has deltas from before its snapshot.
    fn undeletions(&self) -> impl Iterator<Item = (usize, &[u8])> {
        let (mut current, mut is_dead) = (None, false);
        let restores = move |(row, ts, change): &(RowId, Timestamp, &[u8])| {
            if current.replace(*row) != Some(*row) {
                is_dead = false;
            }
            if *ts >= self.before {
                is_dead = RowChange::parsed_before(change).deletes();
                return false;
            }
            std::mem::take(&mut is_dead)
        };
        let undo = self.diff_from.map(|_| self.undo.iter()).into_iter().flatten();
        undo.filter(restores).map(|(row, _, change)| ((row - self.rows.start) as usize, change))
    }

    /// Returns the rows that are live at `before`.
    fn live_rows_at(&self, before: Timestamp) -> Bitmap {
        let mut live = Bitmap::new(self.rows.len(), true);
        for (row, change) in self.deltas_for_snapshot(before, ChangedColumns::moves_rows) {
            match RowChange::parsed_before(change) {
                RowChange::Delete => live.set(row, false),
                RowChange::Reinsert(_) => live.set(row, true),
                RowChange::Update(_) => {}
            }
        }
        live
    }

    /// Returns the rows that are live at the snapshot.
    pub fn alive(&self) -> Bitmap {
        self.live_rows_at(self.before)
    }

    /// Returns the rows that a diff scan returns, and those of them that are deleted at the snapshot.
    pub fn diff(&self) -> (Bitmap, Bitmap) {
        let from = self.diff_from.unwrap_or(self.before);
        let rows = self.rows.len();
        let (old, new) = (self.live_rows_at(from), self.live_rows_at(self.before));
        let (mut returned, mut dead) = (Bitmap::new(rows, false), Bitmap::new(rows, false));
        let within = TimeRange { from, before: Some(self.before) };
        for (row, ts, _) in self.undo.iter().chain(self.redo(|_| true)) {
            let row = (row - self.rows.start) as usize;
            if within.contains(ts) && (old.get(row) || new.get(row)) {
                returned.set(row, true);
                dead.set(row, !new.get(row));
            }
        }
        (returned, dead)
    }

    /// Returns true if a delta may set this column.
    pub fn may_change_column(&self, column: ColumnId) -> bool {
        let mut deltas = self.undo.iter().chain(self.redo(|changed| changed.sets(column)));
        deltas.any(|(_, _, change)| may_set(change, column))
    }

    /// Replaces the cells of a column outside the key by those at the snapshot, or by the last ones of rows that a diff
    /// scan returns as deleted. `block` has the base's cells of the batch, and `default` is the cell after a REINSERT
    /// from before the column existed.
    ///
    /// Fails with `Corrupt` if a cell does not fit the column.
    pub fn apply(&self, column: ColumnId, default: Option<&[u8]>, block: &mut ColumnBlock) -> Result<()> {
        let changes = self.deltas_for_snapshot(self.before, |changed| changed.sets(column));
        let cells = changes.chain(self.undeletions()).filter_map(|(row, change)| {
            let cell = match RowChange::parsed_before(change) {
                RowChange::Delete => None,
                update @ RowChange::Update(_) => update.get(column),
                reinsert @ RowChange::Reinsert(_) => Some(reinsert.get(column).unwrap_or(default)),
            };
            Some((row, cell?))
        });
        match &mut block.values {
            ColumnValues::Fixed { width, bytes } => {
                let (width, mut valid) = (*width, block.validity.as_mut());
                for (row, cell) in cells {
                    put(&mut bytes[row * width..(row + 1) * width], cell)?;
                    mark_valid(valid.as_deref_mut(), row, cell)?;
                }
            }
            ColumnValues::Var { offsets, bytes } => {
                let cells = last_cells(cells.collect());
                (*offsets, *bytes) = splice(offsets, bytes, &cells);
                let mut valid = block.validity.as_mut();
                cells.iter().try_for_each(|(row, cell)| mark_valid(valid.as_deref_mut(), *row, *cell))?;
            }
        }
        Ok(())
    }
}

/// Overwrites a cell of fixed length.
fn put(old: &mut [u8], cell: Option<&[u8]>) -> Result<()> {
    match cell {
        Some(cell) if cell.len() == old.len() => old.copy_from_slice(cell),
        Some(cell) => {
            let (len, width) = (cell.len(), old.len());
            return Err(Error::corrupt(format!(
                "row change: cell of {len} bytes in a column of {width} bytes"
            )));
        }
        None => old.fill(0),
    }
    Ok(())
}

/// Sets whether a row has a cell, in a column that is nullable.
fn mark_valid(valid: Option<&mut Bitmap>, row: usize, cell: Option<&[u8]>) -> Result<()> {
    match valid {
        Some(valid) => valid.set(row, cell.is_some()),
        None if cell.is_none() => {
            return Err(Error::corrupt("row change: NULL in a column that is not nullable"));
        }
        None => {}
    }
    Ok(())
}

/// New cells of a column: row within the batch, and cell.
type Cells<'a> = Vec<(usize, Option<&'a [u8]>)>;

/// Returns the cell applied last of each row, by row.
fn last_cells(mut cells: Cells<'_>) -> Cells<'_> {
    // The sort is stable, so the last of a row's cells is the one applied last.
    cells.sort_by_key(|(row, _)| *row);
    let last_of_row = |i: usize| cells.get(i + 1).is_none_or(|next| next.0 != cells[i].0);
    (0..cells.len()).filter(|i| last_of_row(*i)).map(|i| cells[i]).collect()
}

/// Replaces some cells of a variable-length column. Ranges between replaced cells are copied in one piece.
fn splice(offsets: &[u32], bytes: &[u8], cells: &[(usize, Option<&[u8]>)]) -> (Vec<u32>, Vec<u8>) {
    let mut out_offsets = Vec::with_capacity(offsets.len());
    let mut out = Vec::with_capacity(bytes.len());
    out_offsets.push(0);
    let mut next = 0;
    let copy = |from: usize, to: usize, out: &mut Vec<u8>, out_offsets: &mut Vec<u32>| {
        let shift = (out.len() as u32).wrapping_sub(offsets[from]);
        out.extend_from_slice(&bytes[offsets[from] as usize..offsets[to] as usize]);
        out_offsets.extend(offsets[from + 1..=to].iter().map(|end| end.wrapping_add(shift)));
    };
    for (row, cell) in cells {
        copy(next, *row, &mut out, &mut out_offsets);
        out.extend_from_slice(cell.unwrap_or_default());
        out_offsets.push(out.len() as u32);
        next = row + 1;
    }
    copy(next, offsets.len() - 1, &mut out, &mut out_offsets);
    (out_offsets, out)
}
