//! Wrong clocks: a tablet server whose machine states too large an error of its clock accepts no writes, once it has
//! had the time to notice (`max_clock_sync_error_usec`).
//!
//! ```text
//! stated error   ≤ limit ──┤ > limit ├── grace ──┤ a leader there appends a write: violation
//! ```

use std::time::Duration;

use engine::ids::TabletId;
use engine::note::raft::{RaftAction, RaftNote};
use engine::raft::kind;

use super::Violation;

/// Name of this oracle.
pub const NAME: &str = "wrong clocks";
/// Time within which a server notices: checks come each second, and calls that were admitted before end.
const GRACE: Duration = Duration::from_secs(4);

/// Checks a note of a server whose clock has had too large an error for this long, zero if it has not.
pub fn check(server: &str, tablet: TabletId, note: &RaftNote, wrong_for: Duration) -> Option<Violation> {
    let RaftAction::ClientAppend { op, kind: kind::WRITE, .. } = note.action else { return None };
    let message = || {
        format!(
            "{server} appends the write {op} to {tablet}, though its clock has been wrong for {wrong_for:?}"
        )
    };
    (wrong_for > GRACE).then(|| Violation::new(NAME, message()))
}

#[cfg(test)]
mod tests {
    use engine::ids::{OpId, Uuid};
    use engine::note::raft::{NotedDataState, NotedRole, PostState};
    use engine::time::Timestamp;

    use super::*;

    #[test]
    fn a_write_by_a_clock_that_has_been_wrong_for_long_is_reported() {
        let found = |kind: u8, wrong_for: u64| {
            let op = OpId { term: 1, index: 1 };
            let action = RaftAction::ClientAppend { op, timestamp: Timestamp(1), kind };
            let (last, role, data) = (OpId::MIN, NotedRole::Leader, NotedDataState::Ready);
            let note = RaftNote { action, post: PostState { term: 1, last, commit: 0, role, data } };
            check("t0", Uuid([1; 16]), &note, Duration::from_secs(wrong_for)).is_some()
        };
        assert!(found(kind::WRITE, 9));
        assert!(!found(kind::WRITE, 2), "it may not have noticed");
        assert!(!found(kind::ALTER, 9) && !found(kind::NO_OP, 9), "masters and leaders append those");
    }
}
