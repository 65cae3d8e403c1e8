//! Rows of a MemRowSet for a flush: in key order, as of a timestamp, each with its UNDO deltas.
//!
//! ```text
//!   insert@1 update@5 delete@9      base: values after 5   UNDO: update@5, delete@1   REDO: delete@9
//! ```
//!
//! A row that is deleted at the timestamp has its last live values as base, because a base cannot express a deletion.

use super::MemRowSet;
use super::store::Store;
use crate::ids::ColumnId;
use crate::schema::row_block::{ProjectedColumn, RowBlock};
use crate::schema::row_change::{RowChange, encode_delete};
use crate::time::Timestamp;

/// Rows in key order, with all columns of the MemRowSet's schema.
#[derive(Default)]
pub struct FlushRows {
    pub block: RowBlock,
    pub rows: Vec<FlushRow>,
    /// Bytes of the rows' keys and deltas.
    pub history_bytes: usize,
    /// Upper bound of the bytes of the rows' cells.
    cell_bytes: usize,
}

#[derive(Default)]
pub struct FlushRow {
    /// Row id in the MemRowSet.
    pub row: u32,
    pub key: Vec<u8>,
    /// UNDO deltas, newest first.
    pub undos: Vec<(Timestamp, Vec<u8>)>,
    pub redo: Option<(Timestamp, Vec<u8>)>,
}

impl FlushRow {
    fn byte_size(&self) -> usize {
        let deltas = self.undos.iter().chain(&self.redo);
        size_of::<FlushRow>()
            + self.key.len()
            + deltas.map(|(_, change)| size_of::<(Timestamp, Vec<u8>)>() + change.len()).sum::<usize>()
    }
}

impl MemRowSet {
    /// Returns up to `rows_max` rows from key `from` on, as of the operations before `before`, and the key to resume at
    /// (`None` at the end). The rows end with the one with which their keys and deltas, or their cells, reach
    /// `bytes_max`. Every row must have been inserted before `before`.
    pub fn histories(
        &self,
        from: &[u8],
        before: Timestamp,
        (rows_max, bytes_max): (usize, usize),
    ) -> (FlushRows, Option<Vec<u8>>) {
        let store = &self.store;
        let columns = self.schema().schema.columns();
        let projection: Vec<ProjectedColumn> = columns.iter().map(ProjectedColumn::from).collect();
        let non_key = self.schema().non_key_ids();
        let mut flushed = FlushRows { block: RowBlock::new(&projection), ..FlushRows::default() };
        let mut cursor = self.index.seek(from, store);
        while let Some(row) = cursor.next(store) {
            let bytes = flushed.history_bytes.max(flushed.cell_bytes);
            if flushed.rows.len() == rows_max || bytes >= bytes_max {
                return (flushed, Some(store.key(row).to_vec()));
            }
            let history = self.add_row(store, row, before, &non_key, &mut flushed);
            flushed.history_bytes += history.byte_size();
            flushed.rows.push(history);
        }
        (flushed, None)
    }

    fn add_row(
        &self,
        store: &Store,
        row: u32,
        before: Timestamp,
        non_key: &[ColumnId],
        flushed: &mut FlushRows,
    ) -> FlushRow {
        let schema = self.schema();
        let row_cells = store.row_cells(row);
        flushed.cell_bytes += row_cells.len as usize;
        let (inserted, mut cells) =
            (row_cells.ts, schema.layout.cells(store.cells(row_cells)).collect::<Vec<_>>());
        debug_assert!(inserted < before, "a frozen MemRowSet has no rows inserted after its freeze");
        let mut undos = vec![(inserted, delete())];
        let mut deleted_at = None;
        for mutation in store.history(row, before) {
            flushed.cell_bytes += mutation.change.len();
            let change = RowChange::parse(mutation.change).expect("the writer encoded it");
            let mut undo = Vec::new();
            let cell = |id| schema.schema.index_of_id(id).and_then(|index| cells[index]);
            change.encode_inverse(non_key, cell, &mut undo);
            undos.push((mutation.ts, undo));
            deleted_at = change.deletes().then_some(mutation.ts);
            schema.apply(&change, &mut cells);
        }
        if deleted_at.is_some() {
            undos.pop();
        }
        undos.reverse();
        for (column, cell) in flushed.block.columns.iter_mut().zip(&cells) {
            column.push(*cell);
        }
        flushed.block.rows += 1;
        let redo = deleted_at.map(|ts| (ts, delete()));
        FlushRow { row, key: store.key(row).to_vec(), undos, redo }
    }
}

fn delete() -> Vec<u8> {
    let mut change = Vec::with_capacity(1);
    encode_delete(&mut change);
    change
}
