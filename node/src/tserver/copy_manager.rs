//! The tablet copies onto this server that run, and counts of those that ended.

use engine::sync::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use engine::ids::TabletId;

use super::copy_retries::CopyRetries;
use crate::hosting::copy::ReservedSpace;
use nyala_common::env::TaskHandle;

/// Running tablet copies onto one server.
#[derive(Default)]
pub struct CopyManager {
    running: Mutex<BTreeMap<TabletId, Box<dyn TaskHandle>>>,
    retries: Mutex<CopyRetries>,
    /// Space that the running copies have reserved.
    pub(super) space: ReservedSpace,
    pub(super) bytes_received: AtomicU64,
    pub(super) finished: AtomicU64,
    pub(super) failed: AtomicU64,
}

impl CopyManager {
    /// Returns the tasks that have not finished.
    pub(super) fn running(&self) -> MutexGuard<'_, BTreeMap<TabletId, Box<dyn TaskHandle>>> {
        let mut running = self.running.lock();
        running.retain(|_, task| !task.is_finished());
        running
    }

    pub(super) fn retries(&self) -> MutexGuard<'_, CopyRetries> {
        self.retries.lock()
    }

    /// Allows a copy of every tablet at once: what made them fail is gone.
    pub fn forget_failures(&self) {
        *self.retries() = CopyRetries::default();
    }

    /// Returns the number of running copies.
    pub fn count(&self) -> usize {
        self.running().len()
    }

    pub fn bytes_received(&self) -> u64 {
        self.bytes_received.load(Ordering::Relaxed)
    }

    /// Returns the numbers of copies that succeeded and that failed.
    pub fn ended(&self) -> (u64, u64) {
        (self.finished.load(Ordering::Relaxed), self.failed.load(Ordering::Relaxed))
    }

    /// Takes all tasks, so that they end with the server.
    pub fn take(&self) -> Vec<Box<dyn TaskHandle>> {
        std::mem::take(&mut *self.running()).into_values().collect()
    }
}
