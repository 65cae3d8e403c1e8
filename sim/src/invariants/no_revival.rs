//! NoRevival: a tombstone is never replaced from a state older than itself.

use engine::ids::OpId;
use engine::note::raft::{NotedDataState, RaftAction};

use super::{Invariant, Model, ReplicaEvent};

#[derive(Debug, Default)]
pub struct NoRevival;

impl Invariant for NoRevival {
    fn name(&self) -> &'static str {
        "NoRevival"
    }

    fn check_before(&mut self, event: &ReplicaEvent, before: &Model) -> Result<(), String> {
        let Some(former) = before.replicas.get(&event.at) else { return Ok(()) };
        let was = former.post.map(|post| post.data);
        match &event.note.action {
            RaftAction::CopyStart { term, .. }
                if was == Some(NotedDataState::Tombstoned) && *term < former.remembers.term =>
            {
                return Err(refuse(event, former.remembers, &format!("a leader of term {term}")));
            }
            RaftAction::CopyFinish if event.note.post.last < former.remembers => {
                return Err(refuse(
                    event,
                    former.remembers,
                    &format!("a log up to {}", event.note.post.last),
                ));
            }
            _ => {}
        }
        Ok(())
    }
}

fn refuse(event: &ReplicaEvent, remembers: OpId, by: &str) -> String {
    format!("{} is a tombstone at {remembers} and is replaced by {by}", event.at)
}
