//! `nyala cluster …` against an embedded cluster of four tablet servers.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the test observes the program from outside"
)]

use std::collections::BTreeSet;
use std::ffi::OsString;

use engine::ids::{PeerId, Uuid};
use node::cli::{self, ExitError};
use node::server::cluster::{Cluster, ClusterConfig};
use node::server::flags::Flags;
use nyala_client::replica_admin::ServerInfo;
use nyala_client::{Client, ClientConfig};
use nyala_common::env::Env;
use nyala_common::env::os::{OsEnv, OsOptions};
use nyala_common::rpc::client::{CallOptions, Proxy};
use nyala_proto::kudu::master::change_t_server_state_request_pb::HandleMissingTs;
use nyala_proto::kudu::master::t_server_state_change_pb::StateChange;
use nyala_proto::kudu::master::{
    ChangeTServerStateRequestPb, ChangeTServerStateResponsePb, TServerStateChangePb,
};

struct World {
    env: Env,
    cluster: Cluster,
    client: Client,
    _dir: tempfile::TempDir,
}

impl World {
    /// Starts a cluster of one master with a table of two tablets and three replicas.
    async fn new() -> World {
        World::with_masters(1).await
    }

    async fn with_masters(masters: usize) -> World {
        let world = World::start(masters, 4).await;
        let create = ["table", "create", "t", "--column", "k int32", "--hash", "k:2", "--replicas", "3"];
        world.run(&create).await.expect("a new table");
        world.run(&["table", "insert", "t", "k=1"]).await.expect("a new row");
        world
    }

    /// Starts a cluster without tables.
    async fn start(masters: usize, tablet_servers: usize) -> World {
        let env: Env = OsEnv::new(&OsOptions::default()).expect("this machine");
        let dir = tempfile::tempdir().expect("a temporary directory");
        let flags = Flags::new();
        flags.set("log_sync", "false").expect("a flag");
        let path = dir.path().to_str().expect("UTF-8");
        let config = ClusterConfig { masters, ..ClusterConfig::on_loopback(path, tablet_servers, flags) };
        let cluster = Cluster::start(&env, &config).await.expect("free ports and a fresh directory");
        let user = env.disks.process_user().expect("it has a name");
        let masters = ClientConfig { user, ..ClientConfig::new(cluster.master_addresses()) };
        let client = Client::connect(env.clone(), masters).await.expect("it runs");
        World { env, cluster, client, _dir: dir }
    }

    async fn run(&self, args: &[&str]) -> Result<(), ExitError> {
        let masters = self.cluster.master_addresses().join(",");
        let all = ["nyala"].into_iter().chain(args.iter().copied()).chain(["--masters", &masters]);
        let matches = cli::command().try_get_matches_from(all.map(OsString::from)).expect("legal arguments");
        let read_file = |path: &str| std::fs::read(path);
        let invocation = cli::parse(&matches, &read_file)?;
        invocation.run(self.env.clone(), Box::pin(std::future::pending()), &|_| {}).await
    }

    async fn servers(&self) -> Vec<ServerInfo> {
        self.client.servers().await.expect("the master runs")
    }

    /// Returns the number of replicas with data on a server.
    async fn replicas_on(&self, server: &ServerInfo) -> usize {
        let address = format!("{}:{}", server.host, server.port);
        let replicas = self.client.local_replicas(&address).await.expect("the server runs");
        replicas.iter().filter(|replica| !replica.tombstoned).count()
    }

    /// Puts a server that has not registered into maintenance mode: masters that have restarted know no more of one
    /// that is down.
    async fn enter_maintenance_unregistered(&self, server: PeerId) {
        let user = self.env.disks.process_user().expect("it has a name");
        let master = Proxy::new(self.env.clone(), self.cluster.masters()[0].rpc_addr(), user.as_str());
        let change = TServerStateChangePb {
            uuid: Some(server.to_string()),
            change: Some(StateChange::EnterMaintenanceMode as i32),
        };
        let request = ChangeTServerStateRequestPb {
            change: Some(change),
            handle_missing_tserver: Some(HandleMissingTs::AllowMissingTserver as i32),
        };
        let deadline = self.env.now().mono.after(std::time::Duration::from_secs(20));
        let service = "kudu.master.MasterService";
        let options = CallOptions::default();
        let reply = master.call(service, "ChangeTServerState", &request, deadline, options).await;
        let response: ChangeTServerStateResponsePb = reply.expect("the master runs").message;
        assert_eq!(response.error, None);
    }

