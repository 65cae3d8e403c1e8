//! CommitByMajority: when a leader's commit index rises, the entry there is durable at a majority of the voters of the
//! leader's configuration in force, the newest in its log, committed or not.
//!
//! [`super::quorum_keeps`] uses the newest committed configuration and is checked later too, so it can require only
//! that majorities intersect: of four voters, two may hold an entry while the removal of one is pending. Here the
//! leader's own configuration decides, and two of four are too few.

use engine::ids::OpId;
use engine::note::raft::RaftAction;

use super::{Invariant, Model, ReplicaEvent};

#[derive(Debug)]
pub struct CommitByMajority;

impl Invariant for CommitByMajority {
    fn name(&self) -> &'static str {
        "CommitByMajority"
    }

    fn check_after(&mut self, event: &ReplicaEvent, after: &Model) -> Result<(), String> {
        if event.note.action != RaftAction::AdvanceCommit || after.log_sync_off {
            return Ok(());
        }
        let index = event.note.post.commit;
        let term = after.replicas.get(&event.at).and_then(|leader| leader.log.term(index));
        let (Some(term), Some(config)) = (term, after.config_of(event.at)) else { return Ok(()) };
        let op = OpId { term, index };
        let (known, voters) = (after.knowing(config, op), config.voters.len());
        if known >= config.majority() {
            return Ok(());
        }
        Err(format!(
            "the leader commits {op}, which {known} of its {voters} voters have (fewer than a majority)"
        ))
    }
}
