//! The set of rows not yet on disk: it takes every insert.
//!
//! ```text
//!   index ─► row: ts ──► key cells                   as they were decoded, in an arena: what lies in lists of its own
//!             │                                      takes no more memory than it has bytes
//!             └──► mutation ──► mutation             oldest first: ts, and a change in an arena
//! ```
//!
//! One writer, many readers, and no reader waits (`memstore`). Rows and mutations only ever get more, so a reader
//! that comes back finds its place again by key.
//!
//! A frozen MemRowSet gets no more rows, but its rows can still be mutated until its flush ends. What came
//! after the freeze is the tail of the list of mutations, and moves to the new DiskRowSets.

use std::sync::{Arc, OnceLock};

use super::memstore::arena::Arena;
use super::memstore::bytes::ByteArena;
use super::memstore::chain::{Chain, Mutation, Mutations};
use super::meta::TabletSchema;
use crate::memory::{Held, MemTracker};
use crate::sync::{AtomicU32, AtomicU64, Mutex, MutexGuard, Ordering};
use crate::time::Timestamp;

mod history;
mod index;
mod scan;

use index::{Index, Position};

pub use super::memstore::tree::Slot;
pub use history::{RowHistories, RowHistory};
pub use scan::MemRowSetScan;

/// Rows in memory, in key order, with their history.
pub struct MemRowSet {
    schema: Arc<TabletSchema>,
    store: Store,
    /// Held by the one writer; readers never ask for it.
    writer: Mutex<()>,
    live: AtomicU64,
    /// [`MemRowSet::bytes`], as they were when the writer last left.
    held: Held,
    /// Bytes that its mutations had when it was frozen: later ones are copied to what it is flushed to before it goes.
    frozen_bytes: OnceLock<usize>,
}

/// A copy of a change takes at most so many times its bytes here: it has an entry of its own there.
pub const COPY_SHARE: usize = 2;

/// What readers and the writer share.
#[derive(Default)]
struct Store {
    index: Index,
    rows: Arena<Row>,
    /// Keys and cells of the rows.
    bytes: ByteArena,
    mutations: Mutations,
}

/// One row: when it came, its key and, right behind it, its cells as inserted.
#[derive(Default)]
struct Row {
    ts: AtomicU64,
    /// Of its key.
    position: AtomicU64,
    key_len: AtomicU32,
    row_len: AtomicU32,
    chain: Chain,
}

const _: () = assert!(cfg!(loom) || size_of::<Row>() == 32);

/// When a row came, where its cells are, and whether it was changed since.
#[derive(Clone, Copy)]
struct Place {
    ts: Timestamp,
    position: u64,
    len: u32,
    changed: bool,
}

impl MemRowSet {
    /// An empty one, whose bytes `memory` counts for as long as anyone has it.
    pub fn new(schema: Arc<TabletSchema>, memory: &Arc<MemTracker>) -> MemRowSet {
        let (store, held) = (Store::default(), Held::new(memory));
        let (live, frozen_bytes) = (AtomicU64::new(0), OnceLock::new());
        let mrs = MemRowSet { schema, store, writer: Mutex::new(()), live, held, frozen_bytes };
        mrs.count_bytes();
        mrs
    }

    fn count_bytes(&self) {
        let store = &self.store;
        let next =
            store.index.next_bytes(store.rows.len()) + store.bytes.next_bytes() + store.rows.next_bytes();
        let later = |frozen: &usize| store.mutations.bytes() - frozen;
        let copies = COPY_SHARE * self.frozen_bytes.get().map_or(0, later);
        self.held.set(self.bytes() as u64, (next + copies + store.mutations.next_bytes()) as u64);
    }

    /// No row is inserted any more; mutations from here on are promised room for a copy.
    pub fn freeze(&self) {
        self.frozen_bytes.get_or_init(|| self.store.mutations.bytes());
    }

    /// The schema of its rows as inserted; mutations of a frozen one may be of a later schema.
    pub fn schema(&self) -> &Arc<TabletSchema> {
        &self.schema
    }

    /// Memory taken, in bytes.
    pub fn bytes(&self) -> usize {
        let store = &self.store;
        let lists = store.bytes.bytes() + store.rows.bytes() + store.mutations.bytes();
        size_of::<MemRowSet>() + lists + store.index.bytes()
    }

    /// Rows alive after everything applied.
    pub fn live_rows(&self) -> u64 {
        self.live.load(Ordering::Relaxed)
    }

