//! State of a leadership transfer.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::config::Peer;
use super::peer_progress::PeerProgress;
use crate::ids::PeerId;
use crate::time::Instant;

/// A leadership transfer: the leader accepts no proposals until another voter leads, or until a timeout.
pub(super) struct LeadershipTransfer {
    pub(super) to: Option<PeerId>,
    pub(super) until: Instant,
    /// Number of election requests sent to each voter.
    pub(super) requested: BTreeMap<PeerId, u32>,
    /// Time of the next request: the message or the election may be lost.
    pub(super) retry_at: Instant,
}

impl LeadershipTransfer {
    /// Time of the next check.
    pub(super) fn deadline(&self) -> Instant {
        if self.requested.is_empty() { self.until } else { self.until.min(self.retry_at) }
    }

    /// A voter that has every entry: the one with the fewest requests, of these the one with the latest response.
    pub(super) fn transfer_target(&self, peers: &BTreeMap<PeerId, PeerProgress>, last: u64) -> Option<Peer> {
        let fits = |progress: &&PeerProgress| {
            progress.peer.is_voter()
                && progress.matched == last
                && self.to.is_none_or(|to| to == progress.peer.id)
        };
        let order = |progress: &&PeerProgress| {
            let requested = self.requested.get(&progress.peer.id).copied().unwrap_or(0);
            (requested, Reverse(progress.last_response))
        };
        peers.values().filter(fits).min_by_key(order).map(|progress| progress.peer.clone())
    }
}
