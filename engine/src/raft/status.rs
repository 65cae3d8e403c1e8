//! Replica status for reports, tools and metrics.

use std::fmt;

use super::{ConfigPosition, Raft, RaftConfig, RaftStatus, ReplicationBacklog, Role, RoleState};
use crate::time::ClockReading;

impl Raft {
    pub fn role(&self) -> Role {
        match (&self.state, self.active_config().peer(self.me)) {
            (RoleState::Leader(_), _) => Role::Leader,
            (_, None) => Role::NonParticipant,
            (_, Some(peer)) if !peer.is_voter() => Role::Learner,
            (RoleState::Candidate(_), _) => Role::Candidate,
            (RoleState::Follower, _) => Role::Follower,
        }
    }

    pub fn status(&self, now: ClockReading) -> RaftStatus {
        let (mut peers, mut transferring) = (Vec::new(), false);
        if let RoleState::Leader(leader) = &self.state {
            let status = |p: &super::peer_progress::PeerProgress| p.status(now.mono, &self.options);
            peers = leader.peers.values().map(status).collect();
            transferring = leader.transfer.is_some();
        }
        let position = |config: &RaftConfig| {
            let term = config.opid_index.and_then(|index| self.log.term_at(index));
            ConfigPosition { index: config.kudu_index(), term }
        };
        RaftStatus {
            role: self.role(),
            term: self.meta.term,
            leader: self.leader,
            committed_config: self.meta.committed.clone(),
            pending_config: self.pending_configs.back().map(|(_, config)| config.clone()),
            committed_position: position(&self.meta.committed),
            active_position: position(self.active_config()),
            committed: self.committed,
            last: self.log.last(),
            safe_time: self.safe_time(),
            peers,
            is_quorum_active: self.is_quorum_active(now.mono),
            transferring,
        }
    }

    /// Returns what a leader's members lack; nothing if this replica does not lead.
    pub fn backlog(&self) -> ReplicationBacklog {
        let RoleState::Leader(leader) = &self.state else { return ReplicationBacklog::default() };
        let committed = self.committed.index;
        ReplicationBacklog {
            uncommitted: self.log.last().index.saturating_sub(committed),
            committed: committed - leader.all_replicated_index(committed),
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Role::Leader => "LEADER",
            Role::Follower => "FOLLOWER",
            Role::Candidate => "CANDIDATE",
            Role::Learner => "LEARNER",
            Role::NonParticipant => "NON_PARTICIPANT",
        })
    }
}
