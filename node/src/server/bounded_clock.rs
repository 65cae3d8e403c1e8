//! The clock of a server whose machine's clock must stay within a bound.
//!
//! ```text
//!   machine's clock within its bound ──▶ its wall time; the offset from the monotonic clock is kept
//!   beyond ──▶ monotonic time + the kept offset, with the machine's error
//! ```
//!
//! A timestamp from a clock that stepped ahead cannot be withdrawn: other servers refuse it, and the server that
//! assigned it continues from there when its clock is right again. [`ClockTrust`](super::clock_watch::ClockTrust) ends
//! writes and leadership at its next check; until then time continues as before the step.
//!
//! Not here: a first reading that is beyond the bound. A server waits for a right clock before it starts.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use engine::time::{ClockReading, Instant, WallTime};
use nyala_common::env::{BoxFuture, Clock, ClockSync, Env};

use super::clock_watch::ClockRule;

/// Offset before the first reading within the bound.
const UNKNOWN: i64 = i64::MIN;
/// Change of the offset in microseconds that is worth a write to memory that all threads read.
const CHANGE_MIN_US: u64 = 1_000;

/// Returns `env` with a clock that keeps `rule`; without a rule it keeps the machine's clock.
pub fn bounded(env: Env, rule: Option<ClockRule>) -> Env {
    match rule {
        Some(rule) => Env { clock: Arc::new(BoundedClock::new(env.clock.clone(), rule)), ..env },
        None => env,
    }
}

/// A clock whose wall time continues by the monotonic clock while the machine's breaks the rule.
struct BoundedClock {
    machine: Arc<dyn Clock>,
    rule: ClockRule,
    /// Wall time minus monotonic time in microseconds, as of the last reading within the bound.
    offset_us: AtomicI64,
}

impl BoundedClock {
    fn new(machine: Arc<dyn Clock>, rule: ClockRule) -> BoundedClock {
        BoundedClock { machine, rule, offset_us: AtomicI64::new(UNKNOWN) }
    }

    /// Returns true if a reading with this offset keeps the rule. One that differs much from the last may be a step
    /// whose error is not in the reading yet.
    fn is_within(&self, wall: WallTime, offset: i64, kept: i64) -> bool {
        wall.error_micros <= self.rule.max_error_micros
            && (kept == UNKNOWN
                || offset.abs_diff(kept) <= self.rule.max_error_micros
                || self.rule.fault(self.machine.synchronisation()).is_none())
    }
}

impl Clock for BoundedClock {
    fn now(&self) -> ClockReading {
        let reading = self.machine.now();
        let (offset, kept) = (offset_us(reading), self.offset_us.load(Ordering::Relaxed));
        if self.is_within(reading.wall, offset, kept) {
            if kept == UNKNOWN || offset.abs_diff(kept) >= CHANGE_MIN_US {
                self.offset_us.store(offset, Ordering::Relaxed);
            }
            return reading;
        }
        if kept == UNKNOWN {
            return reading;
        }
        let micros = mono_us(reading).saturating_add(kept).try_into().unwrap_or(0);
        ClockReading { wall: WallTime { micros, ..reading.wall }, ..reading }
    }

    fn sleep_until(&self, until: Instant) -> BoxFuture<'static, ()> {
        self.machine.sleep_until(until)
    }

    fn synchronisation(&self) -> ClockSync {
        self.machine.synchronisation()
    }
}

fn mono_us(reading: ClockReading) -> i64 {
    i64::try_from(reading.mono.0 / 1_000).unwrap_or(i64::MAX)
}

fn offset_us(reading: ClockReading) -> i64 {
    i64::try_from(reading.wall.micros).unwrap_or(i64::MAX).saturating_sub(mono_us(reading))
}

#[cfg(test)]
mod tests {
    use engine::sync::Mutex;

    use super::*;

    /// A machine's clock as a test sets it.
    struct TestClock {
        reading: Mutex<ClockReading>,
        sync: Mutex<ClockSync>,
    }

    impl Clock for TestClock {
        fn now(&self) -> ClockReading {
            *self.reading.lock()
        }

        fn sleep_until(&self, _until: Instant) -> BoxFuture<'static, ()> {
            Box::pin(std::future::pending())
        }

        fn synchronisation(&self) -> ClockSync {
            *self.sync.lock()
        }
    }

    const RULE: ClockRule = ClockRule { max_error_micros: 10_000_000 };
    const RIGHT: ClockSync = ClockSync::Synchronised { error_micros: 100 };

    fn clock() -> (Arc<TestClock>, BoundedClock) {
        let machine =
            Arc::new(TestClock { reading: Mutex::new(ClockReading::default()), sync: Mutex::new(RIGHT) });
        (machine.clone(), BoundedClock::new(machine, RULE))
    }

    /// Sets the machine's clock and returns the wall time in seconds that the server reads.
    fn read(
        (machine, clock): &(Arc<TestClock>, BoundedClock),
        mono_s: u64,
        wall_s: u64,
        error_s: u64,
    ) -> u64 {
        let wall = WallTime { micros: wall_s * 1_000_000, error_micros: error_s * 1_000_000 };
        *machine.reading.lock() = ClockReading { mono: Instant(mono_s * 1_000_000_000), wall };
        clock.now().wall.micros / 1_000_000
    }

    #[test]
    fn time_continues_while_the_stated_error_is_beyond_the_bound() {
        let clock = clock();
        assert_eq!(read(&clock, 10, 1_010, 1), 1_010);
        assert_eq!(read(&clock, 11, 1_311, 600), 1_011, "a step ahead");
        assert_eq!(read(&clock, 12, 712, 600), 1_012, "a step back");
        assert_eq!(clock.1.now().wall.error_micros, 600_000_000, "the error is the machine's");
        assert_eq!(read(&clock, 13, 1_020, 1), 1_020, "right again");
    }

    #[test]
    fn a_step_whose_error_is_not_in_the_reading_yet_is_looked_up() {
        let clock = clock();
        read(&clock, 10, 1_010, 1);
        *clock.0.sync.lock() = ClockSync::Unsynchronised;
        assert_eq!(read(&clock, 11, 1_311, 1), 1_011);
        *clock.0.sync.lock() = RIGHT;
        assert_eq!(read(&clock, 12, 1_312, 1), 1_312, "a service has set the clock");
    }

    #[test]
    fn nothing_is_known_before_the_first_reading_within_the_bound() {
        let clock = clock();
        assert_eq!(read(&clock, 10, 5_000, 600), 5_000);
        assert_eq!(read(&clock, 11, 1_011, 1), 1_011);
    }
}
