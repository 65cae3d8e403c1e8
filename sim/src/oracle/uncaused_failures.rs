//! Failures without a cause: without a disk fault on the server, no replica, maintenance job or process may fail.
//!
//! Replication hides such failures from clients: a replica with inconsistent files is copied again from another one.
//! So what a badly timed crash leaves behind is checked where it is found.

use engine::note::Note;
use engine::note::raft::RaftAction;

use super::Violation;

const NAME: &str = "uncaused failures";
/// Marks that only disk faults may cause.
const MARKS: [&str; 3] = [
    "maintenance: job failed",
    "job: failed before its superblock",
    "tablet copy: corrupt file at the source",
];

/// Mark of a leader that evicts a member because it needs entries that log GC deleted.
const MARK_NEEDS_GCED_ENTRIES: &str = "log: a member needs entries that log GC removed";

/// Checks a note of a server without disk faults.
pub fn check_note(server: &str, note: &Note) -> Option<Violation> {
    let Note::Raft(raft) = note else { return None };
    let failed = matches!(raft.action, RaftAction::Fail | RaftAction::FailOpen { .. });
    failed.then(|| found(server, &format!("a replica failed: {raft}")))
}

/// Checks a mark of a server without disk faults.
pub fn check_mark(server: &str, mark: &str) -> Option<Violation> {
    MARKS.contains(&mark).then(|| found(server, mark))
}

/// Checks a mark of a leader whose log must retain all that its members lack.
pub fn check_log(server: &str, mark: &str) -> Option<Violation> {
    let what = "evicted a member for entries that log GC deleted and should have retained";
    (mark == MARK_NEEDS_GCED_ENTRIES).then(|| Violation::new(NAME, format!("{server} {what}")))
}

/// Reports a process that ended by itself on a server without disk faults.
pub fn check_exit(server: &str, error: Option<&str>) -> Violation {
    found(server, &format!("its process ended: {}", error.unwrap_or("in order")))
}

fn found(server: &str, what: &str) -> Violation {
    Violation::new(NAME, format!("{server}, without disk faults: {what}"))
}

#[cfg(test)]
mod tests {
    use engine::ids::OpId;
    use engine::note::raft::{NotedDataState, NotedRole, PostState, RaftNote};

    use super::*;

    #[test]
    fn only_failures_are_reported() {
        let note = |action| {
            let post = PostState {
                term: 1,
                last: OpId::MIN,
                commit: 0,
                role: NotedRole::Follower,
                data: NotedDataState::Failed,
            };
            check_note("t1", &Note::Raft(RaftNote { action, post }))
        };
        let message = |found: Option<Violation>| found.map(|found| found.message).unwrap_or_default();
        assert!(message(note(RaftAction::FailOpen { vote: None })).starts_with("t1, without disk faults"));
        assert!(message(note(RaftAction::Fail)).contains("a replica failed: Fail"));
        assert_eq!(note(RaftAction::BecomeLeader), None);
        assert!(check_mark("t1", "maintenance: job failed").is_some());
        assert_eq!(check_mark("t1", "maintenance: MemRowSet flush"), None);
        assert!(check_log("t1", MARK_NEEDS_GCED_ENTRIES).is_some());
        assert_eq!(check_log("t1", MARKS[0]), None);
        assert!(check_exit("m0", Some("no log")).message.ends_with("its process ended: no log"));
    }
}
