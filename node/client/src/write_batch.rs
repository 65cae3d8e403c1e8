//! Writing one batch of rows to one tablet, exactly once.

use std::sync::Arc;

use bytes::Bytes;
use engine::error::{Error, Result};
use engine::time::Instant;

use super::backoff::Backoff;
use super::location_cache::TabletLocation;
use super::tablet_calls::TabletCallFailure;
use super::{Client, TABLET_SERVICE, Table};
use nyala_common::rpc::client::CallOptions;
use nyala_common::spans::SpanOrigin;
use nyala_common::wire::errors::error_from_status;
use nyala_proto::kudu::security::SignedTokenPb;
use nyala_proto::kudu::tserver::write_response_pb::PerRowErrorPb;
use nyala_proto::kudu::tserver::{WriteRequestPb, WriteResponsePb};
use nyala_proto::kudu::{ExternalConsistencyMode, RowOperationsPb};

/// Result of a batch.
pub(super) struct BatchOutcome {
    /// Id of the tablet that answered.
    pub(super) tablet: String,
    /// Failed rows, by their position in the batch.
    pub(super) refused: Vec<(usize, Error)>,
    /// Number of rows skipped by an IGNORE operation.
    pub(super) ignored: u64,
    /// Hybrid timestamp of the batch.
    pub(super) timestamp: Option<u64>,
}

/// Encoded row operations over all columns of a table.
pub(super) struct WriteBatch {
    pub(super) rows: Bytes,
    pub(super) indirect: Bytes,
    pub(super) consistency: ExternalConsistencyMode,
}

/// One attempt to write a batch.
struct WriteAttempt {
    /// Number of the request, the same in all attempts.
    request: i64,
    /// Number of the attempt, from 1.
    number: u32,
    failed_replicas: u32,
    token: Option<SignedTokenPb>,
}

/// Completes a request number when the request ends for any reason.
struct RequestGuard<'a> {
    client: &'a Client,
    number: i64,
}

impl Drop for RequestGuard<'_> {
    fn drop(&mut self) {
        self.client.shared.requests.lock().complete(self.number);
    }
}

impl Client {
    /// Writes a batch to the tablet's leader, with retries until the deadline. After an error it is unknown whether
    /// rows were written.
    pub(super) async fn write_batch(
        &self,
        table: &Table,
        mut tablet: Arc<TabletLocation>,
        batch: &WriteBatch,
        deadline: Instant,
    ) -> Result<BatchOutcome> {
        let number = self.shared.requests.lock().begin();
        let _guard = RequestGuard { client: self, number };
        let mut backoff = Backoff::new(deadline);
        let (mut failed_replicas, mut renewals) = (0, 0);
        let what = format!("writing to table {}", table.name());
        loop {
            let token = self.shared.authz_tokens.get(table.id());
            let attempt = WriteAttempt {
                request: number,
                number: backoff.attempts() + renewals + 1,
                failed_replicas,
                token: token.clone(),
            };
            match self.try_write(table, &tablet, batch, deadline, attempt).await {
                Ok(response) => return Ok(outcome(&tablet.id, &response)),
                Err(TabletCallFailure::OtherReplica(error)) => {
                    self.env().observer.mark("client: write retried at another server");
                    backoff.failed(self.env(), &what, error).await?;
                    let found = self.relocate(table, &tablet, deadline).await?;
                    failed_replicas = found.failed_since(&tablet, failed_replicas);
                    tablet = found;
                }
                Err(TabletCallFailure::Busy(error)) => {
                    self.env().observer.mark("client: write retried");
                    backoff.failed(self.env(), &what, error).await?;
                }
                Err(TabletCallFailure::Token(error)) => {
                    // A fresh token that is rejected, too, is retried like a busy server.
                    if renewals > backoff.attempts() {
                        backoff.failed(self.env(), &what, error).await?;
                    }
                    renewals += 1;
                    self.renew_authz_token(table, token.as_ref(), deadline).await?;
                }
                Err(failure) => return Err(failure.error().context(what)),
            }
        }
    }

    async fn try_write(
        &self,
        table: &Table,
        tablet: &TabletLocation,
        batch: &WriteBatch,
        deadline: Instant,
        attempt: WriteAttempt,
    ) -> Result<WriteResponsePb, TabletCallFailure> {
        let none = || {
            TabletCallFailure::OtherReplica(Error::not_ready(format!("tablet {} has no replica", tablet.id)))
        };
        let replica = tablet.replica(attempt.failed_replicas).ok_or_else(none)?;
        let request = WriteRequestPb {
            tablet_id: Bytes::copy_from_slice(tablet.id.as_bytes()),
            schema: Some(table.info.client_schema.clone()),
            row_operations: Some(RowOperationsPb {
                rows: Some(batch.rows.clone()),
                indirect_data: (!batch.indirect.is_empty()).then(|| batch.indirect.clone()),
            }),
            external_consistency_mode: Some(batch.consistency as i32),
            propagated_timestamp: self.observed_timestamp(),
            authz_token: attempt.token,
            ..Default::default()
        };
        let request_id = Some(self.shared.requests.lock().id(attempt.request, i64::from(attempt.number)));
        let options = CallOptions { request_id, span: SpanOrigin::Root, ..CallOptions::default() };
        let until = self.attempt_deadline(deadline);
        let server = self.server(&replica.address);
        let called = server.call(TABLET_SERVICE, "Write", &request, until, options).await;
        let response: WriteResponsePb = called.map_err(|error| TabletCallFailure::of_rpc(&error))?.message;
        if let Some(timestamp) = response.timestamp {
            self.observe_timestamp(timestamp);
        }
        match &response.error {
            None => Ok(response),
            Some(error) => Err(TabletCallFailure::of_reply(error)),
        }
    }
}

fn outcome(tablet: &str, response: &WriteResponsePb) -> BatchOutcome {
    let row = |row: &PerRowErrorPb| (row.row_index.max(0) as usize, error_from_status(&row.error));
    let metrics = response.resource_metrics.unwrap_or_default();
    let ignored = [
        metrics.insert_ignore_errors(),
        metrics.update_ignore_errors(),
        metrics.delete_ignore_errors(),
        metrics.upsert_ignore_errors(),
    ];
    BatchOutcome {
        tablet: tablet.to_string(),
        refused: response.per_row_errors.iter().map(row).collect(),
        ignored: ignored.iter().map(|count| count.max(&0).unsigned_abs()).sum(),
        timestamp: response.timestamp,
    }
}
