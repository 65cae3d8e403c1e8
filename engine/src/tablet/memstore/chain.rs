//! What happened to each row after it came, oldest first.
//!
//! ```text
//!   row: first ──► mutation 3 ◄─► mutation 8 ◄─► mutation 9      in the order of their timestamps
//!        last ───────────────────────────────────┘
//! ```
//!
//! A popular row has thousands of them, of which a reader of the latest state needs the last few: it goes backwards.

use super::NONE;
use super::arena::Arena;
use super::bytes::ByteArena;
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::time::Timestamp;

/// A row's mutations: the first and the last, `NONE` if it has none.
pub struct Chain {
    first: AtomicU32,
    last: AtomicU32,
}

impl Default for Chain {
    fn default() -> Chain {
        Chain { first: AtomicU32::new(NONE), last: AtomicU32::new(NONE) }
    }
}

impl Chain {
    pub fn is_empty(&self) -> bool {
        self.first.load(Ordering::Acquire) == NONE
    }
}

/// The mutations of a store, in the order they came.
#[derive(Default)]
pub struct Mutations {
    records: Arena<Record>,
    changes: ByteArena,
}

#[derive(Default)]
struct Record {
    ts: AtomicU64,
    /// Where its change is.
    position: AtomicU64,
    /// Its length, doubled; and one if it deletes the row.
    len_deletes: AtomicU32,
    row: AtomicU32,
    next: AtomicU32,
    previous: AtomicU32,
}

/// Bytes of a mutation besides its change.
pub const RECORD_BYTES: usize = size_of::<Record>();

const _: () = assert!(cfg!(loom) || RECORD_BYTES == 32);

/// One change of one row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mutation<'a> {
    pub ts: Timestamp,
    pub row: u32,
    pub deletes: bool,
    pub change: &'a [u8],
}

impl Mutations {
    /// For the writer: adds a change of `row`, whose chain is `chain`, behind those of the same time and before.
    pub fn add(&self, chain: &Chain, row: u32, ts: Timestamp, change: &[u8], deletes: bool) {
        let position = self.changes.push(change);
        let before = self.last_until(chain, ts);
        let link = before.map_or(&chain.first, |before| &self.records.get(before).next);
        let next = link.load(Ordering::Relaxed);
        let new = self.records.push(|record| {
            record.ts.store(ts.0, Ordering::Relaxed);
            record.position.store(position, Ordering::Relaxed);
            let len = u32::try_from(change.len()).expect("a change is shorter than a frame");
            record.len_deletes.store(len << 1 | u32::from(deletes), Ordering::Relaxed);
            record.row.store(row, Ordering::Relaxed);
            record.next.store(next, Ordering::Relaxed);
            record.previous.store(before.unwrap_or(NONE), Ordering::Relaxed);
        });
        link.store(new, Ordering::Release);
        let back = if next == NONE { &chain.last } else { &self.records.get(next).previous };
        back.store(new, Ordering::Release);
    }

    /// The last mutation of a chain that is not newer than `ts`: as a rule, the last one.
    fn last_until(&self, chain: &Chain, ts: Timestamp) -> Option<u32> {
        let is_older = |number: &u32| self.records.get(*number).ts.load(Ordering::Relaxed) <= ts.0;
        let last = Some(chain.last.load(Ordering::Relaxed)).filter(|last| *last != NONE)?;
        Some(last).filter(is_older).or_else(|| self.numbers(chain).take_while(is_older).last())
    }

    /// A row's mutations, oldest first: all that were added before the call, and perhaps later ones.
    pub fn of<'a>(&'a self, chain: &Chain) -> impl Iterator<Item = Mutation<'a>> {
        self.numbers(chain).map(|number| self.get(number))
    }

    /// A row's mutations, newest first: all that were added before the call, and perhaps later ones.
    pub fn newest_first<'a>(&'a self, chain: &Chain) -> impl Iterator<Item = Mutation<'a>> {
        let mut at = chain.last.load(Ordering::Acquire);
        std::iter::from_fn(move || {
            let number = Some(at).filter(|at| *at != NONE)?;
            at = self.records.get(number).previous.load(Ordering::Acquire);
            Some(self.get(number))
        })
    }

    /// A row's last mutation.
    pub fn last(&self, chain: &Chain) -> Option<Mutation<'_>> {
        Some(chain.last.load(Ordering::Acquire)).filter(|last| *last != NONE).map(|last| self.get(last))
    }

    fn numbers(&self, chain: &Chain) -> impl Iterator<Item = u32> {
        let mut at = chain.first.load(Ordering::Acquire);
        std::iter::from_fn(move || {
            let number = Some(at).filter(|at| *at != NONE)?;
            at = self.records.get(number).next.load(Ordering::Acquire);
            Some(number)
        })
    }

    /// A mutation by the order they came in.
    pub fn get(&self, number: u32) -> Mutation<'_> {
        let record = self.records.get(number);
        let len_deletes = record.len_deletes.load(Ordering::Relaxed);
        Mutation {
            ts: Timestamp(record.ts.load(Ordering::Relaxed)),
            row: record.row.load(Ordering::Relaxed),
            deletes: len_deletes & 1 == 1,
            change: self.changes.get(record.position.load(Ordering::Relaxed), (len_deletes >> 1) as usize),
        }
    }

    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Bytes allocated.
    pub fn bytes(&self) -> usize {
        self.records.bytes() + self.changes.bytes()
    }

    /// Bytes that may be allocated next, but for a change that is longer.
    pub fn next_bytes(&self) -> usize {
        self.records.next_bytes() + self.changes.next_bytes()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn chains_are_in_the_order_of_time() {
        let (mutations, chains) = (Mutations::default(), [Chain::default(), Chain::default()]);
        let add = |row: usize, ts: u64, change: &str| {
            mutations.add(&chains[row], row as u32, Timestamp(ts), change.as_bytes(), change == "gone");
        };
        for (row, ts, change) in
            [(0, 5, "a"), (1, 5, "b"), (0, 5, "c"), (0, 9, "gone"), (0, 2, "d"), (0, 7, "e")]
        {
            add(row, ts, change);
        }
        let told = |row: usize| {
            let tell = |m: Mutation<'_>| format!("{}{}", m.ts.0, String::from_utf8_lossy(m.change));
            mutations.of(&chains[row]).map(tell).collect::<Vec<_>>().join(" ")
        };
        assert_eq!((told(0), told(1)), ("2d 5a 5c 7e 9gone".to_string(), "5b".to_string()));
        for chain in &chains {
            let mut back: Vec<_> = mutations.newest_first(chain).collect();
            back.reverse();
            assert_eq!(back, mutations.of(chain).collect::<Vec<_>>());
        }
        assert!(mutations.last(&chains[0]).is_some_and(|last| last.deletes && last.row == 0));
        assert_eq!((mutations.len(), mutations.get(2).change), (6, &b"c"[..]));
        assert_eq!(mutations.last(&Chain::default()), None);
    }
}
