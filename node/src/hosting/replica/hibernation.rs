//! Hibernation slot: heartbeats and replies for a hibernated replica are answered or queued without waking its loop.
//!
//! ```text
//!   turn ─▶ hibernate ─▶ heartbeat: answered, queued ─▶ … ─▶ other event or deadline ─▶ turn: queued events first
//! ```
//!
//! A server with thousands of idle tablets receives thousands of heartbeats per second, and waking a loop costs more
//! than processing the heartbeat.

use engine::sync::{Mutex, MutexGuard};
use std::sync::atomic::{AtomicUsize, Ordering};

use engine::raft::interface::{UpdateRequest, UpdateResponse};
use engine::raft::{Hibernation, RaftEvent};
use engine::time::ClockReading;

/// Ticket of a request whose reply has been sent already; the replica issues no such ticket.
pub(super) const ANSWERED: u64 = 0;

/// Hibernation state of one replica, shared by its loop and its callers.
#[derive(Default)]
pub(super) struct HibernationSlot {
    state: Mutex<State>,
    /// Number of readers that wait for safe time, which advances only in the loop.
    readers: AtomicUsize,
}

#[derive(Default)]
struct State {
    /// `None` while a turn runs, and while the replica must see every event.
    hibernation: Option<Hibernation>,
    queued: Vec<(ClockReading, RaftEvent)>,
}

/// A waiting reader. Until it is dropped, every event wakes the loop.
pub(super) struct WaitingReader<'a>(&'a HibernationSlot);

impl HibernationSlot {
    /// Stores the hibernation state before the loop sleeps; `None` means that every event wakes it.
    pub(super) fn begin(&self, hibernation: Option<Hibernation>) {
        self.lock().hibernation = hibernation;
    }

    /// Ends hibernation and moves the queued events to `queued`, in order. Nothing is answered here until the next
    /// `begin`.
    pub(super) fn end(&self, queued: &mut Vec<(ClockReading, RaftEvent)>) {
        let mut state = self.lock();
        state.hibernation = None;
        queued.append(&mut state.queued);
    }

    /// Returns the reply to `request` if the replica hibernates and the request changes nothing else.
    pub(super) fn answer(
        &self,
        request: &UpdateRequest,
        now: impl FnOnce() -> ClockReading,
    ) -> Option<UpdateResponse> {
        let mut state = self.lock();
        let reply =
            state.hibernation.as_ref().filter(|_| self.has_no_waiting_readers())?.heartbeat_reply(request)?;
        let mut request = request.clone();
        // The newest heartbeat includes all earlier ones, except that heartbeats may overtake each other.
        if let Some((_, RaftEvent::Update { request: before, .. })) = state.queued.pop() {
            request.safe_time = request.safe_time.max(before.safe_time);
        }
        state.queued.push((now(), RaftEvent::Update { ticket: ANSWERED, request }));
        Some(reply)
    }

    /// Queues a reply that says nothing new to a hibernated replica. Returns any other event.
    pub(super) fn queue_event(
        &self,
        event: RaftEvent,
        now: impl FnOnce() -> ClockReading,
    ) -> Option<RaftEvent> {
        let mut state = self.lock();
        match &state.hibernation {
            Some(hibernation) if self.has_no_waiting_readers() && hibernation.is_expected_reply(&event) => {
                state.queued.push((now(), event));
                None
            }
            _ => Some(event),
        }
    }

    /// Registers a reader: until it is dropped the loop sees every event, once it was woken.
    pub(super) fn reader(&self) -> WaitingReader<'_> {
        self.readers.fetch_add(1, Ordering::SeqCst);
        WaitingReader(self)
    }

    /// Returns true if the replica hibernates.
    pub(super) fn is_hibernating(&self) -> bool {
        self.lock().hibernation.is_some()
    }

    /// Returns the number of queued events.
    #[cfg(test)]
    pub(super) fn queued_event_count(&self) -> usize {
        self.lock().queued.len()
    }

    fn has_no_waiting_readers(&self) -> bool {
        self.readers.load(Ordering::SeqCst) == 0
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

impl Drop for WaitingReader<'_> {
    fn drop(&mut self) {
        self.0.readers.fetch_sub(1, Ordering::SeqCst);
    }
}
