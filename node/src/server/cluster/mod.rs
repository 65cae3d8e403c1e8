//! A whole cluster in one process, on one address: for `nyala up`, the demo and tests.
//!
//! ```text
//! dir/master-1/{wal,data}   dir/tserver-1/{wal,data}   dir/tserver-2/{wal,data}   ...
//! ```

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use engine::error::{Error, Result};
use futures_util::stream::{FuturesUnordered, StreamExt};

use crate::dirs::ServerKind;
use crate::server::flags::Flags;
use crate::server::startup::{self, RunningServer};
use nyala_common::env::{BoxFuture, Env};

/// Longest wait for tablet servers to register with the masters.
const REGISTRATION_TIME_MAX: Duration = Duration::from_secs(30);

/// Assignment of ports to the servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PortAssignment {
    /// Kudu's port, plus 100 for each further server of a kind.
    Kudus,
    /// Free ports.
    Free,
}

/// Configuration of a cluster.
pub struct ClusterConfig {
    /// Directory of the cluster; created if missing.
    pub dir: String,
    pub masters: usize,
    pub tablet_servers: usize,
    pub ip: IpAddr,
    pub ports: PortAssignment,
    /// Flags of all servers; addresses and directories are filled in.
    pub flags: Flags,
}

impl ClusterConfig {
    /// Returns a cluster of one master on free ports of 127.0.0.1.
    pub fn on_loopback(dir: impl Into<String>, tablet_servers: usize, flags: Flags) -> ClusterConfig {
        let (ip, ports) = (Ipv4Addr::LOCALHOST.into(), PortAssignment::Free);
        ClusterConfig { dir: dir.into(), masters: 1, tablet_servers, ip, ports, flags }
    }

    /// Returns `Invalid` for a cluster that should not run.
    pub fn check(&self) -> Result<()> {
        if self.masters % 2 == 1 {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "a cluster needs an odd number of masters, 1, 3 or 5: {} tolerate no more failures than {}",
            self.masters,
            self.masters.saturating_sub(1)
        )))
    }

    /// Checks the flags of a server of each kind, as a server of its own does before it starts.
    pub async fn check_flags(&self, env: &Env) -> Result<()> {
        let (port, _) = crate::config::default_ports(ServerKind::Master);
        for kind in [ServerKind::Master, ServerKind::TabletServer] {
            let flags = settings(self, kind, 0)?;
            if kind == ServerKind::TabletServer {
                // The masters of free ports are not known yet.
                flags.set("tserver_master_addrs", &SocketAddr::new(self.ip, port).to_string())?;
            }
            startup::check(env, kind, &Arc::new(flags)).await?;
        }
        Ok(())
    }

    /// Returns the flags of one server of a cluster on Kudu's ports.
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

    /// Returns the masters' addresses of a cluster on Kudu's ports.
    #[cfg(test)]
    pub(crate) fn master_names(&self) -> Vec<String> {
        let (base, _) = crate::config::default_ports(ServerKind::Master);
        let name = |at: usize| SocketAddr::new(self.ip, base + 100 * at as u16).to_string();
        (0..self.masters).map(name).collect()
    }

    /// Returns the default replication factor: Kudu's 3, or 1 with fewer than three tablet servers.
    fn replicas_default(&self) -> usize {
        if self.tablet_servers < 3 { 1 } else { 3 }
    }
}

/// A running cluster.
pub struct Cluster {
    masters: Vec<RunningServer>,
    tablet_servers: Vec<RunningServer>,
}

impl Cluster {
    /// Starts the masters, then the tablet servers, and waits until all are registered, so that tables can be created
    /// at once. If a server cannot start, the running ones are stopped.
    pub async fn start(env: &Env, config: &ClusterConfig) -> Result<Cluster> {
        let mut never: BoxFuture<'static, ()> = Box::pin(std::future::pending());
        let started = Cluster::start_unless(env, config, &mut never).await?;
        Ok(started.expect("nothing stops the start"))
    }

    /// As [`Cluster::start`]. If `stop` is ready first, the running servers are stopped, and there is no cluster.
    pub async fn start_unless(
        env: &Env,
        config: &ClusterConfig,
        stop: &mut BoxFuture<'static, ()>,
    ) -> Result<Option<Cluster>> {
        config.check()?;
        let mut cluster = Cluster { masters: Vec::new(), tablet_servers: Vec::new() };
        let started = cluster.start_all(env, config, stop).await;
        if started != Ok(true) {
            cluster.shutdown().await;
        }
        started.map(|all_run| all_run.then_some(cluster))
    }

