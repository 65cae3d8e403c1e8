//! Replication: protobuf ↔ the engine's messages, configurations and states.
//!
//! The messages are Kudu's. A log entry is sent as the log's own record (kind and payload): small records inside the
//! message, large ones as sidecars of the call, so that large payloads are never copied.
//!
//! Invariant: ids, numbers and sidecars from the network are checked before use.

use bytes::Bytes;
use engine::error::{Error, Result};
use engine::ids::{OpId, TabletId, Uuid};
use engine::raft::interface::{
    PeerHealth, UpdateError, UpdateErrorKind, UpdateRequest, UpdateResponse, VoteError, VoteErrorKind,
    VoteRequest, VoteResponse, kind,
};
use engine::raft::{ConfigChange, ConfigChangePart, MemberKind, Peer, RaftConfig, RaftStatus, Role};
use engine::time::Timestamp;
use engine::wal::ReplicateEntry;

use super::errors::{TabletError, TabletErrorCode, app_status};
use super::schema::id_bytes;
use nyala_proto::kudu::HostPortPb;
use nyala_proto::kudu::app_status_pb::ErrorCode;
use nyala_proto::kudu::consensus::consensus_error_pb::Code;
use nyala_proto::kudu::consensus::health_report_pb::HealthStatus;
use nyala_proto::kudu::consensus::{
    ChangeConfigType, ConsensusErrorPb, ConsensusRequestPb, ConsensusResponsePb, ConsensusStatePb,
    ConsensusStatusPb, HealthReportPb, OpId as OpIdPb, OperationType, RaftConfigPb, RaftPeerAttrsPb,
    RaftPeerPb, ReplicateMsg, VoteRequestPb, VoteResponsePb, raft_peer_pb,
};
use nyala_proto::kudu::tserver::TabletServerErrorPb;

/// Maximum size in bytes of a record inside the message. Below it a copy costs less than a sidecar.
const INLINE_BYTES_MAX: usize = 4 << 10;
/// Maximum number of members of a received configuration. The protocol allows 7 replicas, plus members that are being
/// added or removed.
const PEERS_MAX: usize = 32;

fn id(bytes: &[u8], name: &str) -> Result<Uuid> {
    Uuid::parse(bytes).map_err(|error| error.context(name))
}

fn number(value: i64, name: &str) -> Result<u64> {
    u64::try_from(value).map_err(|_| Error::invalid(format!("{name} is {value}, below zero")))
}

pub fn op_id_to_pb(op: OpId) -> OpIdPb {
    OpIdPb { term: op.term as i64, index: op.index as i64 }
}

pub fn op_id_from_pb(pb: &OpIdPb) -> Result<OpId> {
    Ok(OpId { term: number(pb.term, "a term")?, index: number(pb.index, "an index")? })
}

fn optional_op_id(pb: Option<&OpIdPb>) -> Result<OpId> {
    pb.map_or(Ok(OpId::MIN), op_id_from_pb)
}

// Configurations.

/// Converts a member, without its health.
pub fn peer_to_pb(peer: &Peer) -> RaftPeerPb {
    let member = match peer.member {
        MemberKind::Voter => raft_peer_pb::MemberType::Voter,
        MemberKind::NonVoter => raft_peer_pb::MemberType::NonVoter,
    };
    let attrs =
        RaftPeerAttrsPb { promote: peer.promote.then_some(true), replace: peer.replace.then_some(true) };
    RaftPeerPb {
        permanent_uuid: Some(id_bytes(&peer.id)),
        member_type: Some(member as i32),
        last_known_addr: Some(HostPortPb { host: peer.host.clone(), port: peer.port.into() }),
        attrs: (peer.promote || peer.replace).then_some(attrs),
        health_report: None,
    }
}

