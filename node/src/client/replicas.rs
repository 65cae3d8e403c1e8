//! For tools: the servers, every replica, and moving one.

use std::time::Duration;

use bytes::Bytes;
use engine::error::{Error, ErrorKind, Result};
use engine::ids::{PeerId, TabletId, Uuid};
use engine::time::Instant;

use super::Client;
use super::backoff::Backoff;
use super::masters::error_from_rpc;
use crate::proto::kudu::consensus::bulk_change_config_request_pb::ConfigChangeItemPb;
use crate::proto::kudu::consensus::raft_peer_pb::{MemberType, Role};
use crate::proto::kudu::consensus::{
    BulkChangeConfigRequestPb, ChangeConfigResponsePb, ChangeConfigType, ConsensusStatePb,
    GetConsensusStateRequestPb, GetConsensusStateResponsePb, LeaderStepDownMode, LeaderStepDownRequestPb,
    LeaderStepDownResponsePb, RaftPeerAttrsPb, RaftPeerPb,
};
use crate::proto::kudu::master::{
    GetTableLocationsRequestPb, GetTableLocationsResponsePb, GetTabletLocationsRequestPb,
    GetTabletLocationsResponsePb, ListTabletServersRequestPb, ListTabletServersResponsePb, ReplicaTypeFilter,
    TServerStatePb, TableIdentifierPb, TabletLocationsPb, TsInfoPb,
};
use crate::proto::kudu::tserver::TabletServerErrorPb;
use crate::rpc::client::CallOptions;
use crate::wire::status::error_from_status;

const CONSENSUS_SERVICE: &str = "kudu.consensus.ConsensusService";

/// How often a move is looked after.
const LOOK: Duration = Duration::from_millis(200);

/// A tablet server as the masters know it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerInfo {
    pub id: PeerId,
    pub host: String,
    pub port: u16,
    pub location: Option<String>,
    pub silent_for: Duration,
    /// It gets no new replicas.
    pub maintenance: bool,
}

/// One replica of a tablet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplicaInfo {
    pub server: PeerId,
    /// `host:port`
    pub address: String,
    pub voter: bool,
    pub leader: bool,
}

/// A tablet and all its replicas, those that do not vote included.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TabletReplicas {
    pub id: TabletId,
    pub replicas: Vec<ReplicaInfo>,
}

impl Client {
    /// The tablet servers that the leading master has heard of.
    pub async fn servers(&self) -> Result<Vec<ServerInfo>> {
        let request = ListTabletServersRequestPb { include_states: Some(true) };
        let deadline = self.deadline();
        let reply: ListTabletServersResponsePb =
            self.shared.masters.call("ListTabletServers", &request, deadline, &[]).await?;
        let mut servers = Vec::new();
        for entry in &reply.servers {
            let address = entry.registration.as_ref().and_then(|said| said.rpc_addresses.first());
            let Some(address) = address else { continue };
            servers.push(ServerInfo {
                id: Uuid::parse(&entry.instance_id.permanent_uuid)?,
                host: address.host.clone(),
                port: address.port as u16,
                location: entry.location.clone(),
                silent_for: Duration::from_millis(entry.millis_since_heartbeat().max(0) as u64),
                maintenance: entry.state() == TServerStatePb::MaintenanceMode,
            });
        }
        Ok(servers)
    }

    /// All tablets of a table with all their replicas.
    pub async fn replicas(&self, table: &str) -> Result<Vec<TabletReplicas>> {
        let request = GetTableLocationsRequestPb {
            table: TableIdentifierPb { table_id: None, table_name: Some(table.to_string()) },
            replica_type_filter: Some(ReplicaTypeFilter::AnyReplica as i32),
            intern_ts_infos_in_response: Some(true),
            ..Default::default()
        };
        let deadline = self.deadline();
        let reply: GetTableLocationsResponsePb =
            self.shared.masters.call("GetTableLocations", &request, deadline, &[]).await?;
        reply.tablet_locations.iter().map(|tablet| tablet_replicas(tablet, &reply.ts_infos)).collect()
    }

