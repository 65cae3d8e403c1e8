//! State that only a leader has.

use std::collections::BTreeMap;

use super::RaftOptions;
use super::leadership_transfer::LeadershipTransfer;
use super::peer_progress::PeerProgress;
use super::safe_time_proposals::SafeTimeProposals;
use crate::ids::{OpId, PeerId};
use crate::time::Instant;

/// State that only a leader has.
pub(super) struct LeaderState {
    pub since: Instant,
    /// Index of the no-op that began its term.
    pub first: u64,
    /// Every other member of the configuration in force.
    pub peers: BTreeMap<PeerId, PeerProgress>,
    /// Tickets that wait for a configuration to be committed: index of its entry, ticket.
    pub tickets: Vec<(u64, u64)>,
    pub transfer: Option<LeadershipTransfer>,
    pub proposals: SafeTimeProposals,
}

impl LeaderState {
    pub(super) fn deadline(&self, options: &RaftOptions) -> Instant {
        let peers = self.peers.values().map(|progress| progress.deadline(options));
        let transfer = self.transfer.iter().map(LeadershipTransfer::deadline);
        let proposals = self.proposals.deadline(options).filter(|_| !self.peers.is_empty());
        peers.chain(transfer).chain(proposals).min().unwrap_or(Instant(u64::MAX))
    }

    /// Index up to which every member has every entry; `own`: this leader's durable index.
    pub(super) fn all_replicated_index(&self, own: u64) -> u64 {
        self.peers.values().map(|progress| progress.matched).min().unwrap_or(own).min(own)
    }

    /// Returns true if no reader, caller or peer waits for a response.
    pub(super) fn is_idle(&self, last: OpId, options: &RaftOptions) -> bool {
        let peers_idle = self.peers.values().all(|progress| progress.is_idle(last, options));
        peers_idle && self.transfer.is_none() && self.tickets.is_empty() && self.proposals.has_no_readers()
    }
}
