//! `kudu.consensus.ConsensusService`: calls of peers, masters and tools to the replicas of one server.
//!
//! ```text
//! UpdateConsensus, Heartbeats, RequestConsensusVote ◀── other replicas        each posts to a replica's loop and
//! ChangeConfig, BulkChangeConfig, LeaderStepDown …  ◀── masters, tools        waits, without a slot of the service
//! ```
//!
//! The [`ReplicaHost`] owns the replicas: a tablet server its tablets, a master its system tablet.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use engine::error::{Error, ErrorKind};
use engine::ids::{OpId, TabletId, Uuid};
use engine::memory::Reservation;
use engine::raft::interface::{VoteRequest, VoteResponse};
use engine::raft::{ConfigChange, Role};
use engine::time::Timestamp;
use engine::wal::ReplicateEntry;
use prost::Message;

use super::replica::{PendingUpdate, ReplicaHandle};
use crate::server_clock::ServerClock;
use nyala_common::env::{BoxFuture, Env};
use nyala_common::rpc::call_steps::{CallStep, CallSteps};
use nyala_common::rpc::{Call, MethodInfo, Reply, Service};
use nyala_common::security::acl::MethodRole;
use nyala_common::service_methods;
use nyala_common::wire::consensus as wire;
use nyala_common::wire::errors::{TabletError, TabletErrorCode};
use nyala_common::wire::schema;
use nyala_proto::kudu::NodeInstancePb;
use nyala_proto::kudu::app_status_pb::ErrorCode;
use nyala_proto::kudu::consensus::get_consensus_state_response_pb::TabletConsensusInfoPb;
use nyala_proto::kudu::consensus::replica_management_info_pb::ReplacementScheme;
use nyala_proto::kudu::consensus::{
    BulkChangeConfigRequestPb, ChangeConfigRequestPb, ChangeConfigResponsePb, ConsensusRequestPb,
    ConsensusResponsePb, ConsensusStatePb, GetConsensusStateRequestPb, GetConsensusStateResponsePb,
    GetLastOpIdRequestPb, GetLastOpIdResponsePb, GetNodeInstanceResponsePb, HeartbeatsRequestPb,
    HeartbeatsResponsePb, IncludeHealthReport, LeaderStepDownMode, LeaderStepDownRequestPb,
    LeaderStepDownResponsePb, OpIdType, ReplicaManagementInfoPb, RunLeaderElectionRequestPb,
    RunLeaderElectionResponsePb, StartTabletCopyRequestPb, StartTabletCopyResponsePb,
    UnsafeChangeConfigRequestPb, UnsafeChangeConfigResponsePb, VoteRequestPb, VoteResponsePb,
};
use nyala_proto::kudu::tserver::TabletServerErrorPb;

/// Owner of the replicas that a service speaks for.
pub trait ReplicaHost: Send + Sync + 'static {
    fn env(&self) -> &Env;
    fn clock(&self) -> &ServerClock;
    fn uuid(&self) -> Uuid;
    fn instance(&self) -> NodeInstancePb;
    /// Reserves memory for a leader's operations on a replica, where memory is tracked. The error gives the reason for
    /// a rejection.
    fn reserve_for_entries(
        &self,
        _replica: &ReplicaHandle,
        _entries: &[ReplicateEntry],
    ) -> Result<Option<Reservation>, String> {
        Ok(None)
    }
    /// Finds a replica by its tablet id; `TABLET_NOT_FOUND` if there is none.
    fn find(&self, tablet: &[u8]) -> Result<HostedReplica, TabletError>;
    /// Returns each requested running replica's view of its group; an error if a master's only replica is still being
    /// opened.
    fn states(
        &self,
        with_health: bool,
        is_requested: &dyn Fn(TabletId) -> bool,
    ) -> Result<Vec<(TabletId, ConsensusStatePb)>, TabletError>;
    /// Votes for a tombstone, from its persisted vote.
    fn vote_of_tombstone(
        self: Arc<Self>,
        request: VoteRequest,
    ) -> BoxFuture<'static, Result<VoteResponse, TabletError>>;
    /// Starts to copy a tablet from another server.
    fn start_copy(
        self: Arc<Self>,
        request: StartTabletCopyRequestPb,
    ) -> BoxFuture<'static, Result<(), TabletError>>;
}

