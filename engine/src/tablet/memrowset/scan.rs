//! Scan of a MemRowSet: blocks of rows are copied, then predicates are applied to them.

use std::sync::Arc;

use super::MemRowSet;
use super::store::{RowCells, Store};
use crate::error::Result;
use crate::ids::ColumnId;
use crate::schema::row_block::{Bitmap, ColumnBlock, RowBlock};
use crate::schema::row_change::RowChange;
use crate::tablet::memstore::prefetch;
use crate::tablet::rowset::{RowSetScan, RowSetScanSpec, ScannedBlock};
use crate::tablet::scan_filter::keep_matching;
use crate::tablet::superblock::TabletSchema;

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

impl MemRowSetScan {
    pub fn new(mrs: Arc<MemRowSet>, spec: RowSetScanSpec) -> MemRowSetScan {
        let sources = sources(mrs.schema(), &spec);
        let from = Some(spec.lower_key.clone().unwrap_or_default());
        MemRowSetScan { mrs, spec, sources, from }
    }

    /// Appends the next rows that the snapshot sees, and sets the key to resume at. Returns their keys, and which are
    /// deleted, if the spec wants them.
    fn copy_rows(&mut self, from: &[u8], out: &mut RowBlock) -> (Vec<Vec<u8>>, Option<Bitmap>) {
        let mrs = self.mrs.clone();
        let (visible, next) = self.visible_rows(&mrs.store, from);
        out.rows += visible.len();
        let latest: Vec<Option<Latest<'_>>> =
            visible.iter().map(|row| row.changed.then(|| self.latest(&mrs.store, row))).collect();
        for (column_index, column) in out.columns.iter_mut().enumerate() {
            self.copy_column(&visible, &latest, column_index, column);
        }
        let keyed = visible.iter().filter(|_| self.spec.want_keys);
        let keys = keyed.map(|visible| mrs.store.key(visible.row).to_vec()).collect();
        let deleted = self.spec.diff_from.map(|_| {
            let mut deleted = Bitmap::default();
            visible.iter().for_each(|visible| deleted.push(visible.deleted));
            deleted
        });
        self.from = next;
        (keys, deleted)
    }

    /// Returns the rows that the snapshot sees among the next ones from a key on, and the key to resume at.
    ///
    /// All rows are found and prefetched before any is read. Rows inserted in another order than their keys are
    /// scattered in memory; prefetching overlaps the cache misses.
    fn visible_rows<'a>(&self, store: &'a Store, from: &[u8]) -> (Vec<VisibleRow<'a>>, Option<Vec<u8>>) {
        let (rows, next) = self.rows_from(store, from);
        let prefetch_row = |row: &u32| {
            let cells = store.row_cells(*row);
            store.prefetch_cells(cells);
            cells
        };
        let all_cells: Vec<RowCells> = rows.iter().map(prefetch_row).collect();
        let visible = rows.iter().zip(all_cells).filter_map(|(row, cells)| self.read_row(store, *row, cells));
        (visible.collect(), next)
    }

    /// Returns the next rows from a key on, at most a block of them, and the key to resume at.
    fn rows_from(&self, store: &Store, from: &[u8]) -> (Vec<u32>, Option<Vec<u8>>) {
        if self.spec.is_one_key() {
            return (self.mrs.index.find(from, store).into_iter().collect(), None);
        }
        let (mut cursor, mut rows) = (self.mrs.index.seek(from, store), Vec::new());
        while rows.len() < self.spec.block_rows && self.stays_below_bound(store, &rows) {
            let Some(row) = cursor.next(store) else { break };
            prefetch(store.rows.get(row));
            rows.push(row);
        }
        let next = cursor.next(store).map(|row| store.key(row).to_vec());
        let Some(upper) = self.spec.upper_key.as_deref() else { return (rows, next) };
        rows.truncate(rows.partition_point(|row| store.key(*row) < upper));
        (rows, next.filter(|next| &next[..] < upper))
    }

    /// Returns false if the rows found so far have reached the upper bound. Only every sixteenth row is checked,
    /// because each check waits for the row's memory.
    fn stays_below_bound(&self, store: &Store, rows: &[u32]) -> bool {
        let Some(upper) = self.spec.upper_key.as_deref() else { return true };
        let last = rows.last().filter(|_| rows.len().is_multiple_of(ROWS_PER_BOUND_CHECK));
        last.is_none_or(|last| store.key(*last) < upper)
    }

    /// Returns the row if the snapshot sees it.
    fn read_row<'a>(&self, store: &'a Store, row: u32, row_cells: RowCells) -> Option<VisibleRow<'a>> {
        let (before, inserted) = (self.spec.snapshot.before, row_cells.ts);
        if inserted >= before {
            return None;
        }
        let newest = if row_cells.changed { store.mutations_newest_first(row, before).next() } else { None };
        let visible =
            VisibleRow { row, cells: store.cells(row_cells), changed: newest.is_some(), deleted: false };
        let Some(from) = self.spec.diff_from else {
            return newest.is_none_or(|newest| !newest.deletes).then_some(visible);
        };
        let (mut was_live, mut live, mut changed) = (inserted < from, true, inserted >= from);
        for mutation in store.history(row, before) {
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
            && (source.in_key || latest.iter().all(Option::is_none))
        {
            let rows = visible.iter().map(|row| row.cells);
            return self.mrs.schema().layout.copy_column(rows, index, out);
        }
        out.push_all(visible.iter().zip(latest).map(|(row, latest)| match latest {
            Some(latest) => latest[column_index],
            None => self.base(row, source),
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
            let change = RowChange::parse(mutation.change).expect("the writer encoded it");
            for (id, cell) in change.cells() {
                let column_index = self.sources.iter().position(|source| source.id == id);
                if let Some(index) = column_index.filter(|index| values[*index].is_none()) {
                    (values[index], left) = (Some(cell), left - 1);
                }
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

/// Rows between two checks of the upper bound.
const ROWS_PER_BOUND_CHECK: usize = 16;

impl RowSetScan for MemRowSetScan {
    fn next(&mut self) -> Result<Option<ScannedBlock>> {
        while let Some(from) = self.from.take() {
            let mut block = RowBlock::new(&self.spec.columns);
            let (keys, deleted) = self.copy_rows(&from, &mut block);
            let mut scanned = ScannedBlock { block, keys, deleted };
            keep_matching(&self.spec, &mut scanned);
            if scanned.block.rows > 0 {
                return Ok(Some(scanned));
            }
        }
        Ok(None)
    }

    fn append(&mut self, out: &mut RowBlock) -> Result<bool> {
        if !self.spec.predicates.is_empty() {
            let Some(scanned) = self.next()? else { return Ok(false) };
            out.append(scanned.block);
            return Ok(true);
        }
        let before = out.rows;
        while out.rows == before {
            let Some(from) = self.from.take() else { return Ok(false) };
            self.copy_rows(&from, out);
        }
        Ok(true)
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
