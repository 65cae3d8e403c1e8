//! LogMatching: logs that agree on an entry agree on all before it; a follower's log is its leader's (Raft §5.3).

use engine::ids::OpId;
use engine::note::raft::{NotedDataState, RaftAction};

use super::{Invariant, Model, ReplicaEvent};

#[derive(Debug, Default)]
pub struct LogMatching;

impl Invariant for LogMatching {
    fn name(&self) -> &'static str {
        "LogMatching"
    }

    fn check_before(&mut self, event: &ReplicaEvent, before: &Model) -> Result<(), String> {
        let (at, post) = (event.at, event.note.post);
        if let RaftAction::FollowerAppend { prev, upto, .. } = &event.note.action {
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

    fn check_after(&mut self, event: &ReplicaEvent, after: &Model) -> Result<(), String> {
        let (at, post) = (event.at, event.note.post);
        if post.data != NotedDataState::Ready || !changes_log(&event.note.action) {
            return Ok(());
        }
        let last: OpId = after.replicas[&at].log.last();
        if last == post.last {
            return Ok(());
        }
        Err(format!("{at} notes that its log ends at {}, but the entries it took end at {last}", post.last))
    }
}

fn changes_log(action: &RaftAction) -> bool {
    matches!(
        action,
        RaftAction::ClientAppend { .. }
            | RaftAction::ConfigAppend { .. }
            | RaftAction::FollowerAppend { .. }
            | RaftAction::AbortPending { .. }
            | RaftAction::Restart { .. }
    )
}