/// Replica that a request names.
pub enum HostedReplica {
    Running(ReplicaHandle),
    /// The data is deleted; the last operation is remembered.
    Tombstoned(Option<OpId>),
    /// The tablet is being copied and votes by the tombstone that was there before. Other calls get this error.
    Copying(TabletError),
    /// The replica cannot serve calls, now or permanently.
    Not(TabletError),
}

impl HostedReplica {
    fn running(self, tablet: &[u8]) -> Result<ReplicaHandle, TabletError> {
        match self {
            HostedReplica::Running(replica) => Ok(replica),
            HostedReplica::Tombstoned(_) => {
                let message = format!("Tablet {} is tombstoned", String::from_utf8_lossy(tablet));
                Err(TabletError::new(TabletErrorCode::TabletNotFound, ErrorCode::NotFound, message))
            }
            HostedReplica::Copying(error) | HostedReplica::Not(error) => Err(error),
        }
    }
}

/// A request that names a tablet in its first or its second field, as text.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct NamedTablet {
    #[prost(bytes = "bytes", optional, tag = "1")]
    pub first: Option<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "2")]
    pub second: Option<Bytes>,
}

service_methods! {
    fn dispatch(service: ConsensusService, call) of METHODS;
    "UpdateConsensus" { role: MethodRole::Service, audited: false, tracked: false, required: &[1, 2, 3] } =>
        Reply::message(&update(&*service.0, &call, call.decode()?).await),
    "Heartbeats" { role: MethodRole::Service, audited: false, tracked: false, required: &[] } =>
        Reply::message(&heartbeats(&*service.0, &call, call.decode()?).await),
    "RequestConsensusVote" { role: MethodRole::Service, audited: false, tracked: false, required: &[1, 2, 3, 4] } =>
        Reply::message(&vote(&service.0, &call.decode()?).await),
    "GetNodeInstance" { role: MethodRole::Service, audited: false, tracked: false, required: &[] } =>
        Reply::message(&GetNodeInstanceResponsePb { node_instance: service.0.instance() }),
    "GetConsensusState" { role: MethodRole::Service, audited: false, tracked: false, required: &[] } =>
        Reply::message(&consensus_states(&*service.0, &call.decode()?)),
    "GetLastOpId" { role: MethodRole::Service, audited: false, tracked: false, required: &[1] } =>
        Reply::message(&last_op_id(&*service.0, &call.decode()?).await),
    "RunLeaderElection" { role: MethodRole::Service, audited: true, tracked: false, required: &[1] } => {
        let error = error_pb(&call, run_election(&*service.0, &call.decode()?));
        Reply::message(&RunLeaderElectionResponsePb { error })
    },
    "LeaderStepDown" { role: MethodRole::Service, audited: true, tracked: false, required: &[1] } => {
        let error = error_pb(&call, step_down(&*service.0, &call.decode()?).await);
        Reply::message(&LeaderStepDownResponsePb { error })
    },
    "ChangeConfig" { role: MethodRole::Service, audited: true, tracked: false, required: &[1] } => {
        let response = change_config(&*service.0, &call.decode()?).await;
        note_error(&call, response.error.as_ref());
        Reply::message(&response)
    },
    "BulkChangeConfig" { role: MethodRole::SuperuserOrService, audited: true, tracked: false, required: &[2] } => {
        let response = bulk_change_config(&*service.0, &call.decode()?).await;
        note_error(&call, response.error.as_ref());
        Reply::message(&response)
    },
    "UnsafeChangeConfig" {
        role: MethodRole::SuperuserOrService, audited: true, tracked: false, required: &[2, 3, 4],
    } => {
        let error = error_pb(&call, unsafe_config(&*service.0, call.decode()?).await);
        Reply::message(&UnsafeChangeConfigResponsePb { error })
    },
    "StartTabletCopy" { role: MethodRole::Service, audited: true, tracked: false, required: &[1, 2, 3] } => {
        let error = error_pb(&call, start_copy(&service.0, call.decode()?).await);
        Reply::message(&StartTabletCopyResponsePb { error })
    },
}

