//! A tablet: one partition of a table, as rows with history.
//!
//! ```text
//!                     apply (one writer)                     scan (any number of readers)
//!                       │                                      │
//!   TabletState ──► active MemRowSet   frozen MemRowSets   DiskRowSets        replaced as a whole
//!                       └── flush ────────────────────────────►┘
//! ```
//!
//! Readers take the current [`TabletState`] and keep it: what it holds does not change under them, except that
//! rows and mutations with timestamps they do not see are added. The one writer is [`writer::TabletWriter`].
//!
//! Not here: the log, operations' places in it, and answers to clients (`replica`).

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, RwLock};

use crate::cfile::cache::PageCache;
use crate::config::TabletConfig;
use crate::disk::Disk;
use crate::error::{Error, Result};
use crate::ids::{TableId, TabletId};
use crate::memory::{Held, MemTracker, Memory};
use crate::note::Note;
use crate::schema::Schema;
use crate::schema::partition::{Partition, PartitionSchema};
use crate::time::Timestamp;

pub mod apply;
pub mod column_file;
pub mod compact;
mod decide;
pub mod delta_merge;
pub mod delta_tracker;
pub mod deltafile;
pub mod deltamemstore;
pub mod diskrowset;
#[cfg(test)]
mod diskrowset_tests;
pub mod flush;
mod growth;
pub mod memrowset;
mod memstore;
pub mod merge_policy;
pub mod meta;
pub mod mvcc;
pub mod prepare;
mod read;
pub mod rowset;
mod rowset_scan;
pub mod rowset_tree;
mod rowset_writer;
pub mod scan;
mod split;
pub mod writer;

use diskrowset::{DiskRowSet, RowSetMemory, RowSetMeta};
pub use growth::Counting;
pub use split::KeyRange;

use memrowset::{MemRowSet, MemRowSetScan};
use meta::{TabletMeta, TabletSchema};
use mvcc::Mvcc;
use rowset::{ProbeStats, RowSetId, RowSetScan};
use rowset_tree::RowSetTree;
use scan::{Scan, ScanSpec, SnapshotAt};

/// Rows in a block of a scan that only counts: of rows on disk no page is read, so many are counted at once.
const COUNTED_ROWS: usize = 1 << 16;

/// A tablet as its readers see it.
pub struct Tablet {
    pub tablet: TabletId,
    pub table: TableId,
    pub partition_schema: PartitionSchema,
    pub partition: Partition,
    config: TabletConfig,
    mvcc: Mvcc,
    cache: Arc<PageCache>,
    memory: TabletMemory,
    /// Bloom filters consulted, and key indexes searched, by all writes so far.
    probes: [AtomicU64; 2],
    next_rowset: AtomicU64,
    /// See [`Tablet::history_mark`].
    history_mark: AtomicU64,
    /// Kept by the writer, told to who chooses what to flush.
    anchors: Mutex<writer::Anchors>,
    /// What was worth merging when that was asked last.
    last_look: Mutex<merge_policy::LastLook>,
    state: RwLock<Arc<TabletState>>,
}

/// From which operation on the log is needed by what is in memory only.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LogAnchors {
    /// By rows that were never flushed.
    pub rows: Option<u64>,
    /// By the changes of DiskRowSets.
    pub deltas: BTreeMap<RowSetId, u64>,
}

/// Where a tablet's memory is counted.
struct TabletMemory {
    all: Arc<MemTracker>,
    /// Of MemRowSets.
    rows: Arc<MemTracker>,
    /// Of DeltaMemStores, and of what open files keep.
    rowsets: RowSetMemory,
    /// Of operations that are not applied yet, and of entries of the log.
    operations: Arc<MemTracker>,
    log: Arc<MemTracker>,
    /// Of flushes and merges.
    work: Arc<MemTracker>,
}

impl TabletMemory {
    fn new(memory: &Memory, tablet: TabletId) -> TabletMemory {
        let all = memory.child(&format!("tablet-{tablet}"));
        let rowsets =
            RowSetMemory { changes: Some(all.child("recent-deltas")), files: Some(all.child("open-files")) };
        let (operations, log) = (all.child("operations"), all.child("log-entries"));
        TabletMemory {
            rows: all.child("recent-rows"),
            rowsets,
            operations,
            log,
            work: all.child("maintenance"),
            all,
        }
    }
}

