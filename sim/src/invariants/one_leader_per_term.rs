//! OneLeaderPerTerm: a term has at most one leader, and only the leader appends (Raft §5.2, Election Safety).

use std::collections::BTreeMap;

use engine::ids::{PeerId, Term};
use engine::note::raft::RaftAction;

use super::{Invariant, Model, ReplicaEvent};

/// Leaders by term.
#[derive(Debug, Default)]
pub struct OneLeaderPerTerm {
    leaders: BTreeMap<Term, PeerId>,
}

impl Invariant for OneLeaderPerTerm {
    fn name(&self) -> &'static str {
        "OneLeaderPerTerm"
    }

    fn check_before(&mut self, event: &ReplicaEvent, _: &Model) -> Result<(), String> {
        let term = match &event.note.action {
            RaftAction::BecomeLeader => event.note.post.term,
            RaftAction::ClientAppend { op, .. } | RaftAction::ConfigAppend { op, .. } => op.term,
            _ => return Ok(()),
        };
        let leader = *self.leaders.entry(term).or_insert(event.at);
        if leader == event.at {
            return Ok(());
        }
        Err(format!("{} acts as leader of term {term}, whose leader is {leader}", event.at))
    }
}
