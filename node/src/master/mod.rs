//! The master: the catalog behind Kudu's master services.
//!
//! ```text
//!          service.rs  ddl_calls.rs  query_calls.rs  membership_calls.rs  GenericService  consensus_host.rs ◀▶ masters
//! clients ──▶      │         │             │                │                                       │
//!  tablet  ──▶     └─────────┴─────────────┴────────────────┴──▶ leadership.rs: does it lead? ──────┤
//!  servers ◀── tserver_calls.rs ◀── catalog_loop.rs: the loop around engine::catalog ◀──┘           ▼
//!                                       └──▶ system_tablet.rs: the system tablet, a replica like any other
//! ```
//!
//! Several masters replicate the system tablet. Its leader leads the cluster. The others track the tablet servers
//! ([`known_tservers`]) and send clients to the leader.

mod admission;
mod audit_subject;
mod authz;
mod authz_calls;
mod auto_join;
pub mod catalog_loop;
mod cluster_init;
pub mod config;
mod consensus_host;
mod ddl_calls;
mod format_level;
mod history_calls;
mod history_holds;
mod join;
mod known_masters;
pub mod known_tservers;
mod leadership;
mod location_resolver;
mod locations;
mod membership_calls;
mod pages;
pub mod proto;
mod query_calls;
mod reply_size;
mod request_limits;
mod scrub_host;
mod secrets;
mod service;
pub mod system_tablet;
mod tserver_calls;

use engine::sync::Mutex;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use engine::cfile::cache::PageCache;
use engine::error::{Error, Result};
use engine::ids::Uuid;
use engine::memory::MemoryHandle;
use engine::raft::{Peer, RaftConfig};
use engine::replica::ReplicaSetup;
use engine::tablet::superblock::DataState;
use futures_util::future::{Either, select};
use tokio::sync::Notify;

use self::admission::TserverAdmission;
use self::authz::Authorizer;
pub(crate) use self::authz::{AuthzConfig, PolicyFile};
use self::catalog_loop::{CatalogGauges, CatalogHandle};
use self::cluster_init::InitialConfig;
pub use self::config::MasterConfig;
use self::consensus_host::MasterConsensusHost;
pub use self::history_holds::{HistoryHolds, HoldLimits};
use self::join::JoinState;
use self::known_masters::KnownMasters;
use self::known_tservers::KnownTservers;
use self::leadership::{LeadershipHandle, LeadershipTask};
use self::location_resolver::LocationResolver;
use self::scrub_host::MasterScrubHost;
use self::secrets::MasterSecrets;
use self::service::{MasterService, MasterServiceConfig};
use self::tserver_calls::MASTER_USER;
use crate::dirs::{self, Directory, ServerDirs, ServerKind};
use crate::hosting::consensus_service::ConsensusService;
use crate::hosting::copy::CopyService;
use crate::hosting::maintenance;
use crate::hosting::raft_transport::{RaftTransport, RaftTransportConfig};
use crate::hosting::replica::{ReplicaConfig, ReplicaHandle};
use crate::server::bounded_clock;
use crate::server::flags::follower_failed_after;
use crate::server::generic_service::GenericService;
use crate::server::health::{CheckResult, HealthCheck};
use crate::server::pages::rpc_page;
use crate::server::pages::startup_progress::{StartupProgress, StartupStep};
use crate::server::security::ServerIdentity;
use crate::server::web::{self, WebHandle};
use crate::server::{self as common, ServerContext, ServerHealth};
use crate::server_clock::ServerClock;
use nyala_common::env::{Env, Listener, TaskHandle};
use nyala_common::metrics::{MetricSnapshot, MetricSource};
use nyala_common::rpc::server::RpcHandle;
use nyala_common::security::RpcCaller;

/// Time that running calls have to finish when the server stops.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(5);
/// User name of calls that replicate the system tablet, in a cluster without access lists.
const PEER_USER: &str = "nyala";
/// Bytes of catalog changes that may be in flight; the loop itself waits for each of its writes.
const PENDING_BYTES_MAX: usize = 256 << 20;

/// A running master. [`RunningMaster::shutdown`] stops it in order.
pub struct RunningMaster {
    /// Address of the RPC port.
    pub rpc_addr: SocketAddr,
    /// Address of the web port, which serves metrics and health, if it is enabled.
    pub web_addr: Option<SocketAddr>,
    pub uuid: Uuid,
    pub common: ServerContext,
    pub leadership: Arc<LeadershipHandle>,
    pub known_tservers: Arc<KnownTservers>,
    opened: Arc<OnceLock<ReplicaHandle>>,
    rpc: RpcHandle,
    web: Mutex<Option<WebHandle>>,
    dirs: Arc<ServerDirs>,
    /// Background tasks.
    tasks: Arc<Mutex<Vec<Box<dyn TaskHandle>>>>,
    env: Env,
    /// Deadline of a leadership transfer at shutdown.
    transfer_timeout: Duration,
    /// True if the cluster has no other master.
    is_alone: bool,
    stopped: AtomicBool,
    bell: Notify,
}

