//! The set of rows not yet on disk: it takes every insert.
//!
//! ```text
//!   index ─► row ──► batch: ts │ key row │ key row │ …     one run of bytes per write, kept as it was decoded
//!             │
//!             └──► mutation ──► mutation                   oldest first: ts, and a change in an arena
//! ```
//!
//! One writer, many readers, and no reader waits (`memstore`). Rows and mutations only ever get more, so a reader
//! that comes back finds its place again by key.
//!
//! A frozen MemRowSet gets no more rows, but its rows can still be mutated until its flush ends. What came
//! after the freeze is the tail of the list of mutations, and moves to the new DiskRowSets.

use std::sync::{Arc, OnceLock};

use super::memstore::arena::Arena;
use super::memstore::chain::{Chain, Mutation, Mutations};
use super::meta::TabletSchema;
use crate::memory::{Held, MemTracker};
use crate::sync::{AtomicU32, AtomicU64, AtomicUsize, Mutex, MutexGuard, Ordering};
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
    batches: Arena<OnceLock<Batch>>,
    /// Bytes of all batches.
    batch_bytes: AtomicUsize,
    rows: Arena<Row>,
    mutations: Mutations,
}

struct Batch {
    ts: Timestamp,
    bytes: Vec<u8>,
}

impl Batch {
    #[inline]
    fn cells(&self, place: Place) -> &[u8] {
        &self.bytes[place.at as usize..][..place.len as usize]
    }
}

/// One row: its key and, right behind it, its cells as inserted, in a batch.
#[derive(Default)]
struct Row {
    batch: AtomicU32,
    at: AtomicU32,
    key_len: AtomicU32,
    row_len: AtomicU32,
    chain: Chain,
}

/// Where the cells of a row are: their batch, and their bytes in it; and whether it was changed since.
#[derive(Clone, Copy)]
struct Place {
    batch: u32,
    at: u32,
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
            store.index.next_bytes(store.rows.len()) + store.batches.next_bytes() + store.rows.next_bytes();
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
        let lists = store.batches.bytes() + store.rows.bytes() + store.mutations.bytes();
        size_of::<MemRowSet>() + lists + store.batch_bytes.load(Ordering::Relaxed) + store.index.bytes()
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
        Writer { mrs: self, staged: None, _guard: guard }
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
    /// The newest batch as long as no row of it was inserted: it goes with the writer then.
    staged: Option<Batch>,
    _guard: MutexGuard<'a, ()>,
}

impl Drop for Writer<'_> {
    fn drop(&mut self) {
        self.mrs.count_bytes();
    }
}

impl Writer<'_> {
    /// Brings the keys and cells of an operation's rows, at `ts`. The set keeps them once one is inserted.
    pub fn add_batch(&mut self, ts: Timestamp, mut bytes: Vec<u8>) -> u32 {
        bytes.shrink_to_fit();
        self.staged = Some(Batch { ts, bytes });
        self.mrs.store.batches.len() as u32
    }

    pub fn batch(&self, batch: u32) -> &[u8] {
        let staged = self.staged.as_ref().filter(|_| batch as usize == self.mrs.store.batches.len());
        staged.map_or_else(|| &self.mrs.store.batch(batch).bytes[..], |staged| &staged.bytes)
    }

    /// The row with this key, or the slot to insert it at next.
    pub fn find(&self, key: &[u8]) -> Result<u32, Slot> {
        self.mrs.store.index.slot_of(key, &self.mrs.store)
    }

    /// Like [`Writer::find`] for the key at `at` of a batch.
    pub fn find_in_batch(&self, batch: u32, at: u32, key_len: u32) -> Result<u32, Slot> {
        self.find(&self.batch(batch)[at as usize..(at + key_len) as usize])
    }

    /// Adds the row whose key, `key_len` bytes, is at `at` of its batch, followed by `row_len` bytes of cells.
    pub fn insert(&mut self, slot: Slot, batch: u32, at: u32, key_len: u32, row_len: u32) {
        let store = &self.mrs.store;
        if let Some(staged) = self.staged.take() {
            store.batch_bytes.fetch_add(staged.bytes.capacity(), Ordering::Relaxed);
            store
                .batches
                .push(|place| place.set(staged).unwrap_or_else(|_| unreachable!("the place is new")));
        }
        let row = store.rows.push(|row| {
            row.batch.store(batch, Ordering::Relaxed);
            row.at.store(at, Ordering::Relaxed);
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

    fn batch(&self, batch: u32) -> &Batch {
        self.batches.get(batch).get().expect("a batch is there before its rows")
    }

    /// Where the cells of a row are.
    #[inline]
    fn place(&self, row: u32) -> Place {
        let row = self.rows.get(row);
        Place {
            batch: row.batch.load(Ordering::Relaxed),
            at: row.at.load(Ordering::Relaxed) + row.key_len.load(Ordering::Relaxed),
            len: row.row_len.load(Ordering::Relaxed),
            changed: !row.chain.is_empty(),
        }
    }

    /// When the row came, and its cells as they came.
    #[inline]
    fn inserted(&self, place: Place) -> (Timestamp, &[u8]) {
        let batch = self.batch(place.batch);
        (batch.ts, batch.cells(place))
    }

    #[inline]
    fn key(&self, row: u32) -> &[u8] {
        let row = self.rows.get(row);
        let at = row.at.load(Ordering::Relaxed) as usize;
        let key_len = row.key_len.load(Ordering::Relaxed) as usize;
        &self.batch(row.batch.load(Ordering::Relaxed)).bytes[at..at + key_len]
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
