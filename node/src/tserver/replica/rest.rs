//! What comes for a replica at rest: answered or kept here, so that its loop sleeps on.
//!
//! ```text
//!   turn ─▶ rest ─▶ heartbeat: answered, kept ─▶ … ─▶ anything else, or a deadline ─▶ turn: takes what is kept, first
//! ```
//!
//! A server with thousands of idle tablets hears thousands of heartbeats a second, and waking a loop costs more than
//! what it then does.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};

use engine::raft::message::{UpdateRequest, UpdateResponse};
use engine::raft::{Event, Rest};
use engine::time::Now;

/// No replica gives out this ticket: the answer has left already.
pub const ANSWERED: u64 = 0;

/// The place beside a replica's loop where it rests.
#[derive(Default)]
pub struct Resting {
    state: Mutex<State>,
    /// How many wait for the safe time to pass a moment: it moves with the loop only.
    readers: AtomicUsize,
}

#[derive(Default)]
struct State {
    /// `None` while a turn runs, and if the replica has to see everything.
    rest: Option<Rest>,
    kept: Vec<(Now, Event)>,
}

/// A reader that waits; until it is dropped, the loop is woken for everything.
pub struct Reader<'a>(&'a Resting);

impl Resting {
    /// The loop goes to sleep.
    pub fn begin(&self, rest: Option<Rest>) {
        self.lock().rest = rest;
    }

    /// The loop was woken: moves to `kept` what came meanwhile, in its order. Nothing is answered here until it
    /// rests again.
    pub fn end(&self, kept: &mut Vec<(Now, Event)>) {
        let mut state = self.lock();
        state.rest = None;
        kept.append(&mut state.kept);
    }

    /// The replica's answer to `request`, if it is at rest and nothing else would come of it.
    pub fn answer(&self, request: &UpdateRequest, now: impl FnOnce() -> Now) -> Option<UpdateResponse> {
        let mut state = self.lock();
        let answer = state.rest.as_ref().filter(|_| self.is_unread())?.answer(request)?;
        let mut request = request.clone();
        // The newest says all that those before it said, but they may have overtaken each other.
        if let Some((_, Event::Update { request: before, .. })) = state.kept.pop() {
            request.safe_time = request.safe_time.max(before.safe_time);
        }
        state.kept.push((now(), Event::Update { ticket: ANSWERED, request }));
        Some(answer)
    }

    /// Keeps an answer that says nothing new to a replica at rest; gives back any other event.
    pub fn keep(&self, event: Event, now: impl FnOnce() -> Now) -> Option<Event> {
        let mut state = self.lock();
        match &state.rest {
            Some(rest) if self.is_unread() && rest.expects(&event) => {
                state.kept.push((now(), event));
                None
            }
            _ => Some(event),
        }
    }

    /// From here on until it is dropped the loop sees everything, once it was woken.
    pub fn reader(&self) -> Reader<'_> {
        self.readers.fetch_add(1, Ordering::SeqCst);
        Reader(self)
    }

    /// How much is kept.
    #[cfg(test)]
    pub fn kept(&self) -> usize {
        self.lock().kept.len()
    }

    fn is_unread(&self) -> bool {
        self.readers.load(Ordering::SeqCst) == 0
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nobody panics while holding it")
    }
}

impl Drop for Reader<'_> {
    fn drop(&mut self) {
        self.0.readers.fetch_sub(1, Ordering::SeqCst);
    }
}
