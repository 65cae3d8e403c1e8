//! Changes to a DiskRowSet's rows that are not in a file yet, by row and timestamp.
//!
//! ```text
//!   tree ──► entry: row id ──► change ──► change        one entry for each row that was changed
//! ```
//!
//! One writer adds, many readers copy out what concerns their rows, and no reader waits (`memstore`).

use std::cmp::Ordering as Compared;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use super::deltafile::{DeltaBatch, TimeRange};
use super::memrowset::COPY_SHARE;
use super::memstore::NONE;
use super::memstore::arena::Arena;
use super::memstore::chain::{Chain, Mutation, Mutations};
use super::memstore::node::Keys;
use super::memstore::tree::Tree;
use crate::error::{Error, Result};
use crate::ids::RowId;
use crate::memory::{Held, MemTracker};
use crate::schema::change::Change;
use crate::sync::{AtomicI64, AtomicU32, AtomicU64, Mutex, Ordering};
use crate::time::Timestamp;

/// The recent changes of one rowset.
#[derive(Default)]
pub struct DeltaMemStore {
    /// Made when the first change comes: most rowsets have none.
    store: OnceLock<Box<Store>>,
    /// Held by the one writer; readers never ask for it.
    writer: Mutex<()>,
    held: Held,
    /// Bytes that it had when a merge of its rowset began: what comes later is copied to what takes the rowset's place.
    merged_bytes: AtomicU64,
}

#[derive(Default)]
struct Store {
    tree: Tree,
    entries: Arena<Entry>,
    mutations: Mutations,
    /// Rows revived less rows deleted.
    net_rows: AtomicI64,
    newest: AtomicU64,
}

/// A row that was changed.
#[derive(Default)]
struct Entry {
    row: AtomicU32,
    chain: Chain,
}

impl DeltaMemStore {
    /// An empty one, whose bytes `memory` counts for as long as anyone has it.
    pub fn new(memory: &Arc<MemTracker>) -> DeltaMemStore {
        let (held, first) = (Held::new(memory), Store::default());
        held.set(0, (first.byte_size() + first.next_bytes()) as u64);
        DeltaMemStore {
            store: OnceLock::new(),
            writer: Mutex::new(()),
            held,
            merged_bytes: AtomicU64::new(0),
        }
    }

    /// Changes from here on are promised room for a copy.
    pub fn begin_merge(&self) {
        self.merged_bytes.store(self.byte_size().max(1) as u64, Ordering::Relaxed);
    }

    /// Adds a change. One operation may change a row several times; the order of the calls counts then.
    pub fn insert(&self, row: RowId, ts: Timestamp, change: &[u8]) -> Result<()> {
        let parsed = Change::parse(change)?;
        let _guard = self.writer.lock().expect("no writer panics while it holds the lock");
        let store: &Store = self.store.get_or_init(Box::default);
        if store.mutations.len() >= NONE as usize {
            return Err(Error::throttled("2^32 changes to one rowset wait to be flushed; write again later"));
        }
        let entry = match store.tree.slot_of(&row, store) {
            Ok(entry) => entry,
            Err(slot) => {
                let entry = store.entries.push(|entry| entry.row.store(row, Ordering::Relaxed));
                store.tree.insert(slot, entry, &row, store);
                entry
            }
        };
        let chain = &store.entries.get(entry).chain;
        store.mutations.add(chain, entry, ts, change, matches!(parsed, Change::Delete));
        store.newest.fetch_max(ts.0, Ordering::Relaxed);
        let net = match parsed {
            Change::Delete => -1,
            Change::Update(_) => 0,
            Change::Reinsert(_) => 1,
        };
        store.net_rows.fetch_add(net, Ordering::Relaxed);
        let (bytes, merged) = (self.byte_size() as u64, self.merged_bytes.load(Ordering::Relaxed));
        let copies = if merged > 0 { COPY_SHARE as u64 * bytes.saturating_sub(merged) } else { 0 };
        self.held.set(bytes, store.next_bytes() as u64 + copies);
        Ok(())
    }

    /// Adds to `out` the changes of `rows` within `times`, by row and then time.
    pub fn collect(&self, rows: Range<RowId>, times: TimeRange, out: &mut DeltaBatch) {
        let Some(store) = self.store.get() else { return };
        for (row, chain) in store.from(rows.start).take_while(|(row, _)| *row < rows.end) {
            for mutation in store.mutations.of(chain).filter(|mutation| times.contains(mutation.ts)) {
                out.push(row, mutation.ts, mutation.change);
            }
        }
    }

    /// Whether the row is alive after its newest change here; `None` if there is no change of it.
    pub fn is_live(&self, row: RowId) -> Option<bool> {
        self.last(row).map(|last| !last.deletes)
    }

    /// When the row's newest change here was made; `None` if there is no change of it.
    pub fn last_change(&self, row: RowId) -> Option<Timestamp> {
        self.last(row).map(|last| last.ts)
    }

    fn last(&self, row: RowId) -> Option<Mutation<'_>> {
        let store = self.store.get()?;
        let entry = store.tree.find(&row, &**store)?;
        store.mutations.last(&store.entries.get(entry).chain)
    }

    /// Calls `visit` with every change, by row and then time.
    pub fn for_each(&self, mut visit: impl FnMut(RowId, Timestamp, &[u8]) -> Result<()>) -> Result<()> {
        let Some(store) = self.store.get() else { return Ok(()) };
        for (row, chain) in store.from(0) {
            store.mutations.of(chain).try_for_each(|m| visit(row, m.ts, m.change))?;
        }
        Ok(())
    }

    pub fn len(&self) -> usize {
        self.store.get().map_or(0, |store| store.mutations.len())
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of memory taken.
    pub fn byte_size(&self) -> usize {
        self.store.get().map_or(0, |store| store.byte_size())
    }

    /// Rows revived less rows deleted.
    pub fn net_rows(&self) -> i64 {
        self.store.get().map_or(0, |store| store.net_rows.load(Ordering::Relaxed))
    }

    /// The newest change's timestamp; `MIN` if there is none.
    pub fn newest(&self) -> Timestamp {
        Timestamp(self.store.get().map_or(0, |store| store.newest.load(Ordering::Relaxed)))
    }
}

impl Store {
    /// The rows changed, from `row` on, in order.
    fn from(&self, row: RowId) -> impl Iterator<Item = (RowId, &Chain)> {
        let mut cursor = self.tree.seek(&row, self);
        std::iter::from_fn(move || {
            let entry = self.entries.get(self.tree.next(&mut cursor, self)?);
            Some((entry.row.load(Ordering::Relaxed), &entry.chain))
        })
    }

    fn byte_size(&self) -> usize {
        size_of::<Store>() + self.tree.bytes() + self.entries.bytes() + self.mutations.bytes()
    }

    /// Bytes that may be allocated next, but for a change that is longer.
    fn next_bytes(&self) -> usize {
        self.tree.next_bytes() + self.entries.next_bytes() + self.mutations.next_bytes()
    }

    fn row(&self, entry: u32) -> RowId {
        self.entries.get(entry).row.load(Ordering::Relaxed)
    }
}

impl Keys for Store {
    type Key = RowId;

    #[inline]
    fn prefix(&self, row: &RowId) -> u64 {
        u64::from(*row)
    }

    fn compare(&self, entry: u32, row: &RowId) -> Compared {
        self.row(entry).cmp(row)
    }

    fn compare_rows(&self, entry: u32, other: u32) -> Compared {
        self.row(entry).cmp(&self.row(other))
    }
}
