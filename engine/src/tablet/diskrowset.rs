//! A flushed set of rows: an immutable base, and the changes made to its rows since.
//!
//! ```text
//!   find(key) ──▶ Bloom chunk ──▶ page of keys ──▶ RowId
//!   mutate(row, ts, change) ──▶ recent (DeltaMemStore)
//!   flush:   freeze         recent becomes frozen, a new recent takes over
//!            flush_frozen   frozen is written to a file of REDOs; nothing refers to it yet
//!            install        once the superblock names the file: it takes frozen's place
//! ```
//!
//! Readers hold the base and the changes as they were when their scan began; a flush replaces the list, never
//! what is in it. Changes that reach `recent` later are newer than any snapshot such a reader can have.
//!
//! *Not here:* writing the base ([`super::rowset_writer`]), scanning ([`super::rowset_scan`]), which operations
//! may change a row (the caller has checked).

use std::sync::{Arc, RwLock, RwLockReadGuard};

use super::column_file;
use super::delta_tracker::DeltaState;
use super::deltafile::{DeltaMeta, DeltaReader, DeltaWriter, Direction};
use super::deltamemstore::DeltaMemStore;
use super::rowset::{ProbeStats, RowSetScan, RowSetScanSpec, Snapshot};
use super::rowset_scan::DiskRowSetScan;
use super::rowset_writer::Footer;
pub use super::rowset_writer::{ColumnFileConfig, DeltaFileMeta, DiskRowSetWriter, RowSetMeta};
use crate::cfile::bloom::Chunk;
use crate::cfile::cache::{PageCache, Worth};
use crate::cfile::frame::{FileKind, Identity, PageFile, PageWriter, stream};
use crate::cfile::hash::hash64;
use crate::cfile::index::PageEntry;
use crate::cfile::keys::{KeyForm, KeyIndex};
use crate::cfile::reader::{CachedFile, StreamReader};
use crate::cfile::writer::StreamMeta;
use crate::disk::Disk;
use crate::error::{Error, Result};
use crate::ids::{ColumnId, RowId, TabletId};
use crate::memory::MemTracker;
use crate::schema::block::{ProjectedColumn, RowBlock};
use crate::schema::{Physical, Schema};
use crate::time::Timestamp;

/// The immutable part of a rowset.
#[derive(Clone)]
pub(super) struct Base {
    pub rows: u32,
    /// By stream, which is the column's id.
    pub columns: Vec<Arc<StreamReader>>,
    pub key_columns: usize,
    pub keys: Arc<KeyIndex>,
    /// The Bloom filter, in chunks by key.
    bloom: Arc<StreamReader>,
}

impl Base {
    /// The position in `columns` of a column, if the rowset has it.
    pub fn column(&self, id: ColumnId) -> Option<usize> {
        self.columns.iter().position(|column| column.meta().stream == id.0)
    }

    pub fn in_key(&self, id: ColumnId) -> bool {
        self.column(id).is_some_and(|at| at < self.key_columns)
    }

    fn open(file: &Arc<CachedFile>, footer: Footer) -> Result<Base> {
        let bad = |what: &str| Error::corrupt(format!("{}: the footer {what}", file.file.path()));
        let key_columns = footer.key.len();
        if key_columns == 0 || key_columns > footer.columns.len() || footer.rows == 0 {
            return Err(bad("has no key or no rows"));
        }
        let streams = footer.columns.iter().chain(&footer.keys).chain([&footer.bloom]);
        if streams.into_iter().any(|stream| stream.rows != footer.rows) {
            return Err(bad("has streams of different lengths"));
        }
        let key = match footer.keys {
            Some(keys) => keys,
            None if key_columns == 1 => footer.columns[0].clone(),
            None => return Err(bad("lacks the key index")),
        };
        let form = KeyForm::of(&footer.key);
        let fits = match form {
            KeyForm::Encoded => key.physical == Physical::Binary,
            KeyForm::Integer(physical) => key.physical == physical,
        };
        if !fits || key.nullable {
            return Err(bad("has a key index of another type"));
        }
        let reader = |meta| StreamReader::new(file.clone(), meta);
        Ok(Base {
            rows: footer.rows,
            columns: footer.columns.into_iter().map(reader).map(Arc::new).collect(),
            key_columns,
            keys: Arc::new(KeyIndex::new(reader(key), form)),
            bloom: Arc::new(reader(footer.bloom)),
        })
    }

