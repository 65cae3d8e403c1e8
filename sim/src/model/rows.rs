//! Effect of a row operation on a row, and its answer.

use std::collections::BTreeMap;
use std::sync::Arc;

use sim_plan::client_ops::WriteKind;
use sim_plan::line_format::LineField;
use sim_plan::tables::{ColumnSpec, Value};

use super::ColNo;

/// Statuses of rows.
const NOT_FOUND: i32 = 1;
const INVALID_ARGUMENT: i32 = 4;
const ALREADY_PRESENT: i32 = 6;
const IMMUTABLE: i32 = 20;

/// The cells of a row by column. A column that the row was written without is missing: it has its read default.
pub type RowCells = BTreeMap<ColNo, Value>;

/// A row, or none.
pub type ModelRow = Option<Arc<RowCells>>;

/// A row operation: the cells that it sets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowWrite {
    pub kind: WriteKind,
    pub cells: RowCells,
}

/// The answer to a row operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RowAnswer {
    Done,
    /// An IGNORE operation had nothing to do.
    Ignored,
    /// One of the two: the reply has only sums.
    Accepted,
    AlreadyPresent,
    NotFound,
    /// It changes an immutable column.
    Immutable,
    /// It lacks a value that the row must have.
    Refused,
}

impl RowAnswer {
    /// Returns the answer of a row with this status; `None` if no row operation has it.
    pub fn of_status(code: i32) -> Option<RowAnswer> {
        match code {
            ALREADY_PRESENT => Some(RowAnswer::AlreadyPresent),
            NOT_FOUND => Some(RowAnswer::NotFound),
            IMMUTABLE => Some(RowAnswer::Immutable),
            INVALID_ARGUMENT => Some(RowAnswer::Refused),
            _ => None,
        }
    }
}

/// The answers that an operation may have, and the row after it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Effect {
    pub answers: Vec<RowAnswer>,
    pub after: ModelRow,
    /// True if the operation took effect on a row.
    pub changed: bool,
}

impl RowAnswer {
    /// Returns true if a reply says the same as this answer of the model.
    pub fn is_told_by(self, told: RowAnswer) -> bool {
        self == told || told == RowAnswer::Accepted && matches!(self, RowAnswer::Done | RowAnswer::Ignored)
    }
}

fn unchanged(state: &ModelRow, answers: &[RowAnswer]) -> Effect {
    Effect { answers: answers.to_vec(), after: state.clone(), changed: false }
}

fn changed(after: ModelRow) -> Effect {
    Effect { answers: vec![RowAnswer::Done], after, changed: true }
}

/// Returns what an operation does to a row of a table with these columns, the first `keys` of which are the key.
pub fn apply(columns: &[ColumnSpec], keys: usize, write: &RowWrite, state: &ModelRow) -> Effect {
    use WriteKind::*;
    let sets = |column: &&ColumnSpec| write.cells.contains_key(&column.number);
    let lacks = |column: &ColumnSpec| !sets(&column) && column.write.is_none() && !column.nullable;
    let inserts = matches!(write.kind, Insert | InsertIgnore | Upsert | UpsertIgnore);
    let nulls = columns
        .iter()
        .any(|column| !column.nullable && write.cells.get(&column.number).is_some_and(Value::is_null));
    if nulls || inserts && columns.iter().any(lacks) {
        return unchanged(state, &[RowAnswer::Refused]);
    }
    let changes = columns[keys..].iter().any(|column| !column.immutable && sets(&column));
    // The server that skips all cells of an UPDATE_IGNORE is left with an update of nothing.
    if write.kind == UpdateIgnore && !changes {
        return unchanged(state, &[RowAnswer::Refused, RowAnswer::Ignored]);
    }
    let fixed = columns[keys..].iter().filter(|column| column.immutable).any(|column| sets(&column));
    match (write.kind, state) {
        (Insert, Some(_)) => unchanged(state, &[RowAnswer::AlreadyPresent]),
        (InsertIgnore, Some(_)) => unchanged(state, &[RowAnswer::Ignored]),
        (Insert | InsertIgnore | Upsert | UpsertIgnore, None) => {
            changed(Some(Arc::new(inserted(columns, write))))
        }
        (Delete, None) => unchanged(state, &[RowAnswer::NotFound]),
        (DeleteIgnore, None) => unchanged(state, &[RowAnswer::Ignored]),
        (Delete | DeleteIgnore, Some(_)) => changed(None),
        // Which of the two mistakes is told is not documented.
        (Update, None) if fixed => unchanged(state, &[RowAnswer::NotFound, RowAnswer::Immutable]),
        (Update, None) => unchanged(state, &[RowAnswer::NotFound]),
        (UpdateIgnore, None) => unchanged(state, &[RowAnswer::Ignored]),
        (Update | Upsert, Some(_)) if fixed => unchanged(state, &[RowAnswer::Immutable]),
        (Update | Upsert | UpdateIgnore | UpsertIgnore, Some(row)) => {
            updated(columns, keys, write, row, fixed)
        }
    }
}

fn inserted(columns: &[ColumnSpec], write: &RowWrite) -> RowCells {
    let cell = |column: &ColumnSpec| {
        let set = write.cells.get(&column.number).or(column.write.as_ref());
        (column.number, set.cloned().unwrap_or(Value::Null))
    };
    columns.iter().map(cell).collect()
}

/// `fixed`: the operation sets an immutable column, which it leaves out.
fn updated(
    columns: &[ColumnSpec],
    keys: usize,
    write: &RowWrite,
    row: &Arc<RowCells>,
    fixed: bool,
) -> Effect {
    let mut after = RowCells::clone(row);
    let mut changed = false;
    for column in columns[keys..].iter().filter(|column| !column.immutable) {
        if let Some(value) = write.cells.get(&column.number) {
            after.insert(column.number, value.clone());
            changed = true;
        }
    }
    // An ignored cell counts as an ignored operation, even where others are applied.
    let answers = match (fixed, changed) {
        (true, _) => vec![RowAnswer::Done, RowAnswer::Ignored],
        (false, _) => vec![RowAnswer::Done],
    };
    Effect { answers, after: Some(Arc::new(after)), changed }
}

/// Returns a row's cell of a column: its own, or the read default.
pub fn cell(row: &RowCells, column: &ColumnSpec) -> Value {
    row.get(&column.number).or(column.read.as_ref()).cloned().unwrap_or(Value::Null)
}

impl std::fmt::Display for RowWrite {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({})", self.kind.word(), show(&self.cells))
    }
}

/// Returns cells as text.
pub fn show(cells: &RowCells) -> String {
    let cells: Vec<String> =
        cells.iter().map(|(number, value)| format!("{number}={}", value.text())).collect();
    cells.join(" ")
}

/// Returns a row as text.
pub fn show_state(state: &ModelRow) -> String {
    state.as_ref().map_or("no row".to_string(), |cells| format!("({})", show(cells)))
}