/// Starts a master and waits until it is ready; see [`start`] and [`RunningMaster::until_ready`].
pub async fn run(env: Env, config: MasterConfig) -> Result<RunningMaster> {
    let running = start(env, config).await?;
    if let Err(error) = running.until_ready().await {
        running.shutdown().await;
        return Err(error);
    }
    Ok(running)
}

/// Opens the master's directories and starts to serve. The master continues in the background: it waits for the others
/// if the cluster is new, opens the system tablet, and follows or leads.
///
/// Fails if the directories belong to another server, or an address is in use.
pub async fn start(env: Env, mut config: MasterConfig) -> Result<RunningMaster> {
    let mut env = bounded_clock::bounded(env, config.clock_rule);
    let clock = ServerClock::new(&env, config.max_clock_ahead_us);
    let locator =
        LocationResolver::new(&env, &config.location_command, &config.locations, config.locate_clients)?;
    let startup = Arc::<StartupProgress>::default();
    startup.begin(StartupStep::Init, env.now().mono);
    let web = open_web(&env, &config, &startup).await?;
    startup.advance(StartupStep::Init, StartupStep::ReadDirectories, env.now().mono);
    let (levels, paths) = (config.catalog.levels, config.directories());
    let dirs = env.run(|| dirs::open(&env, ServerKind::Master, levels, paths)).await?;
    startup.advance(StartupStep::ReadDirectories, StartupStep::StartRpc, env.now().mono);
    env.observer = env.observer.of(dirs.uuid);
    config.tablet.observer = env.observer.clone();
    let mut common = ServerContext::new(&env, ServerKind::Master, dirs.uuid, levels, config.flags.clone());
    common.set_startup(&env, startup.clone());
    common.open_logs(&mut env).await?;
    config.tablet.memory = MemoryHandle::of(&common.memory.child("tablets"));
    let listener = common::listen(&env, config.rpc_addr, "rpc_bind_addresses").await?;
    common.status.set_rpc(listener.local_addr(), config.advertised())?;
    if let Some(web) = &web {
        web.attach(common.clone());
    }
    let identity = ServerIdentity::new(&env, config.security.as_ref(), &common.status.rpc_address().0)?;
    let mut opening = SystemTabletStartup {
        env: env.clone(),
        clock: clock.clone(),
        dirs: Arc::new(dirs),
        common: common.clone(),
        leadership: Arc::default(),
        known_tservers: Arc::default(),
        opened: Arc::default(),
        joining: Arc::default(),
        secrets: MasterSecrets::new(&env, identity.clone()),
        history_holds: Arc::new(HistoryHolds::new(config.history_holds)),
        caller: identity.caller(MASTER_USER),
        identity,
        tasks: Arc::default(),
        config,
    };
    let rpc = opening.serve(locator, listener);
    startup.end(StartupStep::StartRpc, env.now().mono);
    common::watch_rpc(&common.metrics, &rpc);
    rpc_page::register(&common.pages, &rpc, env.clock.clone());
    let (clock, rule, clock_env) = (common.clock.clone(), opening.config.clock_rule, env.clone());
    opening.tasks.lock().push(env.spawn("clock", async move { clock.watch(&clock_env, rule).await }));
    let opened = opening.opened.clone();
    common.checks.register(move |checks| checks.push(leader_check(&opened)));
    let running = opening.running(rpc, web);
    let task = env.spawn("master opening", async move { opening.open().await });
    running.tasks.lock().push(task);
    tracing::info!(uuid = %running.uuid, rpc_addr = %running.rpc_addr, "the master serves");
    Ok(running)
}

/// Opens the web port, if there is one, so that the start can be watched.
async fn open_web(
    env: &Env,
    config: &MasterConfig,
    startup: &Arc<StartupProgress>,
) -> Result<Option<WebHandle>> {
    let Some(addr) = config.web_addr else { return Ok(None) };
    let flags = config.flags.clone();
    Ok(Some(web::open(env, addr, ServerKind::Master, flags, startup.clone()).await?))
}

