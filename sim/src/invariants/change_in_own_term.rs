//! ChangeInOwnTerm: a leader changes the configuration only after an entry of its own term is committed, and makes
//! voters only of those that hold a log (Raft dissertation §4.1 and its erratum; §4.2.1).

use std::collections::BTreeSet;

use engine::ids::PeerId;
use engine::note::raft::{Action, DataState};

use super::{Event, Invariant, Model};

#[derive(Debug, Default)]
pub struct ChangeInOwnTerm {
    /// Who has taken entries since it was added. If it is deleted then, by an order that was late, its leader hears
    /// of that with its next answer.
    followed: BTreeSet<PeerId>,
}

impl Invariant for ChangeInOwnTerm {
    fn name(&self) -> &'static str {
        "ChangeInOwnTerm"
    }

    fn foresee(&mut self, event: &Event, before: &Model) -> Result<(), String> {
        if let Action::FollowerAppend { .. } | Action::FollowerPersist { .. } = &event.note.action {
            self.followed.insert(event.at);
        }
        let Action::ConfigAppend { op, voters, learners, .. } = &event.note.action else { return Ok(()) };
        let (commit, replica) = (event.note.post.commit, before.replicas.get(&event.at));
        let committed = replica.and_then(|replica| replica.log.term(commit));
        if committed.is_some_and(|term| term < op.term) {
            return Err(format!(
                "{op} changes the configuration, though nothing of term {} is committed",
                op.term
            ));
        }
        let Some(old) = before.config_of(event.at) else { return Ok(()) };
        self.followed.retain(|peer| voters.contains(peer) || learners.contains(peer));
        let held = |peer: PeerId| holds_a_log(before, peer) || self.followed.contains(&peer);
        let empty = |voter: &&PeerId| !old.voters.contains(*voter) && !held(**voter);
        match voters.iter().find(empty) {
            Some(voter) => Err(format!("{op} makes a voter of {voter}, which holds no log")),
            None => Ok(()),
        }
    }
}

fn holds_a_log(model: &Model, peer: PeerId) -> bool {
    // A disk may have failed since the leader heard of the log.
    let ready = |data| matches!(data, DataState::Ready | DataState::Failed);
    model.excused.contains(&peer)
        || model
            .replicas
            .get(&peer)
            .is_some_and(|replica| replica.durable > 0 && replica.post.is_some_and(|post| ready(post.data)))
}
