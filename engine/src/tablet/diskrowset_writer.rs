//! DiskRowSet writer: rows in key order become one immutable file.
//!
//! ```text
//! streams   one per column │ encoded keys, if the key has several columns │ Bloom filter │ UNDO │ REDO (ghost rows)
//! footer    rows, and the position of each stream's index
//! ```
//!
//! The base has the newest version of each row; its UNDO deltas go back to before the row's insertion. A ghost row
//! (deleted in memory before its flush) is written with its last live values, and its deletion is a REDO delta.
//!
//! A crash before [`DiskRowSetWriter::finish`] returns leaves an orphan file, which the next bootstrap of the tablet
//! removes.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::column_file::ColumnFileMeta;
use super::column_spec::column_spec;
use super::deltafile::{DeltaDirection, DeltaMeta, DeltaWriter};
use super::rowset::RowSetId;
use crate::cfile::key_bloom::KeyBloomWriter;
use crate::cfile::page_file::{FileKind, PageOwner, PageWriter, SealedFile, stream, sync_all};
use crate::cfile::writer::{INDEX_BYTES_MAX, StreamMeta, StreamSpec, StreamWriter};
pub use crate::config::ColumnFileConfig;
use crate::disk::Disk;
use crate::error::{Error, Result};
use crate::ids::{ColumnId, RowId};
use crate::schema::row_block::RowBlock;
use crate::schema::{ColumnSchema, Compression, Encoding, PhysicalType, Schema};
use crate::time::Timestamp;

/// Superblock entry of a delta file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeltaFileMeta {
    pub file: String,
    pub bytes: u64,
    pub deltas: DeltaMeta,
}

/// Superblock entry of a DiskRowSet: the metadata needed to open it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowSetMeta {
    pub id: RowSetId,
    /// Path of the base file.
    pub file: String,
    pub rows: u32,
    /// Rows that are live after every delta that is in a file.
    pub live_rows: u64,
    /// Encoded keys of the first and the last row, live or deleted.
    pub min_key: Vec<u8>,
    pub max_key: Vec<u8>,
    /// Bytes of all its files.
    pub bytes: u64,
    /// Every operation up to and including this timestamp is in the base and its UNDO deltas.
    pub base_ts: Timestamp,
    /// Every operation on these rows up to and including this timestamp is in a file.
    pub redo_ts: Timestamp,
    /// Delta files, oldest first.
    pub delta_files: Vec<DeltaFileMeta>,
    pub columns: Vec<ColumnId>,
    /// The column file with rewritten columns. The superblock stores it beside the rowsets, because older format
    /// versions do not have it.
    #[serde(skip)]
    pub column_file: Option<ColumnFileMeta>,
}

impl RowSetMeta {
    /// Returns the bytes of memory used.
    pub fn byte_size(&self) -> usize {
        let names: usize = self.files().map(str::len).sum();
        let deltas = self.delta_files.len() * size_of::<DeltaFileMeta>();
        let columns = size_of_val(&self.columns[..]);
        size_of::<RowSetMeta>() + self.min_key.len() + self.max_key.len() + names + deltas + columns
    }

    /// Returns the paths of all its files.
    pub fn files(&self) -> impl Iterator<Item = &str> {
        let columns = self.column_file.iter().map(|columns| columns.file.as_str());
        let deltas = self.delta_files.iter().map(|delta| delta.file.as_str());
        std::iter::once(self.file.as_str()).chain(columns).chain(deltas)
    }
}

/// Footer of a base file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RowSetFooter {
    pub rows: u32,
    /// In the order of the schema; the first `key.len()` of them are the key.
    pub columns: Vec<StreamMeta>,
    pub key: Vec<PhysicalType>,
    pub keys: Option<StreamMeta>,
    pub bloom: StreamMeta,
    pub undo: Option<DeltaMeta>,
    pub redo: Option<DeltaMeta>,
}

/// Writer of one DiskRowSet.
pub struct DiskRowSetWriter {
    out: PageWriter,
    columns: Vec<StreamWriter>,
    column_ids: Vec<ColumnId>,
    key: Vec<PhysicalType>,
    keys: Option<StreamWriter>,
    bloom: KeyBloomWriter,
    undo: DeltaWriter,
    redo: DeltaWriter,
    rows: u32,
    ghosts: u64,
    min_key: Vec<u8>,
    max_key: Vec<u8>,
}

