//! Merging DiskRowSets into new ones, with all their history.
//!
//! ```text
//!   base ─ UNDO ─ REDO   ┐
//!   base ─ UNDO ─ REDO   ┼─ merge by key, as of F ─► base' = newest values     UNDO' = inverted REDO, then UNDO
//!   base ─ UNDO ─ REDO   ┘                           REDO' = a last DELETE
//!                                        changes after F move when the new rowsets take over
//! ```
//!
//! Columns that were dropped since are left behind; so is history from before the tablet's ancient history mark, and
//! with it rows that died before that. Of what is left no key is in two of them, so the merge only interleaves.

use std::sync::Arc;

use super::Tablet;
use super::delta_tracker::DeltaState;
use super::deltafile::DeltaBatch;
use super::diskrowset::DiskRowSet;
use super::flush::{NewPlace, Roller};
use super::meta::TabletSchema;
use super::rowset::{RowSetScan, RowSetScanSpec, ScannedBlock, Snapshot};
use super::rowset_scan::DiskRowSetScan;
use crate::disk::Disk;
use crate::error::Result;
use crate::ids::{ColumnId, RowId};
use crate::schema::block::{ProjectedColumn, RowBlock};
use crate::schema::change::{Change, encode_delete};
use crate::time::Timestamp;

/// The copying part of a compaction.
pub struct Merge {
    schema: Arc<TabletSchema>,
    non_key: Vec<ColumnId>,
    projection: Arc<[ProjectedColumn]>,
    /// Operations up to here are in what is written.
    at: Timestamp,
    /// History from before it is left behind. Nothing revives rows that died before it: they count as gone.
    mark: Timestamp,
    sources: Vec<Source>,
    roller: Roller,
    /// What the last step took besides.
    step_bytes: usize,
}

/// One of the rowsets being merged.
struct Source {
    rowset: Arc<DiskRowSet>,
    scan: DiskRowSetScan,
    deltas: DeltaState,
    rows: ScannedBlock,
    /// Its changes; those of the block's first row first.
    undo: Changes,
    redo: Changes,
    /// The row to take next: of the block, and of the rowset.
    at: usize,
    row: RowId,
    done: bool,
    places: Vec<NewPlace>,
}

/// Changes by row, and how far they have been used.
#[derive(Default)]
struct Changes {
    list: Vec<(RowId, Timestamp, Vec<u8>)>,
    at: usize,
}

/// What the history of one row comes to.
struct History {
    /// Newest first.
    undos: Vec<(Timestamp, Vec<u8>)>,
    redo: Option<(Timestamp, Vec<u8>)>,
}

impl Merge {
    /// A merge of rowsets as of the operations up to `at`, all of which are applied.
    pub fn new(
        data: Arc<dyn Disk>,
        tablet: &Arc<Tablet>,
        rowsets: Vec<Arc<DiskRowSet>>,
        at: Timestamp,
    ) -> Result<Merge> {
        let schema = tablet.table_schema();
        let projection: Arc<[ProjectedColumn]> =
            schema.schema.columns().iter().map(ProjectedColumn::from).collect();
        let inputs = rowsets.len() as u64;
        let source = |rowset: Arc<DiskRowSet>| {
            // Each of them has a block in memory.
            let bytes = inputs * rowset.raw_bytes();
            let block_rows = tablet.config().step_rows(rowset.meta().rows.into(), bytes);
            Source::new(rowset, projection.clone(), block_rows)
        };
        let sources = rowsets.into_iter().map(source).collect::<Result<_>>()?;
        let roller = Roller::new(data, tablet.clone(), schema.schema.clone(), at);
        let (non_key, mark) = (schema.non_key_ids(), tablet.history_mark());
        Ok(Merge { non_key, schema, projection, at, mark, sources, roller, step_bytes: 0 })
    }

    /// Merges up to `rows` rows; true if there are more.
    pub fn step(&mut self, rows: usize) -> Result<bool> {
        let mut out = RowBlock::new(&self.projection);
        let (mut keys, mut histories) = (Vec::new(), Vec::new());
        for source in &mut self.sources {
            source.fill(self.at)?;
        }
        if self.sources.iter().all(|source| source.done) {
            return Ok(false);
        }
        let (rowset, writer) = self.roller.writer()?;
        let mut row = writer.rows();
        while keys.len() < rows {
            for source in &mut self.sources {
                source.fill(self.at)?;
            }
            let alive = self.sources.iter_mut().filter(|source| !source.done);
            let Some(first) = alive.min_by(|a, b| a.key().cmp(b.key())) else { break };
            let key = first.key().to_vec();
            let Some(history) = first.take(&self.schema, &self.non_key, self.mark, &mut out)? else {
                first.places.push(NewPlace::NOWHERE);
                continue;
            };
            keys.push(key);
            histories.push(history);
            first.places.push(NewPlace { rowset: rowset as u32, row });
            row += 1;
        }
        self.step_bytes = out.allocated();
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

    /// Bytes of memory taken by a step and between steps.
    pub fn allocated(&self) -> usize {
        let sources: usize = self.sources.iter().map(Source::allocated).sum();
        sources + self.roller.allocated() + self.step_bytes
    }

    /// Makes the new rowsets durable and opens them.
    pub fn finish(&mut self) -> Result<Vec<Arc<DiskRowSet>>> {
        self.roller.finish()
    }

    /// Gives the new rowsets what was changed since the merge began.
    pub fn move_changes(&self, into: &[Arc<DiskRowSet>]) -> Result<()> {
        for source in &self.sources {
            source.rowset.recent_changes(|row, ts, change| {
                if ts <= self.at {
                    return Ok(());
                }
                let place = source.places[row as usize];
                assert_ne!(place, NewPlace::NOWHERE, "a row that is gone is not changed");
                into[place.rowset as usize].mutate(place.row, ts, change)
            })?;
        }
        Ok(())
    }

    /// The rowsets that are merged.
    pub fn inputs(&self) -> impl Iterator<Item = &Arc<DiskRowSet>> {
        self.sources.iter().map(|source| &source.rowset)
    }

    pub fn files(&self) -> &[String] {
        self.roller.files()
    }
}

impl Source {
    fn new(rowset: Arc<DiskRowSet>, columns: Arc<[ProjectedColumn]>, block_rows: usize) -> Result<Source> {
        let spec = RowSetScanSpec {
            columns,
            predicates: Arc::new([]),
            lower_key: None,
            upper_key: None,
            snapshot: Snapshot { before: Timestamp::MAX },
            diff_from: None,
            want_keys: true,
            block_rows,
        };
        let deltas = rowset.deltas();
        deltas.recent.begin_merge();
        Ok(Source {
            scan: rowset.scan_base(spec)?,
            deltas,
            rowset,
            rows: ScannedBlock::default(),
            undo: Changes::default(),
            redo: Changes::default(),
            at: 0,
            row: 0,
            done: false,
            places: Vec::new(),
        })
    }

