//! Scan of a MemRowSet: blocks of rows are copied, then predicates are applied to them.

use std::sync::Arc;

use super::MemRowSet;
use super::store::{Row, Store};
use crate::error::Result;
use crate::ids::ColumnId;
use crate::schema::row_block::{Bitmap, ColumnBlock, RowBlock};
use crate::schema::row_change::RowChange;
use crate::tablet::memstore::{prefetch, prefetch_run};
use crate::tablet::row_version::position_from;
use crate::tablet::rowset::{ReadBudget, RowSetScan, RowSetScanSpec, ScannedBlock};
use crate::tablet::scan_filter::keep_matching;
use crate::tablet::superblock::TabletSchema;
use crate::time::Timestamp;

/// A scan of a MemRowSet.
pub struct MemRowSetScan {
    mrs: Arc<MemRowSet>,
    spec: RowSetScanSpec,
    sources: Vec<Source>,
    /// Key to resume at; `None` at the end.
    from: Option<Vec<u8>>,
}

/// Source of a column of the scan.
struct Source {
    id: ColumnId,
    /// Its index in the row's own schema, if the MemRowSet has it.
    index: Option<usize>,
    in_key: bool,
    default: Option<Vec<u8>>,
}

/// A row that the scan returns.
struct VisibleRow<'a> {
    row: u32,
    /// Cells as inserted.
    cells: &'a [u8],
    /// True if a mutation is below the snapshot.
    changed: bool,
    /// True if the row is deleted and returned as such (diff scans).
    deleted: bool,
}

/// Properties of the rows of a block, beside their cells.
struct AboutRows {
    /// Bytes of the rows' cells.
    bytes: usize,
    /// Keys of the rows, if the spec wants them.
    keys: Vec<Vec<u8>>,
    /// The deleted rows, for diff scans.
    deleted: Option<Bitmap>,
}

impl AboutRows {
    fn of(spec: &RowSetScanSpec) -> AboutRows {
        AboutRows { bytes: 0, keys: Vec::new(), deleted: spec.diff_from.map(|_| Bitmap::default()) }
    }
}

impl MemRowSetScan {
    pub fn new(mrs: Arc<MemRowSet>, spec: RowSetScanSpec) -> MemRowSetScan {
        let sources = sources(mrs.schema(), &spec);
        let from = Some(spec.lower_key.clone().unwrap_or_default());
        MemRowSetScan { mrs, spec, sources, from }
    }

    /// Appends the next rows that the snapshot sees, and sets the key to resume at. Returns their keys, and which are
    /// deleted, if the spec wants them.
    fn copy_rows(&mut self, from: &[u8], out: &mut RowBlock) -> (Vec<Vec<u8>>, Option<Bitmap>) {
        let (mrs, mut about) = (self.mrs.clone(), AboutRows::of(&self.spec));
        if self.spec.is_one_key() {
            let row = mrs.index.find(from, &mrs.store);
            self.copy_visible(&mrs.store, row.as_slice(), out, &mut about);
            return (about.keys, about.deleted);
        }
        let (mut position, mut rows) = (mrs.index.seek(from, &mrs.store), Vec::new());
        let (upper, mut left, mut is_more) = (self.spec.upper_key.as_deref(), self.spec.block_rows, true);
        let mut beyond = None;
        while left > 0 && is_more && beyond.is_none() {
            rows.clear();
            is_more = position.take(left.min(ROWS_AT_ONCE), upper, &mrs.store, &mut rows);
            beyond = self.copy_visible(&mrs.store, &rows, out, &mut about);
            left -= rows.len();
        }
        let next = beyond.or_else(|| if is_more { position.next(&mrs.store) } else { None });
        let next = next.map(|row| mrs.store.key(row)).filter(|next| upper.is_none_or(|upper| *next < upper));
        self.from = next.map(<[u8]>::to_vec);
        (about.keys, about.deleted)
    }

