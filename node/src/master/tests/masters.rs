//! Several masters: added one by one with and without log GC, and shut down in order. Time is paused.

use std::sync::Arc;

use engine::config::TabletConfig;
use engine::error::ErrorKind;
use engine::raft::Role;

use super::*;
use crate::server::pages::options::PageOptions;
use crate::server::pages::registry::PageBody;
use nyala_client::{Client, ClientConfig};
use nyala_common::env::partitionable_net::PartitionableNet;
use nyala_common::env::testing::{MemDisks, becomes, hosts};
use nyala_common::metrics::prometheus::{self, Naming};
use nyala_common::metrics::query::MetricQuery;
use nyala_proto::kudu::consensus::{GetConsensusStateRequestPb, GetConsensusStateResponsePb};

struct Masters {
    envs: Vec<Env>,
    masters: Vec<RunningMaster>,
    proxies: Vec<Proxy>,
    auto_join: bool,
}

fn addr_of(number: usize) -> std::net::SocketAddr {
    std::net::SocketAddr::from(([127, 0, 0, 1], 7_051 + number as u16))
}

impl Masters {
    /// Starts the first master; `master_count` is the number of masters in all.
    async fn start(master_count: usize) -> Masters {
        Masters::with(master_count, false).await
    }

    async fn with(master_count: usize, auto_join: bool) -> Masters {
        let mut masters = Masters::hosts(master_count, auto_join);
        masters.run().await;
        masters
    }

    /// Returns machines on which no master runs yet.
    fn hosts(master_count: usize, auto_join: bool) -> Masters {
        let wires = PartitionableNet::default();
        let mut envs = hosts(&wires, master_count + 1);
        let client = envs.pop().expect("the client is a host too");
        let proxies =
            (0..master_count).map(|number| Proxy::new(client.clone(), addr_of(number), "ann")).collect();
        Masters { envs, masters: Vec::new(), proxies, auto_join }
    }

    /// Starts the masters of a new cluster together, and waits until one leads.
    async fn together(count: usize) -> Masters {
        let mut masters = Masters::hosts(count, false);
        for number in 0..count {
            let master = masters.start_as(number, count).await;
            masters.masters.push(master);
        }
        masters.until("a leader", |masters| masters.masters.iter().any(RunningMaster::leads)).await;
        masters
    }

    /// Starts `count` masters, which join one after another; the first leads.
    async fn joined(count: usize) -> Masters {
        let mut masters = Masters::with(count, true).await;
        for number in 1..count {
            masters.run().await;
            masters.promoted(0, number).await;
        }
        masters
    }

    /// Starts the next master, configured with all earlier ones.
    async fn run(&mut self) {
        let number = self.masters.len();
        let master = self.start_as(number, number + 1).await;
        self.masters.push(master);
    }

    /// Starts a master, configured with the first `master_count`.
    async fn start_as(&self, number: usize, master_count: usize) -> RunningMaster {
        let config = self.config(number, master_count);
        crate::master::run(self.envs[number].clone(), config).await.expect("the master starts")
    }

    /// Starts the master of the machine `host` at the address `at`, configured with the masters at these addresses.
    async fn start_at(&self, host: usize, at: usize, all: &[usize]) -> RunningMaster {
        let mut config = self.config(at, 0);
        config.masters = all.iter().map(|number| addr_of(*number).to_string()).collect();
        crate::master::run(self.envs[host].clone(), config).await.expect("the master starts")
    }

    fn config(&self, number: usize, master_count: usize) -> MasterConfig {
        let mut config = MasterConfig::new(addr_of(number), "wal", vec!["data".to_string()]);
        config.masters = (0..master_count).map(|number| addr_of(number).to_string()).collect();
        config.auto_join = self.auto_join;
        config.tablet = TabletConfig::tiny();
        config.maintenance_interval = Duration::from_millis(20);
        config.catalog.replicas_default = 1;
        config
    }

