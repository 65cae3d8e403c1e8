//! Visibility of operations to readers.
//!
//! ```text
//!   applied          in flight        not begun
//!   ... 7  8  9  │  12  15  16  │  ?  ?  ?
//!                │ latest() = 10: everything applied, nothing else
//! ```
//!
//! A tablet's operations begin and are applied in the order of their timestamps. So one timestamp says what is applied,
//! and the oldest operation in flight bounds what is known to be complete.
//!
//! Before a snapshot is served, it must also be certain that no *more* operations begin below its timestamp (safe
//! time). The only voter of a group assigns every timestamp from its own clock; the caller moves the clock past the
//! snapshot timestamp first. All other replicas use a bound confirmed by a leader: no leader, present or future, begins
//! an operation at or below it.
//!
//! That bound holds for a log which has all that the leader had. A replica whose log was truncated lacks some of it.
//! These operations may return with yet another leader, one after the other. They return no more once an operation of
//! a later term than theirs is committed. Until then snapshots end before the first of them.
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
    /// The first timestamp of truncated operations that may return.
    truncated: Option<Timestamp>,
    last_applied: Timestamp,
    source: SafeTimeSource,
    leads: Option<LeadershipState>,
}

/// The term of a leader, or of the only voter, and its progress in applying earlier terms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeadershipState {
    pub term: Term,
    /// True if the replica has applied everything that previous leaders may have acknowledged (Raft §8).
    pub caught_up: bool,
}

/// Source of the safe time: the bound at or below which no more operations begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SafeTimeSource {
    /// This replica's own clock.
    #[default]
    Clock,
    /// A timestamp that a leader and a majority confirmed.
    Until(Timestamp),
}

impl Mvcc {
    /// Creates the state of a tablet whose operations up to `last_applied` are applied.
    pub fn new(last_applied: Timestamp) -> Mvcc {
        Mvcc { state: Mutex::new(State { last_applied, ..State::default() }) }
    }

    /// Assigns a timestamp to an operation and registers it as in flight, in one step. `assign` runs under the lock, so
    /// a later reader cannot miss an earlier timestamp. The result is above all earlier timestamps and above the
    /// confirmed safe time, even if `assign` returns less. Spec: SafeTime.tla Begin.
    pub fn begin(&self, assign: &mut dyn FnMut() -> Timestamp) -> Timestamp {
        let mut state = self.lock();
        let ts = assign().max(state.newest().next());
        state.in_flight.push_back(ts);
        ts
    }

    /// Registers an operation whose timestamp was assigned by a leader or read from the log. Returns false and does
    /// nothing if the timestamp is not above all earlier ones: the operations are not from one log.
    pub fn begin_at(&self, ts: Timestamp) -> bool {
        let mut state = self.lock();
        let newest = state.in_flight.back().copied().unwrap_or(state.last_applied);
        if ts > newest {
            state.in_flight.push_back(ts);
        }
        ts > newest
    }

    /// Makes the oldest operation in flight, `ts`, visible to readers. Spec: SafeTime.tla Apply.
    pub fn applied(&self, ts: Timestamp) {
        let mut state = self.lock();
        let first = state.in_flight.pop_front();
        assert_eq!(first, Some(ts), "operations are applied in the order of their timestamps");
        state.last_applied = ts;
    }

    /// Removes an operation in flight that was truncated from the log. It may return with another leader until
    /// [`Mvcc::truncation_is_final`].
    pub fn truncated(&self, ts: Timestamp) {
        let mut state = self.lock();
        state.in_flight.retain(|at| *at != ts);
        state.truncated = Some(state.truncated.map_or(ts, |first| first.min(ts)));
    }

    /// Ends the wait for truncated operations: one of a later term is committed, so each has returned by now or never
    /// does.
    pub fn truncation_is_final(&self) {
        self.lock().truncated = None;
    }

    /// Resets the state after a restart: everything up to `last_applied` is applied, nothing is in flight.
    pub fn restore(&self, last_applied: Timestamp) {
        *self.lock() = State { last_applied, ..State::default() };
    }

    /// Sets the safe-time source. A confirmed bound below the previous confirmed bound changes nothing. The clock
    /// replaces any bound, and any bound replaces the clock. Returns true if the source changed.
    pub fn set_safe_time_source(&self, source: SafeTimeSource) -> bool {
        let mut state = self.lock();
        let next = match (state.source, source) {
            (SafeTimeSource::Until(old), SafeTimeSource::Until(new)) => SafeTimeSource::Until(old.max(new)),
            (_, source) => source,
        };
        std::mem::replace(&mut state.source, next) != next
    }

    /// Sets the leadership state; `None` if this replica is neither the leader nor the only voter.
    pub fn set_leadership(&self, leads: Option<LeadershipState>) {
        self.lock().leads = leads;
    }

    /// Returns the term that this replica is leader of.
    pub fn leader_term(&self) -> Option<Term> {
        self.lock().leads.map(|leads| leads.term)
    }

