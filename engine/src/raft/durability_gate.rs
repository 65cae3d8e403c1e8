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

#[cfg(test)]
mod tests {
    use super::super::{BootState, ConsensusMeta, RaftConfig, RaftOptions, TimestampSource};
    use super::*;
    use crate::ids::{OpId, TabletId, Uuid};
    use crate::time::{ClockReading, Timestamp};

    /// Clock of a replica that proposes nothing.
    struct NoClock;

    impl TimestampSource for NoClock {
        fn begin(&mut self) -> Timestamp {
            Timestamp::MIN
        }

        fn take(&mut self) -> Timestamp {
            Timestamp::MIN
        }

        fn pass(&mut self, _seen: Timestamp) {}
    }

    #[test]
    fn a_configuration_without_space_at_the_start_is_stored_afterwards() {
        let peers = [1, 2].map(|id| Peer::voter(Uuid([id; 16]), "a", 1)).to_vec();
        let meta = ConsensusMeta::new(TabletId::ZERO, RaftConfig { opid_index: Some(4), peers });
        let start = |meta_stored| {
            let boot = BootState {
                me: Uuid([1; 16]),
                address: None,
                meta: meta.clone(),
                meta_stored,
                elected: None,
                fresh: false,
                committed: OpId { term: 0, index: 4 },
                committed_at: Timestamp::MIN,
                pending: Vec::new(),
                seed: 1,
            };
            let (mut raft, mut out) = (Raft::new(RaftOptions::default(), boot), RaftEffects::default());
            raft.start(ClockReading::default(), &mut NoClock, &mut out);
            assert!(raft.is_metadata_durable(), "no message waits for a configuration");
            out.meta
        };
        assert_eq!(start(true), None);
        assert_eq!(start(false), Some((1, meta.clone())));
    }
}
