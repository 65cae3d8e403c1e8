//! NoRevival: a tombstone is never replaced from a state older than itself.

use engine::ids::OpId;
use engine::note::raft::{Action, DataState};

use super::{Event, Invariant, Model};

#[derive(Debug, Default)]
pub struct NoRevival;

impl Invariant for NoRevival {
    fn name(&self) -> &'static str {
        "NoRevival"
    }

    fn foresee(&mut self, event: &Event, before: &Model) -> Result<(), String> {
        let Some(former) = before.replicas.get(&event.at) else { return Ok(()) };
        let was = former.post.map(|post| post.data);
        match &event.note.action {
            Action::CopyStart { term, .. }
                if was == Some(DataState::Tombstoned) && *term < former.remembers.term =>
            {
                return Err(refuse(event, former.remembers, &format!("a leader of term {term}")));
            }
            Action::CopyFinish if event.note.post.last < former.remembers => {
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

fn refuse(event: &Event, remembers: OpId, by: &str) -> String {
    format!("{} remembers {remembers} and is replaced by {by}", event.at)
}
