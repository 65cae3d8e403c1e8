//! NoAmnesia: a tombstone, and a failed copy, keep the OpId of the former log, and a copy that begins still has it: no
//! attempt that failed before took away what it was to replace. (Term and vote: OneVotePerTerm. A replica that could
//! not be opened knows no OpId to keep, and must not vote: NoBlindVote.)

use engine::note::raft::{NotedDataState, RaftAction};

use super::{Invariant, Model, ReplicaEvent};

#[derive(Debug, Default)]
pub struct NoAmnesia;

impl Invariant for NoAmnesia {
    fn name(&self) -> &'static str {
        "NoAmnesia"
    }

    fn check_before(&mut self, event: &ReplicaEvent, before: &Model) -> Result<(), String> {
        let Some(former) = before.replicas.get(&event.at) else { return Ok(()) };
        let knew = match (&event.note.action, former.post.map(|post| post.data)) {
            (RaftAction::Tombstone { .. }, Some(NotedDataState::Ready)) => former.log.last(),
            (RaftAction::CopyStart { .. }, Some(NotedDataState::Failed)) if !former.is_blind => {
                former.last_known()
            }
            (RaftAction::CopyStart { .. }, Some(NotedDataState::Tombstoned)) => former.remembers,
            (RaftAction::CopyAbort, _)
            | (RaftAction::Restart { .. }, Some(NotedDataState::Tombstoned | NotedDataState::Copying))
                if event.note.post.data == NotedDataState::Tombstoned && !former.is_blind =>
            {
                former.remembers
            }
            // A failed replica that was told to become a tombstone, or became one in silence.
            (RaftAction::Restart { .. }, Some(NotedDataState::Failed))
                if event.note.post.data == NotedDataState::Tombstoned && !former.is_blind =>
            {
                former.last_known()
            }
            _ => return Ok(()),
        };
        let knows = event.note.post.last;
        if knows >= knew || before.excused.contains(&event.at) {
            return Ok(());
        }
        Err(format!("{} had a log up to {knew}, and remembers {knows}", event.at))
    }
}
