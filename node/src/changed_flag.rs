//! Values that follow a flag once it is changed at run time.
//!
//! *Not here:* the flags (`server/flags`), which this does not know: it reads the number behind one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A flag that takes effect only once it is changed. Until then the server's configuration has the more exact value, in
/// a smaller unit.
#[derive(Debug, Clone)]
pub struct ChangedFlag {
    at_start: u64,
    now: Arc<AtomicU64>,
}

impl ChangedFlag {
    /// Follows the number behind a flag from its present value on.
    pub fn new(now: Arc<AtomicU64>) -> ChangedFlag {
        ChangedFlag { at_start: now.load(Ordering::Relaxed), now }
    }

    /// Returns the value, if it differs from the one at the start.
    pub fn get(&self) -> Option<u64> {
        Some(self.now.load(Ordering::Relaxed)).filter(|now| *now != self.at_start)
    }
}

/// A time that a flag in seconds changes at run time.
#[derive(Debug, Clone)]
pub struct LiveSeconds {
    at_start: Duration,
    flag: ChangedFlag,
}

impl LiveSeconds {
    /// Returns `at_start` until the flag with the number `now` is changed.
    pub fn new(at_start: Duration, now: Arc<AtomicU64>) -> LiveSeconds {
        LiveSeconds { at_start, flag: ChangedFlag::new(now) }
    }

    pub fn get(&self) -> Duration {
        self.flag.get().map_or(self.at_start, Duration::from_secs)
    }
}
