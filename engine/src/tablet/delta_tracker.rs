//! Which changes a snapshot of a DiskRowSet needs, and applying them to its base by row.
//!
//! ```text
//!   UNDO files      base       REDO files        frozen      recent
//!   ts >= T ◀────── values ──▶ ts < T ─────────▶ ts < T ───▶ ts < T        state at snapshot T
//!   newest first               oldest first
//! ```
//!
//! Rows without changes cost nothing: a batch collects the changes of its rows once, and a column with none of
//! them is a plain copy of its pages.

use std::ops::Range;
use std::sync::Arc;

use super::deltafile::{DeltaBatch, DeltaReader, Direction, TimeRange};
use super::deltamemstore::DeltaMemStore;
use crate::error::{Error, Result};
use crate::ids::{ColumnId, RowId};
use crate::schema::block::{Bitmap, ColumnBlock, Values};
use crate::schema::change::Change;
use crate::time::Timestamp;

/// All changes of one rowset, as of some moment; replaced as a whole when a flush moves changes to a file.
#[derive(Clone)]
pub struct DeltaState {
    pub undo: Vec<Arc<DeltaReader>>,
    /// Oldest first.
    pub redo: Vec<Arc<DeltaReader>>,
    /// What a flush is writing.
    pub frozen: Option<Arc<DeltaMemStore>>,
    pub recent: Arc<DeltaMemStore>,
}

impl DeltaState {
    /// The changes of `rows` that lead from the base to the state at `snapshot`, and for a diff scan also those
    /// back to `diff_from`.
    pub fn collect(
        &self,
        rows: Range<RowId>,
        before: Timestamp,
        diff_from: Option<Timestamp>,
    ) -> Result<RowChanges> {
        let mut undo = DeltaBatch::default();
        let back_to = TimeRange::from(diff_from.unwrap_or(before));
        for file in &self.undo {
            file.collect(rows.clone(), back_to, &mut undo)?;
        }
        if self.undo.len() > 1 {
            undo.sort(Direction::Undo);
        }
        let mut redo = DeltaBatch::default();
        let up_to = TimeRange::before(before);
        for file in &self.redo {
            file.collect(rows.clone(), up_to, &mut redo)?;
        }
        for store in self.frozen.iter().chain([&self.recent]) {
            store.collect(rows.clone(), up_to, &mut redo);
        }
        redo.sort(Direction::Redo);
        Ok(RowChanges { rows, before, diff_from, undo, redo })
    }

    /// Whether the row is alive after its newest change, if that can be told without reading files.
    pub fn is_live_at_sight(&self, row: RowId) -> Option<bool> {
        let stores = [Some(&self.recent), self.frozen.as_ref()];
        let seen = stores.into_iter().flatten().find_map(|store| store.is_live(row));
        let none_dead = || self.redo.iter().all(|file| file.meta().deletes == 0).then_some(true);
        seen.or_else(none_dead)
    }