    async fn call<Q: Message, R: Message + Default>(&self, at: usize, method: &str, request: &Q) -> R {
        let deadline = self.envs[0].now().mono.after(Duration::from_secs(20));
        let called = self.proxies[at].call(SERVICE, method, request, deadline, CallOptions::default());
        called.await.expect("the call succeeds").message
    }

    async fn until(&self, what: &str, met: impl Fn(&Masters) -> bool) {
        assert!(becomes(&self.envs[0], || met(self)).await, "waited in vain: {what}");
    }

    /// Starts the next master and has `leader` add it.
    async fn add(&mut self, leader: usize) {
        let number = self.masters.len();
        self.run().await;
        assert_eq!(self.request_add(leader, number).await, "ok");
        self.promoted(leader, number).await;
    }

    /// Returns the reply of the master at the address `leader` to the request to add the one at the address `new`.
    async fn request_add(&self, leader: usize, new: usize) -> String {
        let address = HostPortPb { host: "127.0.0.1".to_string(), port: u32::from(addr_of(new).port()) };
        let request = AddMasterRequestPb { rpc_addr: Some(address) };
        let added: AddMasterResponsePb = self.call(leader, "AddMaster", &request).await;
        shown(&added.error)
    }

    async fn promoted(&self, leader: usize, number: usize) {
        let uuid = self.masters[number].uuid;
        self.until("the promotion of a new master", |masters| {
            let replica = masters.masters[leader].opened.get().expect("it leads");
            replica.status().committed_config.is_voter(uuid) && masters.masters[number].opened.get().is_some()
        })
        .await;
    }

    async fn create(&self, at: usize, name: &str) {
        let created: CreateTableResponsePb = self.call(at, "CreateTable", &table(name)).await;
        assert_eq!(shown(&created.error), "ok");
    }

    async fn names(&self, at: usize) -> Vec<String> {
        let listed: ListTablesResponsePb = self.call(at, "ListTables", &ListTablesRequestPb::default()).await;
        assert_eq!(shown(&listed.error), "ok");
        listed.tables.into_iter().map(|table| table.name).collect()
    }

    async fn heartbeat(&self, at: usize) -> TsHeartbeatResponsePb {
        let registration = ServerRegistrationPb {
            rpc_addresses: vec![HostPortPb { host: "127.0.0.1".to_string(), port: 1 }],
            http_addresses: vec![HostPortPb { host: "127.0.0.1".to_string(), port: 8_050 }],
            ..Default::default()
        };
        let request = TsHeartbeatRequestPb {
            common: TsToMasterCommonPb {
                ts_instance: NodeInstancePb { permanent_uuid: id(SERVER), instance_seqno: 1 },
            },
            registration: Some(registration),
            ..Default::default()
        };
        let heartbeat: TsHeartbeatResponsePb = self.call(at, "TSHeartbeat", &request).await;
        assert_eq!(shown(&heartbeat.error), "ok");
        heartbeat
    }

    /// Holds the history of a table from [`Masters::held_from`] on.
    async fn hold(&self, at: usize, table: &str) {
        let request = HoldHistoryRequestPb {
            table: TableIdentifierPb { table_name: Some(table.to_string()), ..Default::default() },
            holder: "a backup".to_string(),
            timestamp: self.held_from(),
            release: None,
        };
        let held: HoldHistoryResponsePb = self.call(at, "HoldHistory", &request).await;
        assert_eq!((shown(&held.error), held.lease_ms), ("ok".to_string(), Some(60_000)));
    }

    /// Returns the timestamp of the hold: the start of the hosts' clocks.
    fn held_from(&self) -> u64 {
        engine::time::Timestamp::from_micros(1_700_000_000_000_000).0
    }

    /// Returns true if a master's list of holds is complete, and the timestamps in it.
    async fn holds(&self, at: usize) -> (bool, Vec<u64>) {
        let list = self.heartbeat(at).await.nyala_history.expect("it leads");
        (list.as_of_micros.is_some(), list.holds.iter().map(|hold| hold.timestamp).collect())
    }

