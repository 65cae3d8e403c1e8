//! ElectedByVotes: whoever becomes leader of a term has, of a majority of the voters of the configuration in force
//! there, votes that are durable (Raft §5.2). An answer that leaves before its vote is stored elects somebody whom the
//! voter may have forgotten after a crash.
//!
//! A voter that has stored a later term may not have stored the vote: it gives no other in that term any more.

use std::collections::{BTreeMap, BTreeSet};

use engine::ids::{PeerId, Term};
use engine::note::raft::Action;

use super::{Event, Invariant, Model};

/// See the module.
#[derive(Debug, Default)]
pub struct ElectedByVotes {
    /// Votes said, durable or not: voter, term, candidate.
    said: BTreeSet<(PeerId, Term, PeerId)>,
    /// Votes that are durable.
    durable: BTreeMap<(PeerId, Term), PeerId>,
    /// The newest term that each server has stored.
    terms: BTreeMap<PeerId, Term>,
}

impl Invariant for ElectedByVotes {
    fn name(&self) -> &'static str {
        "ElectedByVotes"
    }

    fn see(&mut self, event: &Event, after: &Model) -> Result<(), String> {
        let at = event.at;
        match &event.note.action {
            Action::StartElection { term, .. } => drop(self.said.insert((at, *term, at))),
            Action::GrantVote { candidate, term } => drop(self.said.insert((at, *term, *candidate))),
            Action::MetaPersist { term, vote } => {
                self.terms.insert(at, *term);
                if let Some(vote) = vote {
                    self.durable.insert((at, *term), *vote);
                }
            }
            Action::BecomeLeader => return self.elected(at, event.note.post.term, after),
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
            || later && self.said.contains(&(voter, term, candidate))
    }
}
