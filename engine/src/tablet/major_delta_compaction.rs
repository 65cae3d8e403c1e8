//! Major delta compaction: folding a DiskRowSet's delta files into the base columns.
//!
//! ```text
//!   row   base     REDO in files                 column file
//!   0     a=1                                    a=1
//!   1     a=1      a=2  a=3                      a=3     UNDO a=2  a=1
//!   2     a=1      a=2  DELETE                   a=1     REDO a=2  DELETE
//! ```
//!
//! Rows that were only updated get their newest values, and UNDO deltas from them back in time. A row that was deleted,
//! or deleted and reinserted, keeps its REDO deltas unchanged; they collect in the column file. So do deltas of columns
//! that the rowset does not have, or that were dropped from the table.
//!
//! Other columns are not read. Deltas that arrive during the compaction stay in the DeltaMemStore, which is applied
//! last. Row ids do not change, so nothing is relocated.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use super::Tablet;
use super::column_file::{ColumnFileMeta, ColumnFileWriter};
use super::delta_compaction::DeltaCompaction;
use super::delta_tracker::RowsetDeltas;
use super::diskrowset::{DiskRowSet, RowSetMeta};
use super::diskrowset_scan::DiskRowSetScan;
use super::history_window::HistoryWindow;
use super::row_version::push_changed_row;
use super::rowset::{RowSetScan, RowSetScanSpec};
use super::superblock::TabletSchema;
use crate::cfile::page_file::PageOwner;
use crate::disk::Disk;
use crate::error::{Error, Result};
use crate::ids::{ColumnId, RowId};
use crate::note::Note;
use crate::observer::ObserverHandle;
use crate::schema::row_block::{ColumnBlock, RowBlock};
use crate::schema::row_change::RowChange;
use crate::time::Timestamp;

/// A major delta compaction in progress.
pub struct MajorDeltaCompaction {
    data: Arc<dyn Disk>,
    tablet: Arc<Tablet>,
    rowset: Arc<DiskRowSet>,
    schema: Arc<TabletSchema>,
    /// History before the mark is dropped.
    mark: Timestamp,
    /// The inputs: deltas of the column file and of the delta files.
    deltas: RowsetDeltas,
    meta: Arc<RowSetMeta>,
    path: String,
    /// Columns that are written, by their index in the table's schema.
    columns: BTreeSet<usize>,
    stage: Stage,
    /// Bounds the deltas of a step.
    window: HistoryWindow,
    /// Bytes that the last step allocated temporarily.
    step_bytes: usize,
}

enum Stage {
    /// Reading deltas to find the columns that they set, from the given row on.
    Reading(RowId),
    Writing(Box<Output>),
    Done,
}

/// The file being written, and the rows that go into it next.
struct Output {
    scan: Option<DiskRowSetScan>,
    writer: ColumnFileWriter,
    /// The last block of the scan, and the number of its rows that are written.
    block: RowBlock,
    written: usize,
}

impl Output {
    fn allocated(&self) -> usize {
        let scan = self.scan.as_ref().map_or(0, |scan| scan.allocated());
        self.writer.allocated() + scan + self.block.allocated()
    }

    /// Reads the next block, of `rows` rows, if the last one is written. Returns false when there are none left.
    fn fill(&mut self, rows: usize, rowset_rows: u32) -> Result<bool> {
        if self.written < self.block.rows {
            return Ok(true);
        }
        let block = match &mut self.scan {
            Some(scan) => scan.next()?.map(|scanned| scanned.block),
            None => {
                let left = ((rowset_rows - self.writer.rows()) as usize).min(rows.max(1));
                (left > 0).then(|| RowBlock { rows: left, columns: Vec::new() })
            }
        };
        let Some(block) = block else { return Ok(false) };
        (self.block, self.written) = (block, 0);
        Ok(true)
    }
}

/// A delta of a batch.
type Entry<'a> = (RowId, Timestamp, &'a [u8]);

