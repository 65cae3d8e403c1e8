//! `kudu.consensus.ConsensusService`, as far as a replica that is alone can answer.
//!
//! A tablet with one replica has one leader for ever: its only voter. Its configuration is the one it was created
//! with. Calls that need a second voter say so.

use std::sync::Arc;

use bytes::Bytes;
use engine::error::{Error, Result};
use engine::ids::OpId;
use engine::tablet::meta::TabletMeta;
use prost::Message;

use super::entry::{EntryState, TabletEntry};
use super::server::Server;
use crate::env::BoxFuture;
use crate::proto::kudu::app_status_pb::ErrorCode;
use crate::proto::kudu::consensus::get_consensus_state_response_pb::TabletConsensusInfoPb;
use crate::proto::kudu::consensus::replica_management_info_pb::ReplacementScheme;
use crate::proto::kudu::consensus::{
    BulkChangeConfigRequestPb, ChangeConfigRequestPb, ChangeConfigResponsePb, ConsensusStatePb,
    GetConsensusStateRequestPb, GetConsensusStateResponsePb, GetLastOpIdRequestPb, GetLastOpIdResponsePb,
    GetNodeInstanceResponsePb, LeaderStepDownRequestPb, LeaderStepDownResponsePb, OpId as OpIdPb,
    RaftConfigPb, ReplicaManagementInfoPb, RunLeaderElectionRequestPb, RunLeaderElectionResponsePb,
    raft_peer_pb,
};
use crate::rpc::{Call, MethodInfo, Reply, Service};
use crate::wire::convert;
use crate::wire::status::{TabletError, TabletErrorCode};

const fn method(name: &'static str, required: &'static [u32]) -> MethodInfo {
    MethodInfo { name, tracked: false, required }
}

static METHODS: [MethodInfo; 7] = [
    method("GetNodeInstance", &[]),
    method("GetConsensusState", &[]),
    method("GetLastOpId", &[1]),
    method("RunLeaderElection", &[1]),
    method("LeaderStepDown", &[1]),
    method("ChangeConfig", &[1]),
    method("BulkChangeConfig", &[2]),
];

/// The term of a replica that is alone: it was elected once.
const ONLY_TERM: i64 = 1;

/// The service of one server.
pub struct ConsensusService(pub Arc<Server>);

impl Service for ConsensusService {
    fn name(&self) -> &'static str {
        "kudu.consensus.ConsensusService"
    }

    fn features(&self) -> &'static [u32] {
        &[]
    }

    fn method(&self, name: &str) -> Option<&'static MethodInfo> {
        METHODS.iter().find(|method| method.name == name)
    }

    fn call(self: Arc<Self>, call: Call) -> BoxFuture<'static, Reply> {
        let reply = self.answer(&call).unwrap_or_else(|reply| reply);
        Box::pin(std::future::ready(reply))
    }
}

impl ConsensusService {
    fn answer(&self, call: &Call) -> std::result::Result<Reply, Reply> {
        let server = &*self.0;
        let error = |result: std::result::Result<(), TabletError>| result.err().map(|error| error.to_pb());
        Ok(match call.method {
            "GetConsensusState" => consensus_states(server, &call.decode()?),
            "GetLastOpId" => Reply::message(&last_op_id(server, &call.decode()?)),
            "RunLeaderElection" => {
                let request: RunLeaderElectionRequestPb = call.decode()?;
                let ran = find(server, request.dest_uuid.as_ref(), &request.tablet_id)
                    .and_then(|entry| entry.running().map(drop));
                Reply::message(&RunLeaderElectionResponsePb { error: error(ran) })
            }
            "LeaderStepDown" => {
                let request: LeaderStepDownRequestPb = call.decode()?;
                let refused = refuse_alone(server, request.dest_uuid.as_ref(), &request.tablet_id);
                Reply::message(&LeaderStepDownResponsePb { error: error(refused) })
            }
            "ChangeConfig" => {
                let request: ChangeConfigRequestPb = call.decode()?;
                refuse_change(server, request.dest_uuid.as_ref(), &request.tablet_id)
            }
            "BulkChangeConfig" => {
                let request: BulkChangeConfigRequestPb = call.decode()?;
                refuse_change(server, request.dest_uuid.as_ref(), &request.tablet_id)
            }
            _ => Reply::message(&GetNodeInstanceResponsePb {
                node_instance: server.common.status.node_instance(),
            }),
        })
    }
}

