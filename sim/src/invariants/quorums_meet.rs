//! QuorumsMeet: every majority of a pending configuration intersects every majority of the committed one, and only one
//! is pending at a time (Raft dissertation §4.1).

use engine::note::raft::RaftAction;

use super::model::Config;
use super::{Invariant, Model, ReplicaEvent};

#[derive(Debug, Default)]
pub struct QuorumsMeet;

impl Invariant for QuorumsMeet {
    fn name(&self) -> &'static str {
        "QuorumsMeet"
    }

    fn check_before(&mut self, event: &ReplicaEvent, before: &Model) -> Result<(), String> {
        let RaftAction::ConfigAppend { op, voters, learners, .. } = &event.note.action else { return Ok(()) };
        let (new, post) = (Config::new(voters, learners), event.note.post);
        if let Some(old) = before.config_of(event.at).filter(|old| !meet(old, &new)) {
            let (old, new) = (old.voters.len(), new.voters.len());
            return Err(format!(
                "{op} changes {old} voters into {new} whose majorities need not meet theirs"
            ));
        }
        let Some(replica) = before.replicas.get(&event.at) else { return Ok(()) };
        let pending =
            before.configs.keys().filter(|other| replica.log.has(**other) && other.index > post.commit);
        match pending.max() {
            Some(other) => Err(format!("{op} changes the configuration while {other} is pending")),
            None => Ok(()),
        }
    }
}

/// Returns true if any two majorities have a voter in common.
fn meet(one: &Config, other: &Config) -> bool {
    one.majority() + other.majority() > one.voters.union(&other.voters).count()
}
