//! Clock readings, and the hybrid clock that orders operations across servers.
//!
//! Everything here is pure: a clock reading is an argument. Source: the Kudu paper, section 4.2, and the HybridTime
//! work it cites. The layout of a timestamp is Kudu's: microseconds since the epoch, then 12 bits of logical counter.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// A monotonic clock reading: nanoseconds since a fixed point in the process's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Instant(pub u64);

impl Instant {
    pub fn after(self, wait: Duration) -> Instant {
        Instant(self.0.saturating_add(wait.as_nanos().min(u64::MAX as u128) as u64))
    }

    /// Returns the first instant at or after this one that is a multiple of `grid`.
    pub fn round_up(self, grid: Duration) -> Instant {
        let grid = grid.as_nanos().clamp(1, u64::MAX as u128) as u64;
        Instant(self.0.checked_next_multiple_of(grid).unwrap_or(u64::MAX))
    }

    /// Returns the last instant at or before this one that is a multiple of `grid`.
    pub fn round_down(self, grid: Duration) -> Instant {
        let grid = grid.as_nanos().clamp(1, u64::MAX as u128) as u64;
        Instant(self.0 - self.0 % grid)
    }

    /// Returns the time since `earlier`; zero if `earlier` is later.
    pub fn since(self, earlier: Instant) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// A wall-clock reading in microseconds since 1970 (UTC): the true time is within `error_micros` of `micros`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WallTime {
    pub micros: u64,
    pub error_micros: u64,
}

/// A reading of both clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ClockReading {
    pub mono: Instant,
    pub wall: WallTime,
}

/// A hybrid timestamp: `(microseconds since 1970) << 12 | logical`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Timestamp(pub u64);

const LOGICAL_BITS: u32 = 12;

impl Timestamp {
    pub const MIN: Timestamp = Timestamp(0);
    /// The first timestamp that an operation may have.
    pub const INITIAL: Timestamp = Timestamp(1);
    pub const MAX: Timestamp = Timestamp(u64::MAX);

    pub fn from_micros(micros: u64) -> Timestamp {
        Timestamp(micros << LOGICAL_BITS)
    }

    pub fn micros(self) -> u64 {
        self.0 >> LOGICAL_BITS
    }

    pub fn logical(self) -> u64 {
        self.0 & ((1 << LOGICAL_BITS) - 1)
    }

    /// Returns the next timestamp; the highest one is its own successor.
    pub fn next(self) -> Timestamp {
        Timestamp(self.0.saturating_add(1))
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.micros(), self.logical())
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// A clock whose timestamps never repeat or go back, and exceed every timestamp it is updated with.
///
/// Invariant: each result of [`HybridClock::now`] is greater than every earlier result and than every timestamp passed
/// to [`HybridClock::update`].
#[derive(Debug, Clone, Default)]
pub struct HybridClock {
    next: Timestamp,
    max_ahead_micros: u64,
}

impl HybridClock {
    /// Creates a clock. `max_ahead_micros` is how far ahead of the wall clock a propagated timestamp may be.
    pub fn new(max_ahead_micros: u64) -> HybridClock {
        HybridClock { next: Timestamp::INITIAL, max_ahead_micros }
    }

    /// Returns a timestamp for an operation that begins now.
    pub fn now(&mut self, reading: WallTime) -> Timestamp {
        let now = self.peek(reading);
        self.next = now.next();
        now
    }

    /// Returns the result that [`HybridClock::now`] would have, without advancing the clock.
    pub fn peek(&self, reading: WallTime) -> Timestamp {
        self.next.max(Timestamp::from_micros(reading.micros))
    }

    /// Advances the clock past a timestamp of another server; `Invalid` if it is too far in the future.
    pub fn update(&mut self, seen: Timestamp, reading: WallTime) -> Result<()> {
        let limit = reading.micros.saturating_add(self.max_ahead_micros);
        if seen.micros() > limit {
            let ahead = seen.micros() - reading.micros;
            return Err(Error::invalid(format!(
                "timestamp {seen} is {ahead} us ahead of this server's clock, more than the {} us allowed; \
                 check the clocks of the client and of the servers",
                self.max_ahead_micros
            )));
        }
        self.pass(seen);
        Ok(())
    }

