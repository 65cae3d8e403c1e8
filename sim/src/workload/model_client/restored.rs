//! Restored model tables: plain clients read their columns and rows, which must be those of the table at the time of
//! the backup. The rows of each tablet join the history as a read of it.

use engine::error::{Error, Result};
use engine::time::Instant;
use nyala_backup::create::hybrid_timestamp;
use nyala_backup::manifest::Manifest;
use nyala_common::env::Env;
use nyala_proto::kudu::master::{GetTableSchemaResponsePb, TableIdentifierPb};
use sim_plan::tables::Value;

use super::ddl::columns_fault;
use super::{ModelClient, SETUP_CLIENT, View};
use crate::history::{ClientNo, HybridStamp, Nanos};
use crate::model_oracle::{ReadCall, ReadOutcome, TableCall, TableEvent};
use crate::wire::client::CallFailure;
use crate::wire::keys::{self, Bounds};
use crate::wire::scan::{ScanRow, ScanTime};
use crate::workload::Workload;

/// A backup that was restored.
pub(in crate::workload) struct BackedUp<'a> {
    /// The client that made it.
    pub client: ClientNo,
    pub manifest: &'a Manifest,
    /// Name of the restored table.
    pub name: &'a str,
    /// The newest timestamp that the restoring client has seen.
    pub seen: HybridStamp,
    /// Time of the run that made it.
    pub span: std::ops::RangeInclusive<Nanos>,
}

/// A tablet of the backed-up table and its restored rows.
struct RestoredTablet {
    id: String,
    bounds: Bounds,
    rows: Vec<ScanRow>,
}

/// Returns the tablets that a table has now with their bounds, as far as masters answer.
pub(in crate::workload) async fn tablets_of(
    workload: &Workload,
    env: &Env,
    number: ClientNo,
    id: &str,
) -> Vec<(String, Bounds)> {
    let mut client = ModelClient::new(workload, env, number);
    let deadline = client.op_deadline();
    let places = client.plain.locate(id, deadline).await.unwrap_or_default();
    places.into_iter().map(|place| (place.id, place.bounds)).collect()
}

/// Compares a restored table with the model of the original one.
pub(in crate::workload) async fn check_restored(
    workload: &Workload,
    env: &Env,
    of: BackedUp<'_>,
    deadline: Instant,
) -> Result<()> {
    let mut client = ModelClient::new(workload, env, SETUP_CLIENT);
    client.plain.observe(of.seen);
    let failed = |failure: CallFailure| Error::not_ready(failure.to_string());
    let named = TableIdentifierPb { table_id: None, table_name: Some(of.name.to_string()) };
    let schema = client.schema_of(named, deadline).await.map_err(failed)?;
    let Some(mut tablets) = known_tablets(workload, of.manifest) else { return Ok(()) };
    let Some(view) = view_of(workload, &of, &schema, &tablets)? else { return Ok(()) };
    let places = client.plain.locate(&view.id, deadline).await.map_err(failed)?;
    if sorted(places.iter().map(|place| &place.bounds)) != sorted(tablets.iter().map(|tablet| &tablet.bounds))
    {
        return Err(Error::corrupt("the restored table has other partitions"));
    }
    let at = client.ago(std::time::Duration::ZERO).max(client.plain.seen) + 1;
    for place in places {
        let outcome = client.rows_at(&view, &place, at, deadline).await;
        let ReadOutcome::Rows { rows, .. } = outcome else {
            return Err(Error::not_ready(format!("tablet {}: {outcome:?}", place.id)));
        };
        rows.into_iter().try_for_each(|row| assign(&view, &mut tablets, row))?;
    }
    record(workload, &of, &view, tablets);
    Ok(())
}

/// Returns the tablets of a backup; `None` if the bounds of one are unknown, as it was dropped soon after.
fn known_tablets(workload: &Workload, manifest: &Manifest) -> Option<Vec<RestoredTablet>> {
    let state = workload.state();
    let tablet = |id: &String| {
        let bounds = state.backups.bounds.get(id)?.clone();
        Some(RestoredTablet { id: id.clone(), bounds, rows: Vec::new() })
    };
    manifest.tablets.iter().map(tablet).collect()
}

fn sorted<'a>(bounds: impl Iterator<Item = &'a Bounds>) -> Vec<&'a Bounds> {
    let mut sorted: Vec<&Bounds> = bounds.collect();
    sorted.sort();
    sorted
}

/// Returns the restored table as the version that was backed up; `None` if no client knows the table.
fn view_of(
    workload: &Workload,
    of: &BackedUp<'_>,
    schema: &GetTableSchemaResponsePb,
    tablets: &[RestoredTablet],
) -> Result<Option<View>> {
    let state = workload.state();
    let found = state.model.incarnations.iter().position(|found| found.id == of.manifest.table_id);
    let Some(table) = found else { return Ok(None) };
    let have = sorted(tablets.iter().map(|tablet| &tablet.bounds));
    let incarnation = &state.model.incarnations[table];
    let possible: Vec<_> = incarnation.possible(of.span.clone()).collect();
    let is_it = |version: &&&crate::model::TableVersion| {
        let bounds = keys::tablet_bounds(&version.table);
        columns_fault(version, schema).is_none() && sorted(bounds.iter()) == have
    };
    let Some(version) = possible.iter().rev().find(is_it) else {
        let faults = possible.iter().map(|version| columns_fault(version, schema));
        let what = format!("columns and tablets of no version: {:?}", faults.collect::<Vec<_>>());
        return Err(Error::corrupt(what));
    };
    let number =
        incarnation.versions.iter().position(|known| std::ptr::eq(known, *version)).unwrap_or_default();
    let id = String::from_utf8_lossy(schema.table_id()).into_owned();
    Ok(Some(View { table, id, number, spec: version.table.clone() }))
}

/// Adds a row to the tablet that holds its key.
fn assign(view: &View, tablets: &mut [RestoredTablet], row: ScanRow) -> Result<()> {
    let cell = |number: u8| {
        let at = view.spec.columns.iter().position(|column| column.number == number);
        at.and_then(|at| row.values.get(at)).cloned().unwrap_or(Value::Null)
    };
    let key = keys::partition_key(&view.spec, &cell);
    let holds =
        |tablet: &&mut RestoredTablet| key.as_ref().is_some_and(|key| keys::holds(&tablet.bounds, key));
    let Some(tablet) = tablets.iter_mut().find(holds) else {
        return Err(Error::corrupt(format!("the row {:?} is in no tablet of the backup", row.values)));
    };
    tablet.rows.push(row);
    Ok(())
}

fn record(workload: &Workload, of: &BackedUp<'_>, view: &View, tablets: Vec<RestoredTablet>) {
    let at = hybrid_timestamp(of.manifest.to_ms);
    for tablet in tablets {
        let call = ReadCall {
            columns: view.spec.columns.iter().map(|column| column.number).collect(),
            conditions: Vec::new(),
            lower: None,
            upper: None,
            time: ScanTime::Named(at),
            since: None,
            ordered: false,
            limit: None,
            partial: false,
        };
        let count = tablet.rows.len() as u64;
        let outcome = ReadOutcome::Rows { at: Some(at), rows: tablet.rows, count };
        workload.table_history().add(TableEvent {
            client: of.client,
            invoked: *of.span.start(),
            returned: *of.span.end(),
            after: 0,
            table: view.table,
            tablet: tablet.id,
            view: view.number,
            call: TableCall::Read { call, outcome },
        });
    }
    *workload.state().model.steps.entry("restore".to_string()).or_default() += 1;
}
