//! AppliedAgree: replicas apply the same operations in the same order, each at one timestamp that all agree on.
//!
//! Operations are applied in the order of their commitment, which [`super::state_machine_safety`] watches. What is
//! left to check here is their time: along every leader's log timestamps only rise.

use engine::note::raft::Action;

use super::{Event, Invariant, Model};

#[derive(Debug, Default)]
pub struct AppliedAgree;

impl Invariant for AppliedAgree {
    fn name(&self) -> &'static str {
        "AppliedAgree"
    }

    fn foresee(&mut self, event: &Event, before: &Model) -> Result<(), String> {
        let Action::ClientAppend { op, timestamp } = event.note.action else { return Ok(()) };
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
