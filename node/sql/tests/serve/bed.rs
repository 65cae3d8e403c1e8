//! An embedded cluster, servers in front of it, and looks at its scanners.

use std::net::SocketAddr;
use std::sync::Arc;

use node::server::cluster::{Cluster, ClusterConfig};
use node::server::flags::Flags;
use nyala_client::closing::{self, PendingCloses};
use nyala_client::{Client, ErrorKind};
use nyala_common::env::Env;
use nyala_common::env::os::{OsEnv, OsOptions};
use nyala_sql::serve::{ClusterAccess, ServeConfig, SqlServer};
use nyala_sql::{Format, Shell};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

/// Doublings of the table `big`, whose scans are cancelled: enough rows for many batches of a scanner.
const BIG_DOUBLINGS: u32 = 18;

/// Statement that fills the table `half` from `big`.
pub(crate) const CREATE_HALF: &str = "CREATE TABLE IF NOT EXISTS half PRIMARY KEY (k)
                                      PARTITION BY HASH (k) PARTITIONS 2 AS SELECT k, pad FROM big";

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
        serve(self.client.clone(), config).await
    }

    /// Serves as the program does, which ends when the scanners of its statements are closed and their unfinished tables
    /// dropped.
    pub(crate) async fn start_program(&self, config: ServeConfig) -> ServeProgram {
        let (env, closes) = closing::watch(self.client.env());
        let client = Client::connect(env.clone(), self.client.config().clone()).await.expect("a leader");
        ServeProgram { server: serve(client, config).await, env, closes }
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

async fn serve(client: Client, config: ServeConfig) -> SqlServer {
    let listen: SocketAddr = ([127, 0, 0, 1], 0).into();
    let cluster = ClusterAccess::OneUser(client);
    SqlServer::start(cluster, ServeConfig { listen, ..config }).await.expect("a free port")
}

pub(crate) struct ServeProgram {
    pub(crate) server: SqlServer,
    env: Env,
    closes: Arc<PendingCloses>,
}

impl ServeProgram {
    /// Ends the program while [`CREATE_HALF`] runs, as soon as its table is there, and checks that the table is dropped.
    /// Returns the result of the statement.
    pub(crate) async fn end_during<T>(self, bed: &Bed, create: impl Future<Output = T>) -> T {
        let end = async {
            while bed.client.open_table("half").await.is_err() {}
            self.server.stop().await;
            self.closes.wait(&self.env).await;
            bed.client.open_table("half").await.err()
        };
        let (created, error) = tokio::join!(create, end);
        let error = error.expect("the table is dropped when the program ends");
        assert_eq!(error.kind, ErrorKind::NotFound, "{error}");
        created
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
