//! Rowset compaction: merging DiskRowSets into new ones, with all their history.
//!
//! ```text
//!   base ─ UNDO ─ REDO   ┐
//!   base ─ UNDO ─ REDO   ┼─ merge by key, as of F ─► base' = newest values     UNDO' = inverted REDO, then UNDO
//!   base ─ UNDO ─ REDO   ┘                           REDO' = a last DELETE
//!                                        deltas after F move when the new rowsets are installed
//! ```
//!
//! Columns that were dropped from the schema are not copied. Neither is history before the tablet's ancient history
//! mark, nor rows deleted before it. A key of the remaining rows is in only one input, so the merge only interleaves.

use std::sync::Arc;

use super::Tablet;
use super::delta_tracker::RowsetDeltas;
use super::diskrowset::DiskRowSet;
use super::diskrowset_scan::DiskRowSetScan;
use super::flush::{RollingRowSetWriter, RowRelocation};
use super::history_window::{HistoryWindow, RowHistory};
use super::row_version::push_changed_row;
use super::rowset::{RowSetScan, RowSetScanSpec, ScannedBlock};
use super::superblock::TabletSchema;
use crate::disk::Disk;
use crate::error::Result;
use crate::ids::{ColumnId, RowId};
use crate::schema::row_block::{ProjectedColumn, RowBlock};
use crate::schema::row_change::{RowChange, encode_delete};
use crate::time::Timestamp;

/// The copying part of a rowset compaction.
pub struct RowsetCompaction {
    schema: Arc<TabletSchema>,
    non_key: Vec<ColumnId>,
    projection: Arc<[ProjectedColumn]>,
    /// Timestamp up to which operations are in the output.
    at: Timestamp,
    /// History before the mark is dropped. Rows deleted before it count as absent, so no write reinserts them here.
    mark: Timestamp,
    sources: Vec<CompactionInput>,
    roller: RollingRowSetWriter,
    /// Bytes that the last step allocated temporarily.
    step_bytes: usize,
}

/// One of the input rowsets.
struct CompactionInput {
    rowset: Arc<DiskRowSet>,
    scan: DiskRowSetScan,
    deltas: RowsetDeltas,
    rows: ScannedBlock,
    /// Deltas of some of the block's rows, among them the next one.
    history: RowHistory,
    window: HistoryWindow,
    /// The next row, as an index into the block, and as a row of the rowset.
    at: usize,
    row: RowId,
    done: bool,
    relocations: Vec<RowRelocation>,
}

/// Merged history of one row.
struct MergedHistory {
    /// Newest first.
    undos: Vec<(Timestamp, Vec<u8>)>,
    redo: Option<(Timestamp, Vec<u8>)>,
}

impl MergedHistory {
    fn byte_size(&self) -> usize {
        let deltas = self.undos.iter().chain(&self.redo);
        let bytes = deltas.map(|(_, change)| size_of::<(Timestamp, Vec<u8>)>() + change.len()).sum::<usize>();
        size_of::<MergedHistory>() + bytes
    }
}

impl RowsetCompaction {
    /// Creates a compaction of rowsets as of timestamp `at`; all operations up to it are applied.
    pub fn new(
        data: Arc<dyn Disk>,
        tablet: &Arc<Tablet>,
        rowsets: Vec<Arc<DiskRowSet>>,
        at: Timestamp,
    ) -> Result<RowsetCompaction> {
        let schema = tablet.table_schema();
        let projection: Arc<[ProjectedColumn]> =
            schema.schema.columns().iter().map(ProjectedColumn::from).collect();
        let inputs = rowsets.len() as u64;
        let source = |rowset: Arc<DiskRowSet>| {
            // Each input has a block in memory, so the step's bytes are divided among them.
            let bytes = inputs * rowset.scanned_bytes(&projection);
            let block_rows = tablet.config().step_rows(rowset.meta().rows.into(), bytes);
            let block_bytes = tablet.config().step_history_bytes(inputs as usize);
            let spec = RowSetScanSpec::latest(projection.clone(), block_rows);
            CompactionInput::new(rowset, RowSetScanSpec { want_keys: true, block_bytes, ..spec })
        };
        let sources = rowsets.into_iter().map(source).collect::<Result<_>>()?;
        let roller = RollingRowSetWriter::new(data, tablet.clone(), schema.schema.clone(), at);
        let (non_key, mark) = (schema.non_key_ids(), tablet.history_mark());
        Ok(RowsetCompaction { non_key, schema, projection, at, mark, sources, roller, step_bytes: 0 })
    }

