//! Columns of a table as the client has opened it, beside those of the model.

use nyala_client::Table;
use nyala_common::wire::schema::column_to_pb;
use sim_plan::tables::{ColumnSpec, ModelTable};

use crate::wire::schema;

/// Returns true if the client's columns are those of a version.
pub(super) fn has_columns(table: &Table, spec: &ModelTable) -> bool {
    let own = columns(table, spec.key_columns().len());
    own.len() == spec.columns.len()
        && own.iter().zip(&spec.columns).all(|(own, spec)| {
            own.as_ref().is_some_and(|own| {
                (&own.name, own.kind, own.nullable, own.immutable)
                    == (&spec.name, spec.kind, spec.nullable, spec.immutable)
            })
        })
}

/// Returns true if each of these columns that the client has, by name, is of the same type and nullability. The name
/// may be that of another column by now.
pub(super) fn has_types(table: &Table, specs: &[&ColumnSpec]) -> bool {
    let own = columns(table, 0);
    let is_other = |own: &ColumnSpec, spec: &ColumnSpec| {
        own.name == spec.name && (own.kind, own.nullable) != (spec.kind, spec.nullable)
    };
    !own.iter().flatten().any(|own| specs.iter().any(|spec| is_other(own, spec)))
}

/// Returns the client's columns as the model describes them, without numbers; `None` for one of a type that it lacks.
fn columns(table: &Table, keys: usize) -> Vec<Option<ColumnSpec>> {
    let found = table.schema().columns().iter().enumerate();
    found.map(|(at, column)| schema::spec_of(&column_to_pb(column, at < keys), 0)).collect()
}
