//! The calls Scan, Checksum and ScannerKeepAlive.
//!
//! ```text
//! new_scan_request ─▶ parse ─▶ choose the snapshot ─▶ wait until it is complete ─▶ open ─┐
//! scanner_id ─▶ take from the scanner table ─────────────────────────────────────────────┴▶ fill a batch ─▶ reply
//! ```
//!
//! - A batch ends at the block that reaches its size, or when its time is up, perhaps without a row.
//! - An exhausted scanner is never kept; any error in a continued scan drops it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use engine::cfile::reader::PageBytes;
use engine::error::{Error, ErrorKind};
use engine::ids::Uuid;
use engine::schema::Schema;
use engine::schema::predicate::Predicate;
use engine::tablet::scan::{Scan, ScanSpec, SnapshotChoice};
use engine::time::{Instant, Timestamp};
use tokio::sync::SemaphorePermit;

use super::checksum;
use super::history;
use super::open_scanner::OpenScanner;
use super::reply_rows::ReplyRows;
use super::scan_blocks::{BlockOutcome, each_block};
use super::scan_error::ScanError;
use super::scan_log::ScanState;
use super::scan_request::{NewScan, RequestedScan, ScanRequest};
use super::scan_spec::{ParsedScan, SnapshotMode};
use super::scanners::ScannerError;
use super::server::TabletServer;
use super::table_access::{self, TableAccess};
use crate::hosting::memory_pressure::ReplyReservation;
use crate::hosting::replica::ReplicaHandle;
use crate::hosting::tablet_entry::TabletEntry;
use nyala_common::rpc::call_steps::CallStep;
use nyala_common::rpc::{Call, Reply, RpcErrorCodePb};
use nyala_common::sidecars::Sidecars;
use nyala_common::wire::errors::{TabletError, TabletErrorCode};
use nyala_common::wire::rows::{RowBlockPb, RowsBuilder};
use nyala_common::wire::schema;
use nyala_proto::kudu::app_status_pb::ErrorCode;
use nyala_proto::kudu::tserver::{
    ChecksumRequestPb, ChecksumResponsePb, ResourceMetricsPb, ScanResponsePb, ScannerKeepAliveRequestPb,
    ScannerKeepAliveResponsePb,
};

/// Batch size in bytes below which blocks have Kudu's 128 rows, because responses end between blocks.
const SMALL_BATCH_BYTES: u32 = 64 << 10;
const SMALL_BLOCK_ROWS: usize = 128;

/// Runs a Scan call to its reply.
pub(super) async fn scan(server: &TabletServer, call: Call) -> Reply {
    let request = match call.decode::<ScanRequest>() {
        Ok(request) => request,
        Err(reply) => return reply,
    };
    let result = match (&request.new_scan_request, &request.scanner_id) {
        (Some(new), None) => begin_scan(server, &call, &request, new).await,
        (None, Some(id)) => {
            call.leave_connection().await;
            continue_scan(server, &call, &request, id).await
        }
        _ => {
            let message = "a Scan call names a scanner or opens one, and not both";
            return Reply::error(RpcErrorCodePb::ErrorApplication, message);
        }
    };
    match result {
        Ok(reply) => reply,
        Err(ScanError::Rpc(reply)) => {
            server.env.observer.mark("scan call: rejected, retriable");
            reply
        }
        Err(ScanError::Tablet(error)) => {
            server.env.observer.mark("scan call: rejected by its tablet");
            Reply::message(&ScanResponsePb { error: Some(error.to_pb()), ..Default::default() })
        }
    }
}

