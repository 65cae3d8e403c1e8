//! Applying operations to a tablet, in log order.
//!
//! ```text
//!   row ─► can a frozen MemRowSet or a DiskRowSet have its key? ─ no ──► active MemRowSet: insert or mutate
//!                      └ yes: active? frozen? disk? ─► mutate it where it is stored
//! ```
//!
//! The outcome names the rows that had no effect. Replaying an operation with its outcome repeats the effect of all
//! other rows, except rows that are already durable. A DiskRowSet's metadata says up to which timestamp its rows are.

use std::sync::Arc;

use super::components::TabletComponents;
use super::memrowset;
use super::prepared_batch::{PreparedBatch, PreparedRow};
use super::row_action::{RowAction, RowPresence, RowRefusal};
use super::row_errors::RowErrors;
use super::rowset::{ProbeStats, RowSetId};
use super::superblock::TabletSchema;
use crate::error::{Error, Result};
use crate::ids::RowId;
use crate::schema::row_ops::{RowError, RowErrorCode, RowOpKind};
use crate::time::Timestamp;

/// Rows of a write, counted by outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WriteCounts {
    pub inserts: u64,
    pub updates: u64,
    pub upserts: u64,
    pub deletes: u64,
    /// INSERT_IGNOREs of existing rows.
    pub insert_ignore_errors: u64,
    /// UPDATE_IGNOREs of absent rows or of immutable cells.
    pub update_ignore_errors: u64,
    /// UPSERT_IGNOREs of immutable cells.
    pub upsert_ignore_errors: u64,
    /// DELETE_IGNOREs of absent rows.
    pub delete_ignore_errors: u64,
}

/// Row operations of all writes since the tablet was opened, without those replayed from the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WriteTotals {
    pub counts: WriteCounts,
    /// Rejected row operations of every kind.
    pub errors: u64,
    /// Inserts of keys that were present.
    pub present: u64,
}

impl WriteTotals {
    pub(super) fn add(&mut self, result: &WriteResult) {
        let (sums, more) = (&mut self.counts, &result.counts);
        sums.inserts += more.inserts;
        sums.updates += more.updates;
        sums.upserts += more.upserts;
        sums.deletes += more.deletes;
        sums.insert_ignore_errors += more.insert_ignore_errors;
        sums.update_ignore_errors += more.update_ignore_errors;
        sums.upsert_ignore_errors += more.upsert_ignore_errors;
        sums.delete_ignore_errors += more.delete_ignore_errors;
        self.errors += result.errors.len() as u64;
        let present = result.errors.iter().filter(|(_, error)| error.code == RowErrorCode::AlreadyPresent);
        self.present += present.count() as u64;
    }
}

/// Outcome of applying a write.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WriteResult {
    pub counts: WriteCounts,
    /// Rows that failed, ascending.
    pub errors: Vec<(u32, RowError)>,
    /// Rows without effect because of an IGNORE operation, ascending.
    pub ignored: Vec<u32>,
}

/// Store that has a row's key.
#[derive(Clone, Copy)]
enum RowLocation {
    /// In the active MemRowSet, or absent.
    Active,
    Frozen(usize),
    Disk(usize, RowId),
}

/// Buffers that are reused, and counts that are added up, from batch to batch.
#[derive(Debug, Default)]
pub(super) struct ApplyScratch {
    /// The row change of the last decision.
    change: Vec<u8>,
    pub probes: ProbeStats,
    pub totals: WriteTotals,
}

/// The outcome of one batch, and the DiskRowSets that it changed.
pub(super) struct BatchResult {
    pub outcome: WriteResult,
    pub touched: Vec<RowSetId>,
}

/// Applies a batch to the rowsets of `state`. Flushed rows that were deleted before `mark` count as absent.
pub(super) fn apply(
    (state, mark): (&TabletComponents, Timestamp),
    batch: PreparedBatch,
    ts: Timestamp,
    mode: ApplyMode<'_>,
    scratch: &mut ApplyScratch,
) -> Result<BatchResult> {
    let PreparedBatch { schema, rows, arena, errors, .. } = batch;
    let (outcome, refusals, touched) = (WriteResult::default(), Vec::new(), Vec::new());
    let mut run = BatchRun { state, mark, schema, ts, mode, outcome, refusals, touched, scratch };
    let rows = run.apply_to_older_rowsets(rows, &arena)?;
    if !rows.is_empty() {
        run.apply_to_active(&rows, &arena)?;
    }
    run.add_errors(errors);
    let BatchRun { mut outcome, touched, .. } = run;
    outcome.errors.sort_by_key(|(index, _)| *index);
    outcome.ignored.sort();
    let touched = touched.into_iter().map(|at| state.disk[at].meta().id).collect();
    Ok(BatchResult { outcome, touched })
}

