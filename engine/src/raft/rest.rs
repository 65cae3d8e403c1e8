//! What a replica at rest need not be woken for.
//!
//! Nothing is under way in most groups most of the time, and all that happens is that time passes: the leader's
//! heartbeat says that it lives, the answer says so of the follower. [`Raft::rest`] tells whoever runs the replica
//! which of them would do nothing but move clocks. Such a one may be answered at once and kept, and be given to the
//! replica later: before anything else that it is given, and with the moment at which it came. That is as if it had
//! been taken when it came, except that the safe time moves later; where a reader waits for that, nothing must be kept.
//!
//! Time alone ends a rest through [`Raft::deadline`], which knows nothing of what is kept: it may be early, never late.

use super::message::{Event, UpdateRequest, UpdateResponse};
use super::{Raft, State};
use crate::ids::{OpId, PeerId, TabletId, Term};

/// A replica that waits for nothing but the next heartbeat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rest {
    Following(Following),
    Leading(Leading),
}

/// A follower that has all that its leader has, committed and durable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Following {
    tablet: TabletId,
    leader: PeerId,
    all_replicated: u64,
    standing: UpdateResponse,
}

/// A leader whose peers have all that there is, and know that it is committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leading {
    term: Term,
    last: OpId,
}

impl Rest {
    /// What the replica would answer, if the update says nothing but that the leader lives and what is safe.
    pub fn answer(&self, request: &UpdateRequest) -> Option<UpdateResponse> {
        let Rest::Following(Following { tablet, leader, all_replicated, standing }) = self else {
            return None;
        };
        let for_us = (request.tablet, request.dest, request.caller, request.term)
            == (*tablet, standing.responder, *leader, standing.term);
        let nothing_new = request.entries.is_empty()
            && request.preceding == standing.last_received
            && request.committed == standing.last_committed
            && request.all_replicated <= *all_replicated;
        (for_us && nothing_new).then(|| standing.clone())
    }

    /// Whether this is an answer that says nothing but that the follower lives and knows of no other leader.
    pub fn expects(&self, event: &Event) -> bool {
        let (Rest::Leading(rest), Event::Updated { peer, result: Ok(answer), .. }) = (self, event) else {
            return false;
        };
        answer.error.is_none()
            && answer.responder == *peer
            && answer.term == rest.term
            && answer.last_received_current_leader == rest.last
    }
}

impl Raft {
    /// What this replica need not be woken for until its next step; `None` if it has to see everything.
    pub fn rest(&self) -> Option<Rest> {
        let last = self.log.last();
        let settled = self.committed == last
            && self.log.durable() == last.index
            && self.pending_configs.is_empty()
            && self.promise_durable()
            && self.unanswered.is_empty();
        match &self.state {
            State::Follower if settled => self.following().map(Rest::Following),
            State::Leader(leader) if settled && leader.is_at_rest(last, &self.options) => {
                Some(Rest::Leading(Leading { term: self.meta.term, last }))
            }
            _ => None,
        }
    }

    fn following(&self) -> Option<Following> {
        let leader = self.leader?;
        let in_step = self.pre_election.is_none() && self.received == self.log.last();
        in_step.then(|| Following {
            tablet: self.meta.tablet,
            leader,
            all_replicated: self.all_replicated,
            standing: self.standing(),
        })
    }
}
