//! Whole clusters on an in-memory network and disks: several masters, several replicas, stopped servers. Time advances
//! only while every task waits, so the load of the machine has no influence.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use engine::error::{Error, Result};
use engine::ids::Uuid;
use engine::schema::row_ops::{ClientCell, RowOpKind};
use engine::schema::{ColumnSchema, DataType, Schema};

use super::{ClusterConfig, PortAssignment};
use crate::dirs::ServerKind;
use crate::server::flags::Flags;
use crate::server::startup::{self, RunningServer};
use nyala_client::{Client, ClientConfig, CreateTable, FlushMode, ScanSpec, SessionConfig, Table};
use nyala_common::env::testing::{MemDisks, SteadyClock};
use nyala_common::env::{BoxFuture, Env, mem_net};
use nyala_common::rpc::client::{CallOptions, Proxy};
use nyala_proto::kudu::HostPortPb;
use nyala_proto::kudu::app_status_pb::ErrorCode;
use nyala_proto::kudu::consensus::raft_peer_pb::Role;
use nyala_proto::kudu::master::{
    AddMasterRequestPb, AddMasterResponsePb, ListMastersRequestPb, ListMastersResponsePb,
    RemoveMasterRequestPb, RemoveMasterResponsePb,
};

/// Longest wait for anything that needs elections, reports and copies.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

/// Servers by index; `None` while one is stopped.
pub(super) struct Cluster {
    pub env: Env,
    pub config: ClusterConfig,
    pub masters: Vec<Option<RunningServer>>,
    pub tservers: Vec<Option<RunningServer>>,
}

fn flags() -> Flags {
    let flags = Flags::new();
    for (name, value) in [
        ("raft_profile", "fast"),
        ("follower_unavailable_considered_failed_sec", "1"),
        ("heartbeat_interval_ms", "50"),
        ("tserver_unresponsive_timeout_ms", "1000"),
        ("webserver_enabled", "false"),
        ("block_cache_capacity_mb", "16"),
    ] {
        flags.set(name, value).expect("a valid flag");
    }
    flags
}

impl Cluster {
    /// Returns a cluster whose servers are yet to be started.
    pub(super) fn empty(masters: usize, tablet_servers: usize) -> Cluster {
        let env = mem_net::env();
        let clock = Arc::new(SteadyClock(env.clock.clone()));
        let env = Env { disks: Arc::new(MemDisks::default()), clock, ..env };
        let ip = Ipv4Addr::LOCALHOST.into();
        let (dir, ports) = ("cluster".to_string(), PortAssignment::Kudus);
        let config = ClusterConfig { dir, masters, tablet_servers, ip, ports, flags: flags() };
        Cluster { env, config, masters: Vec::new(), tservers: Vec::new() }
    }

    pub(super) async fn start(masters: usize, tablet_servers: usize) -> Cluster {
        let mut cluster = Cluster::empty(masters, tablet_servers);
        for at in 0..masters {
            cluster.masters.push(Some(cluster.server(ServerKind::Master, at).await));
        }
        for at in 0..tablet_servers {
            cluster.tservers.push(Some(cluster.server(ServerKind::TabletServer, at).await));
        }
        cluster.wait("the servers meet", || cluster.met()).await;
        cluster
    }

    async fn server(&self, kind: ServerKind, at: usize) -> RunningServer {
        let flags = self.config.server_flags(kind, at).expect("valid flags");
        let server = startup::start(&self.env, kind, Arc::new(flags)).await.expect("the server starts");
        server.until_ready().await.expect("its catalog is sound");
        server
    }

    pub(super) fn met(&self) -> bool {
        self.leader().is_some_and(|at| match self.masters[at].as_ref() {
            Some(RunningServer::Master(master)) => {
                master.known_tservers.count() >= self.config.tablet_servers
            }
            _ => false,
        })
    }

