//! The master: the catalog behind Kudu's master services.
//!
//! ```text
//!             service.rs  ddl.rs  lookups.rs   masters.rs     GenericService   host.rs ◀──▶ other masters
//! clients ──▶      │         │       │            │                              │
//!  tablet  ──▶     └─────────┴───────┴────────────┴──▶ reign.rs: does it lead? ──┤
//!  servers ◀── requests.rs ◀── catalog.rs: the loop around engine::catalog ◀─┘   ▼
//!                                    └──▶ system.rs: the system tablet, a replica like any other
//! ```
//!
//! Several masters replicate the system tablet. The one that leads it leads the cluster; the others know which tablet
//! servers there are ([`acquaintances`]) and tell clients to look elsewhere.

pub mod acquaintances;
pub mod catalog;
pub mod config;
pub mod convert;
mod ddl;
mod founding;
mod host;
mod introduction;
mod joining;
mod locator;
mod lookups;
mod masters;
mod reign;
mod requests;
mod service;
pub mod system;

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use engine::cfile::cache::PageCache;
use engine::error::{Error, Result};
use engine::ids::Uuid;
use engine::memory::Memory;
use engine::raft::{Config, Peer};
use engine::replica::GroupSetup;
use engine::tablet::meta::DataState;
use futures_util::future::{Either, select};
use tokio::sync::Notify;

use self::acquaintances::Acquaintances;
use self::catalog::{CatalogCounts, CatalogHandle};
pub use self::config::MasterConfig;
use self::founding::Founded;
use self::host::MasterHost;
use self::joining::Joining;
use self::locator::Locator;
use self::reign::{Reign, Standing};
use self::service::{MasterService, ServiceConfig};
use crate::dirs::{self, ServerDirs, ServerKind};
use crate::env::{Env, Listener, TaskHandle};
use crate::metrics::{Collect, Samples};
use crate::rpc::server::{RpcHandle, RpcServer};
use crate::server::generic::GenericService;
use crate::server::web::{self, WebHandle};
use crate::server::{self as common, Common, Health};
use crate::server_clock::ServerClock;
use crate::tserver::consensus::ConsensusService;
use crate::tserver::copy::{CopyConfig, CopyService};
use crate::tserver::maintenance;
use crate::tserver::peers::{Peers, PeersConfig};
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
    pub standing: Arc<Standing>,
    pub acquaintances: Arc<Acquaintances>,
    opened: Arc<OnceLock<ReplicaHandle>>,
    rpc: RpcHandle,
    web: Mutex<Option<WebHandle>>,
    dirs: Arc<ServerDirs>,
    /// What goes on beside the services.
    tasks: Arc<Mutex<Vec<Box<dyn TaskHandle>>>>,
    env: Env,
    /// What a leader has to hand over.
    hand_over_within: Duration,
    stopped: AtomicBool,
    bell: Notify,
}

/// Opens the master's directories and begins to serve. A master alone has its catalog when this returns, and leads. One
/// of several goes on by itself: it waits for the others if the cluster is new, opens the system tablet, and follows or
/// leads.
///
/// Fails if the directories are not this server's, an address is taken, or the system tablet cannot be read.
pub async fn run(mut env: Env, mut config: MasterConfig) -> Result<RunningMaster> {
    let clock = ServerClock::new(&env, config.max_clock_ahead_us);
    let locator = Locator::new(&env, &config.location_command, &config.locations, config.locate_clients)?;
    let dirs = env.run(|| dirs::open(&env, ServerKind::Master, &config.wal_dir, &config.data_dirs)).await?;
    env.watch = env.watch.of(dirs.uuid);
    config.tablet.watch = env.watch.clone();
    let common = Common::new(&env, ServerKind::Master, dirs.uuid, config.flags.clone());
    config.tablet.memory = Memory::of(&common.memory.child("tablets"));
    let listener = common::listen(&env, config.rpc_addr, "rpc_bind_addresses").await?;
    common.status.set_rpc(listener.local_addr(), &config.rpc_advertised_addrs)?;
    let web = match config.web_addr {
        Some(addr) => Some(web::serve(&env, addr, common.clone()).await?),
        None => None,
    };
    let mut opening = Opening {
        env: env.clone(),
        clock: clock.clone(),
        dirs: Arc::new(dirs),
        common: common.clone(),
        standing: Arc::default(),
        acquaintances: Arc::default(),
        opened: Arc::default(),
        joining: Arc::default(),
        tasks: Arc::default(),
        config,
    };
    let rpc = opening.serve(locator, listener);
    common::watch_rpc(&common.metrics, &rpc);
    let alone = opening.config.masters.len() <= 1;
    let running = opening.running(rpc, web);
    if alone {
        opening.open().await;
        running.standing.until_leading().await;
    } else {
        let (tasks, env) = (opening.tasks.clone(), env.clone());
        let task = env.spawn("master opening", async move { opening.open().await });
        lock(&tasks).push(task);
    }
    if let Some(error) = running.failure() {
        running.shutdown().await;
        return Err(error);
    }
    tracing::info!(uuid = %running.uuid, rpc_addr = %running.rpc_addr, "the master serves");
    Ok(running)
}

