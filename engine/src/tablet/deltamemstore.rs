//! DeltaMemStore: the deltas of a DiskRowSet that are not in a file yet, by row and timestamp.
//!
//! ```text
//!   tree ──► entry: row id ──► delta ──► delta        one entry for each changed row
//! ```
//!
//! One writer adds deltas, and any number of readers copy those of their rows. No reader waits (`memstore`).

use std::cmp::Ordering as Compared;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use super::delta_page::may_set;
use super::deltafile::{DeltaBatch, TimeRange};
use super::memrowset::COPY_SHARE;
use super::memstore::NONE;
use super::memstore::arena::Arena;
use super::memstore::mutations::{Mutation, MutationList, MutationStore};
use super::memstore::node::KeySource;
use super::memstore::tree::RowTree;
use crate::error::{Error, Result};
use crate::ids::{ColumnId, RowId};
use crate::memory::{MemTracker, TrackedBytes};
use crate::schema::row_change::RowChange;
use crate::sync::{AtomicI64, AtomicU32, AtomicU64, Mutex, Ordering};
use crate::time::Timestamp;

/// In-memory deltas of one rowset.
#[derive(Default)]
pub struct DeltaMemStore {
    /// Created with the first delta; most rowsets have none.
    store: OnceLock<Box<Store>>,
    /// Lock of the one writer; readers never take it.
    writer: Mutex<()>,
    tracked: TrackedBytes,
    /// Size in bytes at the start of a compaction of the rowset. Later deltas are copied to the rowset's replacement.
    bytes_at_compaction: AtomicU64,
}

#[derive(Default)]
struct Store {
    tree: RowTree,
    entries: Arena<Entry>,
    mutations: MutationStore,
    /// Rows reinserted minus rows deleted.
    net_rows: AtomicI64,
    newest: AtomicU64,
}

/// A row with deltas.
#[derive(Default)]
struct Entry {
    row: AtomicU32,
    chain: MutationList,
}

impl DeltaMemStore {
    /// Creates an empty store whose bytes `memory` counts until it is dropped.
    pub fn new(memory: &Arc<MemTracker>) -> DeltaMemStore {
        let (tracked, empty) = (TrackedBytes::new(memory), Store::default());
        tracked.set(0, (empty.byte_size() + empty.next_bytes()) as u64);
        DeltaMemStore {
            store: OnceLock::new(),
            writer: Mutex::new(()),
            tracked,
            bytes_at_compaction: AtomicU64::new(0),
        }
    }

    /// Starts reserving memory for a copy of each delta that is added from now on.
    pub fn begin_merge(&self) {
        self.bytes_at_compaction.store(self.byte_size().max(1) as u64, Ordering::Relaxed);
    }

    /// Releases the memory that was reserved for copies since [`DeltaMemStore::begin_merge`], and reserves no more.
    pub fn end_merge(&self) {
        let _guard = self.writer.lock();
        self.bytes_at_compaction.store(0, Ordering::Relaxed);
        if let Some(store) = self.store.get() {
            self.tracked.set(self.byte_size() as u64, store.next_bytes() as u64);
        }
    }

