//! Scans: tablet after tablet, one Arrow record batch per response.
//!
//! A fault-tolerant scan reads a snapshot in key order and stores the last key received, so that it can resume at any
//! replica. Other scans of a tablet are retried only until the tablet has returned rows.

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use bytes::Bytes;
use engine::error::{Error, Result};
use engine::schema::predicate::Predicate;
use engine::schema::{ColumnSchema, DataType};
use engine::time::Instant;

use super::aggregation::BoundAggregation;
use super::backoff::Backoff;
use super::local::LocalScan;
use super::location_cache::TabletLocation;
use super::scan_close::{OpeningCall, ServerScanner};
use super::scan_keys::ScanKeys;
use super::scan_spec::{ReadMode, ScanSpec};
use super::tablet_calls::TabletCallFailure;
use super::{Client, TABLET_SERVICE, Table, arrow, predicate};
use nyala_common::env::BoxFuture;
use nyala_common::rpc::client::{CallOptions, Proxy, RpcResponse};
use nyala_common::spans::SpanOrigin;
use nyala_common::wire::{aggregation, schema};
use nyala_proto::kudu::security::SignedTokenPb;
use nyala_proto::kudu::tserver::{
    NewScanRequestPb, RowFormatFlags, ScanRequestPb, ScanResponsePb, ScannerKeepAliveRequestPb,
    ScannerKeepAliveResponsePb, TabletServerFeatures,
};
use nyala_proto::kudu::{ColumnSchemaPb, OrderMode, ReadMode as ReadModePb};

/// A scan in progress.
pub struct Scanner {
    pub(super) table: Table,
    pub(super) spec: ScanSpec,
    /// Columns of the batches.
    pub(super) columns: Vec<ColumnSchema>,
    aggregation: Option<BoundAggregation>,
    schema: SchemaRef,
    keys: ScanKeys,
    pub(super) open: Option<OpenTablet>,
    /// The tablet of the last batch.
    pub(super) last: Option<Arc<TabletLocation>>,
    /// The open tablet's rows, if they are read in this process.
    local: Option<Box<dyn LocalScan>>,
    pub(super) snapshot: Option<u64>,
    pub(super) rows_left: Option<u64>,
    /// Bytes of replies received.
    bytes: u64,
}

/// The tablet being read.
pub(super) struct OpenTablet {
    pub(super) tablet: Arc<TabletLocation>,
    pub(super) server: Option<Proxy>,
    scanner_id: Bytes,
    next_seq: u32,
    /// Key of the last row received.
    last_key: Option<Bytes>,
    returned_rows: bool,
    /// Failed attempts since the last success.
    failed: u32,
}

impl Table {
    /// Starts a scan. Fails with `NotFound` for an unknown column, with `Invalid` for contradictory options, and with
    /// `Unsupported` for an aggregation that no server has.
    ///
    /// A range that another client adds is read, whatever its hash buckets, once the location cache has no gap in its
    /// place: at once if no scan or write has asked for its keys; else when a table of this client is opened again,
    /// after [`Table::forget_locations`], or after the time to live of locations (5 minutes, set by the masters).
    pub fn scan(&self, mut spec: ScanSpec) -> Result<Scanner> {
        spec.read_mode = spec.requested_mode();
        let snapshot = match spec.read_mode {
            ReadMode::AtSnapshot(at) => at,
            ReadMode::Latest | ReadMode::YourWrites => None,
        };
        if spec.diff_from.is_some() && (snapshot.is_none() || !spec.fault_tolerant) {
            return Err(Error::invalid("a diff scan needs a snapshot timestamp and must be fault tolerant"));
        }
        let aggregation = spec.aggregation.as_ref().map(|aggregation| {
            refuse_rows(&spec)?;
            let bound = BoundAggregation::new(self.schema(), aggregation);
            bound.map_err(|error| error.context(format!("table {}", self.name())))
        });
        let aggregation = aggregation.transpose()?;
        let mut columns = match &aggregation {
            Some(bound) => bound.output.clone(),
            None => self.projection(&spec)?,
        };
        if spec.diff_from.is_some() {
            columns.push(is_deleted(&columns));
        }
        Ok(Scanner {
            table: self.clone(),
            schema: arrow::arrow_schema(&columns),
            columns,
            aggregation,
            keys: ScanKeys::new(self, &spec),
            open: None,
            last: None,
            local: None,
            snapshot,
            rows_left: spec.limit,
            bytes: 0,
            spec,
        })
    }

