//! Log anchors of tablet copies: a copy ends at an operation, and its learner needs the log from there on.
//!
//! ```text
//!   snapshot ──▶ held: from its last operation ──▶ session ends ──▶ some time: from the learner's match index ──▶ gone
//!                        └── copy fails ──▶ gone
//! ```
//!
//! Without an anchor log GC may delete what was written during a long copy, and the learner has to be copied again.
//! *Not here:* log GC (`hosting/maintenance.rs`), and the end of all anchors when space is short (`space_moves.rs`).

use std::collections::BTreeMap;
use std::sync::Arc;

use engine::ids::PeerId;
use engine::raft::interface::PeerStatus;
use engine::sync::{Mutex, MutexGuard};
use engine::time::Instant;

/// First operations that the users of a log need.
#[derive(Debug, Clone, Copy)]
pub struct LogNeeds {
    /// Needed by a restart.
    pub keep_from: u64,
    /// Wanted by members of the group.
    pub wanted_from: u64,
    /// Needed by learners that are being copied; `None` without any.
    pub anchored_from: Option<u64>,
}

/// Log anchors of one replica.
#[derive(Default)]
pub struct LogAnchors(Mutex<AnchorTable>);

#[derive(Default)]
struct AnchorTable {
    next_id: u64,
    anchors: BTreeMap<u64, LogAnchor>,
}

struct LogAnchor {
    sink: PeerId,
    /// The last operation of the copy.
    index: u64,
    /// End of an anchor whose copy is complete; `None` while its guard is needed.
    until: Option<Instant>,
}

/// Log anchor of one copy.
pub struct LogAnchorGuard {
    anchors: Arc<LogAnchors>,
    id: u64,
}

impl LogAnchors {
    fn table(&self) -> MutexGuard<'_, AnchorTable> {
        self.0.lock()
    }

    /// Keeps the log from the operation at `index` on, the last one of a copy to `sink`.
    pub fn hold(self: &Arc<LogAnchors>, sink: PeerId, index: u64) -> LogAnchorGuard {
        let mut table = self.table();
        let id = table.next_id;
        table.next_id += 1;
        table.anchors.insert(id, LogAnchor { sink, index, until: None });
        LogAnchorGuard { anchors: self.clone(), id }
    }

    /// Returns the first operation that the anchors keep; `None` without any. `peers` returns what the replica knows of
    /// the members that it leads: an anchor follows the match index of its learner.
    pub fn keep_from(&self, now: Instant, peers: impl FnOnce() -> Vec<PeerStatus>) -> Option<u64> {
        let mut table = self.table();
        table.anchors.retain(|_, anchor| anchor.until.is_none_or(|until| now < until));
        if table.anchors.is_empty() {
            return None;
        }
        let peers = peers();
        let matched = |sink: PeerId| peers.iter().find(|peer| peer.id == sink).map_or(0, |peer| peer.matched);
        table.anchors.values().map(|anchor| anchor.index.max(matched(anchor.sink))).min()
    }

    /// Ends all anchors. Returns true if there were any.
    pub fn release_all(&self) -> bool {
        !std::mem::take(&mut self.table().anchors).is_empty()
    }
}

impl LogAnchorGuard {
    /// Keeps the anchor until this time, also without the guard.
    pub fn keep_until(&self, until: Instant) {
        if let Some(anchor) = self.anchors.table().anchors.get_mut(&self.id) {
            anchor.until = Some(until);
        }
    }
}

impl Drop for LogAnchorGuard {
    fn drop(&mut self) {
        let mut table = self.anchors.table();
        if table.anchors.get(&self.id).is_some_and(|anchor| anchor.until.is_none()) {
            table.anchors.remove(&self.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use engine::ids::Uuid;
    use engine::raft::{MemberKind, PeerHealth};

    use super::*;

    const SINK: PeerId = Uuid([1; 16]);
    const OTHER: PeerId = Uuid([2; 16]);

    fn keep_from(anchors: &LogAnchors, now: u64, matched: u64) -> Option<u64> {
        let (member, health) = (MemberKind::NonVoter, PeerHealth::Healthy);
        let peer = PeerStatus { id: SINK, member, health, matched, silent: None };
        anchors.keep_from(Instant(now), || vec![peer])
    }

    #[test]
    fn a_failed_copy_ends_its_anchor() {
        let anchors = Arc::<LogAnchors>::default();
        assert_eq!(keep_from(&anchors, 0, 0), None);
        let (first, second) = (anchors.hold(SINK, 7), anchors.hold(OTHER, 9));
        assert_eq!(keep_from(&anchors, 0, 0), Some(7));
        drop(first);
        assert_eq!(keep_from(&anchors, 0, 0), Some(9));
        drop(second);
        assert_eq!(keep_from(&anchors, 0, 0), None);
    }

    #[test]
    fn the_anchor_of_a_complete_copy_follows_its_learner_for_some_time() {
        let anchors = Arc::<LogAnchors>::default();
        let guard = anchors.hold(SINK, 7);
        guard.keep_until(Instant(100));
        drop(guard);
        assert_eq!(keep_from(&anchors, 10, 0), Some(7), "the learner opens the copy");
        assert_eq!(keep_from(&anchors, 20, 30), Some(30), "it catches up");
        assert_eq!(keep_from(&anchors, 100, 30), None);
    }

    #[test]
    fn anchors_that_were_released_do_not_return() {
        let anchors = Arc::<LogAnchors>::default();
        let guard = anchors.hold(SINK, 7);
        assert!(anchors.release_all() && !anchors.release_all());
        guard.keep_until(Instant(100));
        assert_eq!(keep_from(&anchors, 0, 0), None);
    }
}