fn error_pb(call: &Call, result: Result<(), TabletError>) -> Option<TabletServerErrorPb> {
    let error = result.err().map(|error| error.to_pb());
    note_error(call, error.as_ref());
    error
}

/// Notes the error of a response for the audit log.
pub(crate) fn note_error(call: &Call, error: Option<&TabletServerErrorPb>) {
    if let Some(error) = error {
        call.note_failed(error.status.message());
    }
}

/// The consensus service of one server.
pub struct ConsensusService(pub Arc<dyn ReplicaHost>);

impl Service for ConsensusService {
    fn name(&self) -> &'static str {
        super::raft_transport::SERVICE
    }

    fn features(&self) -> &'static [u32] {
        &[]
    }

    fn methods(&self) -> &'static [MethodInfo] {
        METHODS
    }

    fn subject(&self, method: &str, body: &Bytes) -> Option<String> {
        let request = NamedTablet::decode(body.clone()).ok()?;
        let tablet = match method {
            "BulkChangeConfig" | "UnsafeChangeConfig" => request.second,
            _ => request.first,
        };
        tablet.map(|tablet| String::from_utf8_lossy(&tablet).into_owned())
    }

    /// Small updates end at once if their replicas are idle and do not sync their logs.
    fn begins_on_connection(&self, method: &str) -> bool {
        matches!(method, "UpdateConsensus" | "Heartbeats")
    }

    fn call(self: Arc<Self>, call: Call) -> BoxFuture<'static, Reply> {
        // A call only waits for a replica's loop, so it needs no slot, and heartbeats must not wait for one.
        call.release_slot();
        dispatch(self, call)
    }
}

/// Returns an error if the request is meant for another server.
pub fn check_destination(uuid: Uuid, dest_uuid: Option<&Bytes>) -> Result<(), TabletError> {
    let uuid = uuid.to_string();
    match dest_uuid {
        Some(dest) if dest.as_ref() != uuid.as_bytes() => Err(TabletError::new(
            TabletErrorCode::WrongServerUuid,
            ErrorCode::InvalidArgument,
            format!("this is server {uuid}, not {}", String::from_utf8_lossy(dest)),
        )),
        _ => Ok(()),
    }
}

fn find(host: &dyn ReplicaHost, dest: Option<&Bytes>, tablet: &[u8]) -> Result<ReplicaHandle, TabletError> {
    check_destination(host.uuid(), dest)?;
    host.find(tablet)?.running(tablet)
}

// Calls between replicas.

async fn update(host: &dyn ReplicaHost, call: &Call, pb: ConsensusRequestPb) -> ConsensusResponsePb {
    match begin_update(host, pb, &call.sidecars, Some(&call.steps)) {
        Ok((replica, pending)) => match pending.answer().await {
            Ok(response) => wire::update_response_to_pb(&response),
            Err(error) => wire::update_refused(host.uuid(), &replica_error(&replica, &error)),
        },
        Err(error) => wire::update_refused(host.uuid(), &error),
    }
}

/// Posts an update to the replica it is for. From here on this server issues no timestamp that the leader has issued.
fn begin_update(
    host: &dyn ReplicaHost,
    pb: ConsensusRequestPb,
    sidecars: &[Bytes],
    steps: Option<&Arc<CallSteps>>,
) -> Result<(ReplicaHandle, PendingUpdate), TabletError> {
    let replica = find(host, pb.dest_uuid.as_ref(), pb.tablet_id.as_bytes())?;
    let request = wire::update_from_pb(pb, sidecars)?;
    let reservation = match &request.entries[..] {
        [] => None,
        entries => host.reserve_for_entries(&replica, entries).map_err(|why| {
            TabletError::new(TabletErrorCode::Throttled, ErrorCode::ServiceUnavailable, why)
        })?,
    };
    let newest = request.entries.iter().map(|entry| entry.timestamp).chain(request.safe_time).max();
    host.clock().update(newest.unwrap_or(Timestamp::MIN))?;
    if let Some(steps) = steps {
        steps.mark_now(CallStep::Prepared);
    }
    let pending = replica.begin_update(request, reservation, steps);
    let pending = pending.map_err(|error| replica_error(&replica, &error))?;
    Ok((replica, pending))
}

