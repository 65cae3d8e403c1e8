//! The tablet server: its services, scanners, heartbeats and maintenance loop, around the replicas that it hosts.
//!
//! ```text
//!            TabletServerService   TabletServerAdminService   ConsensusService        GenericService
//! clients ──▶ write.rs  scan.rs     admin_service.rs ◀── masters    consensus_host.rs     crate::server
//!                 │        │           │                              │
//!                 ▼        ▼           ▼                              ▼
//!            crate::hosting: TabletManager, one event loop per replica ── reports ──▶ heartbeat.rs ──▶ masters
//!                                  ▲                  ▲
//!                                  │                  └── start_copy.rs, copy_manager.rs: copies onto this server
//!                                  └── maintenance.rs: which tablet's job is next
//! ```

pub mod admin_service;
mod checksum;
pub mod config;
mod consensus_host;
mod copy_manager;
mod copy_retries;
pub mod health;
mod heartbeat;
pub mod held_history;
mod history;
pub mod maintenance;
mod maintenance_log;
mod master_contacts;
mod metric_sources;
pub mod metrics;
mod open_scanner;
mod pages;
mod quiescing;
mod reply_rows;
mod request_limits;
pub mod runtime_flags;
mod scan;
mod scan_blocks;
mod scan_error;
mod scan_log;
mod scan_request;
pub mod scan_spec;
pub mod scanners;
mod scrub_host;
pub mod server;
mod space_moves;
mod start_copy;
mod table_access;
pub mod tablet_service;
mod write;

use engine::sync::Mutex;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use engine::error::Result;
use engine::replica::{OpResult, RequestId};
use engine::time::Timestamp;
use tokio::sync::Notify;

pub use config::TserverConfig;

use crate::dirs::{self, DirectoryPaths, ServerKind};
use crate::hosting::consensus_service::ConsensusService;
use crate::hosting::copy::CopyService;
use crate::hosting::memory_pressure::MemoryPressure;
use crate::hosting::tablet_manager::TabletManager;
use crate::server::bounded_clock;
use crate::server::generic_service::GenericService;
use crate::server::pages::rpc_page;
use crate::server::pages::startup_progress::{StartupProgress, StartupStep};
use crate::server::security::ServerIdentity;
use crate::server::web::{self, WebHandle};
use crate::server::{self as common, ServerContext, ServerHealth};
use crate::server_clock::ServerClock;
use heartbeat::Heartbeater;
use nyala_common::env::{Env, TaskHandle};
use nyala_common::rpc::server::{RpcHandle, RpcServer};
use server::{TabletServer, USER};

/// Time that running calls have to finish when the server stops.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(5);

/// A running tablet server. Dropping it stops it abruptly; [`RunningTserver::shutdown`] stops it in order.
pub struct RunningTserver {
    /// Address of the RPC port.
    pub rpc_addr: SocketAddr,
    /// Address of the web port, which serves metrics and health, if it is enabled.
    pub web_addr: Option<SocketAddr>,
    pub server: Arc<TabletServer>,
    rpc: RpcHandle,
    web: Mutex<Option<WebHandle>>,
    tasks: Vec<Box<dyn TaskHandle>>,
    stopped: Notify,
    done: std::sync::atomic::AtomicBool,
}

/// Opens the server's directories, starts to serve, and bootstraps its tablets in the background.
///
/// Fails if the directories belong to another server, an address is in use, or a superblock cannot be read.
pub async fn run(env: Env, mut config: TserverConfig) -> Result<RunningTserver> {
    let mut env = bounded_clock::bounded(env, config.clock_rule);
    let clock = ServerClock::new(&env, config.max_clock_ahead_us);
    let startup = Arc::<StartupProgress>::default();
    startup.begin(StartupStep::Init, env.now().mono);
    let web = match config.web_addr {
        Some(addr) => {
            let (kind, flags) = (ServerKind::TabletServer, config.flags.clone());
            Some(web::open(&env, addr, kind, flags, startup.clone()).await?)
        }
        None => None,
    };
    startup.advance(StartupStep::Init, StartupStep::ReadDirectories, env.now().mono);
    let paths =
        DirectoryPaths { wal: &config.wal_dir, data: &config.data_dirs, lost: &config.lost_data_dirs };
    let levels = config.levels;
    let dirs = env.run(|| dirs::open(&env, ServerKind::TabletServer, levels, paths)).await?;
    env.observer = env.observer.of(dirs.uuid);
    config.tablet.observer = env.observer.clone();
    let (kind, flags) = (ServerKind::TabletServer, config.flags.clone());
    let mut common = ServerContext::new(&env, kind, dirs.uuid, levels, flags);
    common.set_startup(&env, startup.clone());
    common.open_logs(&mut env).await?;
    config.tablet.memory = MemoryPressure::of_tablets(&common.memory);
    let listener = common::listen(&env, config.rpc_addr, "rpc_bind_addresses").await?;
    common.status.set_rpc(listener.local_addr(), config.advertised())?;
    if let Some(web) = &web {
        web.attach(common.clone());
    }
    let identity = ServerIdentity::new(&env, config.security.as_ref(), &common.status.rpc_address().0)?;
    let rpc = common.rpc_server(&env, &config.rpc, &identity);
    let completed = restore_results(&rpc, &env);
    let addr = common.status.rpc_address();
    let tablets = TabletManager::new(
        &env,
        &clock,
        dirs,
        addr,
        config.tablets(identity.caller(USER)),
        &common.memory,
        Arc::new(completed),
    );
    env.run(|| tablets.load()).await?;
    startup.advance(StartupStep::ReadDirectories, StartupStep::StartRpc, env.now().mono);
    env.run(|| tablets.space().refresh()).await;
    let server = Arc::new(TabletServer::new(&env, config, common.clone(), clock.clone(), identity, tablets)?);
    let copies = CopyService::new(server.clone(), server.config.copy);
    server.set_copy_service(&copies);
    let rpc = rpc
        .add(Arc::new(tablet_service::TabletServerService(server.clone())))
        .add(Arc::new(admin_service::AdminService(server.clone())))
        .add(Arc::new(ConsensusService(server.clone())))
        .add(copies)
        .add(Arc::new(GenericService::new(common.clone(), clock)))
        .serve(listener);
    common::watch_rpc(&common.metrics, &rpc);
    rpc_page::register(&common.pages, &rpc, env.clock.clone());
    startup.end(StartupStep::StartRpc, env.now().mono);
    metric_sources::show(&server);
    health::register(&server);
    pages::register(&server);
    crate::scrub::views::register(&common, server.scrubber.as_ref());
    let tasks = start_tasks(&env, &server);
    common.status.set_health(ServerHealth::Healthy);
    let rpc_addr = rpc.local_addr();
    let web_addr = web.as_ref().map(WebHandle::local_addr);
    tracing::info!(uuid = %server.uuid(), %rpc_addr, "the tablet server serves");
    let (web, stopped, done) = (Mutex::new(web), Notify::new(), false.into());
    Ok(RunningTserver { rpc_addr, web_addr, server, rpc, web, tasks, stopped, done })
}

