//! Features of a run: what guided search rewards (`cargo sim explore`). A feature is a 64-bit hash of a situation.
//!
//! ```text
//! notes ──► model of a tablet ──► states       canonical states, and edges: state, action, state   [`states`]
//! notes ────────────────────────► order        action of a replica, next action of another one     [`order`]
//! marks ──► active faults ──────► disturbance  mark, kind of an active fault, count as a power of two
//! history, cells, answers ──────► workload     request and kind of its answer
//! ```
//!
//! Nothing is collected unless it is asked for, and collecting draws nothing and takes no simulated time: a run has the
//! same hash with and without it. Equal runs have equal features.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use engine::ids::{PeerId, TabletId};
use engine::note::raft::RaftNote;
use serde::{Deserialize, Serialize};

use crate::history::HistoryOp;
use crate::injector::disturbances::Disturbance;
use crate::invariants::Model;

mod disturbance;
mod order;
mod states;
#[cfg(test)]
mod tests;
mod workload;

/// The axes of features.
pub const AXES: [&str; 4] = ["states", "order", "disturbance", "workload"];
/// Indices of the axes.
pub const STATES: usize = 0;
pub const ORDER: usize = 1;
pub const DISTURBANCE: usize = 2;
pub const WORKLOAD: usize = 3;

/// The features of one run by axis. No feature is on two axes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunFeatures {
    pub axes: [BTreeSet<u64>; AXES.len()],
}

impl RunFeatures {
    /// Adds the features of the clients' calls. `marks` include cells of the coverage table and kinds of answers.
    pub fn with_answers<'a>(
        mut self,
        marks: impl IntoIterator<Item = (&'a String, &'a u64)>,
        operations: &[HistoryOp],
    ) -> RunFeatures {
        let found = workload::features(marks, operations);
        self.axes[WORKLOAD].extend(found);
        self
    }

    /// Returns all features.
    pub fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        self.axes.iter().flatten().copied()
    }
}

/// Returns the feature of a situation on an axis.
fn feature(axis: usize, situation: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    (axis, situation).hash(&mut hasher);
    hasher.finish()
}

/// Collects features while a run goes on.
#[derive(Default)]
pub struct FeatureCollector {
    states: states::States,
    order: order::Order,
    disturbance: disturbance::Disturbed,
}

impl FeatureCollector {
    /// Takes a note of a replica, with the tablet's model after it.
    pub fn note(&mut self, server: PeerId, tablet: TabletId, note: &RaftNote, model: &Model) {
        self.states.note(server, tablet, note, model);
        self.order.note(server, tablet, note);
    }

    /// Takes a mark that was reached.
    pub fn mark(&mut self, mark: &str) {
        self.disturbance.mark(mark);
    }

    /// Replaces the active faults.
    pub fn set_active(&mut self, disturbances: &[Disturbance], now: Duration) {
        self.disturbance.set_active(disturbances, now);
    }

    /// Returns the features so far.
    pub fn features(&self) -> RunFeatures {
        let mut features = RunFeatures::default();
        features.axes[STATES] = self.states.found().clone();
        features.axes[ORDER] = self.order.found().clone();
        features.axes[DISTURBANCE] = self.disturbance.found();
        features
    }
}
