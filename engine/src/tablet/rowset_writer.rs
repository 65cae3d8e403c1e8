//! Writes a DiskRowSet: rows in key order become one immutable file.
//!
//! ```text
//! streams   one per column │ encoded keys, if the key has several columns │ Bloom filter │ UNDO │ REDO (ghosts)
//! footer    rows, and where each stream's index is
//! ```
//!
//! The base is the newest state of each row; its UNDOs lead back to before the row's insertion. A row that was
//! deleted in memory before its flush (a ghost) is written with its last live values, and its deletion is a REDO.
//!
//! A crash before [`DiskRowSetWriter::finish`] returns leaves a file that no superblock names; whoever opens the
//! tablet removes it.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::column_file::ColumnFileMeta;
use super::deltafile::{DeltaMeta, DeltaWriter, Direction};
use super::rowset::RowSetId;
use crate::cfile::bloom::BloomWriter;
use crate::cfile::encoding::resolve;
use crate::cfile::frame::{FileKind, Identity, PageWriter, Sealed, stream, sync_all};
use crate::cfile::writer::{StreamMeta, StreamSpec, StreamWriter};
pub use crate::config::ColumnFileConfig;
use crate::disk::Disk;
use crate::error::{Error, Result};
use crate::ids::{ColumnId, RowId};
use crate::schema::block::RowBlock;
use crate::schema::{ColumnSchema, Compression, Encoding, Physical, Schema};
use crate::time::Timestamp;

/// One flushed file of a rowset's recent changes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeltaFileMeta {
    pub file: String,
    pub bytes: u64,
    pub deltas: DeltaMeta,
}

/// What the superblock keeps of a DiskRowSet: enough to open it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowSetMeta {
    pub id: RowSetId,
    /// Path of the base file.
    pub file: String,
    pub rows: u32,
    /// Rows alive after every change that is in a file.
    pub live_rows: u64,
    /// Encoded keys of the first and last row, dead or alive.
    pub min_key: Vec<u8>,
    pub max_key: Vec<u8>,
    /// Bytes of all its files.
    pub bytes: u64,
    /// Every operation up to and including this one is in the base and its UNDOs.
    pub base_ts: Timestamp,
    /// Every operation up to and including this one on these rows is in a file.
    pub redo_ts: Timestamp,
    /// Files of REDOs, oldest first.
    pub delta_files: Vec<DeltaFileMeta>,
    pub columns: Vec<ColumnId>,
    /// Columns that were written anew since. The superblock keeps it beside the rowsets: older ones did not have it.
    #[serde(skip)]
    pub column_file: Option<ColumnFileMeta>,
}

impl RowSetMeta {
    /// Bytes of memory taken.
    pub fn byte_size(&self) -> usize {
        let names: usize = self.files().map(str::len).sum();
        let deltas = self.delta_files.len() * size_of::<DeltaFileMeta>();
        let columns = size_of_val(&self.columns[..]);
        size_of::<RowSetMeta>() + self.min_key.len() + self.max_key.len() + names + deltas + columns
    }

    /// Every file it is made of.
    pub fn files(&self) -> impl Iterator<Item = &str> {
        let columns = self.column_file.iter().map(|columns| columns.file.as_str());
        let deltas = self.delta_files.iter().map(|delta| delta.file.as_str());
        std::iter::once(self.file.as_str()).chain(columns).chain(deltas)
    }
}

/// The footer of a base file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Footer {
    pub rows: u32,
    /// In the order of the schema; the first `key.len()` of them are the key.
    pub columns: Vec<StreamMeta>,
    pub key: Vec<Physical>,
    pub keys: Option<StreamMeta>,
    pub bloom: StreamMeta,
    pub undo: Option<DeltaMeta>,
    pub redo: Option<DeltaMeta>,
}

/// Writes one DiskRowSet.
pub struct DiskRowSetWriter {
    out: PageWriter,
    columns: Vec<StreamWriter>,
    column_ids: Vec<ColumnId>,
    key: Vec<Physical>,
    keys: Option<StreamWriter>,
    bloom: BloomWriter,
    undo: DeltaWriter,
    redo: DeltaWriter,
    rows: u32,
    ghosts: u64,
    min_key: Vec<u8>,
    max_key: Vec<u8>,
}

impl DiskRowSetWriter {
    /// Begins the file; its directory must exist.
    pub fn new(
        data: Arc<dyn Disk>,
        path: &str,
        identity: Identity,
        schema: &Schema,
        config: &ColumnFileConfig,
    ) -> Result<DiskRowSetWriter> {
        let sole_key = schema.num_key_columns() == 1;
        let spec = |(i, column): (usize, &ColumnSchema)| {
            column_spec(column, sole_key && i == 0, config).map(StreamWriter::new)
        };
        let columns = schema.columns().iter().enumerate().map(spec).collect::<Result<_>>()?;
        let keys = StreamSpec {
            stream: stream::KEYS,
            physical: Physical::Binary,
            nullable: false,
            encoding: Encoding::Prefix,
            compression: Compression::Lz4,
            page_bytes: config.key_page_bytes,
            exact_bounds: true,
        };
        Ok(DiskRowSetWriter {
            out: PageWriter::create(data, path, FileKind::RowSet, identity)?,
            columns,
            column_ids: schema.columns().iter().map(|column| column.id).collect(),
            key: schema.key_columns().iter().map(|column| column.ty.physical()).collect(),
            keys: (!sole_key).then(|| StreamWriter::new(keys)),
            bloom: BloomWriter::default(),
            undo: DeltaWriter::new(Direction::Undo, config.delta_page_bytes),
            redo: DeltaWriter::new(Direction::Redo, config.delta_page_bytes),
            rows: 0,
            ghosts: 0,
            min_key: Vec::new(),
            max_key: Vec::new(),
        })
    }

