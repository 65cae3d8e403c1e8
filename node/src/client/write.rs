//! One batch of rows to one tablet, once.

use std::sync::Arc;

use bytes::Bytes;
use engine::error::{Error, Result};
use engine::time::Instant;

use super::backoff::Backoff;
use super::locations::TabletLocation;
use super::tablets::TabletFailure;
use super::{Client, TABLET_SERVICE, Table, lock};
use crate::proto::kudu::tserver::write_response_pb::PerRowErrorPb;
use crate::proto::kudu::tserver::{WriteRequestPb, WriteResponsePb};
use crate::proto::kudu::{ExternalConsistencyMode, RowOperationsPb};
use crate::rpc::client::CallOptions;
use crate::wire::status::error_from_status;

/// What became of a batch.
pub(super) struct Written {
    /// The rows that were refused, by their position.
    pub(super) refused: Vec<(usize, Error)>,
    /// How many rows an IGNORE operation passed over.
    pub(super) ignored: u64,
    /// The batch's hybrid timestamp.
    pub(super) timestamp: Option<u64>,
}

/// Encoded row operations over a table's whole schema.
pub(super) struct Batch {
    pub(super) rows: Bytes,
    pub(super) indirect: Bytes,
    pub(super) consistency: ExternalConsistencyMode,
}

/// Ends a request number's life however the request ends.
struct Numbered<'a> {
    client: &'a Client,
    number: i64,
}

impl Drop for Numbered<'_> {
    fn drop(&mut self) {
        lock(&self.client.shared.requests).complete(self.number);
    }
}

impl Client {
    /// Writes a batch, wherever its tablet's leader is, until the deadline. An error means that no row is
    /// known to be written.
    pub(super) async fn write_batch(
        &self,
        table: &Table,
        mut tablet: Arc<TabletLocation>,
        batch: &Batch,
        deadline: Instant,
    ) -> Result<Written> {
        let number = lock(&self.shared.requests).begin();
        let _numbered = Numbered { client: self, number };
        let mut backoff = Backoff::new(deadline);
        let mut elsewhere = 0;
        let what = format!("writing to table {}", table.name());
        loop {
            match self
                .try_write(table, &tablet, batch, deadline, (number, backoff.attempts(), elsewhere))
                .await
            {
                Ok(response) => return Ok(outcome(&response)),
                Err(TabletFailure::Elsewhere(error)) => {
                    self.env().watch.mark("client: a write tries another server");
                    backoff.failed(self.env(), &what, error).await?;
                    let found = self.relocate(table, &tablet, deadline).await?;
                    elsewhere = found.failed_since(&tablet, elsewhere);
                    tablet = found;
                }
                Err(TabletFailure::Busy(error)) => {
                    self.env().watch.mark("client: a write tries again");
                    backoff.failed(self.env(), &what, error).await?;
                }
                Err(failure) => return Err(failure.error().context(what)),
            }
        }
    }

    async fn try_write(
        &self,
        table: &Table,
        tablet: &TabletLocation,
        batch: &Batch,
        deadline: Instant,
        (number, attempts, elsewhere): (i64, u32, u32),
    ) -> Result<WriteResponsePb, TabletFailure> {
        let none =
            || TabletFailure::Elsewhere(Error::not_ready(format!("tablet {} has no replica", tablet.id)));
        let replica = tablet.replica(elsewhere).ok_or_else(none)?;
        let request = WriteRequestPb {
            tablet_id: Bytes::copy_from_slice(tablet.id.as_bytes()),
            schema: Some(table.info.client_schema.clone()),
            row_operations: Some(RowOperationsPb {
                rows: Some(batch.rows.clone()),
                indirect_data: (!batch.indirect.is_empty()).then(|| batch.indirect.clone()),
            }),
            external_consistency_mode: Some(batch.consistency as i32),
            propagated_timestamp: self.observed_timestamp(),
            authz_token: table.info.authz_token.clone(),
            ..Default::default()
        };
        let request_id = Some(lock(&self.shared.requests).id(number, i64::from(attempts) + 1));
        let options = CallOptions { features: Vec::new(), request_id };
        let until = self.attempt_deadline(deadline);
        let server = self.server(&replica.address);
        let called = server.call(TABLET_SERVICE, "Write", &request, until, options).await;
        let response: WriteResponsePb = called.map_err(|error| TabletFailure::of_rpc(&error))?.message;
        if let Some(timestamp) = response.timestamp {
            self.observe_timestamp(timestamp);
        }
        match &response.error {
            None => Ok(response),
            Some(error) => Err(TabletFailure::of_reply(error)),
        }
    }
}

fn outcome(response: &WriteResponsePb) -> Written {
    let row = |row: &PerRowErrorPb| (row.row_index.max(0) as usize, error_from_status(&row.error));
    let metrics = response.resource_metrics.unwrap_or_default();
    let ignored = [
        metrics.insert_ignore_errors(),
        metrics.update_ignore_errors(),
        metrics.delete_ignore_errors(),
        metrics.upsert_ignore_errors(),
    ];
    Written {
        refused: response.per_row_errors.iter().map(row).collect(),
        ignored: ignored.iter().map(|count| count.max(&0).unsigned_abs()).sum(),
        timestamp: response.timestamp,
    }
}
