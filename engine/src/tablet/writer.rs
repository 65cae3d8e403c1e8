//! The one that changes a tablet, and which operations of the log it still needs.
//!
//! ```text
//!   log   ... 7  8  9  10 11 12 13 14
//!                │     │     └ active MemRowSet: its first row came with 12
//!                │     └ a DiskRowSet has changes from 10 on that are only in memory
//!                └ a frozen MemRowSet: from 8 on             a restart must replay from 8
//! ```

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, MutexGuard};

use super::apply::{Applied, Mode, Outcome, Scratch, apply};
use super::diskrowset::DiskRowSet;
use super::memrowset::MemRowSet;
use super::meta::TabletSchema;
use super::prepare::Prepared;
use super::rowset::{ProbeStats, RowSetId};
use super::{Tablet, TabletState};
use crate::error::Result;
use crate::time::Timestamp;

/// The one that changes a tablet.
pub struct TabletWriter {
    tablet: Arc<Tablet>,
    scratch: Scratch,
}

/// From which operation on the log is needed, by what needs it: the first one whose effect is only in memory.
#[derive(Debug, Default)]
pub(super) struct Anchors {
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

impl TabletWriter {
    pub fn new(tablet: Arc<Tablet>) -> TabletWriter {
        TabletWriter { tablet, scratch: Scratch::default() }
    }

    fn anchors(&self) -> MutexGuard<'_, Anchors> {
        self.tablet.anchors()
    }

    /// Applies the batch that is operation `index` of the log, at `ts`, which is above every timestamp applied
    /// before but for replays.
    ///
    /// An error means that the tablet's files cannot be read or contradict its log; it is not fit for use.
    pub fn apply(&mut self, batch: Prepared, ts: Timestamp, index: u64, mode: Mode<'_>) -> Result<Outcome> {
        let state = self.tablet.state();
        let applied = apply((&state, self.tablet.history_mark()), batch, ts, mode, &mut self.scratch)?;
        self.tablet.set_probes(self.scratch.probes);
        self.mark_applied(&state, &applied);
        let mut anchors = self.anchors();
        if state.active.rows() > 0 {
            anchors.active.get_or_insert(index);
        }
        for rowset in applied.touched {
            anchors.deltas.entry(rowset).or_insert(index);
        }
        drop(anchors);
        Ok(applied.outcome)
    }

    fn mark_applied(&self, state: &TabletState, applied: &Applied) {
        let (watch, counts) = (&self.tablet.config().watch, &applied.outcome.counts);
        watch.mark_if(counts.inserts > 0, "write: rows were inserted");
        watch.mark_if(counts.updates > 0, "write: rows were updated");
        watch.mark_if(counts.upserts > 0, "write: rows were upserted");
        watch.mark_if(counts.deletes > 0, "write: rows were deleted");
        watch.mark_if(counts.insert_ignore_errors > 0, "write: INSERT_IGNORE met a row");
        watch.mark_if(counts.update_ignore_errors > 0, "write: UPDATE_IGNORE met none");
        watch.mark_if(counts.delete_ignore_errors > 0, "write: DELETE_IGNORE met none");
        watch.mark_if(!applied.outcome.errors.is_empty(), "write: a row was refused, others were not");
        watch.mark_if(!applied.touched.is_empty(), "write: rows on disk were changed");
        watch.mark_if(applied.touched.len() > 1, "write: one batch changed several rowsets");
        watch.mark_if(!state.frozen.is_empty(), "write: while a MemRowSet is flushed");
    }

    /// What looking for keys on disk has cost so far.
    pub fn probes(&self) -> ProbeStats {
        self.scratch.probes
    }