async fn begin_scan(
    server: &TabletServer,
    call: &Call,
    request: &ScanRequest,
    new: &Bytes,
) -> Result<Reply, ScanError> {
    let new = NewScan::decode(new, call.method).map_err(ScanError::Rpc)?;
    if request.call_seq_id() != 0 {
        return Err(ScannerError::WrongSequence(0).into());
    }
    let began = server.env.now().mono;
    if server.identity.access().fine_grained {
        // The token's signature is checked.
        call.leave_connection().await;
    }
    let access = table_access::access(server, call, new.pb.authz_token.as_ref()).map_err(ScanError::Rpc)?;
    let (scanner, snapshot) = open(server, call, &new, request.batch_size_bytes, &access).await?;
    let (snapshot, _place) = (snapshot.at, snapshot.place);
    let mut response = ScanResponsePb { snap_timestamp: snapshot.map(|at| at.0), ..Default::default() };
    let (mut scanner, mut sidecars) = (scanner, Sidecars::default());
    let has_more = match server.runtime_flags.batch_bytes(request.batch_size_bytes) {
        // The client asks only to open the scanner.
        0 => !request.close_scanner(),
        limit => {
            let filled = fill(server, &mut scanner, limit, reserve_reply(server)?).await;
            let batch = filled.map_err(|error| scan_failed(&mut scanner, &error))?;
            let has_more = batch.has_more;
            sidecars = put_rows(&mut response, batch, &scanner);
            has_more && !request.close_scanner()
        }
    };
    let page_bytes = take_page_bytes(&mut scanner);
    response.has_more_results = Some(has_more);
    if has_more {
        let id = keep_open(server, call, scanner)?;
        response.scanner_id = Some(schema::id_bytes(&id));
    }
    Ok(finish(server, call, (began, page_bytes), response, sidecars))
}

async fn continue_scan(
    server: &TabletServer,
    call: &Call,
    request: &ScanRequest,
    id: &Bytes,
) -> Result<Reply, ScanError> {
    let began = server.env.now().mono;
    let id = Uuid::parse(id);
    if request.close_scanner() && request.batch_size_bytes == Some(0) {
        server.env.observer.mark("scan call: closed early");
        // A malformed id names no open scanner, and closing an unknown scanner is no error.
        if let Ok(id) = id {
            server.scanners().close(id, &call.user)?;
        }
        let response = ScanResponsePb { has_more_results: Some(false), ..Default::default() };
        return Ok(finish(server, call, (began, PageBytes::default()), response, Sidecars::default()));
    }
    let id = id.map_err(|_| ScannerError::NotAnId)?;
    let reservation = reserve_reply(server)?;
    let mut scanner = server.scanners().take(id, &call.user, request.call_seq_id(), began)?;
    server.env.observer.mark("scan call: continued");
    let mut taken = ScannerGuard { server, id, keep: false };
    check_method(&scanner, call, id)?;
    let limit = server.runtime_flags.batch_bytes(request.batch_size_bytes).max(1);
    let filled = fill(server, &mut scanner, limit, reservation).await;
    let batch = filled.map_err(|error| scan_failed(&mut scanner, &error))?;
    let has_more = batch.has_more && !request.close_scanner();
    let mut response = ScanResponsePb { has_more_results: Some(has_more), ..Default::default() };
    let sidecars = put_rows(&mut response, batch, &scanner);
    let page_bytes = take_page_bytes(&mut scanner);
    if has_more {
        taken.keep = true;
        server.scanners().put_back(id, scanner, server.env.now().mono);
    }
    drop(taken);
    Ok(finish(server, call, (began, page_bytes), response, sidecars))
}

/// Refuses to continue a scanner of another method, with other rights. It ends.
fn check_method(scanner: &OpenScanner, call: &Call, id: Uuid) -> Result<(), ScanError> {
    if scanner.method == call.method { Ok(()) } else { Err(ScannerError::Gone(id).into()) }
}

/// Scanner taken out of the table. It is removed there unless it is put back, even after an error or if the connection
/// closes during the call.
struct ScannerGuard<'a> {
    server: &'a TabletServer,
    id: Uuid,
    keep: bool,
}

impl Drop for ScannerGuard<'_> {
    fn drop(&mut self) {
        if !self.keep {
            self.server.scanners().remove(self.id);
        }
    }
}

/// Snapshot of a scan that is complete.
struct ReadySnapshot<'a> {
    /// Timestamp to report; `None` for READ_LATEST.
    at: Option<Timestamp>,
    /// Place to read in, if the scan gave up its call's slot.
    place: Option<SemaphorePermit<'a>>,
}