    /// Returns the targets that a master gives Prometheus, in order.
    async fn targets(&self, at: usize) -> Vec<String> {
        let page = self.masters[at].common.pages.source("/prometheus-sd").expect("a page of masters");
        let answer = page(PageOptions::default()).await.expect("the master is open");
        let PageBody::Json(groups) = answer else { panic!("no list of targets") };
        let groups = groups.as_array().expect("a list").iter();
        let targets = groups.flat_map(|group| group["targets"].as_array().expect("a list").clone());
        let mut targets: Vec<_> =
            targets.map(|target| target.as_str().expect("an address").to_string()).collect();
        targets.sort();
        targets
    }

    /// Returns the masters that show counts of the cluster.
    fn counting(&self) -> Vec<usize> {
        let page = |at: usize| {
            let snapshot = self.masters[at].common.metrics.snapshot();
            prometheus::render(snapshot, &MetricQuery::default(), Naming::ByRole)
        };
        let pages: Vec<_> = (0..self.masters.len()).map(page).collect();
        // Kudu's masters have this metric whether they lead or not.
        assert!(pages.iter().all(|page| page.contains("\nkudu_master_cluster_replica_skew{")), "{pages:?}");
        (0..pages.len()).filter(|at| pages[*at].contains("\nnyala_catalog_")).collect()
    }

    /// Returns true if the first segments of a master's log have been deleted.
    async fn first_segments_deleted(&self, at: usize) -> bool {
        let replica = self.masters[at].opened.get().expect("it runs");
        let read = replica.run_on_wal(|wal| wal.read(1, 100)).await.expect("it runs");
        read.is_err_and(|error| error.kind == ErrorKind::NotFound)
    }
}

#[tokio::test(start_paused = true)]
async fn a_new_master_auto_joins() {
    let mut masters = Masters::with(3, true).await;
    masters.heartbeat(0).await;
    masters.create(0, "before").await;
    for number in 1..3 {
        masters.run().await;
        masters.promoted(0, number).await;
    }
    masters.create(0, "after").await;
    masters.masters[0].shutdown().await;
    masters.until("another leads", |masters| masters.masters[1..].iter().any(|m| m.catalog().is_ok())).await;
    let leader = (1..3).find(|at| masters.masters[*at].catalog().is_ok()).expect("one leads");
    assert_eq!(masters.names(leader).await, ["after", "before"]);
}

#[tokio::test(start_paused = true)]
async fn a_new_leader_lists_no_holds_as_complete_until_all_holders_have_asked_again() {
    let masters = Masters::joined(3).await;
    masters.heartbeat(0).await;
    masters.create(0, "t").await;
    let lease = Duration::from_secs(60);
    masters.envs[0].sleep(lease).await;
    assert_eq!(masters.holds(0).await, (true, vec![]));
    masters.hold(0, "t").await;
    assert_eq!(masters.holds(0).await, (true, vec![masters.held_from()]));
    masters.masters[0].shutdown().await;
    let leads = |masters: &Masters| masters.masters[1..].iter().position(|master| master.leads());
    masters.until("another leader", |masters| leads(masters).is_some()).await;
    let next = 1 + leads(&masters).expect("it was just so");
    assert_eq!(masters.holds(next).await, (false, vec![]));
    masters.envs[0].sleep(lease / 2).await;
    masters.hold(next, "t").await;
    assert_eq!(masters.holds(next).await, (false, vec![masters.held_from()]));
    masters.envs[0].sleep(lease / 2).await;
    assert_eq!(masters.holds(next).await, (true, vec![masters.held_from()]));
    masters.envs[0].sleep(lease / 2).await;
    assert_eq!(masters.holds(next).await, (true, vec![]), "it was not asked for again");
}

