//! A tablet: one partition of a table, stored as rows with history.
//!
//! ```text
//!                     apply (one writer)                     scan (any number of readers)
//!                       │                                      │
//!   TabletComponents ─► active MemRowSet   frozen MemRowSets   DiskRowSets      replaced as a whole
//!                       └── flush ────────────────────────────►┘
//! ```
//!
//! Readers take the current [`TabletComponents`] and keep it. Its contents do not change under them, except that rows
//! and mutations are added whose timestamps they do not see. The only writer is [`writer::TabletWriter`].
//!
//! Not here: the log, the OpIds of operations, and replies to clients (`replica`).

use crate::sync::{Mutex, MutexGuard, RwLock};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::cfile::cache::PageCache;
use crate::cfile::cached_reads;
use crate::cfile::page_file::PageFile;
use crate::cfile::reader::PageBytes;
use crate::config::TabletConfig;
use crate::disk::Disk;
use crate::error::{Error, Result};
use crate::ids::{TableId, TabletId};
use crate::memory::{MemTracker, MemoryHandle, TrackedBytes};
use crate::note::Note;
use crate::schema::Schema;
use crate::schema::partition::{Partition, PartitionSchema};
use crate::time::Timestamp;

pub mod apply;
mod base_data;
pub mod column_file;
mod column_spec;
pub mod compaction_policy;
mod components;
pub mod delta_compaction;
mod delta_page;
pub mod delta_tracker;
pub mod deltafile;
pub mod deltamemstore;
pub mod diskrowset;
mod diskrowset_scan;
#[cfg(test)]
mod diskrowset_tests;
mod diskrowset_writer;
pub mod flush;
mod history_window;
mod key_range_split;
pub mod major_delta_compaction;
pub mod memrowset;
mod memstore;
mod merge_scan;
pub mod minor_delta_compaction;
pub mod mvcc;
mod op_anchors;
pub mod prepared_batch;
mod row_action;
pub mod row_deltas;
pub mod row_errors;
mod row_fold;
mod row_version;
pub mod rowset;
pub mod rowset_compaction;
pub mod rowset_tree;
pub mod scan;
mod scan_filter;
mod stream_cursor;
pub mod superblock;
mod write_reservation;
pub mod writer;

use apply::WriteTotals;
use compaction_policy::{CompactionChoice, CompactionLimits, LastEvaluation, RowsetPlace};
pub use components::TabletComponents;
use diskrowset::{DiskRowSet, RowSetMeta, RowSetTrackers};
pub use key_range_split::KeyRange;
pub use write_reservation::GrowthEstimate;

use memrowset::{MemRowSet, MemRowSetScan};
use merge_scan::{MergeLimits, ScanInput};
use mvcc::Mvcc;
use op_anchors::OpAnchors;
use rowset::{ProbeStats, RowSetId};
use rowset_tree::RowSetTree;
use scan::{Scan, ScanSpec, SnapshotChoice};
use superblock::{Superblock, TabletSchema};

/// Rows in a block of a scan that only counts rows. No page of a DiskRowSet is read for them, so blocks are large.
const COUNTED_ROWS: usize = 1 << 16;

/// A tablet as readers see it.
pub struct Tablet {
    pub tablet: TabletId,
    pub table: TableId,
    pub partition_schema: PartitionSchema,
    pub partition: Partition,
    config: TabletConfig,
    mvcc: Mvcc,
    cache: Arc<PageCache>,
    memory: TabletMemory,
    /// Bloom filters consulted and key indexes searched by all writes since the tablet was opened.
    probes: [AtomicU64; 2],
    totals: Mutex<WriteTotals>,
    next_rowset: AtomicU64,
    /// See [`Tablet::history_mark`].
    history_mark: AtomicU64,
    /// Maintained by the writer, read by the choice of maintenance jobs.
    anchors: Mutex<OpAnchors>,
    /// The compaction policy's previous evaluation.
    last_evaluation: Mutex<LastEvaluation>,
    /// Bytes of the superblock as it was stored last.
    superblock_bytes: AtomicU64,
    state: RwLock<Arc<TabletComponents>>,
}

/// First operations of the log that unflushed data needs (log anchors).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LogAnchors {
    /// First operation needed by MemRowSets.
    pub rows: Option<u64>,
    /// First operation needed by the unflushed deltas of each DiskRowSet.
    pub deltas: BTreeMap<RowSetId, u64>,
}

/// Memory trackers of one tablet.
struct TabletMemory {
    all: Arc<MemTracker>,
    /// MemRowSets.
    rows: Arc<MemTracker>,
    /// DeltaMemStores, and memory held by open files.
    rowsets: RowSetTrackers,
    /// Operations that are not applied yet, their results for requests sent again, and log entries in memory.
    operations: Arc<MemTracker>,
    results: Arc<MemTracker>,
    log: Arc<MemTracker>,
    /// Flushes and compactions.
    work: Arc<MemTracker>,
}

