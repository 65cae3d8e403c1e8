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

use std::time::Duration;

use engine::ids::{PeerId, TabletId};
use engine::note::raft::RaftNote;

pub use self::feature_set::{AXES, DISTURBANCE, ORDER, RunFeatures, STATES, WORKLOAD};
use crate::history::HistoryOp;
use crate::injector::disturbances::Disturbance;
use crate::invariants::Model;

mod disturbance;
mod feature_set;
mod order;
mod states;
#[cfg(test)]
mod tests;
mod workload;

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
}

/// Collects features during a run.
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
