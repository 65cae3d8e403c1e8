//! QuorumsMeet: every majority of a configuration that is being agreed on meets every majority of the one that is
//! committed, and only one is being agreed on at a time (Raft dissertation §4.1).

use engine::note::raft::Action;

use super::model::Config;
use super::{Event, Invariant, Model};

#[derive(Debug, Default)]
pub struct QuorumsMeet;

impl Invariant for QuorumsMeet {
    fn name(&self) -> &'static str {
        "QuorumsMeet"
    }

    fn foresee(&mut self, event: &Event, before: &Model) -> Result<(), String> {
        let Action::ConfigAppend { op, voters, .. } = &event.note.action else { return Ok(()) };
        let (new, post) = (Config { voters: voters.iter().copied().collect() }, event.note.post);
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

/// Whether any two majorities have a voter in common.
fn meet(one: &Config, other: &Config) -> bool {
    one.majority() + other.majority() > one.voters.union(&other.voters).count()
}