    /// Rows, dead or alive.
    pub fn rows(&self) -> u64 {
        self.store.rows.len() as u64
    }

    /// Lets the one writer in; another one waits until it is dropped.
    pub fn write(&self) -> Writer<'_> {
        let guard = self.writer.lock().expect("a writer that panics takes the process with it");
        self.store.index.fit(&self.store);
        Writer { mrs: self, _guard: guard }
    }

    /// Whether a row has this key, dead or alive.
    pub fn contains(&self, key: &[u8]) -> bool {
        self.store.index.find(key, &self.store).is_some()
    }

    /// How many mutations there are: with [`MemRowSet::mutations_after`], what came after a moment.
    pub fn mutation_count(&self) -> usize {
        self.store.mutations.len()
    }

    /// Calls `each` with row number, timestamp and change of every mutation from number `count` on, in the
    /// order they were made.
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

/// What the one writer may do.
pub struct Writer<'a> {
    mrs: &'a MemRowSet,
    _guard: MutexGuard<'a, ()>,
}

impl Drop for Writer<'_> {
    fn drop(&mut self) {
        self.mrs.count_bytes();
    }
}

impl Writer<'_> {
    /// The row with this key, or the slot to insert it at next.
    pub fn find(&self, key: &[u8]) -> Result<u32, Slot> {
        self.mrs.store.index.slot_of(key, &self.mrs.store)
    }

    /// Adds the row that `bytes` are, `key_len` of its key and then its cells, as of `ts`.
    pub fn insert(&mut self, slot: Slot, ts: Timestamp, bytes: &[u8], key_len: u32) {
        let store = &self.mrs.store;
        let position = store.bytes.push(bytes);
        let row_len = u32::try_from(bytes.len()).expect("a row is shorter than a frame") - key_len;
        let row = store.rows.push(|row| {
            row.ts.store(ts.0, Ordering::Relaxed);
            row.position.store(position, Ordering::Relaxed);
            row.key_len.store(key_len, Ordering::Relaxed);
            row.row_len.store(row_len, Ordering::Relaxed);
        });
        store.index.insert(slot, row, store.key(row), store);
        self.mrs.live.fetch_add(1, Ordering::Relaxed);
    }

    pub fn is_live(&self, row: u32) -> bool {
        let store = &self.mrs.store;
        store.mutations.last(&store.rows.get(row).chain).is_none_or(|last| !last.deletes)
    }

    /// Adds a change to a row's history. The caller has checked that it makes sense.
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

impl Store {
    /// The first row at or after `key`.
    fn seek(&self, key: &[u8]) -> Position<'_> {
        self.index.seek(key, self)
    }

    fn next(&self, position: &mut Position<'_>) -> Option<u32> {
        position.next(self)
    }

    /// When a row came, and where its cells are.
    #[inline]
    fn place(&self, row: u32) -> Place {
        let row = self.rows.get(row);
        Place {
            ts: Timestamp(row.ts.load(Ordering::Relaxed)),
            position: row.position.load(Ordering::Relaxed) + u64::from(row.key_len.load(Ordering::Relaxed)),
            len: row.row_len.load(Ordering::Relaxed),
            changed: !row.chain.is_empty(),
        }
    }

    /// The cells of a row are read soon.
    #[inline]
    fn prefetch_cells(&self, place: Place) {
        self.bytes.prefetch(place.position);
    }

    /// The cells of a row as they came.
    #[inline]
    fn cells(&self, place: Place) -> &[u8] {
        self.bytes.get(place.position, place.len as usize)
    }

    #[inline]
    fn key(&self, row: u32) -> &[u8] {
        let row = self.rows.get(row);
        self.bytes.get(row.position.load(Ordering::Relaxed), row.key_len.load(Ordering::Relaxed) as usize)
    }

    /// The mutations of a row before a moment, newest first.
    fn back_from(&self, row: u32, before: Timestamp) -> impl Iterator<Item = Mutation<'_>> {
        self.mutations
            .newest_first(&self.rows.get(row).chain)
            .skip_while(move |mutation| mutation.ts >= before)
    }

    /// The mutations of a row before a moment, oldest first.
    fn history(&self, row: u32, before: Timestamp) -> impl Iterator<Item = Mutation<'_>> {
        self.mutations.of(&self.rows.get(row).chain).take_while(move |mutation| mutation.ts < before)
    }
}
