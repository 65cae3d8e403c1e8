//! Policy for syncs that are shorter than a change of threads.
//!
//! ```text
//!   last sync took < 250 µs, another worker is there, none waits so ──▶ wait in place
//!   otherwise ──▶ release the worker thread, then wait
//! ```
//!
//! Releasing a worker thread wakes another one and ends in a second switch, which takes as long as the sync of a small
//! log group on a device with a protected write cache. A worker thread that waits in place runs no other task, so at
//! most one does: of a device that stalls only the first sync is waited for in this way.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::runtime::{Handle, RuntimeFlavor};

/// Syncs of a process, as far as the policy needs them.
pub(super) struct ShortSyncs {
    /// Length of the last sync that ended; `u64::MAX` before the first.
    last_micros: AtomicU64,
    /// True while a worker thread waits in place.
    is_waiting: AtomicBool,
}

/// Longest last sync after which the next one is waited for in place.
const SHORT: Duration = Duration::from_micros(250);

/// Permission to wait in place. Dropping it lets others have it.
pub(super) struct InPlace<'a>(&'a ShortSyncs);

impl Drop for InPlace<'_> {
    fn drop(&mut self) {
        self.0.is_waiting.store(false, Ordering::Release);
    }
}

impl ShortSyncs {
    pub(super) const fn new() -> ShortSyncs {
        ShortSyncs { last_micros: AtomicU64::new(u64::MAX), is_waiting: AtomicBool::new(false) }
    }

    /// Returns the permission to wait for a sync without releasing this worker thread.
    pub(super) fn try_in_place(&self) -> Option<InPlace<'_>> {
        let is_short = u128::from(self.last_micros.load(Ordering::Relaxed)) <= SHORT.as_micros();
        (is_short && has_other_worker() && !self.is_waiting.swap(true, Ordering::Acquire))
            .then_some(InPlace(self))
    }

    /// Records a sync that ended.
    pub(super) fn record(&self, length: Duration) {
        self.last_micros.store(length.as_micros() as u64, Ordering::Relaxed);
    }
}

/// Returns true on a worker thread of a runtime that has more of them.
fn has_other_worker() -> bool {
    let Ok(runtime) = Handle::try_current() else { return false };
    runtime.runtime_flavor() == RuntimeFlavor::MultiThread && runtime.metrics().num_workers() > 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn one_thread_waits_in_place_after_a_short_sync() {
        let syncs = ShortSyncs::new();
        assert!(syncs.try_in_place().is_none(), "no sync has been measured");
        syncs.record(SHORT);
        let first = syncs.try_in_place();
        assert!(first.is_some() && syncs.try_in_place().is_none());
        drop(first);
        assert!(syncs.try_in_place().is_some());
        syncs.record(SHORT + Duration::from_micros(1));
        assert!(syncs.try_in_place().is_none());
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn the_only_worker_thread_is_released() {
        let syncs = ShortSyncs::new();
        syncs.record(Duration::ZERO);
        assert!(syncs.try_in_place().is_none());
    }
}
