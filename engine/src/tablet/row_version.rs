//! One row's cells at a snapshot, from its newest delta back: what a read by key needs of the deltas.
//!
//! ```text
//!   recent ─▶ frozen ─▶ newest file ─▶ … ─▶ oldest file ─▶ base        ends where every column has a cell
//! ```
//!
//! A row that is often updated has many deltas, and a batch of rows copies and applies all of them (`row_deltas`). Of
//! one row the newest ones are enough, and none is copied.

use super::row_deltas::DeltaRun;
use crate::error::{Error, Result};
use crate::schema::row_block::{ColumnBlock, ColumnValues, ProjectedColumn, RowBlock};
use crate::schema::row_change::RowChange;
use crate::time::Timestamp;

/// Cells of one row for the columns of a scan, as far as deltas set them.
pub(super) struct RowVersion<'a> {
    columns: &'a [ProjectedColumn],
    /// In the order of `columns`; `None` where the base's cell counts so far.
    cells: Vec<Option<Option<&'a [u8]>>>,
    /// Columns outside the key without a cell.
    left: usize,
    /// True if a delta was added.
    is_changed: bool,
    /// True if the newest delta deletes the row.
    is_deleted: bool,
}

impl<'a> RowVersion<'a> {
    /// Creates the version of a row without deltas. `keys` of the columns are in the key.
    pub(super) fn new(columns: &'a [ProjectedColumn], keys: usize) -> RowVersion<'a> {
        let left = columns.len() - keys;
        RowVersion { columns, cells: vec![None; columns.len()], left, is_changed: false, is_deleted: false }
    }

    pub(super) fn is_deleted(&self) -> bool {
        self.is_deleted
    }

    /// Returns the cells that deltas set.
    pub(super) fn into_cells(self) -> Vec<Option<Option<&'a [u8]>>> {
        self.cells
    }

    /// Returns true if no older delta matters.
    pub(super) fn is_complete(&self) -> bool {
        self.is_deleted || (self.left == 0 && self.is_changed)
    }

    /// Adds the next older change, which has been parsed before.
    pub(super) fn add(&mut self, change: &'a [u8]) {
        let change = RowChange::parsed_before(change);
        // Below a newer change a DELETE counts no more: the REINSERT between them has completed the version.
        self.is_deleted = change.deletes() && !self.is_changed;
        self.is_changed = true;
        let mut next = 0;
        for (id, cell) in change.cells() {
            let is_it = |column: &ProjectedColumn| column.id == Some(id);
            let Some(at) = position_from(self.columns, next, is_it) else { continue };
            if self.cells[at].is_none() {
                (self.cells[at], self.left) = (Some(cell), self.left.saturating_sub(1));
            }
            next = at + 1;
        }
        if matches!(change, RowChange::Reinsert(_)) {
            self.add_defaults();
        }
    }

    /// Gives every column without a cell its default. The caller passes over the columns of the key.
    fn add_defaults(&mut self) {
        let unset = self.cells.iter_mut().zip(self.columns).filter(|(cell, _)| cell.is_none());
        unset.for_each(|(cell, column)| *cell = Some(column.read_default.as_deref()));
        self.left = 0;
    }

    /// Adds the changes of one row in a run below a timestamp, the newest first, until the version is complete.
    pub(super) fn add_run(&mut self, run: &'a DeltaRun, before: Timestamp) {
        for (_, change) in run.newest_first().filter(|(ts, _)| *ts < before) {
            if self.is_complete() {
                return;
            }
            self.add(change);
        }
    }
}

/// Returns the position of the column in a scan. It is mostly `next`, because changes and scans have the same order.
pub(super) fn position_from<T>(columns: &[T], next: usize, is_it: impl Fn(&T) -> bool) -> Option<usize> {
    match columns.get(next) {
        Some(column) if is_it(column) => Some(next),
        _ => columns.iter().position(is_it),
    }
}

/// Appends a cell of a delta. Fails with `Corrupt` if it does not fit the column.
pub(super) fn push_changed(column: &mut ColumnBlock, cell: Option<&[u8]>) -> Result<()> {
    match (&column.values, cell) {
        (_, None) if column.validity.is_none() => {
            return Err(Error::corrupt("row change: NULL in a column that is not nullable"));
        }
        (ColumnValues::Fixed { width, .. }, Some(cell)) if cell.len() != *width => {
            let len = cell.len();
            return Err(Error::corrupt(format!(
                "row change: cell of {len} bytes in a column of {width} bytes"
            )));
        }
        _ => column.push(cell),
    }
    Ok(())
}

/// Appends a row with cells of deltas or of the base, one for each column. Fails with `Corrupt` if one does not fit its
/// column; some cells are then appended.
pub(super) fn push_changed_row<'a>(
    block: &mut RowBlock,
    cells: impl IntoIterator<Item = Option<&'a [u8]>>,
) -> Result<()> {
    block.columns.iter_mut().zip(cells).try_for_each(|(column, cell)| push_changed(column, cell))?;
    block.rows += 1;
    Ok(())
}
