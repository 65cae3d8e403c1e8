use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use crate::time::Timestamp;

fn op(term: Term, index: u64) -> OpId {
    OpId { term, index }
}

fn entry(term: Term, index: u64) -> ReplicateEntry {
    let payload = Bytes::from_static(b"1234567890");
    ReplicateEntry { op: op(term, index), timestamp: Timestamp(index), kind: 1, payload }
}

fn log(ops: &[(Term, u64)]) -> RaftLog {
    let mut log = RaftLog::new(op(1, 4));
    ops.iter().for_each(|(term, index)| log.append(entry(*term, *index)));
    log
}

#[test]
fn terms_are_known_from_the_start_on() {
    let log = log(&[(1, 5), (3, 6), (3, 7)]);
    let terms: Vec<_> = [0, 3, 4, 5, 6, 7, 8].map(|index| log.term_at(index)).to_vec();
    assert_eq!(terms, [Some(0), None, Some(1), Some(1), Some(3), Some(3), None]);
}

#[test]
fn truncated_entries_cannot_become_durable() {
    let mut log = log(&[(1, 5), (2, 6)]);
    log.truncate_after(5);
    assert_eq!(log.last(), op(1, 5));
    log.append(ReplicateEntry { op: op(3, 6), timestamp: Timestamp(9), kind: 1, payload: Bytes::new() });
    assert!(!log.persisted(op(2, 6)));
    assert_eq!(log.durable(), 4);
    assert!(log.persisted(op(3, 6)));
}

#[test]
fn a_log_of_older_terms_shares_no_newer_entries() {
    let log = log(&[(1, 5), (3, 6), (3, 7)]);
    assert_eq!(log.last_shareable(op(2, 9)), Some(5));
    assert_eq!(log.last_shareable(op(3, 6)), Some(6));
    assert_eq!(log.last_shareable(op(9, 9)), Some(7));
    assert_eq!(log.last_shareable(op(1, 3)), None, "nothing is known of 3");
}

/// A truncated tail is still on the disk while the truncation waits for it.
#[test]
fn entries_read_from_the_disk_count_up_to_the_last_committed_one_of_this_log() {
    let log = log(&[(1, 5), (3, 6), (3, 7)]);
    let count = |terms: &[Term], committed| {
        let read = terms.iter().zip(3..).map(|(term, index)| entry(*term, index)).collect();
        log.committed_part(read, committed).len()
    };
    assert_eq!(count(&[1, 1, 1, 3, 3], 7), 5, "the term of 3 is not known: from before the start");
    assert_eq!(count(&[1, 1, 1, 3, 3], 6), 4, "7 is not committed");
    assert_eq!(count(&[1, 1, 1, 2, 2], 7), 3, "6 and 7 of another leader");
    assert_eq!(count(&[1, 1, 1, 2, 3], 7), 3, "nothing follows an entry of another leader");
    assert_eq!(count(&[1, 2, 2], 7), 1, "not the entry before the first one in memory either");
    assert_eq!(count(&[1], 2) + count(&[], 7), 0);
}

#[test]
fn only_entries_that_are_safe_elsewhere_are_evicted() {
    let mut log = log(&[(1, 5), (1, 6), (1, 7)]);
    log.persisted(op(1, 6));
    log.evict(7, 5, 1000);
    assert_eq!((log.first_held(), log.slice(5, 100)), (6, None));
    log.evict(7, 5, 0);
    assert_eq!(log.first_held(), 7, "7 is committed, but not durable here");
    assert_eq!(log.term_at(5), Some(1));
    assert_eq!(log.slice(7, 0).unwrap().len(), 1, "one entry is sent, however large");
}

#[test]
fn memory_includes_the_capacity_for_entries() {
    let empty = RaftLog::new(op(1, 4));
    assert_eq!(empty.byte_size(), 0);
    let full = log(&[(1, 5), (1, 6)]);
    let places = full.entries.capacity() * size_of::<ReplicateEntry>();
    assert_eq!(full.byte_size(), 2 * 10 + 2 * 3 * 8 + places);
    let mut many = log(&(5..5000).map(|index| (1, index)).collect::<Vec<_>>());
    many.set_durable();
    many.evict(4999, 4999, 0);
    assert!(many.byte_size() <= 2 * ENTRIES_RETAINED * size_of::<ReplicateEntry>(), "{}", many.byte_size());
}

#[test]
fn old_term_runs_are_dropped() {
    let mut log = log(&(5..3000).map(|index| (index, index)).collect::<Vec<_>>());
    log.evict(2999, 2999, 0);
    assert_eq!(log.runs.len(), 2996, "nothing is durable: the runs of entries in memory are needed");
    log.set_durable();
    log.evict(2999, 2999, 0);
    assert_eq!(log.runs.len(), RUNS_MAX);
    assert_eq!((log.term_at(1970), log.term_at(2999)), (None, Some(2999)));
    assert_eq!(log.term_at(3000 - RUNS_MAX as u64), Some(3000 - RUNS_MAX as u64));
}