    /// Returns the index of the leading master.
    pub(super) fn leader(&self) -> Option<usize> {
        self.masters.iter().position(|master| master.as_ref().is_some_and(RunningServer::leads))
    }

    pub(super) async fn wait(&self, what: &str, met: impl Fn() -> bool) {
        let end = self.env.now().mono.after(PATIENCE);
        while !met() {
            assert!(self.env.now().mono < end, "{what}: not in time");
            self.env.sleep(Duration::from_millis(5)).await;
        }
    }

    async fn stop_master(&mut self, at: usize) {
        self.masters[at].take().expect("it runs").shutdown().await;
    }

    pub(super) async fn client(&self) -> Client {
        let config = ClientConfig {
            rpc_timeout: Duration::from_secs(2),
            ..ClientConfig::new(self.config.master_names())
        };
        Client::connect(self.env.clone(), config).await.expect("a master leads")
    }

    fn tserver_id(&self, at: usize) -> Uuid {
        match self.tservers[at].as_ref() {
            Some(RunningServer::TabletServer(server)) => server.server.uuid(),
            _ => panic!("tablet server {at} is away"),
        }
    }

    pub(super) async fn shutdown(mut self) {
        for server in self.tservers.drain(..).chain(self.masters.drain(..)).flatten() {
            server.shutdown().await;
        }
    }
}

fn definition(name: &str) -> CreateTable {
    let columns =
        vec![ColumnSchema::new(0, "k", DataType::Int32), ColumnSchema::new(1, "v", DataType::Int32)];
    let schema = Schema::new(columns, 1).expect("a key and a value");
    CreateTable::new(name, schema).hash(&["k"], 2).expect("hashed by its key")
}

pub(super) async fn create(client: &Client, name: &str) -> Result<Table> {
    client.create_table(&CreateTable { replicas: Some(3), ..definition(name) }).await
}

pub(super) async fn insert(client: &Client, table: &Table, keys: std::ops::Range<i32>) -> Result<()> {
    let session = client.session(SessionConfig::new(FlushMode::Manual));
    for key in keys {
        let cell = key.to_le_bytes();
        session
            .apply(table, RowOpKind::Insert, &[ClientCell::Value(&cell), ClientCell::Value(&cell)], 0)
            .await?;
    }
    match session.flush().await.pop() {
        Some(failure) => Err(failure.error),
        None => Ok(()),
    }
}

pub(super) async fn count(table: &Table) -> Result<usize> {
    let mut scanner = table.scan(ScanSpec::default())?;
    let mut rows = 0;
    while let Some(batch) = scanner.next_batch().await? {
        rows += batch.num_rows();
    }
    Ok(rows)
}

/// Returns the servers of each tablet's voters.
async fn homes(client: &Client, table: &str) -> Result<Vec<BTreeSet<Uuid>>> {
    let tablets = client.replicas(table).await?;
    let voters = |tablet: &nyala_client::replica_admin::TabletReplicas| {
        tablet.replicas.iter().filter(|replica| replica.voter).map(|replica| replica.server).collect()
    };
    Ok(tablets.iter().map(voters).collect())
}

#[tokio::test(start_paused = true)]
async fn another_master_continues_after_the_leader_stops() {
    let mut cluster = Cluster::start(3, 3).await;
    let client = cluster.client().await;
    let table = create(&client, "first").await.expect("a table is created");
    insert(&client, &table, 0..100).await.expect("rows are written");
    for round in 1..=2 {
        let at = cluster.leader().expect("one leads");
        cluster.stop_master(at).await;
        cluster.wait("the servers meet the next one", || cluster.met()).await;
        let name = format!("after {round}");
        let made = create(&client, &name).await.expect("another master makes tables");
        insert(&client, &made, 0..10).await.expect("rows are written");
        // It restarts as a follower, which the next round needs for a majority.
        cluster.masters[at] = Some(cluster.server(ServerKind::Master, at).await);
        cluster.wait("a master leads", || cluster.leader().is_some()).await;
    }
    let names: Vec<String> =
        client.list_tables(None).await.expect("a list").into_iter().map(|table| table.name).collect();
    assert_eq!(names, ["after 1", "after 2", "first"]);
    assert_eq!(count(&table).await, Ok(100));
    cluster.shutdown().await;
}

