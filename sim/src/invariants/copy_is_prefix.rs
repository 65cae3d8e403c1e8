//! CopyIsPrefix: a copied replica holds a prefix of its source's log.

use engine::note::raft::RaftAction;

use super::{Invariant, Model, ReplicaEvent};

#[derive(Debug, Default)]
pub struct CopyIsPrefix;

impl Invariant for CopyIsPrefix {
    fn name(&self) -> &'static str {
        "CopyIsPrefix"
    }

    fn check_after(&mut self, event: &ReplicaEvent, after: &Model) -> Result<(), String> {
        if event.note.action != RaftAction::CopyFinish {
            return Ok(());
        }
        // The model took the source's log, truncated where the copy says that its own ends.
        let (had, says) = (after.replicas[&event.at].log.last(), event.note.post.last);
        if had == says {
            return Ok(());
        }
        Err(format!("{} was copied up to {says}; there its source has {had}", event.at))
    }
}