/// Converts a member. A missing type means voter, a missing address an empty one.
pub fn peer_from_pb(pb: &RaftPeerPb) -> Result<Peer> {
    let (host, port) = match &pb.last_known_addr {
        Some(addr) => (addr.host.clone(), port(addr.port)?),
        None => (String::new(), 0),
    };
    let attrs = pb.attrs.unwrap_or_default();
    Ok(Peer {
        id: id(pb.permanent_uuid.as_deref().unwrap_or_default(), "a member's permanent_uuid")?,
        member: member(pb.member_type)?.unwrap_or(MemberKind::Voter),
        host,
        port,
        promote: attrs.promote(),
        replace: attrs.replace(),
    })
}

fn port(number: u32) -> Result<u16> {
    u16::try_from(number).map_err(|_| Error::invalid(format!("invalid port of a member ({number})")))
}

fn member(number: Option<i32>) -> Result<Option<MemberKind>> {
    let Some(number) = number else { return Ok(None) };
    match raft_peer_pb::MemberType::try_from(number) {
        Ok(raft_peer_pb::MemberType::Voter) => Ok(Some(MemberKind::Voter)),
        Ok(raft_peer_pb::MemberType::NonVoter) => Ok(Some(MemberKind::NonVoter)),
        _ => Err(Error::invalid(format!("invalid member type ({number})"))),
    }
}

pub fn config_to_pb(config: &RaftConfig) -> RaftConfigPb {
    RaftConfigPb {
        opid_index: Some(config.kudu_index()),
        peers: config.peers.iter().map(peer_to_pb).collect(),
        ..Default::default()
    }
}

/// Converts a configuration without validating it; see [`RaftConfig::check`].
pub fn config_from_pb(pb: &RaftConfigPb) -> Result<RaftConfig> {
    if pb.peers.len() > PEERS_MAX {
        return Err(too_many(pb));
    }
    Ok(RaftConfig {
        opid_index: pb.opid_index.and_then(|index| u64::try_from(index).ok()),
        peers: pb.peers.iter().map(peer_from_pb).collect::<Result<_>>()?,
    })
}

/// Returns the servers that an UnsafeChangeConfig keeps. Tools send only their ids.
pub fn kept_from_pb(pb: &RaftConfigPb) -> Result<Vec<Uuid>> {
    if pb.peers.len() > PEERS_MAX {
        return Err(too_many(pb));
    }
    pb.peers.iter().map(peer_id).collect()
}

fn too_many(pb: &RaftConfigPb) -> Error {
    Error::invalid(format!("too many members in a configuration ({}, limit {PEERS_MAX})", pb.peers.len()))
}

/// Converts one change of one member, from ChangeConfig or BulkChangeConfig.
pub fn change_part(kind: Option<i32>, peer: Option<&RaftPeerPb>) -> Result<ConfigChangePart> {
    let Some(peer) = peer else { return Err(Error::invalid("a configuration change names no server")) };
    let kind = kind.map(ChangeConfigType::try_from);
    match kind {
        Some(Ok(ChangeConfigType::AddPeer)) => {
            if peer.member_type.is_none() {
                return Err(Error::invalid("a server to add has no member type; set VOTER or NON_VOTER"));
            }
            peer_from_pb(peer).map(ConfigChangePart::Add)
        }
        Some(Ok(ChangeConfigType::RemovePeer)) => peer_id(peer).map(ConfigChangePart::Remove),
        Some(Ok(ChangeConfigType::ModifyPeer)) => {
            let attrs = peer.attrs.unwrap_or_default();
            Ok(ConfigChangePart::Modify {
                id: peer_id(peer)?,
                member: member(peer.member_type)?,
                promote: attrs.promote,
                replace: attrs.replace,
            })
        }
        _ => Err(Error::invalid("a configuration change must add, remove or modify a server")),
    }
}

fn peer_id(peer: &RaftPeerPb) -> Result<Uuid> {
    id(peer.permanent_uuid.as_deref().unwrap_or_default(), "the server's permanent_uuid")
}