    /// The same with some columns read elsewhere. `Corrupt` if they are not columns of it that may change.
    fn with_columns(&self, file: &Arc<CachedFile>, columns: Vec<StreamMeta>) -> Result<Base> {
        let mut base = self.clone();
        for meta in columns {
            let place = base.column(ColumnId(meta.stream)).filter(|at| *at >= base.key_columns);
            let Some(at) = place.filter(|at| base.columns[*at].meta().physical == meta.physical) else {
                let (path, column) = (file.file.path(), meta.stream);
                return Err(Error::corrupt(format!("{path}: column {column} cannot take a column's place")));
            };
            base.columns[at] = Arc::new(StreamReader::new(file.clone(), meta));
        }
        Ok(base)
    }

    /// The row with this encoded key, dead or alive.
    pub fn find(&self, key: &[u8]) -> Result<Option<RowId>> {
        if self.may_contain(key)? { self.keys.find(key) } else { Ok(None) }
    }

    /// Whether the Bloom filter lets the key pass.
    fn may_contain(&self, key: &[u8]) -> Result<bool> {
        let first_key = |page: &PageEntry| page.bounds.clone().map_or(Vec::new(), |(first, _)| first);
        let bloom = &self.bloom;
        let lookup = bloom.lookup(first_key)?;
        let Some(ordinal) = lookup.separators.page_of(key) else { return Ok(false) };
        let entry = &lookup.index.pages[ordinal];
        if entry.bounds.as_ref().is_none_or(|(_, last)| key > &last[..]) {
            return Ok(false);
        }
        let file = bloom.file();
        let chunk = file.page(stream::BLOOM, ordinal as u32, entry.at, Worth::Lookup, |body| {
            let chunk = Chunk::decode(body)?;
            let bytes = chunk.byte_size();
            Ok((chunk, bytes))
        })?;
        Ok(chunk.may_contain(hash64(key)))
    }
}

/// One stream of a base and its pages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamLayout {
    pub meta: StreamMeta,
    pub pages: Vec<PageEntry>,
}

struct State {
    meta: Arc<RowSetMeta>,
    /// As flushed, but for the columns that were written anew since.
    base: Arc<Base>,
    deltas: DeltaState,
    /// The file with those columns.
    column_file: Option<Arc<CachedFile>>,
    /// Every operation up to and including this one is in `frozen` or in a file.
    frozen_ts: Timestamp,
}

/// A flushed set of rows, open for reading and for changes.
pub struct DiskRowSet {
    data: Arc<dyn Disk>,
    tablet: TabletId,
    cache: Arc<PageCache>,
    /// As flushed: for its keys, which never change.
    base: Arc<Base>,
    /// The changes that the base's own file has.
    base_deltas: DeltaState,
    state: RwLock<State>,
    memory: RowSetMemory,
}

/// Who counts what a rowset holds in memory, if anyone does.
#[derive(Clone, Default)]
pub struct RowSetMemory {
    /// Its recent changes.
    pub changes: Option<Arc<MemTracker>>,
    /// Footers and indexes of its open files.
    pub files: Option<Arc<MemTracker>>,
}

impl DiskRowSet {
    /// Opens a rowset and its delta files. `Corrupt` if they are damaged or do not belong together.
    pub fn open(
        data: Arc<dyn Disk>,
        tablet: TabletId,
        meta: RowSetMeta,
        schema: &Schema,
        cache: Arc<PageCache>,
        memory: RowSetMemory,
    ) -> Result<DiskRowSet> {
        let identity = Identity { tablet, rowset: meta.id };
        let (file, footer) = PageFile::open(&*data, &meta.file, FileKind::RowSet, identity)?;
        let footer: Footer = postcard::from_bytes(&footer)
            .map_err(|error| Error::corrupt(format!("{}: the footer does not decode: {error}", meta.file)))?;
        let key: Vec<_> = schema.key_columns().iter().map(|column| column.ty.physical()).collect();
        if footer.rows != meta.rows || footer.key != key {
            return Err(Error::corrupt(format!("{}: it is not the rowset of the superblock", meta.file)));
        }
        let file = CachedFile::counted(file, cache.clone(), memory.files.as_ref());
        file.holds(size_of::<DiskRowSet>() + 2 * meta.byte_size());
        let base_deltas = DeltaState {
            undo: delta_reader(&file, &footer.undo).into_iter().collect(),
            redo: delta_reader(&file, &footer.redo).into_iter().collect(),
            frozen: None,
            recent: Arc::default(),
        };
        let base = Arc::new(Base::open(&file, footer)?);
        let frozen_ts = meta.redo_ts;
        let first = State {
            meta: Arc::new(meta),
            base: base.clone(),
            deltas: DeltaState { recent: no_changes(&memory), ..base_deltas.clone() },
            column_file: None,
            frozen_ts,
        };
        let rowset = DiskRowSet { data, tablet, cache, base, base_deltas, state: RwLock::new(first), memory };
        let meta = rowset.meta();
        rowset.put_on(meta)?;
        Ok(rowset)
    }