    /// Returns the columns of a scan in their order.
    pub(super) fn projection(&self, spec: &ScanSpec) -> Result<Vec<ColumnSchema>> {
        let Some(names) = &spec.columns else { return Ok(self.schema().columns().to_vec()) };
        let column = |name: &String| {
            let missing = || Error::not_found(format!("table {} has no column {name:?}", self.name()));
            Ok(self.schema().columns()[self.schema().index_of_name(name).ok_or_else(missing)?].clone())
        };
        names.iter().map(column).collect()
    }

    /// Counts the rows that satisfy the predicates.
    pub async fn count(&self, predicates: Vec<Predicate>) -> Result<u64> {
        let spec = ScanSpec { columns: Some(Vec::new()), predicates, ..ScanSpec::default() };
        let mut scanner = self.scan(spec)?;
        let mut rows = 0;
        while let Some(batch) = scanner.next_batch().await? {
            rows += batch.num_rows() as u64;
        }
        Ok(rows)
    }
}

/// Fails for a scan that has an aggregation and options of the rows.
fn refuse_rows(spec: &ScanSpec) -> Result<()> {
    let option = match spec {
        ScanSpec { columns: Some(_), .. } => "columns",
        ScanSpec { diff_from: Some(_), .. } => "a start of a diff scan",
        // A scan that no row satisfies has the limit 0.
        ScanSpec { limit: Some(1..), .. } => "a limit",
        _ => return Ok(()),
    };
    let has = format!("a scan with an aggregation has {option}");
    Err(Error::invalid(format!("{has}; its results are the groups of all rows")))
}

/// Returns the virtual column of diff scans, with an unused name.
fn is_deleted(columns: &[ColumnSchema]) -> ColumnSchema {
    let mut name = "is_deleted".to_string();
    while columns.iter().any(|column| column.name == name) {
        name.push('_');
    }
    let mut column = ColumnSchema::new(0, &name, DataType::IsDeleted);
    column.read_default = Some(vec![0]);
    column
}

impl Scanner {
    /// Returns the Arrow schema of all batches.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Returns the snapshot timestamp, once known.
    pub fn snapshot(&self) -> Option<u64> {
        self.snapshot
    }

    /// Returns the id of the tablet whose rows the last batch has.
    pub fn tablet(&self) -> Option<&str> {
        self.last.as_ref().map(|tablet| tablet.id.as_str())
    }

    /// Returns the bytes of rows received.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the next rows, never an empty batch; `None` at the end.
    pub async fn next_batch(&mut self) -> Result<Option<RecordBatch>> {
        let deadline = self.table.client.deadline();
        loop {
            if self.rows_left == Some(0) {
                return Ok(None);
            }
            if self.open.is_none() {
                if !self.next_tablet(deadline).await? {
                    return Ok(None);
                }
                self.local = self.open_local().await?;
            }
            if let Some(mut local) = self.local.take() {
                let Some(batch) = self.next_local(&mut *local).await? else { continue };
                self.local = Some(local);
                return Ok(Some(batch));
            }
            let Some(response) = self.request(deadline).await? else { continue };
            let batch = self.accept(response)?;
            if batch.num_rows() > 0 {
                return Ok(Some(batch));
            }
        }
    }

