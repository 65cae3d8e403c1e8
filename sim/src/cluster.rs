//! A plan's servers: the programs that run on its machines, booted as production boots them.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use engine::config::TabletConfig;
use engine::disk::mem::DiskCost;
use engine::raft::RaftOptions;
use node::env::Env;
use node::master::{self, MasterConfig};
use node::tserver::{self, TserverConfig};

use crate::observer::Observer;
use crate::plan::{Host, Limits, Plan};
use crate::workload::{MASTER_PORT, TSERVER_PORT};
use crate::world::{Ended, Program, World};

/// Directories of a server, by the names that faults have for them.
pub const WAL_DIR: &str = "wal";
pub const DATA_DIR: &str = "data";
/// Decoded pages kept by a server: little, so that disks are read.
pub const PAGE_CACHE_BYTES: usize = 256 << 10;
const RAFT_CACHE_BYTES: usize = 16 << 10;
/// No pause after failed elections is longer: healed clusters must come back within a stated time.
const BACKOFF_MAX: Duration = Duration::from_secs(5);

/// What operations on the plan's devices take.
pub fn device_cost(plan: &Plan) -> DiskCost {
    let devices = &plan.devices;
    DiskCost { op: devices.op, kib: devices.kib, sync: devices.sync }
}

/// Sets machines up as the plan says and boots every server.
pub fn boot(world: &mut dyn World, plan: &Plan, observer: &Observer) {
    for host in plan.hosts() {
        let machine = world.machine(&host.name());
        machine.set_memory_bytes(plan.cluster.memory);
        machine.set_cost(device_cost(plan));
        machine.set_watch(observer.watch(host, &machine));
    }
    for clock in &plan.clocks {
        let true_micros = world.true_micros();
        let machine = world.machine(&clock.host.name());
        machine.set_clock(clock.offset_us, clock.error_us);
        machine.drift_clock(clock.drift_ppm, true_micros);
    }
    for host in plan.servers() {
        if let Some(program) = server(plan, host) {
            world.boot(&host.name(), program);
        }
    }
}

/// The program of a server; none for a client.
fn server(plan: &Plan, host: Host) -> Option<Program> {
    match host {
        Host::Master(_) => {
            let config = master_config(plan, host);
            Some(Arc::new(move |env| Box::pin(serve_master(env, config.clone()))))
        }
        Host::Tserver(_) => {
            let config = tserver_config(plan, host);
            Some(Arc::new(move |env| Box::pin(serve_tablets(env, config.clone()))))
        }
        Host::Client(_) => None,
    }
}

async fn serve_master(env: Env, config: MasterConfig) -> Ended {
    let master = master::run(env, config).await?;
    master.catalog_ended().await;
    Err("the master's catalog ended".into())
}

async fn serve_tablets(env: Env, config: TserverConfig) -> Ended {
    let _server = tserver::run(env, config).await?;
    pending().await
}

fn masters(plan: &Plan) -> Vec<String> {
    (0..plan.cluster.masters).map(|number| format!("{}:{MASTER_PORT}", Host::Master(number))).collect()
}

/// How the groups of a plan's replicas behave.
pub fn raft(plan: &Plan) -> RaftOptions {
    RaftOptions {
        heartbeat_interval: plan.cluster.raft_heartbeat,
        follower_failed_after: plan.cluster.follower_failed,
        backoff_max: BACKOFF_MAX,
        // Little, so that what a follower lacks is read from the log.
        cache_bytes_max: RAFT_CACHE_BYTES,
        batch_bytes_max: plan.sending.batch as usize,
        inflight_max: usize::from(plan.sending.inflight),
        ..RaftOptions::default()
    }
}

fn millis(time: Duration) -> u64 {
    time.as_millis() as u64
}

fn master_config(plan: &Plan, host: Host) -> MasterConfig {
    let addr = ([0, 0, 0, 0], MASTER_PORT).into();
    let mut config = MasterConfig::new(addr, WAL_DIR, vec![DATA_DIR.to_string()]);
    config.rpc_advertised_addrs = vec![format!("{host}:{MASTER_PORT}")];
    config.masters = masters(plan);
    config.log_sync = plan.cluster.log_sync;
    config.maintenance_interval = plan.cluster.maintenance;
    config.page_cache_bytes = PAGE_CACHE_BYTES;
    config.catalog.replicas_default = i32::from(plan.cluster.replicas);
    config.tserver_rpc_timeout = plan.cluster.rpc_timeout;
    config.consensus_timeout = plan.cluster.rpc_timeout;
    config.raft = raft(plan);
    let cell_bytes_max = config.tablet.cell_bytes_max;
    config.tablet = tablet(plan.cluster.limits, cell_bytes_max).unwrap_or(config.tablet);
    config
}

/// How soon tablets act on their own, if the plan says so.
fn tablet(limits: Limits, cell_bytes_max: usize) -> Option<TabletConfig> {
    let tiny = TabletConfig { cell_bytes_max, ..TabletConfig::tiny() };
    let TabletConfig { wal_retain_bytes, wal_segment_bytes_max, wal_spared_bytes_max, .. } =
        TabletConfig::default();
    match limits {
        Limits::Tiny => Some(tiny),
        Limits::LongLog => Some(TabletConfig { wal_retain_bytes, wal_segment_bytes_max, ..tiny }),
        Limits::Spared => Some(TabletConfig { wal_spared_bytes_max, ..tiny }),
        Limits::Normal => None,
    }
}

fn tserver_config(plan: &Plan, host: Host) -> TserverConfig {
    let addr = ([0, 0, 0, 0], TSERVER_PORT).into();
    let mut config = TserverConfig::new(addr, WAL_DIR, vec![DATA_DIR.to_string()]);
    config.rpc_advertised_addrs = vec![format!("{host}:{TSERVER_PORT}")];
    config.masters = masters(plan);
    config.log_sync = plan.cluster.log_sync;
    config.heartbeat_interval_ms = millis(plan.cluster.heartbeat);
    config.heartbeat_timeout_ms = millis(plan.cluster.rpc_timeout);
    config.maintenance_interval_ms = millis(plan.cluster.maintenance);
    config.page_cache_bytes = PAGE_CACHE_BYTES;
    config.raft = raft(plan);
    if !plan.data.history.is_zero() {
        config.history_max_age_s = plan.data.history.as_secs().max(1);
    }
    config.tablet = tablet(plan.cluster.limits, 64 << 10).unwrap_or(config.tablet);
    config
}
