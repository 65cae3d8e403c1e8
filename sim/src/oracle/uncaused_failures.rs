//! Failures without a cause: without a disk fault on the server, no replica, maintenance job or process may fail.
//!
//! Replication hides such failures from clients: a replica with inconsistent files is copied again from another one.
//! So what a badly timed crash leaves behind is checked where it is found.

use engine::note::Note;
use engine::note::raft::RaftAction;

use super::Violation;

const NAME: &str = "uncaused failures";
/// Marks that only disk faults may cause, and true for those of work that ends on a full device.
const MARKS: [(&str, bool); 3] = [
    ("maintenance: job failed", true),
    ("job: failed before its superblock", true),
    ("tablet copy: corrupt file at the source", false),
];

/// Mark of a leader that evicts a member because it needs entries that log GC deleted.
const MARK_NEEDS_GCED_ENTRIES: &str = "log: a member needs entries that log GC removed";

/// A failure that only disk faults explain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskFailure {
    pub violation: Violation,
    /// True if a device that was full explains it, too.
    pub may_be_full: bool,
}

/// Returns the failure that a note tells. A replica that runs waits for space, so a full device fails none; one that
/// starts may find no space to be opened.
pub fn check_note(server: &str, note: &Note) -> Option<DiskFailure> {
    let Note::Raft(raft) = note else { return None };
    let may_be_full = match raft.action {
        RaftAction::Fail => false,
        RaftAction::FailOpen { .. } => true,
        _ => return None,
    };
    let violation = found(server, &format!("a replica failed: {raft}"));
    Some(DiskFailure { violation, may_be_full })
}

/// Returns the failure that a mark tells.
pub fn check_mark(server: &str, mark: &str) -> Option<DiskFailure> {
    let (mark, may_be_full) = MARKS.iter().find(|(name, _)| *name == mark)?;
    Some(DiskFailure { violation: found(server, mark), may_be_full: *may_be_full })
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
        let message =
            |found: Option<DiskFailure>| found.map(|found| found.violation.message).unwrap_or_default();
        assert!(message(note(RaftAction::FailOpen { vote: None })).starts_with("t1, without disk faults"));
        assert!(message(note(RaftAction::Fail)).contains("a replica failed: Fail"));
        assert_eq!(note(RaftAction::BecomeLeader), None);
        assert!(check_mark("t1", "maintenance: job failed").is_some());
        assert_eq!(check_mark("t1", "maintenance: MemRowSet flush"), None);
        assert!(check_log("t1", MARK_NEEDS_GCED_ENTRIES).is_some());
        assert_eq!(check_log("t1", MARKS[0].0), None);
        assert!(check_exit("m0", Some("no log")).message.ends_with("its process ended: no log"));
        let may_be_full = |found: Option<DiskFailure>| found.map(|found| found.may_be_full);
        assert_eq!(may_be_full(note(RaftAction::Fail)), Some(false), "a replica that runs waits for space");
        assert_eq!(may_be_full(note(RaftAction::FailOpen { vote: None })), Some(true));
        assert_eq!(may_be_full(check_mark("t1", "maintenance: job failed")), Some(true));
        let corrupt = "tablet copy: corrupt file at the source";
        assert_eq!(may_be_full(check_mark("t1", corrupt)), Some(false), "no space corrupts no file");
    }
}
