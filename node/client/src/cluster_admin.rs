//! Administration of servers: states, flags, quiescing, checks; and tables that were dropped but can be recalled.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use engine::error::{Error, ErrorKind, Result};
use engine::ids::{OpId, PeerId, TabletId, Uuid};
use engine::time::Instant;
use futures_util::future::join_all;
use prost::Message;

use super::master_calls::{MASTER_SERVICE, error_from_rpc, with_port};
use super::replica_admin::{ReplicaInfo, TabletReplicas};
use super::{Client, TABLET_SERVICE, TableInfo};
use nyala_common::rpc::client::CallOptions;
use nyala_common::wire::consensus::op_id_from_pb;
use nyala_common::wire::errors::error_from_status;
use nyala_proto::kudu::HostPortPb;
use nyala_proto::kudu::consensus::raft_peer_pb::{MemberType, Role};
use nyala_proto::kudu::consensus::{
    ConsensusStatePb, GetConsensusStateRequestPb, GetConsensusStateResponsePb, GetLastOpIdRequestPb,
    GetLastOpIdResponsePb, LeaderStepDownMode, LeaderStepDownRequestPb, LeaderStepDownResponsePb,
    RaftConfigPb, RaftPeerPb, UnsafeChangeConfigRequestPb, UnsafeChangeConfigResponsePb,
};
use nyala_proto::kudu::master::change_t_server_state_request_pb::HandleMissingTs;
use nyala_proto::kudu::master::t_server_state_change_pb::StateChange;
use nyala_proto::kudu::master::{
    ChangeTServerStateRequestPb, ChangeTServerStateResponsePb, DeleteTableRequestPb, DeleteTableResponsePb,
    ListMastersRequestPb, ListMastersResponsePb, ListTablesRequestPb, ListTablesResponsePb,
    RecallDeletedTableRequestPb, RecallDeletedTableResponsePb, RemoveMasterRequestPb, RemoveMasterResponsePb,
    TServerStateChangePb, TableIdentifierPb, UnregisterTServerRequestPb, UnregisterTServerResponsePb,
};
use nyala_proto::kudu::server::set_flag_response_pb::Code;
use nyala_proto::kudu::server::{
    GetStatusRequestPb, GetStatusResponsePb, ServerClockRequestPb, ServerClockResponsePb, SetFlagRequestPb,
    SetFlagResponsePb,
};
use nyala_proto::kudu::tablet::{TabletDataState, TabletStatePb};
use nyala_proto::kudu::tserver::{
    ListTabletsRequestPb, ListTabletsResponsePb, QuiesceTabletServerRequestPb, QuiesceTabletServerResponsePb,
};

const ADMIN_SERVICE: &str = "kudu.tserver.TabletServerAdminService";
const GENERIC_SERVICE: &str = "kudu.server.GenericService";
const CONSENSUS_SERVICE: &str = "kudu.consensus.ConsensusService";

/// Time limit of a call that asks a server whether it replies.
const PROBE_TIMEOUT: Duration = Duration::from_secs(3);

/// A master, as the leader knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MasterInfo {
    pub id: Option<PeerId>,
    /// `host:port`; empty if the master does not reply.
    pub address: String,
    /// True if the web port speaks HTTPS.
    pub https: bool,
    pub leader: bool,
    /// False if the master replies and has no vote, as one that is new and still catches up.
    pub voter: bool,
    /// Reason that the master does not reply.
    pub error: Option<String>,
}

/// Identity of a server that replies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerStatus {
    pub id: PeerId,
    pub version: String,
    /// `host:port` of the web port, if it is open.
    pub web: Vec<String>,
}

/// State of a tablet server's leaderships and scanners.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuiescingStatus {
    /// True if the server transfers leadership of its tablets.
    pub quiescing: bool,
    pub leaders: u64,
    pub scanners: u64,
}

/// A replica, as its server describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalReplica {
    pub tablet: TabletId,
    pub table: String,
    /// Kudu's name of the state, e.g. `RUNNING`.
    pub state: &'static str,
    /// Kudu's name of the data's state, e.g. `TABLET_DATA_READY`.
    pub data_state: &'static str,
    pub running: bool,
    pub tombstoned: bool,
    /// Last error or status.
    pub message: String,
    pub disk_bytes: u64,
}

