//! Results of one server's tracked calls, shared by its connections, its bootstraps and its replicas.

use std::ops::{Deref, DerefMut};

use engine::memory::TrackedBytes;
use engine::sync::{Mutex, MutexGuard};
use engine::time::Instant;

use super::responder::{OutgoingReply, Responder};
use super::result_tracker::{CachedReply, ResultTracker};
use super::{RequestIdPb, RpcConfig};
use crate::sidecars::Sidecars;

/// Results of one server's tracked calls.
pub struct TrackedResults {
    tracker: Mutex<ResultTracker<Responder>>,
    memory: TrackedBytes,
}

impl TrackedResults {
    /// Creates an empty tracker, whose memory is counted by `memory`.
    pub(super) fn new(config: &RpcConfig, memory: TrackedBytes) -> TrackedResults {
        let tracker = ResultTracker::new(config.remember_responses, config.remember_clients);
        TrackedResults { tracker: Mutex::new(tracker), memory }
    }

    /// Caches the reply of a request that took effect before this server started (found in a log). A retry then gets
    /// this reply.
    pub fn restore(&self, id: &RequestIdPb, body: Vec<u8>, now: Instant) {
        let reply = CachedReply { body: body.into(), sidecars: Sidecars::default() };
        let waiters = self.lock().restore(id, reply.clone(), now);
        for waiter in waiters {
            waiter.send(OutgoingReply::Ok(reply.clone()));
        }
    }

    /// Returns the approximate memory in bytes.
    pub fn bytes(&self) -> usize {
        self.lock().bytes()
    }

    pub(super) fn lock(&self) -> ResultsGuard<'_> {
        ResultsGuard { tracker: self.tracker.lock(), memory: &self.memory }
    }
}

/// Locked tracker. Its memory is counted before it is unlocked.
pub(super) struct ResultsGuard<'a> {
    tracker: MutexGuard<'a, ResultTracker<Responder>>,
    memory: &'a TrackedBytes,
}

impl Deref for ResultsGuard<'_> {
    type Target = ResultTracker<Responder>;

    fn deref(&self) -> &ResultTracker<Responder> {
        &self.tracker
    }
}

impl DerefMut for ResultsGuard<'_> {
    fn deref_mut(&mut self) -> &mut ResultTracker<Responder> {
        &mut self.tracker
    }
}

impl Drop for ResultsGuard<'_> {
    fn drop(&mut self) {
        self.memory.set(self.tracker.bytes() as u64, 0);
    }
}

#[cfg(test)]
mod tests {
    use engine::memory::MemTracker;

    use super::*;

    #[test]
    fn the_memory_of_replies_is_counted_until_they_are_dropped() {
        let root = MemTracker::root("server", None);
        let memory = TrackedBytes::new(&root.child("cached-replies"));
        let results = TrackedResults::new(&RpcConfig::default(), memory);
        let id = RequestIdPb { client_id: "c".to_string(), ..RequestIdPb::default() };
        results.restore(&id, vec![7; 1_000], Instant(0));
        assert!(root.bytes() > 1_000, "{} bytes", root.bytes());
        assert_eq!(root.bytes(), results.bytes() as u64);
        results.lock().expire(Instant(u64::MAX));
        assert_eq!(root.bytes(), 0);
    }
}
