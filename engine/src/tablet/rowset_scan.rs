//! Scans a DiskRowSet: visibility, changes and predicates applied, in key order.
//!
//! ```text
//! per batch of rows:
//!   pages whose bounds exclude a predicate   ──▶ passed by, if no change touches the predicate's column
//!   changes of these rows                    ──▶ who is alive
//!   columns with predicates: read, change, evaluate ──▶ selection
//!   the other columns, only if rows are left ──▶ copied whole, or only the selected rows
//! ```

use std::ops::Range;
use std::sync::Arc;

use super::delta_tracker::{DeltaState, RowChanges, apply_overrides};
use super::diskrowset::Base;
use super::rowset::{RowSetScan, RowSetScanSpec, ScannedBlock};
use crate::cfile::cache::Worth;
use crate::cfile::index::PageIndex;
use crate::cfile::page::{Cells, Dictionary, Page, runs_within};
use crate::cfile::reader::StreamReader;
use crate::cfile::stats::may_match;
use crate::error::{Error, Result};
use crate::ids::RowId;
use crate::schema::DataType;
use crate::schema::block::{Bitmap, ColumnBlock, ProjectedColumn, RowBlock};
use crate::schema::predicate::Predicate;

/// A scan in progress.
pub(super) struct DiskRowSetScan {
    base: Arc<Base>,
    deltas: DeltaState,
    spec: RowSetScanSpec,
    columns: Vec<Source>,
    /// In the order of `spec.predicates`.
    predicates: Vec<Check>,
    keys: Option<Cursor>,
    next: RowId,
    end: RowId,
}

/// What the scan knows about one predicate.
struct Check {
    /// Position of its column in `spec.columns`.
    place: usize,
    /// The first row whose page's bounds have not been compared with it yet.
    unchecked: RowId,
    /// Which values of the column's dictionary satisfy it.
    verdicts: Option<(Arc<Dictionary>, Bitmap)>,
}

/// Where a projected column's cells come from.
enum Source {
    Stored {
        column: usize,
        cursor: Cursor,
    },
    /// The rowset is older than the column.
    Default,
}

/// A stream's index and the page read last.
struct Cursor {
    index: Arc<PageIndex>,
    page: Option<(usize, Arc<Page>)>,
}

impl Cursor {
    fn new(stream: &StreamReader) -> Result<Cursor> {
        Ok(Cursor { index: stream.index()?, page: None })
    }

    fn allocated(&self) -> usize {
        self.page.as_ref().map_or(0, |(_, page)| page.byte_size())
    }

    /// The page that has `row`, and its first row.
    fn page(&mut self, stream: &StreamReader, row: RowId) -> Result<(&Page, RowId)> {
        let at = match &self.page {
            Some((at, page)) if (row.wrapping_sub(self.index.pages[*at].first_row) as usize) < page.rows => {
                *at
            }
            _ => {
                let at = self.index.page_of(row);
                self.page = Some((at, stream.page(&self.index, at, Worth::Scan)?));
                at
            }
        };
        let (_, page) = self.page.as_ref().expect("it has just been set");
        Ok((page, self.index.pages[at].first_row))
    }

    /// Appends the cells of a range of rows.
    fn copy(&mut self, stream: &StreamReader, rows: Range<RowId>, out: &mut ColumnBlock) -> Result<()> {
        let mut row = rows.start;
        while row < rows.end {
            let (page, first) = self.page(stream, row)?;
            let to = rows.end.min(first + page.rows as u32);
            page.copy_range((row - first) as usize, (to - first) as usize, out);
            row = to;
        }
        Ok(())
    }

    /// Appends the cells of the rows that are selected, ascending and counted from `start`.
    fn gather(
        &mut self,
        stream: &StreamReader,
        start: RowId,
        selected: &[u32],
        out: &mut ColumnBlock,
    ) -> Result<()> {
        let mut rest = selected;
        while let Some(row) = rest.first() {
            let (page, first) = self.page(stream, start + row)?;
            let end = first + page.rows as u32;
            let (here, later) = rest.split_at(rest.partition_point(|row| start + row < end));
            page.gather(here.iter().map(|row| (start + row - first) as usize), out);
            rest = later;
        }
        Ok(())
    }
}

