//! Common parts of masters and tablet servers: flags, identity, the GenericService, the web port.
//!
//! ```text
//! main, cli ── flags ──▶ configuration of the server ──▶ tserver::run, master::start
//!                                                           │ each begins with
//!                      ServerContext::new, dirs::open ◀─────┘ listen, GenericService, web::serve
//! ```

pub(crate) mod audit;
pub mod bounded_clock;
pub mod clock_watch;
pub mod cluster;
mod flag_table;
mod flag_table_kudu;
mod flag_table_security;
pub mod flags;
pub mod format_support;
pub mod generic_service;
pub mod health;
mod host_port;
mod line_files;
pub mod logging;
pub mod ntp;
pub mod pages;
mod process_metrics;
pub mod security;
pub(crate) mod span_log;
pub mod startup;
mod startup_warnings;
pub mod web;
pub mod web_access;
mod web_connections;
pub(crate) mod web_request;
mod web_routes;

use engine::sync::{Mutex, MutexGuard};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use engine::error::{Error, Result};
use engine::format_level::LevelRange;
use engine::ids::Uuid;

use crate::dirs::ServerKind;
use audit::AuditLog;
use clock_watch::ClockTrust;
use engine::memory::MemTracker;
use engine::time::Instant;
use flags::Flags;
use format_support::FormatSupport;
use health::{CheckResult, HealthBoard, HealthCheck};
pub use host_port::split_host_port;
pub(crate) use host_port::{is_local_address, join_host_port};
use host_port::{parse_names, registered};
use nyala_common::env::{Env, Listener};
use nyala_common::metrics::{MetricRegistry, MetricSnapshot, MetricValue, table};
use nyala_common::rpc::RpcConfig;
use nyala_common::rpc::server::{RpcHandle, RpcServer};
use nyala_common::security::ServerSecurity;
use nyala_proto::kudu::server::ServerStatusPb;
use nyala_proto::kudu::{HostPortPb, NodeInstancePb, ServerRegistrationPb, VersionInfoPb};
use pages::registry::PageRegistry;
use pages::startup_progress::StartupProgress;
use pages::{pprof_page, process_pages};
use security::ServerIdentity;
use span_log::SpanLog;

/// Version text for people.
pub const VERSION: &str = concat!("nyala ", env!("CARGO_PKG_VERSION"));

/// Version for Kudu's clients and tools, which parse it as x.y.z: the Kudu whose protocol is spoken, then nyala's own.
/// A text that does not parse counts as a server that is too old to move single replicas.
pub const SOFTWARE_VERSION: &str = concat!("1.18.1-nyala-", env!("CARGO_PKG_VERSION"));

/// Listens at an address; the error names the flag to change if the address is in use.
pub async fn listen(env: &Env, addr: SocketAddr, setting: &str) -> Result<Box<dyn Listener>> {
    env.net.listen(addr).await.map_err(|error| {
        let hint = match error.kind() {
            std::io::ErrorKind::AddrInUse => {
                format!(" (another program has it; stop that one or choose another with --{setting})")
            }
            std::io::ErrorKind::AddrNotAvailable => {
                format!(" (this machine has no such address; choose another with --{setting})")
            }
            _ => String::new(),
        };
        let mut failed = Error::io(format_args!("listen at {addr}"), &error);
        failed.message.push_str(&hint);
        failed
    })
}

/// State shared by all parts of one server.
#[derive(Clone)]
pub struct ServerContext {
    pub kind: ServerKind,
    pub flags: Arc<Flags>,
    pub metrics: Arc<MetricRegistry>,
    pub memory: Arc<MemTracker>,
    pub status: Arc<ServerStatus>,
    pub checks: Arc<HealthBoard>,
    pub clock: Arc<ClockTrust>,
    pub pages: Arc<PageRegistry>,
    pub startup: Arc<StartupProgress>,
    /// Audit log, if the flags ask for one.
    pub(crate) audit: Option<Arc<AuditLog>>,
    /// Span log, if the flags ask for one.
    pub(crate) span_log: Option<Arc<SpanLog>>,
}

