//! ElectedByVotes: the leader of a term has durable votes of a majority of the voters of its configuration in force
//! (Raft §5.2). A vote sent before it is stored may elect a leader and be forgotten by a crash.
//!
//! A voter that has stored a later term need not have stored the vote: it gives no other vote in that term any more.

use std::collections::{BTreeMap, BTreeSet};

use engine::ids::{PeerId, Term};
use engine::note::raft::RaftAction;

use super::{Invariant, Model, ReplicaEvent};

/// The invariant of this module.
#[derive(Debug, Default)]
pub struct ElectedByVotes {
    /// Votes sent, durable or not: voter, term, candidate.
    granted: BTreeSet<(PeerId, Term, PeerId)>,
    /// Votes that are durable.
    durable: BTreeMap<(PeerId, Term), PeerId>,
    /// The newest term that each server has stored.
    terms: BTreeMap<PeerId, Term>,
}

impl Invariant for ElectedByVotes {
    fn name(&self) -> &'static str {
        "ElectedByVotes"
    }

    fn check_after(&mut self, event: &ReplicaEvent, after: &Model) -> Result<(), String> {
        let at = event.at;
        match &event.note.action {
            RaftAction::StartElection { term, .. } => drop(self.granted.insert((at, *term, at))),
            RaftAction::GrantVote { candidate, term } => drop(self.granted.insert((at, *term, *candidate))),
            RaftAction::MetaPersist { term, vote } => {
                self.terms.insert(at, *term);
                if let Some(vote) = vote {
                    self.durable.insert((at, *term), *vote);
                }
            }
            RaftAction::BecomeLeader => return self.elected(at, event.note.post.term, after),
            _ => {}
        }
        Ok(())
    }
}

impl ElectedByVotes {
    fn elected(&self, leader: PeerId, term: Term, after: &Model) -> Result<(), String> {
        let Some(config) = after.config_of(leader) else { return Ok(()) };
        let votes = config
            .voters
            .iter()
            .filter(|voter| after.excused.contains(*voter) || self.has_vote_of(**voter, term, leader));
        let (votes, voters) = (votes.count(), config.voters.len());
        if votes >= config.majority() {
            return Ok(());
        }
        Err(format!("{leader} leads term {term} by {votes} durable votes of {voters}"))
    }

    fn has_vote_of(&self, voter: PeerId, term: Term, candidate: PeerId) -> bool {
        let later = self.terms.get(&voter).is_some_and(|stored| *stored > term);
        self.durable.get(&(voter, term)) == Some(&candidate)
            || later && self.granted.contains(&(voter, term, candidate))
    }
}
