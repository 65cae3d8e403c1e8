//! Administration: lists servers and replicas, moves replicas.

use std::time::Duration;

use bytes::Bytes;
use engine::error::{Error, ErrorKind, Result};
use engine::ids::{PeerId, TabletId, Uuid};
use engine::time::Instant;

use super::Client;
use super::backoff::Backoff;
use super::master_calls::error_from_rpc;
use nyala_common::rpc::client::CallOptions;
use nyala_common::wire::errors::error_from_status;
use nyala_proto::kudu::consensus::bulk_change_config_request_pb::ConfigChangeItemPb;
use nyala_proto::kudu::consensus::raft_peer_pb::{MemberType, Role};
use nyala_proto::kudu::consensus::{
    BulkChangeConfigRequestPb, ChangeConfigResponsePb, ChangeConfigType, ConsensusStatePb,
    GetConsensusStateRequestPb, GetConsensusStateResponsePb, LeaderStepDownMode, LeaderStepDownRequestPb,
    LeaderStepDownResponsePb, RaftPeerAttrsPb, RaftPeerPb,
};
use nyala_proto::kudu::master::list_tablet_servers_response_pb::Entry as ListedServerPb;
use nyala_proto::kudu::master::{
    GetTableLocationsRequestPb, GetTableLocationsResponsePb, GetTabletLocationsRequestPb,
    GetTabletLocationsResponsePb, ListTabletServersRequestPb, ListTabletServersResponsePb, ReplicaTypeFilter,
    TServerStatePb, TableIdentifierPb, TabletLocationsPb, TsInfoPb,
};
use nyala_proto::kudu::tserver::TabletServerErrorPb;

const CONSENSUS_SERVICE: &str = "kudu.consensus.ConsensusService";

/// Interval between two checks of a move.
const MOVE_CHECK_INTERVAL: Duration = Duration::from_millis(200);

/// Time without a heartbeat after which a move to a server is given up.
const TARGET_SILENCE_MAX: Duration = Duration::from_secs(15);

/// A tablet server, as known to the leader master.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerInfo {
    pub id: PeerId,
    /// Empty for a server that has not registered since the masters started: they know only its maintenance mode.
    pub host: String,
    pub port: u16,
    /// True if the web port speaks HTTPS.
    pub https: bool,
    pub location: Option<String>,
    /// Time since the last heartbeat; [`Duration::MAX`] for a server that has not registered.
    pub silent_for: Duration,
    /// True in maintenance mode: the server gets no new replicas.
    pub maintenance: bool,
}

impl ServerInfo {
    /// Returns true if the server has an address at which it can be called.
    pub fn is_registered(&self) -> bool {
        !self.host.is_empty()
    }
}

/// One replica of a tablet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplicaInfo {
    pub server: PeerId,
    /// RPC address of the server, `host:port`.
    pub address: String,
    pub voter: bool,
    pub leader: bool,
}

/// A tablet with all its replicas, including learners.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TabletReplicas {
    pub id: TabletId,
    pub replicas: Vec<ReplicaInfo>,
}

impl Client {
    /// Lists the tablet servers known to the leader master, also those in maintenance mode that have not registered.
    pub async fn servers(&self) -> Result<Vec<ServerInfo>> {
        let request = ListTabletServersRequestPb { include_states: Some(true) };
        let deadline = self.deadline();
        let reply: ListTabletServersResponsePb =
            self.shared.masters.call("ListTabletServers", &request, deadline, &[]).await?;
        reply.servers.iter().filter_map(|entry| server_info(entry).transpose()).collect()
    }

    /// Lists all tablets of a table with their replicas.
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

