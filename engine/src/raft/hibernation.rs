//! Hibernation: events for which an idle replica need not be woken.
//!
//! Most groups are idle most of the time: the leader's heartbeat reports that it lives, and the response reports the
//! same of the follower. [`Raft::hibernation`] tells the owner of the replica which events would only move clocks. The
//! owner may reply to such an event at once, keep it, and give it to the replica later. Order: kept events precede
//! every other event, each with the time at which it arrived. The result is the same as without delay, except that the
//! safe time moves later; while a reader waits for that, no event may be kept.
//!
//! Time alone ends hibernation through [`Raft::deadline`], which does not know of kept events: it may be early, never
//! late.

use super::interface::{RaftEvent, UpdateRequest, UpdateResponse};
use super::{Raft, RoleState};
use crate::ids::{OpId, PeerId, TabletId, Term};

/// An idle replica: only the next heartbeat is due.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hibernation {
    Following(HibernatingFollower),
    Leading(HibernatingLeader),
}

/// A follower that has all entries of its leader, committed and durable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HibernatingFollower {
    tablet: TabletId,
    leader: PeerId,
    all_replicated: u64,
    position: UpdateResponse,
}

/// A leader whose peers have every entry and the commit index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HibernatingLeader {
    term: Term,
    last: OpId,
}

impl Hibernation {
    /// Returns the replica's response, if the update reports only that the leader lives and its safe time.
    pub fn heartbeat_reply(&self, request: &UpdateRequest) -> Option<UpdateResponse> {
        let Hibernation::Following(HibernatingFollower { tablet, leader, all_replicated, position }) = self
        else {
            return None;
        };
        let for_us = (request.tablet, request.dest, request.caller, request.term)
            == (*tablet, position.responder, *leader, position.term);
        let nothing_new = request.entries.is_empty()
            && request.preceding == position.last_received
            && request.committed == position.last_committed
            && request.all_replicated <= *all_replicated;
        (for_us && nothing_new).then(|| position.clone())
    }

    /// Returns true if the event reports only that the follower lives and knows of no other leader.
    pub fn is_expected_reply(&self, event: &RaftEvent) -> bool {
        let (Hibernation::Leading(hibernating), RaftEvent::Updated { peer, result: Ok(response), .. }) =
            (self, event)
        else {
            return false;
        };
        response.error.is_none()
            && response.responder == *peer
            && response.term == hibernating.term
            && response.last_received_current_leader == hibernating.last
    }
}

impl Raft {
    /// The events that need not wake this replica until its next step; `None` if it must receive every event.
    pub fn hibernation(&self) -> Option<Hibernation> {
        let last = self.log.last();
        let idle = self.committed == last
            && self.log.durable() == last.index
            && self.pending_configs.is_empty()
            && self.is_metadata_durable()
            && self.pending_updates.is_empty();
        match &self.state {
            RoleState::Follower if idle => self.hibernating_follower().map(Hibernation::Following),
            RoleState::Leader(leader) if idle && leader.is_idle(last, &self.options) => {
                Some(Hibernation::Leading(HibernatingLeader { term: self.meta.term, last }))
            }
            _ => None,
        }
    }

    fn hibernating_follower(&self) -> Option<HibernatingFollower> {
        let leader = self.leader?;
        let in_step = self.pre_vote.is_none() && self.received == self.log.last();
        in_step.then(|| HibernatingFollower {
            tablet: self.meta.tablet,
            leader,
            all_replicated: self.all_replicated,
            position: self.progress_response(),
        })
    }
}