    /// Appends those of the rows that the snapshot sees, as far as they fit the bytes of the block. Returns the first
    /// one that does not fit.
    fn copy_visible(
        &self,
        store: &Store,
        rows: &[u32],
        out: &mut RowBlock,
        about: &mut AboutRows,
    ) -> Option<u32> {
        let mut visible = self.visible_rows(store, rows);
        let mut latest = self.latest_of(store, &visible);
        let fitting = self.count_fitting(&visible, &latest, &mut about.bytes);
        let beyond = visible.get(fitting).map(|row| row.row);
        visible.truncate(fitting);
        latest.truncate(fitting);
        out.rows += visible.len();
        for (column_index, column) in out.columns.iter_mut().enumerate() {
            self.copy_column(&visible, &latest, column_index, column);
        }
        if self.spec.want_keys {
            about.keys.extend(visible.iter().map(|visible| store.key(visible.row).to_vec()));
        }
        if let Some(deleted) = &mut about.deleted {
            visible.iter().for_each(|visible| deleted.push(visible.deleted));
        }
        beyond
    }

    /// Returns how many of the rows fit into a block that has rows of `bytes` bytes, and adds theirs. The first row of
    /// a block always fits.
    fn count_fitting(
        &self,
        visible: &[VisibleRow<'_>],
        latest: &[Option<Latest<'_>>],
        bytes: &mut usize,
    ) -> usize {
        let all = *bytes + visible.iter().map(|row| row.cells.len()).sum::<usize>();
        if latest.is_empty() && all <= self.spec.block_bytes {
            *bytes = all;
            return visible.len();
        }
        let row_bytes = |(at, row): (usize, &VisibleRow<'_>)| match latest.get(at) {
            Some(Some(cells)) => cells.iter().flatten().map(|cell| cell.len()).sum::<usize>(),
            _ => row.cells.len(),
        };
        for (at, row) in visible.iter().enumerate() {
            let more = row_bytes((at, row));
            if *bytes > 0 && *bytes + more > self.spec.block_bytes {
                return at;
            }
            *bytes += more;
        }
        visible.len()
    }

    /// Returns those of the rows that the snapshot sees.
    ///
    /// All rows are prefetched before any is read, then the cells of all, before any is copied. Rows inserted in
    /// another order than their keys are scattered in memory; prefetching overlaps the cache misses.
    fn visible_rows<'a>(&self, store: &'a Store, rows: &[u32]) -> Vec<VisibleRow<'a>> {
        let prefetched = |row: &u32| {
            let stored = store.rows.get(*row);
            prefetch(stored);
            (*row, stored)
        };
        let rows: Vec<(u32, &Row)> = rows.iter().map(prefetched).collect();
        let reads_cells = !self.sources.is_empty();
        let mut visible = Vec::with_capacity(rows.len());
        for (row, stored) in rows {
            let row_cells = stored.row_cells();
            let cells = if reads_cells { store.cells(row_cells) } else { &[] };
            prefetch_run(cells);
            let row = VisibleRow { row, cells, changed: row_cells.changed, deleted: false };
            visible.extend(self.read_row(store, row, row_cells.ts));
        }
        visible
    }

