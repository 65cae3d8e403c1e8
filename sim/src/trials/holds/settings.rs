//! Sizes and times of a trial of holds, and its clocks.

use std::time::Duration;

use engine::ids::{TableId, Uuid};
use engine::time::{ClockReading, Instant, WallTime};
use node::master::HoldLimits;

pub(super) const TABLES: u64 = 2;
/// Seconds since 1970 at which a trial begins.
const BEGINNING: u64 = 1_000_000;
/// Age of history in seconds, longer than which readers hold it.
pub(super) const AGE: u64 = 20;
/// Limits of holds: seconds after which one ends, and the age of the oldest snapshot that can be held.
pub(super) const LEASE: u64 = 6;
pub(super) const MAX_AGE: u64 = 120;
pub(super) const LIMITS: HoldLimits =
    HoldLimits { lease: Duration::from_secs(LEASE), max_age: Duration::from_secs(MAX_AGE) };
/// Largest error of a clock in seconds.
pub(super) const SKEW: u64 = 2;

pub(super) fn table_of(number: u64) -> TableId {
    Uuid([number as u8 + 1; 16])
}

/// Returns a clock with this error after `now` seconds.
pub(super) fn clock(now: u64, error: i64) -> ClockReading {
    let micros = (BEGINNING + now).saturating_add_signed(error) * 1_000_000;
    ClockReading { mono: Instant(now * 1_000_000_000), wall: WallTime { micros, error_micros: 0 } }
}
