//! Policy for syncs that are shorter than a change of threads.
//!
//! ```text
//!   syncs take < 500 µs, another worker is there, none waits so ──▶ wait in place
//!   otherwise ──▶ release the worker thread, then wait
//! ```
//!
//! Releasing a worker thread wakes another one and ends in a second switch, which takes as long as the sync of a small
//! log group on a device with a protected write cache. A worker thread that waits in place runs no other task, so at
//! most one does: of a device that stalls only the first sync is waited for in this way, and it takes some sixty quick
//! ones until one is again.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::runtime::{Handle, RuntimeFlavor};

/// Syncs of a process, as far as the policy needs them.
pub(super) struct ShortSyncs {
    /// Smoothed length of a sync; 0 before the first.
    mean_nanos: AtomicU64,
    /// True while a worker thread waits in place.
    is_waiting: AtomicBool,
}

/// Longest mean of syncs that are waited for in place.
const SHORT: Duration = Duration::from_micros(500);
/// Share of the last sync in the mean.
const SHARE: u64 = 8;

/// Permission to wait in place. Dropping it lets others have it.
pub(super) struct InPlace<'a>(&'a ShortSyncs);

impl Drop for InPlace<'_> {
    fn drop(&mut self) {
        self.0.is_waiting.store(false, Ordering::Release);
    }
}

impl ShortSyncs {
    pub(super) const fn new() -> ShortSyncs {
        ShortSyncs { mean_nanos: AtomicU64::new(0), is_waiting: AtomicBool::new(false) }
    }

    /// Returns the permission to wait for a sync without releasing this worker thread.
    pub(super) fn try_in_place(&self) -> Option<InPlace<'_>> {
        let mean = self.mean_nanos.load(Ordering::Relaxed);
        let is_short = mean > 0 && mean <= SHORT.as_nanos() as u64;
        (is_short && has_other_worker() && !self.is_waiting.swap(true, Ordering::Acquire))
            .then_some(InPlace(self))
    }

    /// Records a sync that ended. Of two that end at once one may be lost, which changes the mean little.
    pub(super) fn record(&self, length: Duration) {
        let (last, mean) = (length.as_nanos() as u64, self.mean_nanos.load(Ordering::Relaxed));
        let next = if mean == 0 { last } else { mean - mean / SHARE + last / SHARE };
        self.mean_nanos.store(next.max(1), Ordering::Relaxed);
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
    async fn one_thread_waits_in_place_while_syncs_are_short() {
        let syncs = ShortSyncs::new();
        assert!(syncs.try_in_place().is_none(), "no sync has been measured");
        syncs.record(SHORT);
        let first = syncs.try_in_place();
        assert!(first.is_some() && syncs.try_in_place().is_none());
        drop(first);
        assert!(syncs.try_in_place().is_some());
        // One sync that takes longer does not count, a stall does for a while.
        syncs.record(SHORT * 2);
        syncs.record(Duration::ZERO);
        assert!(syncs.try_in_place().is_some());
        syncs.record(Duration::from_secs(10));
        let quick = |_: &usize| {
            syncs.record(SHORT / 10);
            syncs.try_in_place().is_none()
        };
        assert_eq!((1..1000).take_while(quick).count(), 59);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn the_only_worker_thread_is_released() {
        let syncs = ShortSyncs::new();
        syncs.record(Duration::ZERO);
        assert!(syncs.try_in_place().is_none());
    }
}
