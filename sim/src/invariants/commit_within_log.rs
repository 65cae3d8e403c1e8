//! CommitWithinLog: a replica's commit index is at most the last index of its log.

use engine::note::raft::NotedDataState;

use super::{Invariant, Model, ReplicaEvent};

#[derive(Debug, Default)]
pub struct CommitWithinLog;

impl Invariant for CommitWithinLog {
    fn name(&self) -> &'static str {
        "CommitWithinLog"
    }

    fn check_before(&mut self, event: &ReplicaEvent, before: &Model) -> Result<(), String> {
        let post = event.note.post;
        if post.data == NotedDataState::Ready && post.commit > post.last.index {
            return Err(format!(
                "{} has committed {} of a log that ends at {}",
                event.at, post.commit, post.last
            ));
        }
        let former = before.replicas.get(&event.at).and_then(|replica| replica.post);
        let lives_on = !super::starts_new_life(&event.note.action);
        match former.filter(|_| lives_on) {
            Some(former) if former.commit > post.commit => {
                Err(format!("{} had committed {}, and now only {}", event.at, former.commit, post.commit))
            }
            _ => Ok(()),
        }
    }
}