/// Mode of application: first execution or replay.
#[derive(Clone, Copy)]
pub enum ApplyMode<'a> {
    New,
    /// The operation is replayed from the log. `recorded` is its outcome, if the log has it. Every insert up to
    /// `mrs_durable` was flushed, and may have been dropped since. Rows deleted before `history_mark` may be dropped.
    Replay {
        recorded: Option<&'a WriteResult>,
        mrs_durable: Timestamp,
        history_mark: Timestamp,
    },
}

impl<'a> ApplyMode<'a> {
    /// Returns the operation's outcome that the log records.
    pub fn recorded(self) -> Option<&'a WriteResult> {
        let ApplyMode::Replay { recorded, .. } = self else { return None };
        recorded
    }

    /// Returns true if the log records that this row had no effect.
    fn had_no_effect(&self, index: u32) -> bool {
        let ApplyMode::Replay { recorded: Some(outcome), .. } = self else { return false };
        outcome.errors.binary_search_by_key(&index, |(at, _)| *at).is_ok()
            || outcome.ignored.binary_search(&index).is_ok()
    }

    /// Returns true if a row that is absent, and that an operation at `ts` changed, was deleted later and dropped.
    fn was_deleted_since(&self, ts: Timestamp) -> bool {
        matches!(self, ApplyMode::Replay { recorded: Some(_), history_mark, .. } if ts < *history_mark)
    }

    /// Returns true if an absent row inserted at `ts` was flushed and dropped.
    fn is_deleted(&self, ts: Timestamp) -> bool {
        matches!(self, ApplyMode::Replay { mrs_durable, .. } if ts <= *mrs_durable)
    }
}

/// A batch while it is applied.
struct BatchRun<'a> {
    state: &'a TabletComponents,
    /// Flushed rows that were deleted before it count as absent.
    mark: Timestamp,
    schema: Arc<TabletSchema>,
    ts: Timestamp,
    mode: ApplyMode<'a>,
    outcome: WriteResult,
    refusals: Vec<RowRefusal>,
    /// DiskRowSets that were changed, as indexes into the components.
    touched: Vec<usize>,
    scratch: &'a mut ApplyScratch,
}

