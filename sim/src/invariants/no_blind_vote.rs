//! NoBlindVote: a replica that does not know the end of its log never votes: it may have acknowledged any entry.
//!
//! A replica is blind when it could not be opened, and stays blind as a tombstone and as a sink until its copy is
//! finished.

use engine::note::raft::RaftAction;

use super::{Invariant, Model, ReplicaEvent};

/// The invariant of this module.
#[derive(Debug, Default)]
pub struct NoBlindVote;

impl Invariant for NoBlindVote {
    fn name(&self) -> &'static str {
        "NoBlindVote"
    }

    fn check_before(&mut self, event: &ReplicaEvent, before: &Model) -> Result<(), String> {
        let (RaftAction::GrantVote { candidate, term } | RaftAction::GrantPreVote { candidate, term }) =
            &event.note.action
        else {
            return Ok(());
        };
        match before.replicas.get(&event.at) {
            Some(replica) if replica.is_blind => Err(format!(
                "{} does not know the end of its log and votes for {candidate} in term {term}",
                event.at
            )),
            _ => Ok(()),
        }
    }
}
