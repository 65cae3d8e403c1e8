//! The Write call: rows for one tablet, applied at most once per request id.
//!
//! ```text
//! bytes ─▶ bind the client's columns (cached per tablet) ─▶ replica: log, apply ─▶ reply, cached for retries
//! ```
//!
//! Invariant: the reply depends only on the operation's timestamp and result. So a retry after a restart, answered from
//! the log, gets the same bytes.

use std::sync::Arc;

use bytes::Bytes;
use engine::error::{Error, ErrorKind};
use engine::raft::Role;
use engine::replica::{Op, OpResult, RequestId, WriteOp};
use engine::schema::row_ops::{self, ClientColumn, RowError, RowErrorCode};
use engine::tablet::Tablet;
use engine::tablet::apply::WriteCounts;
use engine::time::Timestamp;
use prost::Message;

use super::server::TabletServer;
use super::table_access::{self, TableAccess};
use crate::hosting::replica::{CommittedOp, ReplicaHandle};
use crate::hosting::tablet_entry::TabletEntry;
use nyala_common::rpc::call_steps::CallStep;
use nyala_common::rpc::{Call, Reply, RequestIdPb};
use nyala_common::wire::errors::{TabletError, TabletErrorCode, app_status};
use nyala_common::wire::schema;
use nyala_proto::kudu::app_status_pb::ErrorCode;
use nyala_proto::kudu::security::SignedTokenPb;
use nyala_proto::kudu::tserver::write_response_pb::PerRowErrorPb;
use nyala_proto::kudu::tserver::{ResourceMetricsPb, WriteResponsePb};
use nyala_proto::kudu::{ExternalConsistencyMode, RowOperationsPb, SchemaPb};

/// `kudu.tserver.WriteRequestPB` with the schema left as bytes: it nearly always equals that of the previous write.
#[derive(Clone, PartialEq, Message)]
struct WriteRequest {
    #[prost(bytes = "bytes", required, tag = "1")]
    tablet_id: Bytes,
    #[prost(bytes = "bytes", optional, tag = "2")]
    schema: Option<Bytes>,
    #[prost(message, optional, tag = "3")]
    row_operations: Option<RowOperationsPb>,
    #[prost(enumeration = "ExternalConsistencyMode", optional, tag = "4", default = "ClientPropagated")]
    external_consistency_mode: Option<i32>,
    #[prost(fixed64, optional, tag = "5")]
    propagated_timestamp: Option<u64>,
    #[prost(message, optional, tag = "6")]
    authz_token: Option<SignedTokenPb>,
    #[prost(int64, optional, tag = "7")]
    txn_id: Option<i64>,
}

/// Runs a Write call to its reply.
pub(super) async fn write(server: &TabletServer, call: Call) -> Reply {
    let request = match call.decode::<WriteRequest>() {
        Ok(request) => request,
        Err(reply) => return reply,
    };
    if let Some(busy) = server.check_write_admission() {
        server.env.observer.mark("write call: rejected for memory");
        return Reply::too_busy(busy);
    }
    // From here on the call mostly waits for the log, so other calls may run.
    call.release_slot();
    let request_id = call.request_id.as_ref().map(request_id);
    match write_rows(server, &call, &request, request_id).await {
        Ok(applied) => reply_of(applied.timestamp, &applied.result),
        Err(WriteError::Denied(reply) | WriteError::Late(reply)) => reply,
        Err(WriteError::Tablet(error)) if error.is_busy() => {
            server.env.observer.mark("write call: rejected, retriable");
            Reply::too_busy(error.status.message.unwrap_or_default())
        }
        Err(WriteError::Tablet(error)) => {
            server.env.observer.mark("write call: rejected by its tablet");
            Reply::message(&WriteResponsePb { error: Some(error.to_pb()), ..Default::default() })
        }
    }
}

