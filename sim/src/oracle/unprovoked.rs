//! What fails has a cause: on a server whose disks did all that they were asked to, no replica fails, no job of
//! maintenance does, and no process ends by itself.
//!
//! Replication hides such failures from clients: a replica that finds its own files in contradiction is made anew from
//! another one, and all is well again. So what a crash in the wrong moment leaves behind is judged where it is found.

use engine::note::Note;
use engine::note::raft::Action;

use super::Finding;

const NAME: &str = "unprovoked";
/// Marks of what only disks can cause.
const MARKS: [&str; 3] = [
    "maintenance: a job failed",
    "job: failed before its superblock",
    "tablet copy: met a damaged file at the source",
];

/// The mark of a leader that gives a member up for that.
const CUT: &str = "log: a member needs what is cut off";

/// A note of a server whose disks obey.
pub fn check_note(server: &str, note: &Note) -> Option<Finding> {
    let Note::Raft(raft) = note else { return None };
    let failed = matches!(raft.action, Action::Fail | Action::FailOpen { .. });
    failed.then(|| found(server, &format!("a replica failed: {raft}")))
}

/// A mark that a server reached whose disks obey.
pub fn check_mark(server: &str, mark: &str) -> Option<Finding> {
    MARKS.contains(&mark).then(|| found(server, mark))
}

/// A mark that a leader reached whose log keeps all that its members lack.
pub fn check_log(server: &str, mark: &str) -> Option<Finding> {
    let what = "gave a member up for what it has cut off its log, and should have kept for it";
    (mark == CUT).then(|| Finding::new(NAME, format!("{server} {what}")))
}

/// A process ended by itself on a server whose disks obey.
pub fn check_exit(server: &str, error: Option<&str>) -> Finding {
    found(server, &format!("its process ended: {}", error.unwrap_or("in order")))
}

fn found(server: &str, what: &str) -> Finding {
    Finding::new(NAME, format!("{server}, whose disks did all that they were asked to: {what}"))
}

#[cfg(test)]
mod tests {
    use engine::ids::OpId;
    use engine::note::raft::{DataState, Post, RaftNote, Role};

    use super::*;

    #[test]
    fn a_failure_is_objected_to_and_nothing_else() {
        let note = |action| {
            let post =
                Post { term: 1, last: OpId::MIN, commit: 0, role: Role::Follower, data: DataState::Failed };
            check_note("t1", &Note::Raft(RaftNote { action, post }))
        };
        let message = |found: Option<Finding>| found.map(|found| found.message).unwrap_or_default();
        assert!(message(note(Action::FailOpen { vote: None })).starts_with("t1, whose disks"));
        assert!(message(note(Action::Fail)).contains("a replica failed: Fail"));
        assert_eq!(note(Action::BecomeLeader), None);
        assert!(check_mark("t1", "maintenance: a job failed").is_some());
        assert_eq!(check_mark("t1", "maintenance: a flush"), None);
        assert!(check_log("t1", CUT).is_some());
        assert_eq!(check_log("t1", MARKS[0]), None);
        assert!(check_exit("m0", Some("no log")).message.ends_with("its process ended: no log"));
    }
}
