//! The clock that time servers set: the local monotonic clock plus an offset that a majority of them agrees on.

use std::sync::Arc;

use engine::sync::Mutex;
use engine::time::{ClockReading, Instant, WallTime};
use nyala_common::env::{BoxFuture, Clock, ClockSync};

use super::agreement::TimeInterval;

/// Growth of the error since the last agreement, in parts per million: more than any quartz drifts.
pub(super) const DRIFT_PPM: u64 = 500;

/// The offset of true time from the monotonic clock, at the last agreement.
#[derive(Debug, Clone, Copy)]
struct Agreed {
    at: Instant,
    offset_us: i128,
    error_us: u64,
}

/// A clock that is unsynchronised until the servers agree. Between agreements its error grows.
pub(super) struct NtpClock {
    machine: Arc<dyn Clock>,
    agreed: Mutex<Option<Agreed>>,
}

impl NtpClock {
    pub(super) fn new(machine: Arc<dyn Clock>) -> NtpClock {
        NtpClock { machine, agreed: Mutex::new(None) }
    }

    /// Sets the offset to the middle of an agreed interval.
    pub(super) fn set(&self, at: Instant, interval: TimeInterval) {
        let error_us = u64::try_from((interval.high - interval.low + 1) / 2).unwrap_or(u64::MAX);
        let offset_us = interval.low + (interval.high - interval.low) / 2;
        *self.agreed.lock() = Some(Agreed { at, offset_us, error_us });
    }

    fn wall(&self, mono: Instant) -> Option<WallTime> {
        let Agreed { at, offset_us, error_us } = (*self.agreed.lock())?;
        let micros = u64::try_from(offset_us + i128::from(mono.0 / 1_000)).unwrap_or(0);
        Some(WallTime { micros, error_micros: error_us.saturating_add(drift_us(at, mono)) })
    }
}

/// Returns the largest change of an offset between two instants, in microseconds.
pub(super) fn drift_us(from: Instant, to: Instant) -> u64 {
    let elapsed = u64::try_from(to.since(from).as_micros()).unwrap_or(u64::MAX);
    elapsed.saturating_mul(DRIFT_PPM) / 1_000_000 + 1
}

impl Clock for NtpClock {
    fn now(&self) -> ClockReading {
        let reading = self.machine.now();
        let wall = self.wall(reading.mono);
        ClockReading { wall: wall.unwrap_or(reading.wall), ..reading }
    }

    fn sleep_until(&self, until: Instant) -> BoxFuture<'static, ()> {
        self.machine.sleep_until(until)
    }

    fn synchronisation(&self) -> ClockSync {
        match self.wall(self.machine.now().mono) {
            Some(wall) => ClockSync::Synchronised { error_micros: wall.error_micros },
            None => ClockSync::Unsynchronised,
        }
    }
}