/// Waits as the first execution of a repeated write does. Its timestamp may be ahead of this server's clock: the write
/// took effect at a leader that failed before it replied. Returns the error reply if the call's deadline is before the
/// end of the wait.
pub(super) async fn wait_before_repeat(
    server: &TabletServer,
    call: &Call,
    reply: &Bytes,
) -> Result<(), Reply> {
    let (Ok(request), Ok(response)) =
        (WriteRequest::decode(call.body.clone()), WriteResponsePb::decode(reply.clone()))
    else {
        return Ok(());
    };
    if request.external_consistency_mode() == ExternalConsistencyMode::CommitWait
        && let Some(timestamp) = response.timestamp
        && !server.wait_until_past(Timestamp(timestamp), call.deadline).await
    {
        return Err(unfinished_wait());
    }
    Ok(())
}

/// Returns the error reply for a write that took effect, at the deadline of a call whose commit wait has not ended.
fn unfinished_wait() -> Reply {
    let message = "the write took effect, but its commit wait did not end before the deadline of the call";
    let error = TabletError::from(Error::timed_out(message));
    Reply::message(&WriteResponsePb { error: Some(error.to_pb()), ..Default::default() })
}

/// Error of a Write call.
enum WriteError {
    /// The call succeeds and its response contains the error.
    Tablet(TabletError),
    /// The call fails.
    Denied(Reply),
    /// The write took effect, but the call's deadline is before the end of its commit wait.
    Late(Reply),
}

impl From<TabletError> for WriteError {
    fn from(error: TabletError) -> WriteError {
        WriteError::Tablet(error)
    }
}

impl From<Error> for WriteError {
    fn from(error: Error) -> WriteError {
        WriteError::Tablet(error.into())
    }
}

async fn write_rows(
    server: &TabletServer,
    call: &Call,
    request: &WriteRequest,
    request_id: Option<RequestId>,
) -> Result<CommittedOp, WriteError> {
    let entry = server.tablets.find(&request.tablet_id)?;
    let replica = entry.running()?;
    if server.identity.access().fine_grained {
        // The token's signature is checked.
        call.leave_connection().await;
    }
    let access = table_access::access(server, call, request.authz_token.as_ref());
    let access = access.and_then(|access| access.check_table(entry.meta.table).map(|()| access));
    let access = access.and_then(|access| access.check_any_write().map(|()| access));
    let access = access.map_err(WriteError::Denied)?;
    if request.txn_id.is_some() {
        return Err(Error::unsupported("multi-row transactions are not supported").into());
    }
    if let Some(seen) = request.propagated_timestamp {
        server.clock.update(Timestamp(seen))?;
    }
    let waits = request.external_consistency_mode() == ExternalConsistencyMode::CommitWait;
    let refuse_wait = || waits.then(|| server.refuse_commit_wait(call.deadline)).flatten();
    if let Some(why) = server.refuse_writes(&entry).or_else(refuse_wait) {
        server.env.observer.mark("write call: rejected for disk space or clock");
        return Err(Error::throttled(why).into());
    }
    let columns = bind(&entry, replica.tablet(), request.schema.as_ref());
    let columns = columns.map_err(|error| schema_behind_error(&replica).unwrap_or(error))?;
    let rows = request.row_operations.clone().unwrap_or_default();
    let write = WriteOp {
        columns,
        rows: rows.rows.unwrap_or_default(),
        indirect: rows.indirect_data.unwrap_or_default(),
    };
    check_kinds(&access, &replica, &write)?;
    let admitted = server.memory.reserve_write(replica.tablet(), &write, call.body.len() as u64);
    let admitted = admitted.map_err(|why| TabletError::from(Error::throttled(why)))?;
    let op = Op::Write(write);
    replica.check_fits(&op)?;
    let began = server.env.now().mono;
    call.steps.mark(CallStep::Prepared, began);
    replica.metrics().write_began(began);
    let applied = replica.propose_within(op, request_id, admitted.growth, &call.steps).await;
    let applied = applied.map_err(|error| refused(&replica, &error))?;
    let done = server.env.now().mono;
    if waits {
        server.env.observer.mark("write call: commit wait");
        let passed = server.wait_until_past(applied.timestamp, call.deadline).await;
        let now = server.env.now().mono;
        replica.metrics().commit_wait.record_micros(now.since(done));
        replica.metrics().write_commit_wait.record_micros(now.since(began));
        if !passed {
            let reply = reply_of(applied.timestamp, &applied.result);
            return Err(WriteError::Late(Reply::withheld(reply, unfinished_wait())));
        }
    } else {
        replica.metrics().write_propagated.record_micros(done.since(began));
    }
    // Order: after the commit wait, which has the request in memory.
    drop(admitted.body);
    Ok(applied)
}

