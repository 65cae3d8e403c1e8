//! Bits that flip in files of a stopped tablet server: the damaged replica is replaced from the others.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the test observes the servers from outside"
)]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use engine::ids::TabletId;
use engine::schema::row_ops::{ClientCell, RowOpKind};
use engine::schema::{ColumnSchema, DataType, Schema};
use node::dirs::ServerKind;
use node::server::flags::Flags;
use node::server::startup::{self, RunningServer};
use nyala_client::cluster_admin::RaftState;
use nyala_client::tables::CreateTable;
use nyala_client::{Client, ClientConfig, FlushMode, SessionConfig};
use nyala_common::env::Env;
use nyala_common::env::os::{OsEnv, OsOptions};

struct World {
    env: Env,
    dir: tempfile::TempDir,
    masters: String,
    client: Client,
    tservers: Vec<RunningServer>,
}

impl World {
    async fn new() -> (World, RunningServer) {
        let env: Env = OsEnv::new(&OsOptions::default()).expect("this machine");
        let dir = tempfile::tempdir().expect("a temporary directory");
        let master = start(&env, dir.path(), ServerKind::Master, "master", "127.0.0.1:0", "").await;
        let masters = master.rpc_addr().to_string();
        let mut tservers = Vec::new();
        for number in 0..3 {
            let name = format!("tserver-{number}");
            tservers.push(
                start(&env, dir.path(), ServerKind::TabletServer, &name, "127.0.0.1:0", &masters).await,
            );
        }
        // Servers show their Raft state to superusers.
        let user = env.disks.process_user().expect("a user");
        let config = ClientConfig { user, ..ClientConfig::new(vec![masters.clone()]) };
        let client = Client::connect(env.clone(), config).await.expect("the master runs");
        while client.tablet_servers().await.expect("the master runs") < 3 {
            env.sleep(Duration::from_millis(10)).await;
        }
        (World { env, dir, masters, client, tservers }, master)
    }

    /// Stops a tablet server, flips a bit of one of its files, and starts it again.
    async fn restart_with_rot(&mut self, number: usize, file: impl Fn(&Path) -> (PathBuf, usize)) {
        // At the same address, where its leader reaches it.
        let addr = self.tservers[number].rpc_addr().to_string();
        self.tservers[number].shutdown().await;
        let name = format!("tserver-{number}");
        let (path, at) = file(&self.dir.path().join(&name));
        let mut bytes = std::fs::read(&path).expect("a file");
        bytes[at] ^= 4;
        std::fs::write(&path, bytes).expect("written");
        let kind = ServerKind::TabletServer;
        self.tservers[number] = start(&self.env, self.dir.path(), kind, &name, &addr, &self.masters).await;
    }

    async fn raft_states(&self, tablet: TabletId) -> Vec<RaftState> {
        let mut states = Vec::new();
        for server in self.client.servers().await.expect("the master runs") {
            let address = format!("{}:{}", server.host, server.port);
            let of_server = self.client.raft_states(server.id, &address).await.unwrap_or_default();
            states.extend(of_server.into_iter().filter(|state| state.tablet == tablet));
        }
        states
    }

    /// Waits until three replicas run with a configuration of three voters that is newer than `index`. Returns its
    /// index.
    async fn wait_replaced(&self, tablet: TabletId, index: i64) -> i64 {
        loop {
            let states = self.raft_states(tablet).await;
            let newest = states.iter().map(|state| state.config_index).max().unwrap_or_default();
            let settled = |state: &RaftState| {
                state.config_index == newest && state.voters.len() == 3 && state.learners.is_empty()
            };
            if newest > index && states.len() == 3 && states.iter().all(settled) {
                return newest;
            }
            self.env.sleep(Duration::from_millis(50)).await;
        }
    }
}

async fn start(
    env: &Env,
    dir: &Path,
    kind: ServerKind,
    name: &str,
    addr: &str,
    masters: &str,
) -> RunningServer {
    let flags = Flags::new();
    let dir = dir.join(name);
    let set = |flag: &str, value: &str| flags.set(flag, value).expect("a flag");
    set("fs_wal_dir", dir.to_str().expect("UTF-8"));
    set("rpc_bind_addresses", addr);
    set("webserver_enabled", "false");
    set("log_sync", "false");
    if kind == ServerKind::TabletServer {
        set("tserver_master_addrs", masters);
    }
    let server = startup::start(env, kind, Arc::new(flags)).await.expect("a free port and a sound directory");
    server.until_ready().await.expect("a sound catalog");
    server
}

/// The last byte of the last log segment that is not zero.
fn end_of_log(dir: &Path, tablet: TabletId) -> (PathBuf, usize) {
    let log = std::fs::read_dir(dir.join(format!("wals/{tablet}"))).expect("a log");
    let segments = log.map(|entry| entry.expect("an entry").path());
    let last =
        segments.filter(|path| path.extension().is_some_and(|name| name == "wal")).max().expect("a segment");
    let bytes = std::fs::read(&last).expect("a segment");
    let at = bytes.iter().rposition(|byte| *byte != 0).expect("a batch");
    (last, at)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_with_rotten_consensus_metadata_or_log_is_replaced() {
    let (mut world, master) = World::new().await;
    let columns = vec![ColumnSchema::new(0, "k", DataType::Int64)];
    let schema = Schema::new(columns, 1).expect("a schema");
    let create = CreateTable { replicas: Some(3), ..CreateTable::new("t", schema) };
    let table = world.client.create_table(&create).await.expect("a new table");
    let session = world.client.session(SessionConfig::new(FlushMode::AutoBackground));
    for key in 0..100i64 {
        let row = [ClientCell::Value(&key.to_le_bytes())];
        session.apply(&table, RowOpKind::Insert, &row, 0).await.expect("there is space");
    }
    assert!(session.flush().await.is_empty());
    let tablet = world.client.replicas("t").await.expect("it exists")[0].id;
    world.restart_with_rot(0, |dir| (dir.join(format!("consensus-meta/{tablet}")), 20)).await;
    let index = world.wait_replaced(tablet, -1).await;
    world.restart_with_rot(1, |dir| end_of_log(dir, tablet)).await;
    world.wait_replaced(tablet, index).await;
    assert_eq!(table.count(Vec::new()).await.expect("the servers run"), 100);
    for server in &world.tservers {
        server.shutdown().await;
    }
    master.shutdown().await;
}
