//! StateMachineSafety: no two replicas commit different entries at one index (Raft §5.4.3).

use engine::note::raft::RaftAction;

use super::{Invariant, Model, ReplicaEvent};

#[derive(Debug, Default)]
pub struct StateMachineSafety;

impl Invariant for StateMachineSafety {
    fn name(&self) -> &'static str {
        "StateMachineSafety"
    }

    fn check_before(&mut self, event: &ReplicaEvent, before: &Model) -> Result<(), String> {
        if !matches!(event.note.action, RaftAction::AdvanceCommit | RaftAction::FollowerCommit) {
            return Ok(());
        }
        let Some(replica) = before.replicas.get(&event.at) else { return Ok(()) };
        let from = replica.post.map_or(0, |post| post.commit);
        for index in from + 1..=event.note.post.commit {
            let (mine, theirs) = (replica.log.term(index), before.committed.get(&index));
            if let (Some(mine), Some(theirs)) = (mine, theirs.filter(|theirs| Some(theirs.term) != mine)) {
                return Err(format!("{} commits {mine}.{index} where {}.{index} is", event.at, theirs.term));
            }
        }
        Ok(())
    }
}