    /// Returns the cells of each row that has mutations; no elements if none has.
    fn latest_of<'a>(&'a self, store: &'a Store, visible: &[VisibleRow<'a>]) -> Vec<Option<Latest<'a>>> {
        if !visible.iter().any(|row| row.changed) {
            return Vec::new();
        }
        visible.iter().map(|row| row.changed.then(|| self.latest(store, row))).collect()
    }

    /// Returns the row if the snapshot sees it. `row` says whether it has mutations at all.
    #[inline]
    fn read_row<'a>(
        &self,
        store: &Store,
        row: VisibleRow<'a>,
        inserted: Timestamp,
    ) -> Option<VisibleRow<'a>> {
        let before = self.spec.snapshot.before;
        if inserted >= before {
            return None;
        }
        let newest = if row.changed { store.mutations_newest_first(row.row, before).next() } else { None };
        let visible = VisibleRow { changed: newest.is_some(), ..row };
        let Some(from) = self.spec.diff_from else {
            return newest.is_none_or(|newest| !newest.deletes).then_some(visible);
        };
        let (mut was_live, mut live, mut changed) = (inserted < from, true, inserted >= from);
        for mutation in store.history(row.row, before) {
            live = !mutation.deletes;
            changed |= mutation.ts >= from;
            if mutation.ts < from {
                was_live = live;
            }
        }
        match (changed, live, was_live) {
            (true, true, _) => Some(visible),
            (true, false, true) => Some(VisibleRow { deleted: true, ..visible }),
            _ => None,
        }
    }

    /// Appends a column's cells of these rows.
    fn copy_column(
        &self,
        visible: &[VisibleRow<'_>],
        latest: &[Option<Latest<'_>>],
        column_index: usize,
        out: &mut ColumnBlock,
    ) {
        let source = &self.sources[column_index];
        if let Some(index) = source.index
            && (source.in_key || latest.is_empty())
        {
            let rows = visible.iter().map(|row| row.cells);
            return self.mrs.schema().layout.copy_column(rows, index, out);
        }
        out.push_all(visible.iter().enumerate().map(|(at, row)| match latest.get(at) {
            Some(Some(latest)) => latest[column_index],
            _ => self.base(row, source),
        }));
    }

    /// Returns a column's cell as inserted.
    fn base<'a>(&'a self, visible: &VisibleRow<'a>, source: &'a Source) -> Option<&'a [u8]> {
        match source.index {
            Some(index) => self.mrs.schema().layout.cell(visible.cells, index),
            None => source.default.as_deref(),
        }
    }

    /// Returns the columns of a mutated row as of the snapshot. Mutations are read from the newest back, until each
    /// column has a value.
    fn latest<'a>(&'a self, store: &'a Store, visible: &VisibleRow<'a>) -> Latest<'a> {
        let mut values: Vec<Option<Option<&[u8]>>> = self.sources.iter().map(|_| None).collect();
        let mut left = self.sources.iter().filter(|source| !source.in_key).count();
        for mutation in store.mutations_newest_first(visible.row, self.spec.snapshot.before) {
            if left == 0 {
                break;
            }
            let change = RowChange::parsed_before(mutation.change);
            let mut next = 0;
            for (id, cell) in change.cells() {
                let is_it = |source: &Source| source.id == id;
                let Some(index) = position_from(&self.sources, next, is_it) else { continue };
                if values[index].is_none() {
                    (values[index], left) = (Some(cell), left - 1);
                }
                next = index + 1;
            }
            if matches!(change, RowChange::Reinsert(_)) {
                let columns = self.sources.iter().zip(&mut values).filter(|(source, _)| !source.in_key);
                columns.for_each(|(source, value)| *value = value.or(Some(source.default.as_deref())));
                break;
            }
        }
        let sources = self.sources.iter().zip(values);
        sources.map(|(source, value)| value.unwrap_or_else(|| self.base(visible, source))).collect()
    }
}

/// A row's cells, one per column of the scan.
type Latest<'a> = Vec<Option<&'a [u8]>>;

/// Rows that are found, prefetched and copied together: what is prefetched for them stays in the first cache.
const ROWS_AT_ONCE: usize = 128;

impl RowSetScan for MemRowSetScan {
    fn read(&mut self, budget: &mut ReadBudget) -> Result<Option<ScannedBlock>> {
        while let Some(from) = self.from.take() {
            budget.spend(self.spec.block_rows);
            let mut block = self.spec.new_block();
            let (keys, deleted) = self.copy_rows(&from, &mut block);
            let mut scanned = ScannedBlock { block, keys, deleted };
            keep_matching(&self.spec, &mut scanned);
            if scanned.block.rows > 0 || budget.is_spent() {
                return Ok(Some(scanned));
            }
        }
        Ok(None)
    }

    fn append(&mut self, out: &mut RowBlock, budget: &mut ReadBudget) -> Result<bool> {
        if !self.spec.predicates.is_empty() {
            let Some(scanned) = self.read(budget)? else { return Ok(false) };
            out.append(scanned.block);
            return Ok(true);
        }
        let before = out.rows;
        while let Some(from) = self.from.take() {
            budget.spend(self.spec.block_rows);
            self.copy_rows(&from, out);
            if out.rows > before || budget.is_spent() {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

fn sources(schema: &TabletSchema, spec: &RowSetScanSpec) -> Vec<Source> {
    let source = |column: &crate::schema::row_block::ProjectedColumn| {
        let id = column.id.expect("rowset scans have no virtual columns");
        let index = schema.schema.index_of_id(id);
        let in_key = index.is_some_and(|index| index < schema.schema.num_key_columns());
        Source { id, index, in_key, default: column.read_default.clone() }
    };
    spec.columns.iter().map(source).collect()
}
