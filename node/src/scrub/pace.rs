//! Pauses of the scrubber between its reads.

use std::time::Duration;

/// Times the duration of a read for which the device is left to others after it: a device under load makes reads slow,
/// and thereby the scrubber.
const REST_FACTOR: u32 = 4;
/// Longest pause after one read.
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// Rule of the pauses.
pub(super) struct ScrubPace;

impl ScrubPace {
    /// Returns the pause after a read of `bytes` that took `took`.
    pub(super) fn pause(bytes: u64, bytes_per_second: u64, took: Duration) -> Duration {
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(bytes_per_second.max(1));
        let by_rate = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        by_rate.saturating_sub(took).max(took * REST_FACTOR).min(PAUSE_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_keep_the_rate_and_leave_a_slow_device_to_others() {
        let millis = Duration::from_millis;
        let pause = |bytes, took| ScrubPace::pause(bytes, 1000, took);
        assert_eq!(pause(100, millis(0)), millis(100));
        assert_eq!(pause(100, millis(10)), millis(90), "the read is part of the time");
        assert_eq!(pause(100, millis(50)), millis(200), "the device is slow");
        assert_eq!(pause(u64::MAX, millis(0)), PAUSE_MAX);
        assert_eq!(ScrubPace::pause(1, 0, millis(0)), millis(1000), "no division by zero");
    }
}