/// Returns an error if one row is of a kind that the caller may not write: then none is written.
fn check_kinds(access: &TableAccess, replica: &ReplicaHandle, write: &WriteOp) -> Result<(), WriteError> {
    if access.writes_all() {
        return Ok(());
    }
    let schema = replica.tablet().schema();
    let kinds = table_access::kinds(&write.columns, &schema, &write.rows, &write.indirect);
    let kinds = kinds.map_err(|error| refused(replica, &error))?;
    kinds.into_iter().try_for_each(|kind| access.check_kind(kind)).map_err(WriteError::Denied)
}

/// Binds the columns of the request's schema to the tablet's columns.
fn bind(
    entry: &TabletEntry,
    tablet: &Tablet,
    client: Option<&Bytes>,
) -> Result<Arc<[ClientColumn]>, TabletError> {
    let client = client.cloned().unwrap_or_default();
    let version = tablet.schema_version();
    if let Some(columns) = entry.bound_columns(&client, version) {
        return Ok(columns);
    }
    let pb = SchemaPb::decode(client.clone()).map_err(|error| {
        let message = format!("the schema of the write cannot be decoded: {error}");
        TabletError::new(TabletErrorCode::InvalidSchema, ErrorCode::InvalidArgument, message)
    })?;
    schema::refuse_ids(&pb.columns)
        .map_err(|error| TabletError::of(TabletErrorCode::InvalidSchema, &error))?;
    let schema = tablet.schema();
    let columns = schema::client_columns(&pb.columns)
        .and_then(|columns| row_ops::bind_columns(&columns, &schema))
        .map_err(|error| TabletError::of(TabletErrorCode::MismatchedSchema, &error))?;
    let columns: Arc<[ClientColumn]> = columns.into();
    entry.remember_columns(&client, version, columns.clone());
    Ok(columns)
}

/// Returns the retryable error of a replica whose schema may be behind: unapplied alterations are in its log. An error
/// about columns would be final for the client, though another replica could apply the write.
fn schema_behind_error(replica: &ReplicaHandle) -> Option<TabletError> {
    let status = replica.status();
    if status.role != Role::Leader {
        let (me, role) = (replica.tablet().tablet, status.role);
        let message = format!("this replica of tablet {me} is not leader of this config. Role: {role}");
        return Some(refused(replica, &Error::not_leader(message)));
    }
    let applies = !replica.tablet().mvcc().is_caught_up();
    applies.then(|| {
        Error::throttled("the new leader has yet to apply what the last one committed; retry").into()
    })
}

