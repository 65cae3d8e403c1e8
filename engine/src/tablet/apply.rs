//! Applying operations to a tablet, in the order of the log.
//!
//! ```text
//!   row ─► may a flushed or frozen row set have its key? ─ no ──► active MemRowSet: insert or mutate
//!                      └ yes: active? frozen? disk? ─► mutate it where it is
//! ```
//!
//! The outcome names the rows that had no effect. Replaying an operation with its outcome repeats exactly the
//! rest, but for rows that are durable already: those were applied up to the time their row set says.

use std::sync::Arc;

use super::TabletState;
use super::decide::{Action, Found, refusal};
use super::memrowset;
use super::meta::TabletSchema;
use super::prepare::{Prepared, PreparedRow};
use super::rowset::{ProbeStats, RowSetId};
use crate::error::{Error, Result};
use crate::ids::RowId;
use crate::schema::ops::{RowError, RowOpKind};
use crate::time::Timestamp;

/// What the rows of a write came to, by how many.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WriteCounts {
    pub inserts: u64,
    pub updates: u64,
    pub upserts: u64,
    pub deletes: u64,
    /// INSERT_IGNOREs of rows that were there.
    pub insert_ignore_errors: u64,
    /// UPDATE_IGNOREs of rows that were not there or of immutable cells.
    pub update_ignore_errors: u64,
    /// UPSERT_IGNOREs of immutable cells.
    pub upsert_ignore_errors: u64,
    /// DELETE_IGNOREs of rows that were not there.
    pub delete_ignore_errors: u64,
}

/// What applying a write did.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Outcome {
    pub counts: WriteCounts,
    /// Rows that failed, ascending.
    pub errors: Vec<(u32, RowError)>,
    /// Rows without effect that their client wanted ignored, ascending.
    pub ignored: Vec<u32>,
}

/// Where a row's key is.
#[derive(Clone, Copy)]
enum Place {
    /// In the active MemRowSet, or nowhere.
    Active,
    Frozen(usize),
    Disk(usize, RowId),
}

/// What applying one batch after the other reuses and adds up.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    /// The change decided on last.
    change: Vec<u8>,
    pub probes: ProbeStats,
}

/// A batch applied, and the DiskRowSets that it changed.
pub(super) struct Applied {
    pub outcome: Outcome,
    pub touched: Vec<RowSetId>,
}

/// Applies a batch to the row sets of `state`; flushed rows that died before `mark` are not there.
pub(super) fn apply(
    (state, mark): (&TabletState, Timestamp),
    batch: Prepared,
    ts: Timestamp,
    mode: Mode<'_>,
    scratch: &mut Scratch,
) -> Result<Applied> {
    let Prepared { schema, rows, arena, errors, .. } = batch;
    let outcome = Outcome { errors, ..Outcome::default() };
    let mut run = Run { state, mark, schema, ts, mode, outcome, touched: Vec::new(), scratch };
    let rows = run.elsewhere(rows, &arena)?;
    if !rows.is_empty() {
        run.in_active(&rows, &arena)?;
    }
    let Run { mut outcome, touched, .. } = run;
    outcome.errors.sort_by_key(|(index, _)| *index);
    outcome.ignored.sort();
    let touched = touched.into_iter().map(|at| state.disk[at].meta().id).collect();
    Ok(Applied { outcome, touched })
}

/// Whether an operation happens for the first time.
#[derive(Clone, Copy)]
pub enum Mode<'a> {
    New,
    /// It is repeated from the log. `recorded` is what it came to, if the log says so; every insert up to
    /// `mrs_durable` is on disk, or was and is gone for good; rows that died before `history_mark` may be gone.
    Replay {
        recorded: Option<&'a Outcome>,
        mrs_durable: Timestamp,
        history_mark: Timestamp,
    },
}

impl Mode<'_> {
    /// Whether the log says that this row had no effect.
    fn had_no_effect(&self, index: u32) -> bool {
        let Mode::Replay { recorded: Some(outcome), .. } = self else { return false };
        outcome.errors.binary_search_by_key(&index, |(at, _)| *at).is_ok()
            || outcome.ignored.binary_search(&index).is_ok()
    }

    /// Whether a row that an operation of `ts` changed, and that is nowhere now, died since and is gone.
    fn died_since(&self, ts: Timestamp) -> bool {
        matches!(self, Mode::Replay { recorded: Some(_), history_mark, .. } if ts < *history_mark)
    }

    /// Whether rows that are nowhere were inserted by `ts`, flushed, and are gone.
    fn is_gone(&self, ts: Timestamp) -> bool {
        matches!(self, Mode::Replay { mrs_durable, .. } if ts <= *mrs_durable)
    }
}