    /// One tablet with all its replicas.
    pub async fn tablet_replicas(&self, tablet: TabletId, deadline: Instant) -> Result<TabletReplicas> {
        let request = GetTabletLocationsRequestPb {
            tablet_ids: vec![Bytes::from(tablet.to_string())],
            replica_type_filter: Some(ReplicaTypeFilter::AnyReplica as i32),
            intern_ts_infos_in_response: Some(true),
        };
        let reply: GetTabletLocationsResponsePb =
            self.shared.masters.call("GetTabletLocations", &request, deadline, &[]).await?;
        match (reply.tablet_locations.first(), reply.errors.first()) {
            (Some(found), _) => tablet_replicas(found, &reply.ts_infos),
            (None, Some(error)) => Err(error_from_status(&error.status)),
            (None, None) => Err(Error::not_found(format!("there is no tablet {tablet}"))),
        }
    }

    /// Moves a replica: the new one is added and takes part when it has caught up, the old one then goes. Waits until
    /// it is gone from the tablet's configuration. What it began goes on if it fails half-way.
    pub async fn move_replica(
        &self,
        tablet: TabletId,
        from: PeerId,
        to: PeerId,
        patience: Duration,
    ) -> Result<()> {
        let deadline = self.env().now().mono.after(patience);
        self.begin_move(tablet, from, to, deadline).await?;
        loop {
            let wait = LOOK.min(deadline.since(self.env().now().mono));
            if wait.is_zero() {
                let message = "the replica did not move in time; the cluster goes on with it";
                return Err(Error::not_ready(message));
            }
            self.env().sleep(wait).await;
            let seen = self.tablet_replicas(tablet, deadline).await?;
            let find = |server| seen.replicas.iter().find(|replica| replica.server == server);
            let arrived = find(to).is_some_and(|replica| replica.voter);
            match find(from) {
                None if arrived => return Ok(()),
                // The leader is not evicted: it has to hand over first.
                Some(old) if old.leader && arrived => self.step_down(tablet, old, to, deadline).await,
                _ => {}
            }
        }
    }