    /// Merges up to `rows` rows, fewer if they, their keys or their histories are long. Returns true if there are more.
    pub fn step(&mut self, rows: usize) -> Result<bool> {
        let mut out = RowBlock::new(&self.projection);
        let (mut keys, mut histories, mut bytes, mut passed) = (Vec::new(), Vec::new(), 0, 0);
        let bytes_max = self.roller.step_history_bytes();
        for source in &mut self.sources {
            source.fill(self.at)?;
        }
        if self.sources.iter().all(|source| source.done) {
            return Ok(false);
        }
        let (rowset, writer) = self.roller.writer()?;
        let mut row = writer.rows();
        // Dropped rows count too: they are read like others, and there may be any number of them.
        while passed < rows && bytes < bytes_max && out.byte_size() < bytes_max {
            passed += 1;
            for source in &mut self.sources {
                source.fill(self.at)?;
            }
            let unfinished = self.sources.iter_mut().filter(|source| !source.done);
            let Some(first) = unfinished.min_by(|a, b| a.key().cmp(b.key())) else { break };
            let key = first.key().to_vec();
            let Some(history) = first.take(&self.schema, &self.non_key, self.mark, &mut out)? else {
                first.relocations.push(RowRelocation::NOWHERE);
                continue;
            };
            bytes += key.len() + history.byte_size();
            keys.push(key);
            histories.push(history);
            first.relocations.push(RowRelocation { rowset: rowset as u32, row });
            row += 1;
        }
        self.step_bytes = out.allocated() + bytes;
        let first = writer.rows();
        writer.append(&out, &keys.iter().map(Vec::as_slice).collect::<Vec<_>>())?;
        for (row, history) in (first..).zip(&histories) {
            for (ts, change) in &history.undos {
                writer.undo(row, *ts, change)?;
            }
            if let Some((ts, change)) = &history.redo {
                writer.redo(row, *ts, change)?;
            }
        }
        Ok(true)
    }

    /// Returns the bytes of memory allocated during a step and between steps.
    pub fn allocated(&self) -> usize {
        let sources: usize = self.sources.iter().map(CompactionInput::allocated).sum();
        sources + self.roller.allocated() + self.step_bytes
    }

    /// Makes the new rowsets durable and opens them.
    pub fn finish(&mut self) -> Result<Vec<Arc<DiskRowSet>>> {
        self.roller.finish()
    }

    /// Copies the deltas since the start of the compaction to the new rowsets.
    pub fn move_changes(&self, into: &[Arc<DiskRowSet>]) -> Result<()> {
        for source in &self.sources {
            source.rowset.for_each_memory_delta(|row, ts, change| {
                if ts <= self.at {
                    return Ok(());
                }
                let relocation = source.relocations[row as usize];
                assert_ne!(relocation, RowRelocation::NOWHERE, "a dropped row is not changed");
                into[relocation.rowset as usize].mutate(relocation.row, ts, change)
            })?;
        }
        Ok(())
    }

    /// Returns the bytes of all cells of the inputs before encoding, with those of columns that an input lacks.
    pub fn input_bytes(&self) -> u64 {
        self.inputs().map(|rowset| rowset.scanned_bytes(&self.projection)).sum()
    }

    /// Returns the input rowsets.
    pub fn inputs(&self) -> impl Iterator<Item = &Arc<DiskRowSet>> {
        self.sources.iter().map(|source| &source.rowset)
    }

    pub fn files(&self) -> &[String] {
        self.roller.files()
    }
}

impl Drop for CompactionInput {
    fn drop(&mut self) {
        // The compaction has failed or has copied the later deltas.
        self.deltas.recent.end_merge();
    }
}

