//! Reading a MemRowSet: blocks of rows copied, then predicates applied to them.

use std::sync::Arc;

use super::{MemRowSet, Place, Store};
use crate::error::Result;
use crate::ids::ColumnId;
use crate::schema::block::{Bitmap, ColumnBlock, RowBlock};
use crate::schema::change::Change;
use crate::tablet::memstore::prefetch;
use crate::tablet::meta::TabletSchema;
use crate::tablet::read::keep_matching;
use crate::tablet::rowset::{RowSetScan, RowSetScanSpec, ScannedBlock};

/// A scan of a MemRowSet.
pub struct MemRowSetScan {
    mrs: Arc<MemRowSet>,
    spec: RowSetScanSpec,
    sources: Vec<Source>,
    /// The key to go on at; `None` at the end.
    from: Option<Vec<u8>>,
}

/// Where a column of the scan comes from.
struct Source {
    id: ColumnId,
    /// Its index in the row's own schema, if the row set has it.
    index: Option<usize>,
    in_key: bool,
    default: Option<Vec<u8>>,
}

/// A row that the scan returns.
struct Picked<'a> {
    row: u32,
    /// As inserted.
    cells: &'a [u8],
    /// Some mutation is older than the snapshot.
    changed: bool,
    /// Dead, and to be reported so.
    deleted: bool,
}

impl MemRowSetScan {
    pub fn new(mrs: Arc<MemRowSet>, spec: RowSetScanSpec) -> MemRowSetScan {
        let sources = sources(mrs.schema(), &spec);
        let from = Some(spec.lower_key.clone().unwrap_or_default());
        MemRowSetScan { mrs, spec, sources, from }
    }

    /// Copies the next rows that the snapshot sees, and says where to go on.
    fn copy_block(&mut self, from: &[u8]) -> ScannedBlock {
        let mrs = self.mrs.clone();
        let mut out = ScannedBlock { block: RowBlock::new(&self.spec.columns), ..ScannedBlock::default() };
        let (picked, next) = self.pick(&mrs.store, from);
        out.block.rows = picked.len();
        let latest: Vec<Option<Latest<'_>>> =
            picked.iter().map(|row| row.changed.then(|| self.latest(&mrs.store, row))).collect();
        for (place, column) in out.block.columns.iter_mut().enumerate() {
            self.copy_column(&picked, &latest, place, column);
        }
        if self.spec.want_keys {
            out.keys = picked.iter().map(|picked| mrs.store.key(picked.row).to_vec()).collect();
        }
        out.deleted = self.spec.diff_from.map(|_| {
            let mut deleted = Bitmap::default();
            picked.iter().for_each(|picked| deleted.push(picked.deleted));
            deleted
        });
        self.from = next;
        out
    }