/// The row sets and the schema at one moment.
#[derive(Clone)]
pub struct TabletState {
    pub schema: Arc<TabletSchema>,
    pub active: Arc<MemRowSet>,
    /// Oldest first.
    pub frozen: Vec<Arc<MemRowSet>>,
    /// By id.
    pub disk: Vec<Arc<DiskRowSet>>,
    /// Over the keys of `disk`.
    pub tree: RowSetTree,
}

/// How much a tablet holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TabletStats {
    pub live_rows: u64,
    pub disk_bytes: u64,
    pub memory_bytes: u64,
    pub mrs_bytes: u64,
    /// Recent changes of flushed rows.
    pub dms_bytes: u64,
    pub disk_rowsets: u64,
}

impl Tablet {
    /// Opens the tablet a superblock describes, as far as it is on disk.
    pub(crate) fn open(
        data: &Arc<dyn Disk>,
        meta: &TabletMeta,
        config: TabletConfig,
        cache: Arc<PageCache>,
    ) -> Result<Tablet> {
        let schema = Arc::new(TabletSchema::of(meta));
        let memory = TabletMemory::new(&config.memory, meta.tablet);
        let active = Arc::new(MemRowSet::new(schema.clone(), &memory.rows));
        let (frozen, disk, tree) = (Vec::new(), Vec::new(), RowSetTree::default());
        let state = TabletState { schema, active, frozen, disk, tree };
        let tablet = Tablet {
            tablet: meta.tablet,
            table: meta.table,
            partition_schema: meta.partition_schema.clone(),
            partition: meta.partition.clone(),
            config,
            mvcc: Mvcc::new(meta.last_timestamp),
            cache,
            memory,
            probes: Default::default(),
            next_rowset: AtomicU64::new(meta.next_rowset),
            history_mark: AtomicU64::new(meta.history_mark.0),
            anchors: Mutex::default(),
            last_look: Mutex::default(),
            state: RwLock::new(Arc::new(state)),
        };
        let open = |rowset: &RowSetMeta| tablet.open_rowset(data, rowset.clone()).map(Arc::new);
        let disk = meta.rowsets.iter().map(open).collect::<Result<Vec<_>>>()?;
        let state = (*tablet.state()).clone().with_disk(disk);
        tablet.set_state(state);
        Ok(tablet)
    }

    pub(crate) fn open_rowset(&self, data: &Arc<dyn Disk>, meta: RowSetMeta) -> Result<DiskRowSet> {
        let schema = self.schema();
        let memory = self.memory.rowsets.clone();
        DiskRowSet::open(data.clone(), self.tablet, meta, &schema, self.cache.clone(), memory)
    }

    /// A number for a rowset or another file, never given before.
    pub(crate) fn new_rowset_id(&self) -> RowSetId {
        self.next_rowset.fetch_add(1, Ordering::Relaxed)
    }

    /// What [`Tablet::new_rowset_id`] would give.
    pub(crate) fn next_rowset_id(&self) -> RowSetId {
        self.next_rowset.load(Ordering::Relaxed)
    }

    /// The ancient history mark: snapshots from before it are refused, and the history that only they would need may
    /// be gone. A flushed row that died before it is as good as not there.
    pub fn history_mark(&self) -> Timestamp {
        Timestamp(self.history_mark.load(Ordering::Acquire))
    }

    /// History from before `mark` is not wanted any more: from now on snapshots before it are refused, and flushes and
    /// compactions that begin drop what they come across. The mark never goes back, nor beyond what is applied.
    pub fn raise_history_mark(&self, mark: Timestamp) {
        let mark = mark.min(self.mvcc.last_applied().next());
        self.history_mark.fetch_max(mark.0, Ordering::AcqRel);
    }

    pub fn schema(&self) -> Arc<Schema> {
        self.state().schema.schema.clone()
    }

    pub fn schema_version(&self) -> u32 {
        self.state().schema.version
    }

    /// Schema, version, table name and extra configuration, as of one moment.
    pub fn table_schema(&self) -> Arc<TabletSchema> {
        self.state().schema.clone()
    }