impl ServerContext {
    /// Creates the context of the server `uuid`, as stored in its directories, whose program supports `levels`.
    pub fn new(
        env: &Env,
        kind: ServerKind,
        uuid: Uuid,
        levels: LevelRange,
        flags: Arc<Flags>,
    ) -> ServerContext {
        let budget = env.memory.clone();
        let memory = MemTracker::root("server", Some(Arc::new(move || budget.limit_bytes())));
        let status = Arc::new(ServerStatus::new(env, uuid, levels));
        let metrics = MetricRegistry::new(kind.entity_id());
        let (checks, clock) = (Arc::<HealthBoard>::default(), Arc::<ClockTrust>::default());
        let watched = clock.clone();
        checks.register(move |checks| checks.push(watched.check()));
        let (pages, startup) = (Arc::default(), Arc::default());
        let context = ServerContext {
            kind,
            flags,
            metrics,
            memory,
            status,
            checks,
            clock,
            pages,
            startup,
            audit: None,
            span_log: None,
        };
        context.register_own(env);
        process_pages::register(&context.pages, env, &context.memory);
        pprof_page::register(&context.pages, env, &context.flags);
        process_metrics::register(&context.metrics, env);
        context
    }
}

impl ServerContext {
    /// Opens the audit log, and the span log, which switches the spans of `env` on, if the flags ask for them.
    pub(crate) async fn open_logs(&mut self, env: &mut Env) -> Result<()> {
        let server = self.status.uuid();
        self.span_log = SpanLog::open(env, self.kind, server, &self.flags).await?.map(Arc::new);
        self.audit = AuditLog::open(env, server, &self.flags, &self.checks).await?;
        Ok(())
    }

    /// Writes the last lines of these logs.
    pub(crate) async fn close_logs(&self) {
        if let Some(audit) = &self.audit {
            audit.close().await;
        }
        if let Some(spans) = &self.span_log {
            spans.close().await;
        }
    }

    /// Returns an RPC server of this identity, with the audit log, the flag's rule for slow calls, and cached replies
    /// below the server's memory tracker.
    pub(crate) fn rpc_server(&self, env: &Env, config: &RpcConfig, identity: &ServerIdentity) -> RpcServer {
        let audit = self.audit.clone().map(|log| log as _);
        RpcServer::new(env.clone(), config.clone())
            .with_security(ServerSecurity { audit, ..identity.server() })
            .with_slow_call_ms(self.flags.live("rpc_duration_too_long_ms"))
            .with_memory(&self.memory)
    }

    /// Takes the progress of the start that this server has begun, and registers its metrics.
    pub(crate) fn set_startup(&mut self, env: &Env, startup: Arc<StartupProgress>) {
        self.startup = startup.clone();
        let time = env.clock.clone();
        self.metrics.register(move |out: &mut MetricSnapshot| {
            let starting = startup.summary(time.now().mono);
            out.server.gauge(&table::STARTUP_PROGRESS_STEPS_REMAINING, starting.steps_left);
            let millis = u64::try_from(starting.time.as_millis()).unwrap_or(u64::MAX);
            out.server.gauge(&table::STARTUP_PROGRESS_TIME_ELAPSED, millis);
        });
    }

    /// Registers the metrics of identity, time and memory.
    fn register_own(&self, env: &Env) {
        let (env, memory, uuid) = (env.clone(), self.memory.clone(), self.status.uuid());
        let clock = self.clock.clone();
        let started = env.now().mono;
        self.metrics.register(move |out: &mut MetricSnapshot| {
            let (now, usage) = (env.now(), memory.usage());
            let server = &mut out.server;
            server.attribute("uuid", uuid.to_string());
            let uptime = now.mono.since(started).as_micros();
            server.gauge(&table::UPTIME, u64::try_from(uptime).unwrap_or(u64::MAX));
            server.gauge(&table::HYBRID_CLOCK_ERROR, now.wall.error_micros);
            let lines = logging::line_counts();
            server.counter(&table::GLOG_ERROR_MESSAGES, lines.errors);
            server.counter(&table::GLOG_WARNING_MESSAGES, lines.warnings);
            server.counter(&table::GLOG_INFO_MESSAGES, lines.infos);
            server.gauge(&table::CLOCK_TRUSTED, u64::from(clock.fault().is_none()));
            server.gauge(&table::MEMORY_USAGE, usage.bytes);
            if let Some(limit) = usage.limit {
                server.gauge(&table::MEMORY_LIMIT, limit);
            }
            let version = [("version", env!("CARGO_PKG_VERSION"))];
            server.labelled(&table::BUILD_INFO, &version, MetricValue::Integer(1));
            // Below the first level there is one tracker per tablet: too many labels.
            for tracker in &usage.children {
                let bytes = MetricValue::Integer(i64::try_from(tracker.bytes).unwrap_or(i64::MAX));
                server.labelled(&table::TRACKED_MEMORY, &[("tracker", &tracker.id)], bytes);
            }
        });
    }
}

