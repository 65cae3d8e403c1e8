//! Pauses between attempts to copy a tablet whose copies fail.

use std::collections::BTreeMap;
use std::time::Duration;

use engine::error::Error;
use engine::ids::TabletId;
use engine::time::Instant;

/// Pause after the first failure; each further one doubles it.
const PAUSE_MIN: Duration = Duration::from_secs(1);
/// Longest pause after failures that another source, or the same one a little later, may not have.
const PAUSE_MAX: Duration = Duration::from_secs(8);
/// Longest pause after failures for lack of space. It ends early when space returns.
const PAUSE_MAX_WITHOUT_SPACE: Duration = Duration::from_secs(300);

/// Tablets whose last copy failed.
#[derive(Debug, Default)]
pub(super) struct CopyRetries {
    failed: BTreeMap<TabletId, FailedCopies>,
}

#[derive(Debug)]
struct FailedCopies {
    count: u32,
    pause: Duration,
    not_before: Instant,
    cause: String,
}

impl CopyRetries {
    /// Returns the reason if the tablet may not be copied yet.
    pub(super) fn refuse(&self, tablet: TabletId, now: Instant) -> Option<String> {
        let failed = self.failed.get(&tablet).filter(|failed| now < failed.not_before)?;
        let FailedCopies { count, not_before, cause, .. } = failed;
        let left = not_before.since(now).as_millis();
        Some(format!("tablet {tablet}: {count} copies have failed, the last by {cause}; retry in {left} ms"))
    }

    /// Records a failed copy. Returns the pause before the next one.
    pub(super) fn failed(&mut self, tablet: TabletId, now: Instant, error: &Error) -> Duration {
        let longest = if error.is_no_space() { PAUSE_MAX_WITHOUT_SPACE } else { PAUSE_MAX };
        let before =
            self.failed.get(&tablet).map_or((0, Duration::ZERO), |failed| (failed.count, failed.pause));
        let pause = (before.1 * 2).clamp(PAUSE_MIN, longest);
        let (count, not_before, cause) = (before.0 + 1, now.after(pause), error.message.clone());
        self.failed.insert(tablet, FailedCopies { count, pause, not_before, cause });
        pause
    }

    pub(super) fn succeeded(&mut self, tablet: TabletId) {
        self.failed.remove(&tablet);
    }
}

#[cfg(test)]
mod tests {
    use engine::ids::Uuid;

    use super::*;

    const TABLET: TabletId = Uuid([1; 16]);

    #[test]
    fn pauses_double_and_end_with_success() {
        let mut retries = CopyRetries::default();
        let (start, passing) = (Instant(0), Error::not_ready("the source is gone"));
        assert_eq!(retries.refuse(TABLET, start), None);
        let pauses: Vec<u64> = (0..6).map(|_| retries.failed(TABLET, start, &passing).as_secs()).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 8, 8]);
        let why = retries.refuse(TABLET, start).expect("it must wait");
        assert!(
            why.ends_with("6 copies have failed, the last by the source is gone; retry in 8000 ms"),
            "{why}"
        );
        assert_eq!(retries.refuse(TABLET, start.after(Duration::from_secs(8))), None);
        retries.succeeded(TABLET);
        assert_eq!(retries.refuse(TABLET, start), None);
    }

    #[test]
    fn lack_of_space_is_waited_for_longer() {
        let mut retries = CopyRetries::default();
        let full = Error { errno: Some(28), ..Error::throttled("no space") };
        let last = (0..12).map(|_| retries.failed(TABLET, Instant(0), &full)).last();
        assert_eq!(last, Some(PAUSE_MAX_WITHOUT_SPACE));
    }
}
