//! `nyala up`, `nyala master`, `nyala tablet-server`: run until a signal.

use std::net::IpAddr;
use std::sync::Arc;

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use engine::error::{Error, Result};

use super::exit::ExitError;
use super::flag_options::{self, ReadFile};
use super::service_state::{ReportState, ServiceState};
use crate::config;
use crate::dirs::ServerKind;
use crate::server::clock_watch::TimeSource;
use crate::server::cluster::{Cluster, ClusterConfig, PortAssignment};
use crate::server::flags::{FlagSpec, FlagState, Flags};
use crate::server::startup::{self, RunningServer};
use nyala_common::env::{BoxFuture, Env};

/// One of the serving commands.
pub struct Serve {
    flags: Arc<Flags>,
    target: ServeTarget,
    umask: u32,
    /// True if the servers stop when standard input ends.
    stops_at_eof: bool,
}

enum ServeTarget {
    One(ServerKind),
    Cluster(Box<ClusterConfig>),
}

/// Flags that `nyala up` sets itself for each of its servers.
const PER_SERVER: &[&str] = &[
    "rpc_bind_addresses",
    "rpc_advertised_addresses",
    "webserver_interface",
    "webserver_advertised_addresses",
    "webserver_port",
    "tserver_master_addrs",
    "master_addresses",
    "fs_wal_dir",
    "fs_data_dirs",
    "server_dump_info_path",
];

pub(super) fn commands() -> [Command; 3] {
    let up = Command::new("up")
        .about("Run a whole cluster in one process until Ctrl-C, for trying things out")
        .arg(number("masters", "1", "Number of masters"))
        .arg(number("tablet-servers", "3", "Number of tablet servers"))
        .arg(option("dir", "DIR", "nyala-data", "Directory of all data; created if missing"))
        .arg(option("host", "IP", "127.0.0.1", "Address to serve at").value_parser(value_parser!(IpAddr)))
        .arg(Arg::new("free-ports").long("free-ports").action(ArgAction::SetTrue).help(
            "Take free ports instead of Kudu's 7051 and 7050, 7150, ... (web: 8051 and 8050, 8150, ...)",
        ))
        .arg(Arg::new("stop-at-eof").long("stop-at-eof").action(ArgAction::SetTrue).help(
            "Stop when standard input ends: the cluster ends with the program that holds the other end of a pipe",
        ));
    let master = Command::new("master").about("Run one master");
    let tserver = Command::new("tablet-server").visible_alias("tserver").about("Run one tablet server");
    let shared = |spec: &FlagSpec| !PER_SERVER.contains(&spec.name);
    [
        flag_options::add(up, shared),
        flag_options::add(master, |spec| spec.is_of(ServerKind::Master)),
        flag_options::add(tserver, |spec| spec.is_of(ServerKind::TabletServer)),
    ]
}

fn option(name: &'static str, value: &'static str, default: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).value_name(value).default_value(default).help(help)
}

fn number(name: &'static str, default: &'static str, help: &'static str) -> Arg {
    option(name, "N", default, help).value_parser(value_parser!(u64).range(1..=50))
}

/// Returns the command in `matches` of one of [`commands`].
pub(super) fn parse(name: &str, matches: &ArgMatches, read_file: ReadFile<'_>) -> Result<Serve> {
    let kind = match name {
        "master" => Some(ServerKind::Master),
        "tablet-server" => Some(ServerKind::TabletServer),
        _ => None,
    };
    let flags = flag_options::read(matches, kind, read_file)?;
    let umask = config::umask(&flags)?;
    let target = match kind {
        Some(kind) => ServeTarget::One(kind),
        None => ServeTarget::Cluster(Box::new(cluster(matches, flags.fork())?)),
    };
    let stops_at_eof = matches!(target, ServeTarget::Cluster(_)) && matches.get_flag("stop-at-eof");
    Ok(Serve { flags: Arc::new(flags), target, umask, stops_at_eof })
}

