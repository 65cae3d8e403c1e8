//! The set of rows not yet on disk: it takes every insert.
//!
//! ```text
//!   tree ──► row ──► batch: ts │ key row │ key row │ …     one run of bytes per write, kept as it was decoded
//!             │
//!             └──► mutation ──► mutation                   oldest first: ts, and a change in an arena
//! ```
//!
//! One writer, many readers. Both take the lock for one batch of rows; neither holds it across a disk call.
//! Rows and mutations only ever get more, so a reader that comes back finds its place again by key.
//!
//! A frozen MemRowSet gets no more rows, but its rows can still be mutated until its flush ends. What came
//! after the freeze is the tail of the list of mutations, and moves to the new DiskRowSets.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::meta::TabletSchema;
use crate::time::Timestamp;

mod history;
mod scan;
mod tree;

pub use history::{RowHistories, RowHistory};
pub use scan::MemRowSetScan;
pub use tree::Slot;

use tree::{Cursor, Keys, Tree};

const NONE: u32 = u32::MAX;
const CHANGE_CHUNK_BYTES: usize = 64 << 10;

/// Rows in memory, in key order, with their history.
pub struct MemRowSet {
    schema: Arc<TabletSchema>,
    inner: RwLock<Inner>,
    bytes: AtomicUsize,
    live: AtomicU64,
    rows: AtomicU64,
}

#[derive(Default)]
struct Inner {
    tree: Tree,
    store: Store,
    live: u64,
}

/// What the tree's row numbers mean.
#[derive(Default)]
struct Store {
    batches: Vec<Batch>,
    batch_bytes: usize,
    rows: Vec<Row>,
    mutations: Vec<Mutation>,
    changes: Changes,
}

struct Batch {
    ts: Timestamp,
    bytes: Vec<u8>,
}

/// One row: its key and, right behind it, its cells as inserted, in a batch.
struct Row {
    batch: u32,
    at: u32,
    key_len: u32,
    row_len: u32,
    first: u32,
    last: u32,
}

struct Mutation {
    ts: Timestamp,
    row: u32,
    next: u32,
    chunk: u32,
    at: u32,
    len: u32,
    deletes: bool,
}

/// Bytes of changes, in chunks so that they never move.
#[derive(Default)]
struct Changes {
    chunks: Vec<Vec<u8>>,
    bytes: usize,
}

impl MemRowSet {
    pub fn new(schema: Arc<TabletSchema>) -> MemRowSet {
        let mrs = MemRowSet {
            schema,
            inner: RwLock::default(),
            bytes: AtomicUsize::new(0),
            live: AtomicU64::new(0),
            rows: AtomicU64::new(0),
        };
        mrs.bytes.store(mrs.read().bytes(), Ordering::Relaxed);
        mrs
    }

    /// The schema of its rows as inserted; mutations of a frozen one may be of a later schema.
    pub fn schema(&self) -> &Arc<TabletSchema> {
        &self.schema
    }

    /// Memory taken, in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Rows alive after everything applied.
    pub fn live_rows(&self) -> u64 {
        self.live.load(Ordering::Relaxed)
    }

    /// Rows, dead or alive.
    pub fn rows(&self) -> u64 {
        self.rows.load(Ordering::Relaxed)
    }

    /// Lets the one writer in; readers wait until the guard is dropped.
    pub fn write(&self) -> Writer<'_> {
        let inner = self.inner.write().expect("a writer that panics takes the process with it");
        Writer { mrs: self, inner }
    }

    /// Whether a row has this key, dead or alive.
    pub fn contains(&self, key: &[u8]) -> bool {
        let inner = self.read();
        inner.tree.find(key, &inner.store).is_ok()
    }

    /// How many mutations there are: with [`MemRowSet::mutations_after`], what came after a moment.
    pub fn mutation_count(&self) -> usize {
        self.read().store.mutations.len()
    }

    /// Calls `each` with row number, timestamp and change of every mutation from number `count` on, in the
    /// order they were made.
    pub fn mutations_after<E>(
        &self,
        count: usize,
        mut each: impl FnMut(u32, Timestamp, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let inner = self.read();
        let store = &inner.store;
        store.mutations[count..].iter().try_for_each(|m| each(m.row, m.ts, store.change(m)))
    }

    fn read(&self) -> RwLockReadGuard<'_, Inner> {
        self.inner.read().expect("a writer that panics takes the process with it")
    }
}

/// The writer's view, while it holds the lock.
pub struct Writer<'a> {
    mrs: &'a MemRowSet,
    inner: RwLockWriteGuard<'a, Inner>,
}

