//! AppliedAgree: replicas apply the same operations in the same order, each at one timestamp that all agree on.
//!
//! Operations are applied in commit order, which [`super::state_machine_safety`] checks. Here their timestamps are
//! checked: along every leader's log they only rise.

use engine::note::raft::RaftAction;

use super::{Invariant, Model, ReplicaEvent};

#[derive(Debug, Default)]
pub struct AppliedAgree;

impl Invariant for AppliedAgree {
    fn name(&self) -> &'static str {
        "AppliedAgree"
    }

    fn check_before(&mut self, event: &ReplicaEvent, before: &Model) -> Result<(), String> {
        let RaftAction::ClientAppend { op, timestamp, .. } = event.note.action else { return Ok(()) };
        if before.timestamps.get(&op).is_some_and(|other| *other != timestamp) {
            return Err(format!("the entry {op} has two timestamps"));
        }
        let Some(replica) = before.replicas.get(&event.at) else { return Ok(()) };
        let earlier = before.timestamps.iter().rev();
        let mut earlier =
            earlier.filter(|(earlier, _)| earlier.index < op.index && replica.log.has(**earlier));
        match earlier.next() {
            Some((last, at)) if *at >= timestamp => {
                Err(format!("{} appends {op} at {timestamp}, after {last} at {at}", event.at))
            }
            _ => Ok(()),
        }
    }
}
