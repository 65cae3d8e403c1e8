//! A cluster inside the test's process, in a temporary directory, and commands of `nyala` against it.
#![allow(dead_code, reason = "each program uses a part")]

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::time::Duration;

use node::cli::{self, ExitError};
use node::server::cluster::{Cluster, ClusterConfig};
use node::server::flags::Flags;
use node::server::startup::RunningServer;
use nyala_common::env::os::{ClockError, OsEnv, OsOptions};
use nyala_common::env::{BoxFuture, Env};

/// Error of the clock that all servers read. The kernel's own bound depends on the machine and its hour.
const CLOCK_ERROR: Duration = Duration::from_millis(10);

pub(crate) struct EmbeddedCluster {
    pub(crate) env: Env,
    pub(crate) cluster: Cluster,
    dir: tempfile::TempDir,
}

impl EmbeddedCluster {
    /// Starts one master and one tablet server.
    pub(crate) async fn start() -> EmbeddedCluster {
        EmbeddedCluster::with(1, &[]).await
    }

    pub(crate) async fn with(tablet_servers: usize, settings: &[(&str, &str)]) -> EmbeddedCluster {
        let options = OsOptions { clock_error: ClockError::Fixed(CLOCK_ERROR), ..OsOptions::default() };
        let env: Env = OsEnv::new(&options).expect("this machine");
        let dir = tempfile::tempdir().expect("a temporary directory");
        let flags = Flags::new();
        for (name, value) in [("log_sync", "false")].iter().chain(settings) {
            flags.set(name, value).expect("a flag");
        }
        let config = ClusterConfig::on_loopback(
            dir.path().join("data").to_str().expect("UTF-8"),
            tablet_servers,
            flags,
        );
        let cluster = Cluster::start(&env, &config).await.expect("free ports and a fresh directory");
        EmbeddedCluster { env, cluster, dir }
    }

    /// Returns the path of a file beside the cluster's own.
    pub(crate) fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().expect("UTF-8").to_string()
    }

    pub(crate) fn masters(&self) -> String {
        self.cluster.master_addresses().join(",")
    }

    pub(crate) fn tablet_server(&self, at: usize) -> &node::tserver::RunningTserver {
        let RunningServer::TabletServer(server) = &self.cluster.tablet_servers()[at] else {
            panic!("its kind")
        };
        server
    }

    pub(crate) async fn shutdown(&mut self) {
        self.cluster.shutdown().await;
    }
}

/// Runs a command of `nyala` that is interrupted once `stop` is ready.
#[allow(clippy::disallowed_methods, reason = "the program has no environment yet when it reads these files")]
pub(crate) async fn run_until(
    env: &Env,
    args: &[&str],
    stop: BoxFuture<'static, ()>,
) -> Result<(), ExitError> {
    let all = ["nyala"].iter().chain(args).map(OsString::from);
    let matches = cli::command().try_get_matches_from(all).expect("legal arguments");
    let read_file = |path: &str| fs::read(Path::new(path));
    let invocation = cli::parse(&matches, &read_file)?;
    invocation.run(env.clone(), stop, &|_| {}).await
}