/// Converts the change requested by a BulkChangeConfig.
pub fn change<'a>(
    parts: impl IntoIterator<Item = (Option<i32>, Option<&'a RaftPeerPb>)>,
    cas_opid_index: Option<i64>,
) -> Result<ConfigChange> {
    let parts: Vec<ConfigChangePart> =
        parts.into_iter().map(|(kind, peer)| change_part(kind, peer)).collect::<Result<_>>()?;
    if parts.is_empty() || parts.len() > PEERS_MAX {
        return Err(Error::invalid(format!(
            "invalid number of parts in a configuration change ({})",
            parts.len()
        )));
    }
    Ok(ConfigChange { parts, cas_opid_index })
}

// States.

pub fn role_to_pb(role: Role) -> raft_peer_pb::Role {
    match role {
        Role::Leader => raft_peer_pb::Role::Leader,
        Role::Follower | Role::Candidate => raft_peer_pb::Role::Follower,
        Role::Learner => raft_peer_pb::Role::Learner,
        Role::NonParticipant => raft_peer_pb::Role::NonParticipant,
    }
}

fn health_to_pb(health: PeerHealth) -> HealthReportPb {
    let status = match health {
        PeerHealth::Unknown => HealthStatus::Unknown,
        PeerHealth::Healthy => HealthStatus::Healthy,
        PeerHealth::Failed => HealthStatus::Failed,
        PeerHealth::FailedUnrecoverable => HealthStatus::FailedUnrecoverable,
    };
    HealthReportPb { overall_health: Some(status as i32) }
}

/// Returns the consensus state of the replica `me`. Only leaders report health.
pub fn state_to_pb(status: &RaftStatus, me: Uuid, with_health: bool) -> ConsensusStatePb {
    let with_health = with_health && status.role == Role::Leader;
    let config = |config: &RaftConfig| {
        let mut pb = config_to_pb(config);
        for (peer, pb) in config.peers.iter().zip(&mut pb.peers).filter(|_| with_health) {
            let known = status.peers.iter().find(|known| known.id == peer.id);
            let health = if peer.id == me {
                PeerHealth::Healthy
            } else {
                known.map_or(PeerHealth::Unknown, |p| p.health)
            };
            pb.health_report = Some(health_to_pb(health));
        }
        pb
    };
    let mut committed_config = config(&status.committed_config);
    committed_config.nyala_opid_term = status.committed_position.term.map(|term| term as i64);
    ConsensusStatePb {
        current_term: status.term as i64,
        leader_uuid: status.leader.map(|leader| leader.to_string()),
        committed_config,
        pending_config: status.pending_config.as_ref().map(config),
    }
}

// Updates.

fn op_type(record_kind: u8) -> OperationType {
    match record_kind {
        kind::WRITE => OperationType::WriteOp,
        kind::ALTER => OperationType::AlterSchemaOp,
        kind::NO_OP => OperationType::NoOp,
        kind::CONFIG => OperationType::ChangeConfigOp,
        _ => OperationType::UnknownOp,
    }
}

/// Returns the message and its sidecars.
pub fn update_to_pb(request: UpdateRequest) -> (ConsensusRequestPb, Vec<Bytes>) {
    let mut sidecars = Vec::new();
    let ops = request.entries.into_iter().map(|entry| replicate_to_pb(entry, &mut sidecars)).collect();
    let pb = ConsensusRequestPb {
        dest_uuid: Some(id_bytes(&request.dest)),
        tablet_id: request.tablet.to_string(),
        caller_uuid: id_bytes(&request.caller),
        caller_term: request.term as i64,
        preceding_id: Some(op_id_to_pb(request.preceding)),
        committed_index: Some(request.committed as i64),
        ops,
        all_replicated_index: Some(request.all_replicated as i64),
        safe_timestamp: request.safe_time.map(|at| at.0),
        last_idx_appended_to_leader: None,
    };
    (pb, sidecars)
}

fn replicate_to_pb(entry: ReplicateEntry, sidecars: &mut Vec<Bytes>) -> ReplicateMsg {
    let mut pb = ReplicateMsg {
        id: op_id_to_pb(entry.op),
        timestamp: entry.timestamp.0,
        op_type: op_type(entry.kind) as i32,
        record_kind: Some(entry.kind.into()),
        record: None,
        record_sidecar: None,
    };
    if entry.payload.len() > INLINE_BYTES_MAX {
        pb.record_sidecar = Some(sidecars.len() as u32);
        sidecars.push(entry.payload);
    } else {
        pb.record = Some(entry.payload);
    }
    pb
}

