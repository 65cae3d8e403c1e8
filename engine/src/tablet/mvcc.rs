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
//! That no *more* operations begin at or below a moment has to be known too, before a snapshot of it is served.
//! A replica that is alone assigns every timestamp itself, from its clock: whoever asks moves the clock past the
//! moment first. All others go by a *promise*: up to where no leader, present or future, will begin any more.
//!
//! Spec: SafeTime.tla Begin, Apply, Serve.

use std::collections::VecDeque;

use super::rowset::Snapshot;
use crate::ids::Term;
use crate::sync::{Mutex, MutexGuard};
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
    promise: Promise,
    leads: Option<Leads>,
}

/// What a leader says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leads {
    pub term: Term,
    /// Whether it has applied everything that leaders before it may have acknowledged (Raft §8).
    pub caught_up: bool,
}

/// What says that no more operations begin at or below a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Promise {
    /// This replica's own clock.
    #[default]
    Clock,
    /// A leader and its majority, up to this moment.
    Until(Timestamp),
}

impl Mvcc {
    /// A tablet whose operations up to `last_applied` are applied.
    pub fn new(last_applied: Timestamp) -> Mvcc {
        Mvcc { state: Mutex::new(State { last_applied, ..State::default() }) }
    }

    /// Gives an operation its timestamp and registers it as in flight, in one step: `assign` runs under the
    /// lock, so nobody who asks later can miss a timestamp taken earlier. If `assign` gives one that is not above
    /// all there were and above every promise, the next one above is taken. Spec: SafeTime.tla Begin.
    pub fn begin(&self, assign: &mut dyn FnMut() -> Timestamp) -> Timestamp {
        let mut state = self.lock();
        let ts = assign().max(state.newest().next());
        state.in_flight.push_back(ts);
        ts
    }

    /// Registers an operation that has its timestamp from elsewhere, a leader or the log. False, and nothing happens,
    /// if it is not above all there were: they do not come from one log.
    pub fn begin_at(&self, ts: Timestamp) -> bool {
        let mut state = self.lock();
        let newest = state.in_flight.back().copied().unwrap_or(state.last_applied);
        if ts > newest {
            state.in_flight.push_back(ts);
        }
        ts > newest
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
        *self.lock() = State { last_applied, ..State::default() };
    }

    /// Goes by this promise from now on. One that reaches less far than the one before changes nothing, unless
    /// the one before was the clock's; the clock's own promise replaces any. True if anything changed.
    pub fn promise(&self, promise: Promise) -> bool {
        let mut state = self.lock();
        let next = match (state.promise, promise) {
            (Promise::Until(old), Promise::Until(new)) => Promise::Until(old.max(new)),
            (_, promise) => promise,
        };
        std::mem::replace(&mut state.promise, next) != next
    }

    /// Whether this replica leads.
    pub fn set_leads(&self, leads: Option<Leads>) {
        self.lock().leads = leads;
    }

    /// The term that this replica leads in.
    pub fn leads_in(&self) -> Option<Term> {
        self.lock().leads.map(|leads| leads.term)
    }

    /// Whether [`Mvcc::latest`] of a leader shows everything that was ever acknowledged. Of others nobody expects it.
    pub fn is_caught_up(&self) -> bool {
        self.lock().leads.is_none_or(|leads| leads.caught_up)
    }

    /// A snapshot of everything applied so far.
    pub fn latest(&self) -> Snapshot {
        Snapshot::including(self.lock().last_applied)
    }

    /// The newest operation applied.
    pub fn last_applied(&self) -> Timestamp {
        self.lock().last_applied
    }

    /// The newest timestamp that was given to an operation or promised away: new ones must be above.
    pub fn newest(&self) -> Timestamp {
        self.lock().newest()
    }

    /// Whether every operation that has or will ever have a timestamp below `before` is applied. Where the clock
    /// is the promise, the caller has moved it past `before` first. Spec: SafeTime.tla Serve.
    pub fn all_applied_before(&self, before: Timestamp) -> bool {
        let state = self.lock();
        let promised = match state.promise {
            Promise::Clock => true,
            Promise::Until(until) => before <= until.max(state.last_applied).next(),
        };
        promised && state.in_flight.front().is_none_or(|first| *first >= before)
    }

    /// Everything at or below it is applied, and no more will come; `now` is a moment that the clock has passed.
    pub fn safe_time(&self, now: Timestamp) -> Timestamp {
        let state = self.lock();
        let promised = match state.promise {
            Promise::Clock => now,
            Promise::Until(until) => until.max(state.last_applied),
        };
        match state.in_flight.front() {
            Some(first) => promised.min(Timestamp(first.0.saturating_sub(1))),
            None => promised,
        }
    }

    pub fn earliest_in_flight(&self) -> Option<Timestamp> {
        self.lock().in_flight.front().copied()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder of this lock panics while the state is halfway")
    }
}