/// Checks a request, chooses its snapshot, waits for it and opens the scan.
async fn open<'a>(
    server: &'a TabletServer,
    call: &Call,
    new: &NewScan,
    batch_bytes: Option<u32>,
    access: &TableAccess,
) -> Result<(OpenScanner, ReadySnapshot<'a>), ScanError> {
    let entry = server.tablets.find(&new.pb.tablet_id)?;
    let replica = entry.running()?;
    if server.is_quiescing() {
        let (code, status) = (TabletErrorCode::TabletNotRunning, ErrorCode::ServiceUnavailable);
        server.env.observer.mark("scan call: rejected by a quiescing server");
        return Err(TabletError::new(code, status, "Tablet server is quiescing").into());
    }
    access.check_table(entry.meta.table).map_err(ScanError::Rpc)?;
    let columns = replica.tablet().schema();
    let asked = RequestedScan { new, access, method: call.method };
    let mut parsed = asked.parse_for(&entry, &columns)?;
    if !parsed.spec.names_one_key(&columns) {
        call.leave_connection().await;
    }
    let small = batch_bytes.is_some_and(|bytes| (1..SMALL_BATCH_BYTES).contains(&bytes));
    parsed.spec.block_rows_max = small.then_some(SMALL_BLOCK_ROWS);
    server.env.observer.mark(match parsed.read_at {
        SnapshotMode::Latest => "scan call: READ_LATEST",
        SnapshotMode::Snapshot(None) => "scan call: current snapshot",
        SnapshotMode::Snapshot(Some(_)) => "scan call: snapshot of the client",
        SnapshotMode::YourWrites { .. } => "scan call: READ_YOUR_WRITES",
    });
    let snapshot = choose_snapshot(server, call, &entry, &replica, &parsed).await?;
    let opened = server.env.now().mono;
    call.steps.mark(CallStep::Prepared, opened);
    replica.metrics().scan_started(opened);
    let (parsed, scan) = start(server, Some(call), &replica, asked, snapshot.at, (parsed, columns)).await?;
    let ordered = parsed.spec.ordered;
    let ParsedScan { spec, projection, aggregation, layout, .. } = parsed;
    let mut log = server.scan_log.begin((entry, call.user.clone()), &spec, projection.clone(), opened);
    if !scan.reads_few() {
        log.list();
    }
    let predicate_bytes = spec.predicates.iter().map(Predicate::byte_size).sum::<usize>() as u64;
    let scanner = OpenScanner {
        method: call.method,
        replica,
        scan,
        projection,
        aggregation,
        layout,
        ordered,
        entry: log,
        predicate_bytes,
        held: None,
    };
    Ok((scanner, snapshot))
}

/// Keeps a scanner open for further calls and returns its id. Rejected if there is no memory for it.
fn keep_open(server: &TabletServer, call: &Call, mut scanner: OpenScanner) -> Result<Uuid, ScanError> {
    let held = server.memory.reserve_scanner(scanner.predicate_bytes);
    scanner.held = Some(held.map_err(|why| ScanError::Rpc(Reply::too_busy(why)))?);
    let id = server.env.random_uuid();
    scanner.entry.list();
    server.scanners().open(id, call.user.clone(), scanner, server.env.now().mono);
    Ok(id)
}

/// Opens a scan. On the task of the call's connection it reads memory and cached pages only: another task waits for the
/// others.
async fn open_scan(
    server: &TabletServer,
    call: Option<&Call>,
    replica: &ReplicaHandle,
    spec: &ScanSpec,
) -> Result<Scan, Error> {
    if let Some(call) = call.filter(|call| call.is_on_connection()) {
        let cached = server.env.run_brief(|| replica.tablet().scan_cached(spec)).await;
        if let Some(opened) = cached {
            server.env.observer.mark("scan call: read from memory and cached pages");
            return opened;
        }
        server.env.observer.mark("scan call: pages read from files for one key");
        call.leave_connection().await;
    }
    server.env.run_brief(|| replica.tablet().scan(spec)).await
}