/// Converts an update without copying payloads: they share the memory of the message or its sidecars.
pub fn update_from_pb(pb: ConsensusRequestPb, sidecars: &[Bytes]) -> Result<UpdateRequest> {
    Ok(UpdateRequest {
        tablet: id(pb.tablet_id.as_bytes(), "tablet_id")?,
        caller: id(&pb.caller_uuid, "caller_uuid")?,
        dest: id(pb.dest_uuid.as_deref().unwrap_or_default(), "dest_uuid")?,
        term: number(pb.caller_term, "caller_term")?,
        sent: 0,
        preceding: optional_op_id(pb.preceding_id.as_ref())?,
        committed: number(pb.committed_index(), "committed_index")?,
        all_replicated: number(pb.all_replicated_index(), "all_replicated_index")?,
        safe_time: pb.safe_timestamp.map(Timestamp),
        entries: pb.ops.into_iter().map(|op| replicate_from_pb(op, sidecars)).collect::<Result<_>>()?,
    })
}

fn replicate_from_pb(pb: ReplicateMsg, sidecars: &[Bytes]) -> Result<ReplicateEntry> {
    let op = op_id_from_pb(&pb.id)?;
    let payload = match (pb.record, pb.record_sidecar) {
        (Some(record), None) => record,
        (None, Some(at)) => sidecars.get(at as usize).cloned().ok_or_else(|| {
            Error::invalid(format!("operation {op} refers to sidecar {at} of {}", sidecars.len()))
        })?,
        _ => return Err(Error::invalid(format!("operation {op} must have either a record or a sidecar"))),
    };
    let kind = pb.record_kind.and_then(|kind| u8::try_from(kind).ok());
    let kind = kind.ok_or_else(|| Error::invalid(format!("operation {op} has no valid record kind")))?;
    Ok(ReplicateEntry { op, timestamp: Timestamp(pb.timestamp), kind, payload })
}

pub fn update_response_to_pb(response: &UpdateResponse) -> ConsensusResponsePb {
    let (consensus, tablet) = match &response.error {
        None => (None, None),
        Some(error) => split_update_error(error),
    };
    ConsensusResponsePb {
        responder_uuid: Some(id_bytes(&response.responder)),
        responder_term: Some(response.term as i64),
        status: Some(ConsensusStatusPb {
            last_received: op_id_to_pb(response.last_received),
            last_received_current_leader: Some(op_id_to_pb(response.last_received_current_leader)),
            last_committed_idx: Some(response.last_committed as i64),
            error: consensus,
        }),
        server_quiescing: None,
        error: tablet,
    }
}

/// Maps errors of consensus to the error of the consensus status, and errors of the server to the response's error.
fn split_update_error(error: &UpdateError) -> (Option<ConsensusErrorPb>, Option<TabletServerErrorPb>) {
    let message = error.message.as_str();
    let consensus = |code: Code| {
        let status = app_status(ErrorCode::IllegalState, message);
        (Some(ConsensusErrorPb { code: code as i32, status }), None)
    };
    let tablet = |code, status| (None, Some(TabletError::new(code, status, message).to_pb()));
    match error.kind {
        UpdateErrorKind::InvalidTerm => consensus(Code::InvalidTerm),
        UpdateErrorKind::PrecedingMismatch => consensus(Code::PrecedingEntryDidntMatch),
        UpdateErrorKind::CannotPrepare => consensus(Code::CannotPrepare),
        UpdateErrorKind::TabletNotFound => tablet(TabletErrorCode::TabletNotFound, ErrorCode::NotFound),
        UpdateErrorKind::TabletNotRunning => {
            tablet(TabletErrorCode::TabletNotRunning, ErrorCode::IllegalState)
        }
        UpdateErrorKind::TabletFailed => tablet(TabletErrorCode::TabletFailed, ErrorCode::IllegalState),
        UpdateErrorKind::WrongUuid => tablet(TabletErrorCode::WrongServerUuid, ErrorCode::InvalidArgument),
        UpdateErrorKind::Invalid => tablet(TabletErrorCode::UnknownError, ErrorCode::InvalidArgument),
    }
}