impl DiskRowSetScan {
    /// Begins a scan of the rows within the spec's key bounds.
    pub fn new(base: Arc<Base>, deltas: DeltaState, spec: RowSetScanSpec) -> Result<DiskRowSetScan> {
        if let Some(lower) = spec.lower_key.as_ref().filter(|_| spec.is_one_key()) {
            let rows = base.find(lower)?.map_or(0..0, |row| row..row + 1);
            return DiskRowSetScan::over_rows(base, deltas, spec, rows);
        }
        let start = spec.lower_key.as_deref().map_or(Ok(0), |key| base.keys.lower_bound(key))?;
        let end = spec.upper_key.as_deref().map_or(Ok(base.rows), |key| base.keys.lower_bound(key))?;
        DiskRowSetScan::over_rows(base, deltas, spec, start..end)
    }

    /// Begins a scan of these rows, whatever the spec's key bounds.
    pub fn over_rows(
        base: Arc<Base>,
        deltas: DeltaState,
        spec: RowSetScanSpec,
        rows: Range<RowId>,
    ) -> Result<DiskRowSetScan> {
        if rows.is_empty() {
            // No page index is read for nothing.
            let (columns, predicates) = (Vec::new(), Vec::new());
            return Ok(DiskRowSetScan {
                base,
                deltas,
                spec,
                columns,
                predicates,
                keys: None,
                next: 0,
                end: 0,
            });
        }
        let columns = spec.columns.iter().map(|column| source(&base, column)).collect::<Result<_>>()?;
        let place = |column| spec.columns.iter().position(|c| c.id == Some(column));
        let predicates = spec.predicates.iter().map(|predicate| {
            let id = predicate.column;
            let place = place(id)
                .ok_or_else(|| Error::invalid(format!("the predicate's column {} is not in the scan", id.0)));
            Ok(Check { place: place?, unchecked: 0, verdicts: None })
        });
        let predicates = predicates.collect::<Result<_>>()?;
        let keys = if spec.want_keys { Some(Cursor::new(base.keys.stream())?) } else { None };
        Ok(DiskRowSetScan { base, deltas, spec, columns, predicates, keys, next: rows.start, end: rows.end })
    }

    /// Bytes of memory that the pages read last take.
    pub fn allocated(&self) -> usize {
        let cursor = |source: &Source| match source {
            Source::Stored { cursor, .. } => cursor.allocated(),
            Source::Default => 0,
        };
        let keys = self.keys.as_ref().map_or(0, Cursor::allocated);
        keys + self.columns.iter().map(cursor).sum::<usize>()
    }

    /// The next rows to look at: what is left after passing by pages that no predicate lets through.
    fn next_batch(&mut self) -> Result<Option<Range<RowId>>> {
        while self.next < self.end {
            let start = self.next;
            if self.spec.diff_from.is_none()
                && let Some(to) = self.passed_by(start)?
            {
                self.next = to;
                continue;
            }
            let rows = self.spec.block_rows.clamp(1, 1 << 20) as u32;
            self.next = self.end.min(start.saturating_add(rows));
            return Ok(Some(start..self.next));
        }
        Ok(None)
    }

    /// The row up to which some predicate excludes all rows from `start` on by bounds alone.
    fn passed_by(&mut self, start: RowId) -> Result<Option<RowId>> {
        for (predicate, check) in self.spec.predicates.iter().zip(&mut self.predicates) {
            let Source::Stored { cursor, .. } = &self.columns[check.place] else { continue };
            if start < check.unchecked {
                continue;
            }
            let entry = &cursor.index.pages[cursor.index.page_of(start)];
            let to = self.end.min(entry.first_row + entry.rows);
            check.unchecked = to;
            let physical = self.spec.columns[check.place].ty.physical();
            if may_match(predicate, physical, entry) {
                continue;
            }
            let changes = self.deltas.collect(start..to, self.spec.snapshot.before, None)?;
            if !changes.touches(predicate.column)? {
                return Ok(Some(to));
            }
        }
        Ok(None)
    }

    /// A column of the batch as it is at the snapshot.
    fn read(&mut self, place: usize, rows: Range<RowId>, changes: &RowChanges) -> Result<ColumnBlock> {
        let column = &self.spec.columns[place];
        let mut block = ColumnBlock::new(column.ty.physical(), column.nullable);
        match &mut self.columns[place] {
            Source::Stored { column, cursor } => {
                let stream = &self.base.columns[*column];
                cursor.copy(stream, rows, &mut block)?;
            }
            Source::Default => fill(column, rows.len(), &mut block),
        }
        if !changes.is_empty()
            && let Some(id) = column.id
        {
            let default = column.read_default.as_deref();
            let overrides = changes.overrides(id, self.base.in_key(id), default)?;
            apply_overrides(&mut block, &overrides)?;
        }
        Ok(block)
    }