/// Returns the error for an operation that was not applied: the replica failed, or the request is invalid.
pub(super) fn refused(replica: &ReplicaHandle, error: &Error) -> TabletError {
    if replica.failure().is_some() {
        return TabletError::failed(error);
    }
    match error.kind {
        // Malformed row operations, unknown kinds of operations, or columns that do not match the tablet's.
        ErrorKind::Corrupt | ErrorKind::Unsupported | ErrorKind::Invalid => {
            TabletError::of(TabletErrorCode::MismatchedSchema, error)
        }
        ErrorKind::Throttled => TabletError::of(TabletErrorCode::Throttled, error),
        ErrorKind::Aborted if replica.is_stopping() => TabletError::new(
            TabletErrorCode::TabletNotRunning,
            ErrorCode::IllegalState,
            error.message.as_str(),
        ),
        ErrorKind::NotLeader => TabletError::of(TabletErrorCode::UnknownError, &not_leader(replica, error)),
        _ => TabletError::of(TabletErrorCode::UnknownError, error),
    }
}

/// Adds the current leader, if this replica knows it, so that the reader of the error can retry there.
fn not_leader(replica: &ReplicaHandle, error: &Error) -> Error {
    let status = replica.status();
    let leader = status.leader.map_or_else(|| "nobody".to_string(), |leader| leader.to_string());
    let config = status.active_config();
    Error::not_leader(format!(
        "{} Consensus state: term {}, leader {leader}, configuration {config}",
        error.message, status.term
    ))
}

/// Returns the reply to a write that took effect.
fn reply_of(timestamp: Timestamp, result: &OpResult) -> Reply {
    Reply::message(&response_of(timestamp, result)).cached()
}

/// Returns the same reply for retries of a write that recovery found in a log.
pub(super) fn remembered_of(timestamp: Timestamp, result: &OpResult) -> Vec<u8> {
    response_of(timestamp, result).encode_to_vec()
}

fn response_of(timestamp: Timestamp, result: &OpResult) -> WriteResponsePb {
    let (errors, counts): (&[(u32, RowError)], _) = match result {
        OpResult::Write { errors, counts } => (errors, *counts),
        OpResult::Altered { .. } | OpResult::NoOp => (&[], WriteCounts::default()),
    };
    let row_error = |(row, error): &(u32, RowError)| PerRowErrorPb {
        row_index: *row as i32,
        error: app_status(row_status(error.code), error.message.as_str()),
    };
    WriteResponsePb {
        error: None,
        per_row_errors: errors.iter().map(row_error).collect(),
        timestamp: Some(timestamp.0),
        resource_metrics: Some(metrics_of(&counts)),
    }
}

fn row_status(code: RowErrorCode) -> ErrorCode {
    match code {
        RowErrorCode::AlreadyPresent => ErrorCode::AlreadyPresent,
        RowErrorCode::NotFound => ErrorCode::NotFound,
        RowErrorCode::InvalidArgument => ErrorCode::InvalidArgument,
        RowErrorCode::Immutable => ErrorCode::Immutable,
    }
}

fn metrics_of(counts: &WriteCounts) -> ResourceMetricsPb {
    let count = |number: u64| Some(number as i64);
    ResourceMetricsPb {
        successful_inserts: count(counts.inserts),
        successful_upserts: count(counts.upserts),
        successful_updates: count(counts.updates),
        successful_deletes: count(counts.deletes),
        insert_ignore_errors: count(counts.insert_ignore_errors),
        upsert_ignore_errors: count(counts.upsert_ignore_errors),
        update_ignore_errors: count(counts.update_ignore_errors),
        delete_ignore_errors: count(counts.delete_ignore_errors),
        ..Default::default()
    }
}

fn request_id(pb: &RequestIdPb) -> RequestId {
    RequestId {
        client: pb.client_id.clone().into_bytes(),
        seq: pb.seq_no,
        first_incomplete: pb.first_incomplete_seq_no,
        attempt: pb.attempt_no,
    }
}

/// Converts the request id to protobuf; `None` for a client name that no message could have carried.
pub(super) fn request_id_pb(id: &RequestId) -> Option<RequestIdPb> {
    Some(RequestIdPb {
        client_id: String::from_utf8(id.client.clone()).ok()?,
        seq_no: id.seq,
        first_incomplete_seq_no: id.first_incomplete,
        attempt_no: id.attempt,
    })
}
