//! What reports, tools and metrics show of a replica.

use std::fmt;

use super::{Raft, Role, State, Status};
use crate::time::Now;

impl Raft {
    pub fn role(&self) -> Role {
        match (&self.state, self.active_config().peer(self.me)) {
            (State::Leader(_), _) => Role::Leader,
            (_, None) => Role::NonParticipant,
            (_, Some(peer)) if !peer.is_voter() => Role::Learner,
            (State::Candidate(_), _) => Role::Candidate,
            (State::Follower, _) => Role::Follower,
        }
    }

    pub fn status(&self, now: Now) -> Status {
        let (mut peers, mut transferring) = (Vec::new(), false);
        if let State::Leader(leader) = &self.state {
            let status = |p: &super::queue::Progress| p.status(now.mono, &self.options);
            peers = leader.peers.values().map(status).collect();
            transferring = leader.transfer.is_some();
        }
        Status {
            role: self.role(),
            term: self.meta.term,
            leader: self.leader,
            committed_config: self.meta.committed.clone(),
            pending_config: self.pending_configs.back().map(|(_, config)| config.clone()),
            committed: self.committed,
            last: self.log.last(),
            safe_time: self.safe_time(),
            peers,
            quorum_heard: self.quorum_heard(now.mono),
            transferring,
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