    /// Whether some cell of the column may differ from the base.
    fn is_changed(&self, place: usize, changes: &RowChanges) -> Result<bool> {
        match self.spec.columns[place].id {
            Some(id) if !changes.is_empty() && !self.base.in_key(id) => changes.touches(id),
            _ => Ok(false),
        }
    }

    /// The selected rows of a column of the batch, as they are at the snapshot.
    fn read_selected(
        &mut self,
        place: usize,
        rows: &Range<RowId>,
        (keep, selected): (&Bitmap, &[u32]),
        changes: &RowChanges,
    ) -> Result<ColumnBlock> {
        let column = &self.spec.columns[place];
        if self.is_changed(place, changes)? {
            return Ok(self.read(place, rows.clone(), changes)?.filter(keep));
        }
        let mut block = ColumnBlock::new(column.ty.physical(), column.nullable);
        match &mut self.columns[place] {
            Source::Stored { column, cursor } => {
                cursor.gather(&self.base.columns[*column], rows.start, selected, &mut block)?;
            }
            Source::Default => fill(column, selected.len(), &mut block),
        }
        Ok(block)
    }

    /// Encoded keys of the selected rows.
    fn read_keys(&mut self, start: RowId, selected: &[u32]) -> Result<Vec<Vec<u8>>> {
        let Some(cursor) = &mut self.keys else { return Ok(Vec::new()) };
        let (stream, form) = (self.base.keys.stream(), self.base.keys.form());
        let mut keys = Vec::with_capacity(selected.len());
        for row in selected {
            let (page, first) = cursor.page(stream, start + row)?;
            let mut key = Vec::new();
            form.encode(page.raw((start + row - first) as usize), &mut key);
            keys.push(key);
        }
        Ok(keys)
    }

