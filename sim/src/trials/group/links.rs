//! Messages between the servers of a group trial: in flight until they are delivered, lost, or sent twice.

use std::collections::BTreeSet;

use engine::error::Error;
use engine::ids::{PeerId, Term};
use engine::raft::interface::{UpdateRequest, VoteRequest};
use engine::raft::{Peer, RaftEvent};
use sim_plan::RandomStream;

use super::ids::id_of;

/// A life that no server has: they begin with 1.
pub(super) const NO_LIFE: u64 = 0;

/// A message in flight.
#[derive(Clone)]
pub(super) enum Message {
    Update {
        from: usize,
        life: u64,
        to: usize,
        request: UpdateRequest,
    },
    Vote {
        from: usize,
        life: u64,
        to: usize,
        request: VoteRequest,
    },
    RunElection {
        from: usize,
        to: usize,
    },
    StartCopy {
        from: usize,
        life: u64,
        to: usize,
        source: Peer,
        term: Term,
    },
    /// A reply, or the error that there is none, to a life of the server that asked.
    Reply {
        to: usize,
        life: u64,
        event: RaftEvent,
    },
}

/// Receiver of a replica's reply; its event if the message is answered.
pub(super) struct ReplyTarget {
    pub from: usize,
    pub life: u64,
    pub request: Asked,
}

/// The subject of a reply.
#[derive(Clone, Copy)]
pub(super) enum Asked {
    Update { sent: u64 },
    Vote { term: Term, is_pre_vote: bool },
}

impl Message {
    /// Returns the servers between which it travels; a reply reached its receiver's link already.
    pub(super) fn ends(&self) -> (Option<usize>, usize) {
        match self {
            Message::Update { from, to, .. }
            | Message::Vote { from, to, .. }
            | Message::RunElection { from, to }
            | Message::StartCopy { from, to, .. } => (Some(*from), *to),
            Message::Reply { to, .. } => (None, *to),
        }
    }

    /// Returns the request again, whose answer has no receiver: a sender takes one.
    fn repeated(&self) -> Option<Message> {
        let mut again = self.clone();
        match &mut again {
            Message::Update { life, .. } | Message::Vote { life, .. } | Message::StartCopy { life, .. } => {
                *life = NO_LIFE;
            }
            Message::RunElection { .. } => {}
            Message::Reply { .. } => return None,
        }
        Some(again)
    }

    /// Returns the event that tells the sender of a request that it was not answered.
    pub(super) fn unanswered(&self) -> Option<Message> {
        let unreachable = || Error::not_ready("the server cannot be reached");
        let (from, life, event) = match self {
            Message::Update { from, life, to, request } => {
                let (peer, sent) = (id_of(*to), request.sent);
                (*from, *life, RaftEvent::Updated { peer, sent, result: Err(unreachable()) })
            }
            Message::Vote { from, life, to, request } => {
                let (peer, term, is_pre_vote) = (id_of(*to), request.term, request.is_pre_vote);
                (*from, *life, RaftEvent::Voted { peer, term, is_pre_vote, result: Err(unreachable()) })
            }
            Message::StartCopy { from, life, to, .. } => {
                (*from, *life, RaftEvent::CopyStarted { peer: id_of(*to), result: Err(unreachable()) })
            }
            Message::RunElection { .. } | Message::Reply { .. } => return None,
        };
        Some(Message::Reply { to: from, life, event })
    }
}

impl ReplyTarget {
    /// Returns the event that tells the sender that `server` did not answer.
    pub(super) fn lost(&self, server: usize) -> Message {
        let (peer, ended) = (id_of(server), Error::not_ready("the server has ended"));
        let event = match self.request {
            Asked::Update { sent } => RaftEvent::Updated { peer, sent, result: Err(ended) },
            Asked::Vote { term, is_pre_vote } => {
                RaftEvent::Voted { peer, term, is_pre_vote, result: Err(ended) }
            }
        };
        Message::Reply { to: self.from, life: self.life, event }
    }
}

/// All messages in flight, and the links that are cut.
#[derive(Default)]
pub(super) struct Links {
    in_flight: Vec<Message>,
    /// Ordered pairs of servers.
    cuts: BTreeSet<(usize, usize)>,
}

/// Percentage of messages that overtake others, are lost, and are delivered twice.
const OVERTAKE_PERCENT: u64 = 25;
const LOSS_PERCENT: u64 = 4;
const REPEAT_PERCENT: u64 = 3;

impl Links {
    pub(super) fn send(&mut self, message: Message) {
        self.in_flight.push(message);
    }

    /// Takes a message that arrives; without `faults` the oldest one.
    pub(super) fn next(&mut self, random: &mut RandomStream, faults: bool) -> Option<Message> {
        if self.in_flight.is_empty() {
            return None;
        }
        let overtakes = faults && random.percent(OVERTAKE_PERCENT);
        let at = if overtakes { random.below(self.in_flight.len() as u64) as usize } else { 0 };
        let message = self.in_flight.remove(at);
        let (from, to) = message.ends();
        let cut = from.is_some_and(|from| self.cuts.contains(&(from, to)));
        if cut || faults && from.is_some() && random.percent(LOSS_PERCENT) {
            self.in_flight.extend(message.unanswered());
            return None;
        }
        if faults && random.percent(REPEAT_PERCENT) {
            self.in_flight.extend(message.repeated());
        }
        Some(message)
    }

    /// Takes the message that was sent last: it overtakes all others.
    pub(super) fn newest(&mut self) -> Option<Message> {
        self.in_flight.pop()
    }

    /// Takes the responses in which a member accepts an update: they arrive later than all others.
    pub(super) fn take_accepted(&mut self, member: PeerId) -> Vec<Message> {
        let is_accepted = |message: &Message| match message {
            Message::Reply { event: RaftEvent::Updated { peer, result: Ok(response), .. }, .. } => {
                *peer == member && response.error.is_none()
            }
            _ => false,
        };
        let (accepted, others) = std::mem::take(&mut self.in_flight).into_iter().partition(is_accepted);
        self.in_flight = others;
        accepted
    }

    pub(super) fn is_cut(&self, from: usize, to: usize) -> bool {
        self.cuts.contains(&(from, to))
    }

    pub(super) fn cut(&mut self, from: usize, to: usize) {
        self.cuts.insert((from, to));
    }

    /// Repairs one link, or all.
    pub(super) fn repair(&mut self, all: bool) {
        match all {
            true => self.cuts.clear(),
            false => drop(self.cuts.pop_first()),
        }
    }
}