    /// Advances the clock past a timestamp of this server's own history, however far ahead it is. A timestamp must not
    /// be assigned twice, even if the wall clock was set back in between.
    pub fn pass(&mut self, seen: Timestamp) {
        self.next = self.next.max(seen.next());
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn wall(micros: u64) -> WallTime {
        WallTime { micros, error_micros: 0 }
    }

    #[test]
    fn instants_round_to_a_grid() {
        let up = |nanos, grid| Instant(nanos).round_up(Duration::from_nanos(grid)).0;
        assert_eq!([up(0, 25), up(1, 25), up(25, 25), up(26, 25), up(7, 0)], [0, 25, 25, 50, 7]);
        assert_eq!(up(u64::MAX - 1, 1 << 40), u64::MAX);
    }

    #[test]
    fn layout_is_kudus() {
        assert_eq!(Timestamp::from_micros(1_600_000_000_000_000).0 + 5, 6_553_600_000_000_000_005);
    }

    #[test]
    fn a_stopped_clock_counts_logically() {
        let mut clock = HybridClock::new(10);
        let first = clock.now(wall(7));
        let second = clock.now(wall(7));
        assert_eq!((first.micros(), first.logical(), second.logical()), (7, 0, 1));
        assert!(clock.now(wall(6)) > second, "a clock that goes back must not repeat");
    }

    #[test]
    fn an_update_advances_the_clock_or_is_rejected() {
        let mut clock = HybridClock::new(10);
        clock.update(Timestamp::from_micros(15), wall(5)).expect("within the bound");
        assert!(clock.now(wall(5)) > Timestamp::from_micros(15));
        assert!(clock.update(Timestamp::from_micros(17), wall(5)).is_err());
    }

    #[test]
    fn the_highest_timestamp_is_its_own_successor() {
        assert_eq!(Timestamp::MAX.next(), Timestamp::MAX);
        assert_eq!(Timestamp::MIN.next(), Timestamp::INITIAL);
        let mut clock = HybridClock::new(0);
        clock.pass(Timestamp::MAX);
        assert_eq!(clock.now(wall(7)), Timestamp::MAX);
    }

    /// An operation on a clock; its wall-clock reading may go back.
    #[derive(Debug, Clone)]
    enum Step {
        Now(u64),
        Update(u64, u64),
        Pass(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        // Readings are close to each other, so that the logical part matters; timestamps are around them.
        let (reading, seen) = (1_000u64..1_050, 990u64 << LOGICAL_BITS..1_100 << LOGICAL_BITS);
        prop_oneof![
            3 => reading.clone().prop_map(Step::Now),
            2 => (seen.clone(), reading).prop_map(|(seen, reading)| Step::Update(seen, reading)),
            1 => seen.prop_map(Step::Pass),
        ]
    }

    proptest! {
        #[test]
        fn parts_make_the_whole(micros in 0u64..(1 << 52) - 1, logical in 0u64..1 << LOGICAL_BITS) {
            let ts = Timestamp(Timestamp::from_micros(micros).0 + logical);
            prop_assert_eq!((ts.micros(), ts.logical()), (micros, logical));
            prop_assert!(ts < ts.next() && ts < Timestamp::from_micros(micros + 1));
            prop_assert_eq!(ts.to_string(), format!("{micros}.{logical}"));
        }

        #[test]
        fn a_clock_exceeds_all_its_results_and_updates(steps in prop::collection::vec(step(), 1..40)) {
            const AHEAD: u64 = 20;
            let (mut clock, mut highest) = (HybridClock::new(AHEAD), Timestamp::MIN);
            for step in steps {
                match step {
                    Step::Now(reading) => {
                        let expected = highest.next().max(Timestamp::from_micros(reading));
                        prop_assert_eq!(clock.peek(wall(reading)), expected);
                        prop_assert_eq!(clock.now(wall(reading)), expected);
                        highest = expected;
                    }
                    Step::Update(seen, reading) => {
                        let seen = Timestamp(seen);
                        let accepted = seen.micros() <= reading + AHEAD;
                        prop_assert_eq!(clock.update(seen, wall(reading)).is_ok(), accepted);
                        if accepted {
                            highest = highest.max(seen);
                        }
                    }
                    Step::Pass(seen) => {
                        clock.pass(Timestamp(seen));
                        highest = highest.max(Timestamp(seen));
                    }
                }
            }
        }
    }
}