/// Returns the error of a replica that could not take a call: permanent if it failed, retryable if it is stopping.
fn replica_error(replica: &ReplicaHandle, error: &Error) -> TabletError {
    let code = match replica.failure() {
        Some(_) => TabletErrorCode::TabletFailed,
        None => TabletErrorCode::TabletNotRunning,
    };
    TabletError::of(code, error)
}

/// Share of the caller's remaining time, as a divisor, that one replica may delay the replies of the others.
const HEARTBEAT_PATIENCE_SHARE: u32 = 2;

async fn heartbeats(host: &dyn ReplicaHost, call: &Call, pb: HeartbeatsRequestPb) -> HeartbeatsResponsePb {
    if let Err(error) = check_destination(host.uuid(), pb.dest_uuid.as_ref()) {
        return HeartbeatsResponsePb { responses: Vec::new(), error: Some(error.to_pb()) };
    }
    let begin = |update| begin_update(host, update, &[], None);
    let begun: Vec<Result<_, TabletError>> = pb.updates.into_iter().map(begin).collect();
    let patience =
        call.deadline.map_or(Duration::MAX, |end| end.since(call.received)) / HEARTBEAT_PATIENCE_SHARE;
    let until = call.received.after(patience);
    let mut responses = Vec::with_capacity(begun.len());
    for begun in begun {
        responses.push(match begun {
            Ok((replica, pending)) => {
                let left = until.since(host.env().now().mono);
                match host.env().timeout(left, pending.answer()).await {
                    Some(Ok(response)) => wire::update_response_to_pb(&response),
                    Some(Err(error)) => wire::update_refused(host.uuid(), &replica_error(&replica, &error)),
                    None => wire::update_refused(host.uuid(), &slow()),
                }
            }
            Err(error) => wire::update_refused(host.uuid(), &error),
        });
    }
    HeartbeatsResponsePb { responses, error: None }
}

fn slow() -> TabletError {
    let message = "the replica did not reply in time";
    TabletError::new(TabletErrorCode::TabletNotRunning, ErrorCode::ServiceUnavailable, message)
}

async fn vote(host: &Arc<dyn ReplicaHost>, pb: &VoteRequestPb) -> VoteResponsePb {
    match try_vote(host, pb).await {
        Ok(response) => wire::vote_response_to_pb(&response),
        Err(error) => VoteResponsePb {
            responder_uuid: Some(schema::id_bytes(&host.uuid())),
            error: Some(error.to_pb()),
            ..Default::default()
        },
    }
}

async fn try_vote(host: &Arc<dyn ReplicaHost>, pb: &VoteRequestPb) -> Result<VoteResponse, TabletError> {
    check_destination(host.uuid(), pb.dest_uuid.as_ref())?;
    let request = wire::vote_from_pb(pb)?;
    match host.find(pb.tablet_id.as_bytes())? {
        HostedReplica::Running(replica) => {
            replica.vote(request).await.map_err(|error| replica_error(&replica, &error))
        }
        HostedReplica::Tombstoned(_) | HostedReplica::Copying(_) => {
            host.clone().vote_of_tombstone(request).await
        }
        HostedReplica::Not(error) => Err(error),
    }
}

async fn start_copy(
    host: &Arc<dyn ReplicaHost>,
    request: StartTabletCopyRequestPb,
) -> Result<(), TabletError> {
    check_destination(host.uuid(), request.dest_uuid.as_ref())?;
    host.clone().start_copy(request).await
}

