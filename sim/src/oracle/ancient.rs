//! What servers no longer remember is refused, not made up: a snapshot older than the history that they keep.

use std::time::Duration;

use engine::time::Timestamp;

use super::Finding;
use crate::history::{Scan, Stamp};

const NAME: &str = "ancient history";

/// Clocks that nothing is wrong with are apart by less than this.
const CLOCKS_APART: Duration = Duration::from_secs(1);

/// A scan that named the moment `at` was answered; its client's clock showed `begun_micros` when it began. `history`:
/// how long servers remember.
pub fn check(scan: &Scan, at: Stamp, begun_micros: u64, history: Duration) -> Option<Finding> {
    let kept = (history + CLOCKS_APART).as_micros() as u64;
    let age = begun_micros.saturating_sub(Timestamp(at).micros());
    (age > kept).then(|| {
        let message =
            format!("{scan:?} was answered {age} us after its snapshot, of which servers keep {history:?}");
        Finding::new(NAME, message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Mode;
    use crate::view::WHOLE;

    #[test]
    fn a_snapshot_that_should_be_forgotten_is_noticed() {
        const SECOND: u64 = 1_000_000;
        let keys = (0, 9);
        let scan =
            Scan { table: 0, keys, mode: Mode::Snapshot, diff_from: None, ordered: false, view: WHOLE };
        let found = |age_s: u64, history_s: u64| {
            let at = Timestamp::from_micros(100 * SECOND).0;
            check(&scan, at, (100 + age_s) * SECOND, Duration::from_secs(history_s)).is_some()
        };
        assert!(found(5, 3) && found(50, 1));
        assert!(!found(3, 3) && !found(0, 3), "they are kept");
    }
}
