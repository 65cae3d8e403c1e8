//! Mutation lists: the mutations of each row, oldest first.
//!
//! ```text
//!   row: first ──► mutation 3 ◄─► mutation 8 ◄─► mutation 9      in the order of their timestamps
//!        last ───────────────────────────────────┘
//! ```
//!
//! A frequently updated row has thousands of mutations. A reader of the latest version needs the last few, so it reads
//! backwards.

use super::NONE;
use super::arena::Arena;
use super::byte_arena::ByteArena;
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::time::Timestamp;

/// A row's mutations: numbers of the first and the last, `NONE` if there are none.
pub(crate) struct MutationList {
    first: AtomicU32,
    last: AtomicU32,
}

impl Default for MutationList {
    fn default() -> MutationList {
        MutationList { first: AtomicU32::new(NONE), last: AtomicU32::new(NONE) }
    }
}

impl MutationList {
    pub(crate) fn is_empty(&self) -> bool {
        self.first.load(Ordering::Acquire) == NONE
    }
}

/// The mutations of a store, in insertion order.
#[derive(Default)]
pub(crate) struct MutationStore {
    records: Arena<Record>,
    changes: ByteArena,
}

#[derive(Default)]
struct Record {
    ts: AtomicU64,
    /// Position of its row change.
    position: AtomicU64,
    /// Length of the row change shifted left by one; the low bit is set if it deletes the row.
    len_deletes: AtomicU32,
    row: AtomicU32,
    next: AtomicU32,
    previous: AtomicU32,
}

/// Bytes of a mutation without its row change.
pub(crate) const RECORD_BYTES: usize = size_of::<Record>();

const _: () = assert!(cfg!(loom) || RECORD_BYTES == 32);

/// One row change of one row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mutation<'a> {
    pub ts: Timestamp,
    pub row: u32,
    pub deletes: bool,
    pub change: &'a [u8],
}

impl MutationStore {
    /// Adds a row change of `row`, whose list is `list`, after those with the same or a lower timestamp. Only the
    /// writer calls this.
    pub(crate) fn add(&self, list: &MutationList, row: u32, ts: Timestamp, change: &[u8], deletes: bool) {
        let position = self.changes.push(change);
        let before = self.last_until(list, ts);
        let link = before.map_or(&list.first, |before| &self.records.get(before).next);
        let next = link.load(Ordering::Relaxed);
        let new = self.records.push(|record| {
            record.ts.store(ts.0, Ordering::Relaxed);
            record.position.store(position, Ordering::Relaxed);
            let len = u32::try_from(change.len()).expect("a row change is shorter than an RPC frame");
            record.len_deletes.store(len << 1 | u32::from(deletes), Ordering::Relaxed);
            record.row.store(row, Ordering::Relaxed);
            record.next.store(next, Ordering::Relaxed);
            record.previous.store(before.unwrap_or(NONE), Ordering::Relaxed);
        });
        link.store(new, Ordering::Release);
        let back = if next == NONE { &list.last } else { &self.records.get(next).previous };
        back.store(new, Ordering::Release);
    }

    /// Returns the last mutation of a list that is not newer than `ts`, which is usually the last one.
    fn last_until(&self, list: &MutationList, ts: Timestamp) -> Option<u32> {
        let is_older = |number: &u32| self.records.get(*number).ts.load(Ordering::Relaxed) <= ts.0;
        let last = Some(list.last.load(Ordering::Relaxed)).filter(|last| *last != NONE)?;
        Some(last).filter(is_older).or_else(|| self.numbers(list).take_while(is_older).last())
    }

    /// Returns a row's mutations, oldest first: all that were added before the call, and possibly later ones.
    pub(crate) fn of<'a>(&'a self, list: &MutationList) -> impl Iterator<Item = Mutation<'a>> {
        self.numbers(list).map(|number| self.get(number))
    }

    /// Returns a row's mutations, newest first: all that were added before the call, and possibly later ones.
    pub(crate) fn newest_first<'a>(&'a self, list: &MutationList) -> impl Iterator<Item = Mutation<'a>> {
        let mut at = list.last.load(Ordering::Acquire);
        std::iter::from_fn(move || {
            let number = Some(at).filter(|at| *at != NONE)?;
            at = self.records.get(number).previous.load(Ordering::Acquire);
            Some(self.get(number))
        })
    }

    /// Returns a row's last mutation.
    pub(crate) fn last(&self, list: &MutationList) -> Option<Mutation<'_>> {
        Some(list.last.load(Ordering::Acquire)).filter(|last| *last != NONE).map(|last| self.get(last))
    }

    fn numbers(&self, list: &MutationList) -> impl Iterator<Item = u32> {
        let mut at = list.first.load(Ordering::Acquire);
        std::iter::from_fn(move || {
            let number = Some(at).filter(|at| *at != NONE)?;
            at = self.records.get(number).next.load(Ordering::Acquire);
            Some(number)
        })
    }

    /// Returns a mutation by its number in insertion order.
    pub(crate) fn get(&self, number: u32) -> Mutation<'_> {
        let record = self.records.get(number);
        let len_deletes = record.len_deletes.load(Ordering::Relaxed);
        Mutation {
            ts: Timestamp(record.ts.load(Ordering::Relaxed)),
            row: record.row.load(Ordering::Relaxed),
            deletes: len_deletes & 1 == 1,
            change: self.changes.get(record.position.load(Ordering::Relaxed), (len_deletes >> 1) as usize),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.records.len()
    }

    /// Returns the bytes allocated.
    pub(crate) fn bytes(&self) -> usize {
        self.records.bytes() + self.changes.bytes()
    }

    /// Returns the bytes that the next mutation may allocate, unless its row change is longer than a chunk.
    pub(crate) fn next_bytes(&self) -> usize {
        self.records.next_bytes() + self.changes.next_bytes()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn lists_are_in_timestamp_order() {
        let (mutations, lists) =
            (MutationStore::default(), [MutationList::default(), MutationList::default()]);
        let add = |row: usize, ts: u64, change: &str| {
            mutations.add(&lists[row], row as u32, Timestamp(ts), change.as_bytes(), change == "delete");
        };
        for (row, ts, change) in
            [(0, 5, "a"), (1, 5, "b"), (0, 5, "c"), (0, 9, "delete"), (0, 2, "d"), (0, 7, "e")]
        {
            add(row, ts, change);
        }
        let shown = |row: usize| {
            let show = |m: Mutation<'_>| format!("{}{}", m.ts.0, String::from_utf8_lossy(m.change));
            mutations.of(&lists[row]).map(show).collect::<Vec<_>>().join(" ")
        };
        assert_eq!((shown(0), shown(1)), ("2d 5a 5c 7e 9delete".to_string(), "5b".to_string()));
        for list in &lists {
            let mut back: Vec<_> = mutations.newest_first(list).collect();
            back.reverse();
            assert_eq!(back, mutations.of(list).collect::<Vec<_>>());
        }
        assert!(mutations.last(&lists[0]).is_some_and(|last| last.deletes && last.row == 0));
        assert_eq!((mutations.len(), mutations.get(2).change), (6, &b"c"[..]));
        assert_eq!(mutations.last(&MutationList::default()), None);
    }
}
