//! TermsAreElected: every term in use began with an election (Raft §5.1). A term without a candidate was read
//! from damaged bytes, counted twice, or belongs to another tablet.

use std::collections::BTreeSet;

use engine::ids::Term;
use engine::note::raft::RaftAction;

use super::{Invariant, Model, ReplicaEvent};

/// The invariant of this module.
#[derive(Debug, Default)]
pub struct TermsAreElected {
    /// Terms in which a replica stood for election.
    elections: BTreeSet<Term>,
}

impl Invariant for TermsAreElected {
    fn name(&self) -> &'static str {
        "TermsAreElected"
    }

    fn check_after(&mut self, event: &ReplicaEvent, _: &Model) -> Result<(), String> {
        match event.note.action {
            RaftAction::StartElection { term, .. } => drop(self.elections.insert(term)),
            RaftAction::MetaPersist { term, .. } if term > 0 && !self.elections.contains(&term) => {
                let at = event.at;
                return Err(format!("{at} stores term {term}, in which no replica stood for election"));
            }
            _ => {}
        }
        Ok(())
    }
}