/// Starts a scan that was parsed for a schema of the tablet. It is checked and parsed again if the tablet has another
/// one since: while the scan waited for its snapshot, the name of a column may have come to mean another column, or
/// none.
pub(super) async fn start(
    server: &TabletServer,
    call: Option<&Call>,
    replica: &ReplicaHandle,
    asked: RequestedScan<'_>,
    snapshot: Option<Timestamp>,
    (mut parsed, mut columns): (ParsedScan, Arc<Schema>),
) -> Result<(ParsedScan, Scan), ScanError> {
    let block_rows_max = parsed.spec.block_rows_max;
    loop {
        if let Some(at) = snapshot {
            parsed.spec.snapshot = SnapshotChoice::At(at);
        }
        let opened = open_scan(server, call, replica, &parsed.spec).await;
        let current = replica.tablet().schema();
        if Arc::ptr_eq(&columns, &current) {
            let scan = opened.map_err(|error| storage_failed(replica, &error))?;
            return Ok((parsed, scan));
        }
        server.env.observer.mark("scan call: schema changed while opening");
        (parsed, columns) = (asked.parse(&current)?, current);
        parsed.spec.block_rows_max = block_rows_max;
    }
}

/// Returns the snapshot once it is complete. A scan that has to wait for that gives up its call's slot meanwhile.
async fn choose_snapshot<'a>(
    server: &'a TabletServer,
    call: &Call,
    entry: &TabletEntry,
    replica: &ReplicaHandle,
    parsed: &ParsedScan,
) -> Result<ReadySnapshot<'a>, ScanError> {
    let bad = |error: Error| ScanError::from(TabletError::of(TabletErrorCode::InvalidSnapshot, &error));
    // Kudu's words: upstream's clients look for them.
    let unverified = |error: Error| bad(error.context("cannot verify timestamp"));
    if let Some(seen) = parsed.propagated {
        server.clock.update(seen).map_err(unverified)?;
    }
    let waited = |error: Error| match error.kind {
        ErrorKind::Throttled => ScanError::Rpc(Reply::too_busy(error.message)),
        _ => storage_failed(replica, &error),
    };
    let (mvcc, deadline) = (replica.tablet().mvcc(), snapshot_deadline(server, call));
    let mut place = None;
    if !matches!(parsed.read_at, SnapshotMode::Snapshot(_)) && !mvcc.is_caught_up() {
        call.release_slot();
        replica.wait_caught_up(deadline).await.map_err(waited)?;
        place = Some(server.late_scan(deadline).await.map_err(waited)?);
    }
    let at = match parsed.read_at {
        SnapshotMode::Latest => return Ok(ReadySnapshot { at: None, place }),
        SnapshotMode::Snapshot(None) => server.clock.now(),
        SnapshotMode::Snapshot(Some(at)) => {
            if let Some(from) = parsed.spec.diff_from {
                history::check(server, entry, "start", from).map_err(bad)?;
            }
            history::check(server, entry, "end", at).map_err(bad)?;
            at
        }
        SnapshotMode::YourWrites { seen } => {
            let clean = mvcc.latest().before;
            seen.map_or(clean, |seen| clean.max(seen.next()))
        }
    };
    // Invariant: no operation begins below the snapshot from here on. Spec: SafeTime.tla Observe.
    server.clock.update(at).map_err(unverified)?;
    let began = server.env.now().mono;
    if !mvcc.all_applied_before(at) {
        drop(place.take());
        call.release_slot();
        replica.wait_applied_before(at, deadline).await.map_err(waited)?;
        place = Some(server.late_scan(deadline).await.map_err(waited)?);
    }
    replica.metrics().snapshot_wait.record_micros(server.env.now().mono.since(began));
    Ok(ReadySnapshot { at: Some(at), place })
}

/// Returns a deadline slightly before the caller's, so that the reply can still arrive in time.
fn snapshot_deadline(server: &TabletServer, call: &Call) -> Instant {
    let longest = server.env.now().mono.after(server.runtime_flags.scanner_max_wait());
    let margin = Duration::from_millis(10).as_nanos() as u64;
    call.deadline.map_or(longest, |deadline| longest.min(Instant(deadline.0.saturating_sub(margin))))
}

/// Fails the replica after a read error, unless the request caused it or the replica was deleted meanwhile. The Java
/// client goes to another replica after `ILLEGAL_STATE` only, as after a call that finds the replica failed.
pub(super) fn read_failed(replica: &ReplicaHandle, error: &Error) -> TabletError {
    match error.kind {
        _ if replica.is_stopping() => TabletError::of(TabletErrorCode::TabletNotRunning, error),
        ErrorKind::Io | ErrorKind::Corrupt => {
            replica.fail(error);
            TabletError::failed(error)
        }
        _ => TabletError::from(error.clone()),
    }
}