/// How a master comes to its system tablet.
enum Beginning {
    /// It has one.
    Opened,
    /// It makes one, as these all do.
    Founds(Config),
    /// It has one copied from the masters that are there.
    Joins,
}

/// A master on its way to having a system tablet.
struct Opening {
    env: Env,
    clock: ServerClock,
    dirs: Arc<ServerDirs>,
    common: Common,
    standing: Arc<Standing>,
    acquaintances: Arc<Acquaintances>,
    opened: Arc<OnceLock<ReplicaHandle>>,
    joining: Arc<Joining>,
    tasks: Arc<Mutex<Vec<Box<dyn TaskHandle>>>>,
    config: MasterConfig,
}

impl Opening {
    fn serve(&self, locator: Locator, listener: Box<dyn Listener>) -> RpcHandle {
        let host = Arc::new(MasterHost {
            env: self.env.clone(),
            clock: self.clock.clone(),
            status: self.common.status.clone(),
            replica: self.opened.clone(),
            joining: self.joining.clone(),
        });
        let copies = CopyService::new(host.clone(), CopyConfig::default());
        lock(&self.tasks).push(self.env.spawn("copy sessions", copies.clone().expire()));
        RpcServer::new(self.env.clone(), self.config.rpc.clone())
            .add(Arc::new(MasterService {
                env: self.env.clone(),
                status: self.common.status.clone(),
                standing: self.standing.clone(),
                acquaintances: self.acquaintances.clone(),
                opened: self.opened.clone(),
                locator,
                config: service_config(&self.config),
            }))
            .add(Arc::new(ConsensusService(host)))
            .add(copies)
            .add(Arc::new(GenericService::new(self.common.clone(), self.clock.clone())))
            .serve(listener)
    }

    fn running(&self, rpc: RpcHandle, web: Option<WebHandle>) -> RunningMaster {
        RunningMaster {
            rpc_addr: rpc.local_addr(),
            web_addr: web.as_ref().map(WebHandle::local_addr),
            uuid: self.dirs.uuid,
            common: self.common.clone(),
            standing: self.standing.clone(),
            acquaintances: self.acquaintances.clone(),
            opened: self.opened.clone(),
            rpc,
            web: Mutex::new(web),
            dirs: self.dirs.clone(),
            tasks: self.tasks.clone(),
            env: self.env.clone(),
            hand_over_within: self.config.raft.election_timeout(),
            stopped: AtomicBool::new(false),
            bell: Notify::new(),
        }
    }

    /// Opens the system tablet and starts what goes on beside the services.
    async fn open(&mut self) {
        match self.open_replica().await {
            Ok(replica) => self.start(self.opened.get_or_init(|| replica).clone()),
            Err(error) => {
                tracing::error!(%error, "the system tablet cannot be opened");
                self.standing.fail(error.clone());
                self.common.status.set_health(Health::Failed(error.message));
            }
        }
    }

    /// How this master comes to its system tablet. Waits for the other masters if that depends on them.
    async fn beginning(&self, me: Peer) -> Result<Beginning> {
        let dirs = &self.dirs;
        match self.env.run(|| joining::recover(dirs)).await? {
            Some(meta) if meta.data_state == DataState::Ready => return Ok(Beginning::Opened),
            // A copy was interrupted.
            Some(_) => return Ok(Beginning::Joins),
            None => {}
        }
        if self.config.masters.len() <= 1 {
            return Ok(Beginning::Founds(Config::initial(vec![me])));
        }
        Ok(match founding::found(&self.env, dirs.uuid, &self.config.masters).await? {
            Founded::New(members) => Beginning::Founds(members),
            Founded::Before => Beginning::Joins,
        })
    }

