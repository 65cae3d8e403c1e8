//! The rows at the end as the model has them: what the clients asked for, applied in order.
//!
//! Each key has one writer, so the order of the history is that of the writes of each key. Answers are not used.

use std::collections::BTreeMap;

use sim_plan::client_ops::WriteKind;
use sim_plan::tables::{ModelTable, Value};

use crate::final_state::{RowTexts, row_text};
use crate::history::{ClientRequest, RowOp, RowOpKind, TableNo};
use crate::model::rows::{apply, cell};
use crate::model::{Incarnation, ModelRow, RowCells, RowWrite, TableVersion};
use crate::model_oracle::{TableCall, TableEvent, WriteOutcome};
use crate::projection::text;
use crate::wire::keys;
use crate::workload::Workload;

/// Rows by their encoded key.
type Rows = BTreeMap<Vec<u8>, ModelRow>;

/// Returns the rows of all tables by name.
pub(super) fn rows(workload: &Workload) -> BTreeMap<String, RowTexts> {
    let mut found = number_tables(workload);
    let events = workload.table_history().events();
    let tables = workload.model_tables();
    for (at, table) in workload.live_model_tables().into_iter().map(|at| (at, &tables[at])) {
        let events = events.iter().filter(|event| event.table == at);
        found.insert(table.versions[table.newest()].name.clone(), of_model_table(table, events));
    }
    found
}

/// Returns the rows of the tables whose cells all tell a number.
fn number_tables(workload: &Workload) -> BTreeMap<String, RowTexts> {
    let mut tables: BTreeMap<TableNo, (ModelTable, Rows)> = BTreeMap::new();
    for number in workload.tables_of_numbers() {
        tables.insert(number, (workload.shape_of_numbers(number), Rows::new()));
    }
    for operation in workload.history().operations().iter() {
        let ClientRequest::Write { table, rows: ops } = &operation.request else { continue };
        let Some((shape, rows)) = tables.get_mut(table) else { continue };
        ops.iter().for_each(|op| write(shape, rows, &row_write(shape, op)));
    }
    let texts = |(number, (shape, rows)): (TableNo, (ModelTable, Rows))| {
        (Workload::table_name(number), texts(&shape, &rows))
    };
    tables.into_iter().map(texts).collect()
}

/// Returns an operation on numbers as one on cells.
fn row_write(shape: &ModelTable, op: &RowOp) -> RowWrite {
    let keys = shape.key_columns().len();
    let mut cells = RowCells::new();
    for (at, column) in shape.key_columns().iter().enumerate() {
        let pair = i128::from(i32::from_le_bytes(crate::workload::row_encoding::pair_of(op.key)));
        cells.insert(column.number, Value::Int(if at == 0 { i128::from(op.key) } else { pair }));
    }
    for (at, (column, cell)) in shape.columns[keys..].iter().zip(&op.cells).enumerate() {
        let number = |number: i64| match at {
            1 => Value::bytes(text(number).as_bytes()),
            2 => Value::Int(i128::from(number as i32)),
            _ => Value::Int(i128::from(number)),
        };
        if let Some(cell) = cell {
            cells.insert(column.number, cell.map_or(Value::Null, number));
        }
    }
    RowWrite { kind: kind(op.kind), cells }
}

fn kind(kind: RowOpKind) -> WriteKind {
    match kind {
        RowOpKind::Insert => WriteKind::Insert,
        RowOpKind::InsertIgnore => WriteKind::InsertIgnore,
        RowOpKind::Upsert => WriteKind::Upsert,
        RowOpKind::UpsertIgnore => WriteKind::UpsertIgnore,
        RowOpKind::Update => WriteKind::Update,
        RowOpKind::UpdateIgnore => WriteKind::UpdateIgnore,
        RowOpKind::Delete => WriteKind::Delete,
        RowOpKind::DeleteIgnore => WriteKind::DeleteIgnore,
    }
}

/// Returns the rows of a table of any shape after its writes and alterations.
fn of_model_table<'a>(table: &Incarnation, events: impl Iterator<Item = &'a TableEvent>) -> RowTexts {
    let (mut rows, mut version) = (Rows::new(), 0);
    for event in events {
        let TableCall::Write { rows: ops, outcome: WriteOutcome::Applied { .. } } = &event.call else {
            continue;
        };
        drop_ranges(&table.versions, version..=event.view, &mut rows);
        version = event.view;
        ops.iter().for_each(|op| write(&table.versions[version].table, &mut rows, op));
    }
    let newest = table.newest();
    drop_ranges(&table.versions, version..=newest, &mut rows);
    texts(&table.versions[newest].table, &rows)
}

/// Removes the rows that are in no range of one of the versions.
fn drop_ranges(versions: &[TableVersion], numbers: std::ops::RangeInclusive<usize>, rows: &mut Rows) {
    for version in versions[numbers].iter().filter(|version| !version.void) {
        rows.retain(|_, row| {
            let value =
                |number| row.as_ref().and_then(|row| row.get(&number)).cloned().unwrap_or(Value::Null);
            keys::partition_key(&version.table, &value).is_some()
        });
    }
}

fn write(table: &ModelTable, rows: &mut Rows, op: &RowWrite) {
    let value = |number| op.cells.get(&number).cloned().unwrap_or(Value::Null);
    let key = keys::primary_key(table, &value);
    let before = rows.remove(&key).flatten();
    let after = apply(&table.columns, table.key_columns().len(), op, &before).after;
    rows.extend(after.map(|row| (key, Some(row))));
}

fn texts(table: &ModelTable, rows: &Rows) -> RowTexts {
    let text =
        |row: &RowCells| row_text(&table.columns, table.key_columns().len(), |column| cell(row, column));
    rows.values().flatten().map(|row| text(row)).collect()
}
