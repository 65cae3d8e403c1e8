//! MemRowSet: the unflushed inserts of a tablet, with their mutations.
//!
//! ```text
//!   index ─► row: ts ──► key cells                   as decoded, in an arena: lists without per-row
//!             │                                      allocations take only the bytes of their elements
//!             └──► mutation ──► mutation             oldest first: ts, and a row change in an arena
//! ```
//!
//! One writer, many readers, and no reader waits (`memstore`). Rows and mutations are only added, so a reader that
//! resumes finds its position again by key.
//!
//! A frozen MemRowSet gets no more rows, but its rows can be mutated until its flush ends. The mutations after the
//! freeze are the tail of the mutation list; the flush copies them to the new DiskRowSets.

use std::sync::{Arc, OnceLock};

use super::rowset::default_bytes;
use super::superblock::TabletSchema;
use crate::memory::{MemTracker, TrackedBytes};
use crate::schema::row_block::ProjectedColumn;
use crate::sync::{AtomicU64, Mutex, MutexGuard, Ordering};
use crate::time::Timestamp;

mod flush_rows;
mod row_index;
mod scan;
mod store;

use row_index::RowIndex;
use store::Store;

pub use super::memstore::tree::InsertPosition;
pub use flush_rows::{FlushRow, FlushRows};
pub use scan::MemRowSetScan;

/// Rows in memory, in key order, with their history.
pub struct MemRowSet {
    schema: Arc<TabletSchema>,
    index: RowIndex,
    store: Store,
    /// Lock of the one writer; readers never take it.
    writer: Mutex<()>,
    live: AtomicU64,
    /// [`MemRowSet::bytes`] at the end of the last write.
    tracked: TrackedBytes,
    /// Bytes of the mutations at the freeze. Later mutations are copied to the flushed rowsets before this store is
    /// dropped.
    frozen_bytes: OnceLock<usize>,
}

/// Upper bound of the size of a copied row change, as a multiple of its size here. The copy has a separate entry.
pub const COPY_SHARE: usize = 2;

impl MemRowSet {
    /// Creates an empty MemRowSet whose bytes `memory` counts until it is dropped.
    pub fn new(schema: Arc<TabletSchema>, memory: &Arc<MemTracker>) -> MemRowSet {
        let (index, store, tracked) = (RowIndex::default(), Store::default(), TrackedBytes::new(memory));
        let (live, frozen_bytes) = (AtomicU64::new(0), OnceLock::new());
        let mrs = MemRowSet { schema, index, store, writer: Mutex::new(()), live, tracked, frozen_bytes };
        mrs.count_bytes();
        mrs
    }

    fn count_bytes(&self) {
        let store = &self.store;
        let next =
            self.index.next_bytes(store.rows.len()) + store.bytes.next_bytes() + store.rows.next_bytes();
        let later = |frozen: &usize| store.mutations.bytes() - frozen;
        let copies = COPY_SHARE * self.frozen_bytes.get().map_or(0, later);
        self.tracked.set(self.bytes() as u64, (next + copies + store.mutations.next_bytes()) as u64);
    }

    /// Stops inserts. Later mutations also reserve memory for their copy.
    pub fn freeze(&self) {
        self.frozen_bytes.get_or_init(|| self.store.mutations.bytes());
    }

    /// Returns the schema of the inserted rows. Mutations of a frozen MemRowSet may be of a later schema.
    pub fn schema(&self) -> &Arc<TabletSchema> {
        &self.schema
    }

    /// Returns the bytes of memory allocated.
    pub fn bytes(&self) -> usize {
        let store = &self.store;
        let lists = store.bytes.bytes() + store.rows.bytes() + store.mutations.bytes();
        size_of::<MemRowSet>() + lists + self.index.bytes()
    }

    /// Returns [`MemRowSet::bytes`] and the bytes of the read defaults of those `columns` that the rows lack.
    pub fn scanned_bytes(&self, columns: &[ProjectedColumn]) -> u64 {
        let has = |id| self.schema.schema.index_of_id(id).is_some();
        self.bytes() as u64 + self.rows() * default_bytes(columns, has)
    }

    /// Returns the rows that are live after the applied operations.
    pub fn live_rows(&self) -> u64 {
        self.live.load(Ordering::Relaxed)
    }

    /// Returns the number of rows, live or deleted.
    pub fn rows(&self) -> u64 {
        self.store.rows.len() as u64
    }

    /// Locks the MemRowSet for the one writer; another caller waits until the writer is dropped.
    pub fn write(&self) -> MemRowSetWriter<'_> {
        let guard = self.writer.lock();
        self.index.fit(&self.store);
        MemRowSetWriter { mrs: self, _guard: guard }
    }

    /// Returns true if a row has this key, live or deleted.
    pub fn contains(&self, key: &[u8]) -> bool {
        self.index.find(key, &self.store).is_some()
    }

    /// Returns the number of mutations; [`MemRowSet::mutations_after`] visits those added later.
    pub fn mutation_count(&self) -> usize {
        self.store.mutations.len()
    }

    /// Calls `each` with row id, timestamp and row change of every mutation from number `count` on, in insertion order.
    pub fn mutations_after<E>(
        &self,
        count: usize,
        mut each: impl FnMut(u32, Timestamp, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mutations = &self.store.mutations;
        let mut after = (count..mutations.len()).map(|number| mutations.get(number as u32));
        after.try_for_each(|mutation| each(mutation.row, mutation.ts, mutation.change))
    }
}

/// Handle of the one writer.
pub struct MemRowSetWriter<'a> {
    mrs: &'a MemRowSet,
    _guard: MutexGuard<'a, ()>,
}

impl Drop for MemRowSetWriter<'_> {
    fn drop(&mut self) {
        self.mrs.count_bytes();
    }
}

impl MemRowSetWriter<'_> {
    /// Returns the row with this key, or the position to insert it at.
    pub fn find(&self, key: &[u8]) -> Result<u32, InsertPosition> {
        self.mrs.index.slot_of(key, &self.mrs.store)
    }

    /// Inserts a row at `ts`. `bytes` are `key_len` bytes of its key, followed by its cells.
    pub fn insert(&mut self, slot: InsertPosition, ts: Timestamp, bytes: &[u8], key_len: u32) {
        let store = &self.mrs.store;
        let position = store.bytes.push(bytes);
        let row_len = u32::try_from(bytes.len()).expect("a row is shorter than an RPC frame") - key_len;
        let row = store.rows.push(|row| {
            row.ts.store(ts.0, Ordering::Relaxed);
            row.position.store(position, Ordering::Relaxed);
            row.key_len.store(key_len, Ordering::Relaxed);
            row.row_len.store(row_len, Ordering::Relaxed);
        });
        self.mrs.index.insert(slot, row, store.key(row), store);
        self.mrs.live.fetch_add(1, Ordering::Relaxed);
    }

    pub fn is_live(&self, row: u32) -> bool {
        let store = &self.mrs.store;
        store.mutations.last(&store.rows.get(row).chain).is_none_or(|last| !last.deletes)
    }

    /// Adds a row change to a row's history. The caller has checked that it is valid for the row's state.
    pub fn mutate(&mut self, row: u32, ts: Timestamp, change: &[u8], deletes: bool) {
        match (self.is_live(row), deletes) {
            (true, true) => self.mrs.live.fetch_sub(1, Ordering::Relaxed),
            (false, false) => self.mrs.live.fetch_add(1, Ordering::Relaxed),
            _ => 0,
        };
        let store = &self.mrs.store;
        store.mutations.add(&store.rows.get(row).chain, row, ts, change, deletes);
    }
}
