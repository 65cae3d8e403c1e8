//! LogMatching: logs that agree on an entry agree on all before it; a follower's log is its leader's (Raft §5.3).

use engine::ids::OpId;
use engine::note::raft::{Action, DataState};

use super::{Event, Invariant, Model};

#[derive(Debug, Default)]
pub struct LogMatching;

impl Invariant for LogMatching {
    fn name(&self) -> &'static str {
        "LogMatching"
    }

    fn foresee(&mut self, event: &Event, before: &Model) -> Result<(), String> {
        let (at, post) = (event.at, event.note.post);
        if let Action::FollowerAppend { prev, upto, .. } = &event.note.action {
            let held = before.replicas.get(&at).and_then(|replica| replica.log.term(prev.index));
            if held != Some(prev.term) {
                return Err(format!("{at} appends after {prev}, where it has an entry of term {held:?}"));
            }
            let leader = before.leaders.get(&post.term);
            if leader.is_some_and(|log| !log.has(*upto)) {
                return Err(format!(
                    "{at} takes {upto}, which is not in the log of term {}'s leader",
                    post.term
                ));
            }
        }
        Ok(())
    }

    fn see(&mut self, event: &Event, after: &Model) -> Result<(), String> {
        let (at, post) = (event.at, event.note.post);
        if post.data != DataState::Ready || !changes_log(&event.note.action) {
            return Ok(());
        }
        let last: OpId = after.replicas[&at].log.last();
        if last == post.last {
            return Ok(());
        }
        Err(format!("{at} says that its log ends at {}, but what it took ends at {last}", post.last))
    }
}

fn changes_log(action: &Action) -> bool {
    matches!(
        action,
        Action::ClientAppend { .. }
            | Action::ConfigAppend { .. }
            | Action::FollowerAppend { .. }
            | Action::AbortPending { .. }
            | Action::Restart { .. }
    )
}