    /// Adds the new replica and marks the old one, both in one change or none of them.
    async fn begin_move(&self, tablet: TabletId, from: PeerId, to: PeerId, deadline: Instant) -> Result<()> {
        let servers = self.servers().await?;
        let target = servers.iter().find(|server| server.id == to);
        let target = target.ok_or_else(|| Error::not_found(format!("there is no tablet server {to}")))?;
        let mut backoff = Backoff::new(deadline);
        let mut asked = false;
        loop {
            let seen = self.tablet_replicas(tablet, deadline).await?;
            if asked && seen.replicas.iter().any(|replica| replica.server == to) {
                return Ok(());
            }
            let result = match seen.replicas.iter().find(|replica| replica.leader) {
                Some(leader) => self.change_members(tablet, leader, from, target, deadline).await,
                None => Err(Error::not_ready(format!("tablet {tablet} has no leader"))),
            };
            match result {
                Ok(()) => return Ok(()),
                // A leader that did not answer may have made the change: it then refuses to make it again, and
                // the masters will soon know of it.
                Err(error) if asked || passes(&error) => {
                    asked = true;
                    backoff.failed(self.env(), "changing a tablet's replicas", error).await?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    async fn change_members(
        &self,
        tablet: TabletId,
        leader: &ReplicaInfo,
        from: PeerId,
        to: &ServerInfo,
        deadline: Instant,
    ) -> Result<()> {
        let state = self.consensus_state(tablet, leader, deadline).await?;
        let added = RaftPeerPb {
            permanent_uuid: Some(Bytes::from(to.id.to_string())),
            member_type: Some(MemberType::NonVoter as i32),
            last_known_addr: Some(crate::proto::kudu::HostPortPb {
                host: to.host.clone(),
                port: u32::from(to.port),
            }),
            attrs: Some(RaftPeerAttrsPb { promote: Some(true), replace: None }),
            ..RaftPeerPb::default()
        };
        let marked = RaftPeerPb {
            permanent_uuid: Some(Bytes::from(from.to_string())),
            attrs: Some(RaftPeerAttrsPb { promote: None, replace: Some(true) }),
            ..RaftPeerPb::default()
        };
        let item =
            |kind: ChangeConfigType, peer| ConfigChangeItemPb { r#type: Some(kind as i32), peer: Some(peer) };
        let request = BulkChangeConfigRequestPb {
            dest_uuid: Some(Bytes::from(leader.server.to_string())),
            tablet_id: Bytes::from(tablet.to_string()),
            config_changes: vec![
                item(ChangeConfigType::AddPeer, added),
                item(ChangeConfigType::ModifyPeer, marked),
            ],
            cas_config_opid_index: state.committed_config.opid_index,
        };
        let reply: ChangeConfigResponsePb =
            self.consensus_call(leader, "BulkChangeConfig", &request, deadline).await?;
        checked(reply.error.as_ref())
    }

    async fn consensus_state(
        &self,
        tablet: TabletId,
        at: &ReplicaInfo,
        deadline: Instant,
    ) -> Result<ConsensusStatePb> {
        let request = GetConsensusStateRequestPb {
            dest_uuid: Some(Bytes::from(at.server.to_string())),
            tablet_ids: vec![Bytes::from(tablet.to_string())],
            ..Default::default()
        };
        let reply: GetConsensusStateResponsePb =
            self.consensus_call(at, "GetConsensusState", &request, deadline).await?;
        checked(reply.error.as_ref())?;
        let state = reply.tablets.into_iter().find_map(|tablet| tablet.cstate);
        state.ok_or_else(|| Error::not_ready(format!("server {} does not have tablet {tablet}", at.server)))
    }

    /// Asks the leader to hand over. If it does not, it is asked again later.
    async fn step_down(&self, tablet: TabletId, leader: &ReplicaInfo, to: PeerId, deadline: Instant) {
        let request = LeaderStepDownRequestPb {
            dest_uuid: Some(Bytes::from(leader.server.to_string())),
            tablet_id: Bytes::from(tablet.to_string()),
            mode: Some(LeaderStepDownMode::Graceful as i32),
            new_leader_uuid: Some(Bytes::from(to.to_string())),
        };
        let asked: Result<LeaderStepDownResponsePb> =
            self.consensus_call(leader, "LeaderStepDown", &request, deadline).await;
        if let Err(error) = asked.and_then(|reply| checked(reply.error.as_ref())) {
            tracing::info!(%error, %tablet, "the leader does not hand over yet");
        }
    }

    async fn consensus_call<Req: prost::Message, Resp: prost::Message + Default>(
        &self,
        at: &ReplicaInfo,
        method: &str,
        request: &Req,
        deadline: Instant,
    ) -> Result<Resp> {
        let until = self.attempt_deadline(deadline);
        let server = self.server(&at.address);
        let called = server.call(CONSENSUS_SERVICE, method, request, until, CallOptions::default()).await;
        called.map(|response| response.message).map_err(|error| error_from_rpc(&error))
    }
}

/// Whether the same request may succeed later.
fn passes(error: &Error) -> bool {
    !matches!(error.kind, ErrorKind::Invalid | ErrorKind::NotFound | ErrorKind::Unsupported)
}

fn checked(error: Option<&TabletServerErrorPb>) -> Result<()> {
    error.map_or(Ok(()), |error| Err(error_from_status(&error.status)))
}

fn tablet_replicas(pb: &TabletLocationsPb, servers: &[TsInfoPb]) -> Result<TabletReplicas> {
    let id = Uuid::parse(&pb.tablet_id)?;
    let mut replicas = Vec::new();
    for interned in &pb.interned_replicas {
        let server = servers.get(interned.ts_info_idx as usize);
        let server = server.ok_or_else(|| Error::invalid(format!("tablet {id} names an unknown server")))?;
        let address = server.rpc_addresses.first().map(|addr| format!("{}:{}", addr.host, addr.port));
        let role = interned.role();
        replicas.push(ReplicaInfo {
            server: Uuid::parse(&server.permanent_uuid)?,
            address: address.unwrap_or_default(),
            voter: matches!(role, Role::Leader | Role::Follower),
            leader: role == Role::Leader,
        });
    }
    Ok(TabletReplicas { id, replicas })
}