/// Registers the metrics of the RPC layer.
pub fn watch_rpc(metrics: &MetricRegistry, rpc: &RpcHandle) {
    let (counters, latencies, queued) = (rpc.counters(), rpc.latencies(), rpc.queued_calls());
    metrics.register(move |out: &mut MetricSnapshot| {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let server = &mut out.server;
        server.counter(&table::RPC_CONNECTIONS_ACCEPTED, read(&counters.connections_accepted));
        server.counter(&table::RPC_NEGOTIATIONS_FAILED, read(&counters.negotiations_failed));
        server.counter(&table::RPC_PROTOCOL_ERRORS, read(&counters.protocol_errors));
        server.counter(&table::RPC_CALLS_RECEIVED, read(&counters.calls_received));
        server.counter(&table::RPCS_QUEUE_OVERFLOW, read(&counters.calls_rejected));
        server.counter(&table::RPCS_TIMED_OUT_IN_QUEUE, read(&counters.calls_expired));
        server.counter(&table::RPC_CALLS_REPEATED, read(&counters.calls_repeated));
        server.counter(&table::RPC_CALLS_UNAUTHORIZED, read(&counters.calls_unauthorized));
        server.gauge(&table::RPC_QUEUE_LENGTH, queued());
        server.gauge(&table::RPC_CONNECTIONS_OPEN, read(&counters.connections_open));
        server.histogram(&table::RPC_INCOMING_QUEUE_TIME, &latencies.queue_time);
        for (method, calls) in latencies.methods() {
            server.of_method(&table::HANDLER_LATENCY, &method, &calls.times);
            server.counter_of_method(&table::QUEUE_OVERFLOW_REJECTIONS, &method, read(&calls.rejected));
            server.counter_of_method(&table::TIMED_OUT_ON_RESPONSE, &method, read(&calls.late));
        }
    });
}

/// Identity, addresses and health of a server.
pub struct ServerStatus {
    uuid: Uuid,
    /// Start time in microseconds since 1970, which distinguishes one start of the server from the next.
    instance_seqno: i64,
    started: Instant,
    /// Format levels of the program.
    pub formats: FormatSupport,
    state: Mutex<State>,
}

/// Names by which others reach a server, in place of the addresses that it is bound to.
#[derive(Debug, Clone, Copy, Default)]
pub struct AdvertisedNames<'a> {
    /// `host:port` of the RPC port; empty for the bound address.
    pub rpc: &'a [String],
    /// `host:port` of the web port; empty for the bound address.
    pub web: &'a [String],
    /// Host in place of a wildcard address; `None` for the loopback address.
    pub wildcard_host: Option<&'a str>,
}

#[derive(Default)]
struct State {
    rpc: Vec<(String, u16)>,
    web: Vec<(String, u16)>,
    /// Addresses of the web port that are registered instead of the bound one, if any.
    web_advertised: Vec<(String, u16)>,
    /// True if the web port speaks HTTPS.
    https: bool,
    health: ServerHealth,
}

/// Health of a server.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ServerHealth {
    #[default]
    Starting,
    Healthy,
    /// The reason of the failure.
    Failed(String),
}

impl ServerStatus {
    fn new(env: &Env, uuid: Uuid, levels: LevelRange) -> ServerStatus {
        let instance_seqno = i64::try_from(env.now().wall.micros).unwrap_or(i64::MAX);
        let (started, formats) = (env.now().mono, FormatSupport::new(levels));
        ServerStatus { uuid, instance_seqno, started, formats, state: Mutex::default() }
    }

    pub fn uuid(&self) -> Uuid {
        self.uuid
    }

