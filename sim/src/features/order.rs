//! Order: an action of one replica, and the next action of another replica of the same tablet.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::{Discriminant, discriminant};

use engine::ids::{PeerId, TabletId};
use engine::note::raft::{RaftAction, RaftNote};

use super::feature_set::{ORDER, feature};

/// An action with the role and the data state of the replica after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Step {
    action: Discriminant<RaftAction>,
    role: u8,
    data: u8,
}

/// The pairs of a run.
#[derive(Default)]
pub(super) struct Order {
    /// The last step of each tablet, and whose it was.
    last: BTreeMap<TabletId, (PeerId, Step)>,
    found: BTreeSet<u64>,
}

impl Order {
    pub(super) fn note(&mut self, server: PeerId, tablet: TabletId, note: &RaftNote) {
        let (role, data) = (note.post.role as u8, note.post.data as u8);
        let step = Step { action: discriminant(&note.action), role, data };
        let before = self.last.insert(tablet, (server, step));
        if let Some((_, before)) = before.filter(|(other, _)| *other != server) {
            self.found.insert(feature(ORDER, (before, step)));
        }
    }

    pub(super) fn found(&self) -> &BTreeSet<u64> {
        &self.found
    }
}