    /// Returns true unless this replica is a leader, or the only voter, for which [`Mvcc::latest`] may lack
    /// acknowledged operations. Readers do not expect such completeness of other replicas.
    pub fn is_caught_up(&self) -> bool {
        self.lock().leads.is_none_or(|leads| leads.caught_up)
    }

    /// Returns a snapshot of everything applied.
    pub fn latest(&self) -> Snapshot {
        Snapshot::including(self.lock().last_applied)
    }

    /// Returns the timestamp of the newest applied operation.
    pub fn last_applied(&self) -> Timestamp {
        self.lock().last_applied
    }

    /// Returns the highest timestamp that was assigned or confirmed as safe; new timestamps must be above it.
    pub fn newest(&self) -> Timestamp {
        self.lock().newest()
    }

    /// Returns true if every operation that has, or ever gets, a timestamp below `before` is applied. If the source is
    /// the clock, the caller has moved it past `before` first. Spec: SafeTime.tla Serve.
    pub fn all_applied_before(&self, before: Timestamp) -> bool {
        let state = self.lock();
        let is_safe = match state.source {
            SafeTimeSource::Clock => true,
            SafeTimeSource::Until(until) => before <= until.max(state.last_applied).next(),
        };
        is_safe && state.first_incomplete().is_none_or(|first| first >= before)
    }

    /// Returns the safe time: everything at or below it is applied, and nothing is added. `now` is a timestamp that the
    /// clock has passed.
    pub fn safe_time(&self, now: Timestamp) -> Timestamp {
        let state = self.lock();
        let bound = match state.source {
            SafeTimeSource::Clock => now,
            SafeTimeSource::Until(until) => until.max(state.last_applied),
        };
        match state.first_incomplete() {
            Some(first) => bound.min(Timestamp(first.0.saturating_sub(1))),
            None => bound,
        }
    }

    pub fn earliest_in_flight(&self) -> Option<Timestamp> {
        self.lock().in_flight.front().copied()
    }

