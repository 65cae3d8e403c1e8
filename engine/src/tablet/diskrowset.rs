//! DiskRowSet: an immutable base, and the deltas of its rows.
//!
//! ```text
//!   find(key) ──▶ Bloom chunk ──▶ page of keys ──▶ RowId
//!   mutate(row, ts, change) ──▶ recent (DeltaMemStore)
//!   delta flush:   freeze         recent becomes frozen, and a new DeltaMemStore becomes recent
//!                  flush_frozen   frozen is written to a delta file; no superblock refers to it yet
//!                  install        after the superblock names the file: it replaces frozen
//! ```
//!
//! Readers hold the base and the deltas of the start of their scan. A flush replaces the list, never its elements.
//! Deltas added to `recent` later are newer than the snapshot of any such reader.
//!
//! Not here: writing the base (`diskrowset_writer`), scanning (`diskrowset_scan`), and checking that
//! an operation may change a row (the caller does).

use crate::sync::{RwLock, RwLockReadGuard};
use std::sync::Arc;

use super::base_data::BaseData;
use super::column_file;
use super::delta_tracker::RowsetDeltas;
use super::deltafile::{DeltaDirection, DeltaMeta, DeltaReader, DeltaWriter};
use super::deltamemstore::DeltaMemStore;
use super::diskrowset_scan::{DeferredScan, DiskRowSetScan};
use super::diskrowset_writer::RowSetFooter;
pub use super::diskrowset_writer::{ColumnFileConfig, DeltaFileMeta, DiskRowSetWriter, RowSetMeta};
use super::rowset::{ProbeStats, RowSetScan, RowSetScanSpec, default_bytes};
use crate::cfile::cache::PageCache;
use crate::cfile::page_file::{FileKind, PageFile, PageOwner, PageWriter, stream};
use crate::cfile::page_index::PageEntry;
use crate::cfile::reader::{CachedFile, StreamReader};
use crate::cfile::writer::StreamMeta;
use crate::disk::Disk;
use crate::error::{Error, Result};
use crate::ids::{ColumnId, RowId, TabletId};
use crate::memory::MemTracker;
use crate::schema::Schema;
use crate::schema::row_block::{ProjectedColumn, RowBlock};
use crate::time::Timestamp;

/// One stream of a base and its pages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamLayout {
    pub meta: StreamMeta,
    pub pages: Vec<PageEntry>,
}

struct State {
    meta: Arc<RowSetMeta>,
    /// The base as flushed, except for the columns of the column file.
    base: Arc<BaseData>,
    deltas: RowsetDeltas,
    /// The column file, if there is one.
    column_file: Option<Arc<CachedFile>>,
    /// Every operation up to and including this timestamp is in `frozen` or in a file.
    frozen_ts: Timestamp,
}

/// A DiskRowSet, open for reading and for new deltas.
pub struct DiskRowSet {
    data: Arc<dyn Disk>,
    tablet: TabletId,
    cache: Arc<PageCache>,
    /// The base as flushed. Its keys never change.
    base: Arc<BaseData>,
    /// The deltas in the base's own file.
    base_deltas: RowsetDeltas,
    state: RwLock<State>,
    memory: RowSetTrackers,
}

/// Memory trackers of a rowset, if memory is tracked.
#[derive(Clone, Default)]
pub struct RowSetTrackers {
    /// DeltaMemStores.
    pub deltas: Option<Arc<MemTracker>>,
    /// Footers and indexes of open files.
    pub files: Option<Arc<MemTracker>>,
}

/// Numbers of a rowset's deltas that a rewrite would drop or fold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct RewrittenDeltas {
    /// Deltas older than the ancient history mark.
    pub ancient: u64,
    /// Deltas that a major delta compaction has left and a rewrite of the rowset would fold.
    pub unfolded: u64,
}