// Calls of masters and tools.

/// Returns the error for a request that only a leader can serve.
fn leader_error(replica: &ReplicaHandle, error: &Error) -> TabletError {
    if replica.failure().is_some() || replica.is_stopping() {
        return replica_error(replica, error);
    }
    let code = match error.kind {
        ErrorKind::NotLeader => TabletErrorCode::NotTheLeader,
        ErrorKind::Invalid | ErrorKind::AlreadyPresent | ErrorKind::NotFound => {
            TabletErrorCode::InvalidConfig
        }
        _ => TabletErrorCode::UnknownError,
    };
    TabletError::of(code, error)
}

fn run_election(host: &dyn ReplicaHost, request: &RunLeaderElectionRequestPb) -> Result<(), TabletError> {
    find(host, request.dest_uuid.as_ref(), &request.tablet_id)?.elect(true);
    Ok(())
}

async fn step_down(host: &dyn ReplicaHost, request: &LeaderStepDownRequestPb) -> Result<(), TabletError> {
    let replica = find(host, request.dest_uuid.as_ref(), &request.tablet_id)?;
    let abrupt = request.mode.is_none_or(|mode| mode == LeaderStepDownMode::Abrupt as i32);
    let to = match &request.new_leader_uuid {
        Some(_) if abrupt => {
            return Err(Error::invalid("an abrupt step-down cannot name the next leader").into());
        }
        Some(uuid) => Some(Uuid::parse(uuid).map_err(|error| error.context("new_leader_uuid"))?),
        None => None,
    };
    let status = replica.status();
    if status.role != Role::Leader {
        let message =
            format!("Not currently leader: this replica is a {:?} of term {}", status.role, status.term);
        return Err(TabletError::new(TabletErrorCode::NotTheLeader, ErrorCode::IllegalState, message));
    }
    if status.active_config().voter_count() <= 1 {
        let message = "this replica is the only voter: no other can lead";
        return Err(TabletError::new(TabletErrorCode::UnknownError, ErrorCode::IllegalState, message));
    }
    replica.step_down(to, abrupt).await.map_err(|error| match error.kind {
        ErrorKind::Invalid => error.into(),
        _ => leader_error(&replica, &error),
    })
}

