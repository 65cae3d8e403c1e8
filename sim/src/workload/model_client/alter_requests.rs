//! Requests to alter model tables.

use std::collections::BTreeSet;

use nyala_proto::kudu::ColumnSchemaDeltaPb;
use nyala_proto::kudu::master::AlterTableRequestPb;
use nyala_proto::kudu::master::alter_table_request_pb::{
    AddColumn, AddRangePartition, AlterColumn, DropColumn, DropRangePartition, RenameColumn, Step, StepType,
    add_range_partition,
};
use sim_plan::tables::ModelTable;

use crate::model::TableVersion;
use crate::model::alter_draws::{AlterStep, Alteration};
use crate::wire::client::table_of;
use crate::wire::schema;

/// Features of masters.
const RANGE_BOUNDS: u32 = 1;
const ADD_DROP_RANGES: u32 = 2;
const OWN_HASH: u32 = 8;
const IMMUTABLE: u32 = 10;

/// Returns the request for an alteration of a table with this id, and the features that it needs.
pub(super) fn alter_request(
    id: &str,
    before: &TableVersion,
    alteration: &Alteration,
) -> (AlterTableRequestPb, Vec<u32>) {
    let mut features = BTreeSet::new();
    let mut request = AlterTableRequestPb { table: table_of(id), ..Default::default() };
    for step in &alteration.steps {
        match step {
            AlterStep::NameTable(name) => request.new_table_name = Some(name.clone()),
            AlterStep::AddRange(range) | AlterStep::DropRange(range) => {
                features.extend([RANGE_BOUNDS, ADD_DROP_RANGES]);
                features.extend((!range.hash.is_empty()).then_some(OWN_HASH));
                let keys = before.table.key_columns().len();
                request.schema = Some(schema::columns(&before.table.columns, keys));
                request.alter_schema_steps.push(range_step(step, &before.table));
            }
            AlterStep::Add(column) => {
                features.extend(column.immutable.then_some(IMMUTABLE));
                let schema = schema::new_column(column, false);
                let add = Some(AddColumn { schema });
                request.alter_schema_steps.push(Step { add_column: add, ..of_type(StepType::AddColumn) });
            }
            other => request.alter_schema_steps.push(column_step(other)),
        }
    }
    (request, features.into_iter().collect())
}

fn of_type(kind: StepType) -> Step {
    Step { r#type: Some(kind as i32), ..Default::default() }
}

fn column_step(step: &AlterStep) -> Step {
    let delta = |name: &str, delta: ColumnSchemaDeltaPb| {
        let delta = Some(ColumnSchemaDeltaPb { name: Some(name.to_string()), ..delta });
        Step { alter_column: Some(AlterColumn { delta }), ..of_type(StepType::AlterColumn) }
    };
    match step {
        AlterStep::Drop(name) => {
            let drop = Some(DropColumn { name: name.clone() });
            Step { drop_column: drop, ..of_type(StepType::DropColumn) }
        }
        AlterStep::Rename(old_name, new_name) => {
            let rename = RenameColumn { old_name: old_name.clone(), new_name: new_name.clone() };
            Step { rename_column: Some(rename), ..of_type(StepType::RenameColumn) }
        }
        AlterStep::Default(column, value) => {
            let default_value = value.as_ref().and_then(|value| column.kind.cell(value)).map(Into::into);
            let change = ColumnSchemaDeltaPb {
                default_value,
                remove_default: value.is_none().then_some(true),
                new_comment: schema::comment(column.number, value.is_some()),
                ..Default::default()
            };
            delta(&column.name, change)
        }
        AlterStep::Layout(name, encoding, compression) => delta(
            name,
            ColumnSchemaDeltaPb {
                encoding: Some(schema::encoding_number(*encoding)),
                compression: Some(schema::compression_number(*compression)),
                block_size: Some(schema::block_size(*encoding, *compression)),
                ..Default::default()
            },
        ),
        AlterStep::Add(_) | AlterStep::AddRange(_) | AlterStep::DropRange(_) | AlterStep::NameTable(_) => {
            of_type(StepType::Unknown)
        }
    }
}

fn range_step(step: &AlterStep, table: &ModelTable) -> Step {
    match step {
        AlterStep::AddRange(range) => {
            let own = (!range.hash.is_empty()).then(|| add_range_partition::CustomHashSchema {
                hash_schema: schema::levels(table, &range.hash),
            });
            let range_bounds = Some(schema::range_bounds(table, &[range]));
            let add = AddRangePartition { range_bounds, dimension_label: None, custom_hash_schema: own };
            Step { add_range_partition: Some(add), ..of_type(StepType::AddRangePartition) }
        }
        AlterStep::DropRange(range) => {
            let range_bounds = Some(schema::range_bounds(table, &[range]));
            let drop = Some(DropRangePartition { range_bounds });
            Step { drop_range_partition: drop, ..of_type(StepType::DropRangePartition) }
        }
        _ => of_type(StepType::Unknown),
    }
}