    /// Returns the start time by the monotonic clock.
    pub fn started(&self) -> Instant {
        self.started
    }

    /// Returns the start time in microseconds since 1970.
    pub fn started_micros(&self) -> u64 {
        u64::try_from(self.instance_seqno).unwrap_or(0)
    }

    pub fn set_health(&self, health: ServerHealth) {
        self.state().health = health;
    }

    pub fn health(&self) -> ServerHealth {
        self.state().health.clone()
    }

    /// Returns the check that the server has started and has not failed.
    pub fn check(&self) -> HealthCheck {
        let result = match self.health() {
            ServerHealth::Starting => CheckResult::Failed("starting".to_string()),
            ServerHealth::Healthy => CheckResult::Ok("started".to_string()),
            ServerHealth::Failed(why) => CheckResult::Failed(why),
        };
        HealthCheck::new("server", result)
    }

    /// Sets the RPC addresses: the advertised ones, or `bound` if there are none. Keeps the names of the web port for
    /// [`ServerStatus::set_web`].
    pub fn set_rpc(&self, bound: SocketAddr, names: AdvertisedNames<'_>) -> Result<()> {
        let (rpc, web) = (parse_names(names.rpc)?, parse_names(names.web)?);
        let mut state = self.state();
        state.rpc = registered(bound, &rpc, names.wildcard_host);
        state.web_advertised = web;
        Ok(())
    }

    /// Sets the address of the web port, and whether it speaks HTTPS. A port that is bound to all addresses is reached
    /// by the host of the RPC port. Order: after [`ServerStatus::set_rpc`].
    pub fn set_web(&self, bound: SocketAddr, https: bool) {
        let mut state = self.state();
        let host = state.rpc.first().map(|(host, _)| host.as_str());
        state.web = registered(bound, &state.web_advertised, host);
        state.https = https;
    }

    /// Returns `host:port` of the RPC addresses.
    pub fn rpc_addresses(&self) -> Vec<String> {
        self.state().rpc.iter().map(|(host, port)| join_host_port(host, *port)).collect()
    }

    /// Returns the first RPC address, which other servers use.
    pub fn rpc_address(&self) -> (String, u16) {
        self.state().rpc.first().cloned().unwrap_or_default()
    }

    pub fn node_instance(&self) -> NodeInstancePb {
        let permanent_uuid = Bytes::from(self.uuid.to_string());
        NodeInstancePb { permanent_uuid, instance_seqno: self.instance_seqno }
    }

    pub fn to_pb(&self) -> ServerStatusPb {
        let state = self.state();
        ServerStatusPb {
            node_instance: self.node_instance(),
            bound_rpc_addresses: to_pbs(&state.rpc),
            bound_http_addresses: to_pbs(&state.web),
            version_info: Some(VersionInfoPb {
                version_string: Some(SOFTWARE_VERSION.to_string()),
                build_type: Some(if cfg!(debug_assertions) { "DEBUG" } else { "RELEASE" }.to_string()),
                ..VersionInfoPb::default()
            }),
        }
    }