    /// Extends the lifetime of the server's scanner while the caller processes a batch.
    pub async fn keep_alive(&mut self) -> Result<()> {
        let Some(OpenTablet { server: Some(server), scanner_id, .. }) = &self.open else { return Ok(()) };
        if scanner_id.is_empty() {
            return Ok(());
        }
        let request = ScannerKeepAliveRequestPb { scanner_id: scanner_id.clone() };
        let client = &self.table.client;
        let until = client.attempt_deadline(client.deadline());
        let options = CallOptions::default();
        let called = server.call(TABLET_SERVICE, "ScannerKeepAlive", &request, until, options).await;
        let response: ScannerKeepAliveResponsePb =
            called.map_err(|error| TabletCallFailure::of_rpc(&error).error())?.message;
        response.error.map_or(Ok(()), |error| Err(TabletCallFailure::of_reply(&error).error()))
    }

    /// Opens the tablet that holds the next partition key. Returns false at the end.
    async fn next_tablet(&mut self, deadline: Instant) -> Result<bool> {
        let next = self.keys.next_tablet(&self.table, &self.spec, deadline).await?;
        self.open = next.map(OpenTablet::new);
        Ok(self.open.is_some())
    }

    /// Sends one request to the open tablet, with retries. Returns `None` if the tablet must be opened again.
    async fn request(&mut self, deadline: Instant) -> Result<Option<RpcResponse<ScanResponsePb>>> {
        let client = self.table.client.clone();
        let mut backoff = Backoff::new(deadline);
        let mut renewals = 0;
        loop {
            let token = client.shared.authz_tokens.get(self.table.id());
            let failure = match self.try_request(&client, token.as_ref(), deadline).await {
                Ok(response) => {
                    if let Some(open) = &mut self.open {
                        open.failed = 0;
                    }
                    return Ok(Some(response));
                }
                Err(failure) => failure,
            };
            let open = self.open.as_mut().expect("requests go to an open tablet");
            let may_restart = self.spec.fault_tolerant || !open.returned_rows;
            let what = format!("scanning table {}", self.table.name());
            match failure {
                TabletCallFailure::Busy(error) => {
                    client.env().observer.mark("client: scan retried");
                    backoff.failed(client.env(), &what, error).await?;
                    if open.server.is_some() {
                        continue;
                    }
                    // The safe time of a follower may lag behind the snapshot: try another replica. The leader may
                    // have become a follower, or a lost call has led to a follower: look up the leader and ask it.
                    if self.spec.any_replica {
                        open.failed += 1;
                    } else {
                        open.tablet = client.relocate(&self.table, &open.tablet, deadline).await?;
                        open.failed = 0;
                    }
                }
                TabletCallFailure::Token(error) => {
                    // A fresh token that is rejected, too, is retried like a busy server.
                    if renewals > backoff.attempts() {
                        backoff.failed(client.env(), &what, error).await?;
                    }
                    renewals += 1;
                    client.renew_authz_token(&self.table, token.as_ref(), deadline).await?;
                }
                TabletCallFailure::Scanner(error) if may_restart => {
                    client.env().observer.mark("client: scanner expired, scan restarted");
                    backoff.failed(client.env(), &what, error).await?;
                    open.restart();
                }
                TabletCallFailure::OtherReplica(error) if may_restart => {
                    client.env().observer.mark("client: scan continued at another server");
                    backoff.failed(client.env(), &what, error).await?;
                    let tablet = client.relocate(&self.table, &open.tablet, deadline).await?;
                    open.failed = tablet.failed_since(&open.tablet, open.failed);
                    open.tablet = tablet;
                    open.restart();
                }
                failure => return Err(failure.error().context(what)),
            }
        }
    }