/// One batch being applied.
struct Run<'a> {
    state: &'a TabletState,
    /// Flushed rows that died before it are not there.
    mark: Timestamp,
    schema: Arc<TabletSchema>,
    ts: Timestamp,
    mode: Mode<'a>,
    outcome: Outcome,
    /// DiskRowSets that were changed, by their place in the state.
    touched: Vec<usize>,
    scratch: &'a mut Scratch,
}

impl Run<'_> {
    /// Applies the rows whose keys are in other row sets than the active one, and gives back the others.
    fn elsewhere(&mut self, mut rows: Vec<PreparedRow>, arena: &[u8]) -> Result<Vec<PreparedRow>> {
        if matches!(self.mode, Mode::Replay { recorded: Some(_), .. }) {
            rows.retain(|row| !self.mode.had_no_effect(row.index));
        }
        if self.state.frozen.is_empty() && self.state.disk.is_empty() {
            return Ok(rows);
        }
        let mut kept = 0;
        for at in 0..rows.len() {
            let row = rows[at];
            match self.place(&row, row.key(arena))? {
                Place::Active => {
                    rows[kept] = row;
                    kept += 1;
                }
                Place::Frozen(mrs) => self.in_frozen(mrs, &row, arena)?,
                Place::Disk(rowset, id) => self.on_disk(rowset, id, &row, arena)?,
            }
        }
        rows.truncate(kept);
        Ok(rows)
    }

    /// A flushed row that died before the mark is passed over. A replay does not know whether it was when the operation
    /// happened: where an insert may have revived it, it does so again. Nor does it know which of two rows with one key
    /// was meant, the one that died before the mark or the one that was inserted after: the first as long as it lives
    /// in the replay, although the other's row set has all that happened to it.
    fn place(&mut self, row: &PreparedRow, key: &[u8]) -> Result<Place> {
        let state = self.state;
        let mut candidates = state.tree.containing(key).peekable();
        if state.frozen.is_empty() && candidates.peek().is_none() {
            return Ok(Place::Active);
        }
        if state.active.contains(key) {
            return Ok(Place::Active);
        }
        if let Some(mrs) = state.frozen.iter().position(|mrs| mrs.contains(key)) {
            return Ok(Place::Frozen(mrs));
        }
        let replays = matches!(self.mode, Mode::Replay { .. });
        let (mut durable, mut dead, mut revived) = (None, None, None);
        for rowset in candidates {
            let disk = &state.disk[rowset];
            let Some(id) = disk.find(key, &mut self.scratch.probes)? else { continue };
            let place = Place::Disk(rowset, id);
            let open = self.ts > disk.meta().redo_ts;
            if disk.died_before(id, self.mark)? {
                if replays && open && !row.needs_a_row() {
                    revived = Some(place);
                }
            } else if !replays || (open && disk.is_live(id)?) {
                return Ok(place);
            } else if open {
                dead = Some(place);
            } else {
                durable = Some(place);
            }
        }
        Ok(durable.or(dead).or(revived).unwrap_or(Place::Active))
    }

    fn on_disk(&mut self, at: usize, id: RowId, row: &PreparedRow, arena: &[u8]) -> Result<()> {
        let rowset = &self.state.disk[at];
        if matches!(self.mode, Mode::Replay { .. }) && self.ts <= rowset.meta().redo_ts {
            return Ok(());
        }
        let found = if rowset.is_live(id)? { Found::Live } else { Found::Dead };
        if self.change_of(row, found, arena)?.is_some() {
            rowset.mutate(id, self.ts, &self.scratch.change)?;
            if self.touched.last() != Some(&at) {
                self.touched.push(at);
            }
        }
        Ok(())
    }

    fn in_frozen(&mut self, mrs: usize, row: &PreparedRow, arena: &[u8]) -> Result<()> {
        let state = self.state;
        let mut writer = state.frozen[mrs].write();
        let at = writer.find(row.key(arena)).unwrap_or_else(|_| unreachable!("a MemRowSet keeps its rows"));
        let found = if writer.is_live(at) { Found::Live } else { Found::Dead };
        if let Some(deletes) = self.change_of(row, found, arena)? {
            writer.mutate(at, self.ts, &self.scratch.change, deletes);
        }
        Ok(())
    }

    fn in_active(&mut self, rows: &[PreparedRow], arena: &[u8]) -> Result<()> {
        let mut writer = self.state.active.write();
        rows.iter().try_for_each(|row| self.put(&mut writer, row, arena))
    }

    /// One row in the active MemRowSet.
    fn put(&mut self, writer: &mut memrowset::Writer<'_>, row: &PreparedRow, arena: &[u8]) -> Result<()> {
        match writer.find(row.key(arena)) {
            Err(_) if self.mode.is_gone(self.ts) => {}
            Err(_) if row.needs_a_row() && self.mode.died_since(self.ts) => {}
            Err(slot) => {
                if self.decide(row, Found::Absent)? == Action::Insert {
                    writer.insert(slot, self.ts, row.key_and_cells(arena), row.key_len);
                }
            }
            Ok(at) => {
                let found = if writer.is_live(at) { Found::Live } else { Found::Dead };
                if let Some(deletes) = self.change_of(row, found, arena)? {
                    writer.mutate(at, self.ts, &self.scratch.change, deletes);
                }
            }
        }
        Ok(())
    }

    /// Decides on a row that has history and leaves what changes in the scratch: whether that deletes the
    /// row, `None` if nothing changes.
    fn change_of(&mut self, row: &PreparedRow, found: Found, arena: &[u8]) -> Result<Option<bool>> {
        let action = self.decide(row, found)?;
        row.change(action, &self.schema, arena, &mut self.scratch.change);
        Ok((!self.scratch.change.is_empty()).then_some(action == Action::Delete))
    }

    /// Decides on a row and counts what comes of it.
    fn decide(&mut self, row: &PreparedRow, found: Found) -> Result<Action> {
        let action = row.decide(found);
        if let (Mode::Replay { recorded: Some(_), .. }, Action::Refuse(_) | Action::Ignore) =
            (self.mode, action)
        {
            return Err(Error::corrupt(format!(
                "row {} of the operation at {} took effect once but cannot be repeated: its key is {}",
                row.index,
                self.ts,
                if found == Found::Live { "there" } else { "not there" },
            )));
        }
        match action {
            Action::Refuse(code) => {
                let error = refusal(code, row, &self.schema);
                self.outcome.errors.push((row.index, error));
            }
            Action::Ignore => {
                self.outcome.ignored.push(row.index);
                self.outcome.counts.ignored(row.kind);
            }
            _ => {
                self.outcome.counts.done(row.kind);
                if action == Action::Update && row.immutable.is_some() {
                    self.outcome.counts.ignored(row.kind);
                }
            }
        }
        Ok(action)
    }
}

