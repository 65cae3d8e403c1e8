//! State of a negotiated connection that its calls share with its reader.

use engine::sync::{Mutex, MutexGuard};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Notify;

use super::send_queue::{FrameSender, FrameWrite, SendQueue};
use crate::env::Env;

/// Calls of a server without a reply, on all connections.
#[derive(Default)]
pub(super) struct CallsInFlight {
    pub(super) count: AtomicU64,
    pub(super) all_replied: Notify,
}

/// A negotiated connection.
pub(super) struct ServerConnection {
    env: Env,
    calls: Arc<CallsInFlight>,
    pub(super) send_queue: SendQueue,
    pub(super) in_flight: Mutex<BTreeSet<i32>>,
    /// Time of the last queued reply, in nanoseconds of the monotonic clock.
    pub(super) last_reply: AtomicU64,
}

impl ServerConnection {
    pub(super) fn new(env: Env, calls: Arc<CallsInFlight>) -> ServerConnection {
        ServerConnection {
            env,
            calls,
            send_queue: SendQueue::default(),
            in_flight: Mutex::default(),
            last_reply: AtomicU64::new(0),
        }
    }

    /// Queues the reply to a call. The client may reuse the call's id from now on.
    pub(super) fn reply(&self, call_id: i32, fill: impl FnOnce(&mut FrameWrite<'_>)) {
        self.last_reply.store(self.env.now().mono.0, Ordering::Relaxed);
        let is_only_call = {
            let mut in_flight = self.in_flight();
            in_flight.remove(&call_id);
            in_flight.is_empty()
        };
        self.send_queue.put(FrameSender::of(is_only_call), fill);
        if self.calls.count.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.calls.all_replied.notify_waiters();
        }
    }

    /// Rejects further replies. The connection closes when the queued replies are sent.
    pub(super) fn finish(&self) {
        self.send_queue.close();
    }

    /// Registers a call as in flight. Returns false if its id is in flight already.
    pub(super) fn begin(&self, call_id: i32) -> bool {
        let new = self.in_flight().insert(call_id);
        if new {
            self.calls.count.fetch_add(1, Ordering::AcqRel);
        }
        new
    }

    pub(super) fn in_flight(&self) -> MutexGuard<'_, BTreeSet<i32>> {
        self.in_flight.lock()
    }
}