    /// Whether the row died before `mark` and was not revived.
    pub fn died_before(&self, row: RowId, mark: Timestamp) -> Result<bool> {
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

    /// Changes in files that only snapshots before `mark` need: what a merge of the rowset alone would drop. Files
    /// that are needed in part do not count.
    pub fn ancient(&self, mark: Timestamp) -> u64 {
        let undo = self.undo.iter().map(|file| file.meta()).filter(|meta| meta.newest < mark);
        // What an insertion leaves behind, a DELETE for each row, takes next to nothing.
        let updates = undo.map(|meta| meta.count - meta.deletes.min(meta.count)).sum::<u64>();
        let redo = self.redo.iter().map(|file| file.meta()).filter(|meta| meta.newest < mark);
        updates + redo.map(|meta| meta.deletes.saturating_sub(meta.reinserts)).sum::<u64>()
    }

    /// Whether the row is alive after its newest change.
    pub fn is_live(&self, row: RowId) -> Result<bool> {
        if let Some(live) = self.is_live_at_sight(row) {
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

/// New cells of a column: row within the batch, and cell. In order of rows, each row once.
pub type Overrides<'a> = Vec<(usize, Option<&'a [u8]>)>;

/// The changes that concern a batch of rows.
pub struct RowChanges {
    rows: Range<RowId>,
    before: Timestamp,
    diff_from: Option<Timestamp>,
    /// Not older than the snapshot or the start of the diff; by row, newest first.
    undo: DeltaBatch,
    /// Older than the snapshot; by row, oldest first.
    redo: DeltaBatch,
}

impl RowChanges {
    /// The UNDOs, newest first within a row, and the REDOs, oldest first; both by row.
    pub fn batches(&self) -> (&DeltaBatch, &DeltaBatch) {
        (&self.undo, &self.redo)
    }

    /// The same, to keep.
    pub fn into_batches(self) -> (DeltaBatch, DeltaBatch) {
        (self.undo, self.redo)
    }

    /// Whether the base is the state at the snapshot as it is.
    pub fn is_empty(&self) -> bool {
        self.undo.is_empty() && self.redo.is_empty()
    }

    /// The changes that lead to the state at `before`, in order, with rows counted from the batch's first.
    fn leading_to(&self, before: Timestamp) -> impl Iterator<Item = (usize, &[u8])> {
        let undo = self.undo.iter().filter(move |(_, ts, _)| *ts >= before);
        let redo = self.redo.iter().filter(move |(_, ts, _)| *ts < before);
        undo.chain(redo).map(|(row, _, change)| ((row - self.rows.start) as usize, change))
    }

    /// Which rows are alive at `before`.
    fn alive_at(&self, before: Timestamp) -> Result<Bitmap> {
        let mut alive = Bitmap::new(self.rows.len(), true);
        for (row, change) in self.leading_to(before) {
            match Change::parse(change)? {
                Change::Delete => alive.set(row, false),
                Change::Reinsert(_) => alive.set(row, true),
                Change::Update(_) => {}
            }
        }
        Ok(alive)
    }

    /// Which rows are alive at the snapshot.
    pub fn alive(&self) -> Result<Bitmap> {
        self.alive_at(self.before)
    }

    /// For a diff scan: rows to return, and which of them are dead at the snapshot.
    pub fn diff(&self) -> Result<(Bitmap, Bitmap)> {
        let from = self.diff_from.unwrap_or(self.before);
        let rows = self.rows.len();
        let (old, new) = (self.alive_at(from)?, self.alive_at(self.before)?);
        let (mut shown, mut dead) = (Bitmap::new(rows, false), Bitmap::new(rows, false));
        let within = TimeRange { from, before: Some(self.before) };
        for (row, ts, _) in self.undo.iter().chain(self.redo.iter()) {
            let row = (row - self.rows.start) as usize;
            if within.contains(ts) && (old.get(row) || new.get(row)) {
                shown.set(row, true);
                dead.set(row, !new.get(row));
            }
        }
        Ok((shown, dead))
    }

    /// Whether any change could set this column.
    pub fn touches(&self, column: ColumnId) -> Result<bool> {
        for (_, _, change) in self.undo.iter().chain(self.redo.iter()) {
            let sets = match Change::parse(change)? {
                Change::Delete => false,
                Change::Update(cells) => cells.into_iter().any(|(id, _)| id == column),
                Change::Reinsert(_) => true,
            };
            if sets {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// New cells of a column at the snapshot.
    ///
    /// `default` is what a REINSERT from before the column existed leaves in it; `in_key` columns never change.
    pub fn overrides<'a>(
        &'a self,
        column: ColumnId,
        in_key: bool,
        default: Option<&'a [u8]>,
    ) -> Result<Overrides<'a>> {
        let mut cells: Overrides<'a> = Vec::new();
        if in_key {
            return Ok(cells);
        }
        for (row, change) in self.leading_to(self.before) {
            let cell = match Change::parse(change)? {
                Change::Delete => None,
                update @ Change::Update(_) => update.get(column),
                reinsert @ Change::Reinsert(_) => Some(reinsert.get(column).unwrap_or(default)),
            };
            if let Some(cell) = cell {
                cells.push((row, cell));
            }
        }
        // Stable: of a row's cells the last one applied stays last, and only that is kept.
        cells.sort_by_key(|(row, _)| *row);
        let last_of_row = |i: usize| cells.get(i + 1).is_none_or(|next| next.0 != cells[i].0);
        Ok((0..cells.len()).filter(|i| last_of_row(*i)).map(|i| cells[i]).collect())
    }
}

/// Puts new cells into a column of a batch.
///
/// `Corrupt` if a cell does not fit the column.
pub fn apply_overrides(block: &mut ColumnBlock, overrides: &[(usize, Option<&[u8]>)]) -> Result<()> {
    if overrides.is_empty() {
        return Ok(());
    }
    let nullable = block.validity.is_some();
    if overrides.iter().any(|(_, cell)| cell.is_none()) && !nullable {
        return Err(Error::corrupt("a change sets a column that is not nullable to NULL"));
    }
    match &mut block.values {
        Values::Fixed { width, bytes } => {
            for (row, cell) in overrides {
                let place = &mut bytes[row * *width..(row + 1) * *width];
                match cell {
                    Some(cell) if cell.len() == *width => place.copy_from_slice(cell),
                    Some(cell) => {
                        let len = cell.len();
                        return Err(Error::corrupt(format!(
                            "a change sets {len} bytes in a cell of {width}"
                        )));
                    }
                    None => place.fill(0),
                }
            }
        }
        Values::Var { offsets, bytes } => (*offsets, *bytes) = splice(offsets, bytes, overrides),
    }
    if let Some(valid) = &mut block.validity {
        overrides.iter().for_each(|(row, cell)| valid.set(*row, cell.is_some()));
    }
    Ok(())
}

/// Cells of any length with some replaced: stretches between replaced cells are copied as a whole.
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