    /// Applies a predicate to pages of few distinct values: once per value instead of once per row. False if
    /// some page is not of that kind; then the predicate has yet to be applied, though not in vain to some rows.
    fn select_by_value(&mut self, i: usize, rows: Range<RowId>, keep: &mut Bitmap) -> Result<bool> {
        let (predicate, check) = (&self.spec.predicates[i], &mut self.predicates[i]);
        let ty = self.spec.columns[check.place].ty;
        let Source::Stored { column, cursor } = &mut self.columns[check.place] else { return Ok(false) };
        let null_passes = predicate.matches_cell(ty, None);
        let mut row = rows.start;
        while row < rows.end {
            let (page, first) = cursor.page(&self.base.columns[*column], row)?;
            let to = rows.end.min(first + page.rows as u32);
            let (batch, in_page) =
                ((row - rows.start) as usize, (row - first) as usize..(to - first) as usize);
            let null = |at| page.validity.as_ref().is_some_and(|valid| !valid.get(at));
            match &page.cells {
                Cells::Codes { codes, dictionary } => {
                    let verdicts = check.verdicts(predicate, ty, dictionary);
                    for (at, row) in in_page.zip(batch..) {
                        let passes = if null(at) { null_passes } else { verdicts.get(codes[at] as usize) };
                        if !passes {
                            keep.set(row, false);
                        }
                    }
                }
                Cells::Same(cell) => {
                    let cell_passes = predicate.matches_cell(ty, Some(cell));
                    for (at, row) in in_page.zip(batch..) {
                        if !(if null(at) { null_passes } else { cell_passes }) {
                            keep.set(row, false);
                        }
                    }
                }
                Cells::Runs { width, ends, cells } => {
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
                Cells::Fixed { .. } | Cells::Var { .. } => return Ok(false),
            }
            row = to;
        }
        Ok(true)
    }

    /// Rows of the batch that pass, with what was read to tell; `None` if there are none.
    fn select(&mut self, rows: &Range<RowId>, changes: &RowChanges) -> Result<Option<Selected>> {
        let count = rows.len();
        let (mut keep, dead) = match self.spec.diff_from {
            Some(_) if changes.is_empty() => return Ok(None),
            Some(_) => changes.diff().map(|(shown, dead)| (shown, Some(dead)))?,
            None if changes.is_empty() => (Bitmap::new(count, true), None),
            None => (changes.alive()?, None),
        };
        let mut blocks: Vec<Option<ColumnBlock>> = self.columns.iter().map(|_| None).collect();
        for i in 0..self.predicates.len() {
            if !keep.any() {
                return Ok(None);
            }
            let place = self.predicates[i].place;
            let plain = blocks[place].is_none() && dead.is_none() && !self.is_changed(place, changes)?;
            if plain && self.select_by_value(i, rows.clone(), &mut keep)? {
                continue;
            }
            if blocks[place].is_none() {
                blocks[place] = Some(self.read(place, rows.clone(), changes)?);
            }
            let block = blocks[place].as_ref().expect("it has just been read");
            let before = dead.as_ref().map(|_| keep.clone());
            self.spec.predicates[i].evaluate(self.spec.columns[place].ty, block, &mut keep);
            if let (Some(dead), Some(before)) = (&dead, before) {
                // What is gone is told whatever it was.
                dead.ones().filter(|row| before.get(*row)).for_each(|row| keep.set(row, true));
            }
        }
        Ok(keep.any().then_some(Selected { keep, dead, blocks }))
    }
}

impl Check {
    /// Which values of the dictionary satisfy the predicate; worked out once for each dictionary.
    fn verdicts(&mut self, predicate: &Predicate, ty: DataType, dictionary: &Arc<Dictionary>) -> &Bitmap {
        let known = self.verdicts.take().filter(|(of, _)| Arc::ptr_eq(of, dictionary));
        let (_, verdicts) = self.verdicts.insert(known.unwrap_or_else(|| {
            let mut verdicts = Bitmap::default();
            let values = 0..dictionary.len() as u32;
            values.for_each(|code| verdicts.push(predicate.matches_cell(ty, Some(dictionary.value(code)))));
            (dictionary.clone(), verdicts)
        }));
        verdicts
    }
}

/// Rows of a batch that pass.
struct Selected {
    keep: Bitmap,
    dead: Option<Bitmap>,
    /// Columns that were read for predicates, all rows of them.
    blocks: Vec<Option<ColumnBlock>>,
}

impl RowSetScan for DiskRowSetScan {
    fn next(&mut self) -> Result<Option<ScannedBlock>> {
        while let Some(rows) = self.next_batch()? {
            let (before, diff_from) = (self.spec.snapshot.before, self.spec.diff_from);
            let changes = self.deltas.collect(rows.clone(), before, diff_from)?;
            let Some(Selected { keep, dead, blocks }) = self.select(&rows, &changes)? else { continue };
            let whole = keep.all();
            let needs_rows = !whole || self.keys.is_some();
            let selected: Vec<u32> = keep.ones().filter(|_| needs_rows).map(|row| row as u32).collect();
            let mut columns = Vec::with_capacity(blocks.len());
            for (place, block) in blocks.into_iter().enumerate() {
                columns.push(match block {
                    Some(block) if whole => block,
                    Some(block) => block.filter(&keep),
                    None if whole => self.read(place, rows.clone(), &changes)?,
                    None => self.read_selected(place, &rows, (&keep, &selected), &changes)?,
                });
            }
            let keys = self.read_keys(rows.start, &selected)?;
            let deleted = dead.map(|dead| {
                let mut picked = Bitmap::default();
                keep.ones().for_each(|row| picked.push(dead.get(row)));
                picked
            });
            let block = RowBlock { rows: keep.count(), columns };
            return Ok(Some(ScannedBlock { block, keys, deleted }));
        }
        Ok(None)
    }
}

fn source(base: &Base, column: &ProjectedColumn) -> Result<Source> {
    let Some(at) = column.id.and_then(|id| base.column(id)) else {
        if column.read_default.is_none() && !column.nullable {
            return Err(Error::invalid(format!(
                "column {:?} is not in this rowset and has neither a default nor NULL to read",
                column.name
            )));
        }
        return Ok(Source::Default);
    };
    let stored = base.columns[at].meta();
    if stored.physical != column.ty.physical() || (stored.nullable && !column.nullable) {
        return Err(Error::invalid(format!(
            "column {:?} is stored as {:?}{}, which cannot be read as {}{}",
            column.name,
            stored.physical,
            if stored.nullable { " NULLABLE" } else { "" },
            column.ty.name(),
            if column.nullable { " NULLABLE" } else { " NOT NULL" },
        )));
    }
    Ok(Source::Stored { column: at, cursor: Cursor::new(&base.columns[at])? })
}

/// Appends what rows read that are older than the column.
fn fill(column: &ProjectedColumn, rows: usize, block: &mut ColumnBlock) {
    block.push_many(column.read_default.as_deref(), rows);
}