impl State {
    fn newest(&self) -> Timestamp {
        let begun = self.in_flight.back().copied().unwrap_or(self.last_applied);
        match self.promise {
            Promise::Clock => begun,
            Promise::Until(until) => begun.max(until),
        }
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
    fn promises_bound_what_is_served_and_what_is_assigned() {
        let mvcc = Mvcc::new(Timestamp(9));
        assert_eq!(mvcc.begin(&mut || Timestamp(3)), Timestamp(10), "a clock that lags is passed over");
        mvcc.applied(Timestamp(10));
        mvcc.promise(Promise::Until(Timestamp(5)));
        assert!(mvcc.all_applied_before(Timestamp(11)) && !mvcc.all_applied_before(Timestamp(12)));
        mvcc.promise(Promise::Until(Timestamp(20)));
        mvcc.promise(Promise::Until(Timestamp(15)));
        assert_eq!((mvcc.safe_time(Timestamp(99)), mvcc.newest()), (Timestamp(20), Timestamp(20)));
        assert!(mvcc.begin_at(Timestamp(18)) && !mvcc.begin_at(Timestamp(18)));
        assert_eq!(mvcc.safe_time(Timestamp(99)), Timestamp(17));
        assert!(mvcc.all_applied_before(Timestamp(18)) && !mvcc.all_applied_before(Timestamp(19)));
        assert_eq!(mvcc.begin(&mut || Timestamp(1)), Timestamp(21));
        mvcc.applied(Timestamp(18));
        assert_eq!(mvcc.earliest_in_flight(), Some(Timestamp(21)), "what was refused is not in flight");
    }

    #[test]
    fn a_promise_says_whether_it_changed_anything() {
        let mvcc = Mvcc::new(Timestamp(1));
        let until = |ts| mvcc.promise(Promise::Until(Timestamp(ts)));
        assert!(until(5) && !until(5) && !until(4) && until(6));
        assert!(mvcc.promise(Promise::Clock) && !mvcc.promise(Promise::Clock));
        assert!(until(2), "nothing is left of what was promised before the clock's turn");
        assert_eq!(mvcc.safe_time(Timestamp(99)), Timestamp(2));
    }

    #[test]
    fn operations_given_up_leave_the_others_in_flight() {
        let mvcc = Mvcc::new(Timestamp(1));
        assert!([5, 6, 7, 8].into_iter().all(|ts| mvcc.begin_at(Timestamp(ts))));
        mvcc.aborted(Timestamp(6));
        mvcc.aborted(Timestamp(8));
        assert_eq!((mvcc.earliest_in_flight(), mvcc.newest()), (Some(Timestamp(5)), Timestamp(7)));
        mvcc.applied(Timestamp(5));
        assert_eq!(mvcc.earliest_in_flight(), Some(Timestamp(7)));
        mvcc.set_leads(Some(Leads { term: 2, caught_up: false }));
        assert!(!mvcc.is_caught_up());
        mvcc.restore(Timestamp(3));
        assert_eq!((mvcc.earliest_in_flight(), mvcc.last_applied()), (None, Timestamp(3)));
        assert!(mvcc.is_caught_up() && mvcc.latest().before == Timestamp(4));
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use std::sync::Arc;

    use ::loom::thread;

    use super::*;
    use crate::sync::{AtomicU64, Ordering};

    /// A reader moves the clock past a moment and hears that all before it is applied: no operation begins before it
    /// any more, however the writer's clock and registration come in between.
    #[test]
    fn loom_a_moment_that_is_complete_stays_so() {
        ::loom::model(|| {
            let (mvcc, clock) = (Arc::new(Mvcc::new(Timestamp(1))), Arc::new(AtomicU64::new(5)));
            let reader = {
                let (mvcc, clock) = (mvcc.clone(), clock.clone());
                thread::spawn(move || {
                    let moment = Timestamp(clock.fetch_add(1, Ordering::SeqCst) + 1);
                    mvcc.all_applied_before(moment).then(|| (moment, mvcc.latest().before))
                })
            };
            let ts = mvcc.begin(&mut || Timestamp(clock.fetch_add(1, Ordering::SeqCst)));
            mvcc.applied(ts);
            if let Some((moment, shown)) = reader.join().expect("the reader does not panic") {
                assert!(ts >= moment || shown > ts, "{ts} was missing from what was complete up to {moment}");
            }
        });
    }

    /// Whoever asks for the safe time sees it go forward only, and never past an operation in flight.
    #[test]
    fn loom_safe_time_waits_for_what_is_in_flight() {
        ::loom::model(|| {
            let mvcc = Arc::new(Mvcc::new(Timestamp(1)));
            mvcc.promise(Promise::Until(Timestamp(1)));
            let reader = {
                let mvcc = mvcc.clone();
                thread::spawn(move || {
                    let (first, shown) = (mvcc.safe_time(Timestamp(99)), mvcc.latest().before);
                    assert!(first < Timestamp(4) || shown > Timestamp(4), "safe at {first}, shown {shown}");
                    assert!(mvcc.safe_time(Timestamp(99)) >= first);
                })
            };
            assert!(mvcc.begin_at(Timestamp(4)));
            mvcc.promise(Promise::Until(Timestamp(6)));
            mvcc.applied(Timestamp(4));
            reader.join().expect("the reader does not panic");
            assert_eq!(mvcc.safe_time(Timestamp(99)), Timestamp(6));
        });
    }
}
