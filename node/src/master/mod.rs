//! The master: the catalog behind Kudu's master services.
//!
//! ```text
//!             service.rs  ddl.rs  lookups.rs   consensus.rs   GenericService
//! clients ──▶      │         │       │
//!  tablet  ──▶     └─────────┴───────┴──▶ catalog.rs: the loop around engine::catalog
//!  servers ◀── requests.rs ◀──────────────────┘ └──▶ system.rs: the system tablet, a replica like any other
//! ```

pub mod catalog;
pub mod config;
mod consensus;
mod convert;
mod ddl;
mod lookups;
mod requests;
mod service;
pub mod system;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use engine::catalog::Catalog;
use engine::cfile::cache::PageCache;
use engine::error::Result;
use engine::ids::Uuid;
use tokio::sync::Notify;

use self::catalog::CatalogCounts;
pub use self::config::MasterConfig;
use self::consensus::ConsensusService;
use self::requests::Requests;
use self::service::{MasterService, ServiceConfig};
use self::system::SystemTablet;
use crate::dirs::{self, ServerDirs, ServerKind};
use crate::env::Env;
use crate::metrics::{Collect, Samples};
use crate::proto::kudu::HostPortPb;
use crate::rpc::server::{RpcHandle, RpcServer};
use crate::server::generic::GenericService;
use crate::server::web::{self, WebHandle};
use crate::server::{self as common, Common, Health, split_host_port};
use crate::server_clock::ServerClock;
use crate::tserver::maintenance;
use crate::tserver::replica::{ReplicaConfig, ReplicaHandle};

/// How long calls that run have to be answered when the server stops.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(5);
/// Bytes of catalog changes that may wait for the disk; the loop itself waits for each of its writes.
const PENDING_BYTES_MAX: usize = 256 << 20;

/// A running master. [`RunningMaster::shutdown`] stops it in order.
pub struct RunningMaster {
    /// Where RPCs are served.
    pub rpc_addr: SocketAddr,
    /// Where metrics and health are served, if at all.
    pub web_addr: Option<SocketAddr>,
    pub uuid: Uuid,
    pub common: Common,
    pub catalog: catalog::CatalogHandle,
    rpc: RpcHandle,
    web: Mutex<Option<WebHandle>>,
    dirs: ServerDirs,
    stopped: AtomicBool,
    bell: Notify,
}

/// Opens the master's directories, begins to serve, and loads the catalog. While it loads, clients are told to come
/// back; when this returns, the master leads.
///
/// Fails if the directories are not this server's, an address is taken, or the system tablet cannot be read.
pub async fn run(env: Env, config: MasterConfig) -> Result<RunningMaster> {
    let clock = ServerClock::new(&env, config.max_clock_ahead_us);
    let dirs = env.run(|| dirs::open(&env, ServerKind::Master, &config.wal_dir, &config.data_dirs)).await?;
    let common = Common::new(&env, ServerKind::Master, dirs.uuid, config.flags.clone());
    let listener = common::listen(&env, config.rpc_addr, "rpc_bind_addresses").await?;
    common.status.set_rpc(listener.local_addr(), &config.rpc_advertised_addrs)?;
    let masters = masters(&config, &common)?;
    let web = match config.web_addr {
        Some(addr) => Some(web::serve(&env, addr, common.clone()).await?),
        None => None,
    };
    let (loaded, term) = (Arc::new(OnceLock::new()), Arc::new(OnceLock::new()));
    let rpc = RpcServer::new(env.clone(), config.rpc.clone())
        .add(Arc::new(MasterService {
            env: env.clone(),
            status: common.status.clone(),
            masters,
            catalog: loaded.clone(),
            config: service_config(&config),
        }))
        .add(Arc::new(ConsensusService { status: common.status.clone(), term: term.clone() }))
        .add(Arc::new(GenericService::new(common.clone(), clock.clone())))
        .serve(listener);
    common::watch_rpc(&common.metrics, &rpc);
    let catalog = match load(&env, &clock, &dirs, &config, &common, &term).await {
        Ok(catalog) => loaded.get_or_init(|| catalog).clone(),
        Err(error) => {
            rpc.shutdown(Duration::ZERO).await;
            return Err(error);
        }
    };
    common.status.set_health(Health::Healthy);
    let (rpc_addr, web_addr) = (rpc.local_addr(), web.as_ref().map(WebHandle::local_addr));
    tracing::info!(uuid = %dirs.uuid, %rpc_addr, "the master serves");
    let (web, stopped, bell) = (Mutex::new(web), AtomicBool::new(false), Notify::new());
    Ok(RunningMaster { rpc_addr, web_addr, uuid: dirs.uuid, common, catalog, rpc, web, dirs, stopped, bell })
}

