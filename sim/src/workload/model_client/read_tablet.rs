//! Reads of tables whose columns are not known before: the schema that masters tell, and all rows of a tablet.

use engine::error::Error;
use engine::time::Instant;
use nyala_common::env::Env;
use nyala_proto::kudu::master::TableIdentifierPb;
use nyala_proto::kudu::{ColumnSchemaPb, SchemaPb};
use sim_plan::tables::{ModelTable, TableSpec, Value};

use super::recovery::ATTEMPT;
use super::{ModelClient, SETUP_CLIENT, View};
use crate::final_state::row_text;
use crate::history::HybridStamp;
use crate::model_oracle::ReadOutcome;
use crate::wire::client::TabletPlace;
use crate::wire::schema;
use crate::workload::Workload;

/// A row's key and its other cells, as text.
type RowText = (String, String);

/// Finds a table by its name: its id, its columns as text and as data, and its tablets.
pub(in crate::workload) async fn find(
    workload: &Workload,
    env: &Env,
    name: &str,
    deadline: Instant,
) -> Result<(String, Vec<String>, ModelTable, Vec<TabletPlace>), Error> {
    let mut client = ModelClient::new(workload, env, SETUP_CLIENT);
    let named = TableIdentifierPb { table_id: None, table_name: Some(name.to_string()) };
    let not_ready = |failure: crate::wire::client::CallFailure| Error::not_ready(failure.to_string());
    let found = client.schema_of(named, deadline).await.map_err(not_ready)?;
    let id = String::from_utf8_lossy(found.table_id()).into_owned();
    let pb = found.schema.clone().unwrap_or_default();
    let columns = pb.columns.iter().map(|column| format!("{column:?}")).collect();
    let places = client.plain.locate(&id, deadline).await.map_err(not_ready)?;
    Ok((id, columns, shape(&pb)?, places))
}

/// Reads all rows of a tablet at a timestamp.
pub(in crate::workload) async fn read(
    workload: &Workload,
    env: &Env,
    (id, shape): (&str, &ModelTable),
    place: &TabletPlace,
    at: HybridStamp,
    deadline: Instant,
) -> ReadOutcome {
    let mut client = ModelClient::new(workload, env, SETUP_CLIENT);
    client.plain.set_attempt(workload.plan().cluster.rpc_timeout.max(ATTEMPT));
    let view = View { table: 0, id: id.to_string(), number: 0, spec: shape.clone() };
    client.rows_at(&view, place, at, deadline).await
}

/// Returns all rows of a tablet at a timestamp, as text.
pub(in crate::workload) async fn rows(
    workload: &Workload,
    env: &Env,
    (id, shape): (&str, &ModelTable),
    place: &TabletPlace,
    at: HybridStamp,
    deadline: Instant,
) -> Result<Vec<RowText>, Error> {
    let keys = shape.key_columns().len();
    match read(workload, env, (id, shape), place, at, deadline).await {
        ReadOutcome::Rows { rows, .. } => {
            let text = |values: &[Value]| {
                row_text(&shape.columns, keys, |column| {
                    values.get(usize::from(column.number)).cloned().unwrap_or(Value::Null)
                })
            };
            Ok(rows.iter().map(|row| text(&row.values)).collect())
        }
        failed => Err(Error::not_ready(format!("tablet {}: {failed:?}", place.id))),
    }
}

/// Returns the columns of a schema, numbered in order.
fn shape(pb: &SchemaPb) -> Result<ModelTable, Error> {
    let column = |(at, pb): (usize, &ColumnSchemaPb)| {
        let unknown = || Error::corrupt(format!("column {}: a type {}", pb.name, pb.r#type));
        schema::spec_of(pb, at as u8).ok_or_else(unknown)
    };
    let columns = pb.columns.iter().enumerate().map(column).collect::<Result<Vec<_>, Error>>()?;
    let keys = pb.columns.iter().filter(|column| column.is_key()).count() as u8;
    let spec = TableSpec { number: 0, keys, hash: Vec::new(), range: Vec::new() };
    Ok(ModelTable { spec, columns, ranges: Vec::new() })
}
