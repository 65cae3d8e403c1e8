//! Scan of a DiskRowSet, in key order, with visibility, deltas and predicates applied.
//!
//! ```text
//! per batch of rows, few if their cells are long:
//!   pages whose zone map excludes a predicate ──▶ skipped, if no delta changes the predicate's column
//!   deltas of these rows                      ──▶ live rows; fewer rows if their deltas are long
//!   columns with predicates: read, apply deltas, evaluate ──▶ selection
//!   the other columns, only if rows are left  ──▶ copied whole, or only the selected rows
//! ```

use std::ops::Range;
use std::sync::Arc;

use super::base_data::BaseData;
use super::delta_tracker::{DeltaQuery, RowsetDeltas};
use super::history_window::HistoryWindow;
use super::row_deltas::RowDeltas;
use super::row_version::push_changed;
use super::rowset::{ReadBudget, RowSetScan, RowSetScanSpec, ScannedBlock};
use super::stream_cursor::StreamCursor;
use crate::cfile::decoded_page::{Dictionary, PageCells, runs_within};
use crate::cfile::zone_map::may_match;
use crate::error::{Error, Result};
use crate::ids::{ColumnId, RowId};
use crate::schema::DataType;
use crate::schema::predicate::Predicate;
use crate::schema::row_block::{Bitmap, ColumnBlock, ProjectedColumn, RowBlock};

/// A scan in progress.
pub(super) struct DiskRowSetScan {
    base: Arc<BaseData>,
    deltas: Arc<RowsetDeltas>,
    spec: RowSetScanSpec,
    columns: Vec<Source>,
    /// Those of `spec.columns` that the table has.
    column_ids: Vec<ColumnId>,
    /// In the order of `spec.predicates`.
    predicates: Vec<PredicateState>,
    keys: Option<StreamCursor>,
    /// Bounds the deltas of a batch.
    window: HistoryWindow,
    next: RowId,
    end: RowId,
}

/// State of one predicate during the scan.
struct PredicateState {
    /// Index of its column in `spec.columns`.
    column_index: usize,
    /// First row whose page's zone map has not been checked yet.
    first_unchecked: RowId,
    /// The column's last dictionary, and the values of it that satisfy the predicate.
    matches: Option<(Arc<Dictionary>, Bitmap)>,
}

/// Source of a projected column's cells.
enum Source {
    Stored {
        column: usize,
        cursor: StreamCursor,
    },
    /// The read default, because the rowset is older than the column.
    Default,
}

impl DiskRowSetScan {
    /// Starts a scan of the rows within the spec's key bounds.
    pub(super) fn new(
        base: Arc<BaseData>,
        deltas: RowsetDeltas,
        spec: RowSetScanSpec,
    ) -> Result<DiskRowSetScan> {
        if let Some(lower) = spec.lower_key.as_ref().filter(|_| spec.is_one_key()) {
            let rows = base.find(lower)?.map_or(0..0, |row| row..row + 1);
            return DiskRowSetScan::over_rows(base, deltas, spec, rows);
        }
        let start = spec.lower_key.as_deref().map_or(Ok(0), |key| base.keys.lower_bound(key))?;
        let end = spec.upper_key.as_deref().map_or(Ok(base.rows), |key| base.keys.lower_bound(key))?;
        DiskRowSetScan::over_rows(base, deltas, spec, start..end)
    }

