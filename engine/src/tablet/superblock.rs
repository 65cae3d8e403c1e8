//! A tablet's superblock: its metadata file, replaced atomically.
//!
//! ```text
//!   tablet-meta/<tablet>           codec::seal("NYTM", version, postcard(Superblock))
//!   tablet-meta/<tablet>.deleted   the superblock of a tablet that is being deleted, whatever state it has
//!   tablet-meta/<tablet>.tmp       an interrupted replacement; overwritten by the next, removed by a start
//! ```
//!
//! A deletion begins with a rename, because a full device has no block for a new superblock.
//!
//! Not here: the layout of rows inside a DiskRowSet, which its own file describes.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::column_file::ColumnFileMeta;
use super::diskrowset::RowSetMeta;
use super::rowset::RowSetId;
use crate::codec;
use crate::disk::{self, Disk};
use crate::error::{Error, ErrorKind, Result};
use crate::format_level::StoredFormat;
use crate::ids::{ColumnId, OpId, TableId, TabletId};
use crate::schema::partition::{Partition, PartitionSchema};
use crate::schema::row_change::RowChange;
use crate::schema::row_layout::RowLayout;
use crate::schema::table_settings::{DISABLE_COMPACTION, MAINTENANCE_PRIORITY};
use crate::schema::{ColumnSchema, DataType, Schema};
use crate::time::Timestamp;

const DIR: &str = "tablet-meta";
/// End of the name of a superblock whose tablet is being deleted.
const DELETED: &str = ".deleted";
const MAGIC: [u8; 4] = *b"NYTM";
/// Version of the format. 2 added the ancient history mark, 3 the column files.
const VERSION: u16 = StoredFormat::Superblock.only_version();

/// State of a tablet's data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum DataState {
    Ready,
    /// Data and log are removed. The persisted vote and the last OpId of the log are retained.
    Tombstoned,
    /// Everything is being removed, the superblock last.
    Deleted,
    /// Being copied from another server. A server that finds this state at start treats it as a tombstone.
    Copying,
}

/// Metadata of a tablet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Superblock {
    pub tablet: TabletId,
    pub table: TableId,
    pub table_name: String,
    /// The schema at `replay_from`.
    pub schema: Schema,
    pub schema_version: u32,
    pub partition_schema: PartitionSchema,
    pub partition: Partition,
    /// The table's extra configuration at `replay_from`.
    pub extra: BTreeMap<String, String>,
    /// The replicas' configuration, encoded by the module that stores it.
    pub peers: Vec<u8>,
    pub data_state: DataState,
    /// The last operation of the log when it was removed; `None` if it was unknown.
    pub tombstone_last_op: Option<OpId>,
    /// DiskRowSets.
    pub rowsets: Vec<RowSetMeta>,
    /// Timestamp up to which every insert is in a DiskRowSet, or its row was deleted and dropped.
    pub mrs_durable: Timestamp,
    /// Index of the first operation of the log that a restart must replay.
    pub replay_from: u64,
    /// The newest applied operation: its OpId, and its timestamp. Invariant: the log never ends before it.
    pub last_op: OpId,
    pub last_timestamp: Timestamp,
    pub next_rowset: RowSetId,
    /// The last value given to an auto-incrementing column.
    pub auto_increment: i64,
    /// The ancient history mark. History before it may be dropped, so nothing before it can be read.
    pub history_mark: Timestamp,
    /// The rowsets' column files as stored; in memory each rowset has its own.
    pub(crate) column_files: BTreeMap<RowSetId, ColumnFileMeta>,
}

impl Superblock {
    /// Creates the superblock of a tablet without rows.
    pub fn new(
        tablet: TabletId,
        table: TableId,
        table_name: &str,
        schema: Schema,
        schema_version: u32,
        partition_schema: PartitionSchema,
        partition: Partition,
    ) -> Superblock {
        Superblock {
            tablet,
            table,
            table_name: table_name.to_string(),
            schema,
            schema_version,
            partition_schema,
            partition,
            extra: BTreeMap::new(),
            peers: Vec::new(),
            data_state: DataState::Ready,
            tombstone_last_op: None,
            rowsets: Vec::new(),
            mrs_durable: Timestamp::MIN,
            replay_from: 1,
            last_op: OpId::MIN,
            last_timestamp: Timestamp::MIN,
            next_rowset: 1,
            auto_increment: 0,
            history_mark: Timestamp::MIN,
            column_files: BTreeMap::new(),
        }
    }

    /// Creates a superblock for a tablet whose own one cannot be read: only the id is known. It is used for a
    /// tombstone. The schema is a placeholder, because a superblock needs one.
    pub fn unreadable(tablet: TabletId) -> Superblock {
        let key = ColumnSchema::new(0, "unknown", DataType::Int64);
        let schema = Schema::new(vec![key], 1).expect("one integer key column is a valid schema");
        let (none, all) = (PartitionSchema::default(), Partition::default());
        Superblock::new(tablet, TableId::ZERO, "", schema, 0, none, all)
    }