    /// Checks that a server is neither in maintenance mode nor quiescing.
    async fn is_in_use(&self, id: &str) {
        let server = self.servers().await.into_iter().find(|server| server.id.to_string() == id);
        let server = server.expect("it is known");
        let status = self.client.quiesce(&format!("{}:{}", server.host, server.port), None).await;
        let quiescing = status.expect("the server runs").quiescing;
        assert_eq!((server.maintenance, quiescing), (false, false));
    }

    /// Runs `cluster check` until the masters know what a command changed.
    async fn until_healthy(&self) {
        while self.run(&["cluster", "check"]).await.is_err() {
            self.env.sleep(std::time::Duration::from_millis(50)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_is_decommissioned() {
    let mut world = World::new().await;
    world.until_healthy().await;
    // The replicas of a table that is kept after its drop move too.
    let create = ["table", "create", "kept", "--column", "k int32", "--replicas", "3"];
    world.run(&create).await.expect("a new table");
    world.run(&["table", "insert", "kept", "k=1"]).await.expect("a new row");
    let kept = world.client.replicas("kept").await.expect("it exists").remove(0);
    let kept_on: BTreeSet<PeerId> = kept.replicas.iter().map(|replica| replica.server).collect();
    world.client.delete_table_later("kept", 3600).await.expect("it exists");
    let mut leaving = world.servers().await.remove(0);
    for server in world.servers().await {
        if kept_on.contains(&server.id) {
            leaving = server;
        }
    }
    let id = leaving.id.to_string();
    world.run(&["cluster", "decommission", &id]).await.expect("three others remain");
    assert_eq!(world.replicas_on(&leaving).await, 0);
    world.until_healthy().await;
    // It is in maintenance mode, so nothing returns to it.
    world.run(&["cluster", "rebalance"]).await.expect("all servers reply");
    assert_eq!(world.replicas_on(&leaving).await, 0);
    world.run(&["table", "recall", "kept"]).await.expect("it is kept");
    world.run(&["table", "insert", "kept", "k=2"]).await.expect("a majority runs");
    let next =
        world.servers().await.into_iter().find(|server| server.id != leaving.id).expect("four servers");
    let refused = world.run(&["cluster", "decommission", &next.id.to_string()]).await;
    insta::assert_snapshot!(
        refused.expect_err("two others remain").message.replace(&next.id.to_string(), "<id>"),
        @"server <id>: table kept wants 3 replicas (2 usable servers would be left); add a server"
    );
    world.run(&["cluster", "undrain", &id]).await.expect("the server runs");
    let alive = world.run(&["cluster", "remove-server", &id]).await.expect_err("it is alive");
    assert!(alive.message.contains("stop it first, or force it"), "{alive}");
    world.cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flag_of_one_kind_of_servers_is_set_on_all_of_them() {
    let mut world = World::new().await;
    let set = async |servers: &'static str, flag: &'static str| {
        world.run(&["cluster", "set-flag", servers, flag, "3", "--force"]).await
    };
    set("all", "flush_threshold_mb").await.expect("masters are left out");
    set("all", "default_num_replicas").await.expect("tablet servers are left out");
    set("all", "follower_unavailable_considered_failed_sec").await.expect("all have it");
    let refused = set("masters", "flush_threshold_mb").await.expect_err("masters do not have it").message;
    assert!(refused.contains("not a flag of this kind of server"), "{refused}");
    let refused = set("all", "heartbeat_interval_ms").await.expect_err("no change without effect").message;
    assert!(refused.contains("takes effect only when the server starts"), "{refused}");
    world.cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flag_that_no_server_takes_is_not_set_in_silence() {
    let mut world = World::start(1, 0).await;
    let set = ["cluster", "set-flag", "tablet-servers", "scanner_ttl_ms", "5"];
    let refused = world.run(&set).await.expect_err("no tablet server has registered");
    assert_eq!(refused.code, 1);
    insta::assert_snapshot!(
        refused.message,
        @"tablet-servers: no registered server has the flag scanner_ttl_ms, so that nothing was changed; see nyala cluster servers"
    );
    world.cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_is_drained_for_a_restart() {
    let mut world = World::new().await;
    world.until_healthy().await;
    let server = world.servers().await.remove(0);
    let address = format!("{}:{}", server.host, server.port);
    world.run(&["cluster", "drain", &address]).await.expect("every tablet has two other replicas");
    let status = world.client.quiesce(&address, None).await.expect("the server runs");
    assert_eq!((status.quiescing, status.leaders), (true, 0));
    let again = world.servers().await.into_iter().find(|other| other.id == server.id).expect("it is known");
    assert!(again.maintenance);
    world.run(&["cluster", "servers"]).await.expect("the masters run");
    world.run(&["cluster", "servers", "--format", "json"]).await.expect("the masters run");
    world.run(&["cluster", "undrain", &address]).await.expect("the server runs");
    let status = world.client.quiesce(&address, None).await.expect("the server runs");
    assert!(!status.quiescing);
    world.cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tablet_with_one_replica_keeps_its_server() {
    let mut world = World::new().await;
    let create = ["table", "create", "one", "--column", "k int32", "--replicas", "1"];
    world.run(&create).await.expect("a new table");
    let tablet = world.client.replicas("one").await.expect("it exists").remove(0);
    let server = tablet.replicas[0].server.to_string();
    let refused = world.run(&["cluster", "drain", &server]).await.expect_err("the tablet would be offline");
    assert!(refused.message.contains("1 tablets have their only replica here"), "{refused}");
    world.is_in_use(&server).await;
    world.run(&["cluster", "decommission", &server]).await.expect("three others remain");
    let tablet = world.client.replicas("one").await.expect("it exists").remove(0);
    let moved = tablet.replicas[0].server.to_string();
    assert_ne!(moved, server);
    world.client.delete_table_later("one", 3600).await.expect("it exists");
    let refused = world.run(&["cluster", "drain", &moved]).await.expect_err("a recall would find it offline");
    assert!(refused.message.contains("1 tablets have their only replica here"), "{refused}");
    world.is_in_use(&moved).await;
    world.cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_server_is_found_and_gets_no_replicas() {
    let mut world = World::new().await;
    world.until_healthy().await;
    let dead = world.cluster.tablet_servers().last().expect("four servers");
    let port = dead.rpc_addr().port();
    let uuid = world.servers().await.into_iter().find(|server| server.port == port).expect("it is known").id;
    dead.shutdown().await;
    let report = world.run(&["cluster", "check"]).await.expect_err("a server is down");
    assert_eq!(report.code, 1);
    let refused = world.run(&["cluster", "rebalance"]).await.expect_err("a server is down").message;
    assert!(refused.starts_with(&format!("server {uuid}: down (")), "{refused}");
    let (usable, excluded) = world.client.usable_servers().await.expect("the master runs");
    assert_eq!((usable.len(), excluded.len()), (3, 1));
    world.run(&["cluster", "rebalance", "--ignore-down"]).await.expect("three servers reply");

    let id = uuid.to_string();
    let drain = ["cluster", "drain", &id, "--timeout", "1"];
    let refused = world.run(&drain).await.expect_err("it is down").message;
    assert!(refused.contains("it does not reply ("), "{refused}");
    let listed = world.servers().await.into_iter().find(|server| server.id == uuid).expect("it is known");
    assert!(!listed.maintenance, "a drain that is refused changes nothing");

    // The masters wait for a server in maintenance mode, as an interrupted command leaves it.
    let decommission = ["cluster", "decommission", &id];
    world.run(&["cluster", "maintenance", &id, "on"]).await.expect("the masters know it");
    let refused = world.run(&decommission).await.expect_err("it is down").message;
    let step =
        format!("; end its maintenance mode with nyala cluster maintenance {id} off, then the masters");
    assert!(refused.contains(&step), "{refused}");
    world.run(&["cluster", "maintenance", &id, "off"]).await.expect("the masters know it");
    let refused = world.run(&decommission).await.expect_err("it is down").message;
    assert!(refused.contains("; the masters replace its replicas by themselves"), "{refused}");
    world.cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn voters_are_replaced_only_without_a_majority() {
    let mut world = World::new().await;
    world.until_healthy().await;
    let tablet = world.client.replicas("t").await.expect("it exists").remove(0);
    let (id, left) = (tablet.id.to_string(), tablet.replicas[0].server);
    let server = left.to_string();
    let change = ["cluster", "unsafe-change-config", &id, &server];
    let done = [&change[..], &["--yes"]].concat();
    for words in [&change[..], &done[..]] {
        let refused = world.run(words).await.expect_err("all voters run").message;
        assert_eq!(
            refused,
            format!(
                "tablet {id}: 3 of 3 voters run (majority 2), and elect a leader by themselves; see nyala cluster \
                 check, or give --force"
            )
        );
    }
    world.run(&[&change[..], &["--force"]].concat()).await.expect("it only shows the change");
    let voters = world.client.replicas("t").await.expect("it exists").remove(0).replicas.len();
    assert_eq!(voters, 3);
    for server in world.servers().await {
        let is_voter = tablet.replicas.iter().any(|replica| replica.server == server.id);
        if is_voter && server.id != left {
            let mut running = world.cluster.tablet_servers().iter();
            let lost = running.find(|running| running.rpc_addr().port() == server.port);
            lost.expect("it runs").shutdown().await;
        }
    }
    world.run(&["cluster", "check"]).await.expect_err("two servers are down");
    world.run(&done).await.expect("one of three voters runs");
    world.cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_in_maintenance_mode_that_has_not_registered_can_be_put_back() {
    let mut world = World::new().await;
    world.until_healthy().await;
    let server = Uuid([0xab; 16]);
    let id = server.to_string();
    let short = &id[..8];
    for way_out in [&["maintenance", short, "off"][..], &["undrain", &id], &["remove-server", &id]] {
        world.enter_maintenance_unregistered(server).await;
        let listed =
            world.servers().await.into_iter().find(|listed| listed.id == server).expect("its record");
        assert!(listed.maintenance && !listed.is_registered());
        world.run(&["cluster", "servers"]).await.expect("the masters run");
        world.run(&["cluster", "check"]).await.expect_err("a server is down");
        let refused = world.run(&["cluster", "drain", &id]).await.expect_err("it is down").message;
        assert!(refused.contains("it has not registered since the masters started; start it"), "{refused}");
        let refused = world.run(&["cluster", "decommission", &id]).await.expect_err("it is down").message;
        assert!(refused.contains(&format!("with nyala cluster maintenance {id} off")), "{refused}");
        world.run(&[&["cluster"][..], way_out].concat()).await.expect("the masters know it");
        assert!(world.servers().await.iter().all(|listed| listed.id != server));
        world.run(&["cluster", "check"]).await.expect("no server is down");
    }
    world.cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_no_master_lists_is_named_by_its_whole_id() {
    let mut world = World::with_masters(3).await;
    world.until_healthy().await;
    let id = Uuid([0xcd; 16]).to_string();
    let remove = ["cluster", "remove-server", &id];
    world.run(&["cluster", "check", "--down", &id]).await.expect("all others run");
    world.run(&["cluster", "maintenance", &id, "off"]).await.expect("it is in none");
    world.run(&remove).await.expect("it was forgotten before");
    let short = &id[..8];
    for words in [
        &["check", "--down", short][..],
        &["maintenance", short, "off"],
        &["maintenance", &id, "on"],
        &["remove-server", "cdcd:7050"],
    ] {
        let refused = world.run(&[&["cluster"][..], words].concat()).await.expect_err("it is not listed");
        assert!(refused.message.contains("not known; see nyala cluster servers"), "{refused}");
    }

    let masters = world.client.masters().await.expect("one leads");
    let silent = masters.into_iter().find(|master| !master.leader).expect("two others").address;
    let mut running = world.cluster.masters().iter();
    let lost = running.find(|master| silent.ends_with(&format!(":{}", master.rpc_addr().port())));
    lost.expect("it runs").shutdown().await;
    let refused = world.run(&remove).await.expect_err("a master does not reply").message;
    assert!(refused.contains("not all masters have forgotten it") && refused.contains(&silent), "{refused}");
    world.cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_that_does_not_exist_is_not_rebalanced() {
    let mut world = World::new().await;
    world.until_healthy().await;
    let rebalance = ["cluster", "rebalance", "--tables", "t"];
    world.run(&rebalance).await.expect("it exists");
    for more in [&["--tables", "typo"][..], &["--tables", "typo", "--report-only"]] {
        let refused = world.run(&[&rebalance[..], more].concat()).await.expect_err("no such table");
        assert_eq!((refused.code, refused.message.as_str()), (1, "table typo: not found; nothing was moved"));
    }
    world.cluster.shutdown().await;
}
