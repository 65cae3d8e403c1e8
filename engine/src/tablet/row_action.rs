//! The action of a row operation, given the presence of its row.

use super::prepared_batch::{PreparedRow, in_mask};
use super::row_errors::fixed_text;
use super::superblock::TabletSchema;
use crate::schema::ColumnSchema;
use crate::schema::row_change::{RowChangeBuilder, encode_delete};
use crate::schema::row_ops::{RowError, RowErrorCode, RowOpKind};

/// Presence of a key in a tablet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowPresence {
    Absent,
    /// A ghost row: the key has history, and its newest version is deleted.
    Dead,
    Live,
}

/// Action to take for a row operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowAction {
    Insert,
    Reinsert,
    Update,
    Delete,
    /// The row fails.
    Refuse(RowErrorCode),
    /// The row has no effect, and the operation is of an IGNORE kind.
    Ignore,
}

impl PreparedRow {
    /// Returns true if the operation has an effect only on an existing row.
    pub fn needs_a_row(&self) -> bool {
        matches!(self.kind.base(), RowOpKind::Update | RowOpKind::Delete)
    }

    /// Decides the action for this row.
    pub fn decide(&self, found: RowPresence) -> RowAction {
        use RowOpKind::*;
        let live = found == RowPresence::Live;
        match self.kind {
            Insert if live => RowAction::Refuse(RowErrorCode::AlreadyPresent),
            InsertIgnore if live => RowAction::Ignore,
            Upsert | Update if live && self.immutable.is_some() => RowAction::Refuse(RowErrorCode::Immutable),
            Upsert | UpsertIgnore | Update | UpdateIgnore if live => RowAction::Update,
            Delete | DeleteIgnore if live => RowAction::Delete,
            Update | Delete => RowAction::Refuse(RowErrorCode::NotFound),
            UpdateIgnore | DeleteIgnore => RowAction::Ignore,
            Insert | InsertIgnore | Upsert | UpsertIgnore if found == RowPresence::Dead => {
                RowAction::Reinsert
            }
            Insert | InsertIgnore | Upsert | UpsertIgnore => RowAction::Insert,
        }
    }

    /// Writes to `out` the row change that `action` makes to an existing row. `out` stays empty if nothing changes.
    /// `arena` is the batch's.
    pub fn change(&self, action: RowAction, schema: &TabletSchema, arena: &[u8], out: &mut Vec<u8>) {
        out.clear();
        match (action, self.kind) {
            (RowAction::Delete, _) => encode_delete(out),
            (RowAction::Reinsert, _) => self.reinsert(schema, arena, out),
            (RowAction::Update, RowOpKind::Update | RowOpKind::UpdateIgnore) => {
                out.extend_from_slice(self.rest(arena));
            }
            (RowAction::Update, _) => self.update_by_mask(schema, arena, out),
            _ => {}
        }
    }

    fn reinsert(&self, schema: &TabletSchema, arena: &[u8], out: &mut Vec<u8>) {
        let cells = self.cells(arena);
        let mut change = RowChangeBuilder::reinsert(out);
        for (index, column) in non_key(schema) {
            change.set(column.id, schema.layout.cell(cells, index));
        }
    }

    fn update_by_mask(&self, schema: &TabletSchema, arena: &[u8], out: &mut Vec<u8>) {
        let (cells, mask) = (self.cells(arena), self.rest(arena));
        let mut change = RowChangeBuilder::update(out);
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

/// A row that fails because of what the tablet contains.
#[derive(Debug, Clone, Copy)]
pub(super) struct RowRefusal {
    /// Index of the row in the request.
    pub index: u32,
    pub code: RowErrorCode,
    /// The first immutable column that the operation sets.
    pub immutable: Option<u16>,
}

impl RowRefusal {
    /// Returns the error of the row, in Kudu's words.
    pub(super) fn error(&self, schema: &TabletSchema) -> RowError {
        match (self.code, self.immutable) {
            (RowErrorCode::Immutable, Some(column)) => {
                let column = &schema.schema.columns()[column as usize];
                RowError::new(self.code, format!("UPDATE not allowed for immutable column: {column}"))
            }
            (code, _) => RowError::new(code, fixed_text(code)),
        }
    }
}