    async fn open_replica(&self) -> Result<ReplicaHandle> {
        let (host, port) = self.common.status.rpc_address();
        let setup = GroupSetup {
            me: Peer::voter(self.dirs.uuid, host, port),
            options: self.config.raft.clone(),
            seed: self.env.rng.next_u64(),
        };
        let memory = &self.common.memory;
        let cache = PageCache::within(self.config.page_cache_bytes, &memory.child("page-cache"), || u64::MAX);
        let (dirs, tablet, masters) = (&self.dirs, &self.config.tablet, &self.config.masters);
        let me = setup.me.clone();
        let open = || system::open(dirs, setup.clone(), tablet, cache.clone());
        let (replica, wal) = match self.beginning(me).await? {
            Beginning::Opened => {
                let opened = self.env.run(open).await?;
                founding::check(&opened.0.status(self.env.now()).committed_config, self.dirs.uuid, masters)?;
                opened
            }
            Beginning::Founds(members) => {
                let create = || system::create(dirs, members, setup.clone(), tablet, cache.clone());
                self.env.run(create).await?
            }
            Beginning::Joins => {
                self.join(&setup.me).await?;
                self.env.run(open).await?
            }
        };
        let status = self.common.status.clone();
        let raft = &self.config.raft;
        let times = PeersConfig::of(raft, self.config.consensus_timeout);
        let config = ReplicaConfig {
            log_sync: self.config.log_sync,
            pending_bytes_max: PENDING_BYTES_MAX,
            frame_bytes_max: self.config.rpc.max_message_bytes,
            peers: Peers::new(&self.env, times),
            // The reign sees it, too.
            on_failure: Arc::new(|| {}),
            on_change: Arc::new(|| {}),
            on_completed: Arc::new(|_, _, _| {}),
        };
        let replica = ReplicaHandle::start(&self.env, &self.clock, replica, wal, config);
        status.set_health(Health::Healthy);
        Ok(replica)
    }

    /// Returns when the system tablet was copied here.
    async fn join(&self, me: &Peer) -> Result<()> {
        let joined = self.joining.join(&self.env, &self.dirs, CopyConfig::default());
        if !self.config.auto_join {
            return joined.await;
        }
        let asks = introduction::ask_to_be_added(&self.env, me, &self.config.masters);
        match select(pin!(joined), pin!(asks)).await {
            Either::Left((joined, _)) => joined,
            Either::Right((never, _)) => match never {},
        }
    }

    fn start(&self, replica: ReplicaHandle) {
        let (limits, interval) = (self.config.tablet.clone(), self.config.maintenance_interval);
        let maintained = maintenance::run_alone(self.env.clone(), replica.clone(), limits, interval);
        let counts = Arc::new(CatalogCounts::default());
        let collected = counts.clone();
        self.common.metrics.keep(move |out: &mut Samples| collected.collect(out));
        let reign = Reign {
            env: self.env.clone(),
            config: self.config.clone(),
            replica,
            standing: self.standing.clone(),
            status: self.common.status.clone(),
            acquaintances: self.acquaintances.clone(),
            counts,
        };
        let mut tasks = lock(&self.tasks);
        tasks.push(self.env.spawn("system tablet", maintained));
        tasks.push(self.env.spawn("reign", reign.run()));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().expect("nobody panics while holding it")
}

fn service_config(config: &MasterConfig) -> ServiceConfig {
    ServiceConfig {
        locations_ttl_ms: config.table_locations_ttl_ms,
        lookup_delay: config.lookup_delay,
        server_unresponsive_after: config.catalog.server_unresponsive_after,
        masters: config.masters.clone(),
        // A few bytes per start of a master, named by each of its calls.
        features: config.features().leak(),
    }
}

impl RunningMaster {
    /// The catalog, if this master leads; `NotReady` or `NotLeader` if not.
    pub fn catalog(&self) -> Result<CatalogHandle> {
        self.standing.catalog().map_err(reign::absent)
    }

    /// Whether this master leads the cluster.
    pub fn leads(&self) -> bool {
        self.standing.catalog().is_ok()
    }

    /// Why this master cannot go on, if it cannot.
    pub fn failure(&self) -> Option<Error> {
        self.standing.failure().or_else(|| self.opened.get()?.failure())
    }

    /// Stops in order: another master leads, no new calls, running ones are answered, the system tablet's log is
    /// closed. Stopping twice is fine.
    pub async fn shutdown(&self) {
        if let Some(replica) = self.opened.get()
            && replica.begin_hand_over().await
        {
            replica.until_handed_over(self.env.now().mono.after(self.hand_over_within)).await;
        }
        self.rpc.shutdown(SHUTDOWN_GRACE).await;
        if let Ok(catalog) = self.standing.catalog() {
            // Without a majority of the masters the last change may never be stored.
            self.env.timeout(SHUTDOWN_GRACE, catalog.stop()).await;
        }
        self.standing.stop();
        let tasks = std::mem::take(&mut *lock(&self.tasks));
        self.env.end(&tasks).await;
        if let Some(replica) = self.opened.get() {
            drop(replica.stop().await);
        }
        self.dirs.release();
        drop(lock(&self.web).take());
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

    /// Ready when the system tablet is gone: the master was stopped, or it failed and had better be.
    pub async fn catalog_ended(&self) {
        self.standing.until_stopped().await;
    }
}

#[cfg(test)]
mod tests;
