//! Several masters: added one by one with and without log GC, and shut down in order. Time is paused.

use std::sync::Arc;

use engine::config::TabletConfig;
use engine::error::ErrorKind;
use engine::raft::Role;

use super::*;
use nyala_common::env::partitionable_net::PartitionableNet;
use nyala_common::env::testing::{MemDisks, becomes, hosts};
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
        let wires = PartitionableNet::default();
        let mut envs = hosts(&wires, master_count + 1);
        let client = envs.pop().expect("the client is a host too");
        let proxies =
            (0..master_count).map(|number| Proxy::new(client.clone(), addr_of(number), "ann")).collect();
        let mut masters = Masters { envs, masters: Vec::new(), proxies, auto_join };
        masters.run().await;
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
        let mut config = MasterConfig::new(addr_of(number), "wal", vec!["data".to_string()]);
        config.masters = (0..master_count).map(|number| addr_of(number).to_string()).collect();
        config.auto_join = self.auto_join;
        config.tablet = TabletConfig::tiny();
        config.maintenance_interval = Duration::from_millis(20);
        config.catalog.replicas_default = 1;
        crate::master::run(self.envs[number].clone(), config).await.expect("the master starts")
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
        let address = HostPortPb { host: "127.0.0.1".to_string(), port: u32::from(addr_of(number).port()) };
        let request = AddMasterRequestPb { rpc_addr: Some(address) };
        let added: AddMasterResponsePb = self.call(leader, "AddMaster", &request).await;
        assert_eq!(shown(&added.error), "ok");
        self.promoted(leader, number).await;
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