    /// Returns the tablets that have a superblock on this disk, in order.
    pub fn list(disk: &dyn Disk) -> Result<Vec<TabletId>> {
        disk.create_dir(DIR).map_err(|e| Error::io(format_args!("create directory {DIR}"), &e))?;
        let names = disk.list(DIR).map_err(|e| Error::io(format_args!("list directory {DIR}"), &e))?;
        let tablet = |name: &String| name.strip_suffix(DELETED).unwrap_or(name).parse().ok();
        let mut tablets: Vec<TabletId> = names.iter().filter_map(tablet).collect();
        // Names are sorted, so both names of one tablet are neighbours.
        tablets.dedup();
        Ok(tablets)
    }

    /// Reads a tablet's superblock; `NotFound` if there is none, `Corrupt` or `Unsupported` if it is unreadable. One
    /// that was marked by [`Superblock::mark_deleted`] is DELETED and need not be readable.
    pub fn load(disk: &dyn Disk, tablet: TabletId) -> Result<Superblock> {
        match Superblock::load_from(disk, tablet, &Superblock::path(tablet)) {
            Err(error) if error.kind == ErrorKind::NotFound => {}
            loaded => return loaded,
        }
        let meta = match Superblock::load_from(disk, tablet, &deleted_path(tablet)) {
            Err(error) if matches!(error.kind, ErrorKind::Corrupt | ErrorKind::Unsupported) => {
                Superblock::unreadable(tablet)
            }
            loaded => loaded?,
        };
        Ok(Superblock { data_state: DataState::Deleted, ..meta })
    }

    fn load_from(disk: &dyn Disk, tablet: TabletId, path: &str) -> Result<Superblock> {
        let failed = |e: std::io::Error| match e.kind() {
            std::io::ErrorKind::NotFound => {
                Error::not_found(format!("tablet {tablet}: not found on this server"))
            }
            _ => Error::io(format_args!("read {path}"), &e),
        };
        let file = disk.open(path).map_err(failed)?;
        let mut bytes = vec![0; file.len().map_err(failed)? as usize];
        file.read_at(0, &mut bytes).map_err(failed)?;
        let meta = Superblock::decode(&bytes).map_err(|e| e.context(path))?;
        if meta.tablet != tablet {
            return Err(Error::corrupt(format!("{path}: superblock of another tablet ({})", meta.tablet)));
        }
        Ok(meta)
    }

    /// Decodes the bytes of [`Superblock::encode`], in this format version or an older one.
    pub fn decode(bytes: &[u8]) -> Result<Superblock> {
        let (version, payload) = codec::unseal(MAGIC, VERSION, bytes)?;
        let mut payload = payload.to_vec();
        if version < 2 {
            // The mark is the last field. Version 1 never dropped history.
            payload = postcard::to_extend(&Timestamp::MIN, payload).expect("a timestamp can be encoded");
        }
        if version < 3 {
            let none: BTreeMap<RowSetId, ColumnFileMeta> = BTreeMap::new();
            payload = postcard::to_extend(&none, payload).expect("an empty list can be encoded");
        }
        let mut meta: Superblock =
            postcard::from_bytes(&payload).map_err(|e| Error::corrupt(format!("not a superblock: {e}")))?;
        for rowset in &mut meta.rowsets {
            rowset.column_file = meta.column_files.remove(&rowset.id);
        }
        if let Some(rowset) = meta.column_files.keys().next() {
            return Err(Error::corrupt(format!(
                "superblock: column file of rowset {rowset}, which is not listed"
            )));
        }
        Ok(meta)
    }