impl Writer<'_> {
    /// Gives the rows of an operation at `ts` to this set: `bytes` holds their keys and cells.
    pub fn add_batch(&mut self, ts: Timestamp, bytes: Vec<u8>) -> u32 {
        let store = &mut self.inner.store;
        store.batch_bytes += bytes.capacity();
        store.batches.push(Batch { ts, bytes });
        store.batches.len() as u32 - 1
    }

    pub fn batch(&self, batch: u32) -> &[u8] {
        &self.inner.store.batches[batch as usize].bytes
    }

    /// The row with this key, or the slot to insert it at next.
    pub fn find(&self, key: &[u8]) -> Result<u32, Slot> {
        self.inner.tree.find(key, &self.inner.store)
    }

    /// Like [`Writer::find`] for the key at `at` of a batch.
    pub fn find_in_batch(&self, batch: u32, at: u32, key_len: u32) -> Result<u32, Slot> {
        let key = &self.batch(batch)[at as usize..(at + key_len) as usize];
        self.find(key)
    }

    /// Adds the row whose key, `key_len` bytes, is at `at` of its batch, followed by `row_len` bytes of cells.
    pub fn insert(&mut self, slot: Slot, batch: u32, at: u32, key_len: u32, row_len: u32) {
        let Inner { tree, store, live } = &mut *self.inner;
        let row = store.rows.len() as u32;
        store.rows.push(Row { batch, at, key_len, row_len, first: NONE, last: NONE });
        tree.insert(slot, row, store);
        *live += 1;
    }

    /// Lets go of the newest batch if none of its rows was inserted.
    pub fn drop_if_unused(&mut self, batch: u32) {
        let store = &mut self.inner.store;
        let used = store.rows.last().is_some_and(|row| row.batch == batch);
        if !used && store.batches.len() == batch as usize + 1 {
            let dropped = store.batches.pop().expect("the newest batch is there");
            store.batch_bytes -= dropped.bytes.capacity();
        }
    }

    pub fn is_live(&self, row: u32) -> bool {
        self.inner.store.is_live(row)
    }

    /// Appends a change to a row's history. The caller has checked that it makes sense.
    pub fn mutate(&mut self, row: u32, ts: Timestamp, change: &[u8], deletes: bool) {
        let Inner { store, live, .. } = &mut *self.inner;
        match (store.is_live(row), deletes) {
            (true, true) => *live -= 1,
            (false, false) => *live += 1,
            _ => {}
        }
        store.mutate(row, ts, change, deletes);
    }
}

impl Drop for Writer<'_> {
    fn drop(&mut self) {
        self.mrs.bytes.store(self.inner.bytes(), Ordering::Relaxed);
        self.mrs.live.store(self.inner.live, Ordering::Relaxed);
        self.mrs.rows.store(self.inner.store.rows.len() as u64, Ordering::Relaxed);
    }
}

impl Inner {
    fn bytes(&self) -> usize {
        let store = &self.store;
        let lists = store.batches.capacity() * size_of::<Batch>()
            + store.rows.capacity() * size_of::<Row>()
            + store.mutations.capacity() * size_of::<Mutation>();
        lists + store.batch_bytes + store.changes.bytes + self.tree.bytes()
    }

    /// The first row at or after `key`.
    fn seek(&self, key: &[u8]) -> Cursor {
        self.tree.seek(key, &self.store)
    }
}

impl Store {
    fn is_live(&self, row: u32) -> bool {
        match self.rows[row as usize].last {
            NONE => true,
            last => !self.mutations[last as usize].deletes,
        }
    }

    fn mutate(&mut self, row: u32, ts: Timestamp, change: &[u8], deletes: bool) {
        let new = self.mutations.len() as u32;
        let (chunk, at) = self.changes.push(change);
        let len = change.len() as u32;
        self.mutations.push(Mutation { ts, row, next: NONE, chunk, at, len, deletes });
        let record = &mut self.rows[row as usize];
        match record.last {
            NONE => record.first = new,
            last => self.mutations[last as usize].next = new,
        }
        record.last = new;
    }

    fn inserted_at(&self, row: u32) -> Timestamp {
        self.batches[self.rows[row as usize].batch as usize].ts
    }

    /// The row's cells as inserted.
    fn cells(&self, row: u32) -> &[u8] {
        let row = &self.rows[row as usize];
        let at = (row.at + row.key_len) as usize;
        &self.batches[row.batch as usize].bytes[at..at + row.row_len as usize]
    }

    fn change(&self, mutation: &Mutation) -> &[u8] {
        let at = mutation.at as usize;
        &self.changes.chunks[mutation.chunk as usize][at..at + mutation.len as usize]
    }

    /// The mutations of a row before a moment, oldest first.
    fn history(&self, row: u32, before: Timestamp) -> impl Iterator<Item = &Mutation> {
        let mut at = self.rows[row as usize].first;
        std::iter::from_fn(move || {
            let mutation = self.mutations.get(at as usize).filter(|m| m.ts < before)?;
            at = mutation.next;
            Some(mutation)
        })
    }
}

impl Keys for Store {
    #[inline]
    fn key(&self, row: u32) -> &[u8] {
        let row = &self.rows[row as usize];
        let at = row.at as usize;
        &self.batches[row.batch as usize].bytes[at..at + row.key_len as usize]
    }
}

impl Changes {
    fn push(&mut self, change: &[u8]) -> (u32, u32) {
        let full = |chunk: &Vec<u8>| chunk.capacity() - chunk.len() < change.len();
        if self.chunks.last().is_none_or(full) {
            // Small at first: most tablets of a wide table see few mutations.
            let grown = (self.bytes / 4).clamp(256, CHANGE_CHUNK_BYTES);
            let chunk = Vec::with_capacity(change.len().max(grown));
            self.bytes += chunk.capacity();
            self.chunks.push(chunk);
        }
        let number = self.chunks.len() - 1;
        let chunk = &mut self.chunks[number];
        let at = chunk.len() as u32;
        chunk.extend_from_slice(change);
        (number as u32, at)
    }
}
