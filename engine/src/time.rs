//! Readings of clocks, and the hybrid clock that orders operations across servers.
//!
//! Everything here is pure: a reading is an argument, never taken. Source: paper §4.2 and the HybridTime work
//! it names; the layout of a timestamp is Kudu's (microseconds since the epoch, then 12 bits of logical counter).

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// A monotonic reading: nanoseconds since some fixed moment of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Instant(pub u64);

impl Instant {
    pub fn after(self, wait: Duration) -> Instant {
        Instant(self.0.saturating_add(wait.as_nanos().min(u64::MAX as u128) as u64))
    }

    /// Time since `earlier`, zero if it is later.
    pub fn since(self, earlier: Instant) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// A wall-clock reading: the true time lies within `error_micros` of `micros` (since 1970, UTC).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WallTime {
    pub micros: u64,
    pub error_micros: u64,
}

/// One look at both clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Now {
    pub mono: Instant,
    pub wall: WallTime,
}

/// A hybrid timestamp: `(microseconds since 1970) << 12 | logical`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Timestamp(pub u64);

const LOGICAL_BITS: u32 = 12;

impl Timestamp {
    pub const MIN: Timestamp = Timestamp(0);
    /// The first timestamp an operation may carry.
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

    /// The next timestamp; the last one stays.
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

/// Gives timestamps that never repeat or go back, and moves past every timestamp it is shown.
///
/// Invariant: each result of [`HybridClock::now`] is greater than every earlier result and than every
/// timestamp given to [`HybridClock::update`].
#[derive(Debug, Clone, Default)]
pub struct HybridClock {
    next: Timestamp,
    max_ahead_micros: u64,
}

impl HybridClock {
    /// `max_ahead_micros`: how far ahead of the wall clock a propagated timestamp may be.
    pub fn new(max_ahead_micros: u64) -> HybridClock {
        HybridClock { next: Timestamp::INITIAL, max_ahead_micros }
    }

    /// A timestamp for an operation that happens now.
    pub fn now(&mut self, reading: WallTime) -> Timestamp {
        let now = self.peek(reading);
        self.next = now.next();
        now
    }

    /// What [`HybridClock::now`] would give, without taking it.
    pub fn peek(&self, reading: WallTime) -> Timestamp {
        self.next.max(Timestamp::from_micros(reading.micros))
    }

    /// Moves past a timestamp seen elsewhere; `Invalid` if it is too far in the future to be believed.
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

    /// Moves past a timestamp of this server's own history, however far ahead it is: what was given once must
    /// not be given again, even if the wall clock was set back meanwhile.
    pub fn pass(&mut self, seen: Timestamp) {
        self.next = self.next.max(seen.next());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wall(micros: u64) -> WallTime {
        WallTime { micros, error_micros: 0 }
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
    fn an_update_is_passed_or_refused() {
        let mut clock = HybridClock::new(10);
        clock.update(Timestamp::from_micros(15), wall(5)).expect("within the bound");
        assert!(clock.now(wall(5)) > Timestamp::from_micros(15));
        assert!(clock.update(Timestamp::from_micros(17), wall(5)).is_err());
    }
}