/// Raft state of a tablet, as one server knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RaftState {
    pub tablet: TabletId,
    pub term: i64,
    pub leader: Option<PeerId>,
    /// Index of the operation that committed the configuration.
    pub config_index: i64,
    /// True if a configuration change is in flight.
    pub pending: bool,
    pub voters: Vec<PeerId>,
    pub learners: Vec<PeerId>,
}

impl Client {
    /// Lists the masters known to the leader.
    pub async fn masters(&self) -> Result<Vec<MasterInfo>> {
        let reply: ListMastersResponsePb =
            self.shared.masters.call("ListMasters", &ListMastersRequestPb {}, self.deadline(), &[]).await?;
        let master = |entry: &nyala_proto::kudu::ServerEntryPb| {
            let instance = entry.instance_id.as_ref();
            let registered = entry.registration.as_ref();
            let address = registered.and_then(|registration| registration.rpc_addresses.first());
            MasterInfo {
                id: instance.and_then(|instance| Uuid::parse(&instance.permanent_uuid).ok()),
                address: address.map(|addr| format!("{}:{}", addr.host, addr.port)).unwrap_or_default(),
                https: registered.is_some_and(|registration| registration.https_enabled()),
                leader: entry.role() == Role::Leader,
                voter: entry.error.is_some()
                    || entry.member_type.is_none()
                    || entry.member_type() == MemberType::Voter,
                error: entry.error.as_ref().map(|status| error_from_status(status).message),
            }
        };
        Ok(reply.masters.iter().map(master).collect())
    }

    /// Asks the masters of the client's configuration whose addresses a list lacks. One that replies with the id of a
    /// listed master has another name there, and is left out.
    pub async fn unlisted_masters(&self, listed: &[MasterInfo]) -> Vec<(String, Result<ServerStatus>)> {
        let masters = self.config().masters.iter();
        let mut named: BTreeSet<String> = masters.map(|name| with_port(name)).collect();
        named.retain(|address| listed.iter().all(|master| master.address != *address));
        let asked = named.into_iter().map(|address| async move {
            let status = self.server_status(&address).await;
            (address, status)
        });
        let mut found = join_all(asked).await;
        let is_known = |id: PeerId| listed.iter().any(|master| master.id == Some(id));
        found.retain(|(_, status)| !status.as_ref().is_ok_and(|status| is_known(status.id)));
        found
    }

