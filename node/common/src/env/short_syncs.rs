//! Policy for syncs that are shorter than a change of threads.
//!
//! ```text
//!   syncs take < 500 µs, rarely two at once, none now, another worker is there ──▶ wait in place
//!   otherwise ──▶ release the worker thread, then wait
//! ```
//!
//! Releasing a worker thread wakes another one and ends in a second switch, which takes as long as the sync of a small
//! log group on a device with a protected write cache. A worker thread that waits in place runs no other task, so at
//! most one does, and none on a busy server. Of a device that stalls only the first sync is waited for in this way, and
//! it takes some sixty quick ones until one is again.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::runtime::{Handle, RuntimeFlavor};

/// Syncs of a process, as far as the policy needs them.
pub(super) struct ShortSyncs {
    /// Syncs that have begun and not ended.
    running: AtomicU64,
    /// Smoothed share of syncs that began while another one ran, in parts of [`WHOLE`].
    crowded: AtomicU64,
    /// Smoothed length of a sync; 0 before the first.
    mean_nanos: AtomicU64,
}

/// Longest mean of syncs that are waited for in place.
const SHORT: Duration = Duration::from_micros(500);
/// Share of the last sync in means is the inverse of this.
const SHARE: u64 = 8;
const WHOLE: u64 = 1 << 10;
/// Largest share of syncs beside others with which one is waited for in place.
const CROWDED_MAX: u64 = WHOLE / 8;

/// A sync that has begun. Dropping it ends the sync.
pub(super) struct RunningSync<'a> {
    syncs: &'a ShortSyncs,
    /// True if the sync is waited for without releasing this worker thread.
    pub(super) is_in_place: bool,
}

impl Drop for RunningSync<'_> {
    fn drop(&mut self) {
        self.syncs.running.fetch_sub(1, Ordering::Release);
    }
}

impl ShortSyncs {
    pub(super) const fn new() -> ShortSyncs {
        let (running, crowded, mean_nanos) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
        ShortSyncs { running, crowded, mean_nanos }
    }

    /// Begins a sync.
    pub(super) fn begin(&self) -> RunningSync<'_> {
        let is_alone = self.running.fetch_add(1, Ordering::Acquire) == 0;
        let crowded = smoothed(self.crowded.load(Ordering::Relaxed), if is_alone { 0 } else { WHOLE });
        self.crowded.store(crowded, Ordering::Relaxed);
        let mean = self.mean_nanos.load(Ordering::Relaxed);
        let is_short = mean > 0 && mean <= SHORT.as_nanos() as u64;
        let is_in_place = is_alone && is_short && crowded <= CROWDED_MAX && has_other_worker();
        RunningSync { syncs: self, is_in_place }
    }

    /// Records the length of a sync. Of two that end at once one may be lost, which changes the mean little.
    pub(super) fn record(&self, length: Duration) {
        let (last, mean) = (length.as_nanos() as u64, self.mean_nanos.load(Ordering::Relaxed));
        let next = if mean == 0 { last } else { smoothed(mean, last) };
        self.mean_nanos.store(next.max(1), Ordering::Relaxed);
    }
}

/// Returns the mean with one more value.
fn smoothed(mean: u64, last: u64) -> u64 {
    mean - mean / SHARE + last / SHARE
}

/// Returns true on a worker thread of a runtime that has more of them.
fn has_other_worker() -> bool {
    let Ok(runtime) = Handle::try_current() else { return false };
    runtime.runtime_flavor() == RuntimeFlavor::MultiThread && runtime.metrics().num_workers() > 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_in_place(syncs: &ShortSyncs) -> bool {
        syncs.begin().is_in_place
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_sync_is_waited_for_in_place_while_syncs_are_short() {
        let syncs = ShortSyncs::new();
        assert!(!is_in_place(&syncs), "no sync has been measured");
        syncs.record(SHORT);
        assert!(is_in_place(&syncs));
        // One sync that takes longer does not count, a stall does for a while.
        syncs.record(SHORT * 2);
        syncs.record(Duration::ZERO);
        assert!(is_in_place(&syncs));
        syncs.record(Duration::from_secs(10));
        let releases = |_: &usize| {
            syncs.record(SHORT / 10);
            !is_in_place(&syncs)
        };
        assert_eq!((1..1000).take_while(releases).count(), 59);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn none_is_while_others_run_or_often_do() {
        let syncs = ShortSyncs::new();
        syncs.record(SHORT);
        let first = syncs.begin();
        assert!(first.is_in_place && !is_in_place(&syncs));
        assert!(!is_in_place(&syncs));
        drop(first);
        assert!(!is_in_place(&syncs), "two of the last three had company");
        assert!((0..10).any(|_| is_in_place(&syncs)), "it is forgotten");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn the_only_worker_thread_is_released() {
        let syncs = ShortSyncs::new();
        syncs.record(Duration::from_nanos(1));
        assert!(!is_in_place(&syncs));
    }
}