impl MajorDeltaCompaction {
    /// Creates a compaction into the file `path`.
    pub fn new(
        data: Arc<dyn Disk>,
        tablet: &Arc<Tablet>,
        rowset: Arc<DiskRowSet>,
        path: String,
    ) -> MajorDeltaCompaction {
        let schema = tablet.table_schema();
        let (meta, deltas) = rowset.delta_file_state();
        let of = |id: &ColumnId| schema.schema.index_of_id(*id);
        let columns = meta.column_file.iter().flat_map(|file| &file.columns).filter_map(of).collect();
        let (tablet, mark, stage) = (tablet.clone(), tablet.history_mark(), Stage::Reading(0));
        let window = HistoryWindow::new(tablet.config().step_history_bytes(1));
        MajorDeltaCompaction {
            data,
            tablet,
            rowset,
            schema,
            mark,
            deltas,
            meta,
            path,
            columns,
            stage,
            window,
            step_bytes: 0,
        }
    }

    /// Returns true if all deltas of a row can be folded: updates of columns that the rowset and the table have.
    fn is_foldable(&self, changes: &[Entry<'_>]) -> Result<bool> {
        for (_, _, change) in changes {
            let RowChange::Update(cells) = RowChange::parse(change)? else { return Ok(false) };
            let known = |id| self.meta.columns.contains(&id) && self.schema.schema.index_of_id(id).is_some();
            if !cells.into_iter().all(|(id, _)| known(id)) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Reads the REDO deltas of the first of `rows`. Returns the next row.
    fn read_next_batch(&mut self, rows: &Range<RowId>) -> Result<RowId> {
        let history = self.window.redo(&self.deltas, rows)?;
        let entries: Vec<Entry<'_>> = history.redo.iter().collect();
        self.step_bytes = history.allocated() + size_of_val(&entries[..]);
        for changes in entries.chunk_by(|a, b| a.0 == b.0) {
            if self.is_foldable(changes)? {
                for (_, _, change) in changes {
                    let cells = RowChange::parse(change)?.cells();
                    self.columns.extend(cells.filter_map(|(id, _)| self.schema.schema.index_of_id(id)));
                }
            }
        }
        Ok(history.rows.end)
    }

    /// Creates the file, and the scan of the columns that go into it.
    fn begin(&self, rows: usize) -> Result<Stage> {
        let schemas = self.schema.schema.columns();
        let columns: Vec<_> = self.columns.iter().map(|at| &schemas[*at]).collect();
        let identity = PageOwner { tablet: self.tablet.tablet, rowset: self.meta.id };
        let config = &self.tablet.config().columns;
        let writer = ColumnFileWriter::new(self.data.clone(), &self.path, identity, &columns, config)?;
        let latest = RowSetScanSpec::latest(columns.into_iter().map(Into::into).collect(), rows);
        let spec = RowSetScanSpec { block_bytes: self.tablet.config().step_history_bytes(1), ..latest };
        let scan = (!spec.columns.is_empty()).then(|| self.rowset.scan_base(spec)).transpose()?;
        Ok(Stage::Writing(Box::new(Output { scan, writer, block: RowBlock::default(), written: 0 })))
    }

    /// Writes the next rows: up to `rows`, and as many as the window allows. Returns false when there are none left.
    fn write(&mut self, output: &mut Output, rows: usize) -> Result<bool> {
        if !output.fill(rows, self.meta.rows)? {
            return Ok(false);
        }
        let Output { writer, block: old, written, .. } = output;
        let first = writer.rows() - *written as u32;
        let rows = writer.rows()..first + old.rows as u32;
        let history = self.window.history(&self.deltas, &rows, Timestamp::MAX)?;
        let (undo, redo): (Vec<_>, Vec<_>) = (history.undo.iter().collect(), history.redo.iter().collect());
        let entries = size_of_val(&undo[..]) + size_of_val(&redo[..]);
        let (mut undo, mut redo) = (&undo[..], &redo[..]);
        let mut new =
            RowBlock { rows: 0, columns: old.columns.iter().map(ColumnBlock::empty_like).collect() };
        for row in history.rows.clone() {
            let (before, changes) = (take_row(&mut undo, row), take_row(&mut redo, row));
            let at = (row - first) as usize;
            let mut undos = Vec::new();
            if changes.is_empty() || !self.is_foldable(changes)? {
                new.extend(old, at, 1);
                changes.iter().try_for_each(|(_, ts, change)| writer.redo(row, *ts, change))?;
            } else {
                self.fold_deltas(changes, old, at, &mut new, &mut undos)?;
            }
            let older_undos = before.iter().map(|(_, ts, change)| (*ts, change.to_vec()));
            for (ts, change) in undos.into_iter().rev().chain(older_undos).filter(|(ts, _)| *ts >= self.mark)
            {
                writer.undo(row, ts, &change)?;
            }
        }
        writer.append(&new)?;
        *written += new.rows;
        self.step_bytes = history.allocated() + entries + new.allocated();
        Ok(true)
    }

    /// Appends a row's newest cells to `new`, and the UNDO deltas from them to `undos`, oldest first.
    fn fold_deltas(
        &self,
        changes: &[Entry<'_>],
        old: &RowBlock,
        at: usize,
        new: &mut RowBlock,
        undos: &mut Vec<(Timestamp, Vec<u8>)>,
    ) -> Result<()> {
        let column_index = |id| {
            let index = self.schema.schema.index_of_id(id)?;
            self.columns.iter().position(|column| *column == index)
        };
        let mut cells: Vec<Option<&[u8]>> = old.columns.iter().map(|column| column.cell(at)).collect();
        for (_, ts, change) in changes {
            let change = RowChange::parse(change)?;
            let mut undo = Vec::new();
            change.encode_inverse(&[], |id| column_index(id).and_then(|index| cells[index]), &mut undo);
            undos.push((*ts, undo));
            for (id, cell) in change.cells() {
                if let Some(index) = column_index(id) {
                    cells[index] = cell;
                }
            }
        }
        push_changed_row(new, cells)
    }
}

impl DeltaCompaction for MajorDeltaCompaction {
    fn rowset(&self) -> &Arc<DiskRowSet> {
        &self.rowset
    }

    fn path(&self) -> &String {
        &self.path
    }

    fn old_files(&self) -> Vec<String> {
        self.meta.files().skip(1).map(str::to_string).collect()
    }

    fn step(&mut self, rows: usize) -> Result<bool> {
        match std::mem::replace(&mut self.stage, Stage::Done) {
            Stage::Reading(row) if row < self.meta.rows => {
                let end = self.meta.rows.min(row.saturating_add(rows.max(1) as u32));
                self.stage = Stage::Reading(self.read_next_batch(&(row..end))?);
            }
            Stage::Reading(_) => self.stage = self.begin(rows)?,
            Stage::Writing(mut output) => {
                let more = self.write(&mut output, rows)?;
                self.stage = Stage::Writing(output);
                return Ok(more);
            }
            Stage::Done => {}
        }
        Ok(true)
    }

    fn allocated(&self) -> usize {
        let Stage::Writing(output) = &self.stage else { return self.step_bytes };
        self.step_bytes + output.allocated()
    }

    fn finish(&mut self) -> Result<RowSetMeta> {
        let Stage::Writing(output) = std::mem::replace(&mut self.stage, Stage::Done) else {
            return Err(Error::invalid(format!("{}: not completely written", self.path)));
        };
        let file = output.writer.finish()?;
        let mut meta = RowSetMeta::clone(&self.meta);
        let old: u64 = meta.delta_files.iter().map(|delta| delta.bytes).sum();
        let older = meta.column_file.as_ref().map_or(0, |file: &ColumnFileMeta| file.bytes);
        meta.bytes = meta.bytes - old - older + file.bytes;
        meta.delta_files.clear();
        meta.column_file = Some(file);
        Ok(meta)
    }

    fn mark(&self, observer: &ObserverHandle) {
        let again = self.meta.column_file.is_some();
        observer.mark_if(again, "major delta compaction: column rewritten before");
        observer.mark_if(self.rowset.dms_len() > 0, "major delta compaction: concurrent deltas");
    }

    fn note(&self, created: &RowSetMeta) -> Note {
        let columns = created.column_file.iter().flat_map(|file| file.columns.clone()).collect();
        Note::FoldedDeltas { rowset: created.id, columns }
    }
}

/// Removes the deltas of `row` from the front; rows are requested in order.
fn take_row<'a, 'b>(rest: &mut &'b [Entry<'a>], row: RowId) -> &'b [Entry<'a>] {
    let (taken, left) = rest.split_at(rest.partition_point(|(at, _, _)| *at <= row));
    *rest = left;
    taken
}
