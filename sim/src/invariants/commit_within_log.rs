//! CommitWithinLog: a replica knows nothing to be committed that it does not have.

use engine::note::raft::DataState;

use super::{Event, Invariant, Model};

#[derive(Debug, Default)]
pub struct CommitWithinLog;

impl Invariant for CommitWithinLog {
    fn name(&self) -> &'static str {
        "CommitWithinLog"
    }

    fn foresee(&mut self, event: &Event, before: &Model) -> Result<(), String> {
        let post = event.note.post;
        if post.data == DataState::Ready && post.commit > post.last.index {
            return Err(format!(
                "{} has committed {} of a log that ends at {}",
                event.at, post.commit, post.last
            ));
        }
        let former = before.replicas.get(&event.at).and_then(|replica| replica.post);
        let lives_on = !super::begins_anew(&event.note.action);
        match former.filter(|_| lives_on) {
            Some(former) if former.commit > post.commit => {
                Err(format!("{} had committed {}, and now only {}", event.at, former.commit, post.commit))
            }
            _ => Ok(()),
        }
    }
}