/// Converts a response. `dest` is the request's destination, used if the response names no responder.
pub fn update_response_from_pb(pb: &ConsensusResponsePb, dest: Uuid) -> Result<UpdateResponse> {
    let error = update_error(pb);
    let Some(status) = &pb.status else {
        let Some(error) = error else {
            return Err(Error::invalid("the response has neither status nor error"));
        };
        return Ok(UpdateResponse::refusal(dest, 0, error.kind, error.message));
    };
    Ok(UpdateResponse {
        responder: pb.responder_uuid.as_deref().map_or(Ok(dest), |uuid| id(uuid, "responder_uuid"))?,
        term: number(pb.responder_term(), "responder_term")?,
        last_received: op_id_from_pb(&status.last_received)?,
        last_received_current_leader: optional_op_id(status.last_received_current_leader.as_ref())?,
        last_committed: number(status.last_committed_idx(), "last_committed_idx")?,
        error,
    })
}

fn update_error(pb: &ConsensusResponsePb) -> Option<UpdateError> {
    if let Some(error) = &pb.error {
        let message = error.status.message.clone().unwrap_or_default();
        let kind = match TabletErrorCode::try_from(error.code) {
            Ok(TabletErrorCode::TabletNotFound) => UpdateErrorKind::TabletNotFound,
            Ok(TabletErrorCode::TabletFailed) => UpdateErrorKind::TabletFailed,
            Ok(TabletErrorCode::WrongServerUuid) => UpdateErrorKind::WrongUuid,
            Ok(TabletErrorCode::UnknownError) => UpdateErrorKind::Invalid,
            _ => UpdateErrorKind::TabletNotRunning,
        };
        return Some(UpdateError { kind, message });
    }
    let error = pb.status.as_ref()?.error.as_ref()?;
    let message = error.status.message.clone().unwrap_or_default();
    let kind = match Code::try_from(error.code) {
        Ok(Code::InvalidTerm) => UpdateErrorKind::InvalidTerm,
        Ok(Code::PrecedingEntryDidntMatch) => UpdateErrorKind::PrecedingMismatch,
        _ => UpdateErrorKind::CannotPrepare,
    };
    Some(UpdateError { kind, message })
}

/// Builds the response of a server without a running replica.
pub fn update_refused(responder: Uuid, error: &TabletError) -> ConsensusResponsePb {
    ConsensusResponsePb {
        responder_uuid: Some(id_bytes(&responder)),
        error: Some(error.to_pb()),
        ..Default::default()
    }
}

// Votes.

pub fn vote_to_pb(request: &VoteRequest) -> VoteRequestPb {
    VoteRequestPb {
        dest_uuid: Some(id_bytes(&request.dest)),
        tablet_id: request.tablet.to_string(),
        candidate_uuid: id_bytes(&request.candidate),
        candidate_term: request.term as i64,
        candidate_status: ConsensusStatusPb {
            last_received: op_id_to_pb(request.last_op),
            ..Default::default()
        },
        ignore_live_leader: Some(request.ignore_live_leader),
        is_pre_election: Some(request.is_pre_vote),
    }
}

pub fn vote_from_pb(pb: &VoteRequestPb) -> Result<VoteRequest> {
    Ok(VoteRequest {
        tablet: tablet_of(pb)?,
        candidate: id(&pb.candidate_uuid, "candidate_uuid")?,
        dest: id(pb.dest_uuid.as_deref().unwrap_or_default(), "dest_uuid")?,
        term: number(pb.candidate_term, "candidate_term")?,
        last_op: op_id_from_pb(&pb.candidate_status.last_received)?,
        is_pre_vote: pb.is_pre_election(),
        ignore_live_leader: pb.ignore_live_leader(),
    })
}