    async fn try_request(
        &mut self,
        client: &Client,
        token: Option<&SignedTokenPb>,
        deadline: Instant,
    ) -> Result<RpcResponse<ScanResponsePb>, TabletCallFailure> {
        let open = self.open.as_ref().expect("requests go to an open tablet");
        let batch_size_bytes = Some(self.spec.batch_bytes);
        let (server, request) = match &open.server {
            Some(server) => {
                let request = ScanRequestPb {
                    scanner_id: Some(open.scanner_id.clone()),
                    call_seq_id: Some(open.next_seq),
                    batch_size_bytes,
                    ..Default::default()
                };
                (server.clone(), request)
            }
            None => {
                let replica = if self.spec.any_replica {
                    open.tablet.replicas.get(open.failed as usize % open.tablet.replicas.len().max(1))
                } else {
                    open.tablet.replica(open.failed)
                };
                let none = || Error::not_ready(format!("tablet {} has no replica", open.tablet.id));
                let replica = replica.ok_or_else(|| TabletCallFailure::OtherReplica(none()))?;
                let request = ScanRequestPb {
                    new_scan_request: Some(self.new_scan(open, token)),
                    call_seq_id: Some(0),
                    batch_size_bytes,
                    ..Default::default()
                };
                (client.server(&replica.address), request)
            }
        };
        let until = client.attempt_deadline(deadline);
        let opens = open.server.is_none();
        let features = match &self.aggregation {
            Some(_) if opens => vec![TabletServerFeatures::NyalaAggregation as u32],
            _ => Vec::new(),
        };
        let options = CallOptions { features, span: SpanOrigin::Root, ..CallOptions::default() };
        let to = server.clone();
        let call: BoxFuture<'static, _> =
            Box::pin(async move { to.call(TABLET_SERVICE, "Scan", &request, until, options).await });
        let called = if opens { OpeningCall::new(client, &server, call).await } else { call.await };
        let response: RpcResponse<ScanResponsePb> =
            called.map_err(|error| TabletCallFailure::of_rpc(&error))?;
        if let Some(error) = &response.message.error {
            return Err(TabletCallFailure::of_reply(error));
        }
        self.open.as_mut().expect("still open").server = Some(server);
        Ok(response)
    }

    fn new_scan(&self, open: &OpenTablet, token: Option<&SignedTokenPb>) -> NewScanRequestPb {
        let key = |key: &[u8]| (!key.is_empty()).then(|| Bytes::copy_from_slice(key));
        let schema = self.table.schema();
        let read_mode = match self.spec.read_mode {
            ReadMode::Latest => ReadModePb::ReadLatest,
            ReadMode::AtSnapshot(_) => ReadModePb::ReadAtSnapshot,
            // Once a timestamp is chosen, all tablets are read as of it.
            ReadMode::YourWrites if self.snapshot.is_some() => ReadModePb::ReadAtSnapshot,
            ReadMode::YourWrites => ReadModePb::ReadYourWrites,
        };
        let read = self.aggregation.as_ref().map_or(&self.columns, |bound| &bound.read);
        let order = if self.spec.fault_tolerant { OrderMode::Ordered } else { OrderMode::Unordered };
        NewScanRequestPb {
            tablet_id: Bytes::copy_from_slice(open.tablet.id.as_bytes()),
            limit: self.rows_left,
            column_predicates: self
                .spec
                .predicates
                .iter()
                .filter_map(|predicate| predicate::to_pb(predicate, schema))
                .collect(),
            start_primary_key: if open.last_key.is_some() { None } else { key(&self.spec.keys.lower) },
            stop_primary_key: key(&self.spec.keys.upper),
            projected_columns: read.iter().map(|column| self.projected(column)).collect(),
            read_mode: Some(read_mode as i32),
            snap_start_timestamp: self.spec.diff_from,
            snap_timestamp: self.snapshot,
            propagated_timestamp: self.table.client.observed_timestamp(),
            order_mode: Some(order as i32),
            last_primary_key: open.last_key.clone(),
            row_format_flags: Some(RowFormatFlags::ColumnarLayout as u64),
            authz_token: token.cloned(),
            nyala_aggregation: self.aggregation.as_ref().map(|bound| aggregation::to_pb(&bound.aggregation)),
            ..Default::default()
        }
    }