    /// Returns the server's registration, for masters and, from a master, for clients.
    pub fn registration(&self) -> ServerRegistrationPb {
        let state = self.state();
        ServerRegistrationPb {
            rpc_addresses: to_pbs(&state.rpc),
            http_addresses: to_pbs(&state.web),
            software_version: Some(SOFTWARE_VERSION.to_string()),
            https_enabled: Some(state.https),
            start_time: Some(self.instance_seqno / 1_000_000),
            nyala_oldest_level: Some(self.formats.levels().oldest.0.into()),
            nyala_newest_level: Some(self.formats.levels().newest.0.into()),
            ..ServerRegistrationPb::default()
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

fn to_pbs(addresses: &[(String, u16)]) -> Vec<HostPortPb> {
    let pb = |(host, port): &(String, u16)| HostPortPb { host: host.clone(), port: u32::from(*port) };
    addresses.iter().map(pb).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use nyala_common::env::mem_net;

    /// Kudu's tool refuses to move single replicas of servers whose version it cannot parse.
    #[test]
    fn the_version_for_tools_begins_as_kudus() {
        let (kudu, own) = SOFTWARE_VERSION.split_once('-').expect("two versions");
        let numbers: Vec<u32> = kudu.split('.').map(|part| part.parse().expect("a number")).collect();
        assert_eq!(numbers, [1, 18, 1]);
        assert_eq!(own.replace("nyala-", "nyala "), VERSION);
    }

    #[test]
    fn hosts_and_ports() {
        assert_eq!(split_host_port("a.b:70").unwrap(), ("a.b".to_string(), 70));
        assert_eq!(split_host_port("[::1]:70").unwrap(), ("::1".to_string(), 70));
        for bad in ["", "a", ":70", "a:", "a:x", "a:70000"] {
            assert!(split_host_port(bad).is_err(), "{bad}");
        }
        assert_eq!(join_host_port("::1", 7), "[::1]:7");
        for (address, local) in [
            ("127.3.4.5:1", true),
            ("localhost", true),
            ("[::]:1", true),
            ("0.0.0.0:1", true),
            ("db1:1", false),
        ] {
            assert_eq!(is_local_address(address), local, "{address}");
        }
    }

    /// Returns the RPC and web addresses that a server bound to these registers.
    fn registers(rpc: &str, web: &str, names: AdvertisedNames<'_>) -> String {
        let status = ServerStatus::new(&mem_net::env(), Uuid([7; 16]), LevelRange::PROGRAM);
        status.set_rpc(rpc.parse().expect("an address"), names).expect("valid names");
        status.set_web(web.parse().expect("an address"), false);
        let registration = status.registration();
        let all = |addresses: Vec<HostPortPb>| {
            let texts = addresses.into_iter().map(|at| join_host_port(&at.host, at.port as u16));
            texts.collect::<Vec<_>>().join(",")
        };
        format!("{} {}", all(registration.rpc_addresses), all(registration.http_addresses))
    }

    #[tokio::test]
    async fn a_server_on_all_addresses_registers_by_its_name() {
        let none = AdvertisedNames::default();
        assert_eq!(registers("10.0.0.1:7050", "10.0.0.2:8050", none), "10.0.0.1:7050 10.0.0.2:8050");
        let named = AdvertisedNames { wildcard_host: Some("db1"), ..none };
        assert_eq!(registers("0.0.0.0:7050", "0.0.0.0:8050", named), "db1:7050 db1:8050");
        assert_eq!(registers("[::]:7050", "10.0.0.2:8050", named), "db1:7050 10.0.0.2:8050");
        // A cluster on one machine.
        assert_eq!(registers("0.0.0.0:7050", "0.0.0.0:8050", none), "127.0.0.1:7050 127.0.0.1:8050");
        assert_eq!(registers("[::]:7050", "[::]:8050", none), "[::1]:7050 [::1]:8050");
        // Only the web port is bound to all addresses.
        assert_eq!(registers("10.0.0.1:7050", "0.0.0.0:8050", none), "10.0.0.1:7050 10.0.0.1:8050");
    }

    #[tokio::test]
    async fn advertised_names_replace_the_bound_addresses() {
        let (rpc, web) = (["pod-1.tserver:7050".to_string()], ["proxy:80".to_string()]);
        let names = AdvertisedNames { rpc: &rpc, web: &web, wildcard_host: None };
        assert_eq!(registers("0.0.0.0:7050", "0.0.0.0:8050", names), "pod-1.tserver:7050 proxy:80");
        let names = AdvertisedNames { web: &[], ..names };
        assert_eq!(registers("0.0.0.0:7050", "0.0.0.0:8050", names), "pod-1.tserver:7050 pod-1.tserver:8050");
        // Port 0 of a name is the one that was free.
        let free = ["db1:0".to_string()];
        let names = AdvertisedNames { rpc: &free, ..AdvertisedNames::default() };
        assert_eq!(registers("0.0.0.0:7150", "127.0.0.1:8150", names), "db1:7150 127.0.0.1:8150");
        let status = ServerStatus::new(&mem_net::env(), Uuid([7; 16]), LevelRange::PROGRAM);
        let bad = ["db1".to_string()];
        let names = AdvertisedNames { rpc: &bad, ..AdvertisedNames::default() };
        assert!(status.set_rpc("0.0.0.0:7050".parse().expect("an address"), names).is_err());
    }
}