    /// Adds a delta. If one operation changes a row several times, the deltas apply in the order of the calls.
    pub fn insert(&self, row: RowId, ts: Timestamp, change: &[u8]) -> Result<()> {
        let parsed = RowChange::parse(change)?;
        let _guard = self.writer.lock();
        let store: &Store = self.store.get_or_init(Box::default);
        if store.mutations.len() >= NONE as usize {
            return Err(Error::throttled("rowset: too many unflushed deltas (2^32); retry later"));
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
        store.mutations.add(chain, entry, ts, change, matches!(parsed, RowChange::Delete));
        store.newest.fetch_max(ts.0, Ordering::Relaxed);
        let net = match parsed {
            RowChange::Delete => -1,
            RowChange::Update(_) => 0,
            RowChange::Reinsert(_) => 1,
        };
        store.net_rows.fetch_add(net, Ordering::Relaxed);
        let (bytes, compacted) = (self.byte_size() as u64, self.bytes_at_compaction.load(Ordering::Relaxed));
        let copies = if compacted > 0 { COPY_SHARE as u64 * bytes.saturating_sub(compacted) } else { 0 };
        self.tracked.set(bytes, store.next_bytes() as u64 + copies);
        Ok(())
    }

    /// Appends to `out` the deltas of `rows` within `times`, by row and then time.
    pub fn collect(&self, rows: Range<RowId>, times: TimeRange, out: &mut DeltaBatch) {
        self.collect_within(&rows, times, usize::MAX, out);
    }

    /// Like [`DeltaMemStore::collect`], but ends with the delta with which `out` has more than `bytes_max` bytes.
    pub(super) fn collect_within(
        &self,
        rows: &Range<RowId>,
        times: TimeRange,
        bytes_max: usize,
        out: &mut DeltaBatch,
    ) {
        self.visit(rows, times, |row, ts, change| {
            out.push(row, ts, change);
            out.byte_size() <= bytes_max
        });
    }

    /// Returns true if a delta of `rows` within `times` may set this column.
    pub(super) fn may_set(&self, rows: &Range<RowId>, times: TimeRange, column: ColumnId) -> bool {
        let mut is_set = false;
        self.visit(rows, times, |_, _, change| {
            is_set = may_set(change, column);
            !is_set
        });
        is_set
    }

    /// Calls `visit` with the deltas of `rows` within `times`, by row and then time, until it returns false.
    pub(super) fn visit(
        &self,
        rows: &Range<RowId>,
        times: TimeRange,
        mut visit: impl FnMut(RowId, Timestamp, &[u8]) -> bool,
    ) {
        let Some(store) = self.store.get() else { return };
        for (row, chain) in store.from(rows.start).take_while(|(row, _)| *row < rows.end) {
            for mutation in store.mutations.of(chain).filter(|mutation| times.contains(mutation.ts)) {
                if !visit(row, mutation.ts, mutation.change) {
                    return;
                }
            }
        }
    }

    /// Returns the changes of a row before a timestamp, the newest first.
    pub(super) fn newest_first(&self, row: RowId, before: Timestamp) -> impl Iterator<Item = &[u8]> {
        let found = self.store.get().and_then(|store| Some((store, store.tree.find(&row, &**store)?)));
        let changes = found
            .into_iter()
            .flat_map(|(store, entry)| store.mutations.newest_first(&store.entries.get(entry).chain));
        changes.skip_while(move |mutation| mutation.ts >= before).map(|mutation| mutation.change)
    }

    /// Returns true if the row is live after its newest delta in this store; `None` if it has none.
    pub fn is_live(&self, row: RowId) -> Option<bool> {
        self.last(row).map(|last| !last.deletes)
    }

    /// Returns the timestamp of the row's newest delta in this store; `None` if it has none.
    pub fn last_change(&self, row: RowId) -> Option<Timestamp> {
        self.last(row).map(|last| last.ts)
    }

    fn last(&self, row: RowId) -> Option<Mutation<'_>> {
        let store = self.store.get()?;
        let entry = store.tree.find(&row, &**store)?;
        store.mutations.last(&store.entries.get(entry).chain)
    }

    /// Calls `visit` with every delta, by row and then time.
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

    /// Returns the bytes of memory allocated.
    pub fn byte_size(&self) -> usize {
        self.store.get().map_or(0, |store| store.byte_size())
    }

    /// Returns the rows reinserted minus the rows deleted.
    pub fn net_rows(&self) -> i64 {
        self.store.get().map_or(0, |store| store.net_rows.load(Ordering::Relaxed))
    }

    /// Returns the newest delta's timestamp; `MIN` if there is none.
    pub fn newest(&self) -> Timestamp {
        Timestamp(self.store.get().map_or(0, |store| store.newest.load(Ordering::Relaxed)))
    }
}

impl Store {
    /// Returns the changed rows from `row` on, in order.
    fn from(&self, row: RowId) -> impl Iterator<Item = (RowId, &MutationList)> {
        let mut cursor = self.tree.seek(&row, self);
        std::iter::from_fn(move || {
            let entry = self.entries.get(self.tree.next(&mut cursor, self)?);
            Some((entry.row.load(Ordering::Relaxed), &entry.chain))
        })
    }

    fn byte_size(&self) -> usize {
        size_of::<Store>() + self.tree.bytes() + self.entries.bytes() + self.mutations.bytes()
    }

    /// Returns the bytes that the next delta may allocate, unless it is longer than a chunk.
    fn next_bytes(&self) -> usize {
        self.tree.next_bytes() + self.entries.next_bytes() + self.mutations.next_bytes()
    }

    fn row(&self, entry: u32) -> RowId {
        self.entries.get(entry).row.load(Ordering::Relaxed)
    }
}

impl KeySource for Store {
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::schema::row_change::RowChangeBuilder;

    #[test]
    fn a_compaction_that_ends_leaves_no_reservation() {
        let mut change = Vec::new();
        RowChangeBuilder::update(&mut change).set(ColumnId(1), Some(&[7; 1000]));
        let reserved = |is_compacted: bool| {
            let root = MemTracker::root("server", None);
            let store = DeltaMemStore::new(&root);
            let fill = |rows: Range<RowId>| {
                rows.for_each(|row| store.insert(row, Timestamp(row.into()), &change).unwrap());
            };
            fill(0..100);
            if is_compacted {
                store.begin_merge();
            }
            fill(100..1000);
            let during = root.reserved_bytes();
            if is_compacted {
                store.end_merge();
            }
            let ended = root.reserved_bytes();
            fill(1000..2000);
            [during, ended, root.reserved_bytes()]
        };
        let ([during, ended, later], [alone, same, last]) = (reserved(true), reserved(false));
        assert!(during > alone + 900_000, "{during} bytes are reserved, {alone} without a compaction");
        assert_eq!((ended, later), (same, last));
    }
}
