//! Applying operations to a tablet, in the order of the log.
//!
//! ```text
//!   row ─► may a flushed or frozen row set have its key? ─ no ──► active MemRowSet: insert or mutate
//!                      └ yes: active? frozen? disk? ─► mutate it where it is
//! ```
//!
//! The outcome names the rows that had no effect. Replaying an operation with its outcome repeats exactly the
//! rest, but for rows that are durable already: those were applied up to the time their row set says.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::decide::{Action, Found, refusal};
use super::diskrowset::DiskRowSet;
use super::memrowset::{self, MemRowSet};
use super::meta::TabletSchema;
use super::prepare::{Prepared, PreparedRow};
use super::rowset::{ProbeStats, RowSetId};
use super::{Tablet, TabletState};
use crate::error::{Error, Result};
use crate::ids::RowId;
use crate::schema::ops::{RowError, RowOpKind};
use crate::time::Timestamp;

/// Rows written under one hold of a MemRowSet's lock.
const ROWS_PER_LOCK: usize = 512;

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

/// The one that changes a tablet.
pub struct TabletWriter {
    tablet: Arc<Tablet>,
    /// Reused: the change being made.
    change: Vec<u8>,
    anchors: Anchors,
    probes: ProbeStats,
}

/// From which operation on the log is needed, by what needs it: the first one whose effect is only in memory.
#[derive(Debug, Default)]
struct Anchors {
    active: Option<u64>,
    /// As [`TabletState::frozen`].
    frozen: VecDeque<Frozen>,
    /// DiskRowSets with changes in memory.
    deltas: BTreeMap<RowSetId, u64>,
    /// DiskRowSets with changes set aside: the last operation applied before that.
    delta_freezes: BTreeMap<RowSetId, u64>,
}

#[derive(Debug, Clone, Copy)]
struct Frozen {
    from: u64,
    at: Freeze,
}

/// The moment a MemRowSet was frozen.
#[derive(Debug, Clone, Copy)]
pub struct Freeze {
    /// The last operation applied before.
    pub index: u64,
    pub timestamp: Timestamp,
    /// Mutations its rows had.
    pub mutations: usize,
}

/// Where a row's key is.
#[derive(Clone, Copy)]
enum Place {
    /// In the active MemRowSet, or nowhere.
    Active,
    Frozen(usize),
    Disk(usize, RowId),
}

impl TabletWriter {
    pub fn new(tablet: Arc<Tablet>) -> TabletWriter {
        let (anchors, probes) = (Anchors::default(), ProbeStats::default());
        TabletWriter { tablet, change: Vec::new(), anchors, probes }
    }

    /// What looking for keys on disk has cost so far.
    pub fn probes(&self) -> ProbeStats {
        self.probes
    }

    /// Applies the batch that is operation `index` of the log, at `ts`, which is above every timestamp applied
    /// before but for replays.
    ///
    /// An error means that the tablet's files cannot be read or contradict its log; it is not fit for use.
    pub fn apply(&mut self, batch: Prepared, ts: Timestamp, index: u64, mode: Mode<'_>) -> Result<Outcome> {
        let Prepared { schema, rows, arena, errors, .. } = batch;
        let mut run = Run {
            state: self.tablet.state(),
            schema,
            ts,
            mode,
            outcome: Outcome { errors, ..Outcome::default() },
            change: std::mem::take(&mut self.change),
            touched: Vec::new(),
            probes: self.probes,
        };
        let rows = run.elsewhere(rows, &arena)?;
        if !rows.is_empty() {
            self.anchors.active.get_or_insert(index);
            run.in_active(&rows, arena)?;
        }
        let Run { mut outcome, change, touched, probes, .. } = run;
        (self.change, self.probes) = (change, probes);
        for rowset in touched {
            self.anchors.deltas.entry(rowset).or_insert(index);
        }
        outcome.errors.sort_by_key(|(index, _)| *index);
        outcome.ignored.sort();
        Ok(outcome)
    }

    /// Makes `schema` the tablet's: rows of the old one are frozen, to be flushed as they are. `index` and
    /// `timestamp` are of the last operation applied.
    pub fn alter(&mut self, schema: TabletSchema, index: u64, timestamp: Timestamp) {
        let mut state = (*self.tablet.state()).clone();
        state.schema = Arc::new(schema);
        self.replace_active(state, index, timestamp);
    }

