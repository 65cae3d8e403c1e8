//! AskedFirst: nobody stands for election by itself before a majority of its voters has said, in a pre-election of that
//! term, that it would vote (Raft dissertation §9.6). Who was cut off would otherwise come back with a term that
//! takes a leader down that all others hear.

use std::collections::{BTreeMap, BTreeSet};

use engine::ids::{PeerId, Term};
use engine::note::raft::Action;

use super::{Event, Invariant, Model};

/// See the module.
#[derive(Debug, Default)]
pub struct AskedFirst {
    /// Who said so, by candidate and term.
    would_vote: BTreeMap<(PeerId, Term), BTreeSet<PeerId>>,
}

impl Invariant for AskedFirst {
    fn name(&self) -> &'static str {
        "AskedFirst"
    }

    fn foresee(&mut self, event: &Event, before: &Model) -> Result<(), String> {
        let at = event.at;
        match &event.note.action {
            Action::StartPreElection { term } => {
                self.would_vote.entry((at, *term)).or_default().insert(at);
            }
            Action::GrantPreVote { candidate, term } => {
                self.would_vote.entry((*candidate, *term)).or_default().insert(at);
            }
            Action::StartElection { term, asked: false } => {
                let Some(config) = before.config_of(at) else { return Ok(()) };
                let said = self.would_vote.get(&(at, *term)).into_iter().flatten();
                let said = said.filter(|voter| config.voters.contains(*voter)).count();
                if said < config.majority() {
                    return Err(format!(
                        "{at} stands for election in term {term}, and only {said} of {} would vote for it",
                        config.voters.len()
                    ));
                }
            }
            _ => {}
        }
        Ok(())
    }
}
