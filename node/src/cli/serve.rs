//! `nyala up`, `nyala master`, `nyala tablet-server`: run until a signal comes.

use std::net::IpAddr;
use std::sync::Arc;

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use engine::error::{Error, Result};

use super::{Failure, ReadFile, settings};
use crate::dirs::ServerKind;
use crate::env::{BoxFuture, Env};
use crate::server::cluster::{Cluster, ClusterConfig, Ports};
use crate::server::flags::{Current, FlagSpec, Flags};
use crate::server::run;

/// One of the serving commands.
pub struct Serve {
    flags: Arc<Flags>,
    what: What,
}

enum What {
    One(ServerKind),
    Cluster(Box<ClusterConfig>),
}

/// What `nyala up` sets itself, for each of its servers.
const PER_SERVER: &[&str] = &[
    "rpc_bind_addresses",
    "rpc_advertised_addresses",
    "webserver_interface",
    "webserver_port",
    "tserver_master_addrs",
    "master_addresses",
    "fs_wal_dir",
    "fs_data_dirs",
    "server_dump_info_path",
];

pub fn commands() -> [Command; 3] {
    let up = Command::new("up")
        .about("Run a whole cluster in this process until Ctrl-C: to try things out on one machine")
        .arg(number("masters", "1", "How many masters to run"))
        .arg(number("tablet-servers", "3", "How many tablet servers to run"))
        .arg(option("dir", "DIR", "nyala-data", "Directory of all data, made if it is missing"))
        .arg(option("host", "IP", "127.0.0.1", "Address to serve at").value_parser(value_parser!(IpAddr)))
        .arg(Arg::new("free-ports").long("free-ports").action(ArgAction::SetTrue).help(
            "Take free ports instead of Kudu's 7051 and 7050, 7150, ... (web: 8051 and 8050, 8150, ...)",
        ));
    let master = Command::new("master").about("Run one master");
    let tserver = Command::new("tablet-server").visible_alias("tserver").about("Run one tablet server");
    let shared = |spec: &FlagSpec| !PER_SERVER.contains(&spec.name);
    [
        settings::add(up, shared),
        settings::add(master, |spec| settings::has(ServerKind::Master, spec)),
        settings::add(tserver, |spec| settings::has(ServerKind::TabletServer, spec)),
    ]
}

fn option(name: &'static str, value: &'static str, default: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).value_name(value).default_value(default).help(help)
}

fn number(name: &'static str, default: &'static str, help: &'static str) -> Arg {
    option(name, "N", default, help).value_parser(value_parser!(u64).range(1..=50))
}

/// What one of [`commands`] was asked to do.
pub fn parse(name: &str, matches: &ArgMatches, read_file: ReadFile<'_>) -> Result<Serve> {
    let flags = settings::read(matches, read_file)?;
    let what = match name {
        "master" => What::One(ServerKind::Master),
        "tablet-server" => What::One(ServerKind::TabletServer),
        _ => What::Cluster(Box::new(cluster(matches, flags.fork()))),
    };
    Ok(Serve { flags: Arc::new(flags), what })
}

fn cluster(matches: &ArgMatches, flags: Flags) -> ClusterConfig {
    let count = |name| *matches.get_one::<u64>(name).expect("it has a default") as usize;
    ClusterConfig {
        dir: matches.get_one::<String>("dir").expect("it has a default").clone(),
        masters: count("masters"),
        tablet_servers: count("tablet-servers"),
        ip: *matches.get_one::<IpAddr>("host").expect("it has a default"),
        ports: if matches.get_flag("free-ports") { Ports::Free } else { Ports::Kudus },
        flags,
    }
}

impl Serve {
    pub fn flags(&self) -> &Arc<Flags> {
        &self.flags
    }

    pub async fn run(self, env: Env, stop: BoxFuture<'static, ()>) -> Result<(), Failure> {
        for Current { spec, value } in self.flags.without_effect() {
            tracing::warn!("{}: has no effect here, {} (given {value}); leave it out", spec.name, spec.help);
        }
        match self.what {
            What::One(kind) => one(&env, kind, self.flags, stop).await,
            What::Cluster(config) => up(&env, &config, stop).await,
        }
    }
}

async fn one(
    env: &Env,
    kind: ServerKind,
    flags: Arc<Flags>,
    stop: BoxFuture<'static, ()>,
) -> Result<(), Failure> {
    run::check(env, kind, &flags).await.map_err(Failure::usage)?;
    let server = run::start(env, kind, flags).await.map_err(Failure::start)?;
    let ended = until(stop, server.failed()).await;
    tracing::info!("stopping");
    server.shutdown().await;
    ended
}

async fn up(env: &Env, config: &ClusterConfig, stop: BoxFuture<'static, ()>) -> Result<(), Failure> {
    config.check().map_err(Failure::usage)?;
    let mut cluster = Cluster::start(env, config).await.map_err(Failure::start)?;
    print(&welcome(&cluster, config));
    let ended = until(stop, cluster.failed()).await;
    print("stopping\n");
    cluster.shutdown().await;
    ended
}

/// `Ok` when it is time to stop, the failure if that comes first.
async fn until(stop: BoxFuture<'static, ()>, failed: impl Future<Output = Error>) -> Result<(), Failure> {
    tokio::select! {
        biased;
        () = stop => Ok(()),
        error = failed => Err(error.into()),
    }
}

fn print(text: &str) {
    use std::io::Write;
    // Nobody reading is no reason to stop serving.
    let _ = std::io::stdout().lock().write_all(text.as_bytes());
}

fn welcome(cluster: &Cluster, config: &ClusterConfig) -> String {
    let mut text = format!("nyala is up, with its data in {}\n\n", config.dir);
    let named = [("master", cluster.masters()), ("tablet server", cluster.tablet_servers())];
    for (name, servers) in named {
        for server in servers {
            let web = server.web_addr().map_or(String::new(), |addr| format!("   http://{addr}/metrics"));
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