/// A step of the log.
#[derive(Debug, Clone)]
enum Step {
    /// An entry with this term difference and payload size in bytes.
    Append(Term, usize),
    /// Truncation to this number of uncommitted entries.
    TruncateTo(u64),
    /// This number of further entries becomes durable.
    Persist(u64),
    Commit(u64),
    Evict(u64, usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..2u64, 0..5usize).prop_map(|(term, bytes)| Step::Append(term, bytes)),
        1 => (0..4u64).prop_map(Step::TruncateTo),
        2 => (0..4u64).prop_map(Step::Persist),
        2 => (0..4u64).prop_map(Step::Commit),
        2 => (0..4u64, 0..12usize).prop_map(|(behind, bytes)| Step::Evict(behind, bytes)),
    ]
}

/// A log that keeps everything: entry `i` has index `5 + i`.
struct Model {
    entries: Vec<ReplicateEntry>,
    durable: u64,
    committed: u64,
    /// The first entry that is in memory.
    held: u64,
}

impl Model {
    fn last(&self) -> OpId {
        self.entries.last().map_or(op(1, 4), |entry| entry.op)
    }

    fn get(&self, index: u64) -> Option<&ReplicateEntry> {
        self.entries.get(index.checked_sub(5)? as usize)
    }

    fn bytes(&self, range: std::ops::RangeInclusive<u64>) -> usize {
        range.filter_map(|index| self.get(index)).map(|entry| entry.payload.len()).sum()
    }

    fn take(&mut self, step: &Step, log: &mut RaftLog) {
        let last = self.last();
        match *step {
            Step::Append(later, bytes) => {
                let at = op(last.term + later, last.index + 1);
                let payload = Bytes::from(vec![7; bytes]);
                let entry = ReplicateEntry { op: at, timestamp: Timestamp(at.index), kind: 1, payload };
                self.entries.push(entry.clone());
                log.append(entry);
            }
            Step::TruncateTo(retained) => {
                let end = last.index.min(self.committed + retained);
                self.entries.truncate(end.saturating_sub(4) as usize);
                self.durable = self.durable.min(end);
                log.truncate_after(end);
            }
            Step::Persist(more) => {
                let to = last.index.min(self.durable + more);
                let at = self.get(to).map_or(op(1, 4), |entry| entry.op);
                assert_eq!(log.persisted(at), to > self.durable);
                self.durable = to;
            }
            Step::Commit(more) => self.committed = last.index.min(self.committed + more),
            Step::Evict(behind, most) => {
                let all_have = last.index.saturating_sub(behind);
                log.evict(self.committed, all_have, most);
                let goes = |held: u64, bytes: usize| {
                    held <= self.committed.min(self.durable) && (held <= all_have || bytes > most)
                };
                while self.held <= last.index && goes(self.held, self.bytes(self.held..=last.index)) {
                    self.held += 1;
                }
            }
        }
        self.held = self.held.min(self.last().index + 1);
    }

    /// Compares every query of the log.
    fn compare(&self, log: &RaftLog) {
        let last = self.last();
        assert_eq!((log.last(), log.durable(), log.first_held()), (last, self.durable, self.held));
        assert_eq!(log.bytes, self.bytes(self.held..=last.index));
        for index in 4..last.index + 2 {
            let expected = self.get(index).map(|entry| entry.op).or((index == 4).then_some(op(1, 4)));
            assert_eq!(log.op_at(index), expected);
            let held = index >= self.held && index <= last.index;
            assert_eq!(log.get(index).map(|entry| entry.op), expected.filter(|_| held));
            assert!(
                expected
                    .is_none_or(|expected| log.holds(expected) && !log.holds(op(expected.term + 1, index)))
            );
            let between =
                (index + 1 >= self.held && index <= last.index).then(|| self.bytes(index + 1..=last.index));
            assert_eq!(log.bytes_between(index, last.index), between, "after {index}");
            self.compare_slices(index, log);
            self.compare_shareable(index, log);
        }
    }

    fn compare_slices(&self, from: u64, log: &RaftLog) {
        for most in [0, 3, 6, 100] {
            let mut count = 0;
            while self.get(from + count).is_some() && (count == 0 || self.bytes(from..=from + count) <= most)
            {
                count += 1;
            }
            let expected = from >= self.held && count > 0;
            let slice = log.slice(from, most).map(|entries| entries.len() as u64);
            assert_eq!(slice, expected.then_some(count), "from {from}, at most {most}");
        }
    }

    /// Compares the last shareable entry, by checking each.
    fn compare_shareable(&self, index: u64, log: &RaftLog) {
        for term in 1..=self.last().term {
            let fits = |at: &u64| log.term_at(*at).is_some_and(|known| known <= term);
            let found = (4..=index.min(self.last().index)).rev().find(fits);
            assert_eq!(log.last_shareable(op(term, index)), found, "of {term}.{index}");
        }
    }
}

proptest! {
    #[test]
    fn a_log_is_the_end_of_one_that_keeps_everything(steps in prop::collection::vec(step(), 1..60)) {
        let mut log = RaftLog::new(op(1, 4));
        let mut model = Model { entries: Vec::new(), durable: 4, committed: 4, held: 5 };
        for step in &steps {
            model.take(step, &mut log);
            model.compare(&log);
        }
    }
}
