//! NoCommittedTruncation: an entry that is committed never leaves a log again.

use engine::ids::OpId;
use engine::note::raft::Action;

use super::{Event, Invariant, Model};

#[derive(Debug, Default)]
pub struct NoCommittedTruncation;

impl Invariant for NoCommittedTruncation {
    fn name(&self) -> &'static str {
        "NoCommittedTruncation"
    }

    fn foresee(&mut self, event: &Event, before: &Model) -> Result<(), String> {
        let Action::AbortPending { after, .. } = event.note.action else { return Ok(()) };
        let Some(replica) = before.replicas.get(&event.at) else { return Ok(()) };
        for (index, committed) in before.committed.range(after + 1..) {
            let op = OpId { term: committed.term, index: *index };
            if replica.log.has(op) {
                return Err(format!("{} cuts its log after {after}, but {op} is committed", event.at));
            }
        }
        Ok(())
    }
}