    /// Starts a scan of these rows; the spec's key bounds are ignored.
    pub(super) fn over_rows(
        base: Arc<BaseData>,
        deltas: RowsetDeltas,
        spec: RowSetScanSpec,
        rows: Range<RowId>,
    ) -> Result<DiskRowSetScan> {
        let (deltas, window) = (Arc::new(deltas), HistoryWindow::new(spec.block_bytes));
        if rows.is_empty() {
            // No page index needs to be read.
            return Ok(DiskRowSetScan {
                base,
                deltas,
                spec,
                columns: Vec::new(),
                column_ids: Vec::new(),
                predicates: Vec::new(),
                keys: None,
                window,
                next: 0,
                end: 0,
            });
        }
        let columns = spec.columns.iter().map(|column| source(&base, column)).collect::<Result<_>>()?;
        let column_index = |column| spec.columns.iter().position(|c| c.id == Some(column));
        let predicates = spec.predicates.iter().map(|predicate| {
            let id = predicate.column;
            let column_index = column_index(id)
                .ok_or_else(|| Error::invalid(format!("predicate: column {} is not in the scan", id.0)));
            Ok(PredicateState { column_index: column_index?, first_unchecked: 0, matches: None })
        });
        let predicates = predicates.collect::<Result<_>>()?;
        let keys = if spec.want_keys { Some(StreamCursor::new(base.keys.stream())?) } else { None };
        let column_ids = spec.columns.iter().filter_map(|column| column.id).collect();
        let Range { start: next, end } = rows;
        Ok(DiskRowSetScan { base, deltas, spec, columns, column_ids, predicates, keys, window, next, end })
    }

    /// Returns the bytes of memory of the last pages read.
    pub(super) fn allocated(&self) -> usize {
        let cursor = |source: &Source| match source {
            Source::Stored { cursor, .. } => cursor.allocated(),
            Source::Default => 0,
        };
        let keys = self.keys.as_ref().map_or(0, StreamCursor::allocated);
        keys + self.columns.iter().map(cursor).sum::<usize>()
    }

    /// Returns the next rows to scan, after skipping pages that a predicate excludes. There are none if the budget is
    /// spent on these.
    fn next_batch(&mut self, budget: &mut ReadBudget) -> Result<Option<Range<RowId>>> {
        while self.next < self.end {
            let start = self.next;
            if self.spec.diff_from.is_none()
                && let Some(to) = self.skip_until(start)?
            {
                self.next = to;
                budget.spend(0);
                if budget.is_spent() {
                    return Ok(Some(to..to));
                }
                continue;
            }
            let rows = self.spec.block_rows.clamp(1, 1 << 20) as u32;
            self.next = self.batch_end(start, self.end.min(start.saturating_add(rows)));
            budget.spend((self.next - start) as usize);
            return Ok(Some(start..self.next));
        }
        Ok(None)
    }

    /// Returns the end of the batch of rows from `start` on: `end`, or less if the cells up to there are far longer
    /// than those of other rows. Blocks are limited by the average row, which says nothing about long rows in one
    /// place.
    fn batch_end(&self, start: RowId, end: RowId) -> RowId {
        let bytes_max = self.spec.block_bytes as u64;
        let (mut len, mut is_long) = (end - start, false);
        while len > 1 {
            let bytes = self.cell_bytes(&(start..start + len));
            is_long |= bytes > bytes_max.saturating_mul(2);
            if !is_long || bytes <= bytes_max {
                break;
            }
            len /= 2;
        }
        start + len
    }

    /// Returns about the bytes that some rows have in columns of any length and in columns that the rowset lacks.
    fn cell_bytes(&self, rows: &Range<RowId>) -> u64 {
        let bytes = self.columns.iter().zip(self.spec.columns.iter()).map(|(source, column)| match source {
            Source::Stored { column, cursor } => cursor.cell_bytes(&self.base.columns[*column], rows),
            Source::Default => column.read_default.as_ref().map_or(0, Vec::len) as u64 * rows.len() as u64,
        });
        bytes.sum()
    }

    /// Returns the row up to which a zone map excludes all rows from `start` on.
    fn skip_until(&mut self, start: RowId) -> Result<Option<RowId>> {
        for (predicate, state) in self.spec.predicates.iter().zip(&mut self.predicates) {
            let Source::Stored { cursor, .. } = &self.columns[state.column_index] else { continue };
            if start < state.first_unchecked {
                continue;
            }
            let entry = &cursor.index.pages[cursor.index.page_of(start)];
            let to = self.end.min(entry.first_row + entry.rows);
            state.first_unchecked = to;
            let physical = self.spec.columns[state.column_index].ty.physical();
            if may_match(predicate, physical, entry) {
                continue;
            }
            let before = self.spec.snapshot.before;
            if !self.deltas.may_set(&(start..to), before, predicate.column)? {
                return Ok(Some(to));
            }
        }
        Ok(None)
    }

