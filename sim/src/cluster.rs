//! A plan's servers: the programs on its machines, booted as in production.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use engine::config::TabletConfig;
use engine::disk::mem::DiskCost;
use engine::error::Error;
use node::hosting::copy::CopyConfig;
use node::master::{self, MasterConfig};
use node::scrub::ScrubConfig;
use node::server::clock_watch::{self, ClockRule};
use node::server::security::SecuritySettings;
use node::tserver::{self, TserverConfig};
use nyala_common::env::Env;

use crate::run_observer::RunObserver;
use crate::security;
use crate::server_limits::{BACKOFF_MAX, CLOCK_ERROR_MAX_MICROS, PAGE_CACHE_BYTES, raft};
use crate::server_usage::RunningServers;
use crate::workload::{MASTER_PORT, TSERVER_PORT};
use crate::world::{HostProgram, ProgramResult, World};
use sim_plan::client_ops::{LOCATIONS_TTL, SCANNER_TTL};
use sim_plan::faults::DiskEffect;
use sim_plan::plan::DATA_DIRS_MAX;
use sim_plan::{EngineLimits, FaultKind, Host, Plan};

/// Directories of a server, by the names that faults use.
pub const WAL_DIR: &str = "wal";
pub const DATA_DIR: &str = "data";
/// Data directories of tablet servers that have several.
static DATA_DIRS: [&str; DATA_DIRS_MAX as usize] = [DATA_DIR, "data-2", "data-3"];
/// Longest time until a segment that was lost is sent again.
const RETRANSMITTED_WITHIN: Duration = Duration::from_secs(3);
/// Disk operations and syncs of a server's restart, until its tablets are replayed.
const RESTART_DISK_OPS: u32 = 1_000;
/// Disk operations and syncs of a server's first start.
const BOOT_DISK_OPS: u32 = 100;

/// Age of a backup's snapshot when it is held, and renewals of a hold within its lease, as in `nyala backup create`.
const SNAPSHOT_AGE: Duration = Duration::from_secs(1);
const RENEWALS_PER_LEASE: u32 = 3;
/// Ways of segments from the choice of a backup's snapshot to the first scan, from a renewal to the next one, and of a
/// call over a new connection with TLS.
const HOLD_WAYS: u32 = 24;
const RENEWAL_WAYS: u32 = 8;
const CALL_WAYS: u32 = 24;

/// Requirement of servers on their clocks.
const CLOCK_RULE: ClockRule = ClockRule { max_error_micros: CLOCK_ERROR_MAX_MICROS };
/// Time that a server waits for a right clock at its start; longer than any fault of clocks.
const CLOCK_PATIENCE: Duration = Duration::from_secs(600);

/// Idle time after which a session of a tablet copy ends: longer than any pause of its sink, and short enough to end
/// before the last checks.
pub const COPY_IDLE: Duration = Duration::from_secs(20);
/// Latency of a far network.
const FAR: Duration = Duration::from_millis(100);
/// Round trips of the idle time in a far network: fewer than a copy takes, and more than its sink pauses.
const FAR_ROUND_TRIPS: u32 = 6;
/// Interval between searches for idle sessions.
const COPY_EXPIRY: Duration = Duration::from_secs(5);
/// Scrubbing of servers whose files rot: a pass every few seconds, at a rate that a pass keeps up with.
const SCRUB_INTERVAL: Duration = Duration::from_secs(5);
const SCRUB_BYTES_PER_SECOND: u64 = 4 << 20;

/// Returns the latencies of the plan's devices.
pub fn device_cost(plan: &Plan) -> DiskCost {
    let devices = &plan.devices;
    DiskCost { op: devices.op, kib: devices.kib, sync: devices.sync }
}

/// Returns the data directories of a server.
pub fn data_dirs(plan: &Plan, host: Host) -> &'static [&'static str] {
    let count = if matches!(host, Host::Tserver(_)) { usize::from(plan.data_dirs) } else { 1 };
    &DATA_DIRS[..count]
}