fn tablet_of(pb: &VoteRequestPb) -> Result<TabletId> {
    id(pb.tablet_id.as_bytes(), "tablet_id")
}

pub fn vote_response_to_pb(response: &VoteResponse) -> VoteResponsePb {
    let (consensus_error, error) = match &response.error {
        None => (None, None),
        Some(error) => split_vote_error(error),
    };
    VoteResponsePb {
        responder_uuid: Some(id_bytes(&response.responder)),
        responder_term: Some(response.term as i64),
        vote_granted: Some(response.granted),
        consensus_error,
        error,
    }
}

fn split_vote_error(error: &VoteError) -> (Option<ConsensusErrorPb>, Option<TabletServerErrorPb>) {
    let message = error.message.as_str();
    let consensus = |code: Code| {
        let status = app_status(ErrorCode::InvalidArgument, message);
        (Some(ConsensusErrorPb { code: code as i32, status }), None)
    };
    let tablet = |code, status| (None, Some(TabletError::new(code, status, message).to_pb()));
    match error.kind {
        VoteErrorKind::InvalidTerm => consensus(Code::InvalidTerm),
        VoteErrorKind::LastOpIdTooOld => consensus(Code::LastOpidTooOld),
        VoteErrorKind::AlreadyVoted => consensus(Code::AlreadyVoted),
        VoteErrorKind::LeaderIsAlive => consensus(Code::LeaderIsAlive),
        VoteErrorKind::LastOpIdUnknown => tablet(TabletErrorCode::TabletNotRunning, ErrorCode::IllegalState),
        VoteErrorKind::TabletNotFound => tablet(TabletErrorCode::TabletNotFound, ErrorCode::NotFound),
        VoteErrorKind::WrongUuid => tablet(TabletErrorCode::WrongServerUuid, ErrorCode::InvalidArgument),
        VoteErrorKind::Invalid => tablet(TabletErrorCode::UnknownError, ErrorCode::InvalidArgument),
    }
}

/// Converts a response. `dest` is the request's destination, used if the response names no responder.
pub fn vote_response_from_pb(pb: &VoteResponsePb, dest: Uuid) -> Result<VoteResponse> {
    Ok(VoteResponse {
        responder: pb.responder_uuid.as_deref().map_or(Ok(dest), |uuid| id(uuid, "responder_uuid"))?,
        term: number(pb.responder_term(), "responder_term")?,
        granted: pb.vote_granted() && pb.error.is_none() && pb.consensus_error.is_none(),
        error: vote_error(pb),
    })
}

fn vote_error(pb: &VoteResponsePb) -> Option<VoteError> {
    if let Some(error) = &pb.error {
        let message = error.status.message.clone().unwrap_or_default();
        let kind = match TabletErrorCode::try_from(error.code) {
            Ok(TabletErrorCode::TabletNotFound) => VoteErrorKind::TabletNotFound,
            Ok(TabletErrorCode::WrongServerUuid) => VoteErrorKind::WrongUuid,
            Ok(TabletErrorCode::TabletNotRunning) => VoteErrorKind::LastOpIdUnknown,
            _ => VoteErrorKind::Invalid,
        };
        return Some(VoteError { kind, message });
    }
    let error = pb.consensus_error.as_ref()?;
    let message = error.status.message.clone().unwrap_or_default();
    let kind = match Code::try_from(error.code) {
        Ok(Code::InvalidTerm) => VoteErrorKind::InvalidTerm,
        Ok(Code::LastOpidTooOld) => VoteErrorKind::LastOpIdTooOld,
        Ok(Code::AlreadyVoted) => VoteErrorKind::AlreadyVoted,
        Ok(Code::LeaderIsAlive) => VoteErrorKind::LeaderIsAlive,
        _ => VoteErrorKind::Invalid,
    };
    Some(VoteError { kind, message })
}

#[cfg(test)]
mod tests;