fn cluster(matches: &ArgMatches, flags: Flags) -> Result<ClusterConfig> {
    // All servers of the process read one clock, which need not be right.
    if !flags.is_given("time_source") {
        flags.set("time_source", "system_unsync")?;
    }
    if TimeSource::of(&flags)? == TimeSource::Builtin {
        return Err(Error::invalid(
            "time_source: all servers of `up` read the machine's clock (given builtin, accepted auto, system or \
             system_unsync); leave it out",
        ));
    }
    let count = |name| *matches.get_one::<u64>(name).expect("it has a default") as usize;
    Ok(ClusterConfig {
        dir: matches.get_one::<String>("dir").expect("it has a default").clone(),
        masters: count("masters"),
        tablet_servers: count("tablet-servers"),
        ip: *matches.get_one::<IpAddr>("host").expect("it has a default"),
        ports: if matches.get_flag("free-ports") { PortAssignment::Free } else { PortAssignment::Kudus },
        flags,
    })
}

impl Serve {
    pub fn flags(&self) -> &Arc<Flags> {
        &self.flags
    }

    /// Returns the permissions that files of the servers do not get.
    pub(super) fn umask(&self) -> u32 {
        self.umask
    }

    pub(super) fn stops_at_eof(&self) -> bool {
        self.stops_at_eof
    }

    pub async fn run(
        self,
        env: Env,
        stop: BoxFuture<'static, ()>,
        report: &ReportState,
    ) -> Result<(), ExitError> {
        for FlagState { spec, value } in self.flags.without_effect() {
            tracing::warn!("{}: has no effect here, {} (given {value}); leave it out", spec.name, spec.help);
        }
        match self.target {
            ServeTarget::One(kind) => one(&env, kind, self.flags, stop, report).await,
            ServeTarget::Cluster(config) => up(&env, &config, stop, report).await,
        }
    }
}

async fn one(
    env: &Env,
    kind: ServerKind,
    flags: Arc<Flags>,
    stop: BoxFuture<'static, ()>,
    report: &ReportState,
) -> Result<(), ExitError> {
    startup::check(env, kind, &flags).await.map_err(ExitError::flags)?;
    let env = &startup::with_time_source(env, &flags).map_err(ExitError::usage)?;
    let mut stop = stop;
    tokio::select! {
        biased;
        () = &mut stop => return Ok(()),
        ready = startup::wait_clock(env, kind, &flags) => ready.map_err(ExitError::clock)?,
    }
    let server = startup::start(env, kind, flags).await.map_err(ExitError::start)?;
    let ended = serve_until(stop, &server, report).await;
    report(ServiceState::Stopping);
    tracing::info!("stopping");
    server.shutdown().await;
    match (ended, server.formats().fault(), server.clock().fault()) {
        (Err(_), Some(fault), _) => Err(ExitError::format(fault)),
        (Err(_), None, Some(fault)) => Err(ExitError::clock(Error::aborted(fault))),
        (ended, ..) => ended,
    }
}

/// Reports when the server is ready. Returns `Ok` when `stop` is ready, or the failure if that comes first.
async fn serve_until(
    mut stop: BoxFuture<'static, ()>,
    server: &RunningServer,
    report: &ReportState,
) -> Result<(), ExitError> {
    tokio::select! {
        biased;
        () = &mut stop => return Ok(()),
        ready = server.until_ready() => ready.map_err(ExitError::start)?,
    }
    report(ServiceState::Ready);
    until(stop, server.failed()).await
}

async fn up(
    env: &Env,
    config: &ClusterConfig,
    mut stop: BoxFuture<'static, ()>,
    report: &ReportState,
) -> Result<(), ExitError> {
    config.check().map_err(ExitError::usage)?;
    config.check_flags(env).await.map_err(ExitError::usage)?;
    let started = Cluster::start_unless(env, config, &mut stop).await.map_err(ExitError::start)?;
    let Some(mut cluster) = started else { return Ok(()) };
    print(&welcome(&cluster, config));
    report(ServiceState::Ready);
    let ended = until(stop, cluster.failed()).await;
    report(ServiceState::Stopping);
    print("stopping\n");
    cluster.shutdown().await;
    ended
}

/// Returns `Ok` when `stop` is ready, or the failure if that comes first.
async fn until(stop: BoxFuture<'static, ()>, failed: impl Future<Output = Error>) -> Result<(), ExitError> {
    tokio::select! {
        biased;
        () = stop => Ok(()),
        error = failed => Err(error.into()),
    }
}

fn print(text: &str) {
    use std::io::Write;
    // A closed pipe is no reason to stop serving.
    let _ = std::io::stdout().lock().write_all(text.as_bytes());
}