/// The masters as clients should know them: as configured, or this one as it can be reached.
fn masters(config: &MasterConfig, common: &Common) -> Result<Vec<HostPortPb>> {
    let names = match config.masters.is_empty() {
        true => common.status.rpc_addresses().into_iter().take(1).collect(),
        false => config.masters.clone(),
    };
    let pb = |name: &String| {
        let (host, port) = split_host_port(name).map_err(|error| error.context("master_addresses"))?;
        Ok(HostPortPb { host, port: u32::from(port) })
    };
    names.iter().map(pb).collect()
}

fn service_config(config: &MasterConfig) -> ServiceConfig {
    ServiceConfig {
        locations_ttl_ms: config.table_locations_ttl_ms,
        lookup_delay: config.lookup_delay,
        // A few bytes per start of a master, named by each of its calls.
        features: config.features().leak(),
    }
}

/// Opens the system tablet, reads the catalog from it, and starts both.
async fn load(
    env: &Env,
    clock: &ServerClock,
    dirs: &ServerDirs,
    config: &MasterConfig,
    common: &Common,
    term: &OnceLock<i64>,
) -> Result<catalog::CatalogHandle> {
    let cache = PageCache::new(config.page_cache_bytes);
    let (replica, wal) = env.run(|| system::open(dirs, &config.tablet, cache)).await?;
    let tablet = replica.tablet().clone();
    let rows = env.run(|| system::read_rows(&tablet)).await?;
    let seed = [env.rng.next_u64(), env.rng.next_u64()];
    let catalog = Catalog::load(config.catalog.clone(), seed, env.now(), rows)?;
    let status = common.status.clone();
    let replica_config = ReplicaConfig {
        log_sync: config.log_sync,
        pending_bytes_max: PENDING_BYTES_MAX,
        on_failure: Arc::new(move || {
            status.set_health(Health::Failed("the system tablet failed".to_string()))
        }),
    };
    let led = replica.last_applied().term.max(1);
    let replica = ReplicaHandle::start(env, clock, replica, wal, replica_config);
    let (limits, interval) = (config.tablet.clone(), config.maintenance_interval);
    let maintained = maintenance::run_alone(env.clone(), replica.clone(), limits, interval);
    let maintenance = env.spawn("system tablet", maintained);
    let counts = Arc::new(CatalogCounts::default());
    let collected = counts.clone();
    common.metrics.keep(move |out: &mut Samples| collected.collect(out));
    let requests = Requests::new(env, config.tserver_rpc_timeout);
    let handle = catalog::start(env, catalog, SystemTablet::new(replica, maintenance), requests, counts);
    term.get_or_init(|| led as i64);
    Ok(handle)
}

impl RunningMaster {
    /// Stops in order: no new calls, running ones are answered, the system tablet's log is closed. Stopping twice is
    /// fine.
    pub async fn shutdown(&self) {
        self.rpc.shutdown(SHUTDOWN_GRACE).await;
        self.catalog.stop().await;
        self.dirs.release();
        drop(self.web.lock().expect("nobody panics while holding it").take());
        self.stopped.store(true, Ordering::Release);
        self.bell.notify_waiters();
    }

    /// Ready when the master has stopped.
    pub async fn done(&self) {
        let bell = self.bell.notified();
        if !self.stopped.load(Ordering::Acquire) {
            bell.await;
        }
    }

    /// Ready when the catalog is gone: the master was stopped, or the system tablet failed and it had better be.
    pub async fn catalog_ended(&self) {
        self.catalog.ended().await;
    }
}

#[cfg(test)]
mod tests;