impl DiskRowSetWriter {
    /// Creates the file; its directory must exist.
    pub fn new(
        data: Arc<dyn Disk>,
        path: &str,
        identity: PageOwner,
        schema: &Schema,
        config: &ColumnFileConfig,
    ) -> Result<DiskRowSetWriter> {
        let is_single_key = schema.num_key_columns() == 1;
        let spec = |(i, column): (usize, &ColumnSchema)| {
            column_spec(column, is_single_key && i == 0, config).map(StreamWriter::new)
        };
        let columns = schema.columns().iter().enumerate().map(spec).collect::<Result<_>>()?;
        let keys = StreamSpec {
            stream: stream::KEYS,
            physical: PhysicalType::Binary,
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
            keys: (!is_single_key).then(|| StreamWriter::new(keys)),
            bloom: KeyBloomWriter::default(),
            undo: DeltaWriter::new(DeltaDirection::Undo, config.delta_page_bytes),
            redo: DeltaWriter::new(DeltaDirection::Redo, config.delta_page_bytes),
            rows: 0,
            ghosts: 0,
            min_key: Vec::new(),
            max_key: Vec::new(),
        })
    }

    /// Returns the rows appended so far, which is the next row's id.
    pub fn rows(&self) -> RowId {
        self.rows
    }

    /// Appends rows in key order: all columns in the schema's order, and each row's encoded key.
    ///
    /// Fails with `Invalid` if a key is not above the previous one.
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

    /// Appends an UNDO delta: in order of rows, newest first within a row.
    pub fn undo(&mut self, row: RowId, ts: Timestamp, change: &[u8]) -> Result<()> {
        self.undo.push(row, ts, change, &mut self.out)
    }

    /// Appends the DELETE of a ghost row, in order of rows.
    pub fn redo(&mut self, row: RowId, ts: Timestamp, change: &[u8]) -> Result<()> {
        self.ghosts += 1;
        self.redo.push(row, ts, change, &mut self.out)
    }

    /// Returns the bytes of memory allocated.
    pub fn allocated(&self) -> usize {
        let streams: usize = self.columns.iter().chain(&self.keys).map(StreamWriter::allocated).sum();
        let deltas = self.undo.allocated() + self.redo.allocated();
        streams + deltas + self.bloom.allocated() + self.out.allocated()
    }

    /// Returns the bytes written and pending: about the size of the file if it were finished now.
    pub fn size_bytes(&self) -> u64 {
        let pending: usize = self.columns.iter().chain(&self.keys).map(StreamWriter::pending_bytes).sum();
        let deltas = self.undo.pending_bytes() + self.redo.pending_bytes();
        let indexes: usize = self.index_bytes().sum();
        self.out.len() + (pending + deltas + indexes) as u64
    }

    /// Returns true if the file should end here although it is small: an index is one page, whose size is limited. The
    /// rest of the limit is for the rows of one step.
    pub fn has_large_index(&self) -> bool {
        self.index_bytes().any(|bytes| bytes >= INDEX_BYTES_MAX)
    }

    /// Returns the bytes of the index of each stream. Key streams have whole keys there, so their indexes can be longer
    /// than their compressed pages.
    fn index_bytes(&self) -> impl Iterator<Item = usize> {
        let streams = self.columns.iter().chain(&self.keys).map(StreamWriter::index_bytes);
        streams.chain([self.bloom.index_bytes(), self.undo.index_bytes(), self.redo.index_bytes()])
    }

    /// Writes pending pages and makes the file durable; see [`DiskRowSetWriter::seal`].
    pub fn finish(self, base_ts: Timestamp) -> Result<RowSetMeta> {
        let (meta, sealed) = self.seal(base_ts)?;
        sync_all(&[sealed])?;
        Ok(meta)
    }

    /// Writes pending pages. Every operation up to and including `base_ts` is in the file, which is not durable yet.
    /// Fails with `Invalid` if there are no rows.
    pub fn seal(mut self, base_ts: Timestamp) -> Result<(RowSetMeta, SealedFile)> {
        if self.rows == 0 {
            return Err(Error::invalid(format!("{}: a rowset needs at least one row", self.out.path())));
        }
        let out = &mut self.out;
        let columns = self.columns.into_iter().map(|column| column.finish(out)).collect::<Result<_>>()?;
        let keys = self.keys.map(|keys| keys.finish(out)).transpose()?;
        let footer = RowSetFooter {
            rows: self.rows,
            columns,
            key: self.key,
            keys,
            bloom: self.bloom.finish(&self.max_key, out)?,
            undo: self.undo.finish(out)?,
            redo: self.redo.finish(out)?,
        };
        let footer = postcard::to_stdvec(&footer).expect("integers and names always encode");
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