    /// Rows appended so far: the next row's id.
    pub fn rows(&self) -> RowId {
        self.rows
    }

    /// Appends rows in key order: all columns in the schema's order, and each row's encoded key.
    ///
    /// `Invalid` if a key is not above the one before it.
    pub fn append(&mut self, block: &RowBlock, keys: &[&[u8]]) -> Result<()> {
        assert_eq!(block.columns.len(), self.columns.len(), "a block has all columns of the schema");
        assert_eq!(keys.len(), block.rows, "every row has its key");
        let Some((first, last)) = keys.first().zip(keys.last()) else { return Ok(()) };
        let follows = self.rows == 0 || *first > &self.max_key[..];
        if !follows || keys.windows(2).any(|pair| pair[0] >= pair[1]) {
            return Err(Error::invalid(format!("{}: rows are not in key order", self.out.path())));
        }
        if self.rows == 0 {
            self.min_key = first.to_vec();
        }
        self.max_key.clear();
        self.max_key.extend_from_slice(last);
        for (writer, column) in self.columns.iter_mut().zip(&block.columns) {
            writer.append(column, &mut self.out)?;
        }
        for key in keys {
            self.bloom.push(key, &mut self.out)?;
            if let Some(writer) = &mut self.keys {
                writer.push(Some(key), &mut self.out)?;
            }
        }
        self.rows += block.rows as u32;
        Ok(())
    }

    /// Adds a change that leads back from the base: in order of rows, newest first within a row.
    pub fn undo(&mut self, row: RowId, ts: Timestamp, change: &[u8]) -> Result<()> {
        self.undo.push(row, ts, change, &mut self.out)
    }

    /// Adds the DELETE of a row that died in memory: in order of rows.
    pub fn redo(&mut self, row: RowId, ts: Timestamp, change: &[u8]) -> Result<()> {
        self.ghosts += 1;
        self.redo.push(row, ts, change, &mut self.out)
    }

    /// Bytes of memory taken.
    pub fn allocated(&self) -> usize {
        let streams: usize = self.columns.iter().chain(&self.keys).map(StreamWriter::allocated).sum();
        let deltas = self.undo.allocated() + self.redo.allocated();
        streams + deltas + self.bloom.allocated() + self.out.allocated()
    }

    /// Bytes written and waiting: about what the file would have if it were finished now.
    pub fn size_bytes(&self) -> u64 {
        let pending: usize = self.columns.iter().chain(&self.keys).map(StreamWriter::pending_bytes).sum();
        let deltas = self.undo.pending_bytes() + self.redo.pending_bytes();
        self.out.len() + (pending + deltas) as u64
    }

    /// Writes what is pending and makes the file durable; see [`DiskRowSetWriter::seal`].
    pub fn finish(self, base_ts: Timestamp) -> Result<RowSetMeta> {
        let (meta, sealed) = self.seal(base_ts)?;
        sync_all(&[sealed])?;
        Ok(meta)
    }

    /// Writes what is pending. Every operation up to and including `base_ts` is in the file, which has yet to be made
    /// durable. `Invalid` if there are no rows.
    pub fn seal(mut self, base_ts: Timestamp) -> Result<(RowSetMeta, Sealed)> {
        if self.rows == 0 {
            return Err(Error::invalid(format!("{}: a rowset needs a row", self.out.path())));
        }
        let out = &mut self.out;
        let columns = self.columns.into_iter().map(|column| column.finish(out)).collect::<Result<_>>()?;
        let keys = self.keys.map(|keys| keys.finish(out)).transpose()?;
        let footer = Footer {
            rows: self.rows,
            columns,
            key: self.key,
            keys,
            bloom: self.bloom.finish(&self.max_key, out)?,
            undo: self.undo.finish(out)?,
            redo: self.redo.finish(out)?,
        };
        let footer = postcard::to_stdvec(&footer).expect("numbers and names always encode");
        let (id, file) = (self.out.identity().rowset, self.out.path().to_string());
        let sealed = self.out.seal(&footer)?;
        let meta = RowSetMeta {
            id,
            file,
            rows: self.rows,
            live_rows: u64::from(self.rows) - self.ghosts,
            min_key: self.min_key,
            max_key: self.max_key,
            bytes: sealed.len(),
            base_ts,
            redo_ts: base_ts,
            delta_files: Vec::new(),
            columns: self.column_ids,
            column_file: None,
        };
        Ok((meta, sealed))
    }
}

pub(super) fn column_spec(
    column: &ColumnSchema,
    is_key: bool,
    config: &ColumnFileConfig,
) -> Result<StreamSpec> {
    let physical = column.ty.physical();
    let encoding = match (column.encoding, physical) {
        // A dictionary of values that are all different is of no use, and they come in order.
        (Encoding::Auto, Physical::Binary) if is_key => Encoding::Prefix,
        (asked, _) => resolve(physical, asked)
            .map_err(|error| Error::unsupported(format!("column {:?}: {error}", column.name)))?,
    };
    let compression = match column.compression {
        Compression::Default => config.compression,
        asked => asked,
    };
    let page_bytes = match (usize::try_from(column.block_bytes), is_key) {
        (Ok(asked), _) if asked > 0 => asked.clamp(64, 4 << 20),
        (_, true) => config.key_page_bytes,
        (_, false) => config.page_bytes,
    };
    Ok(StreamSpec {
        stream: column.id.0,
        physical,
        nullable: column.nullable,
        encoding,
        compression,
        page_bytes,
        exact_bounds: is_key,
    })
}
