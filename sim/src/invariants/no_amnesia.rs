//! NoAmnesia: a tombstone, and a copy that failed, keep the OpId of the log that was there. (Term and vote:
//! OneVotePerTerm.)

use engine::note::raft::{Action, DataState};

use super::{Event, Invariant, Model};

#[derive(Debug, Default)]
pub struct NoAmnesia;

impl Invariant for NoAmnesia {
    fn name(&self) -> &'static str {
        "NoAmnesia"
    }

    fn foresee(&mut self, event: &Event, before: &Model) -> Result<(), String> {
        let Some(former) = before.replicas.get(&event.at) else { return Ok(()) };
        let knew = match (&event.note.action, former.post.map(|post| post.data)) {
            (Action::Tombstone { .. }, Some(DataState::Ready)) => former.log.last(),
            (Action::CopyAbort, _)
            | (Action::Restart { .. }, Some(DataState::Tombstoned | DataState::Copying))
                if event.note.post.data == DataState::Tombstoned =>
            {
                former.remembers
            }
            _ => return Ok(()),
        };
        let knows = event.note.post.last;
        if knows >= knew || before.excused.contains(&event.at) {
            return Ok(());
        }
        Err(format!("{} had a log up to {knew}, and its tombstone remembers {knows}", event.at))
    }
}
