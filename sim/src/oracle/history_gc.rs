//! History GC: a server rejects a snapshot older than its ancient history mark instead of serving wrong rows, and no
//! younger one.

use std::time::Duration;

use engine::time::Timestamp;

use super::Violation;
use crate::history::{HybridStamp, ScanRequest};

const NAME: &str = "history GC";

/// Clocks without faults differ by less than this.
const CLOCKS_APART: Duration = Duration::from_secs(1);
/// As [`CLOCKS_APART`], where the history may be not much longer: clocks are right to a millisecond.
const CLOCKS_NEAR: Duration = Duration::from_millis(100);
/// Part of every message that the history of a snapshot is not kept any more.
pub const HISTORY_GONE: &str = "ancient history mark";

/// Checks a scan of the snapshot `at` that succeeded; its client's clock showed `begun_micros` when it began.
/// `history`: the age of the ancient history mark.
pub fn check(scan: &ScanRequest, at: HybridStamp, begun_micros: u64, history: Duration) -> Option<Violation> {
    let kept = (history + CLOCKS_APART).as_micros() as u64;
    let age = begun_micros.saturating_sub(Timestamp(at).micros());
    (age > kept).then(|| {
        let message = format!("{scan:?} succeeded {age} us after its snapshot (history {history:?})");
        Violation::new(NAME, message)
    })
}

/// Checks a scan whose oldest snapshot is `at`, and which failed; its client's clock showed `ended_micros` then.
pub fn check_refused(
    scan: &ScanRequest,
    at: HybridStamp,
    ended_micros: u64,
    why: &str,
    history: Duration,
) -> Option<Violation> {
    let kept = history.saturating_sub(CLOCKS_NEAR).as_micros() as u64;
    let age = ended_micros.saturating_sub(Timestamp(at).micros());
    (why.contains(HISTORY_GONE) && age < kept).then(|| {
        let message =
            format!("{scan:?} was refused {age} us after its snapshot (history {history:?}): {why}");
        Violation::new(NAME, message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::ScanMode;
    use crate::projection::WHOLE;

    const SECOND: u64 = 1_000_000;

    fn scan() -> ScanRequest {
        let (keys, mode, view) = ((0, 9), ScanMode::Snapshot, WHOLE);
        ScanRequest { table: 0, keys, mode, diff_from: None, ordered: false, view }
    }

    #[test]
    fn a_younger_snapshot_must_not_be_refused() {
        let why = "snapshot scan end timestamp is earlier than the ancient history mark";
        let found = |age_s: u64, why: &str| {
            let at = Timestamp::from_micros(100 * SECOND).0;
            check_refused(&scan(), at, (100 + age_s) * SECOND, why, Duration::from_secs(3)).is_some()
        };
        assert!(found(1, why) && !found(3, why) && !found(5, why));
        assert!(!found(1, "Tablet not running"));
    }

    #[test]
    fn a_snapshot_older_than_the_history_is_reported() {
        let found = |age_s: u64, history_s: u64| {
            let at = Timestamp::from_micros(100 * SECOND).0;
            check(&scan(), at, (100 + age_s) * SECOND, Duration::from_secs(history_s)).is_some()
        };
        assert!(found(5, 3) && found(50, 1));
        assert!(!found(3, 3) && !found(0, 3), "within the history");
    }
}