    fn projected(&self, column: &ColumnSchema) -> ColumnSchemaPb {
        let is_key = self.table.schema().key_columns().iter().any(|key| key.name == column.name);
        let mut pb = schema::column_to_pb(column, is_key);
        pb.id = None;
        pb
    }

    fn accept(&mut self, response: RpcResponse<ScanResponsePb>) -> Result<RecordBatch> {
        let RpcResponse { message, sidecars } = response;
        let client = &self.table.client;
        for seen in message.propagated_timestamp.iter().chain(&message.snap_timestamp) {
            client.observe_timestamp(*seen);
        }
        if self.snapshot.is_none() && self.spec.read_mode != ReadMode::Latest {
            self.snapshot = message.snap_timestamp;
        }
        self.bytes += sidecars.iter().map(|sidecar| sidecar.len() as u64).sum::<u64>();
        let mut block = message.columnar_data.clone().unwrap_or_default();
        if let Some(aggregation) = &self.aggregation {
            aggregation.repeat_columns(&mut block);
        }
        let batch = arrow::batch_from_pb(&block, &sidecars, &self.columns, &self.schema)?;
        let batch = self.limited(batch);
        let open = self.open.as_mut().expect("a response comes from an open tablet");
        open.returned_rows |= batch.num_rows() > 0;
        if message.last_primary_key.is_some() && self.spec.fault_tolerant {
            open.last_key = message.last_primary_key.clone();
        }
        self.last = Some(open.tablet.clone());
        if message.has_more_results() {
            if let Some(id) = message.scanner_id {
                open.scanner_id = id;
            }
            open.next_seq += 1;
        } else {
            self.leave_tablet();
        }
        Ok(batch)
    }

    /// Cuts a batch at the limit of the scan and counts its rows.
    pub(super) fn limited(&mut self, mut batch: RecordBatch) -> RecordBatch {
        if let Some(left) = &mut self.rows_left {
            if batch.num_rows() as u64 > *left {
                batch = batch.slice(0, *left as usize);
            }
            *left -= batch.num_rows() as u64;
        }
        batch
    }

    /// Ends the open tablet, all of whose rows were read.
    pub(super) fn leave_tablet(&mut self) {
        if let Some(open) = self.open.take() {
            self.keys.advance(&open.tablet.partition.end);
        }
    }
}

impl OpenTablet {
    fn new(tablet: Arc<TabletLocation>) -> OpenTablet {
        OpenTablet {
            tablet,
            server: None,
            scanner_id: Bytes::new(),
            next_seq: 0,
            last_key: None,
            returned_rows: false,
            failed: 0,
        }
    }

    /// Resets the scanner, so that the next request resumes after the last key received.
    fn restart(&mut self) {
        self.server = None;
        self.scanner_id = Bytes::new();
        self.next_seq = 0;
    }
}

/// Closes the server's scanner of an unfinished scan.
impl Drop for Scanner {
    fn drop(&mut self) {
        let Some(OpenTablet { server: Some(server), scanner_id, next_seq, .. }) = self.open.take() else {
            return;
        };
        if !scanner_id.is_empty() {
            let scanner = ServerScanner { server, id: scanner_id, next_seq };
            scanner.close_in_background(self.table.client.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_aggregation_has_no_options_of_rows() {
        let fault = |spec: ScanSpec| refuse_rows(&spec).err().map(|error| error.message);
        let limited = |rows| ScanSpec { limit: Some(rows), ..ScanSpec::default() };
        assert_eq!((fault(ScanSpec::default()), fault(limited(0))), (None, None));
        let faults = [
            fault(limited(1)),
            fault(ScanSpec { columns: Some(Vec::new()), ..ScanSpec::default() }),
            fault(ScanSpec { diff_from: Some(7), ..ScanSpec::default() }),
        ];
        assert!(faults.iter().all(Option::is_some), "{faults:?}");
        let limit = "a scan with an aggregation has a limit; its results are the groups of all rows";
        assert_eq!(faults[0].as_deref(), Some(limit));
    }
}