    /// Reads a column of the batch as of the snapshot.
    fn read(&mut self, column_index: usize, rows: Range<RowId>, deltas: &RowDeltas) -> Result<ColumnBlock> {
        let column = &self.spec.columns[column_index];
        let mut block = ColumnBlock::new(column.ty.physical(), column.nullable);
        self.copy_base(column_index, rows, &mut block)?;
        let column = &self.spec.columns[column_index];
        if !deltas.is_empty()
            && let Some(id) = column.id
            && !self.base.in_key(id)
        {
            deltas.apply(id, column.read_default.as_deref(), &mut block)?;
        }
        Ok(block)
    }

    /// Appends the cells of a column of the batch without their deltas.
    fn copy_base(&mut self, column_index: usize, rows: Range<RowId>, out: &mut ColumnBlock) -> Result<()> {
        out.reserve(rows.len());
        match &mut self.columns[column_index] {
            Source::Stored { column, cursor } => cursor.copy(&self.base.columns[*column], rows, out)?,
            Source::Default => fill(&self.spec.columns[column_index], rows.len(), out),
        }
        Ok(())
    }

    /// Returns true if a cell of the column may differ from the base.
    fn is_changed(&self, column_index: usize, deltas: &RowDeltas) -> bool {
        let id = self.spec.columns[column_index].id;
        id.is_some_and(|id| !deltas.is_empty() && !self.base.in_key(id) && deltas.may_change_column(id))
    }

    /// Appends the selected rows of a column of the batch as of the snapshot.
    fn append_selected(
        &mut self,
        column_index: usize,
        rows: &Range<RowId>,
        (keep, selected): (&Bitmap, &[u32]),
        deltas: &RowDeltas,
        out: &mut ColumnBlock,
    ) -> Result<()> {
        match (keep.all(), self.is_changed(column_index, deltas)) {
            (true, false) => self.copy_base(column_index, rows.clone(), out)?,
            (true, true) => out.append(self.read(column_index, rows.clone(), deltas)?),
            (false, true) => out.append(self.read(column_index, rows.clone(), deltas)?.filter(keep)),
            (false, false) => match &mut self.columns[column_index] {
                Source::Stored { column, cursor } => {
                    out.reserve(selected.len());
                    cursor.gather(&self.base.columns[*column], rows.start, selected, out)?;
                }
                Source::Default => fill(&self.spec.columns[column_index], selected.len(), out),
            },
        }
        Ok(())
    }

    /// Returns the encoded keys of the selected rows.
    fn read_keys(&mut self, start: RowId, selected: &[u32]) -> Result<Vec<Vec<u8>>> {
        let Some(cursor) = &mut self.keys else { return Ok(Vec::new()) };
        let (stream, form) = (self.base.keys.stream(), self.base.keys.form());
        let mut keys = Vec::with_capacity(selected.len());
        for row in selected {
            let (page, first) = cursor.page(stream, start + row)?;
            let mut key = Vec::new();
            form.encode(&page.raw((start + row - first) as usize), &mut key);
            keys.push(key);
        }
        Ok(keys)
    }

