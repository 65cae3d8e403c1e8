//! Some columns of a DiskRowSet, written anew with their changes taken in.
//!
//! ```text
//!   base file      k  a  b  c        UNDO  REDO      as flushed; its a and c are not read any more
//!   column file       a'    c'       UNDO' REDO'     a' and c' have the updates; UNDO' leads back from them
//!   delta files                                      later changes
//!
//! streams   one per column, under its id │ UNDO │ REDO
//! footer    rows, and where each stream's index is
//! ```
//!
//! A rowset has at most one: the next merge of its changes takes the old one in. Row numbers stay what they were.

use serde::{Deserialize, Serialize};

use super::deltafile::{DeltaMeta, DeltaWriter, Direction};
use super::rowset_writer::{ColumnFileConfig, column_spec};
use crate::cfile::frame::{FileKind, Identity, PageFile, PageWriter, sync_all};
use crate::cfile::writer::{StreamMeta, StreamWriter};
use crate::disk::Disk;
use crate::error::{Error, Result};
use crate::ids::{ColumnId, RowId};
use crate::schema::ColumnSchema;
use crate::schema::block::RowBlock;
use crate::time::Timestamp;
use std::sync::Arc;

/// What the superblock keeps of a column file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ColumnFileMeta {
    pub file: String,
    pub bytes: u64,
    /// Columns that are read here instead of in the base.
    pub columns: Vec<ColumnId>,
}

/// The footer of a column file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ColumnFooter {
    pub rows: u32,
    pub columns: Vec<StreamMeta>,
    pub undo: Option<DeltaMeta>,
    pub redo: Option<DeltaMeta>,
}

/// Opens a column file of a rowset of `rows` rows. `Corrupt` if it is not the one that the superblock names.
pub(super) fn open(
    data: &dyn Disk,
    meta: &ColumnFileMeta,
    identity: Identity,
    rows: u32,
) -> Result<(PageFile, ColumnFooter)> {
    let (file, footer) = PageFile::open(data, &meta.file, FileKind::Columns, identity)?;
    let footer: ColumnFooter = postcard::from_bytes(&footer)
        .map_err(|error| Error::corrupt(format!("{}: the footer does not decode: {error}", meta.file)))?;
    let streams = || footer.columns.iter().map(|stream| stream.stream);
    let named = streams().eq(meta.columns.iter().map(|id| id.0));
    if footer.rows != rows || !named || footer.columns.iter().any(|stream| stream.rows != rows) {
        return Err(Error::corrupt(format!("{}: it is not the column file of the superblock", meta.file)));
    }
    Ok((file, footer))
}

/// Writes a column file.
pub(super) struct ColumnFileWriter {
    out: PageWriter,
    ids: Vec<ColumnId>,
    columns: Vec<StreamWriter>,
    undo: DeltaWriter,
    redo: DeltaWriter,
    rows: u32,
}

impl ColumnFileWriter {
    /// Begins the file; its directory must exist.
    pub fn new(
        data: Arc<dyn Disk>,
        path: &str,
        identity: Identity,
        columns: &[&ColumnSchema],
        config: &ColumnFileConfig,
    ) -> Result<ColumnFileWriter> {
        let writer = |column: &&ColumnSchema| column_spec(column, false, config).map(StreamWriter::new);
        Ok(ColumnFileWriter {
            columns: columns.iter().map(writer).collect::<Result<_>>()?,
            ids: columns.iter().map(|column| column.id).collect(),
            out: PageWriter::create(data, path, FileKind::Columns, identity)?,
            undo: DeltaWriter::new(Direction::Undo, config.delta_page_bytes),
            redo: DeltaWriter::new(Direction::Redo, config.delta_page_bytes),
            rows: 0,
        })
    }

    /// Rows appended so far: the next row's id.
    pub fn rows(&self) -> RowId {
        self.rows
    }

    /// Bytes of memory taken.
    pub fn allocated(&self) -> usize {
        let streams: usize = self.columns.iter().map(StreamWriter::allocated).sum();
        streams + self.undo.allocated() + self.redo.allocated() + self.out.allocated()
    }

    /// Appends the columns' cells of the next rows.
    pub fn append(&mut self, block: &RowBlock) -> Result<()> {
        for (writer, column) in self.columns.iter_mut().zip(&block.columns) {
            writer.append(column, &mut self.out)?;
        }
        self.rows += block.rows as u32;
        Ok(())
    }

    /// Adds a change that leads back: in order of rows, newest first within a row.
    pub fn undo(&mut self, row: RowId, ts: Timestamp, change: &[u8]) -> Result<()> {
        self.undo.push(row, ts, change, &mut self.out)
    }

    /// Adds a change that was not taken in: in order of rows, oldest first within a row.
    pub fn redo(&mut self, row: RowId, ts: Timestamp, change: &[u8]) -> Result<()> {
        self.redo.push(row, ts, change, &mut self.out)
    }

    /// Writes what is pending and makes the file durable.
    pub fn finish(mut self) -> Result<ColumnFileMeta> {
        let out = &mut self.out;
        let columns = self.columns.into_iter().map(|column| column.finish(out)).collect::<Result<_>>()?;
        let (undo, redo) = (self.undo.finish(out)?, self.redo.finish(out)?);
        let footer = ColumnFooter { rows: self.rows, columns, undo, redo };
        let footer = postcard::to_stdvec(&footer).expect("numbers always encode");
        let file = self.out.path().to_string();
        let sealed = self.out.seal(&footer)?;
        let bytes = sealed.len();
        sync_all(&[sealed])?;
        Ok(ColumnFileMeta { file, bytes, columns: self.ids })
    }
}
