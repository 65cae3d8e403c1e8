//! A whole cluster in one process, on one address: for trying things out, for the demo, for tests.
//!
//! ```text
//! dir/master-1/{wal,data}   dir/tserver-1/{wal,data}   dir/tserver-2/{wal,data}   ...
//! ```

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use engine::error::{Error, Result};

use super::flags::Flags;
use super::run::{self, Running};
use crate::dirs::ServerKind;
use crate::env::Env;

/// How long tablet servers may take to find the masters of their own process.
const MEETING_TIME: Duration = Duration::from_secs(30);

/// Which ports the servers take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ports {
    /// Kudu's, and 100 more for each further server.
    Kudus,
    /// Free ones.
    Free,
}

/// What cluster is wanted.
pub struct ClusterConfig {
    /// Made if it is missing.
    pub dir: String,
    pub masters: usize,
    pub tablet_servers: usize,
    pub ip: IpAddr,
    pub ports: Ports,
    /// What all servers are set to; addresses and directories are filled in.
    pub flags: Flags,
}

impl ClusterConfig {
    /// `Unsupported` if this build cannot run such a cluster.
    pub fn check(&self) -> Result<()> {
        if self.masters == 1 {
            return Ok(());
        }
        Err(Error::unsupported(format!(
            "a cluster of {} masters cannot be made: this build runs one, as tablets are not replicated",
            self.masters
        )))
    }
}

/// A running cluster.
pub struct Cluster {
    masters: Vec<Running>,
    tablet_servers: Vec<Running>,
}

impl Cluster {
    /// Starts the masters, then the tablet servers, and waits until they know each other: tables can be made at once.
    /// If one cannot start, those that run are stopped again.
    pub async fn start(env: &Env, config: &ClusterConfig) -> Result<Cluster> {
        config.check()?;
        let mut cluster = Cluster { masters: Vec::new(), tablet_servers: Vec::new() };
        match cluster.start_all(env, config).await {
            Ok(()) => Ok(cluster),
            Err(error) => {
                cluster.shutdown().await;
                Err(error)
            }
        }
    }

    async fn start_all(&mut self, env: &Env, config: &ClusterConfig) -> Result<()> {
        for at in 0..config.masters {
            let flags = settings(config, ServerKind::Master, at)?;
            let master = run::start(env, ServerKind::Master, Arc::new(flags)).await;
            self.masters.push(master.map_err(|error| error.context(format_args!("master-{}", at + 1)))?);
        }
        let addresses = self.master_addresses().join(",");
        for at in 0..config.tablet_servers {
            let flags = settings(config, ServerKind::TabletServer, at)?;
            flags.set("tserver_master_addrs", &addresses)?;
            let server = run::start(env, ServerKind::TabletServer, Arc::new(flags)).await;
            self.tablet_servers
                .push(server.map_err(|error| error.context(format_args!("tserver-{}", at + 1)))?);
        }
        let met = env.timeout(MEETING_TIME, self.meet(env)).await;
        met.unwrap_or_else(|| Err(Error::not_ready("the tablet servers do not reach the masters")))
    }

    /// Waits until every master has heard of every tablet server.
    async fn meet(&self, env: &Env) -> Result<()> {
        for master in &self.masters {
            while master.tablet_servers().await? < self.tablet_servers.len() {
                env.sleep(Duration::from_millis(1)).await;
            }
        }
        Ok(())
    }

    /// `host:port` of each master: what clients connect to.
    pub fn master_addresses(&self) -> Vec<String> {
        self.masters.iter().map(|master| master.rpc_addr().to_string()).collect()
    }

    pub fn masters(&self) -> &[Running] {
        &self.masters
    }

    pub fn tablet_servers(&self) -> &[Running] {
        &self.tablet_servers
    }

    /// Ready, with why, when the cluster cannot do its work any more.
    pub async fn failed(&self) -> Error {
        match self.masters.first() {
            Some(master) => master.failed().await,
            None => std::future::pending().await,
        }
    }

    /// Stops the tablet servers, then the masters, in order.
    pub async fn shutdown(&mut self) {
        for server in self.tablet_servers.drain(..).chain(self.masters.drain(..)) {
            server.shutdown().await;
        }
    }
}

/// The settings of one server.
fn settings(config: &ClusterConfig, kind: ServerKind, at: usize) -> Result<Flags> {
    let flags = config.flags.fork();
    let (rpc, web) = match config.ports {
        Ports::Free => (0, 0),
        Ports::Kudus => {
            let (rpc, web) = crate::config::default_ports(kind);
            let step = u16::try_from(at * 100).unwrap_or(u16::MAX);
            let port = |base: u16| {
                base.checked_add(step)
                    .ok_or_else(|| Error::invalid(format!("there is no port for server {}", at + 1)))
            };
            (port(rpc)?, port(web)?)
        }
    };
    let name = match kind {
        ServerKind::Master => "master",
        ServerKind::TabletServer => "tserver",
    };
    let dir = format!("{}/{name}-{}", config.dir.trim_end_matches('/'), at + 1);
    flags.set("rpc_bind_addresses", &SocketAddr::new(config.ip, rpc).to_string())?;
    flags.set("webserver_port", &web.to_string())?;
    flags.set("fs_wal_dir", &format!("{dir}/wal"))?;
    flags.set("fs_data_dirs", &format!("{dir}/data"))?;
    Ok(flags)
}
