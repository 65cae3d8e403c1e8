//! Counters of a tablet server.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of the whole server.
#[derive(Default)]
pub struct TserverMetrics {
    scanners_expired: AtomicU64,
}

impl TserverMetrics {
    pub fn count_expired(&self, scanners: usize) {
        self.scanners_expired.fetch_add(scanners as u64, Ordering::Relaxed);
    }

    pub fn scanners_expired(&self) -> u64 {
        self.scanners_expired.load(Ordering::Relaxed)
    }
}
