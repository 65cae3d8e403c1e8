//! The system tablet as the other masters and Kudu's tools reach it: this master's side of the ConsensusService.

use std::sync::{Arc, OnceLock};

use engine::error::Error;
use engine::ids::{TabletId, Uuid};
use engine::raft::message::{VoteRequest, VoteResponse};

use super::joining::Joining;
use super::system::TABLET_ID;
use crate::env::{BoxFuture, Env};
use crate::proto::kudu::NodeInstancePb;
use crate::proto::kudu::app_status_pb::ErrorCode;
use crate::proto::kudu::consensus::{ConsensusStatePb, StartTabletCopyRequestPb};
use crate::server::ServerStatus;
use crate::server_clock::ServerClock;
use crate::tserver::consensus::{Host, Hosted};
use crate::tserver::copy::Order;
use crate::tserver::replica::ReplicaHandle;
use crate::wire::consensus as wire;
use crate::wire::status::{TabletError, TabletErrorCode};

pub(super) struct MasterHost {
    pub(super) env: Env,
    pub(super) clock: ServerClock,
    pub(super) status: Arc<ServerStatus>,
    /// Empty until the system tablet is open.
    pub(super) replica: Arc<OnceLock<ReplicaHandle>>,
    pub(super) joining: Arc<Joining>,
}

impl Host for MasterHost {
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

    fn find(&self, tablet: &[u8]) -> Result<Hosted, TabletError> {
        if Uuid::parse(tablet).ok() != Some(TABLET_ID) {
            return Err(not_found(tablet));
        }
        Ok(match self.replica.get() {
            Some(replica) => Hosted::Running(replica.clone()),
            None => Hosted::Not(self.joining.absent()),
        })
    }

    fn states(&self, with_health: bool) -> Vec<(TabletId, ConsensusStatePb)> {
        let state = |replica: &ReplicaHandle| {
            (TABLET_ID, wire::state_to_pb(&replica.status(), self.uuid(), with_health))
        };
        self.replica.get().map(state).into_iter().collect()
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
            let order = Order::of(&request)?;
            if order.tablet != TABLET_ID {
                return Err(not_found(&request.tablet_id));
            }
            self.joining.order(order)
        })
    }
}

fn not_found(tablet: &[u8]) -> TabletError {
    let what = format!("Tablet not found: {}", String::from_utf8_lossy(tablet));
    TabletError::new(TabletErrorCode::TabletNotFound, ErrorCode::NotFound, what)
}