async fn change_config(host: &dyn ReplicaHost, request: &ChangeConfigRequestPb) -> ChangeConfigResponsePb {
    let parts = [(request.r#type, request.server.as_ref())];
    let change = wire::change(parts, request.cas_config_opid_index);
    change_of(host, request.dest_uuid.as_ref(), &request.tablet_id, change).await
}

async fn bulk_change_config(
    host: &dyn ReplicaHost,
    request: &BulkChangeConfigRequestPb,
) -> ChangeConfigResponsePb {
    let parts = request.config_changes.iter().map(|item| (item.r#type, item.peer.as_ref()));
    let change = wire::change(parts, request.cas_config_opid_index);
    change_of(host, request.dest_uuid.as_ref(), &request.tablet_id, change).await
}

async fn change_of(
    host: &dyn ReplicaHost,
    dest: Option<&Bytes>,
    tablet: &[u8],
    change: engine::error::Result<ConfigChange>,
) -> ChangeConfigResponsePb {
    let changed = match (find(host, dest, tablet), change) {
        (Ok(replica), Ok(change)) => run_change(&replica, change).await,
        (Err(error), _) => Err(error),
        (_, Err(error)) => Err(TabletError::of(TabletErrorCode::InvalidConfig, &error)),
    };
    match changed {
        Ok(()) => ChangeConfigResponsePb { timestamp: Some(host.clock().now().0), ..Default::default() },
        Err(error) => ChangeConfigResponsePb { error: Some(error.to_pb()), ..Default::default() },
    }
}

async fn run_change(replica: &ReplicaHandle, change: ConfigChange) -> Result<(), TabletError> {
    let cas = change.cas_opid_index;
    let Err(error) = replica.change_config(change).await else { return Ok(()) };
    let committed = replica.status().committed_config.kudu_index();
    if error.kind == ErrorKind::Invalid && cas.is_some_and(|cas| cas != committed) {
        // The same code as above: the caller retries after it has read the configuration again.
        return Err(TabletError::new(TabletErrorCode::CasFailed, ErrorCode::IllegalState, error.message));
    }
    Err(leader_error(replica, &error))
}

async fn unsafe_config(
    host: &dyn ReplicaHost,
    request: UnsafeChangeConfigRequestPb,
) -> Result<(), TabletError> {
    let replica = find(host, request.dest_uuid.as_ref(), &request.tablet_id)?;
    let caller = String::from_utf8_lossy(&request.caller_id).into_owned();
    let invalid = |error: Error| TabletError::of(TabletErrorCode::InvalidConfig, &error);
    let voters = wire::kept_from_pb(&request.new_config).map_err(invalid)?;
    tracing::warn!(tablet = %replica.tablet().tablet, caller, ?voters, "a configuration is put in force by hand");
    replica.unsafe_config(voters, caller).await.map_err(|error| match error.kind {
        ErrorKind::Invalid => invalid(error),
        _ => leader_error(&replica, &error),
    })
}

fn consensus_states(
    host: &dyn ReplicaHost,
    request: &GetConsensusStateRequestPb,
) -> GetConsensusStateResponsePb {
    let with_health = request.report_health == Some(IncludeHealthReport::IncludeHealthReport as i32);
    let ids: BTreeSet<TabletId> =
        request.tablet_ids.iter().filter_map(|requested| Uuid::parse(requested).ok()).collect();
    // Unknown tablets are left out; an empty list of ids means all tablets.
    let is_requested = |id: TabletId| request.tablet_ids.is_empty() || ids.contains(&id);
    let states = check_destination(host.uuid(), request.dest_uuid.as_ref())
        .and_then(|()| host.states(with_health, &is_requested));
    let states = match states {
        Ok(states) => states,
        Err(error) => {
            return GetConsensusStateResponsePb { error: Some(error.to_pb()), ..Default::default() };
        }
    };
    let info = |(id, state): (TabletId, ConsensusStatePb)| TabletConsensusInfoPb {
        tablet_id: schema::id_bytes(&id),
        cstate: Some(state),
    };
    GetConsensusStateResponsePb {
        tablets: states.into_iter().map(info).collect(),
        replica_management_info: Some(replica_management()),
        error: None,
    }
}

/// Returns the replica management scheme: a replacement is ready before the old replica is removed. Masters reject
/// servers with another scheme.
pub fn replica_management() -> ReplicaManagementInfoPb {
    let scheme = ReplacementScheme::PrepareReplacementBeforeEviction;
    ReplicaManagementInfoPb { replacement_scheme: Some(scheme as i32) }
}

async fn last_op_id(host: &dyn ReplicaHost, request: &GetLastOpIdRequestPb) -> GetLastOpIdResponsePb {
    match try_last_op_id(host, request).await {
        Ok(op) => GetLastOpIdResponsePb { opid: Some(wire::op_id_to_pb(op)), error: None },
        Err(error) => GetLastOpIdResponsePb { opid: None, error: Some(error.to_pb()) },
    }
}

async fn try_last_op_id(host: &dyn ReplicaHost, request: &GetLastOpIdRequestPb) -> Result<OpId, TabletError> {
    check_destination(host.uuid(), request.dest_uuid.as_ref())?;
    let replica = match host.find(&request.tablet_id)? {
        HostedReplica::Tombstoned(last) => {
            return last
                .ok_or_else(|| Error::not_found("the tombstone does not know its last operation").into());
        }
        other => other.running(&request.tablet_id)?,
    };
    let status = replica.status_now().await.map_err(|error| replica_error(&replica, &error))?;
    match request.opid_type() {
        OpIdType::ReceivedOpid => Ok(status.last),
        OpIdType::CommittedOpid => Ok(status.committed),
        OpIdType::UnknownOpidType => Err(Error::invalid("no such type of operation id").into()),
    }
}
