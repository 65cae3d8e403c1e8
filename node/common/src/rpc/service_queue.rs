//! Queue of one service's calls, earliest deadline first. Pure.
//!
//! Up to `concurrency` calls run and up to `queue_length` are queued. With one more, the least urgent of the queued
//! calls and the new one is rejected. Under overload the server thus works for callers that still wait for the reply.
//! A call without a deadline is the least urgent; among equal deadlines the earlier arrival comes first.

use std::collections::BTreeMap;

use engine::time::Instant;

/// Deadline, then arrival number. No deadline sorts last.
type Priority = (Instant, u64);

/// Slots and queue of one service.
#[derive(Debug)]
pub struct CallQueue<T> {
    concurrency: usize,
    queue_length: usize,
    running: usize,
    arrivals: u64,
    waiting: BTreeMap<Priority, T>,
}

/// Decision about a call that arrives.
#[derive(Debug, PartialEq, Eq)]
pub enum Admission<T> {
    /// The call runs now and holds a slot until [`CallQueue::next`].
    Run(T),
    /// The call is queued.
    Queued,
    /// The call is queued in place of this less urgent one, which is rejected.
    QueuedInsteadOf(T),
    /// The call is rejected.
    Rejected(T),
}

/// Use of a slot that became free.
#[derive(Debug, PartialEq, Eq)]
pub enum NextCall<T> {
    /// This call runs in the slot.
    Run(T),
    /// The deadline of this call passed in the queue. Reply so to its caller, then call [`CallQueue::next`] again: the
    /// slot is still free.
    Expired(T),
    /// No call is queued; the slot is released.
    Idle,
}

impl<T> CallQueue<T> {
    /// Creates an empty queue. A `concurrency` of 0 counts as 1.
    pub fn new(concurrency: usize, queue_length: usize) -> CallQueue<T> {
        let concurrency = concurrency.max(1);
        CallQueue { concurrency, queue_length, running: 0, arrivals: 0, waiting: BTreeMap::new() }
    }

    pub fn admit(&mut self, deadline: Option<Instant>, call: T) -> Admission<T> {
        if self.running < self.concurrency {
            self.running += 1;
            return Admission::Run(call);
        }
        self.arrivals += 1;
        let priority = (deadline.unwrap_or(Instant(u64::MAX)), self.arrivals);
        if self.waiting.len() < self.queue_length {
            self.waiting.insert(priority, call);
            return Admission::Queued;
        }
        match self.waiting.last_entry() {
            Some(least) if *least.key() > priority => {
                let rejected = least.remove();
                self.waiting.insert(priority, call);
                Admission::QueuedInsteadOf(rejected)
            }
            _ => Admission::Rejected(call),
        }
    }

    /// Returns the next call for a slot. Called when a running call ends or releases its slot, and after `Expired`.
    pub fn next(&mut self, now: Instant) -> NextCall<T> {
        match self.waiting.pop_first() {
            Some(((deadline, _), call)) if deadline < now => NextCall::Expired(call),
            Some((_, call)) => NextCall::Run(call),
            None => {
                self.running -= 1;
                NextCall::Idle
            }
        }
    }

    /// Removes and returns all queued calls, for a server that stops.
    pub fn drain(&mut self) -> impl Iterator<Item = T> + use<T> {
        std::mem::take(&mut self.waiting).into_values()
    }

    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    pub fn running(&self) -> usize {
        self.running
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Option<Instant> {
        Some(Instant(micros))
    }

    #[test]
    fn the_most_urgent_runs_first_and_no_deadline_last() {
        let mut queue = CallQueue::new(1, 10);
        assert_eq!(queue.admit(None, "running"), Admission::Run("running"));
        for (deadline, name) in [(None, "never"), (at(30), "30"), (at(20), "20"), (at(30), "30 later")] {
            assert_eq!(queue.admit(deadline, name), Admission::Queued);
        }
        for name in ["20", "30", "30 later", "never"] {
            assert_eq!(queue.next(Instant(0)), NextCall::Run(name));
        }
        assert_eq!((queue.next(Instant(0)), queue.running()), (NextCall::Idle, 0));
    }

    #[test]
    fn a_full_queue_rejects_the_least_urgent_call() {
        let mut queue = CallQueue::new(1, 2);
        assert_eq!(queue.admit(None, 0), Admission::Run(0));
        assert_eq!(queue.admit(at(20), 1), Admission::Queued);
        assert_eq!(queue.admit(None, 2), Admission::Queued);
        assert_eq!(queue.admit(None, 3), Admission::Rejected(3));
        assert_eq!(queue.admit(at(50), 4), Admission::QueuedInsteadOf(2));
        assert_eq!(queue.admit(at(50), 5), Admission::Rejected(5));
        assert_eq!(queue.admit(at(10), 6), Admission::QueuedInsteadOf(4));
        assert_eq!(queue.drain().collect::<Vec<_>>(), [6, 1]);
    }

    #[test]
    fn a_queue_of_length_zero_rejects_when_all_slots_are_busy() {
        let mut queue = CallQueue::new(0, 0);
        assert_eq!(queue.admit(None, 0), Admission::Run(0));
        assert_eq!(queue.admit(at(1), 1), Admission::Rejected(1));
    }

    #[test]
    fn an_expired_call_leaves_its_slot_free() {
        let mut queue = CallQueue::new(1, 2);
        assert_eq!(queue.admit(None, 0), Admission::Run(0));
        assert_eq!(queue.admit(at(5), 1), Admission::Queued);
        assert_eq!(queue.admit(at(9), 2), Admission::Queued);
        assert_eq!(queue.next(Instant(6)), NextCall::Expired(1));
        assert_eq!(queue.next(Instant(6)), NextCall::Run(2));
        assert_eq!(queue.running(), 1);
    }
}