    /// Opens the files that a meta names beside the base and puts them in the place of those that were there.
    fn put_on(&self, meta: Arc<RowSetMeta>) -> Result<()> {
        let identity = Identity { tablet: self.tablet, rowset: meta.id };
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
        let mut state = self.state.write().expect("no holder of the lock panics");
        (deltas.frozen, deltas.recent) = (state.deltas.frozen.take(), state.deltas.recent.clone());
        (state.meta, state.base, state.deltas, state.column_file) = (meta, base, deltas, column_file);
        Ok(())
    }

    fn open_deltas(&self, delta: &DeltaFileMeta, identity: Identity) -> Result<Arc<DeltaReader>> {
        let (file, footer) = PageFile::open(&*self.data, &delta.file, FileKind::Delta, identity)?;
        if footer[..] != postcard::to_stdvec(&delta.deltas).expect("numbers always encode") {
            return Err(Error::corrupt(format!(
                "{}: it is not the delta file of the superblock",
                delta.file
            )));
        }
        let file = CachedFile::counted(file, self.cache.clone(), self.memory.files.as_ref());
        Ok(Arc::new(DeltaReader::new(file, delta.deltas.clone())))
    }

    fn state(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().expect("no holder of the lock panics")
    }

    pub fn meta(&self) -> Arc<RowSetMeta> {
        self.state().meta.clone()
    }

    /// The meta, and the changes that only snapshots before `mark` need (see [`DeltaState::ancient`]).
    pub(super) fn meta_and_ancient(&self, mark: Timestamp) -> (Arc<RowSetMeta>, u64) {
        let state = self.state();
        (state.meta.clone(), state.deltas.ancient(mark))
    }

    /// Encoded keys of the first and the last row.
    pub fn key_bounds(&self) -> (Vec<u8>, Vec<u8>) {
        let meta = self.meta();
        (meta.min_key.clone(), meta.max_key.clone())
    }

    /// Rows that are alive after every change so far.
    pub fn live_rows(&self) -> u64 {
        let state = self.state();
        let recent = state.deltas.recent.net_rows();
        let frozen = state.deltas.frozen.as_ref().map_or(0, |frozen| frozen.net_rows());
        state.meta.live_rows.saturating_add_signed(recent + frozen)
    }

    /// The row with this encoded key, dead or alive.
    pub fn find(&self, key: &[u8], probes: &mut ProbeStats) -> Result<Option<RowId>> {
        probes.blooms += 1;
        if !self.base.may_contain(key)? {
            return Ok(None);
        }
        probes.keys += 1;
        self.base.keys.find(key)
    }

    /// Whether the row is alive after every change so far.
    pub fn is_live(&self, row: RowId) -> Result<bool> {
        let state = self.state();
        if let Some(live) = state.deltas.is_live_at_sight(row) {
            return Ok(live);
        }
        // The lock is not held while files are read.
        let deltas = state.deltas.clone();
        drop(state);
        deltas.is_live(row)
    }

    /// Whether the row died before `mark`, so that it counts as not being there.
    pub fn died_before(&self, row: RowId, mark: Timestamp) -> Result<bool> {
        if mark == Timestamp::MIN || self.is_live(row)? {
            return Ok(false);
        }
        self.deltas().died_before(row, mark)
    }

    /// The row's columns after every change so far, as a block of one row; `None` if it is dead.
    pub fn row_at_latest(&self, row: RowId, columns: Arc<[ProjectedColumn]>) -> Result<Option<RowBlock>> {
        let spec = RowSetScanSpec {
            columns,
            predicates: Arc::new([]),
            lower_key: None,
            upper_key: None,
            snapshot: Snapshot { before: Timestamp::MAX },
            diff_from: None,
            want_keys: false,
            block_rows: 1,
        };
        let (base, deltas) = self.base_and_deltas();
        let mut scan = DiskRowSetScan::over_rows(base, deltas, spec, row..row + 1)?;
        Ok(scan.next()?.map(|scanned| scanned.block))
    }