impl TabletMemory {
    fn new(memory: &MemoryHandle, tablet: TabletId) -> TabletMemory {
        let all = memory.child(&format!("tablet-{tablet}"));
        let rowsets =
            RowSetTrackers { deltas: Some(all.child("recent-deltas")), files: Some(all.child("open-files")) };
        let (operations, results) = (all.child("operations"), all.child("results"));
        TabletMemory {
            rows: all.child("recent-rows"),
            rowsets,
            operations,
            results,
            log: all.child("log-entries"),
            work: all.child("maintenance"),
            all,
        }
    }
}

/// Sizes of a tablet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TabletStats {
    pub live_rows: u64,
    /// Bytes of the files of DiskRowSets.
    pub disk_bytes: u64,
    /// Bytes of the superblock.
    pub superblock_bytes: u64,
    pub memory_bytes: u64,
    pub mrs_bytes: u64,
    /// Bytes of DeltaMemStores.
    pub dms_bytes: u64,
    pub disk_rowsets: u64,
}

impl Tablet {
    /// Opens the tablet that a superblock describes, with the data that is on disk.
    pub(crate) fn open(
        data: &Arc<dyn Disk>,
        meta: &Superblock,
        config: TabletConfig,
        cache: Arc<PageCache>,
    ) -> Result<Tablet> {
        let schema = Arc::new(TabletSchema::of(meta));
        let memory = TabletMemory::new(&config.memory, meta.tablet);
        let active = Arc::new(MemRowSet::new(schema.clone(), &memory.rows));
        let (frozen, disk, tree) = (Vec::new(), Vec::new(), RowSetTree::default());
        let state = TabletComponents { schema, active, frozen, disk, tree };
        let tablet = Tablet {
            tablet: meta.tablet,
            table: meta.table,
            partition_schema: meta.partition_schema.clone(),
            partition: meta.partition.clone(),
            config,
            mvcc: Mvcc::new(meta.last_timestamp),
            totals: Mutex::default(),
            cache,
            memory,
            probes: Default::default(),
            next_rowset: AtomicU64::new(meta.next_rowset),
            history_mark: AtomicU64::new(meta.history_mark.0),
            anchors: Mutex::default(),
            last_evaluation: Mutex::default(),
            superblock_bytes: AtomicU64::new(meta.encode().len() as u64),
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

    /// Returns a new id for a rowset or another file; an id is never reused.
    pub(crate) fn new_rowset_id(&self) -> RowSetId {
        self.next_rowset.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns the id that [`Tablet::new_rowset_id`] gives out next.
    pub(crate) fn next_rowset_id(&self) -> RowSetId {
        self.next_rowset.load(Ordering::Relaxed)
    }

    /// Returns the ancient history mark. Snapshots before it are rejected, and history that only they need may be
    /// dropped. A flushed row that was deleted before the mark counts as absent.
    pub fn history_mark(&self) -> Timestamp {
        Timestamp(self.history_mark.load(Ordering::Acquire))
    }

    /// Raises the ancient history mark. From now on snapshots before `mark` are rejected, and new flushes and
    /// compactions drop the history before it that they read. The mark never decreases and never exceeds the last
    /// applied timestamp.
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

    /// Returns schema, version, table name and extra configuration, all of the same version.
    pub fn table_schema(&self) -> Arc<TabletSchema> {
        self.state().schema.clone()
    }

    /// Returns the cost of key lookups by writes since the tablet was opened.
    pub fn probes(&self) -> ProbeStats {
        let [blooms, keys] = &self.probes;
        ProbeStats { blooms: blooms.load(Ordering::Relaxed), keys: keys.load(Ordering::Relaxed) }
    }

    /// Stores the writer's totals.
    fn set_probes(&self, sums: ProbeStats) {
        self.probes[0].store(sums.blooms, Ordering::Relaxed);
        self.probes[1].store(sums.keys, Ordering::Relaxed);
    }

    /// Returns the row operations since the tablet was opened.
    pub fn write_totals(&self) -> WriteTotals {
        *self.totals.lock()
    }

    fn set_totals(&self, totals: WriteTotals) {
        *self.totals.lock() = totals;
    }

    /// Stores the size of the superblock; the caller has stored it.
    pub(crate) fn set_superblock_bytes(&self, bytes: usize) {
        self.superblock_bytes.store(bytes as u64, Ordering::Relaxed);
    }

    fn anchors(&self) -> MutexGuard<'_, OpAnchors> {
        self.anchors.lock()
    }

    /// Returns the operations from which on unflushed data needs the log.
    pub fn log_anchors(&self) -> LogAnchors {
        let anchors = self.anchors();
        LogAnchors { rows: anchors.rows(), deltas: anchors.deltas().clone() }
    }

    /// Tracks the memory of an operation that is decoded and not applied yet.
    pub(crate) fn track_operation(&self, bytes: usize) -> TrackedBytes {
        let tracked = TrackedBytes::new(&self.memory.operations);
        tracked.add(bytes as u64);
        tracked
    }

    /// Returns a tracker for the results that are kept for requests sent again.
    pub(crate) fn track_results(&self) -> TrackedBytes {
        TrackedBytes::new(&self.memory.results)
    }

    /// Returns a tracker for the log entries in memory.
    pub(crate) fn hold_log(&self) -> TrackedBytes {
        TrackedBytes::new(&self.memory.log)
    }

    /// Returns a tracker for the memory of a flush or compaction.
    pub(crate) fn track_job_memory(&self) -> TrackedBytes {
        TrackedBytes::for_maintenance(&self.memory.work)
    }

    /// Returns the tracker of all memory of this tablet.
    pub fn memory(&self) -> &Arc<MemTracker> {
        &self.memory.all
    }

    pub fn config(&self) -> &TabletConfig {
        &self.config
    }

    pub fn mvcc(&self) -> &Mvcc {
        &self.mvcc
    }

    /// Returns the files of all DiskRowSets, open: they stay readable when a compaction removes them.
    pub fn open_files(&self) -> Vec<PageFile> {
        self.state().disk.iter().flat_map(|rowset| rowset.open_files()).collect()
    }

    /// Starts a scan. Fails with `Invalid` if the spec contradicts itself or the schema.
    pub fn scan(&self, spec: &ScanSpec) -> Result<Scan> {
        loop {
            let (snapshot, state) = self.snapshot_and_state(spec)?;
            self.mark_scan(spec, &state);
            let (scan, page_bytes) = PageBytes::count(|| self.scan_at(spec, snapshot, &state));
            let mut scan = scan?;
            scan.count_pages(page_bytes);
            // Order: the mark is read again after the scan is built. A rowset can replace its files by ones without
            // ancient history while the components stay the same. If that happened after the first check, this snapshot
            // may need dropped history.
            if spec.oldest(snapshot) >= self.history_mark() {
                self.note_latest(spec, snapshot);
                return Ok(scan);
            }
        }
    }

    /// Starts a scan of few rows and reads its first block, from memory and cached pages. Returns `None` if it needs
    /// another page; [`Tablet::scan`] reads that.
    pub fn scan_cached(&self, spec: &ScanSpec) -> Option<Result<Scan>> {
        cached_reads::attempt(|| {
            let mut scan = self.scan(spec)?;
            scan.read_ahead()?;
            Ok(scan)
        })
    }

    /// Notes the snapshot, so that observers can compute the expected result.
    fn note_latest(&self, spec: &ScanSpec, snapshot: rowset::Snapshot) {
        if spec.snapshot == SnapshotChoice::Latest {
            let (applied, leads) = (Timestamp(snapshot.before.0 - 1), self.mvcc.leader_term());
            self.config.observer.note(self.tablet, &Note::ServedLatest { applied, leads });
        }
    }

    fn scan_at(&self, spec: &ScanSpec, snapshot: rowset::Snapshot, state: &TabletComponents) -> Result<Scan> {
        let rows = if spec.only_counts() { COUNTED_ROWS } else { self.config.scan_block_rows };
        let block = (spec.block_rows(rows), self.config.scan_block_bytes);
        let rowset_spec = scan::rowset_scan_spec(spec, &state.schema.schema, snapshot, block)?;
        let mut inputs = Vec::new();
        if let Some(rowset_spec) = &rowset_spec {
            for rowset in &state.disk {
                let meta = rowset.meta();
                if rowset_spec.may_overlap(&meta.min_key, &meta.max_key) {
                    let bytes = || rowset.scanned_bytes(&rowset_spec.columns);
                    let rowset_spec = self.limit_block_rows(rowset_spec, meta.rows.into(), bytes);
                    inputs.push(rowset_input(spec, rowset, &meta, rowset_spec)?);
                }
            }
            for mrs in state.frozen.iter().chain([&state.active]).filter(|mrs| mrs.rows() > 0) {
                let bytes = || mrs.scanned_bytes(&rowset_spec.columns);
                let rowset_spec = self.limit_block_rows(rowset_spec, mrs.rows(), bytes);
                let scan = Box::new(MemRowSetScan::new(mrs.clone(), rowset_spec));
                inputs.push(ScanInput { scan, first_key: Vec::new() });
            }
        }
        Ok(Scan::new(spec, snapshot, inputs, rowset_spec.as_ref(), MergeLimits::of(&self.config)))
    }

    /// Lowers the rows of a block if the rows are long. The rowset has `rows` rows of `bytes` bytes in total.
    fn limit_block_rows(
        &self,
        rowset_spec: &rowset::RowSetScanSpec,
        rows: u64,
        bytes: impl FnOnce() -> u64,
    ) -> rowset::RowSetScanSpec {
        let mut rowset_spec = rowset_spec.clone();
        if !rowset_spec.columns.is_empty() && !rowset_spec.is_one_key() {
            rowset_spec.block_rows = rowset_spec.block_rows.min(self.config.block_rows(rows, bytes()));
        }
        rowset_spec
    }

    fn mark_scan(&self, spec: &ScanSpec, state: &TabletComponents) {
        let observer = &self.config.observer;
        if !observer.is_present() {
            return;
        }
        observer.mark_if(!state.frozen.is_empty(), "scan: during a flush");
        observer.mark_if(state.disk.len() > 1, "scan: several rowsets");
        observer.mark_if(state.active.rows() > 0 && !state.disk.is_empty(), "scan: memory and disk");
        observer.mark_if(state.disk.iter().any(|rowset| rowset.dms_len() > 0), "scan: over a DeltaMemStore");
        let files = |rowset: &Arc<DiskRowSet>| !rowset.meta().delta_files.is_empty();
        observer.mark_if(state.disk.iter().any(files), "scan: over delta files");
        observer.mark_if(spec.ordered && spec.last_key.is_some(), "scan: resumed after a key");
        let past = matches!(spec.snapshot, SnapshotChoice::At(at) if at <= self.mvcc.last_applied());
        observer.mark_if(past, "scan: past snapshot");
        observer.mark_if(spec.diff_from.is_some(), "scan: diff scan");
        observer.mark_if(spec.only_counts(), "scan: count only");
        observer.mark_if(!spec.predicates.is_empty(), "scan: predicate");
        observer.mark_if(self.mvcc.earliest_in_flight().is_some(), "scan: operation in flight");
    }

    /// Returns the scan's snapshot, and rowsets that hold everything it sees.
    fn snapshot_and_state(&self, spec: &ScanSpec) -> Result<(rowset::Snapshot, Arc<TabletComponents>)> {
        loop {
            let snapshot = match spec.snapshot {
                SnapshotChoice::Latest => self.mvcc.latest(),
                SnapshotChoice::At(before) => rowset::Snapshot { before },
            };
            // Order: the components are read after the snapshot, so everything the snapshot sees is in them. They are
            // read before the mark, because the mark is raised before rowsets without ancient history are installed.
            let (state, mark) = (self.state(), self.history_mark());
            let oldest = spec.oldest(snapshot);
            if oldest >= mark {
                return Ok((snapshot, state));
            }
            if spec.snapshot != SnapshotChoice::Latest || spec.diff_from.is_some() {
                return Err(Error::invalid(format!(
                    "the snapshot at {oldest} is older than the ancient history mark {mark}: its history is no \
                     longer kept; read a later one, or keep more history"
                )));
            }
        }
    }

    /// Returns the compaction with the highest gain; `None` if no gain is large enough, or the table disables them.
    pub fn choose_compaction(&self) -> Option<CompactionChoice> {
        let (state, mark) = (self.state(), self.history_mark());
        if state.schema.is_compaction_disabled() {
            return None;
        }
        let mut last = self.last_evaluation.lock();
        last.choice(&state.disk, mark, &CompactionLimits::from(self.config()))
    }

    /// Returns the DiskRowSets with their places, and the rowset height: the rowsets that cover a key, on average.
    pub fn rowset_places(&self) -> (Vec<RowsetPlace>, f64) {
        compaction_policy::places(self.state().disk.iter().map(|rowset| rowset.meta()).collect())
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
        stats.superblock_bytes = self.superblock_bytes.load(Ordering::Relaxed);
        stats.memory_bytes = stats.mrs_bytes + stats.dms_bytes;
        stats
    }

    /// Returns the current rowsets and schema.
    pub fn state(&self) -> Arc<TabletComponents> {
        self.state.read().clone()
    }

    /// Replaces the components; only the writer calls this.
    fn set_state(&self, state: TabletComponents) {
        *self.state.write() = Arc::new(state);
    }
}

/// Returns the scan of a rowset, as part of a tablet's scan. A merge opens the rowset when it comes to its keys.
fn rowset_input(
    spec: &ScanSpec,
    rowset: &DiskRowSet,
    meta: &RowSetMeta,
    within: rowset::RowSetScanSpec,
) -> Result<ScanInput> {
    if !spec.ordered {
        return Ok(ScanInput { scan: rowset.scan(&within)?, first_key: Vec::new() });
    }
    let first_key = within.lower_key.as_ref().map_or(&meta.min_key, |lower| lower.max(&meta.min_key)).clone();
    Ok(ScanInput { scan: rowset.scan_later(within), first_key })
}
