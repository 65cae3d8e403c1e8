//! QuorumKeeps: the replicas that know a committed entry intersect every majority of the newest committed
//! configuration, so that no leader is elected without one. A tombstone knows what its last OpId covers.
//!
//! They need not be a majority themselves: while the removal of one of four voters is pending, two of the three that
//! remain commit an entry, and every three of the four include one of these two.
//!
//! Checked when the commit index rises and when data is lost. It requires a synced log; machines that came back empty
//! are excused ([`Model::excused`]).

use engine::ids::OpId;
use engine::note::raft::RaftAction;

use super::{Invariant, Model, ReplicaEvent};

#[derive(Debug)]
pub struct QuorumKeeps;

impl Invariant for QuorumKeeps {
    fn name(&self) -> &'static str {
        "QuorumKeeps"
    }

    fn check_after(&mut self, event: &ReplicaEvent, after: &Model) -> Result<(), String> {
        let telling = matches!(
            event.note.action,
            RaftAction::AdvanceCommit
                | RaftAction::AbortPending { .. }
                | RaftAction::Restart { .. }
                | RaftAction::Tombstone { .. }
                | RaftAction::CopyFinish
        );
        if after.log_sync_off || !telling {
            return Ok(());
        }
        let (Some((index, committed)), Some(config)) =
            (after.committed.last_key_value(), after.committed_config())
        else {
            return Ok(());
        };
        let op = OpId { term: committed.term, index: *index };
        let known = after.knowing(config, op);
        let voters = config.voters.len();
        if known + config.majority() > voters {
            return Ok(());
        }
        Err(format!("the committed entry {op} is held by {known} of {voters} voters only"))
    }
}
