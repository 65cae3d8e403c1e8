//! The tablet server.
//!
//! ```text
//!            TabletServerService   TabletServerAdminService   ConsensusService   GenericService
//! clients ──▶ write.rs  scan.rs     admin.rs ◀── masters       consensus.rs       crate::server
//!                 │        │           │
//!                 ▼        │           ▼
//!   replica.rs ◀──┴── entry.rs ◀── tablets.rs ── reports.rs ──▶ heartbeat.rs ──▶ masters
//!   log.rs                 ▲
//!                          └── maintenance.rs: flushes, cuts logs
//! ```

pub mod admin;
mod buried;
mod checksum;
pub mod config;
pub mod consensus;
pub mod copy;
pub mod entry;
mod heartbeat;
mod host;
pub mod live;
mod log;
pub mod maintenance;
mod memory;
pub mod numbers;
pub mod peers;
mod quiesce;
pub mod replica;
mod reports;
mod scan;
pub mod scan_spec;
pub mod scanners;
pub mod server;
pub mod service;
pub mod tablets;
pub mod tombstones;
mod write;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use engine::error::Result;
use engine::replica::{OpResult, RequestId};
use engine::time::Timestamp;
use tokio::sync::Notify;

pub use config::TserverConfig;

use crate::dirs::{self, ServerKind};
use crate::env::{Env, TaskHandle};
use crate::rpc::server::{RpcHandle, RpcServer};
use crate::server::generic::GenericService;
use crate::server::web::{self, WebHandle};
use crate::server::{self as common, Common, Health};
use crate::server_clock::ServerClock;
use copy::CopyService;
use heartbeat::Heartbeater;
use memory::MemoryPressure;
use server::Server;
use tablets::Tablets;

/// How long calls that run have to be answered when the server stops.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(5);

/// A running tablet server. Dropping it stops it without order; [`RunningTserver::shutdown`] does it in order.
pub struct RunningTserver {
    /// Where RPCs are served.
    pub rpc_addr: SocketAddr,
    /// Where metrics and health are served, if at all.
    pub web_addr: Option<SocketAddr>,
    pub server: Arc<Server>,
    rpc: RpcHandle,
    web: Mutex<Option<WebHandle>>,
    tasks: Vec<Box<dyn TaskHandle>>,
    stopped: Notify,
    done: std::sync::atomic::AtomicBool,
}

/// Opens the server's directories, begins to serve, and replays the logs of its tablets beside that.
///
/// Fails if the directories are not this server's, an address is taken, or a superblock cannot be read.
pub async fn run(mut env: Env, mut config: TserverConfig) -> Result<RunningTserver> {
    let clock = ServerClock::new(&env, config.max_clock_ahead_us);
    let dirs =
        env.run(|| dirs::open(&env, ServerKind::TabletServer, &config.wal_dir, &config.data_dirs)).await?;
    env.watch = env.watch.of(dirs.uuid);
    config.tablet.watch = env.watch.clone();
    let common = Common::new(&env, ServerKind::TabletServer, dirs.uuid, config.flags.clone());
    config.tablet.memory = MemoryPressure::of_tablets(&common.memory);
    let listener = common::listen(&env, config.rpc_addr, "rpc_bind_addresses").await?;
    common.status.set_rpc(listener.local_addr(), &config.rpc_advertised_addrs)?;
    let web = match config.web_addr {
        Some(addr) => Some(web::serve(&env, addr, common.clone()).await?),
        None => None,
    };
    let rpc = RpcServer::new(env.clone(), config.rpc.clone());
    let results = rpc.results();
    let at = env.clock.clone();
    let completed = move |id: &RequestId, timestamp: Timestamp, result: &OpResult| {
        if let Some(id) = write::request_id_pb(id) {
            results.restore(&id, write::remembered_of(timestamp, result), at.now().mono);
        }
    };
    let addr = common.status.rpc_address();
    let tablets = Tablets::new(&env, &clock, dirs, addr, &config, &common.memory, Arc::new(completed));
    env.run(|| tablets.load()).await?;
    let server = Arc::new(Server::new(&env, config, common.clone(), clock.clone(), tablets)?);
    let copies = CopyService::new(server.clone(), server.config.copy);
    server.set_copy_service(&copies);
    let rpc = rpc
        .add(Arc::new(service::TabletServerService(server.clone())))
        .add(Arc::new(admin::AdminService(server.clone())))
        .add(Arc::new(consensus::ConsensusService(server.clone())))
        .add(copies)
        .add(Arc::new(GenericService::new(common.clone(), clock)))
        .serve(listener);
    common::watch_rpc(&common.metrics, &rpc);
    numbers::show(&server);
    let tasks = start_tasks(&env, &server);
    common.status.set_health(Health::Healthy);
    let rpc_addr = rpc.local_addr();
    let web_addr = web.as_ref().map(WebHandle::local_addr);
    tracing::info!(uuid = %server.uuid(), %rpc_addr, "the tablet server serves");
    let (web, stopped, done) = (Mutex::new(web), Notify::new(), false.into());
    Ok(RunningTserver { rpc_addr, web_addr, server, rpc, web, tasks, stopped, done })
}

fn start_tasks(env: &Env, server: &Arc<Server>) -> Vec<Box<dyn TaskHandle>> {
    let mut tasks = Vec::new();
    for _ in 0..server.config.opening_max.max(1) {
        let of = server.clone();
        tasks.push(env.spawn("bootstrap", async move { of.tablets.bootstrap().await }));
    }
    if let Some(copies) = server.copy_service() {
        tasks.push(env.spawn("copy sessions", copies.expire()));
    }
    tasks.push(env.spawn("scanners", expire_scanners(server.clone())));
    tasks.push(env.spawn("tablet stats", heartbeat::watch_stats(server.clone())));
    tasks.push(env.spawn("quiescing", quiesce::run(server.clone())));
    tasks.push(env.spawn("maintenance", maintenance::run(server.clone())));
    for master in &server.config.masters {
        tasks.push(env.spawn("heartbeat", Heartbeater::new(server.clone(), master).run()));
    }
    tasks
}

async fn expire_scanners(server: Arc<Server>) {
    loop {
        server.env.sleep(Duration::from_millis(server.config.scanner_check_interval_ms)).await;
        let dropped = server.scanners().drop_expired(server.env.now().mono);
        if dropped > 0 {
            tracing::info!(dropped, "idle scanners expired");
        }
    }
}

impl RunningTserver {
    /// Stops in order: others lead its tablets, no new calls, running ones are answered, logs are closed. Stopping
    /// twice is fine.
    pub async fn shutdown(&self) {
        quiesce::leave(&self.server).await;
        self.tasks.iter().for_each(|task| task.abort());
        self.rpc.shutdown(SHUTDOWN_GRACE).await;
        self.server.env.end(&self.server.copies.take()).await;
        self.server.tablets.stop().await;
        // A flush in the middle of a step must not write into directories that others may have.
        self.server.env.end(&self.tasks).await;
        self.server.tablets.dirs().release();
        drop(self.web.lock().expect("nobody panics while holding it").take());
        self.done.store(true, std::sync::atomic::Ordering::Release);
        self.stopped.notify_waiters();
    }

    /// Ready when the server has stopped.
    pub async fn done(&self) {
        let stopped = self.stopped.notified();
        if !self.done.load(std::sync::atomic::Ordering::Acquire) {
            stopped.await;
        }
    }
}

#[cfg(test)]
mod tests;