/// Returns the check that this master leads or knows the leader.
fn leader_check(opened: &OnceLock<ReplicaHandle>) -> HealthCheck {
    let result = match opened.get().map(|replica| replica.status().leader) {
        Some(Some(leader)) => CheckResult::Ok(format!("the leader is {leader}")),
        Some(None) => CheckResult::Failed("no leader is known".to_string()),
        None => CheckResult::Failed("the system tablet is not open".to_string()),
    };
    HealthCheck::new("masters", result)
}

/// Origin of a master's system tablet.
enum SystemTabletOrigin {
    /// It exists already.
    Opened,
    /// The master creates it, with these voters.
    Creates(RaftConfig),
    /// The master copies it from the existing masters.
    Joins,
}

/// A master that does not have its system tablet yet.
struct SystemTabletStartup {
    env: Env,
    clock: ServerClock,
    dirs: Arc<ServerDirs>,
    common: ServerContext,
    leadership: Arc<LeadershipHandle>,
    known_tservers: Arc<KnownTservers>,
    opened: Arc<OnceLock<ReplicaHandle>>,
    joining: Arc<JoinState>,
    identity: Arc<ServerIdentity>,
    secrets: Arc<MasterSecrets>,
    history_holds: Arc<HistoryHolds>,
    /// Name and credentials of calls to other servers.
    caller: RpcCaller,
    tasks: Arc<Mutex<Vec<Box<dyn TaskHandle>>>>,
    config: MasterConfig,
}