    /// Adds a change to a row. The caller has checked that the operation may be made, and orders timestamps.
    pub fn mutate(&self, row: RowId, ts: Timestamp, change: &[u8]) -> Result<()> {
        if row >= self.base.rows {
            return Err(Error::invalid(format!("there is no row {row} in a rowset of {}", self.base.rows)));
        }
        // The lock is held meanwhile so that a freeze does not leave the change behind in what it writes.
        let state = self.state();
        state.deltas.recent.insert(row, ts, change)
    }

    /// All changes of its rows as of now.
    pub(super) fn deltas(&self) -> DeltaState {
        self.state().deltas.clone()
    }

    /// The values and the changes that lead on from them, as of one moment.
    fn base_and_deltas(&self) -> (Arc<Base>, DeltaState) {
        let state = self.state();
        (state.base.clone(), state.deltas.clone())
    }

    /// The changes in files beside the base, and the meta that names them. As long as no job works on the rowset they
    /// stay what they are.
    pub(super) fn filed_changes(&self) -> (Arc<RowSetMeta>, DeltaState) {
        let state = self.state();
        let newer = |all: &[Arc<DeltaReader>], older: &[Arc<DeltaReader>]| all[older.len()..].to_vec();
        let undo = newer(&state.deltas.undo, &self.base_deltas.undo);
        let redo = newer(&state.deltas.redo, &self.base_deltas.redo);
        (state.meta.clone(), DeltaState { undo, redo, frozen: None, recent: Arc::default() })
    }

    /// A scan of the columns as they were written, without any changes.
    pub(super) fn scan_base(&self, spec: RowSetScanSpec) -> Result<DiskRowSetScan> {
        let none = DeltaState { undo: Vec::new(), redo: Vec::new(), frozen: None, recent: Arc::default() };
        DiskRowSetScan::new(self.state().base.clone(), none, spec)
    }

