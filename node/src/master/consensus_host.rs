//! The system tablet as other masters and Kudu's tools reach it: this master's host of the ConsensusService.

use std::sync::{Arc, OnceLock};

use engine::error::Error;
use engine::ids::{TabletId, Uuid};
use engine::raft::interface::{VoteRequest, VoteResponse};

use super::join::JoinState;
use super::system_tablet::TABLET_ID;
use crate::hosting::consensus_service::{HostedReplica, ReplicaHost};
use crate::hosting::copy::CopyOrder;
use crate::hosting::replica::ReplicaHandle;
use crate::server::ServerStatus;
use crate::server_clock::ServerClock;
use nyala_common::env::{BoxFuture, Env};
use nyala_common::wire::consensus as wire;
use nyala_common::wire::errors::{TabletError, TabletErrorCode};
use nyala_proto::kudu::NodeInstancePb;
use nyala_proto::kudu::app_status_pb::ErrorCode;
use nyala_proto::kudu::consensus::{ConsensusStatePb, StartTabletCopyRequestPb};

pub(super) struct MasterConsensusHost {
    pub(super) env: Env,
    pub(super) clock: ServerClock,
    pub(super) status: Arc<ServerStatus>,
    /// Replica of the system tablet; empty until it is open.
    pub(super) replica: Arc<OnceLock<ReplicaHandle>>,
    pub(super) joining: Arc<JoinState>,
}

impl ReplicaHost for MasterConsensusHost {
    fn env(&self) -> &Env {
        &self.env
    }

    fn clock(&self) -> &ServerClock {
        &self.clock
    }

    fn uuid(&self) -> Uuid {
        self.status.uuid()
    }

    fn instance(&self) -> NodeInstancePb {
        self.status.node_instance()
    }

    fn find(&self, tablet: &[u8]) -> Result<HostedReplica, TabletError> {
        if Uuid::parse(tablet).ok() != Some(TABLET_ID) {
            return Err(not_found(tablet));
        }
        Ok(match self.replica.get() {
            Some(replica) => HostedReplica::Running(replica.clone()),
            None => HostedReplica::Not(self.joining.absent()),
        })
    }

    fn states(
        &self,
        with_health: bool,
        is_requested: &dyn Fn(TabletId) -> bool,
    ) -> Result<Vec<(TabletId, ConsensusStatePb)>, TabletError> {
        let state = |replica: &ReplicaHandle| {
            (TABLET_ID, wire::state_to_pb(&replica.status(), self.uuid(), with_health))
        };
        match self.replica.get() {
            Some(replica) if is_requested(TABLET_ID) => Ok(vec![state(replica)]),
            Some(_) => Ok(Vec::new()),
            // Other masters start a new cluster if all say that they have no tablet: an error keeps them waiting.
            None => self.joining.check_absent().map(|()| Vec::new()),
        }
    }

    fn vote_of_tombstone(
        self: Arc<Self>,
        _request: VoteRequest,
    ) -> BoxFuture<'static, Result<VoteResponse, TabletError>> {
        let error = Error::not_found("the system tablet is never tombstoned");
        Box::pin(async move { Err(TabletError::of(TabletErrorCode::TabletNotFound, &error)) })
    }

    fn start_copy(
        self: Arc<Self>,
        request: StartTabletCopyRequestPb,
    ) -> BoxFuture<'static, Result<(), TabletError>> {
        Box::pin(async move {
            let order = CopyOrder::of(&request)?;
            if order.tablet != TABLET_ID {
                return Err(not_found(&request.tablet_id));
            }
            self.joining.order(order)
        })
    }
}

fn not_found(tablet: &[u8]) -> TabletError {
    let message = format!("Tablet not found: {}", String::from_utf8_lossy(tablet));
    TabletError::new(TabletErrorCode::TabletNotFound, ErrorCode::NotFound, message)
}
