//! The writer of a tablet, and the operations of the log that its unflushed data still needs.
//!
//! ```text
//!   log   ... 7  8  9  10 11 12 13 14
//!                │     │     └ active MemRowSet: its first row was written by 12
//!                │     └ a DiskRowSet: has unflushed deltas from 10 on
//!                └ a frozen MemRowSet: from 8 on             a restart must replay from 8
//! ```

use crate::sync::MutexGuard;
use std::sync::Arc;

use super::Tablet;
use super::apply::{ApplyMode, ApplyScratch, BatchResult, WriteResult, apply};
use super::components::TabletComponents;
use super::diskrowset::DiskRowSet;
use super::memrowset::MemRowSet;
pub use super::op_anchors::FreezePoint;
use super::op_anchors::{Frozen, OpAnchors};
use super::prepared_batch::PreparedBatch;
use super::rowset::{ProbeStats, RowSetId};
use super::superblock::TabletSchema;
use crate::error::Result;
use crate::time::Timestamp;

/// The only writer of a tablet.
pub struct TabletWriter {
    tablet: Arc<Tablet>,
    scratch: ApplyScratch,
}

impl TabletWriter {
    pub fn new(tablet: Arc<Tablet>) -> TabletWriter {
        TabletWriter { tablet, scratch: ApplyScratch::default() }
    }

    fn anchors(&self) -> MutexGuard<'_, OpAnchors> {
        self.tablet.anchors()
    }

    /// Applies the batch that is operation `index` of the log at timestamp `ts`. Except in replays, `ts` is above every
    /// timestamp applied before.
    ///
    /// An error means that the tablet's files cannot be read or contradict its log. The tablet must not be used after
    /// it.
    pub fn apply(
        &mut self,
        batch: PreparedBatch,
        ts: Timestamp,
        index: u64,
        mode: ApplyMode<'_>,
    ) -> Result<WriteResult> {
        let state = self.tablet.state();
        let applied = apply((&state, self.tablet.history_mark()), batch, ts, mode, &mut self.scratch)?;
        if matches!(mode, ApplyMode::New) {
            self.scratch.totals.add(&applied.outcome);
            self.tablet.set_totals(self.scratch.totals);
        }
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

    fn mark_applied(&self, state: &TabletComponents, applied: &BatchResult) {
        let (observer, counts) = (&self.tablet.config().observer, &applied.outcome.counts);
        observer.mark_if(counts.inserts > 0, "write: rows inserted");
        observer.mark_if(counts.updates > 0, "write: rows updated");
        observer.mark_if(counts.upserts > 0, "write: rows upserted");
        observer.mark_if(counts.deletes > 0, "write: rows deleted");
        observer.mark_if(counts.insert_ignore_errors > 0, "write: INSERT_IGNORE of a present row");
        observer.mark_if(counts.update_ignore_errors > 0, "write: UPDATE_IGNORE of an absent row");
        observer.mark_if(counts.delete_ignore_errors > 0, "write: DELETE_IGNORE of an absent row");
        observer.mark_if(!applied.outcome.errors.is_empty(), "write: some rows failed");
        observer.mark_if(!applied.touched.is_empty(), "write: flushed rows changed");
        observer.mark_if(applied.touched.len() > 1, "write: batch changed several rowsets");
        observer.mark_if(!state.frozen.is_empty(), "write: during a flush");
    }

    /// Returns the total cost of key lookups on disk.
    pub fn probes(&self) -> ProbeStats {
        self.scratch.probes
    }

    /// Installs `schema`. If its row layout differs, the active MemRowSet is frozen and flushed in the old layout.
    /// `index` and `timestamp` are those of the last operation applied.
    pub fn alter(&mut self, schema: TabletSchema, index: u64, timestamp: Timestamp) {
        let mut state = (*self.tablet.state()).clone();
        let same_rows = state.schema.lays_out_rows_like(&schema);
        state.schema = Arc::new(schema);
        match same_rows {
            true => self.tablet.set_state(state),
            false => self.replace_active(state, index, timestamp),
        }
    }

    /// Freezes the active MemRowSet for a flush. Returns false if no row is in memory.
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

    fn replace_active(&mut self, mut state: TabletComponents, index: u64, timestamp: Timestamp) {
        let empty = MemRowSet::new(state.schema.clone(), &self.tablet.memory.rows);
        let active = std::mem::replace(&mut state.active, Arc::new(empty));
        let mut anchors = self.anchors();
        let from = anchors.active.take();
        if active.rows() > 0 {
            let mutations = active.mutation_count();
            let from = from.expect("a MemRowSet with rows has an anchor");
            anchors.frozen.push_back(Frozen { from, at: FreezePoint { index, timestamp, mutations } });
            active.freeze();
            state.frozen.push(active);
        }
        drop(anchors);
        self.tablet.set_state(state);
    }

    /// Returns the oldest frozen MemRowSet and the point of its freeze.
    pub fn oldest_frozen(&self) -> Option<(Arc<MemRowSet>, FreezePoint)> {
        let frozen = self.anchors().frozen.front()?.at;
        Some((self.tablet.state().frozen[0].clone(), frozen))
    }

    /// Replaces the oldest frozen MemRowSet by DiskRowSets that have all of its mutations.
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

    /// Freezes a DiskRowSet's DeltaMemStore. Returns the last operation that may be in it, or `None` if it is empty.
    pub fn freeze_deltas(&mut self, rowset: &DiskRowSet, index: u64, timestamp: Timestamp) -> Option<u64> {
        let id = rowset.meta().id;
        if !rowset.freeze(timestamp) {
            return None;
        }
        Some(*self.anchors().delta_freezes.entry(id).or_insert(index))
    }

    /// Updates the anchors after the frozen deltas of a DiskRowSet were replaced by a delta file.
    pub fn deltas_flushed(&mut self, rowset: &DiskRowSet) {
        let id = rowset.meta().id;
        let mut anchors = self.anchors();
        let index = anchors.delta_freezes.remove(&id).expect("the deltas were frozen");
        match rowset.dms_len() {
            0 => anchors.deltas.remove(&id),
            _ => anchors.deltas.insert(id, index + 1),
        };
    }

    /// Replaces DiskRowSets by others that have all of their deltas. The new files contain the deltas up to operation
    /// `index`.
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
        let remaining = state.disk.iter().filter(|rowset| !from.contains(&rowset.meta().id)).cloned();
        let disk = remaining.chain(into).collect();
        self.tablet.set_state(state.with_disk(disk));
    }

    /// Returns the first operation whose effect is only in memory. The oldest frozen MemRowSet (if `oldest_frozen`) and
    /// the rowsets in `deltas` are left out, because their flushes are about to be installed.
    pub fn log_anchor(&self, oldest_frozen: bool, deltas: &[RowSetId]) -> Option<u64> {
        let anchors = self.anchors();
        let frozen = anchors.frozen.iter().skip(oldest_frozen.into()).map(|frozen| frozen.from);
        let unflushed = anchors.deltas.iter().filter(|(id, _)| !deltas.contains(id)).map(|(_, from)| *from);
        frozen.chain(unflushed).chain(anchors.active).min()
    }
}