/// Configures machines as the plan says and boots every server.
pub fn boot(world: &mut dyn World, plan: &Plan, observer: &RunObserver) {
    for host in plan.hosts() {
        let machine = world.machine(&host.name());
        machine.set_memory_bytes(plan.cluster.memory);
        machine.set_cost(device_cost(plan));
        machine.set_observer(observer.observer_for(host, &machine));
    }
    for clock in &plan.clocks {
        let true_micros = world.true_micros();
        let machine = world.machine(&clock.host.name());
        machine.set_clock(clock.offset_us, clock.error_us);
        machine.drift_clock(clock.drift_ppm, true_micros);
    }
    for host in plan.servers() {
        if let Some(program) = server(plan, host, observer.running()) {
            world.boot(&host.name(), program);
        }
    }
}

/// Gives a client's machine a ticket where the plan requires one.
pub fn give_ticket(world: &mut dyn World, plan: &Plan, client: &str) {
    if plan.security.is_some() {
        world.machine(client).set_kerberos(security::client_kerberos());
    }
}

/// Address that a server tells others, by its host and port.
pub(crate) type AddressOf<'a> = &'a dyn Fn(Host, u16) -> String;

/// Returns the program of a server; `None` for a client.
pub(crate) fn server(plan: &Plan, host: Host, running: &RunningServers) -> Option<HostProgram> {
    server_at(plan, host, running, &by_name)
}

fn by_name(host: Host, port: u16) -> String {
    format!("{host}:{port}")
}

fn masters(plan: &Plan, address: AddressOf<'_>) -> Vec<String> {
    (0..plan.cluster.masters).map(|number| address(Host::Master(number), MASTER_PORT)).collect()
}

/// Returns the program of a server where hosts have other addresses than their names.
pub(crate) fn server_at(
    plan: &Plan,
    host: Host,
    running: &RunningServers,
    address: AddressOf<'_>,
) -> Option<HostProgram> {
    match host {
        Host::Master(_) => {
            let (config, running) = (master_config(plan, host, address), running.clone());
            Some(Arc::new(move |env| Box::pin(serve_master(env, config.clone(), host, running.clone()))))
        }
        Host::Tserver(_) => Some(tablet_server(tserver_config_at(plan, host, address), host, running)),
        Host::Client(_) => None,
    }
}

/// Returns the program of a plan's master with settings that `change` makes of the plan's at each start.
pub(crate) fn master_with(
    plan: &Plan,
    host: Host,
    change: impl Fn(&Env, &mut MasterConfig) -> Result<(), Error> + Send + Sync + 'static,
) -> HostProgram {
    let config = master_config(plan, host, &by_name);
    let running = RunningServers::default();
    Arc::new(move |env| {
        let (mut own, running) = (config.clone(), running.clone());
        let changed = change(&env, &mut own);
        Box::pin(async move {
            changed?;
            serve_master(env, own, host, running).await
        })
    })
}

/// Returns the program of a tablet server with these settings.
pub(crate) fn tablet_server(config: TserverConfig, host: Host, running: &RunningServers) -> HostProgram {
    let running = running.clone();
    Arc::new(move |env| {
        // Flags that were changed at run time end with the process.
        let flags = Arc::new(config.flags.fork());
        let config = TserverConfig { flags, ..config.clone() };
        Box::pin(serve_tablets(env, config, host, running.clone()))
    })
}

/// Returns the settings of a plan's tablet server.
pub(crate) fn tserver_config(plan: &Plan, host: Host) -> TserverConfig {
    tserver_config_at(plan, host, &by_name)
}

/// Returns the settings of a plan's tablet server with other ones for security.
pub(crate) fn tserver_with(plan: &Plan, host: Host, security: SecuritySettings) -> TserverConfig {
    TserverConfig { security: Some(security), ..tserver_config(plan, host) }
}