impl WriteCounts {
    /// The counts in the order of the fields.
    pub fn to_array(&self) -> [u64; 8] {
        let WriteCounts { inserts, updates, upserts, deletes, .. } = *self;
        let ignored = [
            self.insert_ignore_errors,
            self.update_ignore_errors,
            self.upsert_ignore_errors,
            self.delete_ignore_errors,
        ];
        let [a, b, c, d] = ignored;
        [inserts, updates, upserts, deletes, a, b, c, d]
    }

    pub fn from_array(counts: [u64; 8]) -> WriteCounts {
        let [inserts, updates, upserts, deletes, a, b, c, d] = counts;
        WriteCounts {
            inserts,
            updates,
            upserts,
            deletes,
            insert_ignore_errors: a,
            update_ignore_errors: b,
            upsert_ignore_errors: c,
            delete_ignore_errors: d,
        }
    }

    fn done(&mut self, kind: RowOpKind) {
        let count = match kind {
            RowOpKind::Insert | RowOpKind::InsertIgnore => &mut self.inserts,
            RowOpKind::Update | RowOpKind::UpdateIgnore => &mut self.updates,
            RowOpKind::Upsert | RowOpKind::UpsertIgnore => &mut self.upserts,
            RowOpKind::Delete | RowOpKind::DeleteIgnore => &mut self.deletes,
        };
        *count += 1;
    }

    /// A row, or a part of it, of one of the IGNORE kinds had no effect.
    fn ignored(&mut self, kind: RowOpKind) {
        let count = match kind {
            RowOpKind::Insert | RowOpKind::InsertIgnore => &mut self.insert_ignore_errors,
            RowOpKind::Update | RowOpKind::UpdateIgnore => &mut self.update_ignore_errors,
            RowOpKind::Upsert | RowOpKind::UpsertIgnore => &mut self.upsert_ignore_errors,
            RowOpKind::Delete | RowOpKind::DeleteIgnore => &mut self.delete_ignore_errors,
        };
        *count += 1;
    }
}
