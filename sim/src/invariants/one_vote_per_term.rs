//! OneVotePerTerm: in one term a server votes for one candidate, whatever it forgets in between (Raft §5.2).
//!
//! A vote counts when it is durable: only then is its reply sent. A vote that a crash took, or that a failed replica
//! could not store, was never given. A deleted replica forgets its votes, as its table is dropped; a leader not yet
//! deleted may copy the tablet to it once more. A tombstone forgets none. If its metadata rots, a copy votes for the
//! leader that ordered it: that one has won already. Notes do not report rot, so every copy may.

use std::collections::BTreeMap;

use engine::ids::{PeerId, Term};
use engine::note::raft::RaftAction;

use super::{Invariant, Model, ReplicaEvent};

/// Votes by server and term.
#[derive(Debug, Default)]
pub struct OneVotePerTerm {
    durable: BTreeMap<(PeerId, Term), PeerId>,
    pending: BTreeMap<PeerId, (Term, PeerId)>,
    /// Leaders that ordered a copy to a server, by server and term.
    copied_by: BTreeMap<(PeerId, Term), PeerId>,
}

impl Invariant for OneVotePerTerm {
    fn name(&self) -> &'static str {
        "OneVotePerTerm"
    }

    fn check_before(&mut self, event: &ReplicaEvent, _: &Model) -> Result<(), String> {
        let at = event.at;
        match &event.note.action {
            RaftAction::StartElection { term, .. } => self.vote(at, *term, at),
            RaftAction::GrantVote { candidate, term } => self.vote(at, *term, *candidate),
            RaftAction::MetaPersist { term, vote: Some(vote) } => {
                self.check(at, *term, *vote)?;
                self.durable.insert((at, *term), *vote);
                Ok(())
            }
            RaftAction::CopyStart { source, term } => {
                self.copied_by.insert((at, *term), *source);
                Ok(())
            }
            RaftAction::Delete => {
                self.pending.remove(&at);
                self.durable.retain(|(voter, _), _| *voter != at);
                Ok(())
            }
            RaftAction::Fail => {
                self.pending.remove(&at);
                Ok(())
            }
            RaftAction::Restart { vote } => {
                self.pending.remove(&at);
                let term = event.note.post.term;
                match self.durable.get(&(at, term)) {
                    Some(given) if *vote != Some(*given) && !self.is_copied_by(at, term, *vote) => {
                        Err(format!("{at} has forgotten that it voted for {given} in term {term}"))
                    }
                    _ => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }
}

impl OneVotePerTerm {
    fn vote(&mut self, at: PeerId, term: Term, candidate: PeerId) -> Result<(), String> {
        self.check(at, term, candidate)?;
        self.pending.insert(at, (term, candidate));
        Ok(())
    }

    fn is_copied_by(&self, at: PeerId, term: Term, leader: Option<PeerId>) -> bool {
        leader.is_some() && self.copied_by.get(&(at, term)).copied() == leader
    }

    fn check(&self, at: PeerId, term: Term, candidate: PeerId) -> Result<(), String> {
        let pending = self.pending.get(&at).filter(|(pending, _)| *pending == term).map(|(_, given)| given);
        match self.durable.get(&(at, term)).or(pending) {
            Some(given) if *given != candidate && !self.is_copied_by(at, term, Some(candidate)) => {
                Err(format!("{at} votes for {candidate} in term {term}, in which it has voted for {given}"))
            }
            _ => Ok(()),
        }
    }
}