/// The alert for a cluster without a leading master fires when no master has these metrics.
#[tokio::test(start_paused = true)]
async fn only_the_leading_master_has_counts_of_the_cluster() {
    let masters = Masters::joined(3).await;
    assert_eq!(masters.counting(), [0]);
    assert!(masters.masters[0].opened.get().expect("it leads").begin_transfer().await, "to a follower");
    masters
        .until("counts of the next leader alone", |masters| matches!(masters.counting()[..], [1 | 2]))
        .await;
}

#[tokio::test(start_paused = true)]
async fn servers_that_are_down_stay_targets_until_they_are_unregistered() {
    let masters = Masters::joined(3).await;
    for (number, master) in masters.masters.iter().enumerate() {
        let web = std::net::SocketAddr::from(([127, 0, 0, 1], 8_051 + number as u16));
        master.common.status.set_web(web, false);
        masters.heartbeat(number).await;
    }
    let all = ["127.0.0.1:8050", "127.0.0.1:8051", "127.0.0.1:8052", "127.0.0.1:8053"];
    assert_eq!(masters.targets(0).await, all);
    for follower in 1..3 {
        assert!(masters.targets(follower).await.is_empty(), "the leader lists them");
    }
    masters.masters[0].shutdown().await;
    let leads = |masters: &Masters| masters.masters[1..].iter().position(|master| master.leads());
    masters.until("another leader", |masters| leads(masters).is_some()).await;
    let next = 1 + leads(&masters).expect("it was just so");
    masters.envs[0].sleep(Duration::from_secs(120)).await;
    let listed: ListTabletServersResponsePb =
        masters.call(next, "ListTabletServers", &ListTabletServersRequestPb::default()).await;
    assert!(listed.servers[0].millis_since_heartbeat() >= 120_000, "it sends no heartbeats");
    assert_eq!(masters.targets(next).await, all, "a master and the tablet server are down");

    let unregister = UnregisterTServerRequestPb { uuid: Some(SERVER.to_string()), ..Default::default() };
    let gone: UnregisterTServerResponsePb = masters.call(next, "UnregisterTServer", &unregister).await;
    assert_eq!(shown(&gone.error), "ok");
    let request =
        RemoveMasterRequestPb { rpc_addr: None, master_uuid: Some(masters.masters[0].uuid.to_string()) };
    let gone: RemoveMasterResponsePb = masters.call(next, "RemoveMaster", &request).await;
    assert_eq!(shown(&gone.error), "ok");
    assert_eq!(masters.targets(next).await, all[2..]);
}

#[tokio::test(start_paused = true)]
async fn a_master_that_lost_its_disk_is_added_once_the_old_one_is_removed() {
    let mut masters = Masters::joined(3).await;
    let lost = masters.masters.pop().expect("the third");
    lost.shutdown().await;
    masters.envs[2].disks = Arc::new(MemDisks::default());
    masters.run().await;
    masters.envs[0].sleep(Duration::from_secs(10)).await;
    let replica = masters.masters[0].opened.get().expect("it leads");
    assert!(
        replica.status().committed_config.peer(masters.masters[2].uuid).is_none(),
        "its address is taken"
    );
    let request = RemoveMasterRequestPb { rpc_addr: None, master_uuid: Some(lost.uuid.to_string()) };
    let removed: RemoveMasterResponsePb = masters.call(0, "RemoveMaster", &request).await;
    assert_eq!(shown(&removed.error), "ok");
    masters.promoted(0, 2).await;
}