    /// Makes `schema` the tablet's. Rows of another layout are frozen, to be flushed as they are. `index` and
    /// `timestamp` are of the last operation applied.
    pub fn alter(&mut self, schema: TabletSchema, index: u64, timestamp: Timestamp) {
        let mut state = (*self.tablet.state()).clone();
        let same_rows = state.schema.lays_out_rows_like(&schema);
        state.schema = Arc::new(schema);
        match same_rows {
            true => self.tablet.set_state(state),
            false => self.replace_active(state, index, timestamp),
        }
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
        let empty = MemRowSet::new(state.schema.clone(), &self.tablet.memory.rows);
        let active = std::mem::replace(&mut state.active, Arc::new(empty));
        let mut anchors = self.anchors();
        let from = anchors.active.take();
        if active.rows() > 0 {
            let mutations = active.mutation_count();
            let from = from.expect("an operation brought the rows");
            anchors.frozen.push_back(Frozen { from, at: Freeze { index, timestamp, mutations } });
            active.freeze();
            state.frozen.push(active);
        }
        drop(anchors);
        self.tablet.set_state(state);
    }

    /// The oldest frozen MemRowSet, and when it was frozen.
    pub fn oldest_frozen(&self) -> Option<(Arc<MemRowSet>, Freeze)> {
        let frozen = self.anchors().frozen.front()?.at;
        Some((self.tablet.state().frozen[0].clone(), frozen))
    }

    /// Puts DiskRowSets, complete with all changes, in place of the oldest frozen MemRowSet.
    pub fn swap_frozen(&mut self, into: Vec<Arc<DiskRowSet>>) {
        let mut anchors = self.anchors();
        let frozen = anchors.frozen.pop_front().expect("a flush replaces a frozen MemRowSet");
        for rowset in into.iter().filter(|rowset| rowset.dms_len() > 0) {
            anchors.deltas.insert(rowset.meta().id, frozen.at.index + 1);
        }
        drop(anchors);
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
        Some(*self.anchors().delta_freezes.entry(id).or_insert(index))
    }

    /// The changes of a DiskRowSet that were set aside are in a file, and it has taken their place.
    pub fn deltas_flushed(&mut self, rowset: &DiskRowSet) {
        let id = rowset.meta().id;
        let mut anchors = self.anchors();
        let index = anchors.delta_freezes.remove(&id).expect("the changes were frozen");
        match rowset.dms_len() {
            0 => anchors.deltas.remove(&id),
            _ => anchors.deltas.insert(id, index + 1),
        };
    }

    /// Puts DiskRowSets, complete with all changes, in the place of others whose changes up to operation `index`
    /// they have in their files.
    pub fn swap_disk(&mut self, from: &[RowSetId], into: Vec<Arc<DiskRowSet>>, index: u64) {
        let mut anchors = self.anchors();
        for id in from {
            anchors.deltas.remove(id);
            anchors.delta_freezes.remove(id);
        }
        for rowset in into.iter().filter(|rowset| rowset.dms_len() > 0) {
            anchors.deltas.insert(rowset.meta().id, index + 1);
        }
        drop(anchors);
        let state = (*self.tablet.state()).clone();
        let kept = state.disk.iter().filter(|rowset| !from.contains(&rowset.meta().id)).cloned();
        let disk = kept.chain(into).collect();
        self.tablet.set_state(state.with_disk(disk));
    }

    /// The first operation whose effect is only in memory, leaving out a frozen MemRowSet or DiskRowSets whose
    /// changes are about to be on disk.
    pub fn needed_from(&self, oldest_frozen: bool, deltas: &[RowSetId]) -> Option<u64> {
        let anchors = self.anchors();
        let frozen = anchors.frozen.iter().skip(oldest_frozen.into()).map(|frozen| frozen.from);
        let changes = anchors.deltas.iter().filter(|(id, _)| !deltas.contains(id)).map(|(_, from)| *from);
        frozen.chain(changes).chain(anchors.active).min()
    }
}

impl Anchors {
    /// The first operation that unflushed rows are needed from.
    pub fn rows(&self) -> Option<u64> {
        self.frozen.front().map(|frozen| frozen.from).or(self.active)
    }

    /// The same of the changes of each DiskRowSet that has any.
    pub fn deltas(&self) -> &BTreeMap<RowSetId, u64> {
        &self.deltas
    }
}