    /// Asks a server for its identity; fails after a few seconds if it does not reply.
    pub async fn server_status(&self, address: &str) -> Result<ServerStatus> {
        let reply: GetStatusResponsePb =
            self.admin_call(address, GENERIC_SERVICE, "GetStatus", &GetStatusRequestPb {}).await?;
        let version = reply.status.version_info.and_then(|info| info.version_string).unwrap_or_default();
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        // A port bound to all addresses is reached at that of the RPC port.
        let of = |name: &str| name.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_unspecified());
        let named = |at: &HostPortPb| format!("{}:{}", if of(&at.host) { host } else { &at.host }, at.port);
        let web = reply.status.bound_http_addresses.iter().map(named).collect();
        Ok(ServerStatus { id: Uuid::parse(&reply.status.node_instance.permanent_uuid)?, version, web })
    }

    /// Asks a server for its hybrid time; fails after a few seconds if it does not reply.
    pub async fn server_time(&self, address: &str) -> Result<u64> {
        let reply: ServerClockResponsePb =
            self.admin_call(address, GENERIC_SERVICE, "ServerClock", &ServerClockRequestPb {}).await?;
        reply.timestamp.ok_or_else(|| Error::invalid(format!("{address}: the response lacks a time")))
    }

    /// Switches a tablet server's maintenance mode, in which it gets no new replicas and its absence is no reason to
    /// replace its replicas.
    pub async fn set_maintenance(&self, server: PeerId, maintenance: bool) -> Result<()> {
        let change =
            if maintenance { StateChange::EnterMaintenanceMode } else { StateChange::ExitMaintenanceMode };
        let request = ChangeTServerStateRequestPb {
            change: Some(TServerStateChangePb {
                uuid: Some(server.to_string()),
                change: Some(change as i32),
            }),
            handle_missing_tserver: Some(HandleMissingTs::DontAllowMissingTserver as i32),
        };
        let _: ChangeTServerStateResponsePb =
            self.shared.masters.call("ChangeTServerState", &request, self.deadline(), &[]).await?;
        Ok(())
    }

    /// Makes all masters forget a tablet server; `force` also one that is alive. Fails if a master does not reply,
    /// after the others have forgotten it. After a failure it can be repeated: a server that the leader does not know
    /// was forgotten before.
    pub async fn unregister_server(&self, server: PeerId, force: bool) -> Result<()> {
        let masters = self.masters().await?.into_iter();
        let (replying, silent): (Vec<_>, Vec<_>) = masters.partition(|master| master.error.is_none());
        let (leaders, followers): (Vec<_>, Vec<_>) = replying.into_iter().partition(|master| master.leader);
        let [leader] = &leaders[..] else {
            let message = format!("masters: {} lead; retry when one does", leaders.len());
            return Err(Error::not_ready(message));
        };
        // Order: the leader decides, then the others forget what they know from heartbeats. They are not asked whether
        // the server is alive: each had its last heartbeat at another time.
        match self.unregister_at(leader, server, force).await {
            Err(error) if error.kind == ErrorKind::NotFound => {}
            unregistered => unregistered?,
        }
        let asked = followers.iter().map(|master| self.unregister_at(master, server, true));
        let failures = join_all(asked).await.into_iter().filter_map(Result::err).map(|error| error.message);
        let unasked = silent.iter().map(no_reply);
        let failures: Vec<String> = failures.chain(unasked).collect();
        match failures.is_empty() {
            true => Ok(()),
            false => Err(Error::not_ready(format!(
                "server {server}: not all masters have forgotten it ({}); repeat the command, with this id, when they \
                 reply",
                failures.join("; ")
            ))),
        }
    }

    async fn unregister_at(&self, master: &MasterInfo, server: PeerId, force: bool) -> Result<()> {
        let request = UnregisterTServerRequestPb {
            uuid: Some(server.to_string()),
            force_unregister_live_tserver: Some(force),
        };
        let reply: UnregisterTServerResponsePb =
            self.admin_call(&master.address, MASTER_SERVICE, "UnregisterTServer", &request).await?;
        match &reply.error {
            Some(error) => Err(error_from_status(&error.status).context(&master.address)),
            None => Ok(()),
        }
    }

    /// Takes a master out of the masters' configuration. The leader itself cannot be removed.
    pub async fn remove_master(&self, master: PeerId) -> Result<()> {
        let request = RemoveMasterRequestPb { rpc_addr: None, master_uuid: Some(master.to_string()) };
        let _: RemoveMasterResponsePb =
            self.shared.masters.call("RemoveMaster", &request, self.deadline(), &[]).await?;
        Ok(())
    }

    /// Returns whether a tablet server is quiescing; switches it first if `quiesce` is given.
    pub async fn quiesce(&self, address: &str, quiesce: Option<bool>) -> Result<QuiescingStatus> {
        let request = QuiesceTabletServerRequestPb { quiesce, return_stats: Some(true) };
        let reply: QuiesceTabletServerResponsePb =
            self.admin_call(address, ADMIN_SERVICE, "Quiesce", &request).await?;
        if let Some(error) = &reply.error {
            return Err(error_from_status(&error.status));
        }
        Ok(QuiescingStatus {
            quiescing: reply.is_quiescing(),
            leaders: reply.num_leaders().max(0) as u64,
            scanners: reply.num_active_scanners().max(0) as u64,
        })
    }

    /// Changes a flag of a server at run time; `address` may be a master's or a tablet server's. Returns the old value.
    pub async fn set_flag(&self, address: &str, flag: &str, value: &str, force: bool) -> Result<String> {
        let (flag, value) = (flag.to_string(), value.to_string());
        let request = SetFlagRequestPb { flag, value, force: Some(force), run_consistency_check: None };
        let reply: SetFlagResponsePb = self.admin_call(address, GENERIC_SERVICE, "SetFlag", &request).await?;
        match reply.result() {
            Code::Success => Ok(reply.old_value().to_string()),
            _ => Err(Error::invalid(reply.msg().to_string())),
        }
    }

    /// Lists the replicas on a tablet server, tombstones included.
    pub async fn local_replicas(&self, address: &str) -> Result<Vec<LocalReplica>> {
        let request = ListTabletsRequestPb { need_schema_info: Some(false), ..Default::default() };
        let reply: ListTabletsResponsePb =
            self.admin_call(address, TABLET_SERVICE, "ListTablets", &request).await?;
        if let Some(error) = &reply.error {
            return Err(error_from_status(&error.status));
        }
        let local = |entry: nyala_proto::kudu::tserver::list_tablets_response_pb::StatusAndSchemaPb| {
            let status = entry.tablet_status;
            Ok(LocalReplica {
                tablet: Uuid::parse(status.tablet_id.as_bytes())?,
                state: status.state().as_str_name(),
                data_state: status.tablet_data_state().as_str_name(),
                running: status.state() == TabletStatePb::Running,
                tombstoned: status.tablet_data_state() == TabletDataState::TabletDataTombstoned,
                disk_bytes: status.estimated_on_disk_size().max(0) as u64,
                table: status.table_name,
                message: status.last_status,
            })
        };
        reply.status_and_schema.into_iter().map(local).collect()
    }

    /// Returns the Raft states of all replicas on a tablet server.
    pub async fn raft_states(&self, server: PeerId, address: &str) -> Result<Vec<RaftState>> {
        let dest_uuid = Some(Bytes::from(server.to_string()));
        let request = GetConsensusStateRequestPb { dest_uuid, ..Default::default() };
        let reply: GetConsensusStateResponsePb =
            self.admin_call(address, CONSENSUS_SERVICE, "GetConsensusState", &request).await?;
        if let Some(error) = &reply.error {
            return Err(error_from_status(&error.status));
        }
        let mut states = Vec::new();
        for info in reply.tablets {
            if let Some(cstate) = &info.cstate {
                states.push(raft_state(Uuid::parse(&info.tablet_id)?, cstate)?);
            }
        }
        Ok(states)
    }

    /// Returns the last operation in the log of a replica on `server`.
    pub async fn last_op(&self, tablet: TabletId, server: PeerId, address: &str) -> Result<OpId> {
        let request = GetLastOpIdRequestPb {
            dest_uuid: Some(Bytes::from(server.to_string())),
            tablet_id: Bytes::from(tablet.to_string()),
            opid_type: None,
        };
        let reply: GetLastOpIdResponsePb =
            self.admin_call(address, CONSENSUS_SERVICE, "GetLastOpId", &request).await?;
        match (&reply.error, &reply.opid) {
            (Some(error), _) => Err(error_from_status(&error.status)),
            (None, Some(last)) => op_id_from_pb(last),
            (None, None) => Err(Error::invalid(format!("{address}: the response lacks an operation"))),
        }
    }

    /// Requests that a tablet's leader transfers its leadership, to `to` or to any voter. Returns the former leader.
    pub async fn step_down_leader(&self, tablet: TabletId, to: Option<PeerId>) -> Result<ReplicaInfo> {
        let TabletReplicas { replicas, .. } = self.tablet_replicas(tablet, self.deadline()).await?;
        let leader = replicas.into_iter().find(|replica| replica.leader);
        let leader = leader.ok_or_else(|| Error::not_ready(format!("tablet {tablet} has no leader")))?;
        let request = LeaderStepDownRequestPb {
            dest_uuid: Some(Bytes::from(leader.server.to_string())),
            tablet_id: Bytes::from(tablet.to_string()),
            mode: Some(LeaderStepDownMode::Graceful as i32),
            new_leader_uuid: to.map(|to| Bytes::from(to.to_string())),
        };
        let reply: LeaderStepDownResponsePb =
            self.admin_call(&leader.address, CONSENSUS_SERVICE, "LeaderStepDown", &request).await?;
        match &reply.error {
            Some(error) => Err(error_from_status(&error.status)),
            None => Ok(leader),
        }
    }

    /// Makes `voters` the whole configuration of a tablet that has lost its majority, by the replica on `server`. What
    /// only the other replicas had is lost.
    pub async fn unsafe_change_config(
        &self,
        tablet: TabletId,
        server: PeerId,
        address: &str,
        voters: &[PeerId],
    ) -> Result<()> {
        let peer = |id: &PeerId| RaftPeerPb {
            permanent_uuid: Some(Bytes::from(id.to_string())),
            member_type: Some(MemberType::Voter as i32),
            ..RaftPeerPb::default()
        };
        let request = UnsafeChangeConfigRequestPb {
            dest_uuid: Some(Bytes::from(server.to_string())),
            tablet_id: Bytes::from(tablet.to_string()),
            caller_id: Bytes::from_static(b"nyala"),
            new_config: RaftConfigPb { peers: voters.iter().map(peer).collect(), ..RaftConfigPb::default() },
        };
        let reply: UnsafeChangeConfigResponsePb =
            self.admin_call(address, CONSENSUS_SERVICE, "UnsafeChangeConfig", &request).await?;
        match &reply.error {
            Some(error) => Err(error_from_status(&error.status)),
            None => Ok(()),
        }
    }

    /// Drops a table, but keeps it for recall during `reserve_seconds`; 0 removes it at once.
    pub async fn delete_table_later(&self, name: &str, reserve_seconds: u32) -> Result<()> {
        let table = TableIdentifierPb { table_id: None, table_name: Some(name.to_string()) };
        let reserve_seconds = Some(reserve_seconds);
        let request = DeleteTableRequestPb { table, reserve_seconds, ..Default::default() };
        let _: DeleteTableResponsePb =
            self.shared.masters.call("DeleteTable", &request, self.deadline(), &[]).await?;
        Ok(())
    }

    /// Lists the dropped tables that can be recalled.
    pub async fn deleted_tables(&self) -> Result<Vec<TableInfo>> {
        let request = ListTablesRequestPb { show_soft_deleted: Some(true), ..Default::default() };
        let reply: ListTablesResponsePb =
            self.shared.masters.call("ListTables", &request, self.deadline(), &[]).await?;
        Ok(super::tables::table_infos(&reply))
    }

    /// Lists the tables that have replicas: all tables, and the dropped ones that are kept for recall.
    pub async fn tables_with_replicas(&self) -> Result<Vec<TableInfo>> {
        let mut tables = self.list_tables(None).await?;
        // A table that is dropped between the two calls is in both lists.
        let listed: BTreeSet<String> = tables.iter().map(|table| table.id.clone()).collect();
        let kept = self.deleted_tables().await?;
        tables.extend(kept.into_iter().filter(|table| !listed.contains(&table.id)));
        Ok(tables)
    }

    /// Recalls a dropped table, under a new name if one is given.
    pub async fn recall_table(&self, table_id: &str, new_name: Option<&str>) -> Result<()> {
        let table_id = Some(Bytes::copy_from_slice(table_id.as_bytes()));
        let table = TableIdentifierPb { table_id, table_name: None };
        let request = RecallDeletedTableRequestPb { table, new_table_name: new_name.map(str::to_string) };
        let _: RecallDeletedTableResponsePb =
            self.shared.masters.call("RecallDeletedTable", &request, self.deadline(), &[]).await?;
        Ok(())
    }

    /// Calls one server without retries.
    async fn admin_call<Req: Message, Resp: Message + Default>(
        &self,
        address: &str,
        service: &'static str,
        method: &str,
        request: &Req,
    ) -> Result<Resp> {
        let until: Instant = self.env().now().mono.after(PROBE_TIMEOUT);
        let called = self.server(address).call(service, method, request, until, CallOptions::default()).await;
        called
            .map(|response| response.message)
            .map_err(|error| error_from_rpc(&error).context(format!("{method} at {address}")))
    }
}

/// Returns the reason that a master was not asked.
fn no_reply(master: &MasterInfo) -> String {
    format!("{}: no reply ({})", master.address, master.error.as_deref().unwrap_or("unknown reason"))
}

fn raft_state(tablet: TabletId, state: &ConsensusStatePb) -> Result<RaftState> {
    let config = &state.committed_config;
    let (mut voters, mut learners) = (Vec::new(), Vec::new());
    for peer in &config.peers {
        let id = Uuid::parse(peer.permanent_uuid())?;
        if peer.member_type() == MemberType::Voter { voters.push(id) } else { learners.push(id) }
    }
    voters.sort();
    learners.sort();
    Ok(RaftState {
        tablet,
        term: state.current_term,
        leader: Uuid::parse(state.leader_uuid().as_bytes()).ok(),
        config_index: config.opid_index(),
        pending: state.pending_config.is_some(),
        voters,
        learners,
    })
}