    /// Returns the number of operations in flight.
    pub fn in_flight(&self) -> usize {
        self.lock().in_flight.len()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

impl State {
    /// Returns the first timestamp of operations that are not applied, but may be.
    fn first_incomplete(&self) -> Option<Timestamp> {
        self.in_flight.front().copied().into_iter().chain(self.truncated).min()
    }

    fn newest(&self) -> Timestamp {
        let begun = self.in_flight.back().copied().unwrap_or(self.last_applied);
        match self.source {
            SafeTimeSource::Clock => begun,
            SafeTimeSource::Until(until) => begun.max(until),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_see_applied_operations_in_order() {
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
        assert_eq!(mvcc.last_applied(), a);
    }

    #[test]
    fn a_truncated_operation_that_returns_does_not_end_the_wait_for_the_others() {
        let mvcc = Mvcc::new(Timestamp(4));
        mvcc.set_safe_time_source(SafeTimeSource::Until(Timestamp(30)));
        assert!([10, 20].into_iter().all(|ts| mvcc.begin_at(Timestamp(ts))));
        mvcc.truncated(Timestamp(20));
        mvcc.truncated(Timestamp(10));
        assert!(mvcc.begin_at(Timestamp(10)), "it returns");
        mvcc.applied(Timestamp(10));
        assert_eq!(mvcc.latest().before, Timestamp(11));
        assert!(!mvcc.all_applied_before(Timestamp(21)), "20 may return, too");
        mvcc.truncation_is_final();
        assert!(mvcc.all_applied_before(Timestamp(31)));
    }

    #[test]
    fn truncated_operations_may_return_until_one_in_their_place_is_committed() {
        let mvcc = Mvcc::new(Timestamp(4));
        mvcc.set_safe_time_source(SafeTimeSource::Until(Timestamp(30)));
        assert!([10, 20].into_iter().all(|ts| mvcc.begin_at(Timestamp(ts))));
        mvcc.truncated(Timestamp(20));
        mvcc.truncated(Timestamp(10));
        assert!(mvcc.begin_at(Timestamp(31)), "another leader's operation in their place");
        assert!(mvcc.all_applied_before(Timestamp(10)) && !mvcc.all_applied_before(Timestamp(11)));
        assert_eq!(mvcc.safe_time(Timestamp(99)), Timestamp(9));
        mvcc.applied(Timestamp(31));
        mvcc.truncation_is_final();
        assert_eq!(mvcc.safe_time(Timestamp(99)), Timestamp(31));
        assert!(mvcc.all_applied_before(Timestamp(32)));
    }

    #[test]
    fn the_safe_time_bounds_snapshots_and_new_timestamps() {
        let mvcc = Mvcc::new(Timestamp(9));
        assert_eq!(
            mvcc.begin(&mut || Timestamp(3)),
            Timestamp(10),
            "a clock reading below the last timestamp is replaced"
        );
        mvcc.applied(Timestamp(10));
        mvcc.set_safe_time_source(SafeTimeSource::Until(Timestamp(5)));
        assert!(mvcc.all_applied_before(Timestamp(11)) && !mvcc.all_applied_before(Timestamp(12)));
        mvcc.set_safe_time_source(SafeTimeSource::Until(Timestamp(20)));
        mvcc.set_safe_time_source(SafeTimeSource::Until(Timestamp(15)));
        assert_eq!((mvcc.safe_time(Timestamp(99)), mvcc.newest()), (Timestamp(20), Timestamp(20)));
        assert!(mvcc.begin_at(Timestamp(18)) && !mvcc.begin_at(Timestamp(18)));
        assert_eq!(mvcc.safe_time(Timestamp(99)), Timestamp(17));
        assert!(mvcc.all_applied_before(Timestamp(18)) && !mvcc.all_applied_before(Timestamp(19)));
        assert_eq!(mvcc.begin(&mut || Timestamp(1)), Timestamp(21));
        mvcc.applied(Timestamp(18));
        assert_eq!(mvcc.earliest_in_flight(), Some(Timestamp(21)), "a rejected operation is not in flight");
    }

    #[test]
    fn setting_the_source_returns_true_if_it_changed() {
        let mvcc = Mvcc::new(Timestamp(1));
        let until = |ts| mvcc.set_safe_time_source(SafeTimeSource::Until(Timestamp(ts)));
        assert!(until(5) && !until(5) && !until(4) && until(6));
        assert!(
            mvcc.set_safe_time_source(SafeTimeSource::Clock)
                && !mvcc.set_safe_time_source(SafeTimeSource::Clock)
        );
        assert!(until(2), "the clock discards the earlier bound");
        assert_eq!(mvcc.safe_time(Timestamp(99)), Timestamp(2));
    }

    #[test]
    fn truncated_operations_leave_the_others_in_flight() {
        let mvcc = Mvcc::new(Timestamp(1));
        assert!([5, 6, 7, 8].into_iter().all(|ts| mvcc.begin_at(Timestamp(ts))));
        mvcc.truncated(Timestamp(6));
        mvcc.truncated(Timestamp(8));
        assert_eq!((mvcc.earliest_in_flight(), mvcc.newest()), (Some(Timestamp(5)), Timestamp(7)));
        assert_eq!(mvcc.in_flight(), 2);
        mvcc.applied(Timestamp(5));
        assert_eq!(mvcc.earliest_in_flight(), Some(Timestamp(7)));
        mvcc.set_leadership(Some(LeadershipState { term: 2, caught_up: false }));
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

    /// A reader moves the clock past a timestamp and gets the reply that everything below it is applied. No operation
    /// begins below it afterwards, whatever the order of the writer's clock reading and registration.
    #[test]
    fn loom_a_complete_snapshot_stays_complete() {
        ::loom::model(|| {
            let (mvcc, clock) = (Arc::new(Mvcc::new(Timestamp(1))), Arc::new(AtomicU64::new(5)));
            let reader = {
                let (mvcc, clock) = (mvcc.clone(), clock.clone());
                thread::spawn(move || {
                    let snapshot = Timestamp(clock.fetch_add(1, Ordering::SeqCst) + 1);
                    mvcc.all_applied_before(snapshot).then(|| (snapshot, mvcc.latest().before))
                })
            };
            let ts = mvcc.begin(&mut || Timestamp(clock.fetch_add(1, Ordering::SeqCst)));
            mvcc.applied(ts);
            if let Some((snapshot, shown)) = reader.join().expect("the reader does not panic") {
                assert!(
                    ts >= snapshot || shown > ts,
                    "{ts} was missing from what was complete up to {snapshot}"
                );
            }
        });
    }

    /// Safe time only increases for a reader, and never passes an operation in flight.
    #[test]
    fn loom_safe_time_stays_below_operations_in_flight() {
        ::loom::model(|| {
            let mvcc = Arc::new(Mvcc::new(Timestamp(1)));
            mvcc.set_safe_time_source(SafeTimeSource::Until(Timestamp(1)));
            let reader = {
                let mvcc = mvcc.clone();
                thread::spawn(move || {
                    let (first, shown) = (mvcc.safe_time(Timestamp(99)), mvcc.latest().before);
                    assert!(first < Timestamp(4) || shown > Timestamp(4), "safe at {first}, shown {shown}");
                    assert!(mvcc.safe_time(Timestamp(99)) >= first);
                })
            };
            assert!(mvcc.begin_at(Timestamp(4)));
            mvcc.set_safe_time_source(SafeTimeSource::Until(Timestamp(6)));
            mvcc.applied(Timestamp(4));
            reader.join().expect("the reader does not panic");
            assert_eq!(mvcc.safe_time(Timestamp(99)), Timestamp(6));
        });
    }
}