#[tokio::test(start_paused = true)]
async fn a_master_of_another_cluster_is_not_added() {
    let mut masters = Masters::hosts(2, false);
    for number in 0..2 {
        // Each is the single master of its own cluster.
        let own = masters.start_at(number, number, &[number]).await;
        masters.masters.push(own);
    }
    masters.until("both lead", |masters| masters.masters.iter().all(RunningMaster::leads)).await;
    let refused = masters.request_add(0, 1).await;
    assert!(refused.contains("127.0.0.1:7052 belongs to another cluster"), "{refused}");
    assert_eq!(masters.masters[0].opened.get().expect("it leads").status().committed_config.peers.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_single_master_that_has_moved_is_copied_from_its_new_address() {
    let mut masters = Masters::hosts(3, false);
    masters.start_at(0, 0, &[0]).await.shutdown().await;
    let moved = masters.start_at(0, 2, &[2]).await;
    masters.masters.push(moved);
    masters.until("the moved one leads", |masters| masters.masters[0].leads()).await;
    // The other master gets the address that the first one had.
    let other = masters.start_at(1, 0, &[2, 0]).await;
    masters.masters.push(other);
    assert_eq!(masters.request_add(2, 0).await, "ok");
    masters.promoted(0, 1).await;
    let config = masters.masters[0].opened.get().expect("it leads").status().committed_config.clone();
    let ports: Vec<u16> = config.peers.iter().map(|peer| peer.port).collect();
    assert_eq!(ports, [addr_of(2).port(), addr_of(0).port()]);
}

#[tokio::test(start_paused = true)]
async fn masters_started_together_keep_their_cluster_when_one_has_a_new_disk() {
    let mut masters = Masters::joined(3).await;
    masters.heartbeat(0).await;
    masters.create(0, "t").await;
    for master in std::mem::take(&mut masters.masters) {
        master.shutdown().await;
    }
    masters.envs[2].disks = Arc::new(MemDisks::default());
    // The master with the new disk asks first, before the others have opened their system tablets.
    let third = masters.start_as(2, 3).await;
    masters.masters = vec![masters.start_as(0, 3).await, masters.start_as(1, 3).await, third];
    let leads = |masters: &Masters| masters.masters.iter().position(|master| master.leads());
    masters.until("a leader", |masters| leads(masters).is_some()).await;
    masters.envs[0].sleep(Duration::from_secs(10)).await;
    assert!(masters.masters[2].opened.get().is_none(), "it waits for a copy and has made no cluster");
    let leader = leads(&masters).expect("the others have a majority");
    masters.heartbeat(leader).await;
    assert_eq!(masters.names(leader).await, ["t"]);
}

/// The others have the first configuration of the cluster, with this master in it, as if they had just initialized it.
#[tokio::test(start_paused = true)]
async fn a_master_that_lost_its_catalog_is_no_voter_of_the_first_configuration() {
    let mut masters = Masters::together(3).await;
    // The log of a leader has an operation.
    let at = masters.masters.iter().position(RunningMaster::leads).expect("one leads");
    masters.masters.remove(at).shutdown().await;
    let mut config = masters.config(at, 3);
    config.lost_data_dirs = std::mem::replace(&mut config.data_dirs, vec!["empty".to_string()]);
    let refused = crate::master::run(masters.envs[at].clone(), config).await.err().expect("refused");
    let message = refused.message;
    assert!(message.contains("no data directory (empty) has the catalog"), "{message}");
    // That start has not given up the directory.
    let again = masters.start_as(at, 3).await;
    masters.masters.insert(at, again);
    masters.until("its system tablet", |masters| masters.masters[at].opened.get().is_some()).await;
}

#[tokio::test(start_paused = true)]
async fn a_master_without_a_system_tablet_says_so() {
    let mut masters = Masters::start(2).await;
    masters.masters.remove(0).shutdown().await;
    masters.envs[0].disks = Arc::new(MemDisks::default());
    // It waits for the second master, which does not run.
    let first = masters.start_as(0, 2).await;
    masters.envs[0].sleep(Duration::from_secs(5)).await;
    assert!(first.opened.get().is_none());
    let deadline = masters.envs[0].now().mono.after(Duration::from_secs(20));
    let request = GetConsensusStateRequestPb::default();
    let service = "kudu.consensus.ConsensusService";
    let asked =
        masters.proxies[0].call(service, "GetConsensusState", &request, deadline, CallOptions::default());
    let state: GetConsensusStateResponsePb = asked.await.expect("it replies").message;
    assert_eq!((state.tablets.len(), state.error), (0, None));
}

#[tokio::test(start_paused = true)]
async fn masters_are_added_by_copy_and_transfer_leadership_when_they_stop() {
    let mut masters = Masters::start(3).await;
    masters.heartbeat(0).await;
    let mut names = Vec::new();
    while names.len() < 5 || !masters.first_segments_deleted(0).await {
        names.push(format!("table{:03}", names.len()));
        masters.create(0, names.last().expect("just pushed")).await;
        masters.envs[0].sleep(Duration::from_millis(50)).await;
        assert!(names.len() < 500, "the log is never cut");
    }
    masters.add(0).await;
    masters.add(0).await;
    let waits = masters.call::<_, AddMasterResponsePb>(0, "AddMaster", &AddMasterRequestPb::default()).await;
    assert!(shown(&waits.error).contains("does not say which master"), "{waits:?}");
    let address = |port| Some(HostPortPb { host: "127.0.0.1".to_string(), port });
    for (port, refusal) in
        [(7_052, "MASTER_ALREADY_PRESENT + ALREADY_PRESENT: Master already"), (72_588, "UNKNOWN_ERROR")]
    {
        let request = AddMasterRequestPb { rpc_addr: address(port) };
        let refused = shown(&masters.call::<_, AddMasterResponsePb>(0, "AddMaster", &request).await.error);
        assert!(refused.starts_with(refusal), "{refused}");
    }

    // The leader stops: another master leads at once, with the whole catalog, and accepts changes.
    let began = masters.envs[0].now().mono;
    masters.masters[0].shutdown().await;
    let leads = |masters: &Masters| masters.masters[1..].iter().position(|master| master.leads());
    masters.until("another leader", |masters| leads(masters).is_some()).await;
    let took = masters.envs[0].now().mono.since(began);
    assert!(took < Duration::from_millis(400), "{took:?} to the next leader");
    let next = 1 + leads(&masters).expect("it was just so");
    assert_eq!(masters.names(next).await, names);
    masters.heartbeat(next).await;
    masters.create(next, "zoo").await;
    let status = masters.masters[next].opened.get().expect("it runs").status();
    assert_eq!((status.role, status.committed_config.voter_count()), (Role::Leader, 3));
}

/// Each master had its last heartbeat at another time, and the leader decides for all.
#[tokio::test(start_paused = true)]
async fn all_masters_forget_a_server_that_is_unresponsive_for_the_leader() {
    let masters = Masters::joined(3).await;
    masters.heartbeat(0).await;
    masters.envs[0].sleep(Duration::from_secs(30)).await;
    masters.heartbeat(1).await;
    masters.heartbeat(2).await;
    let addresses = (0..3).map(|number| addr_of(number).to_string());
    let client = Client::connect(masters.envs[0].clone(), ClientConfig::new(addresses)).await;
    let client = client.expect("the masters run");
    let refused = client.unregister_server(SERVER, false).await.expect_err("30 s are too short").message;
    assert!(refused.contains("is alive; stop it first, or force it"), "{refused}");
    let knowing =
        || -> Vec<usize> { masters.masters.iter().map(|master| master.known_tservers.count()).collect() };
    assert_eq!(knowing(), [1, 1, 1]);
    masters.envs[0].sleep(Duration::from_secs(31)).await;
    client.unregister_server(SERVER, false).await.expect("61 s for the leader, 31 s for the others");
    assert_eq!(knowing(), [0, 0, 0]);
    // A follower that was not reached at first is asked again, though the leader has forgotten the server.
    masters.heartbeat(1).await;
    client.unregister_server(SERVER, false).await.expect("the leader has forgotten it before");
    assert_eq!(knowing(), [0, 0, 0]);
    // One that does not reply is named, and the others have forgotten the server.
    masters.heartbeat(1).await;
    masters.masters[2].shutdown().await;
    let failed = client.unregister_server(SERVER, false).await.expect_err("one does not reply").message;
    assert!(failed.contains(&format!("{}: no reply (", addr_of(2))), "{failed}");
    assert_eq!(knowing()[..2], [0, 0]);
}
