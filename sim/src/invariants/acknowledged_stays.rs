//! AcknowledgedStays: a restarted replica has every entry that it noted as durable. A leader counted it, or may have.
//!
//! QuorumKeeps notices a loss only where too few others have the entry; here each replica keeps its own.

use engine::note::raft::{NotedDataState, RaftAction};

use super::{Invariant, Model, ReplicaEvent};

/// The invariant of this module.
#[derive(Debug, Default)]
pub struct AcknowledgedStays;

impl Invariant for AcknowledgedStays {
    fn name(&self) -> &'static str {
        "AcknowledgedStays"
    }

    fn check_before(&mut self, event: &ReplicaEvent, before: &Model) -> Result<(), String> {
        let (at, last) = (event.at, event.note.post.last);
        let is_back = matches!(event.note.action, RaftAction::Restart { .. });
        if !is_back || event.note.post.data != NotedDataState::Ready {
            return Ok(());
        }
        let Some(former) = before.replicas.get(&at) else { return Ok(()) };
        let was = former.post.map(|post| post.data);
        let ran = matches!(was, Some(NotedDataState::Ready | NotedDataState::Failed));
        let durable = former.durable.min(former.log.last().index);
        if !ran || before.log_sync_off || before.excused.contains(&at) || last.index >= durable {
            return Ok(());
        }
        Err(format!(
            "{at} noted its log as durable up to index {durable}, and it ends with {last} after a restart"
        ))
    }
}
