//! Reading a MemRowSet: batches of rows copied, then predicates applied to them.

use std::sync::Arc;

use super::{MemRowSet, Store};
use crate::error::Result;
use crate::ids::ColumnId;
use crate::schema::block::{Bitmap, RowBlock};
use crate::schema::change::Change;
use crate::tablet::meta::TabletSchema;
use crate::tablet::read::keep_matching;
use crate::tablet::rowset::{RowSetScan, RowSetScanSpec, ScannedBlock};

/// Rows looked at in one step, per row wanted in a block.
const LOOK_FACTOR: usize = 4;

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

/// What one row comes to at the scan's snapshot.
enum Seen {
    Hidden,
    Live,
    /// Dead, and to be reported so.
    Deleted,
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
        let store = &mrs.store;
        let mut cursor = store.seek(from);
        let mut out = ScannedBlock { block: RowBlock::new(&self.spec.columns), ..ScannedBlock::default() };
        out.deleted = self.spec.diff_from.map(|_| Bitmap::default());
        let mut looked = 0;
        self.from = loop {
            let Some(row) = store.next(&mut cursor) else { break None };
            let key = store.key(row);
            if self.spec.upper_key.as_deref().is_some_and(|upper| key >= upper) {
                break None;
            }
            if out.block.rows >= self.spec.block_rows || looked >= LOOK_FACTOR * self.spec.block_rows {
                break Some(key.to_vec());
            }
            looked += 1;
            self.copy_row(store, row, key, &mut out);
        };
        out
    }

    fn copy_row(&self, store: &Store, row: u32, key: &[u8], out: &mut ScannedBlock) {
        let deleted = match self.look(store, row) {
            Seen::Hidden => return,
            Seen::Live => false,
            Seen::Deleted => true,
        };
        self.copy_cells(store, row, &mut out.block);
        out.block.rows += 1;
        if self.spec.want_keys {
            out.keys.push(key.to_vec());
        }
        if let Some(flags) = &mut out.deleted {
            flags.push(deleted);
        }
    }

    fn look(&self, store: &Store, row: u32) -> Seen {
        let before = self.spec.snapshot.before;
        let inserted = store.inserted_at(row);
        if inserted >= before {
            return Seen::Hidden;
        }
        let Some(from) = self.spec.diff_from else {
            let dead = store.history(row, before).last().is_some_and(|m| m.deletes);
            return if dead { Seen::Hidden } else { Seen::Live };
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
            (true, true, _) => Seen::Live,
            (true, false, true) => Seen::Deleted,
            _ => Seen::Hidden,
        }
    }

    fn copy_cells(&self, store: &Store, row: u32, block: &mut RowBlock) {
        let layout = &self.mrs.schema().layout;
        let base = store.cells(row);
        let cell = |source: &'_ Source| match source.index {
            Some(index) => layout.cell(base, index),
            None => None,
        };
        if store.history(row, self.spec.snapshot.before).next().is_none() {
            for (column, source) in block.columns.iter_mut().zip(&self.sources) {
                column.push(if source.index.is_some() { cell(source) } else { source.default.as_deref() });
            }
            return;
        }
        for (column, source) in block.columns.iter_mut().zip(&self.sources) {
            let base = if source.index.is_some() { cell(source) } else { source.default.as_deref() };
            column.push(self.latest_cell(store, row, source, base));
        }
    }

    /// One column of a row with history, as of the snapshot.
    fn latest_cell<'a>(
        &self,
        store: &'a Store,
        row: u32,
        source: &'a Source,
        base: Option<&'a [u8]>,
    ) -> Option<&'a [u8]> {
        let mut cell = base;
        if source.in_key {
            return cell;
        }
        for mutation in store.history(row, self.spec.snapshot.before) {
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