    /// Applies a predicate to pages of few distinct values, once per value instead of once per row. Returns false if a
    /// page has another encoding. The predicate must then be evaluated on the whole batch; rows already dropped stay
    /// dropped.
    fn select_by_value(&mut self, i: usize, rows: Range<RowId>, keep: &mut Bitmap) -> Result<bool> {
        let (predicate, state) = (&self.spec.predicates[i], &mut self.predicates[i]);
        let ty = self.spec.columns[state.column_index].ty;
        let Source::Stored { column, cursor } = &mut self.columns[state.column_index] else {
            return Ok(false);
        };
        let null_passes = predicate.matches_cell(ty, None);
        let mut row = rows.start;
        while row < rows.end {
            let (page, first) = cursor.page(&self.base.columns[*column], row)?;
            let to = rows.end.min(first + page.rows as u32);
            let (batch, in_page) =
                ((row - rows.start) as usize, (row - first) as usize..(to - first) as usize);
            let null = |at| page.validity.as_ref().is_some_and(|valid| !valid.get(at));
            match &page.cells {
                PageCells::Codes { codes, dictionary } => {
                    let matches = state.dictionary_matches(predicate, ty, dictionary);
                    let (mut at, mut row) = (in_page.start, batch);
                    codes.for_each(in_page, |code| {
                        let passes = if null(at) { null_passes } else { matches.get(code as usize) };
                        if !passes {
                            keep.set(row, false);
                        }
                        (at, row) = (at + 1, row + 1);
                    });
                }
                PageCells::Same(cell) => {
                    let cell_passes = predicate.matches_cell(ty, Some(cell));
                    for (at, row) in in_page.zip(batch..) {
                        if !(if null(at) { null_passes } else { cell_passes }) {
                            keep.set(row, false);
                        }
                    }
                }
                PageCells::Runs { width, ends, cells } => {
                    let start = in_page.start;
                    for (rows, cell) in runs_within((*width, ends, cells), in_page.start, in_page.end) {
                        let cell_passes = predicate.matches_cell(ty, Some(cell));
                        if cell_passes && (page.validity.is_none() || null_passes) {
                            continue;
                        }
                        for at in rows {
                            if !(if null(at) { null_passes } else { cell_passes }) {
                                keep.set(batch + at - start, false);
                            }
                        }
                    }
                }
                PageCells::Fixed { .. } | PageCells::Narrow { .. } | PageCells::Var { .. } => {
                    return Ok(false);
                }
            }
            row = to;
        }
        Ok(true)
    }

    /// Returns the rows of the batch that pass, with the columns read for that; `None` if there are none.
    fn select(&mut self, rows: &Range<RowId>, deltas: &RowDeltas) -> Result<Option<Selected>> {
        let count = rows.len();
        let (mut keep, dead) = match self.spec.diff_from {
            Some(_) if deltas.is_empty() => return Ok(None),
            Some(_) => {
                let (returned, dead) = deltas.diff();
                (returned, Some(dead))
            }
            None if deltas.is_empty() => (Bitmap::new(count, true), None),
            None => (deltas.alive(), None),
        };
        let mut blocks: Vec<Option<ColumnBlock>> = self.columns.iter().map(|_| None).collect();
        for i in 0..self.predicates.len() {
            if !keep.any() {
                return Ok(None);
            }
            let column_index = self.predicates[i].column_index;
            let plain =
                blocks[column_index].is_none() && dead.is_none() && !self.is_changed(column_index, deltas);
            if plain && self.select_by_value(i, rows.clone(), &mut keep)? {
                continue;
            }
            if blocks[column_index].is_none() {
                blocks[column_index] = Some(self.read(column_index, rows.clone(), deltas)?);
            }
            let block = blocks[column_index].as_ref().expect("the block was read above");
            let before = dead.as_ref().map(|_| keep.clone());
            self.spec.predicates[i].evaluate(self.spec.columns[column_index].ty, block, &mut keep);
            if let (Some(dead), Some(before)) = (&dead, before) {
                // Deleted rows are returned whatever their values.
                dead.ones().filter(|row| before.get(*row)).for_each(|row| keep.set(row, true));
            }
        }
        Ok(keep.any().then_some(Selected { keep, dead, blocks }))
    }
}

