//! A whole cluster in one process, on one address: for trying things out, for the demo, for tests.
//!
//! ```text
//! dir/master-1/{wal,data}   dir/tserver-1/{wal,data}   dir/tserver-2/{wal,data}   ...
//! ```

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use engine::error::{Error, Result};
use futures_util::stream::{FuturesUnordered, StreamExt};

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
    /// `Invalid` if no such cluster should be run.
    pub fn check(&self) -> Result<()> {
        if self.masters % 2 == 1 {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "a cluster has an odd number of masters, 1, 3 or 5: {} can lose no more than {} can",
            self.masters,
            self.masters.saturating_sub(1)
        )))
    }

    /// The settings of one server of a cluster on Kudu's ports.
    #[cfg(test)]
    pub(crate) fn server_flags(&self, kind: ServerKind, at: usize) -> Result<Flags> {
        let flags = settings(self, kind, at)?;
        let masters = self.master_names().join(",");
        match kind {
            ServerKind::Master if self.masters > 1 => flags.set("master_addresses", &masters)?,
            ServerKind::Master => {}
            ServerKind::TabletServer => flags.set("tserver_master_addrs", &masters)?,
        }
        Ok(flags)
    }

    /// Where the masters of a cluster on Kudu's ports are.
    #[cfg(test)]
    pub(crate) fn master_names(&self) -> Vec<String> {
        let (base, _) = crate::config::default_ports(ServerKind::Master);
        let name = |at: usize| SocketAddr::new(self.ip, base + 100 * at as u16).to_string();
        (0..self.masters).map(name).collect()
    }

    /// Replicas of tables that name no number: Kudu's three, or as many as so few tablet servers can hold.
    fn replicas_default(&self) -> usize {
        if self.tablet_servers < 3 { 1 } else { 3 }
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
        let reserved = reserve(env, config).await?;
        for at in 0..config.masters {
            let flags = settings(config, ServerKind::Master, at)?;
            if let Some(address) = reserved.get(at) {
                flags.set("rpc_bind_addresses", &address.to_string())?;
                let all: Vec<String> = reserved.iter().map(SocketAddr::to_string).collect();
                flags.set("master_addresses", &all.join(","))?;
            }
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

    /// Waits until every master has heard of every tablet server, and one of them leads.
    async fn meet(&self, env: &Env) -> Result<()> {
        for master in &self.masters {
            while master.tablet_servers().await? < self.tablet_servers.len() {
                env.sleep(Duration::from_millis(1)).await;
            }
        }
        while !self.masters.iter().any(Running::leads) {
            env.sleep(Duration::from_millis(1)).await;
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

    /// Ready, with why, when a master cannot do its work any more.
    pub async fn failed(&self) -> Error {
        let all: FuturesUnordered<_> = self.masters.iter().map(Running::failed).collect();
        match all.into_future().await {
            (Some(error), _) => error,
            (None, _) => std::future::pending().await,
        }
    }

    /// Stops the tablet servers, then the masters, in order.
    pub async fn shutdown(&mut self) {
        for server in self.tablet_servers.drain(..).chain(self.masters.drain(..)) {
            server.shutdown().await;
        }
    }
}

/// Where several masters will listen: each has to know all before it starts. Free ports are taken and given back, so
/// that another program may just get one; then the master says so.
async fn reserve(env: &Env, config: &ClusterConfig) -> Result<Vec<SocketAddr>> {
    if config.masters == 1 {
        return Ok(Vec::new());
    }
    let (base, _) = crate::config::default_ports(ServerKind::Master);
    let mut addresses = Vec::new();
    let mut held = Vec::new();
    for at in 0..config.masters {
        match config.ports {
            Ports::Kudus => addresses.push(SocketAddr::new(config.ip, base + 100 * at as u16)),
            Ports::Free => {
                let listener = super::listen(env, SocketAddr::new(config.ip, 0), "host").await?;
                addresses.push(listener.local_addr());
                held.push(listener);
            }
        }
    }
    Ok(addresses)
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
    if kind == ServerKind::Master && !flags.is_given("default_num_replicas") {
        flags.set("default_num_replicas", &config.replicas_default().to_string())?;
    }
    flags.set("rpc_bind_addresses", &SocketAddr::new(config.ip, rpc).to_string())?;
    flags.set("webserver_port", &web.to_string())?;
    flags.set("fs_wal_dir", &format!("{dir}/wal"))?;
    flags.set("fs_data_dirs", &format!("{dir}/data"))?;
    Ok(flags)
}
