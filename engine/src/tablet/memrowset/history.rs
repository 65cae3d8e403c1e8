//! A MemRowSet as a flush wants it: rows in key order as of a moment, each with the way back.
//!
//! ```text
//!   insert@1 update@5 delete@9      base: values after 5   UNDO: update@5, delete@1   REDO: delete@9
//! ```
//!
//! A row that is dead at the moment keeps its last values as base, since a base has no way to say "dead".

use super::{MemRowSet, Store};
use crate::ids::ColumnId;
use crate::schema::block::{ProjectedColumn, RowBlock};
use crate::schema::change::{Change, encode_delete};
use crate::time::Timestamp;

/// Rows in key order, all columns of the row set's schema.
#[derive(Default)]
pub struct RowHistories {
    pub block: RowBlock,
    pub rows: Vec<RowHistory>,
}

#[derive(Default)]
pub struct RowHistory {
    /// The row's number in the MemRowSet.
    pub row: u32,
    pub key: Vec<u8>,
    /// Newest first.
    pub undos: Vec<(Timestamp, Vec<u8>)>,
    pub redo: Option<(Timestamp, Vec<u8>)>,
}

impl MemRowSet {
    /// Up to `limit` rows from key `from` on, as of the operations before `before`; and the key to go on at,
    /// `None` at the end. Every row must have been inserted before that.
    pub fn histories(&self, from: &[u8], before: Timestamp, limit: usize) -> (RowHistories, Option<Vec<u8>>) {
        let store = &self.store;
        let columns = self.schema().schema.columns();
        let projection: Vec<ProjectedColumn> = columns.iter().map(ProjectedColumn::from).collect();
        let non_key = self.schema().non_key_ids();
        let mut out = RowHistories { block: RowBlock::new(&projection), rows: Vec::new() };
        let mut cursor = store.seek(from);
        while let Some(row) = store.next(&mut cursor) {
            if out.rows.len() == limit {
                return (out, Some(store.key(row).to_vec()));
            }
            let history = self.add_row(store, row, before, &non_key, &mut out.block);
            out.rows.push(history);
        }
        (out, None)
    }

    fn add_row(
        &self,
        store: &Store,
        row: u32,
        before: Timestamp,
        non_key: &[ColumnId],
        block: &mut RowBlock,
    ) -> RowHistory {
        let schema = self.schema();
        let place = store.place(row);
        let (inserted, mut cells) = (place.ts, schema.layout.cells(store.cells(place)).collect::<Vec<_>>());
        debug_assert!(inserted < before, "a frozen MemRowSet has no rows from after its freeze");
        let mut undos = vec![(inserted, delete())];
        let mut died = None;
        for mutation in store.history(row, before) {
            let change = Change::parse(mutation.change).expect("the writer encoded it");
            let mut undo = Vec::new();
            let cell = |id| schema.schema.index_of_id(id).and_then(|index| cells[index]);
            change.encode_inverse(non_key, cell, &mut undo);
            undos.push((mutation.ts, undo));
            died = change.deletes().then_some(mutation.ts);
            schema.apply(&change, &mut cells);
        }
        if died.is_some() {
            undos.pop();
        }
        undos.reverse();
        for (column, cell) in block.columns.iter_mut().zip(&cells) {
            column.push(*cell);
        }
        block.rows += 1;
        let redo = died.map(|ts| (ts, delete()));
        RowHistory { row, key: store.key(row).to_vec(), undos, redo }
    }
}

fn delete() -> Vec<u8> {
    let mut change = Vec::with_capacity(1);
    encode_delete(&mut change);
    change
}
