//! Bulk ingestion: batches of a client, appended to a table by key.

use arrow_flight::decode::FlightRecordBatchStream;
use arrow_flight::sql::CommandStatementIngest;
use arrow_flight::sql::{TableExistsOption, TableNotExistOption};
use futures_util::StreamExt;
use nyala_client::RowOpKind;
use nyala_client::rows::TableWriter;
use tonic::Status;

use super::super::super::catalog::{CATALOG, SCHEMA};
use super::super::super::dml;
use super::super::super::error::{SqlError, SqlResult, state};
use super::super::super::executor::Executor;
use super::status::status;

/// Inserts the rows of all batches. Returns their number. An existing key is an error.
pub(super) async fn append(
    executor: &Executor,
    ingest: &CommandStatementIngest,
    batches: FlightRecordBatchStream,
) -> Result<i64, Status> {
    check(ingest).map_err(status)?;
    let table = dml::open(&executor.client, &ingest.table).await.map_err(status)?;
    let mut writer = table.writer();
    if let Err(error) = write(batches, &mut writer).await {
        // The client may write after the error; no row of these may follow.
        writer.discard().await;
        return Err(error);
    }
    let written = writer.finish().await.map_err(|error| status(dml::explained(error)))?.written;
    Ok(i64::try_from(written).unwrap_or(i64::MAX))
}

async fn write(mut batches: FlightRecordBatchStream, writer: &mut TableWriter) -> Result<(), Status> {
    while let Some(batch) = batches.next().await {
        let batch = batch.map_err(Status::from)?;
        writer.write_batch(RowOpKind::Insert, &batch).await.map_err(status)?;
    }
    Ok(())
}

/// Refuses what ingestion cannot do.
fn check(ingest: &CommandStatementIngest) -> SqlResult<()> {
    let refused = |what: &str| {
        let message = format!("table {}: {what}", ingest.table);
        Err(SqlError::with_state(state::NOT_SUPPORTED, message))
    };
    if ingest.temporary {
        return refused("there are no temporary tables");
    }
    let is_other = |given: &Option<String>, name: &str| given.as_ref().is_some_and(|given| given != name);
    if is_other(&ingest.catalog, CATALOG) || is_other(&ingest.schema, SCHEMA) {
        return refused("all tables are in the catalog nyala and the schema public");
    }
    let options = ingest.table_definition_options.unwrap_or_default();
    match (options.if_not_exist(), options.if_exists()) {
        (TableNotExistOption::Create, _) => {
            refused("a new table needs a primary key; run CREATE TABLE, then ingest with the mode append")
        }
        (_, TableExistsOption::Replace) => refused("run DROP TABLE and CREATE TABLE to replace it"),
        (_, TableExistsOption::Fail) => refused("ingest with the mode append"),
        _ => Ok(()),
    }
}