async fn serve_master(env: Env, config: MasterConfig, host: Host, running: RunningServers) -> ProgramResult {
    clock_watch::wait_synchronised(&env, CLOCK_RULE, CLOCK_PATIENCE).await?;
    let master = master::run(env, config).await?;
    running.health.add(host, &master.common);
    master.catalog_ended().await;
    Err("the master's catalog ended".into())
}

async fn serve_tablets(
    env: Env,
    config: TserverConfig,
    host: Host,
    running: RunningServers,
) -> ProgramResult {
    clock_watch::wait_synchronised(&env, CLOCK_RULE, CLOCK_PATIENCE).await?;
    let server = tserver::run(env, config).await?;
    running.add(host, &server.server);
    pending().await
}

/// Returns the time within which a cluster recovers after a fault has ended: a server restarts and replays its logs,
/// peers retransmit and notice lost connections, and each tablet elects a leader, at the longest backoff.
pub fn recovery_time(plan: &Plan) -> Duration {
    let elections = raft(plan).election_timeout() * 3 + BACKOFF_MAX;
    let restart = (plan.devices.op + plan.devices.sync) * RESTART_DISK_OPS;
    RETRANSMITTED_WITHIN + plan.cluster.rpc_timeout * 2 + elections + restart
}

/// Returns true if a backup that nothing disturbs holds its history before servers drop it, and renews the hold in
/// time: its snapshot is a second old by then, and servers learn of the hold by a heartbeat.
pub fn holds_history(plan: &Plan) -> bool {
    let way = plan.network.latency + plan.network.jitter;
    let held_after = SNAPSHOT_AGE + plan.cluster.heartbeat * 2 + way * HOLD_WAYS;
    let renewed_after = history_lease(plan) / RENEWALS_PER_LEASE + way * RENEWAL_WAYS;
    let is_held_in_time = plan.history_age().is_some_and(|age| held_after < age);
    plan.network.loss_per_mille == 0 && is_held_in_time && renewed_after < history_lease(plan)
}

fn history_lease(plan: &Plan) -> Duration {
    plan.cluster.heartbeat * 2
}

/// Returns true if one call has its reply within its timeout where no segment is lost: it opens a connection, too.
pub fn replies_promptly(plan: &Plan) -> bool {
    let way = plan.network.latency + plan.network.jitter;
    plan.network.loss_per_mille == 0 && way * CALL_WAYS < plan.cluster.rpc_timeout
}

/// Returns the time within which the masters of a new cluster know all tablet servers: a server sends its first
/// heartbeats again after an interval if masters do not listen yet.
pub fn boot_time(plan: &Plan) -> Duration {
    plan.cluster.heartbeat * 3 + (plan.devices.op + plan.devices.sync) * BOOT_DISK_OPS
}

/// Returns the time within which a master that starts later knows all tablet servers that it reaches: each notices
/// first that its connection is lost.
pub fn registration_time(plan: &Plan) -> Duration {
    RETRANSMITTED_WITHIN + (plan.cluster.rpc_timeout + plan.cluster.heartbeat) * 2
}

fn millis(time: Duration) -> u64 {
    time.as_millis() as u64
}

fn master_config(plan: &Plan, host: Host, address: AddressOf<'_>) -> MasterConfig {
    let addr = ([0, 0, 0, 0], MASTER_PORT).into();
    let mut config = MasterConfig::new(addr, WAL_DIR, vec![DATA_DIR.to_string()]);
    config.rpc_advertised_addrs = vec![address(host, MASTER_PORT)];
    config.masters = masters(plan, address);
    config.clock_rule = Some(CLOCK_RULE);
    config.log_sync = plan.cluster.log_sync;
    config.maintenance_interval = plan.cluster.maintenance;
    config.page_cache_bytes = PAGE_CACHE_BYTES;
    config.catalog.replicas_default = i32::from(plan.cluster.replicas);
    config.tserver_rpc_timeout = plan.cluster.rpc_timeout;
    config.consensus_timeout = plan.cluster.rpc_timeout;
    config.raft = raft(plan);
    if let Some(spec) = &plan.security {
        config.security = Some(security::settings(spec, host));
        security::require(&mut config.rpc);
    }
    if plan.alters_model_tables() {
        config.table_locations_ttl_ms = millis(LOCATIONS_TTL) as u32;
    }
    config.history_holds.lease = history_lease(plan);
    let cell_bytes_max = config.tablet.cell_bytes_max;
    config.tablet = tablet(plan.cluster.limits, cell_bytes_max).unwrap_or(config.tablet);
    config
}