impl SystemTabletStartup {
    fn serve(&self, locator: LocationResolver, listener: Box<dyn Listener>) -> RpcHandle {
        let host = Arc::new(MasterConsensusHost {
            env: self.env.clone(),
            clock: self.clock.clone(),
            status: self.common.status.clone(),
            replica: self.opened.clone(),
            joining: self.joining.clone(),
        });
        let copies = CopyService::new(host.clone(), self.config.copy);
        let admission: Arc<TserverAdmission> = Arc::default();
        let (checked, env) = (admission.clone(), self.env.clone());
        let silence_max = self.config.catalog.server_unresponsive_after;
        self.common.checks.register(move |checks| {
            checks.push(checked.check(env.now().mono, silence_max));
        });
        self.tasks.lock().push(self.env.spawn("copy sessions", copies.clone().expire()));
        if let Some(policy) = self.config.authz.policy.clone() {
            let checked = policy.clone();
            self.common.checks.register(move |checks| checks.push(checked.check()));
            self.tasks.lock().push(self.env.spawn("policy", policy.watch(self.env.clone())));
        }
        let service = Arc::new(MasterService {
            env: self.env.clone(),
            status: self.common.status.clone(),
            leadership: self.leadership.clone(),
            known_tservers: self.known_tservers.clone(),
            known_masters: KnownMasters::default(),
            admission,
            opened: self.opened.clone(),
            locator,
            identity: self.identity.clone(),
            secrets: self.secrets.clone(),
            history_holds: self.history_holds.clone(),
            authorizer: Arc::new(Authorizer::new(self.config.authz.clone())),
            caller: self.caller.clone(),
            config: service_config(&self.config),
        });
        pages::register(&self.common, &service);
        self.common
            .rpc_server(&self.env, &self.config.rpc, &self.identity)
            .add(service)
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
            leadership: self.leadership.clone(),
            known_tservers: self.known_tservers.clone(),
            opened: self.opened.clone(),
            rpc,
            web: Mutex::new(web),
            dirs: self.dirs.clone(),
            tasks: self.tasks.clone(),
            env: self.env.clone(),
            transfer_timeout: self.config.raft.election_timeout(),
            is_alone: self.config.masters.len() <= 1,
            stopped: AtomicBool::new(false),
            bell: Notify::new(),
        }
    }

    /// Opens the system tablet and starts the background tasks.
    async fn open(&mut self) {
        let startup = &self.common.startup;
        startup.begin(StartupStep::StartTablets, self.env.now().mono);
        match self.open_replica().await {
            Ok((replica, data_dir)) => {
                startup.end(StartupStep::StartTablets, self.env.now().mono);
                self.start(self.opened.get_or_init(|| replica).clone(), data_dir);
            }
            Err(error) => {
                tracing::error!(%error, "the system tablet cannot be opened");
                self.leadership.fail(error.clone());
                self.common.status.set_health(ServerHealth::Failed(error.message));
            }
        }
    }

    /// Returns the origin of the system tablet. Waits for the other masters if it depends on them.
    async fn system_tablet_origin(&self, me: Peer) -> Result<SystemTabletOrigin> {
        let dirs = &self.dirs;
        match self.env.run(|| join::recover(dirs)).await? {
            Some(meta) if meta.data_state == DataState::Ready => return Ok(SystemTabletOrigin::Opened),
            // A copy was interrupted.
            Some(_) => return Ok(SystemTabletOrigin::Joins),
            None => self.joining.set_absent(),
        }
        if self.config.masters.len() <= 1 {
            return Ok(SystemTabletOrigin::Creates(RaftConfig::initial(vec![me])));
        }
        Ok(
            match cluster_init::initial_config(&self.env, &self.caller, dirs.uuid, &self.config.masters)
                .await?
            {
                InitialConfig::New(members) => SystemTabletOrigin::Creates(members),
                InitialConfig::Before => SystemTabletOrigin::Joins,
            },
        )
    }

    /// Opens the system tablet, and returns it with its data directory.
    async fn open_replica(&self) -> Result<(ReplicaHandle, Arc<Directory>)> {
        let (host, port) = self.common.status.rpc_address();
        let setup = ReplicaSetup {
            me: Peer::voter(self.dirs.uuid, host, port),
            options: self.config.raft.clone(),
            seed: self.env.rng.next_u64(),
        };
        let memory = &self.common.memory;
        let cache =
            PageCache::with_tracker(self.config.page_cache_bytes, &memory.child("page-cache"), || u64::MAX);
        let (dirs, tablet, masters) = (&self.dirs, &self.config.tablet, &self.config.masters);
        let me = setup.me.clone();
        let open = || system_tablet::open(dirs, setup.clone(), tablet, cache.clone());
        let (replica, wal) = match self.system_tablet_origin(me).await? {
            SystemTabletOrigin::Opened => {
                let opened = self.env.run(open).await?;
                cluster_init::check(
                    &opened.0.status(self.env.now()).committed_config,
                    self.dirs.uuid,
                    masters,
                )?;
                opened
            }
            SystemTabletOrigin::Creates(members) => {
                let create = || system_tablet::create(dirs, members, setup.clone(), tablet, cache.clone());
                self.env.run(create).await?
            }
            SystemTabletOrigin::Joins => {
                self.join(&setup.me).await?;
                self.env.run(open).await?
            }
        };
        let data_dir = self.env.run(|| system_tablet::data_dir(dirs).cloned()).await?;
        let status = self.common.status.clone();
        let raft = &self.config.raft;
        let times = RaftTransportConfig::of(raft, self.config.consensus_timeout);
        let config = ReplicaConfig {
            log_sync: self.config.log_sync,
            pending_bytes_max: PENDING_BYTES_MAX,
            frame_bytes_max: self.config.rpc.max_message_bytes,
            peers: RaftTransport::new(&self.env, times, self.identity.caller(PEER_USER)),
            follower_failed_after: follower_failed_after(raft, &self.config.flags),
            is_replaced: false,
            // The leadership task sees the failure itself.
            on_failure: Arc::new(|| {}),
            on_change: Arc::new(|| {}),
            on_completed: Arc::new(|_, _, _| {}),
        };
        let replica = ReplicaHandle::start(&self.env, &self.clock, replica, wal, config);
        status.set_health(ServerHealth::Healthy);
        Ok((replica, data_dir))
    }

    /// Waits until the system tablet has been copied to this master.
    async fn join(&self, me: &Peer) -> Result<()> {
        let copies_as = self.identity.caller(PEER_USER);
        let joined = self.joining.join(&self.env, &copies_as, &self.dirs, self.config.copy);
        if !self.config.auto_join {
            return joined.await;
        }
        let asks = auto_join::auto_join(&self.env, &self.caller, me, &self.config.masters);
        match select(pin!(joined), pin!(asks)).await {
            Either::Left((joined, _)) => joined,
            Either::Right((never, _)) => match never {},
        }
    }

    fn start(&self, replica: ReplicaHandle, data_dir: Arc<Directory>) {
        let (limits, interval) = (self.config.tablet.clone(), self.config.maintenance_interval);
        let maintained = maintenance::run_alone(self.env.clone(), replica.clone(), limits, interval);
        let counts = Arc::new(CatalogGauges::default());
        let collected = counts.clone();
        self.common.metrics.register(move |out: &mut MetricSnapshot| collected.collect(out));
        let reign = LeadershipTask {
            env: self.env.clone(),
            config: self.config.clone(),
            replica: replica.clone(),
            leadership: self.leadership.clone(),
            status: self.common.status.clone(),
            known_tservers: self.known_tservers.clone(),
            counts,
            secrets: self.secrets.clone(),
            history_holds: self.history_holds.clone(),
            caller: self.caller.clone(),
        };
        let (dirs, status) = (self.dirs.clone(), self.common.status.clone());
        let follow = format_level::follow(self.env.clone(), replica.clone(), dirs, status);
        let scrubber = self.scrubber(data_dir);
        let mut tasks = self.tasks.lock();
        tasks.extend(scrubber);
        if self.identity.settings().is_some() {
            let secrets = self.secrets.clone();
            let reader = async move { secrets.run_as_reader(replica).await };
            tasks.push(self.env.spawn("secrets", reader));
        }
        tasks.push(self.env.spawn("format level", follow));
        tasks.push(self.env.spawn("system tablet", maintained));
        tasks.push(self.env.spawn("reign", reign.run()));
    }
}

