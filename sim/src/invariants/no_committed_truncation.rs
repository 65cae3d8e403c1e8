//! NoCommittedTruncation: a committed entry is never truncated.

use engine::ids::OpId;
use engine::note::raft::RaftAction;

use super::{Invariant, Model, ReplicaEvent};

#[derive(Debug, Default)]
pub struct NoCommittedTruncation;

impl Invariant for NoCommittedTruncation {
    fn name(&self) -> &'static str {
        "NoCommittedTruncation"
    }

    fn check_before(&mut self, event: &ReplicaEvent, before: &Model) -> Result<(), String> {
        let RaftAction::AbortPending { after, .. } = event.note.action else { return Ok(()) };
        let Some(replica) = before.replicas.get(&event.at) else { return Ok(()) };
        for (index, committed) in before.committed.range(after + 1..) {
            let op = OpId { term: committed.term, index: *index };
            if replica.log.has(op) {
                return Err(format!("{} truncates its log after {after}, but {op} is committed", event.at));
            }
        }
        Ok(())
    }
}
