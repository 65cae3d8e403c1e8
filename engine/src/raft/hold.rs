//! What must not leave before the metadata it depends on is durable (Raft §5.2, figure 2: "persistent state,
//! updated on stable storage before responding").

use std::collections::VecDeque;

use super::message::{Message, Output, Reply};
use super::{Ctx, Peer, Raft, State};
use crate::ids::{PeerId, Term};
use crate::note::raft::Action;

/// Messages and replies in the order they were made.
#[derive(Default)]
pub(super) struct Holds {
    /// The number of the metadata given out last.
    given: u64,
    /// The number of the last one that changed term or vote: what leaves now depends on it.
    promise: u64,
    durable: u64,
    /// Terms and votes that are not durable yet, by number.
    promises: VecDeque<(u64, Term, Option<PeerId>)>,
    waiting: VecDeque<(u64, Held)>,
    /// Whether to note the start as a creation.
    pub fresh: bool,
    /// The metadata it was started with is that of an election won: the term and vote before it.
    pub elected: Option<(Term, Option<PeerId>)>,
}

enum Held {
    Message(Peer, Message),
    Reply(u64, Reply),
}

impl Raft {
    /// Has the metadata stored. `promise`: its term or vote changed, so that nothing leaves before it is.
    pub(super) fn store_meta(&mut self, promise: bool, out: &mut Output) {
        self.holds.given += 1;
        if promise {
            self.holds.promise = self.holds.given;
            let (term, vote) = (self.meta.term, self.meta.voted_for);
            self.holds.promises.push_back((self.holds.given, term, vote));
        }
        out.meta = Some((self.holds.given, self.meta.clone()));
        out.status_changed = true;
    }

    /// Whether term and vote are durable as they are.
    pub(super) fn promise_durable(&self) -> bool {
        self.holds.durable >= self.holds.promise
    }

    pub(super) fn send(&mut self, peer: Peer, message: Message, out: &mut Output) {
        if self.promise_durable() {
            out.messages.push((peer, message));
        } else {
            self.holds.waiting.push_back((self.holds.promise, Held::Message(peer, message)));
        }
    }

    pub(super) fn reply(&mut self, ticket: u64, reply: Reply, out: &mut Output) {
        if self.promise_durable() {
            out.replies.push((ticket, reply));
        } else {
            self.holds.waiting.push_back((self.holds.promise, Held::Reply(ticket, reply)));
        }
    }

    /// The metadata numbered `number` is durable.
    pub(super) fn meta_persisted(&mut self, number: u64, ctx: &mut Ctx<'_>) {
        self.holds.durable = self.holds.durable.max(number.min(self.holds.given));
        let mut promise = None;
        while self.holds.promises.front().is_some_and(|(given, ..)| *given <= self.holds.durable) {
            promise = self.holds.promises.pop_front();
        }
        if let Some((_, term, vote)) = promise {
            self.note(ctx, Action::MetaPersist { term, vote });
        }
        while let Some((needs, _)) = self.holds.waiting.front()
            && *needs <= self.holds.durable
        {
            match self.holds.waiting.pop_front() {
                Some((_, Held::Message(peer, message))) => ctx.out.messages.push((peer, message)),
                Some((_, Held::Reply(ticket, reply))) => ctx.out.replies.push((ticket, reply)),
                None => {}
            }
        }
        if self.promise_durable()
            && let State::Candidate(election) = &mut self.state
        {
            election.votes.insert(self.me, true);
            self.count_votes(ctx);
        }
    }
}