impl SystemTabletStartup {
    /// Starts the scrubber and registers its page, unless it is off.
    fn scrubber(&self, data_dir: Arc<Directory>) -> Option<Box<dyn TaskHandle>> {
        let created = crate::scrub::Scrubber::new(&self.env, self.config.scrub, &self.config.flags);
        let scrubber = created.unwrap_or_else(|error| {
            tracing::error!(%error, "there is no scrubber");
            None
        });
        crate::scrub::views::register(&self.common, scrubber.as_ref());
        let host = MasterScrubHost { dirs: self.dirs.clone(), data_dir, replica: self.opened.clone() };
        Some(self.env.spawn("scrubber", scrubber?.run(Arc::new(host))))
    }
}

fn service_config(config: &MasterConfig) -> MasterServiceConfig {
    MasterServiceConfig {
        locations_ttl_ms: config.table_locations_ttl_ms,
        lookup_delay: config.lookup_delay,
        server_unresponsive_after: config.catalog.server_unresponsive_after,
        max_clock_ahead_us: config.max_clock_ahead_us,
        masters: config.masters.clone(),
        // Leaks a few bytes per start of a master; every call refers to them.
        features: config.features().leak(),
        flags: config.flags.clone(),
    }
}

impl RunningMaster {
    /// Returns the catalog if this master leads; otherwise `NotReady` or `NotLeader`.
    pub fn catalog(&self) -> Result<CatalogHandle> {
        self.leadership.catalog().map_err(leadership::absent)
    }

    /// Returns true if this master leads the cluster.
    pub fn leads(&self) -> bool {
        self.leadership.catalog().is_ok()
    }

    /// Waits until a single master leads and has its catalog; one of several depends on the others and is ready at
    /// once. Fails if the system tablet cannot be read. A master without space for its term is not ready until there
    /// is some.
    pub async fn until_ready(&self) -> Result<()> {
        if self.is_alone {
            self.leadership.until_leading().await;
        }
        self.failure().map_or(Ok(()), Err)
    }

    /// Returns the error that failed this master, if any.
    pub fn failure(&self) -> Option<Error> {
        self.leadership.failure().or_else(|| self.opened.get()?.failure())
    }

    /// Stops in order: transfers leadership, rejects new calls, finishes running ones, closes the system tablet's log.
    /// A second call does nothing.
    pub async fn shutdown(&self) {
        if let Some(replica) = self.opened.get()
            && replica.begin_transfer().await
        {
            replica.wait_transferred(self.env.now().mono.after(self.transfer_timeout)).await;
        }
        self.rpc.shutdown(SHUTDOWN_GRACE).await;
        if let Ok(catalog) = self.leadership.catalog() {
            // Without a majority of the masters the last change may never be stored.
            self.env.timeout(SHUTDOWN_GRACE, catalog.stop()).await;
        }
        self.leadership.stop();
        self.end_tasks().await;
        self.common.close_logs().await;
        if let Some(replica) = self.opened.get() {
            drop(replica.stop().await);
        }
        self.dirs.release();
        drop(self.web.lock().take());
        self.stopped.store(true, Ordering::Release);
        self.bell.notify_waiters();
    }

    /// Ends the background tasks, also those that the opening of the system tablet starts meanwhile.
    async fn end_tasks(&self) {
        loop {
            let tasks = std::mem::take(&mut *self.tasks.lock());
            if tasks.is_empty() {
                return;
            }
            self.env.end(&tasks).await;
        }
    }

    /// Waits until the master has stopped.
    pub async fn done(&self) {
        let bell = self.bell.notified();
        if !self.stopped.load(Ordering::Acquire) {
            bell.await;
        }
    }

    /// Waits until the system tablet is closed: the master was stopped, or has failed and should be stopped.
    pub async fn catalog_ended(&self) {
        self.leadership.until_stopped().await;
    }
}

#[cfg(test)]
mod tests;