fn storage_failed(replica: &ReplicaHandle, error: &Error) -> ScanError {
    read_failed(replica, error).into()
}

fn scan_failed(scanner: &mut OpenScanner, error: &Error) -> ScanError {
    scanner.entry.set_state(ScanState::Failed);
    storage_failed(&scanner.replica, error)
}

struct ScanBatch {
    rows: RowsBuilder,
    reservation: ReplyReservation,
    has_more: bool,
}

/// Reads blocks until `limit` bytes are reached, memory is short, or time is up.
async fn fill(
    server: &TabletServer,
    scanner: &mut OpenScanner,
    limit: usize,
    reservation: ReplyReservation,
) -> Result<ScanBatch, Error> {
    let mut rows = ReplyRows::new(scanner, limit);
    let mut has_memory = true;
    let has_more = each_block(server, &mut scanner.scan, |scan| {
        let added = rows.add_block(scan)?;
        has_memory = reservation.grow(rows.byte_size());
        Ok(BlockOutcome::of(added, !has_memory || rows.is_full()))
    })
    .await?;
    server.env.observer.mark_if(scanner.aggregation.is_some(), "scan call: rows aggregated");
    let rows = rows.finish(scanner);
    server.env.observer.mark_if(!has_memory, "scan call: batch shortened by memory pressure");
    let columns = scanner.projection.len();
    scanner.replica.metrics().batch_returned(rows.rows(), columns, rows.byte_size());
    scanner.entry.count(rows.rows(), rows.byte_size());
    if !has_more {
        scanner.entry.set_state(ScanState::Complete);
    }
    Ok(ScanBatch { rows, reservation, has_more })
}

/// Returns the pages that a scan got since the last call, and counts them.
fn take_page_bytes(scanner: &mut OpenScanner) -> PageBytes {
    let page_bytes = scanner.scan.take_page_bytes();
    scanner.replica.metrics().pages_got(page_bytes.cached + page_bytes.read);
    page_bytes
}

/// Reserves memory for the rows of a reply; without it the client should retry later.
fn reserve_reply(server: &TabletServer) -> Result<ReplyReservation, ScanError> {
    server.memory.reserve_reply().map_err(|why| ScanError::Rpc(Reply::too_busy(why)))
}

/// Describes the rows in the response and returns their sidecars.
fn put_rows(response: &mut ScanResponsePb, batch: ScanBatch, scanner: &OpenScanner) -> Sidecars {
    let some = batch.rows.rows() > 0;
    let (pb, sidecars) = batch.rows.finish();
    match pb {
        RowBlockPb::RowWise(pb) => response.data = Some(pb),
        RowBlockPb::Columnar(pb) => response.columnar_data = Some(pb),
    }
    if scanner.ordered && some {
        response.last_primary_key = scanner.scan.last_key().map(Bytes::copy_from_slice);
    }
    batch.reservation.count(sidecars)
}

fn finish(
    server: &TabletServer,
    call: &Call,
    cost: (Instant, PageBytes),
    mut response: ScanResponsePb,
    sidecars: Sidecars,
) -> Reply {
    response.propagated_timestamp = Some(server.clock.now().0);
    response.resource_metrics = Some(metrics(server, call, cost));
    Reply::with_sidecars(&response, sidecars)
}

/// Returns the cost of a call that began to run at a time and got these pages.
fn metrics(
    server: &TabletServer,
    call: &Call,
    (began, page_bytes): (Instant, PageBytes),
) -> ResourceMetricsPb {
    let nanos = |time: Duration| Some(time.as_nanos() as i64);
    let PageBytes { cached, read } = page_bytes;
    ResourceMetricsPb {
        cfile_cache_miss_bytes: Some(read as i64),
        cfile_cache_hit_bytes: Some(cached as i64),
        bytes_read: Some((read + cached) as i64),
        queue_duration_nanos: nanos(began.since(call.received)),
        total_duration_nanos: nanos(server.env.now().mono.since(began)),
        ..Default::default()
    }
}