impl PredicateState {
    /// Returns the values of the dictionary that satisfy the predicate; computed once per dictionary.
    fn dictionary_matches(
        &mut self,
        predicate: &Predicate,
        ty: DataType,
        dictionary: &Arc<Dictionary>,
    ) -> &Bitmap {
        let cached = self.matches.take().filter(|(of, _)| Arc::ptr_eq(of, dictionary));
        let (_, matches) = self.matches.insert(cached.unwrap_or_else(|| {
            let mut matches = Bitmap::default();
            let values = 0..dictionary.len() as u32;
            values.for_each(|code| matches.push(predicate.matches_cell(ty, Some(dictionary.value(code)))));
            (dictionary.clone(), matches)
        }));
        matches
    }
}

/// Rows of a batch that pass.
struct Selected {
    keep: Bitmap,
    dead: Option<Bitmap>,
    /// Columns that were read for predicates, with all rows of the batch.
    blocks: Vec<Option<ColumnBlock>>,
}

/// Keys of a batch, and which of its rows are deleted.
#[derive(Default)]
struct BatchKeys {
    keys: Vec<Vec<u8>>,
    deleted: Option<Bitmap>,
}

/// Result of reading one row.
enum RowRead {
    Appended,
    Deleted,
    /// The row's older versions matter, or it has too many bytes of deltas to collect them at once.
    NeedsWindow,
}

impl DiskRowSetScan {
    /// Returns true if cells are all that the scan reads and returns.
    fn is_plain(&self) -> bool {
        self.predicates.is_empty() && self.keys.is_none() && self.spec.diff_from.is_none()
    }

    /// Appends one row as of the snapshot. Only the columns that no delta sets are read from the base.
    fn append_row(&mut self, row: RowId, out: &mut RowBlock) -> Result<RowRead> {
        let (deltas, columns, mut runs) = (self.deltas.clone(), self.spec.columns.clone(), Vec::new());
        let in_key: Vec<bool> = self.column_ids.iter().map(|id| self.base.in_key(*id)).collect();
        let keys = in_key.iter().filter(|in_key| **in_key).count();
        let (before, scanned) = (self.spec.snapshot.before, (&columns[..], &self.column_ids[..], keys));
        let bytes_max = self.spec.block_bytes;
        let Some(version) = deltas.version(row, before, scanned, bytes_max, &mut runs)? else {
            return Ok(RowRead::NeedsWindow);
        };
        if version.is_deleted() {
            return Ok(RowRead::Deleted);
        }
        for (column_index, cell) in version.into_cells().into_iter().enumerate() {
            let column = &mut out.columns[column_index];
            match cell.filter(|_| !in_key[column_index]) {
                Some(cell) => push_changed(column, cell)?,
                None => self.copy_base(column_index, row..row + 1, column)?,
            }
        }
        out.rows += 1;
        Ok(RowRead::Appended)
    }

    /// Appends the cells of the next batch that has rows, or of none if the budget is spent first; `None` at the end.
    fn append_batch(&mut self, out: &mut RowBlock, budget: &mut ReadBudget) -> Result<Option<BatchKeys>> {
        while let Some(rows) = self.next_batch(budget)? {
            if let Some(appended) = self.append_rows(rows, out)? {
                return Ok(Some(appended));
            }
            if budget.is_spent() {
                return Ok(Some(BatchKeys::default()));
            }
        }
        Ok(None)
    }

