//! What a row operation does to what is there.

use super::meta::TabletSchema;
use super::prepare::{PreparedRow, in_mask};
use crate::schema::ColumnSchema;
use crate::schema::change::{ChangeBuilder, encode_delete};
use crate::schema::ops::{RowError, RowErrorCode, RowOpKind};

/// What a tablet holds under a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    Absent,
    /// Only history.
    Dead,
    Live,
}

/// What is to happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    Insert,
    Reinsert,
    Update,
    Delete,
    /// The row fails.
    Refuse(RowErrorCode),
    /// The client asked not to hear of it.
    Ignore,
}

impl PreparedRow {
    /// Whether it does nothing to a row that is not there.
    pub fn needs_a_row(&self) -> bool {
        matches!(self.kind.base(), RowOpKind::Update | RowOpKind::Delete)
    }

    /// Decides on a row of a batch.
    pub fn decide(&self, found: Found) -> Action {
        use RowOpKind::*;
        let live = found == Found::Live;
        match self.kind {
            Insert if live => Action::Refuse(RowErrorCode::AlreadyPresent),
            InsertIgnore if live => Action::Ignore,
            Upsert | Update if live && self.immutable.is_some() => Action::Refuse(RowErrorCode::Immutable),
            Upsert | UpsertIgnore | Update | UpdateIgnore if live => Action::Update,
            Delete | DeleteIgnore if live => Action::Delete,
            Update | Delete => Action::Refuse(RowErrorCode::NotFound),
            UpdateIgnore | DeleteIgnore => Action::Ignore,
            Insert | InsertIgnore | Upsert | UpsertIgnore if found == Found::Dead => Action::Reinsert,
            Insert | InsertIgnore | Upsert | UpsertIgnore => Action::Insert,
        }
    }

    /// Writes the change that `action` makes to an existing row; leaves `out` empty if there is nothing to
    /// change. `arena` is the batch's.
    pub fn change(&self, action: Action, schema: &TabletSchema, arena: &[u8], out: &mut Vec<u8>) {
        out.clear();
        match (action, self.kind) {
            (Action::Delete, _) => encode_delete(out),
            (Action::Reinsert, _) => self.reinsert(schema, arena, out),
            (Action::Update, RowOpKind::Update | RowOpKind::UpdateIgnore) => {
                out.extend_from_slice(self.rest(arena));
            }
            (Action::Update, _) => self.update_by_mask(schema, arena, out),
            _ => {}
        }
    }

    fn reinsert(&self, schema: &TabletSchema, arena: &[u8], out: &mut Vec<u8>) {
        let cells = self.cells(arena);
        let mut change = ChangeBuilder::reinsert(out);
        for (index, column) in non_key(schema) {
            change.set(column.id, schema.layout.cell(cells, index));
        }
    }

    fn update_by_mask(&self, schema: &TabletSchema, arena: &[u8], out: &mut Vec<u8>) {
        let (cells, mask) = (self.cells(arena), self.rest(arena));
        let mut change = ChangeBuilder::update(out);
        for (index, column) in non_key(schema) {
            if in_mask(mask, index) && !column.immutable {
                change.set(column.id, schema.layout.cell(cells, index));
            }
        }
        if change.is_empty() {
            out.clear();
        }
    }
}

fn non_key(schema: &TabletSchema) -> impl Iterator<Item = (usize, &ColumnSchema)> {
    schema.schema.columns().iter().enumerate().skip(schema.schema.num_key_columns())
}

/// The error of a refused row, in Kudu's words.
pub fn refusal(code: RowErrorCode, row: &PreparedRow, schema: &TabletSchema) -> RowError {
    match code {
        RowErrorCode::AlreadyPresent => RowError::new(code, "key already present"),
        RowErrorCode::NotFound => RowError::new(code, "key not found"),
        _ => {
            let column = row.immutable.map(|column| schema.schema.columns()[column as usize].to_string());
            let column = column.unwrap_or_default();
            RowError::new(code, format!("UPDATE not allowed for immutable column: {column}"))
        }
    }
}