impl CompactionInput {
    fn new(rowset: Arc<DiskRowSet>, spec: RowSetScanSpec) -> Result<CompactionInput> {
        let window = HistoryWindow::new(spec.block_bytes);
        let (scan, deltas) = (rowset.scan_base(spec)?, rowset.deltas());
        deltas.recent.begin_merge();
        Ok(CompactionInput {
            scan,
            deltas,
            rowset,
            rows: ScannedBlock::default(),
            history: RowHistory::default(),
            window,
            at: 0,
            row: 0,
            done: false,
            relocations: Vec::new(),
        })
    }

    fn allocated(&self) -> usize {
        let relocations = self.relocations.capacity() * size_of::<RowRelocation>();
        let keys: usize = self.rows.keys.iter().map(|key| size_of::<Vec<u8>>() + key.capacity()).sum();
        relocations + self.rows.block.allocated() + keys + self.history.allocated() + self.scan.allocated()
    }

    /// Reads the next block if the current one is used up, and the next deltas up to `upto` if those are.
    fn fill(&mut self, upto: Timestamp) -> Result<()> {
        if self.done || self.row < self.history.rows.end {
            return Ok(());
        }
        if self.at == self.rows.block.rows {
            let Some(rows) = self.scan.next()? else {
                self.done = true;
                return Ok(());
            };
            (self.rows, self.at) = (rows, 0);
        }
        let range = self.row..self.row + (self.rows.block.rows - self.at) as u32;
        // The old deltas are freed first.
        self.history = RowHistory::default();
        self.history = self.window.history(&self.deltas, &range, upto.next())?;
        Ok(())
    }

    fn key(&self) -> &[u8] {
        &self.rows.keys[self.at]
    }

    /// Moves the next row's newest cells to `out`. Returns its history from `mark` on, or `None` if the row was deleted
    /// before `mark`.
    fn take(
        &mut self,
        schema: &TabletSchema,
        non_key: &[ColumnId],
        mark: Timestamp,
        out: &mut RowBlock,
    ) -> Result<Option<MergedHistory>> {
        let rows = self.row..self.row + 1;
        let (undo, redo) = (self.history.undo.of(&rows), self.history.redo.of(&rows));
        let mut history = MergedHistory { undos: Vec::new(), redo: None };
        let block = &self.rows.block;
        let mut is_dropped = false;
        let mut redo = redo.peekable();
        if redo.peek().is_none() {
            out.extend(block, self.at, 1);
        } else {
            let mut cells: Vec<Option<&[u8]>> = block.columns.iter().map(|c| c.cell(self.at)).collect();
            for (_, ts, change) in redo {
                replay(RowChange::parse(change)?, ts, schema, non_key, &mut cells, &mut history)?;
            }
            is_dropped = history.redo.as_ref().is_some_and(|(deleted_at, _)| *deleted_at < mark);
            if !is_dropped {
                push_changed_row(out, cells)?;
            }
        }
        history.undos.reverse();
        history.undos.extend(undo.map(|(_, ts, change)| (ts, change.to_vec())));
        history.undos.retain(|(ts, _)| *ts >= mark);
        self.at += 1;
        self.row += 1;
        Ok((!is_dropped).then_some(history))
    }
}

/// Applies a REDO to a row's cells and appends its inverse to the history, oldest first.
fn replay<'a>(
    change: RowChange<'a>,
    ts: Timestamp,
    schema: &'a TabletSchema,
    non_key: &[ColumnId],
    cells: &mut [Option<&'a [u8]>],
    history: &mut MergedHistory,
) -> Result<()> {
    if let Some((ts, _)) = history.redo.take() {
        // The row is reinserted, so its deletion becomes history.
        let mut undo = Vec::new();
        let cell = |id| schema.schema.index_of_id(id).and_then(|index| cells[index]);
        RowChange::Delete.encode_inverse(non_key, cell, &mut undo);
        history.undos.push((ts, undo));
    }
    if change.deletes() {
        let mut delete = Vec::new();
        encode_delete(&mut delete);
        history.redo = Some((ts, delete));
        return Ok(());
    }
    let mut undo = Vec::new();
    let cell = |id| schema.schema.index_of_id(id).and_then(|index| cells[index]);
    change.encode_inverse(non_key, cell, &mut undo);
    history.undos.push((ts, undo));
    schema.apply(&change, cells);
    Ok(())
}
