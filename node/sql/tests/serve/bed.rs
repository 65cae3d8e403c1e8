//! An embedded cluster, servers in front of it, and looks at its scanners.

use std::net::SocketAddr;

use node::server::cluster::{Cluster, ClusterConfig};
use node::server::flags::Flags;
use nyala_client::Client;
use nyala_common::env::os::{OsEnv, OsOptions};
use nyala_sql::serve::{ClusterAccess, ServeConfig, SqlServer};
use nyala_sql::{Format, Shell};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

/// Doublings of the table `big`, whose scans are cancelled: enough rows for many batches of a scanner.
const BIG_DOUBLINGS: u32 = 18;

/// Looks at a condition that must come to hold, before a test gives up.
pub(crate) const LOOKS_MAX: usize = 20_000;

/// Runs a test on threads with the stacks that planning needs.
pub(crate) fn block_on(test: impl Future<Output = ()>) {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.enable_all().thread_stack_size(16 << 20).build().expect("a runtime");
    runtime.block_on(test);
}

pub(crate) struct Bed {
    pub(crate) cluster: Cluster,
    pub(crate) client: Client,
    _dir: tempfile::TempDir,
}

impl Bed {
    pub(crate) async fn start() -> Bed {
        // Tests ask the tablet server for its open scanners.
        let (cluster, dir) = start_cluster(&[("superuser_acl", "*")]).await;
        let client = Client::builder(cluster.master_addresses()).connect().await.expect("a leader");
        Bed { cluster, client, _dir: dir }
    }

    pub(crate) async fn serve(&self, config: ServeConfig) -> SqlServer {
        let listen: SocketAddr = ([127, 0, 0, 1], 0).into();
        let cluster = ClusterAccess::OneUser(self.client.clone());
        SqlServer::start(cluster, ServeConfig { listen, ..config }).await.expect("a free port")
    }

    /// Runs statements as the shell does.
    pub(crate) async fn run(&self, script: &str) {
        let shell = Shell::new(self.client.clone(), Format::Csv);
        shell.run(script, &mut |_: &[u8]| Ok(())).await.expect(script);
    }

    /// Creates the table `big`, with `BIG_DOUBLINGS` doublings of a row.
    pub(crate) async fn fill_big(&self) {
        self.run(
            "CREATE TABLE big (k BIGINT PRIMARY KEY, pad VARCHAR) PARTITION BY HASH (k) PARTITIONS 2;
             INSERT INTO big VALUES (0, repeat('x', 100))",
        )
        .await;
        for doubling in 0..BIG_DOUBLINGS {
            self.run(&format!("INSERT INTO big SELECT k + {}, pad FROM big", 1_u64 << doubling)).await;
        }
        until(self, "the fill's scanners are closed", |open| open == 0).await;
    }

    pub(crate) async fn stop(mut self) {
        self.cluster.shutdown().await;
    }
}

/// Starts a cluster of one master and one tablet server with these flags.
pub(crate) async fn start_cluster(settings: &[(&str, &str)]) -> (Cluster, tempfile::TempDir) {
    let env = OsEnv::new(&OsOptions::default()).expect("this machine");
    let dir = tempfile::tempdir().expect("a temporary directory");
    let flags = Flags::new();
    for (name, value) in settings.iter().chain(&[("log_sync", "false"), ("webserver_enabled", "false")]) {
        flags.set(name, value).expect(name);
    }
    let config = ClusterConfig::on_loopback(dir.path().to_str().expect("UTF-8"), 1, flags);
    (Cluster::start(&env, &config).await.expect("free ports and a fresh directory"), dir)
}

/// Opens more connections than a server takes, each of which sends `first` and no more.
pub(crate) async fn flood(address: SocketAddr, first: &[u8]) -> Vec<TcpStream> {
    let mut flood = Vec::new();
    for _ in 0..250 {
        let mut socket = TcpStream::connect(address).await.expect("a server");
        socket.write_all(first).await.expect("an open connection");
        flood.push(socket);
    }
    flood
}

/// Waits until a condition on the number of open scanners holds, or another; each look is a call.
pub(crate) async fn until(bed: &Bed, what: &str, holds: impl Fn(u64) -> bool) {
    for _ in 0..LOOKS_MAX {
        if holds(open_scanners(bed).await) {
            return;
        }
    }
    panic!("not so: {what}");
}

/// Returns the number of open scanners, as the tablet server counts them.
pub(crate) async fn open_scanners(bed: &Bed) -> u64 {
    let address = bed.cluster.tablet_servers()[0].rpc_addr().to_string();
    bed.client.quiesce(&address, None).await.expect("a status").scanners
}