    /// Appends the cells of those rows of a batch that pass; `None` if there are none. If the deltas of the batch are
    /// long, its last rows are left to the next one.
    fn append_rows(&mut self, rows: Range<RowId>, out: &mut RowBlock) -> Result<Option<BatchKeys>> {
        if rows.is_empty() {
            return Ok(None);
        }
        if rows.len() == 1 && self.is_plain() {
            match self.append_row(rows.start, out)? {
                RowRead::Appended => return Ok(Some(BatchKeys::default())),
                RowRead::Deleted => return Ok(None),
                RowRead::NeedsWindow => {}
            }
        }
        let (before, diff_from) = (self.spec.snapshot.before, self.spec.diff_from);
        let query = DeltaQuery { before, diff_from, columns: &self.column_ids };
        let deltas = self.window.for_scan(&self.deltas, &rows, query)?;
        let rows = deltas.rows();
        self.next = rows.end;
        let Some(Selected { keep, dead, blocks }) = self.select(&rows, &deltas)? else { return Ok(None) };
        let whole = keep.all();
        let needs_rows = !whole || self.keys.is_some();
        let selected: Vec<u32> = keep.ones().filter(|_| needs_rows).map(|row| row as u32).collect();
        for (column_index, block) in blocks.into_iter().enumerate() {
            let out = &mut out.columns[column_index];
            match block {
                Some(block) if whole => out.append(block),
                Some(block) => out.append(block.filter(&keep)),
                None => self.append_selected(column_index, &rows, (&keep, &selected), &deltas, out)?,
            }
        }
        out.rows += keep.count();
        let keys = self.read_keys(rows.start, &selected)?;
        let deleted = dead.map(|dead| {
            let mut filtered = Bitmap::default();
            keep.ones().for_each(|row| filtered.push(dead.get(row)));
            filtered
        });
        Ok(Some(BatchKeys { keys, deleted }))
    }
}

impl RowSetScan for DiskRowSetScan {
    fn read(&mut self, budget: &mut ReadBudget) -> Result<Option<ScannedBlock>> {
        let mut block = self.spec.new_block();
        let batch = self.append_batch(&mut block, budget)?;
        Ok(batch.map(|BatchKeys { keys, deleted }| ScannedBlock { block, keys, deleted }))
    }

    fn append(&mut self, out: &mut RowBlock, budget: &mut ReadBudget) -> Result<bool> {
        Ok(self.append_batch(out, budget)?.is_some())
    }
}

/// A scan that is opened by its first read. A merge of many rowsets comes to most of them late, or never.
pub(super) struct DeferredScan {
    waiting: Option<(Arc<BaseData>, RowsetDeltas, RowSetScanSpec)>,
    opened: Option<DiskRowSetScan>,
}

impl DeferredScan {
    pub(super) fn new(base: Arc<BaseData>, deltas: RowsetDeltas, spec: RowSetScanSpec) -> DeferredScan {
        DeferredScan { waiting: Some((base, deltas, spec)), opened: None }
    }

    fn open(&mut self) -> Result<&mut DiskRowSetScan> {
        if let Some((base, deltas, spec)) = self.waiting.take() {
            self.opened = Some(DiskRowSetScan::new(base, deltas, spec)?);
        }
        let failed = || Error::invalid("scan: a rowset could not be opened; start a new scan");
        self.opened.as_mut().ok_or_else(failed)
    }
}

impl RowSetScan for DeferredScan {
    fn read(&mut self, budget: &mut ReadBudget) -> Result<Option<ScannedBlock>> {
        RowSetScan::read(self.open()?, budget)
    }

    fn append(&mut self, out: &mut RowBlock, budget: &mut ReadBudget) -> Result<bool> {
        self.open()?.append(out, budget)
    }
}

fn source(base: &BaseData, column: &ProjectedColumn) -> Result<Source> {
    let Some(at) = column.id.and_then(|id| base.column(id)) else {
        if column.read_default.is_none() && !column.nullable {
            return Err(Error::invalid(format!(
                "column {:?}: not in this rowset, and neither a read default nor nullable",
                column.name
            )));
        }
        return Ok(Source::Default);
    };
    let stored = base.columns[at].meta();
    if stored.physical != column.ty.physical() || (stored.nullable && !column.nullable) {
        return Err(Error::invalid(format!(
            "column {:?}: stored as {:?}{}, cannot be read as {}{}",
            column.name,
            stored.physical,
            if stored.nullable { " NULLABLE" } else { "" },
            column.ty.name(),
            if column.nullable { " NULLABLE" } else { " NOT NULL" },
        )));
    }
    Ok(Source::Stored { column: at, cursor: StreamCursor::new(&base.columns[at])? })
}

/// Appends the cells that rows older than the column have.
fn fill(column: &ProjectedColumn, rows: usize, block: &mut ColumnBlock) {
    block.push_many(column.read_default.as_deref(), rows);
}