/// A single master opens a term at each start, for which it needs space.
#[tokio::test(start_paused = true)]
async fn a_cluster_whose_master_waits_for_space_stops_when_it_is_told_to() {
    let mut cluster = Cluster::empty(1, 1);
    let disks = MemDisks::default();
    cluster.env.disks = Arc::new(disks.clone());
    let start = async || {
        let clock = cluster.env.clone();
        let mut stop: BoxFuture<'static, ()> = Box::pin(async move { clock.sleep(PATIENCE).await });
        super::Cluster::start_unless(&cluster.env, &cluster.config, &mut stop).await
    };
    let data = disks.disk("cluster/master-1/data");
    for (free, starts) in [(1 << 40, true), (0, false), (1 << 40, true)] {
        data.set_free(free);
        let started = start().await.expect("no server fails");
        assert_eq!(started.is_some(), starts, "{free} bytes");
        if let Some(mut running) = started {
            running.shutdown().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_lost_replica_is_replaced_on_another_server() {
    let mut cluster = Cluster::start(1, 4).await;
    let client = cluster.client().await;
    let table = create(&client, "t").await.expect("a table is created");
    insert(&client, &table, 0..200).await.expect("rows are written");
    let victim = homes(&client, "t").await.expect("locations")[0].first().copied().expect("three");
    let at = (0..4).find(|at| cluster.tserver_id(*at) == victim).expect("one of the four");
    cluster.tservers[at].take().expect("it runs").shutdown().await;
    insert(&client, &table, 200..400).await.expect("a majority is left");
    let end = cluster.env.now().mono.after(PATIENCE);
    loop {
        let homes = homes(&client, "t").await.expect("locations");
        if homes.iter().all(|voters| voters.len() == 3 && !voters.contains(&victim)) {
            break;
        }
        assert!(cluster.env.now().mono < end, "still on {homes:?}, {victim} is dead");
        cluster.env.sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(count(&table).await, Ok(400));
    // The old replica is removed when its server has restarted.
    cluster.tservers[at] = Some(cluster.server(ServerKind::TabletServer, at).await);
    let Some(RunningServer::TabletServer(server)) = cluster.tservers[at].as_ref() else { panic!("it runs") };
    let gone = || server.server.tablets.all().iter().all(|entry| entry.tablet().is_none());
    cluster.wait("the old replica is removed", gone).await;
    cluster.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_replica_moves() {
    let cluster = Cluster::start(1, 4).await;
    let client = cluster.client().await;
    let table = create(&client, "t").await.expect("a table is created");
    insert(&client, &table, 0..100).await.expect("rows are written");
    let tablet = client.replicas("t").await.expect("locations").remove(0);
    let leader = tablet.replicas.iter().find(|replica| replica.leader).expect("it is led").server;
    let others: Vec<Uuid> = (0..4).map(|at| cluster.tserver_id(at)).collect();
    let free = others.into_iter().find(|id| tablet.replicas.iter().all(|replica| replica.server != *id));
    let free = free.expect("four servers, three replicas");
    client.move_replica(tablet.id, leader, free, PATIENCE).await.expect("it moves");
    let voters = &homes(&client, "t").await.expect("locations")[0];
    assert!(voters.contains(&free) && !voters.contains(&leader) && voters.len() == 3, "{voters:?}");
    assert_eq!(count(&table).await, Ok(100));
    cluster.shutdown().await;
}

impl Cluster {
    /// Calls the leading master; returns the message of its error.
    async fn ask_leader<Q: prost::Message, R: prost::Message + Default>(
        &self,
        method: &str,
        request: &Q,
    ) -> R {
        self.wait("a master leads", || self.leader().is_some()).await;
        let at = self.leader().expect("a master leads");
        let target = &self.config.master_names()[at];
        let proxy = Proxy::new(self.env.clone(), target.as_str(), "nyala");
        let until = self.env.now().mono.after(PATIENCE);
        let call = proxy.call("kudu.master.MasterService", method, request, until, CallOptions::default());
        call.await.expect("the call gets a reply").message
    }

    async fn master_roles(&self) -> Vec<Role> {
        let reply: ListMastersResponsePb =
            self.ask_leader("ListMasters", &ListMastersRequestPb::default()).await;
        reply.masters.iter().map(|master| master.role()).collect()
    }
}

fn host_port(name: &str) -> Option<HostPortPb> {
    let (host, port) = crate::server::split_host_port(name).expect("host:port");
    Some(HostPortPb { host, port: u32::from(port) })
}

#[tokio::test(start_paused = true)]
async fn masters_are_added_and_removed() {
    let mut cluster = Cluster::start(3, 1).await;
    let client = cluster.client().await;
    let table = CreateTable { replicas: Some(1), ..definition("t") };
    client.create_table(&table).await.expect("a table is created");
    // The fourth is configured with all four; the others do not count it yet. It also asks to be added, so the second
    // of the two requests finds it in the configuration.
    cluster.config.masters = 4;
    let fourth = cluster.server(ServerKind::Master, 3).await;
    cluster.masters.push(Some(fourth));
    let name = cluster.config.master_names()[3].clone();
    let add = AddMasterRequestPb { rpc_addr: host_port(&name) };
    let end = cluster.env.now().mono.after(PATIENCE);
    loop {
        let reply: AddMasterResponsePb = cluster.ask_leader("AddMaster", &add).await;
        let Some(error) = reply.error else { break };
        if error.status.code() == ErrorCode::AlreadyPresent {
            break;
        }
        assert!(cluster.env.now().mono < end, "{error:?}");
        cluster.env.sleep(Duration::from_millis(50)).await;
    }
    let again: AddMasterResponsePb = cluster.ask_leader("AddMaster", &add).await;
    assert!(again.error.is_some(), "it is there already");
    loop {
        let roles = cluster.master_roles().await;
        if roles.len() == 4 && roles.iter().all(|role| matches!(role, Role::Leader | Role::Follower)) {
            break;
        }
        assert!(cluster.env.now().mono < end, "{roles:?}");
        cluster.env.sleep(Duration::from_millis(20)).await;
    }
    // One of the old masters is removed permanently, and then the leader stops: the new master counts.
    let leader = cluster.leader().expect("one leads");
    let gone = (0..3).find(|at| *at != leader).expect("three");
    let remove = |at: usize| RemoveMasterRequestPb {
        rpc_addr: host_port(&cluster.config.master_names()[at]),
        master_uuid: None,
    };
    let refused: RemoveMasterResponsePb = cluster.ask_leader("RemoveMaster", &remove(leader)).await;
    assert!(refused.error.is_some(), "the leader stays");
    let removed: RemoveMasterResponsePb = cluster.ask_leader("RemoveMaster", &remove(gone)).await;
    assert_eq!(removed.error, None);
    cluster.stop_master(gone).await;
    cluster.stop_master(leader).await;
    cluster.wait("another leads", || cluster.leader().is_some()).await;
    assert_eq!(client.list_tables(None).await.expect("a list").len(), 1);
    cluster.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn too_many_replicas_are_rejected() {
    let cluster = Cluster::start(1, 1).await;
    let client = cluster.client().await;
    let error: Error =
        create(&client, "t").await.map(drop).expect_err("one server cannot hold three replicas");
    assert!(error.message.contains("not enough live tablet servers"), "{error}");
    cluster.shutdown().await;
}