/// Runs a ScannerKeepAlive call to its reply.
pub(super) fn keep_alive(server: &TabletServer, call: &Call) -> Reply {
    let request = match call.decode::<ScannerKeepAliveRequestPb>() {
        Ok(request) => request,
        Err(reply) => return reply,
    };
    let now = server.env.now().mono;
    let scanner_found = Uuid::parse(&request.scanner_id)
        .map_err(|_| ScannerError::NotAnId)
        .and_then(|id| server.scanners().keep_alive(id, &call.user, now));
    match scanner_found.map_err(ScanError::from) {
        Ok(()) => Reply::message(&ScannerKeepAliveResponsePb { error: None }),
        Err(ScanError::Rpc(reply)) => reply,
        Err(ScanError::Tablet(error)) => {
            Reply::message(&ScannerKeepAliveResponsePb { error: Some(error.to_pb()) })
        }
    }
}

/// Runs a Checksum call to its reply: a scan whose rows are summed instead of returned.
pub(super) async fn checksum(server: &TabletServer, call: Call) -> Reply {
    let request = match call.decode::<ChecksumRequestPb>() {
        Ok(request) => request,
        Err(reply) => return reply,
    };
    match checksum_batch(server, &call, &request).await {
        Ok(reply) | Err(ScanError::Rpc(reply)) => reply,
        Err(ScanError::Tablet(error)) => {
            Reply::message(&ChecksumResponsePb { error: Some(error.to_pb()), ..Default::default() })
        }
    }
}

async fn checksum_batch(
    server: &TabletServer,
    call: &Call,
    request: &ChecksumRequestPb,
) -> Result<Reply, ScanError> {
    let began = server.env.now().mono;
    let mut response = ChecksumResponsePb::default();
    let limit = server.runtime_flags.batch_bytes(request.batch_size_bytes).max(1);
    let mut _place = None;
    let (id, mut scanner, mut sum) = match (&request.new_request, &request.continue_request) {
        (Some(new), None) => {
            if new.nyala_aggregation.is_some() {
                let message = "a Checksum call sums rows; it has no aggregation";
                return Err(ScanError::Rpc(Reply::error(RpcErrorCodePb::ErrorApplication, message)));
            }
            let access = table_access::checksum_access(server, call, new.authz_token.as_ref());
            let access = access.map_err(ScanError::Rpc)?;
            let new = NewScan::decoded(new.clone());
            let (scanner, snapshot) = open(server, call, &new, request.batch_size_bytes, &access).await?;
            response.snap_timestamp = snapshot.at.map(|at| at.0);
            _place = snapshot.place;
            (None, scanner, 0)
        }
        (None, Some(old)) => {
            let id = Uuid::parse(&old.scanner_id).map_err(|_| ScannerError::NotAnId)?;
            let scanner = server.scanners().take(id, &call.user, request.call_seq_id(), began)?;
            if let Err(error) = check_method(&scanner, call, id) {
                server.scanners().remove(id);
                return Err(error);
            }
            (Some(id), scanner, old.previous_checksum)
        }
        _ => {
            let message = "a Checksum call begins or continues, and not both";
            return Err(ScanError::Rpc(Reply::error(RpcErrorCodePb::ErrorApplication, message)));
        }
    };
    let mut taken = id.map(|id| ScannerGuard { server, id, keep: false });
    let (mut rows, mut size) = (0, 0);
    let more = each_block(server, &mut scanner.scan, |scan| {
        let Some(block) = scan.read_block()? else { return Ok(BlockOutcome::End) };
        if block.rows > 0 {
            sum = checksum::add_block(sum, &block);
        }
        (rows, size) = (rows + block.rows, size + block.byte_size());
        Ok(BlockOutcome::of(Some(block.rows), size >= limit))
    });
    let has_more = more.await.map_err(|error| scan_failed(&mut scanner, &error))? && !request.close_scanner();
    (response.checksum, response.rows_checksummed) = (Some(sum), Some(rows as i64));
    response.has_more_results = Some(has_more);
    let page_bytes = take_page_bytes(&mut scanner);
    response.resource_metrics = Some(metrics(server, call, (began, page_bytes)));
    if has_more {
        match (&mut taken, id) {
            (Some(taken), Some(id)) => {
                taken.keep = true;
                server.scanners().put_back(id, scanner, server.env.now().mono);
            }
            _ => {
                let id = keep_open(server, call, scanner)?;
                response.scanner_id = Some(schema::id_bytes(&id));
            }
        }
    }
    Ok(Reply::message(&response))
}