    /// What looking for the keys of writes has cost since the tablet was opened.
    pub fn probes(&self) -> ProbeStats {
        let [blooms, keys] = &self.probes;
        ProbeStats { blooms: blooms.load(Ordering::Relaxed), keys: keys.load(Ordering::Relaxed) }
    }

    /// For the writer: its sums.
    fn set_probes(&self, sums: ProbeStats) {
        self.probes[0].store(sums.blooms, Ordering::Relaxed);
        self.probes[1].store(sums.keys, Ordering::Relaxed);
    }

    fn anchors(&self) -> MutexGuard<'_, writer::Anchors> {
        self.anchors.lock().expect("nothing panics while it holds the anchors")
    }

    /// What needs the log from which operation on.
    pub fn log_anchors(&self) -> LogAnchors {
        let anchors = self.anchors();
        LogAnchors { rows: anchors.rows(), deltas: anchors.deltas().clone() }
    }

    /// Counts an operation that was decoded and is not applied yet.
    pub(crate) fn hold_operation(&self, bytes: usize) -> Held {
        let held = Held::new(&self.memory.operations);
        held.add(bytes as u64);
        held
    }

    /// To count the entries of the log that are in memory.
    pub(crate) fn hold_log(&self) -> Held {
        Held::new(&self.memory.log)
    }

    /// To count what a flush or a merge works with.
    pub(crate) fn hold_work(&self) -> Held {
        Held::of_work(&self.memory.work)
    }

    /// Counts all memory of this tablet.
    pub fn memory(&self) -> &Arc<MemTracker> {
        &self.memory.all
    }

    pub fn config(&self) -> &TabletConfig {
        &self.config
    }

    pub fn mvcc(&self) -> &Mvcc {
        &self.mvcc
    }

    /// Begins a scan. `Invalid` if the spec contradicts itself or the schema.
    pub fn scan(&self, spec: &ScanSpec) -> Result<Scan> {
        loop {
            let (snapshot, state) = self.snapshot_and_state(spec)?;
            self.mark_scan(spec, &state);
            let scan = self.scan_at(spec, snapshot, &state)?;
            // A rowset takes files that lack old history without leaving the state: if that was after the mark had
            // been looked at, it may lack what this snapshot needs.
            if spec.oldest(snapshot) >= self.history_mark() {
                self.note_latest(spec, snapshot);
                return Ok(scan);
            }
        }
    }

    /// Whoever watches may know what it should have seen.
    fn note_latest(&self, spec: &ScanSpec, snapshot: rowset::Snapshot) {
        if spec.snapshot == SnapshotAt::Latest {
            let (applied, leads) = (Timestamp(snapshot.before.0 - 1), self.mvcc.leads_in());
            self.config.watch.note(self.tablet, &Note::ServedLatest { applied, leads });
        }
    }

    fn scan_at(&self, spec: &ScanSpec, snapshot: rowset::Snapshot, state: &TabletState) -> Result<Scan> {
        let rows = if spec.only_counts() { COUNTED_ROWS } else { self.config.scan_block_rows };
        let wanted = scan::row_set_spec(spec, &state.schema.schema, snapshot, spec.block_rows(rows))?;
        let reads_few = wanted.as_ref().is_none_or(|wanted| spec.reads_few(wanted));
        let mut row_sets: Vec<Box<dyn RowSetScan>> = Vec::new();
        if let Some(wanted) = wanted {
            for rowset in &state.disk {
                let (min, max) = rowset.key_bounds();
                if wanted.may_overlap(&min, &max) {
                    let wanted = self.in_blocks(&wanted, rowset.meta().rows.into(), rowset.raw_bytes());
                    row_sets.push(rowset.scan(&wanted)?);
                }
            }
            for mrs in state.frozen.iter().chain([&state.active]).filter(|mrs| mrs.rows() > 0) {
                let wanted = self.in_blocks(&wanted, mrs.rows(), mrs.bytes() as u64);
                row_sets.push(Box::new(MemRowSetScan::new(mrs.clone(), wanted)));
            }
        }
        Ok(Scan::new(spec, snapshot, row_sets, reads_few))
    }

    /// In blocks of fewer rows where they are long: of a rowset that has `rows` of `bytes` bytes in all.
    fn in_blocks(&self, wanted: &rowset::RowSetScanSpec, rows: u64, bytes: u64) -> rowset::RowSetScanSpec {
        let mut wanted = wanted.clone();
        if !wanted.columns.is_empty() {
            wanted.block_rows = wanted.block_rows.min(self.config.block_rows(rows, bytes));
        }
        wanted
    }

    fn mark_scan(&self, spec: &ScanSpec, state: &TabletState) {
        let watch = &self.config.watch;
        watch.mark_if(!state.frozen.is_empty(), "scan: while a MemRowSet is flushed");
        watch.mark_if(state.disk.len() > 1, "scan: over several rowsets");
        watch.mark_if(state.active.rows() > 0 && !state.disk.is_empty(), "scan: over memory and disk");
        watch.mark_if(state.disk.iter().any(|rowset| rowset.dms_len() > 0), "scan: over changes in memory");
        let files = |rowset: &Arc<DiskRowSet>| !rowset.meta().delta_files.is_empty();
        watch.mark_if(state.disk.iter().any(files), "scan: over files of changes");
        watch.mark_if(spec.ordered && spec.last_key.is_some(), "scan: goes on after a key");
        let past = matches!(spec.snapshot, SnapshotAt::At(at) if at <= self.mvcc.last_applied());
        watch.mark_if(past, "scan: reads the past");
        watch.mark_if(spec.diff_from.is_some(), "scan: between two times");
        watch.mark_if(spec.only_counts(), "scan: rows are only counted");
        watch.mark_if(!spec.predicates.is_empty(), "scan: by a predicate");
        watch.mark_if(self.mvcc.earliest_in_flight().is_some(), "scan: while an operation is in flight");
    }

    /// The moment a scan reads at, and row sets that have all of it.
    fn snapshot_and_state(&self, spec: &ScanSpec) -> Result<(rowset::Snapshot, Arc<TabletState>)> {
        loop {
            let snapshot = match spec.snapshot {
                SnapshotAt::Latest => self.mvcc.latest(),
                SnapshotAt::At(before) => rowset::Snapshot { before },
            };
            // The state is taken after the snapshot: what the snapshot sees was in memory by then. And before the mark:
            // row sets that lack history come after the mark that allows it.
            let (state, mark) = (self.state(), self.history_mark());
            let oldest = spec.oldest(snapshot);
            if oldest >= mark {
                return Ok((snapshot, state));
            }
            if spec.snapshot != SnapshotAt::Latest || spec.diff_from.is_some() {
                return Err(Error::invalid(format!(
                    "the snapshot at {oldest} is older than the ancient history mark {mark}: its history is no \
                     longer kept; read a later one, or keep more history"
                )));
            }
        }
    }

    pub fn stats(&self) -> TabletStats {
        let state = self.state();
        let mut stats = TabletStats::default();
        for mrs in state.frozen.iter().chain([&state.active]) {
            stats.live_rows += mrs.live_rows();
            stats.mrs_bytes += mrs.bytes() as u64;
        }
        for rowset in &state.disk {
            stats.live_rows += rowset.live_rows();
            stats.disk_bytes += rowset.meta().bytes;
            stats.dms_bytes += rowset.dms_bytes() as u64;
        }
        stats.disk_rowsets = state.disk.len() as u64;
        stats.memory_bytes = stats.mrs_bytes + stats.dms_bytes;
        stats
    }

    /// The row sets as they are now.
    pub fn state(&self) -> Arc<TabletState> {
        self.state.read().expect("the state is replaced in one step").clone()
    }

    /// Only the writer replaces the state.
    fn set_state(&self, state: TabletState) {
        *self.state.write().expect("the state is replaced in one step") = Arc::new(state);
    }
}

impl TabletState {
    /// The same with these DiskRowSets.
    fn with_disk(mut self, mut disk: Vec<Arc<DiskRowSet>>) -> TabletState {
        disk.sort_by_key(|rowset| rowset.meta().id);
        self.tree = RowSetTree::new(disk.iter().map(|rowset| rowset.key_bounds()));
        self.disk = disk;
        self
    }
}
