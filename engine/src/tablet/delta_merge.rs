//! Taking a DiskRowSet's files of changes into the columns that they changed: major delta compaction.
//!
//! ```text
//!   row   base     REDO in files                 column file
//!   0     a=1                                    a=1
//!   1     a=1      a=2  a=3                      a=3     UNDO a=2  a=1
//!   2     a=1      a=2  DELETE                   a=1     REDO a=2  DELETE
//! ```
//!
//! Rows that were only updated get their newest values, and UNDOs that lead back from them. A row that died, or died
//! and came back, keeps its changes as they are: they gather in the column file. So do changes of columns that the
//! rowset does not have, or the table not any more. Other columns are not read, and changes that come meanwhile are in
//! memory, above all of this: rows stay where they are, so nothing has to be moved.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use super::Tablet;
use super::column_file::{ColumnFileMeta, ColumnFileWriter};
use super::delta_tracker::DeltaState;
use super::deltafile::DeltaBatch;
use super::diskrowset::{DiskRowSet, RowSetMeta};
use super::meta::TabletSchema;
use super::rowset::{RowSetScan, RowSetScanSpec, Snapshot};
use super::rowset_scan::DiskRowSetScan;
use crate::cfile::frame::Identity;
use crate::disk::Disk;
use crate::error::{Error, Result};
use crate::ids::{ColumnId, RowId};
use crate::schema::block::{ColumnBlock, RowBlock};
use crate::schema::change::Change;
use crate::time::Timestamp;

/// A merge of a rowset's files of changes in progress.
pub struct DeltaMerge {
    data: Arc<dyn Disk>,
    tablet: Arc<Tablet>,
    rowset: Arc<DiskRowSet>,
    schema: Arc<TabletSchema>,
    /// History from before it is left behind.
    mark: Timestamp,
    /// The changes that are merged: of the column file, and of the delta files.
    deltas: DeltaState,
    meta: Arc<RowSetMeta>,
    path: String,
    /// Columns that are written, by their place in the table.
    columns: BTreeSet<usize>,
    stage: Stage,
    /// What the last step took besides.
    step_bytes: usize,
}

enum Stage {
    /// Looking at changes for the columns that they set; the next row.
    Looking(RowId),
    Writing {
        scan: Option<Box<DiskRowSetScan>>,
        writer: Box<ColumnFileWriter>,
    },
    Done,
}

/// A change in a batch.
type Entry<'a> = (RowId, Timestamp, &'a [u8]);

impl DeltaMerge {
    /// A merge into the file `path`. No other job works on the rowset meanwhile.
    pub fn new(
        data: Arc<dyn Disk>,
        tablet: &Arc<Tablet>,
        rowset: Arc<DiskRowSet>,
        path: String,
    ) -> DeltaMerge {
        let schema = tablet.table_schema();
        let (meta, deltas) = rowset.filed_changes();
        let of = |id: &ColumnId| schema.schema.index_of_id(*id);
        let columns = meta.column_file.iter().flat_map(|file| &file.columns).filter_map(of).collect();
        let (tablet, mark, stage) = (tablet.clone(), tablet.history_mark(), Stage::Looking(0));
        DeltaMerge { data, tablet, rowset, schema, mark, deltas, meta, path, columns, stage, step_bytes: 0 }
    }

    pub fn rowset(&self) -> &Arc<DiskRowSet> {
        &self.rowset
    }

    pub fn path(&self) -> &String {
        &self.path
    }

    /// Files that the merge makes superfluous.
    pub fn old_files(&self) -> Vec<String> {
        self.meta.files().skip(1).map(str::to_string).collect()
    }

    /// Handles up to `rows` rows; true if there is more to do.
    pub fn step(&mut self, rows: usize) -> Result<bool> {
        match std::mem::replace(&mut self.stage, Stage::Done) {
            Stage::Looking(row) if row < self.meta.rows => {
                let end = self.meta.rows.min(row.saturating_add(rows.max(1) as u32));
                self.look(row..end)?;
                self.stage = Stage::Looking(end);
            }
            Stage::Looking(_) => self.stage = self.begin(rows)?,
            Stage::Writing { mut scan, mut writer } => {
                let (more, bytes) = self.write(scan.as_deref_mut(), &mut writer, rows)?;
                self.step_bytes = bytes;
                self.stage = Stage::Writing { scan, writer };
                return Ok(more);
            }
            Stage::Done => {}
        }
        Ok(true)
    }

    /// Bytes of memory taken by a step and between steps.
    pub fn allocated(&self) -> usize {
        let Stage::Writing { scan, writer } = &self.stage else { return self.step_bytes };
        self.step_bytes + writer.allocated() + scan.as_ref().map_or(0, |scan| scan.allocated())
    }

    /// Makes the file durable; the rowset's meta as it will be with it. After the last step.
    pub fn finish(&mut self) -> Result<RowSetMeta> {
        let Stage::Writing { writer, .. } = std::mem::replace(&mut self.stage, Stage::Done) else {
            return Err(Error::invalid(format!("{}: it is not written yet", self.path)));
        };
        let file = writer.finish()?;
        let mut meta = RowSetMeta::clone(&self.meta);
        let old: u64 = meta.delta_files.iter().map(|delta| delta.bytes).sum();
        let older = meta.column_file.as_ref().map_or(0, |file: &ColumnFileMeta| file.bytes);
        meta.bytes = meta.bytes - old - older + file.bytes;
        meta.delta_files.clear();
        meta.column_file = Some(file);
        Ok(meta)
    }