    fn allocated(&self) -> usize {
        let places = self.places.capacity() * size_of::<NewPlace>();
        let keys: usize = self.rows.keys.iter().map(|key| size_of::<Vec<u8>>() + key.capacity()).sum();
        let changes = self.undo.allocated() + self.redo.allocated();
        places + self.rows.block.allocated() + keys + changes + self.scan.allocated()
    }

    /// Makes the next row and its changes up to `upto` there, if there is one.
    fn fill(&mut self, upto: Timestamp) -> Result<()> {
        if self.done || self.at < self.rows.block.rows {
            return Ok(());
        }
        let Some(rows) = self.scan.next()? else {
            self.done = true;
            return Ok(());
        };
        let range = self.row..self.row + rows.block.rows as u32;
        let changes = self.deltas.collect(range, upto.next(), Some(Timestamp::MIN))?;
        let (undo, redo) = changes.batches();
        (self.undo, self.redo) = (Changes::new(undo), Changes::new(redo));
        (self.rows, self.at) = (rows, 0);
        Ok(())
    }

    fn key(&self) -> &[u8] {
        &self.rows.keys[self.at]
    }

    /// Moves the next row's newest cells to `out` and gives its history from `mark` on; `None` if it died before.
    fn take(
        &mut self,
        schema: &TabletSchema,
        non_key: &[ColumnId],
        mark: Timestamp,
        out: &mut RowBlock,
    ) -> Result<Option<History>> {
        let (undo, redo) = (self.undo.of(self.row), self.redo.of(self.row));
        let mut history = History { undos: Vec::new(), redo: None };
        let block = &self.rows.block;
        let mut gone = false;
        if redo.is_empty() {
            out.extend(block, self.at, 1);
        } else {
            let mut cells: Vec<Option<&[u8]>> = block.columns.iter().map(|c| c.cell(self.at)).collect();
            for (_, ts, change) in redo {
                replay(Change::parse(change)?, *ts, schema, non_key, &mut cells, &mut history)?;
            }
            gone = history.redo.as_ref().is_some_and(|(died, _)| *died < mark);
            if !gone {
                out.push_row(cells);
            }
        }
        history.undos.reverse();
        history.undos.extend(undo.iter().map(|(_, ts, change)| (*ts, change.clone())));
        history.undos.retain(|(ts, _)| *ts >= mark);
        self.at += 1;
        self.row += 1;
        Ok((!gone).then_some(history))
    }
}

/// Applies a REDO to a row's cells and adds its inverse to the history, oldest first.
fn replay<'a>(
    change: Change<'a>,
    ts: Timestamp,
    schema: &'a TabletSchema,
    non_key: &[ColumnId],
    cells: &mut [Option<&'a [u8]>],
    history: &mut History,
) -> Result<()> {
    if let Some((ts, _)) = history.redo.take() {
        // The row comes back: its death is history now.
        let mut undo = Vec::new();
        let cell = |id| schema.schema.index_of_id(id).and_then(|index| cells[index]);
        Change::Delete.encode_inverse(non_key, cell, &mut undo);
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

impl Changes {
    fn new(batch: &DeltaBatch) -> Changes {
        Changes { list: batch.iter().map(|(row, ts, change)| (row, ts, change.to_vec())).collect(), at: 0 }
    }

    fn allocated(&self) -> usize {
        let changes: usize = self.list.iter().map(|(_, _, change)| change.capacity()).sum();
        changes + self.list.capacity() * size_of::<(RowId, Timestamp, Vec<u8>)>()
    }

    /// The changes of `row`; rows are asked for in order.
    fn of(&mut self, row: RowId) -> &[(RowId, Timestamp, Vec<u8>)] {
        let from = self.at;
        self.at += self.list[from..].iter().take_while(|(at, _, _)| *at == row).count();
        &self.list[from..self.at]
    }
}
