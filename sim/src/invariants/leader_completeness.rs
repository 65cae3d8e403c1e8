//! LeaderCompleteness: a new leader has every entry that was committed in an earlier term (Raft §5.4).

use engine::ids::OpId;
use engine::note::raft::RaftAction;

use super::{Invariant, Model, ReplicaEvent};

#[derive(Debug, Default)]
pub struct LeaderCompleteness;

impl Invariant for LeaderCompleteness {
    fn name(&self) -> &'static str {
        "LeaderCompleteness"
    }

    fn check_after(&mut self, event: &ReplicaEvent, after: &Model) -> Result<(), String> {
        if event.note.action != RaftAction::BecomeLeader {
            return Ok(());
        }
        let term = event.note.post.term;
        let log = &after.replicas[&event.at].log;
        let earlier = after.committed.iter().filter(|(_, committed)| committed.by < term);
        for (index, committed) in earlier {
            let op = OpId { term: committed.term, index: *index };
            if !log.has(op) {
                return Err(format!("{} leads term {term} without the committed entry {op}", event.at));
            }
        }
        Ok(())
    }
}