    /// The rows that the snapshot sees among the next ones from a key on, and the key to go on at.
    ///
    /// All rows are found before any is looked at, and asked for as soon as they are: rows that came in another order
    /// than that of their keys are all over the memory, and so the waits for them overlap.
    fn pick<'a>(&self, store: &'a Store, from: &[u8]) -> (Vec<Picked<'a>>, Option<Vec<u8>>) {
        let (rows, next) = self.rows_from(store, from);
        let place = |row: &u32| {
            let place = store.place(*row);
            store.prefetch_cells(place);
            place
        };
        let places: Vec<Place> = rows.iter().map(place).collect();
        let looks = rows.iter().zip(places).filter_map(|(row, place)| self.look(store, *row, place));
        (looks.collect(), next)
    }

    /// The next rows from a key on, as many as a block may have, and the key to go on at.
    fn rows_from(&self, store: &Store, from: &[u8]) -> (Vec<u32>, Option<Vec<u8>>) {
        if self.spec.is_one_key() {
            return (store.index.find(from, store).into_iter().collect(), None);
        }
        let (mut cursor, mut rows) = (store.seek(from), Vec::new());
        while rows.len() < self.spec.block_rows && self.may_go_on(store, &rows) {
            let Some(row) = store.next(&mut cursor) else { break };
            prefetch(store.rows.get(row));
            rows.push(row);
        }
        let next = store.next(&mut cursor).map(|row| store.key(row).to_vec());
        let Some(upper) = self.spec.upper_key.as_deref() else { return (rows, next) };
        rows.truncate(rows.partition_point(|row| store.key(*row) < upper));
        (rows, next.filter(|next| &next[..] < upper))
    }

    /// Whether the rows found so far leave it open that more of them are below the upper bound: a few at a time are
    /// looked at, as looking at each would be to wait for each.
    fn may_go_on(&self, store: &Store, rows: &[u32]) -> bool {
        let Some(upper) = self.spec.upper_key.as_deref() else { return true };
        let last = rows.last().filter(|_| rows.len().is_multiple_of(ROWS_PER_LOOK));
        last.is_none_or(|last| store.key(*last) < upper)
    }

    /// The row, if the snapshot sees it.
    fn look<'a>(&self, store: &'a Store, row: u32, place: Place) -> Option<Picked<'a>> {
        let (before, inserted) = (self.spec.snapshot.before, place.ts);
        if inserted >= before {
            return None;
        }
        let newest = if place.changed { store.back_from(row, before).next() } else { None };
        let picked = Picked { row, cells: store.cells(place), changed: newest.is_some(), deleted: false };
        let Some(from) = self.spec.diff_from else {
            return newest.is_none_or(|newest| !newest.deletes).then_some(picked);
        };
        let (mut was_live, mut live, mut touched) = (inserted < from, true, inserted >= from);
        for mutation in store.history(row, before) {
            live = !mutation.deletes;
            touched |= mutation.ts >= from;
            if mutation.ts < from {
                was_live = live;
            }
        }
        match (touched, live, was_live) {
            (true, true, _) => Some(picked),
            (true, false, true) => Some(Picked { deleted: true, ..picked }),
            _ => None,
        }
    }

    /// Appends a column's cells of these rows.
    fn copy_column(
        &self,
        picked: &[Picked<'_>],
        latest: &[Option<Latest<'_>>],
        place: usize,
        out: &mut ColumnBlock,
    ) {
        let source = &self.sources[place];
        if let Some(index) = source.index
            && (source.in_key || latest.iter().all(Option::is_none))
        {
            let rows = picked.iter().map(|row| row.cells);
            return self.mrs.schema().layout.copy_column(rows, index, out);
        }
        out.push_all(picked.iter().zip(latest).map(|(row, latest)| match latest {
            Some(latest) => latest[place],
            None => self.base(row, source),
        }));
    }

    /// A column of a row as it was inserted.
    fn base<'a>(&'a self, picked: &Picked<'a>, source: &'a Source) -> Option<&'a [u8]> {
        match source.index {
            Some(index) => self.mrs.schema().layout.cell(picked.cells, index),
            None => source.default.as_deref(),
        }
    }

    /// The columns of a changed row as of the snapshot. Its changes are read from the newest back, until each column
    /// was met.
    fn latest<'a>(&'a self, store: &'a Store, picked: &Picked<'a>) -> Latest<'a> {
        let mut met: Vec<Option<Option<&[u8]>>> = self.sources.iter().map(|_| None).collect();
        let mut left = self.sources.iter().filter(|source| !source.in_key).count();
        for mutation in store.back_from(picked.row, self.spec.snapshot.before) {
            if left == 0 {
                break;
            }
            let change = Change::parse(mutation.change).expect("the writer encoded it");
            for (id, cell) in change.cells() {
                let place = self.sources.iter().position(|source| source.id == id);
                if let Some(place) = place.filter(|place| met[*place].is_none()) {
                    (met[place], left) = (Some(cell), left - 1);
                }
            }
            if matches!(change, Change::Reinsert(_)) {
                let columns = self.sources.iter().zip(&mut met).filter(|(source, _)| !source.in_key);
                columns.for_each(|(source, met)| *met = met.or(Some(source.default.as_deref())));
                break;
            }
        }
        let sources = self.sources.iter().zip(met);
        sources.map(|(source, met)| met.unwrap_or_else(|| self.base(picked, source))).collect()
    }
}

/// A row's cells, one per column of the scan.
type Latest<'a> = Vec<Option<&'a [u8]>>;

/// Rows after which the scan looks whether it has left its range.
const ROWS_PER_LOOK: usize = 16;

impl RowSetScan for MemRowSetScan {
    fn next(&mut self) -> Result<Option<ScannedBlock>> {
        while let Some(from) = self.from.take() {
            let mut scanned = self.copy_block(&from);
            keep_matching(&self.spec, &mut scanned);
            if scanned.block.rows > 0 {
                return Ok(Some(scanned));
            }
        }
        Ok(None)
    }
}

fn sources(schema: &TabletSchema, spec: &RowSetScanSpec) -> Vec<Source> {
    let source = |column: &crate::schema::block::ProjectedColumn| {
        let id = column.id.expect("row sets are not asked for virtual columns");
        let index = schema.schema.index_of_id(id);
        let in_key = index.is_some_and(|index| index < schema.schema.num_key_columns());
        Source { id, index, in_key, default: column.read_default.clone() }
    };
    spec.columns.iter().map(source).collect()
}