    /// Whether all changes of a row can be taken in: updates of columns that the rowset and the table have.
    fn is_foldable(&self, changes: &[Entry<'_>]) -> Result<bool> {
        for (_, _, change) in changes {
            let Change::Update(cells) = Change::parse(change)? else { return Ok(false) };
            let known = |id| self.meta.columns.contains(&id) && self.schema.schema.index_of_id(id).is_some();
            if !cells.into_iter().all(|(id, _)| known(id)) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The changes of some rows: UNDOs of the column file, and REDOs.
    fn changes(&self, rows: Range<RowId>) -> Result<(DeltaBatch, DeltaBatch)> {
        let changes = self.deltas.collect(rows, Timestamp::MAX, Some(Timestamp::MIN))?;
        Ok(changes.into_batches())
    }

    fn look(&mut self, rows: Range<RowId>) -> Result<()> {
        let (undo, redo) = self.changes(rows)?;
        self.step_bytes = undo.allocated() + redo.allocated();
        let entries: Vec<Entry<'_>> = redo.iter().collect();
        for changes in entries.chunk_by(|a, b| a.0 == b.0) {
            if self.is_foldable(changes)? {
                for (_, _, change) in changes {
                    let places = Change::parse(change)?.cells();
                    self.columns.extend(places.filter_map(|(id, _)| self.schema.schema.index_of_id(id)));
                }
            }
        }
        Ok(())
    }

    /// Begins the file and the scan of the columns that go into it.
    fn begin(&self, rows: usize) -> Result<Stage> {
        let schemas = self.schema.schema.columns();
        let columns: Vec<_> = self.columns.iter().map(|at| &schemas[*at]).collect();
        let identity = Identity { tablet: self.tablet.tablet, rowset: self.meta.id };
        let config = &self.tablet.config().columns;
        let writer = ColumnFileWriter::new(self.data.clone(), &self.path, identity, &columns, config)?;
        let spec = RowSetScanSpec {
            columns: columns.into_iter().map(Into::into).collect(),
            predicates: Arc::new([]),
            lower_key: None,
            upper_key: None,
            snapshot: Snapshot { before: Timestamp::MAX },
            diff_from: None,
            want_keys: false,
            block_rows: rows,
        };
        let scan =
            (!spec.columns.is_empty()).then(|| self.rowset.scan_base(spec).map(Box::new)).transpose()?;
        Ok(Stage::Writing { scan, writer: Box::new(writer) })
    }

    /// Writes the next rows; false when there are none left. And the bytes that it took in memory.
    fn write(
        &self,
        scan: Option<&mut DiskRowSetScan>,
        writer: &mut ColumnFileWriter,
        rows: usize,
    ) -> Result<(bool, usize)> {
        let first = writer.rows();
        let old = match scan {
            Some(scan) => scan.next()?.map(|scanned| scanned.block),
            None => {
                let left = ((self.meta.rows - first) as usize).min(rows.max(1));
                (left > 0).then(|| RowBlock { rows: left, columns: Vec::new() })
            }
        };
        let Some(old) = old else { return Ok((false, 0)) };
        let rows = first..first + old.rows as u32;
        let (undo, redo) = self.changes(rows.clone())?;
        let changes = undo.allocated() + redo.allocated();
        let (undo, redo): (Vec<_>, Vec<_>) = (undo.iter().collect(), redo.iter().collect());
        let (mut undo, mut redo) = (&undo[..], &redo[..]);
        let mut new =
            RowBlock { rows: 0, columns: old.columns.iter().map(ColumnBlock::empty_like).collect() };
        for row in rows {
            let (before, changes) = (take_row(&mut undo, row), take_row(&mut redo, row));
            let at = (row - first) as usize;
            let mut undos = Vec::new();
            if changes.is_empty() || !self.is_foldable(changes)? {
                new.extend(&old, at, 1);
                changes.iter().try_for_each(|(_, ts, change)| writer.redo(row, *ts, change))?;
            } else {
                self.fold(changes, &old, at, &mut new, &mut undos)?;
            }
            let kept = before.iter().map(|(_, ts, change)| (*ts, change.to_vec()));
            for (ts, change) in undos.into_iter().rev().chain(kept).filter(|(ts, _)| *ts >= self.mark) {
                writer.undo(row, ts, &change)?;
            }
        }
        writer.append(&new)?;
        Ok((true, changes + old.allocated() + new.allocated()))
    }

    /// Puts a row's newest cells into `new`, and what leads back from them into `undos`, oldest first.
    fn fold(
        &self,
        changes: &[Entry<'_>],
        old: &RowBlock,
        at: usize,
        new: &mut RowBlock,
        undos: &mut Vec<(Timestamp, Vec<u8>)>,
    ) -> Result<()> {
        let place = |id| {
            let index = self.schema.schema.index_of_id(id)?;
            self.columns.iter().position(|column| *column == index)
        };
        let mut cells: Vec<Option<&[u8]>> = old.columns.iter().map(|column| column.cell(at)).collect();
        for (_, ts, change) in changes {
            let change = Change::parse(change)?;
            let mut undo = Vec::new();
            change.encode_inverse(&[], |id| place(id).and_then(|place| cells[place]), &mut undo);
            undos.push((*ts, undo));
            for (id, cell) in change.cells() {
                if let Some(place) = place(id) {
                    cells[place] = cell;
                }
            }
        }
        new.push_row(cells);
        Ok(())
    }
}

/// Takes the changes of `row` off the front; rows are asked for in order.
fn take_row<'a, 'b>(rest: &mut &'b [Entry<'a>], row: RowId) -> &'b [Entry<'a>] {
    let (taken, left) = rest.split_at(rest.partition_point(|(at, _, _)| *at <= row));
    *rest = left;
    taken
}