    /// Sets the active MemRowSet aside to be flushed. False if no row is in memory.
    pub fn freeze(&mut self, index: u64, timestamp: Timestamp) -> bool {
        let state = (*self.tablet.state()).clone();
        if state.frozen.is_empty() && state.active.rows() == 0 {
            return false;
        }
        if state.frozen.is_empty() {
            self.replace_active(state, index, timestamp);
        }
        true
    }

    fn replace_active(&mut self, mut state: TabletState, index: u64, timestamp: Timestamp) {
        let active = std::mem::replace(&mut state.active, Arc::new(MemRowSet::new(state.schema.clone())));
        let from = self.anchors.active.take();
        if active.rows() > 0 {
            let mutations = active.mutation_count();
            let from = from.expect("an operation brought the rows");
            self.anchors.frozen.push_back(Frozen { from, at: Freeze { index, timestamp, mutations } });
            state.frozen.push(active);
        }
        self.tablet.set_state(state);
    }

    /// The oldest frozen MemRowSet, and when it was frozen.
    pub fn oldest_frozen(&self) -> Option<(Arc<MemRowSet>, Freeze)> {
        let frozen = self.anchors.frozen.front()?;
        Some((self.tablet.state().frozen[0].clone(), frozen.at))
    }

    /// Puts DiskRowSets, complete with all changes, in place of the oldest frozen MemRowSet.
    pub fn swap_frozen(&mut self, into: Vec<Arc<DiskRowSet>>) {
        let frozen = self.anchors.frozen.pop_front().expect("a flush replaces a frozen MemRowSet");
        for rowset in into.iter().filter(|rowset| rowset.dms_len() > 0) {
            self.anchors.deltas.insert(rowset.meta().id, frozen.at.index + 1);
        }
        let mut state = (*self.tablet.state()).clone();
        state.frozen.remove(0);
        let disk = state.disk.iter().cloned().chain(into).collect();
        self.tablet.set_state(state.with_disk(disk));
    }

    /// Sets a DiskRowSet's recent changes aside; the last operation that may be among them. `None` if there are
    /// none.
    pub fn freeze_deltas(&mut self, rowset: &DiskRowSet, index: u64, timestamp: Timestamp) -> Option<u64> {
        let id = rowset.meta().id;
        if !rowset.freeze(timestamp) {
            return None;
        }
        Some(*self.anchors.delta_freezes.entry(id).or_insert(index))
    }

    /// The changes of a DiskRowSet that were set aside are in a file, and it has taken their place.
    pub fn deltas_flushed(&mut self, rowset: &DiskRowSet) {
        let id = rowset.meta().id;
        let index = self.anchors.delta_freezes.remove(&id).expect("the changes were frozen");
        match rowset.dms_len() {
            0 => self.anchors.deltas.remove(&id),
            _ => self.anchors.deltas.insert(id, index + 1),
        };
    }

    /// Puts DiskRowSets, complete with all changes, in the place of others whose changes up to operation `index`
    /// they have in their files.
    pub fn swap_disk(&mut self, from: &[RowSetId], into: Vec<Arc<DiskRowSet>>, index: u64) {
        for id in from {
            self.anchors.deltas.remove(id);
            self.anchors.delta_freezes.remove(id);
        }
        for rowset in into.iter().filter(|rowset| rowset.dms_len() > 0) {
            self.anchors.deltas.insert(rowset.meta().id, index + 1);
        }
        let state = (*self.tablet.state()).clone();
        let kept = state.disk.iter().filter(|rowset| !from.contains(&rowset.meta().id)).cloned();
        let disk = kept.chain(into).collect();
        self.tablet.set_state(state.with_disk(disk));
    }

    /// The first operation whose effect is only in memory, leaving out a frozen MemRowSet or DiskRowSets whose
    /// changes are about to be on disk.
    pub fn needed_from(&self, oldest_frozen: bool, deltas: &[RowSetId]) -> Option<u64> {
        let frozen = self.anchors.frozen.iter().skip(oldest_frozen.into()).map(|frozen| frozen.from);
        let changes =
            self.anchors.deltas.iter().filter(|(id, _)| !deltas.contains(id)).map(|(_, from)| *from);
        frozen.chain(changes).chain(self.anchors.active).min()
    }
}

/// Whether an operation happens for the first time.
#[derive(Clone, Copy)]
pub enum Mode<'a> {
    New,
    /// It is repeated from the log. `recorded` is what it came to, if the log says so; every insert up to
    /// `mrs_durable` is on disk, or was and is gone for good.
    Replay {
        recorded: Option<&'a Outcome>,
        mrs_durable: Timestamp,
    },
}