    /// Starts all servers; returns false if `stop` is ready first. The start of a server is not dropped halfway: only
    /// running servers can be stopped in order.
    async fn start_all(
        &mut self,
        env: &Env,
        config: &ClusterConfig,
        stop: &mut BoxFuture<'static, ()>,
    ) -> Result<bool> {
        self.start_masters(env, config).await?;
        if !ends_before(stop, self.wait_for_masters()).await? {
            return Ok(false);
        }
        self.start_tablet_servers(env, config).await?;
        let registration = async {
            let met = env.timeout(REGISTRATION_TIME_MAX, self.wait_for_registration(env)).await;
            met.unwrap_or_else(|| Err(Error::not_ready("the tablet servers do not reach the masters")))
        };
        ends_before(stop, registration).await
    }

    async fn start_masters(&mut self, env: &Env, config: &ClusterConfig) -> Result<()> {
        let reserved = reserve(env, config).await?;
        for at in 0..config.masters {
            let flags = settings(config, ServerKind::Master, at)?;
            if let Some(address) = reserved.get(at) {
                flags.set("rpc_bind_addresses", &address.to_string())?;
                let all: Vec<String> = reserved.iter().map(SocketAddr::to_string).collect();
                flags.set("master_addresses", &all.join(","))?;
            }
            let master = startup::start(env, ServerKind::Master, Arc::new(flags)).await;
            self.masters.push(master.map_err(|error| error.context(format_args!("master-{}", at + 1)))?);
        }
        Ok(())
    }

    async fn start_tablet_servers(&mut self, env: &Env, config: &ClusterConfig) -> Result<()> {
        let addresses = self.master_addresses().join(",");
        for at in 0..config.tablet_servers {
            let flags = settings(config, ServerKind::TabletServer, at)?;
            flags.set("tserver_master_addrs", &addresses)?;
            let server = startup::start(env, ServerKind::TabletServer, Arc::new(flags)).await;
            self.tablet_servers
                .push(server.map_err(|error| error.context(format_args!("tserver-{}", at + 1)))?);
        }
        Ok(())
    }

    async fn wait_for_masters(&self) -> Result<()> {
        for (number, master) in (1..).zip(&self.masters) {
            master.until_ready().await.map_err(|error| error.context(format_args!("master-{number}")))?;
        }
        Ok(())
    }

    /// Waits until every master has a heartbeat of every tablet server, and one master leads.
    async fn wait_for_registration(&self, env: &Env) -> Result<()> {
        for master in &self.masters {
            while master.tablet_servers().await? < self.tablet_servers.len() {
                env.sleep(Duration::from_millis(1)).await;
            }
        }
        while !self.masters.iter().any(RunningServer::leads) {
            env.sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    }

    /// Returns `host:port` of each master, for clients.
    pub fn master_addresses(&self) -> Vec<String> {
        self.masters.iter().map(|master| master.rpc_addr().to_string()).collect()
    }

    pub fn masters(&self) -> &[RunningServer] {
        &self.masters
    }

    pub fn tablet_servers(&self) -> &[RunningServer] {
        &self.tablet_servers
    }

    /// Waits until a master fails and returns its error.
    pub async fn failed(&self) -> Error {
        let all: FuturesUnordered<_> = self.masters.iter().map(RunningServer::failed).collect();
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

/// Waits until `work` ends; returns false if `stop` is ready first.
async fn ends_before(
    stop: &mut BoxFuture<'static, ()>,
    work: impl Future<Output = Result<()>>,
) -> Result<bool> {
    tokio::select! {
        biased;
        () = stop => Ok(false),
        done = work => done.map(|()| true),
    }
}

/// Reserves addresses for several masters, because each has to know all before it starts. A free port is bound and
/// released again. Another program may take it in between; then the start of the master fails.
async fn reserve(env: &Env, config: &ClusterConfig) -> Result<Vec<SocketAddr>> {
    if config.masters == 1 {
        return Ok(Vec::new());
    }
    let (base, _) = crate::config::default_ports(ServerKind::Master);
    let mut addresses = Vec::new();
    let mut held = Vec::new();
    for at in 0..config.masters {
        match config.ports {
            PortAssignment::Kudus => addresses.push(SocketAddr::new(config.ip, base + 100 * at as u16)),
            PortAssignment::Free => {
                let listener = crate::server::listen(env, SocketAddr::new(config.ip, 0), "host").await?;
                addresses.push(listener.local_addr());
                held.push(listener);
            }
        }
    }
    Ok(addresses)
}

/// Returns the flags of one server.
fn settings(config: &ClusterConfig, kind: ServerKind, at: usize) -> Result<Flags> {
    let flags = config.flags.fork();
    let (rpc, web) = match config.ports {
        PortAssignment::Free => (0, 0),
        PortAssignment::Kudus => {
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

#[cfg(test)]
mod access_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod upgrade_tests;
