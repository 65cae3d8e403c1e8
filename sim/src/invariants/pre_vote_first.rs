//! PreVoteFirst: no server starts an election by itself before a majority of its voters granted a pre-vote of that term
//! (Raft dissertation §9.6). Otherwise a server that was cut off would return with a higher term and depose a leader
//! that all others follow.

use std::collections::{BTreeMap, BTreeSet};

use engine::ids::{PeerId, Term};
use engine::note::raft::RaftAction;

use super::{Invariant, Model, ReplicaEvent};

/// The invariant of this module.
#[derive(Debug, Default)]
pub struct PreVoteFirst {
    /// Voters that granted a pre-vote, by candidate and term.
    would_vote: BTreeMap<(PeerId, Term), BTreeSet<PeerId>>,
}

impl Invariant for PreVoteFirst {
    fn name(&self) -> &'static str {
        "PreVoteFirst"
    }

    fn check_before(&mut self, event: &ReplicaEvent, before: &Model) -> Result<(), String> {
        let at = event.at;
        match &event.note.action {
            RaftAction::StartPreElection { term } => {
                self.would_vote.entry((at, *term)).or_default().insert(at);
            }
            RaftAction::GrantPreVote { candidate, term } => {
                self.would_vote.entry((*candidate, *term)).or_default().insert(at);
            }
            RaftAction::StartElection { term, asked: false } => {
                let Some(config) = before.config_of(at) else { return Ok(()) };
                let granted = self.would_vote.get(&(at, *term)).into_iter().flatten();
                let granted = granted.filter(|voter| config.voters.contains(*voter)).count();
                if granted < config.majority() {
                    return Err(format!(
                        "{at} starts an election in term {term} with only {granted} pre-votes of {}",
                        config.voters.len()
                    ));
                }
            }
            _ => {}
        }
        Ok(())
    }
}