    /// Returns one tablet with its replicas.
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
            (None, None) => Err(Error::not_found(format!("tablet {tablet} does not exist"))),
        }
    }

    /// Moves a replica: the new replica is added as a learner, caught up and promoted, then the old one is evicted.
    ///
    /// Waits at most for the time `patience` until the old replica has left the configuration. Fails earlier if the new
    /// one leaves it first: a replica that cannot be copied is removed, and the masters choose another server. After an
    /// error the cluster may still complete the move.
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
            let wait = MOVE_CHECK_INTERVAL.min(deadline.since(self.env().now().mono));
            if wait.is_zero() {
                let message = "the replica did not move in time; the cluster continues the move";
                return Err(Error::not_ready(message));
            }
            self.env().sleep(wait).await;
            self.check_target(to).await?;
            let seen = self.tablet_replicas(tablet, deadline).await?;
            let find = |server| seen.replicas.iter().find(|replica| replica.server == server);
            let arrived = find(to).is_some_and(|replica| replica.voter);
            match find(from) {
                None if arrived => return Ok(()),
                None if find(to).is_none() => {
                    let what = "the new replica was removed, and the masters chose another server for it";
                    return Err(Error::not_ready(format!("tablet {tablet}, server {to}: {what}")));
                }
                // A leader is not evicted: it must transfer leadership first.
                Some(old) if old.leader && arrived => self.step_down(tablet, old, to, deadline).await,
                _ => {}
            }
        }
    }

    /// Fails if the target of a move does not send heartbeats: the move would wait for it in vain.
    async fn check_target(&self, to: PeerId) -> Result<()> {
        let servers = self.servers().await?;
        match servers.iter().find(|server| server.id == to) {
            Some(server) if server.silent_for <= TARGET_SILENCE_MAX => Ok(()),
            _ => Err(Error::not_ready(format!(
                "server {to}: no heartbeat (limit {} s); the masters replace the new replica",
                TARGET_SILENCE_MAX.as_secs()
            ))),
        }
    }

    /// Adds the new replica and marks the old one for replacement, in one configuration change.
    async fn begin_move(&self, tablet: TabletId, from: PeerId, to: PeerId, deadline: Instant) -> Result<()> {
        let servers = self.servers().await?;
        let target = servers.iter().find(|server| server.id == to && server.is_registered());
        let target = target.ok_or_else(|| Error::not_found(format!("tablet server {to} does not exist")))?;
        let mut backoff = Backoff::new(deadline);
        let mut attempted = false;
        loop {
            let seen = self.tablet_replicas(tablet, deadline).await?;
            if attempted && seen.replicas.iter().any(|replica| replica.server == to) {
                return Ok(());
            }
            let result = match seen.replicas.iter().find(|replica| replica.leader) {
                Some(leader) => self.change_members(tablet, leader, from, target, deadline).await,
                None => Err(Error::not_ready(format!("tablet {tablet} has no leader"))),
            };
            match result {
                Ok(()) => return Ok(()),
                // A leader that did not reply may have committed the change. It then rejects a second one, and the
                // masters soon report the new replica.
                Err(error) if attempted || is_transient(&error) => {
                    attempted = true;
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
            last_known_addr: Some(nyala_proto::kudu::HostPortPb {
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

    /// Requests a leadership transfer. On failure the caller retries at its next check.
    async fn step_down(&self, tablet: TabletId, leader: &ReplicaInfo, to: PeerId, deadline: Instant) {
        let request = LeaderStepDownRequestPb {
            dest_uuid: Some(Bytes::from(leader.server.to_string())),
            tablet_id: Bytes::from(tablet.to_string()),
            mode: Some(LeaderStepDownMode::Graceful as i32),
            new_leader_uuid: Some(Bytes::from(to.to_string())),
        };
        let response: Result<LeaderStepDownResponsePb> =
            self.consensus_call(leader, "LeaderStepDown", &request, deadline).await;
        if let Err(error) = response.and_then(|reply| checked(reply.error.as_ref())) {
            tracing::info!(%error, %tablet, "the leader does not transfer its leadership yet");
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

/// Returns a server of a list; `None` for one that can neither be called nor be in maintenance mode.
fn server_info(entry: &ListedServerPb) -> Result<Option<ServerInfo>> {
    let maintenance = entry.state() == TServerStatePb::MaintenanceMode;
    let registered = entry.registration.as_ref();
    let address = registered.and_then(|registration| registration.rpc_addresses.first());
    if address.is_none() && !maintenance {
        return Ok(None);
    }
    let silent_for = match address {
        Some(_) => Duration::from_millis(entry.millis_since_heartbeat().max(0) as u64),
        None => Duration::MAX,
    };
    Ok(Some(ServerInfo {
        id: Uuid::parse(&entry.instance_id.permanent_uuid)?,
        host: address.map(|address| address.host.clone()).unwrap_or_default(),
        port: address.map_or(0, |address| address.port as u16),
        https: registered.is_some_and(|registration| registration.https_enabled()),
        location: entry.location.clone(),
        silent_for,
        maintenance,
    }))
}

/// Returns true if the same request may succeed later.
fn is_transient(error: &Error) -> bool {
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

#[cfg(test)]
mod tests {
    use super::*;
    use nyala_proto::kudu::{HostPortPb, NodeInstancePb, ServerRegistrationPb};

    fn listed(registered: bool, state: TServerStatePb) -> Option<ServerInfo> {
        let rpc_addresses = vec![HostPortPb { host: "ts".to_string(), port: 7050 }];
        let registration = ServerRegistrationPb { rpc_addresses, ..ServerRegistrationPb::default() };
        let permanent_uuid = Bytes::from(Uuid([7; 16]).to_string());
        server_info(&ListedServerPb {
            instance_id: NodeInstancePb { permanent_uuid, instance_seqno: 0 },
            registration: registered.then_some(registration),
            millis_since_heartbeat: registered.then_some(5),
            location: None,
            state: Some(state as i32),
        })
        .expect("a legal id")
    }

    #[test]
    fn a_server_in_maintenance_mode_is_listed_before_it_registers() {
        let shown = |server: Option<ServerInfo>| {
            server.map(|server| (server.is_registered(), server.maintenance, server.silent_for))
        };
        let (none, maintenance) = (TServerStatePb::None, TServerStatePb::MaintenanceMode);
        let soon = Duration::from_millis(5);
        assert_eq!(shown(listed(true, none)), Some((true, false, soon)));
        assert_eq!(shown(listed(true, maintenance)), Some((true, true, soon)));
        assert_eq!(shown(listed(false, maintenance)), Some((false, true, Duration::MAX)));
        assert_eq!(shown(listed(false, none)), None);
    }
}
