//! QuorumKeeps: the replicas that know a committed entry meet every majority of the newest committed configuration, so
//! that no leader is elected without one; a tombstone knows what its last OpId says.
//!
//! They need not be a majority themselves: while the removal of one of four voters is pending, two of the three that
//! stay commit an entry, and every three of the four have one of these two.
//!
//! It is checked when the commit index rises and when something is lost. It asks for a synced log; and a machine that
//! came back empty is out of its reach ([`Model::excused`]).

use engine::ids::OpId;
use engine::note::raft::Action;

use super::{Event, Invariant, Model};

#[derive(Debug)]
pub struct QuorumKeeps;

impl Invariant for QuorumKeeps {
    fn name(&self) -> &'static str {
        "QuorumKeeps"
    }

    fn see(&mut self, event: &Event, after: &Model) -> Result<(), String> {
        let telling = matches!(
            event.note.action,
            Action::AdvanceCommit
                | Action::AbortPending { .. }
                | Action::Restart { .. }
                | Action::Tombstone { .. }
                | Action::CopyFinish
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
        Err(format!("the committed entry {op} is known to {known} of {voters} voters only"))
    }
}