impl DiskRowSet {
    /// Opens a rowset and its delta files. Fails with `Corrupt` if they are damaged or do not belong together.
    pub fn open(
        data: Arc<dyn Disk>,
        tablet: TabletId,
        meta: RowSetMeta,
        schema: &Schema,
        cache: Arc<PageCache>,
        memory: RowSetTrackers,
    ) -> Result<DiskRowSet> {
        let identity = PageOwner { tablet, rowset: meta.id };
        let (file, footer) = PageFile::open(&*data, &meta.file, FileKind::RowSet, identity)?;
        let footer: RowSetFooter = postcard::from_bytes(&footer)
            .map_err(|error| Error::corrupt(format!("{}: the footer does not decode: {error}", meta.file)))?;
        let key: Vec<_> = schema.key_columns().iter().map(|column| column.ty.physical()).collect();
        if footer.rows != meta.rows || footer.key != key {
            return Err(Error::corrupt(format!("{}: not the rowset that the superblock names", meta.file)));
        }
        let file = CachedFile::counted(file, cache.clone(), memory.files.as_ref());
        file.holds(size_of::<DiskRowSet>() + 2 * meta.byte_size());
        let base_deltas = RowsetDeltas {
            undo: delta_reader(&file, &footer.undo).into_iter().collect(),
            redo: delta_reader(&file, &footer.redo).into_iter().collect(),
            frozen: None,
            recent: Arc::default(),
        };
        let base = Arc::new(BaseData::open(&file, footer)?);
        let frozen_ts = meta.redo_ts;
        let initial = State {
            meta: Arc::new(meta),
            base: base.clone(),
            deltas: RowsetDeltas { recent: empty_delta_store(&memory), ..base_deltas.clone() },
            column_file: None,
            frozen_ts,
        };
        let rowset =
            DiskRowSet { data, tablet, cache, base, base_deltas, state: RwLock::new(initial), memory };
        let meta = rowset.meta();
        rowset.replace_delta_files(meta)?;
        Ok(rowset)
    }

    /// Opens the column and delta files that `meta` names, and replaces the previous ones.
    fn replace_delta_files(&self, meta: Arc<RowSetMeta>) -> Result<()> {
        let identity = PageOwner { tablet: self.tablet, rowset: meta.id };
        let (mut base, mut deltas, mut column_file) = (self.base.clone(), self.base_deltas.clone(), None);
        if let Some(columns) = &meta.column_file {
            let (file, footer) = column_file::open(&*self.data, columns, identity, self.base.rows)?;
            let file = CachedFile::counted(file, self.cache.clone(), self.memory.files.as_ref());
            deltas.undo.extend(delta_reader(&file, &footer.undo));
            deltas.redo.extend(delta_reader(&file, &footer.redo));
            base = Arc::new(self.base.with_columns(&file, footer.columns)?);
            column_file = Some(file);
        }
        for delta in &meta.delta_files {
            deltas.redo.push(self.open_deltas(delta, identity)?);
        }
        let mut state = self.state.write();
        (deltas.frozen, deltas.recent) = (state.deltas.frozen.take(), state.deltas.recent.clone());
        (state.meta, state.base, state.deltas, state.column_file) = (meta, base, deltas, column_file);
        Ok(())
    }

    fn open_deltas(&self, delta: &DeltaFileMeta, identity: PageOwner) -> Result<Arc<DeltaReader>> {
        let (file, footer) = PageFile::open(&*self.data, &delta.file, FileKind::Delta, identity)?;
        if footer[..] != postcard::to_stdvec(&delta.deltas).expect("integers always encode") {
            return Err(Error::corrupt(format!(
                "{}: not the delta file that the superblock names",
                delta.file
            )));
        }
        let file = CachedFile::counted(file, self.cache.clone(), self.memory.files.as_ref());
        Ok(Arc::new(DeltaReader::new(file, delta.deltas.clone())))
    }