impl Mode<'_> {
    /// Whether the log says that this row had no effect.
    fn had_no_effect(&self, index: u32) -> bool {
        let Mode::Replay { recorded: Some(outcome), .. } = self else { return false };
        outcome.errors.binary_search_by_key(&index, |(at, _)| *at).is_ok()
            || outcome.ignored.binary_search(&index).is_ok()
    }

    /// Whether rows that are nowhere were inserted by `ts`, flushed, and are gone.
    fn is_gone(&self, ts: Timestamp) -> bool {
        matches!(self, Mode::Replay { mrs_durable, .. } if ts <= *mrs_durable)
    }
}

/// One batch being applied.
struct Run<'a> {
    state: Arc<TabletState>,
    schema: Arc<TabletSchema>,
    ts: Timestamp,
    mode: Mode<'a>,
    outcome: Outcome,
    /// The change decided on last.
    change: Vec<u8>,
    /// DiskRowSets that were changed.
    touched: Vec<RowSetId>,
    probes: ProbeStats,
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
            match self.place(row.key(arena))? {
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

    fn place(&mut self, key: &[u8]) -> Result<Place> {
        let state = &self.state;
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
        for rowset in candidates {
            if let Some(row) = state.disk[rowset].find(key, &mut self.probes)? {
                return Ok(Place::Disk(rowset, row));
            }
        }
        Ok(Place::Active)
    }

    fn on_disk(&mut self, rowset: usize, id: RowId, row: &PreparedRow, arena: &[u8]) -> Result<()> {
        let rowset = self.state.disk[rowset].clone();
        if matches!(self.mode, Mode::Replay { .. }) && self.ts <= rowset.meta().redo_ts {
            return Ok(());
        }
        let found = if rowset.is_live(id)? { Found::Live } else { Found::Dead };
        if self.change_of(row, found, arena)?.is_some() {
            rowset.mutate(id, self.ts, &self.change)?;
            self.touched.push(rowset.meta().id);
        }
        Ok(())
    }

    fn in_frozen(&mut self, mrs: usize, row: &PreparedRow, arena: &[u8]) -> Result<()> {
        let state = self.state.clone();
        let mut writer = state.frozen[mrs].write();
        let at = writer.find(row.key(arena)).unwrap_or_else(|_| unreachable!("a MemRowSet keeps its rows"));
        let found = if writer.is_live(at) { Found::Live } else { Found::Dead };
        if let Some(deletes) = self.change_of(row, found, arena)? {
            writer.mutate(at, self.ts, &self.change, deletes);
        }
        Ok(())
    }

    fn in_active(&mut self, rows: &[PreparedRow], arena: Vec<u8>) -> Result<()> {
        let state = self.state.clone();
        let batch = state.active.write().add_batch(self.ts, arena);
        for rows in rows.chunks(ROWS_PER_LOCK) {
            let mut writer = state.active.write();
            for row in rows {
                self.put(&mut writer, batch, row)?;
            }
        }
        state.active.write().drop_if_unused(batch);
        Ok(())
    }

    /// One row of a batch that the active MemRowSet holds.
    fn put(&mut self, writer: &mut memrowset::Writer<'_>, batch: u32, row: &PreparedRow) -> Result<()> {
        match writer.find_in_batch(batch, row.at, row.key_len) {
            Err(_) if self.mode.is_gone(self.ts) => {}
            Err(slot) => {
                if self.decide(row, Found::Absent)? == Action::Insert {
                    writer.insert(slot, batch, row.at, row.key_len, row.row_len);
                }
            }
            Ok(at) => {
                let found = if writer.is_live(at) { Found::Live } else { Found::Dead };
                if let Some(deletes) = self.change_of(row, found, writer.batch(batch))? {
                    writer.mutate(at, self.ts, &self.change, deletes);
                }
            }
        }
        Ok(())
    }

    /// Decides on a row that has history and leaves what changes in `self.change`: whether that deletes the
    /// row, `None` if nothing changes.
    fn change_of(&mut self, row: &PreparedRow, found: Found, arena: &[u8]) -> Result<Option<bool>> {
        let action = self.decide(row, found)?;
        row.change(action, &self.schema, arena, &mut self.change);
        Ok((!self.change.is_empty()).then_some(action == Action::Delete))
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
            Action::Update if row.immutable.is_some() => self.outcome.counts.ignored(row.kind),
            _ => self.outcome.counts.done(row.kind),
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
