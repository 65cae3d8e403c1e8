//! The trait of invariants.

use engine::note::raft::RaftAction;

use super::model::{Model, ReplicaEvent};

/// A predicate over every action of one tablet's replicas.
pub trait Invariant {
    fn name(&self) -> &'static str;

    /// Checks an action and the model before it; the error says what is violated.
    fn check_before(&mut self, event: &ReplicaEvent, before: &Model) -> Result<(), String> {
        let _ = (event, before);
        Ok(())
    }

    /// Checks an action and the model after it; the error says what is violated.
    fn check_after(&mut self, event: &ReplicaEvent, after: &Model) -> Result<(), String> {
        let _ = (event, after);
        Ok(())
    }
}

/// Returns true if the action starts a new life of the replica, whatever its state was.
pub fn starts_new_life(action: &RaftAction) -> bool {
    use RaftAction::{CopyAbort, CopyFinish, CopyStart, Create, Delete, Fail, FailOpen, Restart, Tombstone};
    matches!(
        action,
        Create { .. }
            | Restart { .. }
            | CopyStart { .. }
            | CopyFinish
            | CopyAbort
            | Tombstone { .. }
            | Delete
            | Fail
            | FailOpen { .. }
    )
}