/// Returns the receiver of results of writes, which remembers them for repeated requests.
fn restore_results(rpc: &RpcServer, env: &Env) -> impl Fn(&RequestId, Timestamp, &OpResult) + use<> {
    let (results, at) = (rpc.results(), env.clock.clone());
    move |id, timestamp, result| {
        if let Some(id) = write::request_id_pb(id) {
            results.restore(&id, write::remembered_of(timestamp, result), at.now().mono);
        }
    }
}

fn start_tasks(env: &Env, server: &Arc<TabletServer>) -> Vec<Box<dyn TaskHandle>> {
    let mut tasks = Vec::new();
    for _ in 0..server.config.opening_max.max(1) {
        let of = server.clone();
        of.common.startup.begin(StartupStep::StartTablets, env.now().mono);
        tasks.push(env.spawn("bootstrap", async move {
            of.tablets.bootstrap().await;
            // The queue is empty, but other tasks may still bootstrap: the last one ends the step.
            if of.tablets.bootstraps().left() == 0 {
                of.common.startup.end(StartupStep::StartTablets, of.env.now().mono);
            }
        }));
    }
    if let Some(copies) = server.copy_service() {
        tasks.push(env.spawn("copy sessions", copies.expire()));
    }
    tasks.push(env.spawn("scanners", expire_scanners(server.clone())));
    tasks.push(env.spawn("tablet stats", heartbeat::watch_stats(server.clone())));
    tasks.push(env.spawn("quiescing", quiescing::run(server.clone())));
    let of = server.clone();
    tasks.push(env.spawn("clock", async move {
        of.common.clock.watch(&of.env, of.config.clock_rule).await;
    }));
    tasks.push(env.spawn("disk space", space_moves::run(server.clone())));
    tasks.push(env.spawn("reopening", space_moves::reopen(server.clone())));
    if let Some(scrubber) = server.scrubber.clone() {
        tasks.push(env.spawn("scrubber", scrubber.run(server.clone())));
    }
    tasks.push(env.spawn("maintenance", maintenance::run(server.clone())));
    for master in &server.config.masters {
        tasks.push(env.spawn("heartbeat", Heartbeater::new(server.clone(), master).run()));
    }
    tasks
}

async fn expire_scanners(server: Arc<TabletServer>) {
    loop {
        server.env.sleep(Duration::from_millis(server.config.scanner_check_interval_ms)).await;
        let ended = {
            let mut scanners = server.scanners();
            scanners.drop_expired(server.env.now().mono);
            scanners.take_ended()
        };
        let dropped = ended.len();
        if dropped > 0 {
            server.env.run(|| drop(ended)).await;
            server.metrics.count_expired(dropped);
            tracing::info!(dropped, "idle scanners expired");
        }
    }
}

impl RunningTserver {
    /// Stops in order: transfers leadership of its tablets, rejects new calls, finishes running ones, closes the logs.
    /// A second call does nothing.
    pub async fn shutdown(&self) {
        quiescing::leave(&self.server).await;
        self.tasks.iter().for_each(|task| task.abort());
        self.rpc.shutdown(SHUTDOWN_GRACE).await;
        self.server.env.end(&self.server.copies.take()).await;
        self.server.tablets.stop().await;
        // A flush between two steps must not write into directories that another server may have opened.
        self.server.env.end(&self.tasks).await;
        self.server.common.close_logs().await;
        self.server.tablets.dirs().release();
        drop(self.web.lock().take());
        self.done.store(true, std::sync::atomic::Ordering::Release);
        self.stopped.notify_waiters();
    }

    /// Waits until the server has stopped.
    pub async fn done(&self) {
        let stopped = self.stopped.notified();
        if !self.done.load(std::sync::atomic::Ordering::Acquire) {
            stopped.await;
        }
    }
}

#[cfg(test)]
mod tests;