    /// Returns the superblock as checksummed bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut stored = self.clone();
        let file = |rowset: &RowSetMeta| Some((rowset.id, rowset.column_file.clone()?));
        stored.column_files = self.rowsets.iter().filter_map(file).collect();
        codec::seal(MAGIC, VERSION, &postcard::to_stdvec(&stored).expect("every field can be encoded"))
    }

    /// Replaces the tablet's superblock. After success the new one survives a crash; after a failure either one may be
    /// found.
    pub fn store(&self, disk: &dyn Disk) -> Result<()> {
        let path = Superblock::path(self.tablet);
        let bytes = self.encode();
        let stored =
            disk::create_dir_durably(disk, DIR).and_then(|()| disk::replace_file(disk, &path, &bytes));
        stored.map_err(|e| Error::io(format_args!("replace {path}"), &e))
    }

    /// Returns the path of a tablet's superblock in its data directory.
    pub fn path(tablet: TabletId) -> String {
        format!("{DIR}/{tablet}")
    }

    /// Makes the names of the stored superblocks durable. A start may find one in the cache alone, after a store whose
    /// last step failed. Order: called before files are removed that an older superblock may name.
    pub fn sync_names(disk: &dyn Disk) -> Result<()> {
        disk.sync_dir(DIR).map_err(|e| Error::io(format_args!("sync directory {DIR}"), &e))
    }

    /// Removes all interrupted replacements of superblocks: a tablet may be deleted before its next one. No task
    /// may be storing one. Returns the number of files.
    pub fn remove_interrupted(disk: &dyn Disk) -> Result<usize> {
        let names = match disk.list(DIR) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(0),
            names => names.map_err(|e| Error::io(format_args!("list directory {DIR}"), &e))?,
        };
        let interrupted = names.iter().filter(|name| name.ends_with(disk::TMP));
        let paths: Vec<String> = interrupted.map(|name| format!("{DIR}/{name}")).collect();
        // Without a sync: the next start would remove them again.
        for path in &paths {
            disk.remove(path).map_err(|e| Error::io(format_args!("remove {path}"), &e))?;
        }
        Ok(paths.len())
    }

    /// Marks the tablet as one that is being deleted, durably, without a new block on the device. Succeeds if it is
    /// marked already.
    pub fn mark_deleted(disk: &dyn Disk, tablet: TabletId) -> Result<()> {
        let path = Superblock::path(tablet);
        match disk.rename(&path, &deleted_path(tablet)) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                Err(Error::io(format_args!("rename {path}"), &e))
            }
            _ => Superblock::sync_names(disk),
        }
    }

    /// Removes the superblock of a tablet that was marked by [`Superblock::mark_deleted`]; the tablet is then unknown
    /// on this disk.
    pub fn remove(disk: &dyn Disk, tablet: TabletId) -> Result<()> {
        let path = deleted_path(tablet);
        let removed = disk.remove(&path).and_then(|()| disk.sync_dir(DIR));
        removed.map_err(|e| Error::io(format_args!("remove {path}"), &e))
    }
}

/// Returns the path of the superblock of a tablet that is being deleted.
fn deleted_path(tablet: TabletId) -> String {
    format!("{}{DELETED}", Superblock::path(tablet))
}

/// A tablet's schema of one version, with data derived from it.
#[derive(Debug, Clone)]
pub struct TabletSchema {
    pub schema: Arc<Schema>,
    pub version: u32,
    pub table_name: String,
    pub extra: BTreeMap<String, String>,
    pub layout: RowLayout,
}

impl TabletSchema {
    pub fn new(
        schema: Schema,
        version: u32,
        table_name: String,
        extra: BTreeMap<String, String>,
    ) -> TabletSchema {
        let layout = RowLayout::new(&schema);
        TabletSchema { schema: Arc::new(schema), version, table_name, extra, layout }
    }

    pub fn of(meta: &Superblock) -> TabletSchema {
        let (name, extra) = (meta.table_name.clone(), meta.extra.clone());
        TabletSchema::new(meta.schema.clone(), meta.schema_version, name, extra)
    }

    /// Returns the table's priority in maintenance, 0 if it has none.
    pub fn maintenance_priority(&self) -> i32 {
        self.extra.get(MAINTENANCE_PRIORITY).and_then(|priority| priority.parse().ok()).unwrap_or_default()
    }

    /// Returns true if the table's rowset and delta compactions are disabled.
    pub fn is_compaction_disabled(&self) -> bool {
        self.extra.get(DISABLE_COMPACTION).is_some_and(|disabled| disabled == "true")
    }

    /// Returns true if rows of both schemas have the same encoding with the same meaning.
    pub fn lays_out_rows_like(&self, other: &TabletSchema) -> bool {
        let (mine, theirs) = (self.schema.columns(), other.schema.columns());
        let same = |(a, b): (&ColumnSchema, &ColumnSchema)| {
            a.id == b.id && a.ty == b.ty && a.nullable == b.nullable && a.read_default == b.read_default
        };
        mine.len() == theirs.len() && mine.iter().zip(theirs).all(same)
    }

    /// Applies a row change to a row's cells, one per column.
    pub fn apply<'a>(&'a self, change: &RowChange<'a>, cells: &mut [Option<&'a [u8]>]) {
        if let RowChange::Reinsert(_) = change {
            let keys = self.schema.num_key_columns();
            for (cell, column) in cells.iter_mut().zip(self.schema.columns()).skip(keys) {
                *cell = column.read_default.as_deref();
            }
        }
        for (id, new) in change.cells() {
            if let Some(index) = self.schema.index_of_id(id) {
                cells[index] = new;
            }
        }
    }

    /// Returns the ids of the columns outside the key, in order.
    pub fn non_key_ids(&self) -> Vec<ColumnId> {
        self.schema.columns()[self.schema.num_key_columns()..].iter().map(|c| c.id).collect()
    }
}