    /// Calls `visit` with every change that is not in a file: by row, and in order of time within a row.
    pub(super) fn recent_changes(
        &self,
        mut visit: impl FnMut(RowId, Timestamp, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let deltas = self.deltas();
        deltas.frozen.iter().chain([&deltas.recent]).try_for_each(|store| store.for_each(&mut visit))
    }

    /// Encoded keys spread evenly over its rows, ascending: the first of each page of keys.
    pub fn key_samples(&self) -> Result<Vec<Vec<u8>>> {
        let keys = &self.base.keys;
        let index = keys.stream().index()?;
        let first = |(low, _): &(Vec<u8>, Vec<u8>)| {
            let mut key = Vec::new();
            keys.form().encode(low, &mut key);
            key
        };
        Ok(index.pages.iter().filter_map(|page| page.bounds.as_ref().map(first)).collect())
    }

    /// Its files, in the order of [`RowSetMeta::files`]. Whoever holds them can read them, even
    /// when a compaction has removed their names.
    pub fn open_files(&self) -> Vec<PageFile> {
        let (base, state) = (&self.base.keys.stream().file().file, self.state());
        let columns = state.column_file.iter().map(|file| &file.file);
        let named = |file: &PageFile| state.meta.delta_files.iter().any(|delta| delta.file == file.path());
        let deltas = state.deltas.redo.iter().map(|deltas| deltas.file()).filter(|file| named(file));
        let files = std::iter::once(base).chain(columns).chain(deltas);
        files.cloned().collect()
    }

    /// Bytes that the pages of these columns take; of all columns if none is named.
    pub fn bytes_of(&self, columns: &[ColumnId]) -> u64 {
        let wanted = |stream: u32| columns.is_empty() || columns.contains(&ColumnId(stream));
        let state = self.state();
        let metas = state.base.columns.iter().map(|column| column.meta());
        metas.filter(|meta| wanted(meta.stream)).map(|meta| meta.stored_bytes).sum()
    }

    /// Bytes of its cells before they were encoded.
    pub fn raw_bytes(&self) -> u64 {
        self.state().base.columns.iter().map(|column| column.meta().raw_bytes).sum()
    }

    /// Begins a scan in key order.
    pub fn scan(&self, spec: &RowSetScanSpec) -> Result<Box<dyn RowSetScan>> {
        let (base, deltas) = self.base_and_deltas();
        let scan = DiskRowSetScan::new(base, deltas, spec.clone())?;
        Ok(Box::new(scan))
    }

    /// Bytes of memory that changes take which are not in a file.
    pub fn dms_bytes(&self) -> usize {
        let state = self.state();
        let frozen = state.deltas.frozen.as_ref().map_or(0, |frozen| frozen.byte_size());
        state.deltas.recent.byte_size() + frozen
    }

    /// Changes that are not in a file.
    pub fn dms_len(&self) -> usize {
        let state = self.state();
        state.deltas.recent.len() + state.deltas.frozen.as_ref().map_or(0, |frozen| frozen.len())
    }

    /// How the base is laid out, stream by stream: for tools and tests.
    pub fn layout(&self) -> Result<Vec<StreamLayout>> {
        let base = self.state().base.clone();
        let keys = Some(base.keys.stream()).filter(|keys| keys.meta().stream == stream::KEYS);
        let streams = base.columns.iter().map(|column| &**column).chain(keys).chain([&*base.bloom]);
        let layout = |reader: &StreamReader| {
            Ok(StreamLayout { meta: reader.meta().clone(), pages: reader.index()?.pages.clone() })
        };
        streams.map(layout).collect()
    }

    /// Sets the recent changes aside to be written; every operation up to and including `upto` has been
    /// applied. False if there is nothing to write. What an earlier flush left frozen is kept as it is.
    pub fn freeze(&self, upto: Timestamp) -> bool {
        let mut state = self.state.write().expect("no holder of the lock panics");
        if state.deltas.frozen.is_some() {
            return true;
        }
        if state.deltas.recent.is_empty() {
            return false;
        }
        let recent: Arc<DeltaMemStore> =
            std::mem::replace(&mut state.deltas.recent, no_changes(&self.memory));
        state.frozen_ts = upto.max(recent.newest());
        state.deltas.frozen = Some(recent);
        true
    }

    /// Writes what is frozen to a file, durably, and gives the rowset's meta as it will be with that file.
    /// `Invalid` if nothing is frozen.
    pub fn flush_frozen(&self, path: &str, config: &ColumnFileConfig) -> Result<RowSetMeta> {
        let (mut meta, frozen, frozen_ts) = {
            let state = self.state();
            let Some(frozen) = state.deltas.frozen.clone() else {
                return Err(Error::invalid(format!("{path}: nothing is frozen to be flushed")));
            };
            (RowSetMeta::clone(&state.meta), frozen, state.frozen_ts)
        };
        let identity = Identity { tablet: self.tablet, rowset: meta.id };
        let mut out = PageWriter::create(self.data.clone(), path, FileKind::Delta, identity)?;
        let mut writer = DeltaWriter::new(Direction::Redo, config.delta_page_bytes);
        frozen.for_each(|row, ts, change| writer.push(row, ts, change, &mut out))?;
        let deltas = writer.finish(&mut out)?.expect("what is frozen is not empty");
        let footer = postcard::to_stdvec(&deltas).expect("numbers always encode");
        let bytes = out.finish(&footer)?;
        meta.bytes += bytes;
        meta.redo_ts = meta.redo_ts.max(frozen_ts);
        meta.live_rows = meta.live_rows.saturating_add_signed(frozen.net_rows());
        meta.delta_files.push(DeltaFileMeta { file: path.to_string(), bytes, deltas });
        Ok(meta)
    }

    /// Puts the file that [`DiskRowSet::flush_frozen`] wrote in the place of what was frozen.
    pub fn install(&self, meta: RowSetMeta) -> Result<()> {
        let Some(delta) = meta.delta_files.last() else {
            return Err(Error::invalid("a flushed rowset has a delta file"));
        };
        let identity = Identity { tablet: self.tablet, rowset: meta.id };
        let reader = self.open_deltas(delta, identity)?;
        let mut state = self.state.write().expect("no holder of the lock panics");
        state.deltas.redo.push(reader);
        state.deltas.frozen = None;
        state.meta = Arc::new(meta);
        Ok(())
    }

    /// Puts the column file of a [`super::delta_merge::DeltaMerge`] in the place of the changes that it took in.
    pub fn install_columns(&self, meta: RowSetMeta) -> Result<()> {
        self.put_on(Arc::new(meta))
    }
}

fn delta_reader(file: &Arc<CachedFile>, deltas: &Option<DeltaMeta>) -> Option<Arc<DeltaReader>> {
    let deltas = deltas.clone();
    deltas.map(|meta| Arc::new(DeltaReader::new(file.clone(), meta)))
}

fn no_changes(memory: &RowSetMemory) -> Arc<DeltaMemStore> {
    memory.changes.as_ref().map_or_else(Arc::default, |memory| Arc::new(DeltaMemStore::new(memory)))
}
