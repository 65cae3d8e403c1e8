//! Log anchors of a tablet: the operations of the log that its unflushed data still needs.

use std::collections::{BTreeMap, VecDeque};

use super::rowset::RowSetId;
use crate::time::Timestamp;

/// Log anchors: for each unflushed store, the first operation whose effect is only in memory.
#[derive(Debug, Default)]
pub(super) struct OpAnchors {
    pub(super) active: Option<u64>,
    /// In the order of [`TabletComponents::frozen`].
    pub(super) frozen: VecDeque<Frozen>,
    /// DiskRowSets with unflushed deltas.
    pub(super) deltas: BTreeMap<RowSetId, u64>,
    /// DiskRowSets with a frozen DeltaMemStore: the last operation applied before the freeze.
    pub(super) delta_freezes: BTreeMap<RowSetId, u64>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Frozen {
    pub(super) from: u64,
    pub(super) at: FreezePoint,
}

/// The point in the log at which a MemRowSet was frozen.
#[derive(Debug, Clone, Copy)]
pub struct FreezePoint {
    /// The last operation applied before the freeze.
    pub index: u64,
    pub timestamp: Timestamp,
    /// Mutations of its rows at the freeze.
    pub mutations: usize,
}

impl OpAnchors {
    /// Returns the first operation that unflushed rows need.
    pub(super) fn rows(&self) -> Option<u64> {
        self.frozen.front().map(|frozen| frozen.from).or(self.active)
    }

    /// Returns the first operation that the unflushed deltas of each DiskRowSet need.
    pub(super) fn deltas(&self) -> &BTreeMap<RowSetId, u64> {
        &self.deltas
    }
}