/// Returns the engine limits of the plan; `None` for the defaults.
fn tablet(limits: EngineLimits, cell_bytes_max: usize) -> Option<TabletConfig> {
    let tiny = TabletConfig { cell_bytes_max, ..TabletConfig::tiny() };
    let TabletConfig { wal_retain_bytes, wal_segment_bytes_max, wal_spared_bytes_max, .. } =
        TabletConfig::default();
    match limits {
        EngineLimits::Tiny => Some(tiny),
        EngineLimits::LongLog => Some(TabletConfig { wal_retain_bytes, wal_segment_bytes_max, ..tiny }),
        EngineLimits::Spared => Some(TabletConfig { wal_spared_bytes_max, ..tiny }),
        EngineLimits::Normal => None,
    }
}

/// Returns the scrubber of a plan's servers: it runs often where a fault damages files in silence, in one of four
/// plans. In the others readers meet the damage first.
fn scrub(plan: &Plan) -> ScrubConfig {
    let is_silent = |kind: FaultKind| kind.disk_effect() == DiskEffect::SilentCorruption;
    let scrubs = plan.seed.is_multiple_of(4) && plan.faults.iter().any(|fault| is_silent(fault.kind.kind()));
    match scrubs {
        true => ScrubConfig { interval: SCRUB_INTERVAL, bytes_per_second: SCRUB_BYTES_PER_SECOND },
        false => ScrubConfig::OFF,
    }
}

fn tserver_config_at(plan: &Plan, host: Host, address: AddressOf<'_>) -> TserverConfig {
    let addr = ([0, 0, 0, 0], TSERVER_PORT).into();
    let data_dirs = data_dirs(plan, host).iter().map(ToString::to_string).collect();
    let mut config = TserverConfig::new(addr, WAL_DIR, data_dirs);
    config.rpc_advertised_addrs = vec![address(host, TSERVER_PORT)];
    config.masters = masters(plan, address);
    config.log_sync = plan.cluster.log_sync;
    config.heartbeat_interval_ms = millis(plan.cluster.heartbeat);
    config.heartbeat_timeout_ms = millis(plan.cluster.rpc_timeout);
    config.maintenance_interval_ms = millis(plan.cluster.maintenance);
    config.page_cache_bytes = PAGE_CACHE_BYTES;
    config.raft = raft(plan);
    if let Some(spec) = &plan.security {
        config.security = Some(security::settings(spec, host));
        security::require(&mut config.rpc);
    }
    config.clock_rule = Some(CLOCK_RULE);
    if plan.pauses_scans() {
        config.scanner_ttl_ms = millis(SCANNER_TTL);
    }
    if let Some(age) = plan.history_age() {
        config.history_max_age_s = age.as_secs();
    }
    config.tablet = tablet(plan.cluster.limits, 64 << 10).unwrap_or(config.tablet);
    config.scrub = scrub(plan);
    let idle_timeout = copy_idle(plan);
    config.copy = CopyConfig { idle_timeout, expiry_interval: COPY_EXPIRY, ..config.copy };
    config
}

/// Returns the idle time after which a session of a tablet copy ends: in far networks less than a copy takes.
fn copy_idle(plan: &Plan) -> Duration {
    let network = &plan.network;
    match network.latency >= FAR {
        true => (network.latency + network.jitter) * 2 * FAR_ROUND_TRIPS,
        false => COPY_IDLE,
    }
}
