//! ChangeInOwnTerm: a leader changes the configuration only after an entry of its own term is committed, and makes
//! voters only of those that hold a log (Raft dissertation §4.1 and its erratum; §4.2.1).

use std::collections::BTreeSet;

use engine::ids::PeerId;
use engine::note::raft::{NotedDataState, RaftAction};

use super::{Invariant, Model, ReplicaEvent};

#[derive(Debug, Default)]
pub struct ChangeInOwnTerm {
    /// Members that took entries since they were added. If a late request deletes such a member, its leader learns of
    /// it with the member's next reply.
    followed: BTreeSet<PeerId>,
}

impl Invariant for ChangeInOwnTerm {
    fn name(&self) -> &'static str {
        "ChangeInOwnTerm"
    }

    fn check_before(&mut self, event: &ReplicaEvent, before: &Model) -> Result<(), String> {
        if let RaftAction::FollowerAppend { .. } | RaftAction::FollowerPersist { .. } = &event.note.action {
            self.followed.insert(event.at);
        }
        let RaftAction::ConfigAppend { op, voters, learners, .. } = &event.note.action else { return Ok(()) };
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
    // A disk may have failed since the leader learned of the log.
    let ready = |data| matches!(data, NotedDataState::Ready | NotedDataState::Failed);
    model.excused.contains(&peer)
        || model
            .replicas
            .get(&peer)
            .is_some_and(|replica| replica.durable > 0 && replica.post.is_some_and(|post| ready(post.data)))
}