    fn state(&self) -> RwLockReadGuard<'_, State> {
        self.state.read()
    }

    pub fn meta(&self) -> Arc<RowSetMeta> {
        self.state().meta.clone()
    }

    /// Returns the metadata, and the numbers of deltas that a rewrite would drop, because only snapshots before `mark`
    /// need them, or fold.
    pub(super) fn meta_and_rewritten(&self, mark: Timestamp) -> (Arc<RowSetMeta>, RewrittenDeltas) {
        let state = self.state();
        let of_column_file =
            self.base_deltas.redo.len()..state.deltas.redo.len() - state.meta.delta_files.len();
        let unfolded = state.deltas.redo[of_column_file].iter().map(|file| file.meta());
        // Each row that is deleted and not reinserted keeps a DELETE.
        let unfolded = unfolded.map(|meta| meta.count - meta.deletes.saturating_sub(meta.reinserts)).sum();
        (state.meta.clone(), RewrittenDeltas { ancient: state.deltas.ancient(mark), unfolded })
    }

    /// Returns the encoded keys of the first and the last row.
    pub fn key_bounds(&self) -> (Vec<u8>, Vec<u8>) {
        let meta = self.meta();
        (meta.min_key.clone(), meta.max_key.clone())
    }

    /// Returns the number of rows that are live after the deltas.
    pub fn live_rows(&self) -> u64 {
        let state = self.state();
        let recent = state.deltas.recent.net_rows();
        let frozen = state.deltas.frozen.as_ref().map_or(0, |frozen| frozen.net_rows());
        state.meta.live_rows.saturating_add_signed(recent + frozen)
    }

    /// Returns the row with this encoded key, live or deleted.
    pub fn find(&self, key: &[u8], probes: &mut ProbeStats) -> Result<Option<RowId>> {
        probes.blooms += 1;
        if !self.base.may_contain(key)? {
            return Ok(None);
        }
        probes.keys += 1;
        self.base.keys.find(key)
    }

    /// Returns true if the row is live after the deltas.
    pub fn is_live(&self, row: RowId) -> Result<bool> {
        let state = self.state();
        if let Some(live) = state.deltas.is_live_without_io(row) {
            return Ok(live);
        }
        // Files are read without the lock.
        let deltas = state.deltas.clone();
        drop(state);
        deltas.is_live(row)
    }

    /// Returns true if the row was deleted before `mark`, so that it counts as absent.
    pub fn was_deleted_before(&self, row: RowId, mark: Timestamp) -> Result<bool> {
        if mark == Timestamp::MIN || self.is_live(row)? {
            return Ok(false);
        }
        self.deltas().was_deleted_before(row, mark)
    }

    /// Returns the row's columns after the deltas, as a block of one row; `None` if it is deleted.
    pub fn row_at_latest(&self, row: RowId, columns: Arc<[ProjectedColumn]>) -> Result<Option<RowBlock>> {
        let spec = RowSetScanSpec::latest(columns, 1);
        let (base, deltas) = self.base_and_deltas();
        let mut scan = DiskRowSetScan::over_rows(base, deltas, spec, row..row + 1)?;
        Ok(scan.next()?.map(|scanned| scanned.block))
    }

    /// Adds a delta to a row. The caller has checked that the operation is allowed, and orders the timestamps.
    pub fn mutate(&self, row: RowId, ts: Timestamp, change: &[u8]) -> Result<()> {
        if row >= self.base.rows {
            return Err(Error::invalid(format!(
                "rowset: row id {row} is out of range ({} rows)",
                self.base.rows
            )));
        }
        // The lock is held during the insert. Otherwise a freeze could miss the delta in the store that it writes.
        let state = self.state();
        state.deltas.recent.insert(row, ts, change)
    }

    /// Returns all deltas of the rowset.
    pub(super) fn deltas(&self) -> RowsetDeltas {
        self.state().deltas.clone()
    }

    /// Returns the base and its deltas, both of the same version.
    fn base_and_deltas(&self) -> (Arc<BaseData>, RowsetDeltas) {
        let state = self.state();
        (state.base.clone(), state.deltas.clone())
    }

    /// Returns the deltas in files other than the base, and the metadata that names those files. They do not change as
    /// long as no job works on the rowset.
    pub(super) fn delta_file_state(&self) -> (Arc<RowSetMeta>, RowsetDeltas) {
        let state = self.state();
        let newer = |all: &[Arc<DeltaReader>], older: &[Arc<DeltaReader>]| all[older.len()..].to_vec();
        let undo = newer(&state.deltas.undo, &self.base_deltas.undo);
        let redo = newer(&state.deltas.redo, &self.base_deltas.redo);
        (state.meta.clone(), RowsetDeltas { undo, redo, frozen: None, recent: Arc::default() })
    }

    /// Starts a scan of the columns as written, without any deltas.
    pub(super) fn scan_base(&self, spec: RowSetScanSpec) -> Result<DiskRowSetScan> {
        let none = RowsetDeltas { undo: Vec::new(), redo: Vec::new(), frozen: None, recent: Arc::default() };
        DiskRowSetScan::new(self.state().base.clone(), none, spec)
    }

    /// Calls `visit` with every delta that is not in a file: by row, and in order of time within a row.
    pub(super) fn for_each_memory_delta(
        &self,
        mut visit: impl FnMut(RowId, Timestamp, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let deltas = self.deltas();
        deltas.frozen.iter().chain([&deltas.recent]).try_for_each(|store| store.for_each(&mut visit))
    }

    /// Calls `visit` with encoded keys spread evenly over the rows, ascending: the first key of each page of keys, and
    /// the share of a page in the stored bytes of these columns.
    pub(super) fn visit_key_samples(
        &self,
        columns: &[ColumnId],
        mut visit: impl FnMut(Vec<u8>, u64),
    ) -> Result<()> {
        let keys = &self.base.keys;
        let index = keys.stream().index()?;
        let bounds = index.pages.iter().filter_map(|page| page.bounds.as_ref());
        let share = self.bytes_of(columns) / bounds.clone().count().max(1) as u64;
        for (low, _) in bounds {
            let mut key = Vec::new();
            keys.form().encode(low, &mut key);
            visit(key, share);
        }
        Ok(())
    }

    /// Returns the rowset's files, in the order of [`RowSetMeta::files`]. They stay readable while they are open, even
    /// after a compaction has removed their names.
    pub fn open_files(&self) -> Vec<PageFile> {
        let (base, state) = (&self.base.keys.stream().file().file, self.state());
        let columns = state.column_file.iter().map(|file| &file.file);
        let named = |file: &PageFile| state.meta.delta_files.iter().any(|delta| delta.file == file.path());
        let deltas = state.deltas.redo.iter().map(|deltas| deltas.file()).filter(|file| named(file));
        let files = std::iter::once(base).chain(columns).chain(deltas);
        files.cloned().collect()
    }

    /// Returns the stored bytes of these columns, or of all columns if none is given.
    pub fn bytes_of(&self, columns: &[ColumnId]) -> u64 {
        let is_requested = |stream: u32| columns.is_empty() || columns.contains(&ColumnId(stream));
        let state = self.state();
        let metas = state.base.columns.iter().map(|column| column.meta());
        metas.filter(|meta| is_requested(meta.stream)).map(|meta| meta.stored_bytes).sum()
    }

    /// Returns the bytes of all cells before encoding.
    pub fn raw_bytes(&self) -> u64 {
        self.scanned_bytes(&[])
    }

    /// Returns the bytes of all cells before encoding, and of the read defaults of those `columns` that the rowset
    /// lacks.
    pub fn scanned_bytes(&self, columns: &[ProjectedColumn]) -> u64 {
        let state = self.state();
        let base = &state.base;
        let cells: u64 = base.columns.iter().map(|column| column.meta().raw_bytes).sum();
        cells + u64::from(base.rows) * default_bytes(columns, |id| base.column(id).is_some())
    }

    /// Starts a scan in key order.
    pub fn scan(&self, spec: &RowSetScanSpec) -> Result<Box<dyn RowSetScan>> {
        let (base, deltas) = self.base_and_deltas();
        let scan = DiskRowSetScan::new(base, deltas, spec.clone())?;
        Ok(Box::new(scan))
    }

    /// Returns a scan in key order of the rowset as it is now, which reads nothing before its first block.
    pub fn scan_later(&self, spec: RowSetScanSpec) -> Box<dyn RowSetScan> {
        let (base, deltas) = self.base_and_deltas();
        Box::new(DeferredScan::new(base, deltas, spec))
    }

    /// Returns the bytes of memory of the deltas that are not in a file.
    pub fn dms_bytes(&self) -> usize {
        let state = self.state();
        let frozen = state.deltas.frozen.as_ref().map_or(0, |frozen| frozen.byte_size());
        state.deltas.recent.byte_size() + frozen
    }

    /// Returns the number of deltas that are not in a file.
    pub fn dms_len(&self) -> usize {
        let state = self.state();
        state.deltas.recent.len() + state.deltas.frozen.as_ref().map_or(0, |frozen| frozen.len())
    }

    /// Returns the layout of the base, stream by stream, for tools and tests.
    pub fn layout(&self) -> Result<Vec<StreamLayout>> {
        let base = self.state().base.clone();
        let keys = Some(base.keys.stream()).filter(|keys| keys.meta().stream == stream::KEYS);
        let streams = base.columns.iter().map(|column| &**column).chain(keys).chain([&*base.bloom]);
        let layout = |reader: &StreamReader| {
            Ok(StreamLayout { meta: reader.meta().clone(), pages: reader.index()?.pages.clone() })
        };
        streams.map(layout).collect()
    }

    /// Freezes the recent deltas for a flush; every operation up to and including `upto` is applied. Returns false if
    /// there is nothing to flush. Deltas that an earlier flush left frozen stay frozen.
    pub fn freeze(&self, upto: Timestamp) -> bool {
        let mut state = self.state.write();
        if state.deltas.frozen.is_some() {
            return true;
        }
        if state.deltas.recent.is_empty() {
            return false;
        }
        let recent: Arc<DeltaMemStore> =
            std::mem::replace(&mut state.deltas.recent, empty_delta_store(&self.memory));
        state.frozen_ts = upto.max(recent.newest());
        state.deltas.frozen = Some(recent);
        true
    }

    /// Writes the frozen deltas durably to a file, and returns the rowset's metadata with that file. Fails with
    /// `Invalid` if nothing is frozen.
    pub fn flush_frozen(&self, path: &str, config: &ColumnFileConfig) -> Result<RowSetMeta> {
        let (mut meta, frozen, frozen_ts) = {
            let state = self.state();
            let Some(frozen) = state.deltas.frozen.clone() else {
                return Err(Error::invalid(format!("{path}: no frozen deltas to flush")));
            };
            (RowSetMeta::clone(&state.meta), frozen, state.frozen_ts)
        };
        let identity = PageOwner { tablet: self.tablet, rowset: meta.id };
        let mut out = PageWriter::create(self.data.clone(), path, FileKind::Delta, identity)?;
        let mut writer = DeltaWriter::new(DeltaDirection::Redo, config.delta_page_bytes);
        frozen.for_each(|row, ts, change| writer.push(row, ts, change, &mut out))?;
        let deltas = writer.finish(&mut out)?.expect("frozen deltas are not empty");
        let footer = postcard::to_stdvec(&deltas).expect("integers always encode");
        let bytes = out.finish(&footer)?;
        meta.bytes += bytes;
        meta.redo_ts = meta.redo_ts.max(frozen_ts);
        meta.live_rows = meta.live_rows.saturating_add_signed(frozen.net_rows());
        meta.delta_files.push(DeltaFileMeta { file: path.to_string(), bytes, deltas });
        Ok(meta)
    }

    /// Replaces the frozen deltas by the file that [`DiskRowSet::flush_frozen`] wrote.
    pub fn install(&self, meta: RowSetMeta) -> Result<()> {
        let Some(delta) = meta.delta_files.last() else {
            return Err(Error::invalid("rowset metadata: no delta file to install"));
        };
        let identity = PageOwner { tablet: self.tablet, rowset: meta.id };
        let reader = self.open_deltas(delta, identity)?;
        let mut state = self.state.write();
        state.deltas.redo.push(reader);
        state.deltas.frozen = None;
        state.meta = Arc::new(meta);
        Ok(())
    }

    /// Installs the files that a delta compaction wrote in place of those that it read.
    pub fn install_compacted(&self, meta: RowSetMeta) -> Result<()> {
        self.replace_delta_files(Arc::new(meta))
    }
}

fn delta_reader(file: &Arc<CachedFile>, deltas: &Option<DeltaMeta>) -> Option<Arc<DeltaReader>> {
    let deltas = deltas.clone();
    deltas.map(|meta| Arc::new(DeltaReader::new(file.clone(), meta)))
}

fn empty_delta_store(memory: &RowSetTrackers) -> Arc<DeltaMemStore> {
    memory.deltas.as_ref().map_or_else(Arc::default, |memory| Arc::new(DeltaMemStore::new(memory)))
}