fn find(
    server: &Server,
    dest_uuid: Option<&Bytes>,
    tablet: &[u8],
) -> std::result::Result<Arc<TabletEntry>, TabletError> {
    server.check_destination(dest_uuid)?;
    server.tablets.find(tablet)
}

/// Leadership cannot go to anybody else.
fn refuse_alone(
    server: &Server,
    dest: Option<&Bytes>,
    tablet: &[u8],
) -> std::result::Result<(), TabletError> {
    find(server, dest, tablet)?.running()?;
    let what = "this replica is the only voter: nobody else can lead";
    Err(TabletError::new(TabletErrorCode::UnknownError, ErrorCode::IllegalState, what))
}

fn refuse_change(server: &Server, dest_uuid: Option<&Bytes>, tablet: &[u8]) -> Reply {
    let what = "changing a tablet's replicas is not supported: tablets have one replica";
    let refused = find(server, dest_uuid, tablet)
        .and_then(|entry| entry.running())
        .map_or_else(|error| error, |_| Error::unsupported(what).into());
    Reply::message(&ChangeConfigResponsePb { error: Some(refused.to_pb()), ..Default::default() })
}

fn consensus_states(server: &Server, request: &GetConsensusStateRequestPb) -> Reply {
    if let Err(error) = server.check_destination(request.dest_uuid.as_ref()) {
        return Reply::message(&GetConsensusStateResponsePb {
            error: Some(error.to_pb()),
            ..Default::default()
        });
    }
    // Tablets that are not known are left out; no ids mean all tablets.
    let entries = match request.tablet_ids.is_empty() {
        true => server.tablets.all(),
        false => request.tablet_ids.iter().filter_map(|id| server.tablets.find(id).ok()).collect(),
    };
    let info = |entry: &Arc<TabletEntry>| TabletConsensusInfoPb {
        tablet_id: convert::id_bytes(&entry.id),
        cstate: Some(state(server, entry)),
    };
    Reply::message(&GetConsensusStateResponsePb {
        tablets: entries.iter().map(info).collect(),
        replica_management_info: Some(replica_management()),
        error: None,
    })
}

/// How replicas are replaced: a new one is ready before the old one goes. Masters refuse servers that differ.
pub fn replica_management() -> ReplicaManagementInfoPb {
    let scheme = ReplacementScheme::PrepareReplacementBeforeEviction;
    ReplicaManagementInfoPb { replacement_scheme: Some(scheme as i32) }
}

/// A replica's view of its consensus.
pub fn state(server: &Server, entry: &TabletEntry) -> ConsensusStatePb {
    let leads = entry.running().is_ok();
    ConsensusStatePb {
        current_term: ONLY_TERM,
        leader_uuid: leads.then(|| server.uuid().to_string()),
        committed_config: config(entry),
        pending_config: None,
    }
}

/// The configuration a replica was created with. It counts as committed by the first operation.
pub fn config(entry: &TabletEntry) -> RaftConfigPb {
    let mut config = RaftConfigPb::decode(&*entry.meta.peers).unwrap_or_default();
    config.opid_index = Some(config.opid_index.unwrap_or(-1));
    config
}

/// `Unsupported` unless the configuration has exactly one voter.
pub fn check_config(meta: &TabletMeta) -> Result<()> {
    let config = RaftConfigPb::decode(&*meta.peers)
        .map_err(|error| Error::invalid(format!("the replicas' configuration cannot be decoded: {error}")))?;
    let voter = raft_peer_pb::MemberType::Voter as i32;
    let voters = config.peers.iter().filter(|peer| peer.member_type.unwrap_or(voter) == voter).count();
    if voters > 1 {
        let what = format!("a tablet with {voters} replicas is not supported: replication is not there yet");
        return Err(Error::unsupported(what));
    }
    Ok(())
}

fn last_op_id(server: &Server, request: &GetLastOpIdRequestPb) -> GetLastOpIdResponsePb {
    let found =
        find(server, request.dest_uuid.as_ref(), &request.tablet_id).and_then(|entry| match entry.state() {
            EntryState::Running(replica) => Ok(replica.last_op()),
            EntryState::Tombstoned(last) => Ok(last),
            _ => entry.running().map(|replica| replica.last_op()),
        });
    match found {
        Ok(last) => GetLastOpIdResponsePb { opid: Some(op_id_pb(last)), error: None },
        Err(error) => GetLastOpIdResponsePb { opid: None, error: Some(error.to_pb()) },
    }
}

fn op_id_pb(op: OpId) -> OpIdPb {
    OpIdPb { term: op.term as i64, index: op.index as i64 }
}
