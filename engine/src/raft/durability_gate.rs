//! Gated output: messages and replies held until the metadata they depend on is durable (Raft §5.2, figure 2:
//! "persistent state, updated on stable storage before responding").

use super::gated_output::GatedOutput;
use super::interface::{RaftEffects, RaftMessage, RaftReply};
use super::{Peer, Raft, RoleState, StepContext};
use crate::note::raft::RaftAction;

impl Raft {
    /// Has the metadata stored. `gates`: its term or vote changed, so no output leaves before it is durable.
    pub(super) fn store_meta(&mut self, gates: bool, out: &mut RaftEffects) {
        self.gate.emitted += 1;
        if gates {
            self.gate.required = self.gate.emitted;
            let (term, vote) = (self.meta.term, self.meta.voted_for);
            self.gate.votes.push_back((self.gate.emitted, term, vote));
        }
        out.meta = Some((self.gate.emitted, self.meta.clone()));
        out.status_changed = true;
    }

    /// Returns true if the current term and vote are durable.
    pub(super) fn is_metadata_durable(&self) -> bool {
        self.gate.durable >= self.gate.required
    }

    pub(super) fn send(&mut self, peer: Peer, message: RaftMessage, out: &mut RaftEffects) {
        if self.is_metadata_durable() {
            out.messages.push((peer, message));
        } else {
            self.gate.gated.push_back((self.gate.required, GatedOutput::Message(peer, message)));
        }
    }

    pub(super) fn reply(&mut self, ticket: u64, reply: RaftReply, out: &mut RaftEffects) {
        if self.is_metadata_durable() {
            out.replies.push((ticket, reply));
        } else {
            self.gate.gated.push_back((self.gate.required, GatedOutput::Reply(ticket, reply)));
        }
    }

    /// Handles the report that the metadata numbered `number` is durable.
    pub(super) fn meta_persisted(&mut self, number: u64, ctx: &mut StepContext<'_>) {
        self.gate.durable = self.gate.durable.max(number.min(self.gate.emitted));
        let mut durable_vote = None;
        while self.gate.votes.front().is_some_and(|(emitted, ..)| *emitted <= self.gate.durable) {
            durable_vote = self.gate.votes.pop_front();
        }
        if let Some((_, term, vote)) = durable_vote {
            self.note(ctx, RaftAction::MetaPersist { term, vote });
        }
        while let Some((needs, _)) = self.gate.gated.front()
            && *needs <= self.gate.durable
        {
            match self.gate.gated.pop_front() {
                Some((_, GatedOutput::Message(peer, message))) => ctx.out.messages.push((peer, message)),
                Some((_, GatedOutput::Reply(ticket, reply))) => ctx.out.replies.push((ticket, reply)),
                None => {}
            }
        }
        if self.is_metadata_durable()
            && let RoleState::Candidate(election) = &mut self.state
        {
            election.votes.insert(self.me, true);
            self.count_votes(ctx);
        }
    }
}
