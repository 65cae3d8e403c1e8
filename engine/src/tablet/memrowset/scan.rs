//! Reading a MemRowSet: batches of rows copied, then predicates applied to them.

use std::sync::Arc;

use super::{MemRowSet, Place, Store};
use crate::error::Result;
use crate::ids::ColumnId;
use crate::schema::block::{Bitmap, ColumnBlock, RowBlock};
use crate::schema::change::Change;
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
    fn copy_batch(&mut self, from: &[u8]) -> ScannedBlock {
        let mrs = self.mrs.clone();
        let mut out = ScannedBlock { block: RowBlock::new(&self.spec.columns), ..ScannedBlock::default() };
        let (picked, next) = self.pick(&mrs.store, from);
        out.block.rows = picked.len();
        for (column, source) in out.block.columns.iter_mut().zip(&self.sources) {
            self.copy_column(&mrs.store, &picked, source, column);
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
    /// All rows are found before any is looked at: rows that came in another order than that of their keys are all
    /// over the memory, and so the waits for them overlap.
    fn pick<'a>(&self, store: &'a Store, from: &[u8]) -> (Vec<Picked<'a>>, Option<Vec<u8>>) {
        let (rows, next) = self.rows_from(store, from);
        let places: Vec<Place> = rows.iter().map(|row| store.place(*row)).collect();
        let looks = rows.iter().zip(places);
        (looks.filter_map(|(row, place)| self.look(store, *row, place)).collect(), next)
    }

    /// The next rows from a key on, as many as a block may have, and the key to go on at.
    fn rows_from(&self, store: &Store, from: &[u8]) -> (Vec<u32>, Option<Vec<u8>>) {
        let mut cursor = store.seek(from);
        let mut rows: Vec<u32> =
            std::iter::from_fn(|| store.next(&mut cursor)).take(self.spec.block_rows).collect();
        let next = store.next(&mut cursor).map(|row| store.key(row).to_vec());
        let Some(upper) = self.spec.upper_key.as_deref() else { return (rows, next) };
        rows.truncate(rows.partition_point(|row| store.key(*row) < upper));
        (rows, next.filter(|next| &next[..] < upper))
    }

    /// The row, if the snapshot sees it.
    fn look<'a>(&self, store: &'a Store, row: u32, place: Place) -> Option<Picked<'a>> {
        let before = self.spec.snapshot.before;
        let (inserted, cells) = store.inserted(place);
        if inserted >= before {
            return None;
        }
        let changed = place.changed && store.history(row, before).next().is_some();
        let picked = Picked { row, cells, changed, deleted: false };
        let Some(from) = self.spec.diff_from else {
            let dead = changed && store.history(row, before).last().is_some_and(|m| m.deletes);
            return (!dead).then_some(picked);
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
    fn copy_column(&self, store: &Store, picked: &[Picked<'_>], source: &Source, out: &mut ColumnBlock) {
        let layout = &self.mrs.schema().layout;
        let Some(index) = source.index else {
            let default = source.default.as_deref();
            return picked.iter().for_each(|row| out.push(self.latest_cell(store, row, source, default)));
        };
        if source.in_key || picked.iter().all(|row| !row.changed) {
            return layout.copy_column(picked.iter().map(|row| row.cells), index, out);
        }
        for row in picked {
            out.push(self.latest_cell(store, row, source, layout.cell(row.cells, index)));
        }
    }

    /// One column of a row, as of the snapshot.
    fn latest_cell<'a>(
        &self,
        store: &'a Store,
        picked: &Picked<'_>,
        source: &'a Source,
        base: Option<&'a [u8]>,
    ) -> Option<&'a [u8]> {
        let mut cell = base;
        if !picked.changed {
            return cell;
        }
        for mutation in store.history(picked.row, self.spec.snapshot.before) {
            let change = Change::parse(mutation.change).expect("the writer encoded it");
            match (change.get(source.id), change) {
                (Some(new), _) => cell = new,
                (None, Change::Reinsert(_)) => cell = source.default.as_deref(),
                (None, _) => {}
            }
        }
        cell
    }
}

impl RowSetScan for MemRowSetScan {
    fn next(&mut self) -> Result<Option<ScannedBlock>> {
        while let Some(from) = self.from.take() {
            let mut scanned = self.copy_batch(&from);
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
