//! A model table as the engine's schema and partitions, and operations as log entries.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use engine::error::Result;
use engine::ids::ColumnId;
use engine::replica::log_payload::LoggedOp;
use engine::replica::{Op, WriteOp};
use engine::schema::partition::PartitionSchema;
use engine::schema::row_ops::ClientColumn;
use engine::schema::{ColumnSchema, Schema};
use nyala_common::wire::{partition, schema as wire_schema};
use nyala_proto::kudu::RowOperationsPb;
use sim_plan::tables::{ColumnSpec, ModelTable, Value};

use crate::model::{RowWrite, TableSettings};
use crate::wire::rows::{RowEncoder, Slot, op_number};
use crate::wire::schema;

/// Returns the schema of a table; columns have their numbers as ids.
pub(super) fn schema_of(table: &ModelTable) -> Result<Schema> {
    let keys = table.key_columns().len();
    let column = |(at, spec): (usize, &ColumnSpec)| -> Result<ColumnSchema> {
        let pb = schema::new_column(spec, at < keys);
        let column = wire_schema::column_from_pb(&pb, ColumnId(spec.number.into()))?;
        let write_default = spec.write.as_ref().and_then(|value| spec.kind.cell(value));
        Ok(ColumnSchema { write_default, ..column })
    };
    Schema::new(table.columns.iter().enumerate().map(column).collect::<Result<_>>()?, keys)
}

pub(super) fn partition_of(table: &ModelTable, of: &Schema) -> Result<PartitionSchema> {
    let (request, _) = schema::create(table, "trial", &TableSettings::default(), 1);
    partition::schema_from_pb(&request.partition_schema.unwrap_or_default(), of)
}

/// Returns rows as operations of a request.
pub(super) fn encoded(table: &ModelTable, rows: &[RowWrite]) -> RowOperationsPb {
    let slots: Vec<Slot> = table.columns.iter().map(schema::slot).collect();
    let mut encoder = RowEncoder::default();
    for row in rows {
        let cells: Vec<Option<Value>> =
            table.columns.iter().map(|column| row.cells.get(&column.number).cloned()).collect();
        encoder.push(op_number(row.kind), &slots, &cells);
    }
    encoder.finish()
}

/// Returns a write of rows.
pub(super) fn write_op(table: &ModelTable, of: &Schema, rows: &[RowWrite]) -> Op {
    let encoded = encoded(table, rows);
    let column = |own: &ColumnSchema| ClientColumn { id: own.id, ty: own.ty, nullable: own.nullable };
    Op::Write(WriteOp {
        columns: Arc::from(of.columns().iter().map(column).collect::<Vec<_>>()),
        rows: encoded.rows.unwrap_or_default(),
        indirect: encoded.indirect_data.unwrap_or_default(),
    })
}

/// Returns a write as a log entry's kind and payload.
pub(super) fn write(table: &ModelTable, of: &Schema, rows: &[RowWrite]) -> (u8, Bytes) {
    logged(write_op(table, of, rows))
}

pub(super) fn alter_op(of: Schema, version: u32, table_name: &str) -> Op {
    let (schema, table_name, extra) = (Box::new(of), table_name.to_string(), BTreeMap::new());
    Op::AlterSchema { schema, version, table_name, extra }
}

pub(super) fn alter(of: Schema, version: u32, table_name: &str) -> (u8, Bytes) {
    logged(alter_op(of, version, table_name))
}

pub(super) fn no_op() -> (u8, Bytes) {
    logged(Op::NoOp)
}

fn logged(op: Op) -> (u8, Bytes) {
    LoggedOp { op, request: None, auto_increment: 0 }.encode()
}
