//! One task as its wakers and its handle see it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Wake;

use nyala_common::env::TaskHandle;

use crate::net::rules::HostId;

/// The place of a task's future in the executor.
pub(super) type Slot = u32;

/// The queue that a task enters when it is woken.
pub(super) trait WakeQueue: Send + Sync {
    fn wake(&self, task: &Task);
}

/// A task without its future.
pub(super) struct Task {
    queue: Arc<dyn WakeQueue>,
    pub(super) slot: Slot,
    /// Number of the spawn among all, which no other task of the executor has.
    pub(super) number: u64,
    pub(super) host: HostId,
    /// Its name in keys.
    pub(super) key: u64,
    /// Number of its wakes so far.
    wakes: AtomicU64,
    /// True from its wake until its poll begins, and after its end.
    is_queued: AtomicBool,
    is_aborted: AtomicBool,
    is_finished: AtomicBool,
}

impl Task {
    pub(super) fn new(queue: Arc<dyn WakeQueue>, slot: Slot, number: u64, host: HostId, key: u64) -> Task {
        Task {
            queue,
            slot,
            number,
            host,
            key,
            wakes: AtomicU64::new(0),
            is_queued: AtomicBool::new(false),
            is_aborted: AtomicBool::new(false),
            is_finished: AtomicBool::new(false),
        }
    }

    /// Returns the number of wakes before this one; `None` if the task is ready already, or has ended.
    pub(super) fn begin_wake(&self) -> Option<u64> {
        // Nearly half of all wakes are of ready tasks.
        if self.is_queued.load(Ordering::Relaxed) || self.is_queued.swap(true, Ordering::AcqRel) {
            return None;
        }
        Some(self.wakes.fetch_add(1, Ordering::Relaxed))
    }

    /// Makes the task one that can be woken: its poll begins.
    pub(super) fn begin_poll(&self) {
        self.is_queued.store(false, Ordering::Release);
    }

    /// Makes wakes do nothing from now on.
    pub(super) fn end(&self) {
        self.is_queued.store(true, Ordering::Release);
        self.is_finished.store(true, Ordering::Release);
    }

    pub(super) fn is_aborted(&self) -> bool {
        self.is_aborted.load(Ordering::Acquire)
    }
}

impl Wake for Task {
    fn wake(self: Arc<Task>) {
        self.queue.wake(&self);
    }

    fn wake_by_ref(self: &Arc<Task>) {
        self.queue.wake(self);
    }
}

/// The handle of a spawned task; dropping it lets the task run on.
pub(super) struct SpawnedTask(pub(super) Arc<Task>);

impl TaskHandle for SpawnedTask {
    /// The executor drops the future when the task would run next.
    fn abort(&self) {
        self.0.is_aborted.store(true, Ordering::Release);
        self.0.queue.wake(&self.0);
    }

    fn is_finished(&self) -> bool {
        self.0.is_finished.load(Ordering::Acquire)
    }
}

/// The handle of a task that a host without a process spawned.
pub(super) struct NeverRun;

impl TaskHandle for NeverRun {
    fn abort(&self) {}

    fn is_finished(&self) -> bool {
        true
    }
}
