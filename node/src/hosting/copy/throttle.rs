//! Limit on bytes per second. Pure: the caller waits for the returned time.

use std::time::Duration;

use engine::time::Instant;

/// Leaky bucket: bytes may be taken as soon as the earlier ones have leaked out.
#[derive(Debug)]
pub(super) struct RateLimiter {
    /// Rate; 0: unlimited.
    bytes_per_second: u64,
    /// Time at which everything taken has leaked out.
    empty_at: Instant,
}

impl RateLimiter {
    /// Creates a limit of `bytes_per_second`; 0 is unlimited.
    pub(super) fn new(bytes_per_second: u64) -> RateLimiter {
        RateLimiter { bytes_per_second, empty_at: Instant(0) }
    }

    /// Takes `bytes` and returns the time to wait before using them. `None`, with nothing taken, if that is longer than
    /// `wait_max`.
    pub(super) fn take(&mut self, now: Instant, bytes: u64, wait_max: Duration) -> Option<Duration> {
        if self.bytes_per_second == 0 {
            return Some(Duration::ZERO);
        }
        let wait = self.empty_at.since(now);
        if wait > wait_max {
            return None;
        }
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(self.bytes_per_second);
        let time = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        self.empty_at = now.after(wait).after(time);
        Some(wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_leak_at_their_rate() {
        let second = Duration::from_secs(1);
        let mut throttle = RateLimiter::new(1000);
        let start = Instant(5);
        assert_eq!(throttle.take(start, 3000, second), Some(Duration::ZERO), "the first may go at once");
        assert_eq!(throttle.take(start, 10, second), None, "the next would wait for three seconds");
        let later = start.after(2 * second);
        assert_eq!(throttle.take(later, 500, second), Some(second));
        assert_eq!(throttle.take(later.after(2 * second), 500, second), Some(Duration::ZERO));
        assert_eq!(RateLimiter::new(0).take(start, u64::MAX, second), Some(Duration::ZERO));
    }
}
