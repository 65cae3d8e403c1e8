//! Which call of a service runs next: the one whose caller stops waiting first. Pure.
//!
//! Up to `concurrency` calls run, up to `queue_length` wait. One more turns away the least urgent of those waiting
//! and itself, so that under overload the server works for callers that will still be there for the answer.
//! A call without a deadline is less urgent than any other; among equals the earlier comes first.

use std::collections::BTreeMap;

use engine::time::Instant;

/// Urgency, then arrival. No deadline sorts last.
type Place = (Instant, u64);

#[derive(Debug)]
pub struct CallQueue<T> {
    concurrency: usize,
    queue_length: usize,
    running: usize,
    arrivals: u64,
    waiting: BTreeMap<Place, T>,
}

/// What becomes of a call that arrives.
#[derive(Debug, PartialEq, Eq)]
pub enum Admission<T> {
    /// Run it now; it holds a slot until [`CallQueue::next`].
    Run(T),
    /// It waits.
    Queued,
    /// It waits in the place of this one, which is turned away.
    QueuedInsteadOf(T),
    /// It is turned away.
    Rejected(T),
}

/// What to do with a slot that became free.
#[derive(Debug, PartialEq, Eq)]
pub enum Next<T> {
    /// Run this one in it.
    Run(T),
    /// Tell this one's caller that its time passed in the queue, then ask again: the slot is still free.
    Expired(T),
    /// Nothing waits; the slot is given back.
    Idle,
}

impl<T> CallQueue<T> {
    /// `concurrency` below 1 counts as 1.
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
        let place = (deadline.unwrap_or(Instant(u64::MAX)), self.arrivals);
        if self.waiting.len() < self.queue_length {
            self.waiting.insert(place, call);
            return Admission::Queued;
        }
        match self.waiting.last_entry() {
            Some(least) if *least.key() > place => {
                let turned_away = least.remove();
                self.waiting.insert(place, call);
                Admission::QueuedInsteadOf(turned_away)
            }
            _ => Admission::Rejected(call),
        }
    }

    /// A running call is done with its slot, or the call given out last had expired.
    pub fn next(&mut self, now: Instant) -> Next<T> {
        match self.waiting.pop_first() {
            Some(((deadline, _), call)) if deadline < now => Next::Expired(call),
            Some((_, call)) => Next::Run(call),
            None => {
                self.running -= 1;
                Next::Idle
            }
        }
    }

    /// Everything that waits, for a server that stops.
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
            assert_eq!(queue.next(Instant(0)), Next::Run(name));
        }
        assert_eq!((queue.next(Instant(0)), queue.running()), (Next::Idle, 0));
    }

    #[test]
    fn a_full_queue_turns_the_least_urgent_away() {
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
    fn a_queue_of_no_length_only_runs() {
        let mut queue = CallQueue::new(0, 0);
        assert_eq!(queue.admit(None, 0), Admission::Run(0));
        assert_eq!(queue.admit(at(1), 1), Admission::Rejected(1));
    }

    #[test]
    fn what_expired_in_the_queue_leaves_the_slot_free() {
        let mut queue = CallQueue::new(1, 2);
        assert_eq!(queue.admit(None, 0), Admission::Run(0));
        assert_eq!(queue.admit(at(5), 1), Admission::Queued);
        assert_eq!(queue.admit(at(9), 2), Admission::Queued);
        assert_eq!(queue.next(Instant(6)), Next::Expired(1));
        assert_eq!(queue.next(Instant(6)), Next::Run(2));
        assert_eq!(queue.running(), 1);
    }
}
