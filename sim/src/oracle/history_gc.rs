//! History GC: a server rejects a snapshot older than its ancient history mark instead of serving wrong rows.

use std::time::Duration;

use engine::time::Timestamp;

use super::Violation;
use crate::history::{HybridStamp, ScanRequest};

const NAME: &str = "history GC";

/// Clocks without faults differ by less than this.
const CLOCKS_APART: Duration = Duration::from_secs(1);

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::ScanMode;
    use crate::projection::WHOLE;

    #[test]
    fn a_snapshot_older_than_the_history_is_reported() {
        const SECOND: u64 = 1_000_000;
        let keys = (0, 9);
        let scan = ScanRequest {
            table: 0,
            keys,
            mode: ScanMode::Snapshot,
            diff_from: None,
            ordered: false,
            view: WHOLE,
        };
        let found = |age_s: u64, history_s: u64| {
            let at = Timestamp::from_micros(100 * SECOND).0;
            check(&scan, at, (100 + age_s) * SECOND, Duration::from_secs(history_s)).is_some()
        };
        assert!(found(5, 3) && found(50, 1));
        assert!(!found(3, 3) && !found(0, 3), "within the history");
    }
}
