//! CommitByMajority: when a leader's commit index rises, the entry there is durable at a majority of the voters of the
//! configuration in force at that leader, the newest in its log, committed or not.
//!
//! [`super::quorum_keeps`] looks at the newest committed configuration and at every later moment, so it can ask only
//! that majorities meet: of four voters, two may hold an entry while the removal of one is pending. Here the leader's
//! own configuration decides, and two of four are too few.

use engine::ids::OpId;
use engine::note::raft::Action;

use super::{Event, Invariant, Model};

#[derive(Debug)]
pub struct CommitByMajority;

impl Invariant for CommitByMajority {
    fn name(&self) -> &'static str {
        "CommitByMajority"
    }

    fn see(&mut self, event: &Event, after: &Model) -> Result<(), String> {
        if event.note.action != Action::AdvanceCommit || after.log_sync_off {
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
        Err(format!("the leader commits {op}, which {known} of its {voters} voters have"))
    }
}