impl BatchRun<'_> {
    /// Applies the rows whose keys are in frozen MemRowSets or DiskRowSets. Returns the other rows.
    fn apply_to_older_rowsets(
        &mut self,
        mut rows: Vec<PreparedRow>,
        arena: &[u8],
    ) -> Result<Vec<PreparedRow>> {
        if matches!(self.mode, ApplyMode::Replay { recorded: Some(_), .. }) {
            rows.retain(|row| !self.mode.had_no_effect(row.index));
        }
        if self.state.frozen.is_empty() && self.state.disk.is_empty() {
            return Ok(rows);
        }
        let mut active_rows = 0;
        for at in 0..rows.len() {
            let row = rows[at];
            match self.locate(&row, row.key(arena))? {
                RowLocation::Active => {
                    rows[active_rows] = row;
                    active_rows += 1;
                }
                RowLocation::Frozen(mrs) => self.apply_to_frozen(mrs, &row, arena)?,
                RowLocation::Disk(rowset, id) => self.apply_to_disk(rowset, id, &row, arena)?,
            }
        }
        rows.truncate(active_rows);
        Ok(rows)
    }

    /// Returns the store that has the row's key. A flushed row that was deleted before the mark is skipped.
    ///
    /// A replay cannot tell whether the row was skipped when the operation was first executed. If an insert may have
    /// reinserted it, the replay does so again. Two rows may also have the same key: one deleted before the mark, and
    /// one inserted afterwards. The replay uses the first one while it is live in the replay, even if the other's
    /// rowset already has the operation's effect.
    fn locate(&mut self, row: &PreparedRow, key: &[u8]) -> Result<RowLocation> {
        let state = self.state;
        let mut candidates = state.tree.containing(key).peekable();
        if state.frozen.is_empty() && candidates.peek().is_none() {
            return Ok(RowLocation::Active);
        }
        if state.active.contains(key) {
            return Ok(RowLocation::Active);
        }
        if let Some(mrs) = state.frozen.iter().position(|mrs| mrs.contains(key)) {
            return Ok(RowLocation::Frozen(mrs));
        }
        let replays = matches!(self.mode, ApplyMode::Replay { .. });
        let (mut durable, mut dead, mut revived) = (None, None, None);
        for rowset in candidates {
            let disk = &state.disk[rowset];
            let Some(id) = disk.find(key, &mut self.scratch.probes)? else { continue };
            let location = RowLocation::Disk(rowset, id);
            let replayable = self.ts > disk.meta().redo_ts;
            if disk.was_deleted_before(id, self.mark)? {
                if replays && replayable && !row.needs_a_row() {
                    revived = Some(location);
                }
            } else if !replays || (replayable && disk.is_live(id)?) {
                return Ok(location);
            } else if replayable {
                dead = Some(location);
            } else {
                durable = Some(location);
            }
        }
        Ok(durable.or(dead).or(revived).unwrap_or(RowLocation::Active))
    }

    fn apply_to_disk(&mut self, at: usize, id: RowId, row: &PreparedRow, arena: &[u8]) -> Result<()> {
        let rowset = &self.state.disk[at];
        if matches!(self.mode, ApplyMode::Replay { .. }) && self.ts <= rowset.meta().redo_ts {
            return Ok(());
        }
        let found = if rowset.is_live(id)? { RowPresence::Live } else { RowPresence::Dead };
        if self.change_of(row, found, arena)?.is_some() {
            rowset.mutate(id, self.ts, &self.scratch.change)?;
            if self.touched.last() != Some(&at) {
                self.touched.push(at);
            }
        }
        Ok(())
    }

    fn apply_to_frozen(&mut self, mrs: usize, row: &PreparedRow, arena: &[u8]) -> Result<()> {
        let state = self.state;
        let mut writer = state.frozen[mrs].write();
        let at = writer.find(row.key(arena)).unwrap_or_else(|_| unreachable!("a MemRowSet keeps its rows"));
        let found = if writer.is_live(at) { RowPresence::Live } else { RowPresence::Dead };
        if let Some(deletes) = self.change_of(row, found, arena)? {
            writer.mutate(at, self.ts, &self.scratch.change, deletes);
        }
        Ok(())
    }

    fn apply_to_active(&mut self, rows: &[PreparedRow], arena: &[u8]) -> Result<()> {
        let mut writer = self.state.active.write();
        rows.iter().try_for_each(|row| self.apply_row(&mut writer, row, arena))
    }

    /// Applies one row to the active MemRowSet.
    fn apply_row(
        &mut self,
        writer: &mut memrowset::MemRowSetWriter<'_>,
        row: &PreparedRow,
        arena: &[u8],
    ) -> Result<()> {
        match writer.find(row.key(arena)) {
            Err(_) if self.mode.is_deleted(self.ts) => {}
            Err(_) if row.needs_a_row() && self.mode.was_deleted_since(self.ts) => {}
            Err(slot) => {
                if self.decide(row, RowPresence::Absent)? == RowAction::Insert {
                    writer.insert(slot, self.ts, row.key_and_cells(arena), row.key_len);
                }
            }
            Ok(at) => {
                let found = if writer.is_live(at) { RowPresence::Live } else { RowPresence::Dead };
                if let Some(deletes) = self.change_of(row, found, arena)? {
                    writer.mutate(at, self.ts, &self.scratch.change, deletes);
                }
            }
        }
        Ok(())
    }

    /// Decides the action for a row that has history and leaves the row change in the scratch. Returns true if the
    /// change deletes the row, and `None` if nothing changes.
    fn change_of(&mut self, row: &PreparedRow, found: RowPresence, arena: &[u8]) -> Result<Option<bool>> {
        let action = self.decide(row, found)?;
        row.change(action, &self.schema, arena, &mut self.scratch.change);
        Ok((!self.scratch.change.is_empty()).then_some(action == RowAction::Delete))
    }

    /// Decides the action for a row and counts its outcome.
    fn decide(&mut self, row: &PreparedRow, found: RowPresence) -> Result<RowAction> {
        let action = row.decide(found);
        if let (ApplyMode::Replay { recorded: Some(_), .. }, RowAction::Refuse(_) | RowAction::Ignore) =
            (self.mode, action)
        {
            return Err(Error::corrupt(format!(
                "row {} of the operation at {}: cannot be replayed, although the log records an effect (its key is {})",
                row.index,
                self.ts,
                if found == RowPresence::Live { "present" } else { "absent" },
            )));
        }
        match action {
            RowAction::Refuse(code) => {
                self.refusals.push(RowRefusal { index: row.index, code, immutable: row.immutable });
            }
            RowAction::Ignore => {
                self.outcome.ignored.push(row.index);
                self.outcome.counts.ignored(row.kind);
            }
            _ => {
                self.outcome.counts.done(row.kind);
                if action == RowAction::Update && row.immutable.is_some() {
                    self.outcome.counts.ignored(row.kind);
                }
            }
        }
        Ok(action)
    }

    /// Adds the errors to the outcome: those that the batch had before, then those of refused rows. Order: refused rows
    /// are sorted first. A replica meets them in an order that depends on its flushes, and later errors may lose their
    /// texts.
    fn add_errors(&mut self, mut errors: RowErrors) {
        self.refusals.sort_by_key(|refusal| refusal.index);
        for refusal in &self.refusals {
            errors.push(refusal.index, refusal.error(&self.schema));
        }
        self.outcome.errors = errors.into_vec();
    }
}

impl WriteCounts {
    /// Returns the counts in the order of the fields.
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

    /// Counts an IGNORE operation of which the row, or a part of it, had no effect.
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
