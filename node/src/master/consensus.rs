//! `kudu.consensus.ConsensusService` of a master: who replicates the system tablet.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use engine::error::Error;
use engine::ids::Uuid;

use super::convert::id;
use crate::env::BoxFuture;
use crate::proto::kudu::consensus::get_consensus_state_response_pb::TabletConsensusInfoPb;
use crate::proto::kudu::consensus::raft_peer_pb::MemberType;
use crate::proto::kudu::consensus::replica_management_info_pb::ReplacementScheme;
use crate::proto::kudu::consensus::{
    ConsensusStatePb, GetConsensusStateRequestPb, GetConsensusStateResponsePb, RaftConfigPb, RaftPeerPb,
    ReplicaManagementInfoPb,
};
use crate::rpc::{Call, MethodInfo, Reply, Service};
use crate::server::ServerStatus;
use crate::wire::status::{TabletError, TabletErrorCode};

pub(super) struct ConsensusService {
    pub(super) status: Arc<ServerStatus>,
    /// The term in which this master leads the system tablet; empty until that is loaded.
    pub(super) term: Arc<OnceLock<i64>>,
}

static METHODS: &[MethodInfo] = &[MethodInfo { name: "GetConsensusState", tracked: false, required: &[] }];

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
        Box::pin(async move {
            match call.decode() {
                Ok(request) => Reply::message(&self.get_consensus_state(request)),
                Err(reply) => reply,
            }
        })
    }
}

impl ConsensusService {
    fn get_consensus_state(&self, request: GetConsensusStateRequestPb) -> GetConsensusStateResponsePb {
        let mut response = GetConsensusStateResponsePb::default();
        let uuid = self.status.uuid();
        let wrong = request.dest_uuid.filter(|dest| *dest != id(uuid));
        if let Some(dest) = wrong {
            let dest = String::from_utf8_lossy(&dest);
            let error = Error::invalid(format!("this is server {uuid}, not {dest}"));
            response.error = Some(TabletError::of(TabletErrorCode::WrongServerUuid, &error).to_pb());
            return response;
        }
        let system = Bytes::from(Uuid::ZERO.to_string());
        let asked = request.tablet_ids.is_empty() || request.tablet_ids.contains(&system);
        if let (true, Some(term)) = (asked, self.term.get()) {
            let cstate = Some(self.state(*term));
            response.tablets.push(TabletConsensusInfoPb { tablet_id: system, cstate });
        }
        let scheme = ReplacementScheme::PrepareReplacementBeforeEviction as i32;
        response.replica_management_info = Some(ReplicaManagementInfoPb { replacement_scheme: Some(scheme) });
        response
    }

    /// This master alone, leading.
    fn state(&self, term: i64) -> ConsensusStatePb {
        let peer = RaftPeerPb {
            permanent_uuid: Some(id(self.status.uuid())),
            member_type: Some(MemberType::Voter as i32),
            last_known_addr: self.status.registration().rpc_addresses.into_iter().next(),
            attrs: None,
            health_report: None,
        };
        let committed_config = RaftConfigPb {
            opid_index: Some(-1),
            obsolete_local: None,
            unsafe_config_change: None,
            peers: vec![peer],
        };
        ConsensusStatePb {
            current_term: term,
            leader_uuid: Some(self.status.uuid().to_string()),
            committed_config,
            pending_config: None,
        }
    }
}
