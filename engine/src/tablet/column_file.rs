//! Column file: some columns of a DiskRowSet, rewritten with their deltas folded in.
//!
//! ```text
//!   base file      k  a  b  c        UNDO  REDO      as flushed; its a and c are no longer read
//!   column file       a'    c'       UNDO' REDO'     a' and c' have the updates; UNDO' goes back in time from them
//!   delta files                                      later deltas
//!
//! streams   one per column, under its id │ UNDO │ REDO
//! footer    rows, and the position of each stream's index
//! ```
//!
//! A rowset has at most one: the next major delta compaction folds the old one into the new one. Row ids do not change.

use serde::{Deserialize, Serialize};

use super::column_spec::column_spec;
use super::deltafile::{DeltaDirection, DeltaMeta, DeltaWriter};
use crate::cfile::page_file::{FileKind, PageFile, PageOwner, PageWriter, sync_all};
use crate::cfile::writer::{StreamMeta, StreamWriter};
use crate::config::ColumnFileConfig;
use crate::disk::Disk;
use crate::error::{Error, Result};
use crate::ids::{ColumnId, RowId};
use crate::schema::ColumnSchema;
use crate::schema::row_block::RowBlock;
use crate::time::Timestamp;
use std::sync::Arc;

/// Superblock entry of a column file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ColumnFileMeta {
    pub file: String,
    pub bytes: u64,
    /// Columns that are read from this file instead of the base.
    pub columns: Vec<ColumnId>,
}

/// Footer of a column file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ColumnFooter {
    pub rows: u32,
    pub columns: Vec<StreamMeta>,
    pub undo: Option<DeltaMeta>,
    pub redo: Option<DeltaMeta>,
}

/// Opens a column file of a rowset of `rows` rows. Fails with `Corrupt` if it is not the one that the superblock names.
pub(super) fn open(
    data: &dyn Disk,
    meta: &ColumnFileMeta,
    identity: PageOwner,
    rows: u32,
) -> Result<(PageFile, ColumnFooter)> {
    let (file, footer) = PageFile::open(data, &meta.file, FileKind::Columns, identity)?;
    let footer: ColumnFooter = postcard::from_bytes(&footer)
        .map_err(|error| Error::corrupt(format!("{}: the footer does not decode: {error}", meta.file)))?;
    let streams = || footer.columns.iter().map(|stream| stream.stream);
    let same_columns = streams().eq(meta.columns.iter().map(|id| id.0));
    if footer.rows != rows || !same_columns || footer.columns.iter().any(|stream| stream.rows != rows) {
        return Err(Error::corrupt(format!("{}: not the column file that the superblock names", meta.file)));
    }
    Ok((file, footer))
}

/// Writer of a column file.
pub(super) struct ColumnFileWriter {
    out: PageWriter,
    ids: Vec<ColumnId>,
    columns: Vec<StreamWriter>,
    undo: DeltaWriter,
    redo: DeltaWriter,
    rows: u32,
}

impl ColumnFileWriter {
    /// Creates the file; its directory must exist.
    pub(super) fn new(
        data: Arc<dyn Disk>,
        path: &str,
        identity: PageOwner,
        columns: &[&ColumnSchema],
        config: &ColumnFileConfig,
    ) -> Result<ColumnFileWriter> {
        let writer = |column: &&ColumnSchema| column_spec(column, false, config).map(StreamWriter::new);
        Ok(ColumnFileWriter {
            columns: columns.iter().map(writer).collect::<Result<_>>()?,
            ids: columns.iter().map(|column| column.id).collect(),
            out: PageWriter::create(data, path, FileKind::Columns, identity)?,
            undo: DeltaWriter::new(DeltaDirection::Undo, config.delta_page_bytes),
            redo: DeltaWriter::new(DeltaDirection::Redo, config.delta_page_bytes),
            rows: 0,
        })
    }

    /// Returns the rows appended so far, which is the next row's id.
    pub(super) fn rows(&self) -> RowId {
        self.rows
    }

    /// Returns the bytes of memory allocated.
    pub(super) fn allocated(&self) -> usize {
        let streams: usize = self.columns.iter().map(StreamWriter::allocated).sum();
        streams + self.undo.allocated() + self.redo.allocated() + self.out.allocated()
    }

    /// Appends the columns' cells of the next rows.
    pub(super) fn append(&mut self, block: &RowBlock) -> Result<()> {
        for (writer, column) in self.columns.iter_mut().zip(&block.columns) {
            writer.append(column, &mut self.out)?;
        }
        self.rows += block.rows as u32;
        Ok(())
    }

    /// Appends an UNDO delta: in order of rows, newest first within a row.
    pub(super) fn undo(&mut self, row: RowId, ts: Timestamp, change: &[u8]) -> Result<()> {
        self.undo.push(row, ts, change, &mut self.out)
    }

    /// Appends a REDO delta that was not folded: in order of rows, oldest first within a row.
    pub(super) fn redo(&mut self, row: RowId, ts: Timestamp, change: &[u8]) -> Result<()> {
        self.redo.push(row, ts, change, &mut self.out)
    }

    /// Writes pending pages and makes the file durable.
    pub(super) fn finish(mut self) -> Result<ColumnFileMeta> {
        let out = &mut self.out;
        let columns = self.columns.into_iter().map(|column| column.finish(out)).collect::<Result<_>>()?;
        let (undo, redo) = (self.undo.finish(out)?, self.redo.finish(out)?);
        let footer = ColumnFooter { rows: self.rows, columns, undo, redo };
        let footer = postcard::to_stdvec(&footer).expect("integers always encode");
        let file = self.out.path().to_string();
        let sealed = self.out.seal(&footer)?;
        let bytes = sealed.len();
        sync_all(&[sealed])?;
        Ok(ColumnFileMeta { file, bytes, columns: self.ids })
    }
}
