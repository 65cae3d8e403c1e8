//! NoStaleDelete: a request to delete a replica has no effect once the replica knows that it was revoked, that is,
//! knows a configuration with itself that is newer than the one the request names. It need not be committed: a learner
//! that has acknowledged it is promoted on that. One of an older term than the one that the request names is void: it
//! will never be committed, as terms only rise in a log.
//!
//! VotersStay looks at voters of live tablets at the end of a run; this looks at each request, learners included.

use engine::ids::OpId;
use engine::note::raft::{NotedDataState, RaftAction};

use super::{Invariant, Model, ReplicaEvent};

/// The invariant of this module.
#[derive(Debug, Default)]
pub struct NoStaleDelete;

impl Invariant for NoStaleDelete {
    fn name(&self) -> &'static str {
        "NoStaleDelete"
    }

    fn check_before(&mut self, event: &ReplicaEvent, before: &Model) -> Result<(), String> {
        let at = event.at;
        let RaftAction::Tombstone { cas: Some(named) } = event.note.action else { return Ok(()) };
        let former = before.replicas.get(&at).filter(|replica| !replica.is_blind);
        let Some(post) = former.and_then(|replica| replica.post) else { return Ok(()) };
        if post.data != NotedDataState::Ready {
            return Ok(());
        }
        let is_void = |op: OpId| before.committed.get(&named).is_some_and(|named| op.term < named.term);
        match before.config_at(at, u64::MAX) {
            Some((op, config)) if op.index > named && !is_void(op) && config.is_member(at) => Err(format!(
                "{at} is deleted by a request of configuration {named}, and is a member of the newer one of {op}"
            )),
            _ => Ok(()),
        }
    }
}
