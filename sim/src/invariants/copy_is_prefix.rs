//! CopyIsPrefix: a replica that was copied holds a prefix of its source's log.

use engine::note::raft::Action;

use super::{Event, Invariant, Model};

#[derive(Debug, Default)]
pub struct CopyIsPrefix;

impl Invariant for CopyIsPrefix {
    fn name(&self) -> &'static str {
        "CopyIsPrefix"
    }

    fn see(&mut self, event: &Event, after: &Model) -> Result<(), String> {
        if event.note.action != Action::CopyFinish {
            return Ok(());
        }
        // The model took the source's log, cut where the copy says that its own ends.
        let (had, says) = (after.replicas[&event.at].log.last(), event.note.post.last);
        if had == says {
            return Ok(());
        }
        Err(format!("{} was copied up to {says}; there its source has {had}", event.at))
    }
}
