//! Counters and times of a tablet server.

use std::sync::atomic::{AtomicU64, Ordering};

use nyala_common::metrics::Histogram;

/// Counters and times of the whole server.
#[derive(Default)]
pub struct TserverMetrics {
    scanners_expired: AtomicU64,
    pub create_tablet: Histogram,
    pub delete_tablet: Histogram,
    pub tablet_copy: Histogram,
    /// Time in which the next maintenance job is chosen.
    pub job_choice: Histogram,
}

impl TserverMetrics {
    pub fn count_expired(&self, scanners: usize) {
        self.scanners_expired.fetch_add(scanners as u64, Ordering::Relaxed);
    }

    pub fn scanners_expired(&self) -> u64 {
        self.scanners_expired.load(Ordering::Relaxed)
    }
}
