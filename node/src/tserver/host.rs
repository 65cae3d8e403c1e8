//! A tablet server's replicas as its group members, its masters and tools see them.

use std::sync::Arc;

use engine::ids::{TabletId, Uuid};
use engine::memory::Promise;
use engine::raft::message::{VoteRequest, VoteResponse};
use engine::replica::writes_of;
use engine::wal::Replicate;
use prost::Message;

use super::consensus::{Host, Hosted};
use super::copy;
use super::entry::{EntryState, TabletEntry};
use super::replica::ReplicaHandle;
use super::server::Server;
use crate::env::{BoxFuture, Env};
use crate::proto::kudu::NodeInstancePb;
use crate::proto::kudu::consensus::raft_peer_pb::Role;
use crate::proto::kudu::consensus::{ConsensusStatePb, RaftConfigPb, StartTabletCopyRequestPb};
use crate::server_clock::ServerClock;
use crate::wire::consensus as wire;
use crate::wire::status::TabletError;

impl Host for Server {
    fn env(&self) -> &Env {
        &self.env
    }

    fn clock(&self) -> &ServerClock {
        &self.clock
    }

    fn uuid(&self) -> Uuid {
        Server::uuid(self)
    }

    fn instance(&self) -> NodeInstancePb {
        self.common.status.node_instance()
    }

    fn make_room(&self, replica: &ReplicaHandle, entries: &[Replicate]) -> Result<Option<Promise>, String> {
        let writes = writes_of(entries.iter().map(|entry| (entry.kind, &entry.payload)));
        self.memory.admit_operations(replica.tablet(), &writes)
    }

    fn find(&self, tablet: &[u8]) -> Result<Hosted, TabletError> {
        let entry = self.tablets.find(tablet)?;
        Ok(match (entry.running(), entry.state()) {
            (Ok(replica), _) => Hosted::Running(replica),
            (Err(_), EntryState::Tombstoned(last)) => Hosted::Tombstoned(last),
            (Err(error), EntryState::Copying) => Hosted::Copying(error),
            (Err(error), _) => Hosted::Not(error),
        })
    }

    fn states(&self, with_health: bool) -> Vec<(TabletId, ConsensusStatePb)> {
        let running = self.tablets.all().into_iter().filter(|entry| entry.running().is_ok());
        running.map(|entry| (entry.id, state(self.uuid(), &entry, with_health))).collect()
    }

    fn vote_of_tombstone(
        self: Arc<Self>,
        request: VoteRequest,
    ) -> BoxFuture<'static, Result<VoteResponse, TabletError>> {
        Box::pin(async move {
            let entry = self.tablets.find(request.tablet.to_string().as_bytes())?;
            self.tablets.vote(&entry, &request).await
        })
    }

    fn start_copy(
        self: Arc<Self>,
        request: StartTabletCopyRequestPb,
    ) -> BoxFuture<'static, Result<(), TabletError>> {
        Box::pin(copy::start(self, request))
    }
}

/// A replica's view of its group. One that does not run knows the members it was made with.
pub fn state(me: Uuid, entry: &TabletEntry, with_health: bool) -> ConsensusStatePb {
    match entry.state() {
        EntryState::Running(replica) if replica.failure().is_none() => {
            wire::state_to_pb(&replica.status(), me, with_health)
        }
        _ => ConsensusStatePb { committed_config: committed_config(entry), ..Default::default() },
    }
}

/// The members of a replica's group, as far as it knows them to be agreed.
pub fn committed_config(entry: &TabletEntry) -> RaftConfigPb {
    if let EntryState::Running(replica) = entry.state() {
        return wire::config_to_pb(&replica.status().committed_config);
    }
    let mut config = RaftConfigPb::decode(&*entry.meta.peers).unwrap_or_default();
    config.opid_index = Some(config.opid_index.unwrap_or(-1));
    config
}

/// What a replica is in its group.
pub fn role(entry: &TabletEntry) -> Role {
    match entry.state() {
        EntryState::Running(replica) => wire::role_to_pb(replica.status().role),
        _ => Role::NonParticipant,
    }
}
