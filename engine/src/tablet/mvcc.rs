//! Which operations a reader may see.
//!
//! ```text
//!   applied          in flight        not begun
//!   ... 7  8  9  │  12  15  16  │  ?  ?  ?
//!                │ latest() = 10: everything applied, nothing else
//! ```
//!
//! A tablet's operations begin and are applied in one order, the order of their timestamps. So one number says
//! what is applied, and the oldest operation in flight bounds what is known to be complete.
//!
//! Spec: SafeTime.tla Begin, Apply, Serve.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard};

use super::rowset::Snapshot;
use crate::time::Timestamp;

/// The timestamps of one tablet's operations.
#[derive(Debug, Default)]
pub struct Mvcc {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Ascending.
    in_flight: VecDeque<Timestamp>,
    last_applied: Timestamp,
}

impl Mvcc {
    /// A tablet whose operations up to `last_applied` are applied.
    pub fn new(last_applied: Timestamp) -> Mvcc {
        Mvcc { state: Mutex::new(State { in_flight: VecDeque::new(), last_applied }) }
    }

    /// Gives an operation its timestamp and registers it as in flight, in one step: `assign` runs under the
    /// lock, so nobody who asks later can miss a timestamp taken earlier. Spec: SafeTime.tla Begin.
    ///
    /// Panics if `assign` goes back: the clock it reads is broken, and so would be every snapshot.
    pub fn begin(&self, assign: &mut dyn FnMut() -> Timestamp) -> Timestamp {
        let mut state = self.lock();
        let ts = assign();
        let newest = state.in_flight.back().copied().unwrap_or(state.last_applied);
        assert!(ts > newest, "timestamp {ts} was assigned after {newest}");
        state.in_flight.push_back(ts);
        ts
    }

    /// The oldest operation in flight, `ts`, was applied: readers may see it. Spec: SafeTime.tla Apply.
    pub fn applied(&self, ts: Timestamp) {
        let mut state = self.lock();
        let first = state.in_flight.pop_front();
        assert_eq!(first, Some(ts), "operations are applied in the order of their timestamps");
        state.last_applied = ts;
    }

    /// An operation in flight will not happen.
    pub fn aborted(&self, ts: Timestamp) {
        self.lock().in_flight.retain(|at| *at != ts);
    }

    /// After a restart: everything up to `last_applied` is applied, nothing is in flight.
    pub fn restore(&self, last_applied: Timestamp) {
        *self.lock() = State { in_flight: VecDeque::new(), last_applied };
    }

    /// A snapshot of everything applied so far.
    pub fn latest(&self) -> Snapshot {
        Snapshot::including(self.lock().last_applied)
    }

    /// The newest operation applied.
    pub fn last_applied(&self) -> Timestamp {
        self.lock().last_applied
    }

    /// Whether every operation that began with a timestamp below `before` is applied. That no more of them
    /// begin is for the caller to ensure, by moving the clock past `before` first. Spec: SafeTime.tla Serve.
    pub fn all_applied_before(&self, before: Timestamp) -> bool {
        self.earliest_in_flight().is_none_or(|first| first >= before)
    }

    pub fn earliest_in_flight(&self) -> Option<Timestamp> {
        self.lock().in_flight.front().copied()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder of this lock panics while the state is halfway")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_see_what_is_applied_in_order() {
        let mvcc = Mvcc::new(Timestamp(4));
        let mut clock = 10;
        let mut assign = || {
            clock += 5;
            Timestamp(clock)
        };
        assert_eq!(mvcc.latest().before, Timestamp(5));
        let (a, b) = (mvcc.begin(&mut assign), mvcc.begin(&mut assign));
        assert_eq!((a, b), (Timestamp(15), Timestamp(20)));
        assert!(mvcc.all_applied_before(Timestamp(15)));
        assert!(!mvcc.all_applied_before(Timestamp(16)));
        mvcc.applied(a);
        assert_eq!(mvcc.latest().before, Timestamp(16));
        assert!(mvcc.all_applied_before(Timestamp(20)));
        mvcc.aborted(b);
        assert!(mvcc.all_applied_before(Timestamp::MAX));
        assert_eq!(mvcc.last_applied(), a);
    }

    #[test]
    #[should_panic(expected = "was assigned after")]
    fn a_clock_that_goes_back_is_refused() {
        let mvcc = Mvcc::new(Timestamp(9));
        mvcc.begin(&mut || Timestamp(9));
    }
}
