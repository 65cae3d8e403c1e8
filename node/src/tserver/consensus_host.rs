//! A tablet server's replicas, as the consensus service shows them to peers, masters and tools.

use std::sync::Arc;

use engine::ids::{TabletId, Uuid};
use engine::memory::Reservation;
use engine::raft::interface::{VoteRequest, VoteResponse};
use engine::replica::writes_of;
use engine::wal::ReplicateEntry;
use prost::Message;

use super::server::TabletServer;
use super::start_copy;
use crate::hosting::consensus_service::{HostedReplica, ReplicaHost};
use crate::hosting::replica::ReplicaHandle;
use crate::hosting::tablet_entry::{EntryState, TabletEntry};
use crate::server_clock::ServerClock;
use nyala_common::env::{BoxFuture, Env};
use nyala_common::wire::consensus as wire;
use nyala_common::wire::errors::TabletError;
use nyala_proto::kudu::NodeInstancePb;
use nyala_proto::kudu::consensus::raft_peer_pb::Role;
use nyala_proto::kudu::consensus::{ConsensusStatePb, RaftConfigPb, StartTabletCopyRequestPb};

impl ReplicaHost for TabletServer {
    fn env(&self) -> &Env {
        &self.env
    }

    fn clock(&self) -> &ServerClock {
        &self.clock
    }

    fn uuid(&self) -> Uuid {
        TabletServer::uuid(self)
    }

    fn instance(&self) -> NodeInstancePb {
        self.common.status.node_instance()
    }

    fn reserve_for_entries(
        &self,
        replica: &ReplicaHandle,
        entries: &[ReplicateEntry],
    ) -> Result<Option<Reservation>, String> {
        let entry = self.tablets.get(replica.tablet().tablet);
        if let Some(why) = entry.and_then(|entry| self.tablets.space().refuse_entries(&entry.data_dir.path)) {
            return Err(why);
        }
        let writes = writes_of(entries.iter().map(|entry| (entry.kind, &entry.payload)));
        self.memory.reserve_operations(replica.tablet(), &writes)
    }

    fn find(&self, tablet: &[u8]) -> Result<HostedReplica, TabletError> {
        let entry = self.tablets.find(tablet)?;
        Ok(match (entry.running(), entry.state()) {
            (Ok(replica), _) => HostedReplica::Running(replica),
            (Err(_), EntryState::Tombstoned(last)) => HostedReplica::Tombstoned(last),
            (Err(error), EntryState::Copying) => HostedReplica::Copying(error),
            (Err(error), _) => HostedReplica::Not(error),
        })
    }

    fn states(
        &self,
        with_health: bool,
        is_requested: &dyn Fn(TabletId) -> bool,
    ) -> Result<Vec<(TabletId, ConsensusStatePb)>, TabletError> {
        // One that may fail next is left out: the check of another damaged replica must not count on it.
        let is_shown = |entry: &Arc<TabletEntry>| {
            is_requested(entry.id) && entry.running().is_ok_and(|replica| !replica.is_checking_damage())
        };
        let running = self.tablets.all().into_iter().filter(is_shown);
        Ok(running.map(|entry| (entry.id, state(self.uuid(), &entry, with_health))).collect())
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
        Box::pin(start_copy::start(self, request))
    }
}

/// Returns a replica's view of its group. A replica that does not run reports the configuration it was created with.
pub(super) fn state(me: Uuid, entry: &TabletEntry, with_health: bool) -> ConsensusStatePb {
    match entry.state() {
        EntryState::Running(replica) if replica.failure().is_none() => {
            wire::state_to_pb(&replica.status(), me, with_health)
        }
        _ => ConsensusStatePb { committed_config: committed_config(entry), ..Default::default() },
    }
}

/// Returns the newest configuration that the replica knows to be committed.
pub(super) fn committed_config(entry: &TabletEntry) -> RaftConfigPb {
    if let EntryState::Running(replica) = entry.state() {
        return wire::config_to_pb(&replica.status().committed_config);
    }
    let mut config = RaftConfigPb::decode(&*entry.meta.peers).unwrap_or_default();
    config.opid_index = Some(config.opid_index.unwrap_or(-1));
    config
}

/// Returns the role of a replica in its group.
pub(super) fn role(entry: &TabletEntry) -> Role {
    match entry.state() {
        EntryState::Running(replica) => wire::role_to_pb(replica.status().role),
        _ => Role::NonParticipant,
    }
}