fn welcome(cluster: &Cluster, config: &ClusterConfig) -> String {
    let mut text = format!("nyala is up, with its data in {}\n\n", config.dir);
    let named = [("master", cluster.masters()), ("tablet server", cluster.tablet_servers())];
    for (name, servers) in named {
        for server in servers {
            let web = server.web_url().map_or(String::new(), |url| format!("   {url}/metrics"));
            text.push_str(&format!("  {name:<13}  {}{web}\n", server.rpc_addr()));
        }
    }
    let masters = cluster.master_addresses().join(",");
    text.push_str(&format!(
        "\nConnect Kudu clients to the master {masters}, for example\n\
         \x20 kudu table list {masters}\n\
         \x20 nyala table list --masters {masters}\n\
         Stop with Ctrl-C.\n"
    ));
    text
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use engine::sync::Mutex;
    use engine::time::{ClockReading, Instant};
    use nyala_common::env::testing::{MemDisks, SteadyClock};
    use nyala_common::env::{Clock, ClockSync, mem_net};
    use tokio::sync::Notify;

    use super::*;

    const PLENTY: u64 = 1 << 40;

    /// A clock that nothing keeps right from a time on.
    struct LostClock {
        steady: SteadyClock,
        lost_at: Instant,
    }

    impl Clock for LostClock {
        fn now(&self) -> ClockReading {
            self.steady.now()
        }

        fn sleep_until(&self, until: Instant) -> BoxFuture<'static, ()> {
            self.steady.sleep_until(until)
        }

        fn synchronisation(&self) -> ClockSync {
            match self.now().mono < self.lost_at {
                true => ClockSync::Synchronised { error_micros: 100 },
                false => ClockSync::Unsynchronised,
            }
        }
    }

    /// Returns an environment whose clock is right for `right_for`, and its disks.
    fn world(right_for: Duration) -> (Env, MemDisks) {
        let env = mem_net::env();
        let disks = MemDisks::default();
        let lost_at = env.now().mono.after(right_for);
        let clock = Arc::new(LostClock { steady: SteadyClock(env.clock.clone()), lost_at });
        (Env { disks: Arc::new(disks.clone()), clock, ..env }, disks)
    }

    /// Runs a single master until it is ready, or for `patience`. Returns the states that it reported.
    async fn run_master(env: &Env, patience: Duration) -> Result<Vec<ServiceState>, ExitError> {
        let flags = Flags::new();
        for (name, value) in [
            ("fs_wal_dir", "wal"),
            ("fs_data_dirs", "data"),
            ("rpc_bind_addresses", "127.0.0.1:7051"),
            ("webserver_enabled", "false"),
            ("block_cache_capacity_mb", "16"),
            ("time_source", "system"),
        ] {
            flags.set(name, value).expect("a valid flag");
        }
        let (states, is_ready) = (Arc::<Mutex<Vec<ServiceState>>>::default(), Arc::new(Notify::new()));
        let (reported, ready) = (states.clone(), is_ready.clone());
        let report = move |state| {
            reported.lock().push(state);
            if state == ServiceState::Ready {
                ready.notify_one();
            }
        };
        let clock = env.clone();
        let stop = Box::pin(async move {
            clock.timeout(patience, is_ready.notified()).await;
        });
        one(env, ServerKind::Master, Arc::new(flags), stop, &report).await?;
        Ok(std::mem::take(&mut *states.lock()))
    }

    /// A single master opens a term at each start, for which it needs space.
    #[tokio::test(start_paused = true)]
    async fn a_master_that_waits_for_space_stops_when_it_is_told_to() {
        let (env, disks) = world(Duration::MAX);
        let patience = Duration::from_secs(30);
        let served = Ok(vec![ServiceState::Ready, ServiceState::Stopping]);
        assert_eq!(run_master(&env, patience).await, served);
        disks.disk("data").set_free(0);
        assert_eq!(run_master(&env, patience).await, Ok(vec![ServiceState::Stopping]));
        disks.disk("data").set_free(PLENTY);
        assert_eq!(run_master(&env, patience).await, served);
    }

    #[tokio::test(start_paused = true)]
    async fn a_master_that_waits_for_space_ends_without_a_right_clock() {
        let (env, disks) = world(Duration::from_secs(60));
        run_master(&env, Duration::from_secs(30)).await.expect("it serves");
        disks.disk("data").set_free(0);
        let error = run_master(&env, Duration::from_secs(3600)).await.expect_err("the clock is lost");
        assert_eq!(error.code, 6);
        assert!(error.message.contains("the machine's clock is not synchronised"), "{error}");
    }
}
