//! `nyala cluster …`: health and servers of a running cluster, and the placement of replicas.

mod arguments;
mod check;
mod drain;
mod maintenance_check;
mod observe;
#[cfg(test)]
mod observed_cluster;
mod unsafe_change_config;
mod upgrade;

use std::collections::BTreeSet;
use std::time::Duration;

use clap::builder::NonEmptyStringValueParser;
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use engine::error::{Error, Result};
use engine::ids::Uuid;
use futures_util::future::join_all;

use self::arguments::{
    argument, find_registered_server, find_server, find_server_id, flag, is_named, named_server, number,
    required,
};
use self::observe::{ObservedServer, address, observe, observe_server};
use super::exit::{ExitError, FAILED};
use super::options::{base, connect, option, text, texts};
use super::output::{print, table as text_table};
use crate::dirs::ServerKind;
use crate::server::flags;
use nyala_client::Client;
use nyala_client::cluster_admin::MasterInfo;
use nyala_client::rebalance::{Placement, Rebalance, ReplicaMove};
use nyala_common::env::Env;

/// A parsed command.
pub struct ClusterCommand {
    matches: ArgMatches,
}

const SERVER_HELP: &str = "Id of the tablet server, the beginning of its id, or its address";

pub(super) fn command() -> Command {
    let of_server = |name, about| base(name, about).arg(named_server("server", "SERVER", SERVER_HELP));
    Command::new("cluster")
        .about("Check a cluster, administer servers, rebalance replicas")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommands([
            check_command(),
            base("servers", "List the tablet servers: state, version, replicas, leaders").arg(format()),
            rebalance(),
            of_server(
                "drain",
                "Free a tablet server of leaders and scanners; ends when it may be switched off",
            )
            .arg(seconds("timeout", "600", "Longest wait")),
            of_server("undrain", "Put a drained tablet server back into use"),
            of_server(
                "decommission",
                "Move all replicas away; ends when the server may be switched off for good",
            )
            .arg(at_once())
            .arg(seconds("move-timeout", "600", "Deadline of one move")),
            of_server("remove-server", "Make the masters forget a tablet server that is switched off")
                .arg(flag("force", "Even if it is alive"))
                .arg(
                    option("wait", "SECONDS", "Longest wait until the masters notice that it is down")
                        .default_value("0")
                        .value_parser(value_parser!(u64)),
                ),
            base("remove-master", "Take a lost master out of the masters' configuration")
                .arg(named_server(
                    "master",
                    "MASTER",
                    "Id of the master, the beginning of its id, or its address",
                ))
                .arg(flag("force", "Even if it replies")),
            of_server(
                "maintenance",
                "Switch maintenance mode: no new replicas, and no replacement of those there",
            )
            .arg(required("state", "on|off", "New state").value_parser(["on", "off"])),
            base("step-down", "Let a tablet's leader transfer its leadership")
                .arg(required("tablet", "TABLET", "Id of the tablet"))
                .arg(
                    option("to", "SERVER", "The next leader [default: any voter]")
                        .value_parser(NonEmptyStringValueParser::new()),
                ),
            unsafe_change_config::command(),
            upgrade::command(format()),
            base("set-flag", "Change a flag of running servers")
                .arg(named_server(
                    "server",
                    "SERVER",
                    "Address (host:port), id, masters, tablet-servers or all",
                ))
                .arg(required("flag", "NAME", "Name of the flag"))
                .arg(required("value", "VALUE", "New value"))
                .arg(flag("force", "Also a flag of Kudu that has no effect here: it is only shown")),
        ])
}

fn check_command() -> Command {
    base("check", "Check masters, tablet servers and tablets; exit code 1 if one is not healthy")
        .arg(format())
        .arg(
            option("wait", "SECONDS", "Repeat the check until it finds no error, at most this long")
                .default_value("0")
                .value_parser(value_parser!(u64)),
        )
        .arg(
            option("down", "SERVER", "Server that is known to be down: no error; may be repeated")
                .action(ArgAction::Append)
                .value_parser(NonEmptyStringValueParser::new()),
        )
}

fn format() -> Arg {
    option("format", "FORMAT", "text or json").value_parser(["text", "json"]).default_value("text")
}

fn seconds(name: &'static str, default: &'static str, help: &'static str) -> Arg {
    option(name, "SECONDS", help).default_value(default).value_parser(value_parser!(u64).range(1..))
}

fn at_once() -> Arg {
    option("at-once", "N", "Replicas moved at the same time")
        .default_value("5")
        .value_parser(value_parser!(u64).range(1..=100))
}

fn rebalance() -> Command {
    base("rebalance", "Move replicas until they are spread evenly over the servers, in all and per table")
        .arg(
            option("tables", "NAME", "Only replicas of this table; may be repeated")
                .action(ArgAction::Append),
        )
        .arg(at_once())
        .arg(seconds("move-timeout", "600", "Deadline of one move"))
        .arg(flag("ignore-down", "Go on although a tablet server is down"))
        .arg(flag("report-only", "Print the placement and change nothing"))
}

/// Returns the command in `matches` of [`command`].
pub(super) fn parse(matches: &ArgMatches) -> ClusterCommand {
    ClusterCommand { matches: matches.clone() }
}

impl ClusterCommand {
    /// Returns the first word of the command and what follows it.
    pub(super) fn words(&self) -> (&'static str, &ArgMatches) {
        ("cluster", &self.matches)
    }

    pub async fn run(self, env: &Env) -> Result<(), ExitError> {
        let (name, matches) = self.matches.subcommand().expect("clap asks for a command");
        if let ("upgrade", Some((step, matches))) = (name, matches.subcommand()) {
            return Ok(upgrade::run(&connect(env, matches).await?, step, matches).await?);
        }
        let client = connect(env, matches).await?;
        match name {
            "check" => return run_check(env, &client, matches).await,
            "servers" => show_servers(&client, matches).await?,
            "drain" => drain::drain(env, &client, matches).await?,
            "undrain" => drain::undrain(&client, matches).await?,
            "decommission" => drain::decommission(env, &client, matches).await?,
            "remove-server" => remove_server(env, &client, matches).await?,
            "remove-master" => remove_master(&client, matches).await?,
            "maintenance" => maintenance(&client, matches).await?,
            "step-down" => step_down(&client, matches).await?,
            "unsafe-change-config" => unsafe_change_config::run(&client, matches).await?,
            "set-flag" => set_flag(&client, matches).await?,
            _ => run_rebalance(&client, matches).await?,
        }
        Ok(())
    }
}

/// Returns the report of a check as text and as JSON.
pub(super) async fn check_report(client: &Client) -> Result<(String, String)> {
    let report = check::check(&observe(client).await?, &BTreeSet::new());
    Ok((report.to_text(), report.to_json()))
}

/// Returns the RPC addresses of the masters that reply, and of all registered tablet servers; true for those whose web
/// ports speak HTTPS.
pub(super) async fn addresses(client: &Client) -> Result<Vec<(String, bool)>> {
    let masters = client.masters().await?.into_iter().filter(|master| master.error.is_none());
    let servers = client.servers().await?;
    let registered = servers.iter().filter(|server| server.is_registered());
    let servers = registered.map(|server| (address(server), server.https));
    Ok(masters.map(|master| (master.address, master.https)).chain(servers).collect())
}

/// Interval between two attempts of `--wait`.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

async fn run_check(env: &Env, client: &Client, matches: &ArgMatches) -> Result<(), ExitError> {
    let mut known_down = BTreeSet::new();
    for name in texts(matches, "down") {
        known_down.insert(find_server_id(client, name).await?);
    }
    let deadline = env.now().mono.after(Duration::from_secs(number(matches, "wait")));
    let report = loop {
        let seen = observe(client).await.map(|seen| check::check(&seen, &known_down));
        let healthy = seen.as_ref().is_ok_and(|report| report.errors.is_empty());
        if healthy || env.now().mono >= deadline {
            break seen?;
        }
        env.sleep(CHECK_INTERVAL).await;
    };
    let json = text(matches, "format") == Some("json");
    print(&if json { report.to_json() } else { report.to_text() });
    match report.errors.len() {
        0 => Ok(()),
        errors => {
            Err(ExitError { code: FAILED, message: format!("the cluster is not healthy ({errors} errors)") })
        }
    }
}

async fn show_servers(client: &Client, matches: &ArgMatches) -> Result<()> {
    let servers = client.servers().await?;
    let seen = join_all(servers.into_iter().map(|info| observe_server(client, info))).await;
    let state = |server: &ObservedServer| {
        let quiescing = server.quiescing.is_some_and(|status| status.quiescing);
        match (server.status.is_err(), server.info.maintenance, quiescing) {
            (true, true, _) => "down, maintenance",
            (true, false, _) => "down",
            (false, true, true) => "draining",
            (false, true, false) => "maintenance",
            (false, false, true) => "quiescing",
            (false, false, false) => "live",
        }
    };
    let version = |server: &ObservedServer| {
        server.status.as_ref().map(|status| status.version.clone()).unwrap_or_default()
    };
    let leaders = |server: &ObservedServer| server.quiescing.map_or(0, |status| status.leaders);
    let heartbeat_age_ms = |server: &ObservedServer| {
        let age_ms = server.info.silent_for.as_millis() as u64;
        server.info.is_registered().then_some(age_ms)
    };
    if text(matches, "format") == Some("json") {
        let object = |server: &ObservedServer| {
            serde_json::json!({
                "id": server.info.id.to_string(),
                "address": server.address(),
                "state": state(server),
                "maintenance": server.info.maintenance,
                "heartbeat_age_ms": heartbeat_age_ms(server),
                "version": version(server),
                "location": server.info.location,
                "replicas": server.count_replicas(),
                "leaders": leaders(server),
                "disk_bytes": server.replicas.values().map(|replica| replica.disk_bytes).sum::<u64>(),
                "error": server.status.as_ref().err(),
            })
        };
        let all: Vec<serde_json::Value> = seen.iter().map(object).collect();
        let text = serde_json::to_string_pretty(&all).expect("JSON values can be written");
        print(&(text + "\n"));
        return Ok(());
    }
    let row = |server: &ObservedServer| {
        let info = &server.info;
        let location = info.location.clone().unwrap_or_default();
        let (replicas, leaders) = (server.count_replicas().to_string(), leaders(server).to_string());
        let id = info.id.to_string();
        vec![id, server.address(), state(server).to_string(), version(server), location, replicas, leaders]
    };
    let header = ["server", "address", "state", "version", "location", "replicas>", "leaders>"];
    print(&text_table(&header, seen.iter().map(row)));
    Ok(())
}

async fn remove_server(env: &Env, client: &Client, matches: &ArgMatches) -> Result<()> {
    let server = find_server_id(client, argument(matches, "server")).await?;
    let deadline = env.now().mono.after(Duration::from_secs(number(matches, "wait")));
    while let Err(error) = client.unregister_server(server, matches.get_flag("force")).await {
        if env.now().mono >= deadline {
            return Err(error);
        }
        env.sleep(CHECK_INTERVAL).await;
    }
    print(&format!("the masters have forgotten server {server}\n"));
    Ok(())
}

async fn remove_master(client: &Client, matches: &ArgMatches) -> Result<()> {
    let name = argument(matches, "master");
    let mut masters = client.masters().await?;
    masters.retain(|master| is_named(name, &master.address, master.id));
    let [MasterInfo { id: Some(id), address, error, .. }] = masters.as_slice() else {
        let message = format!("master {name}: {} masters have it; see nyala cluster check", masters.len());
        return Err(Error::not_found(message));
    };
    if error.is_none() && !matches.get_flag("force") {
        let message = format!("master {id} {address}: it replies; stop it first, or give --force");
        return Err(Error::invalid(message));
    }
    client.remove_master(*id).await?;
    print(&format!("master {id} {address} is no longer one of the masters\n"));
    Ok(())
}

async fn maintenance(client: &Client, matches: &ArgMatches) -> Result<()> {
    let (name, state) = (argument(matches, "server"), argument(matches, "state"));
    // Masters list every server that may be in maintenance mode, but not one that they have forgotten.
    let server = match state {
        "on" => find_server(client, name).await?.id,
        _ => find_server_id(client, name).await?,
    };
    client.set_maintenance(server, state == "on").await?;
    print(&format!("maintenance mode of server {server} is {state}\n"));
    Ok(())
}

async fn step_down(client: &Client, matches: &ArgMatches) -> Result<()> {
    let tablet = Uuid::parse(argument(matches, "tablet").as_bytes())?;
    let to = match text(matches, "to") {
        Some(name) => Some(find_server(client, name).await?.id),
        None => None,
    };
    let leader = client.step_down_leader(tablet, to).await?;
    print(&format!("server {} transfers the leadership of tablet {tablet}\n", leader.server));
    Ok(())
}

/// Sets a flag on one or more servers; one that refuses it does not keep the others from it. Of all servers, those of
/// the other kind are left out if the flag is of one kind only.
async fn set_flag(client: &Client, matches: &ArgMatches) -> Result<()> {
    let (name, flag) = (argument(matches, "server"), argument(matches, "flag"));
    let (value, force) = (argument(matches, "value"), matches.get_flag("force"));
    let mut addresses = Vec::new();
    if name == "masters" || name == "all" && may_have(ServerKind::Master, flag) {
        addresses.extend(client.masters().await?.into_iter().map(|master| master.address));
    }
    if name == "tablet-servers" || name == "all" && may_have(ServerKind::TabletServer, flag) {
        let servers = client.servers().await?;
        addresses.extend(servers.iter().filter(|server| server.is_registered()).map(address));
    }
    match name {
        "masters" | "tablet-servers" | "all" => {}
        // A master's address is not in the list of tablet servers.
        _ if name.contains(':') => addresses.push(name.to_string()),
        _ => addresses.push(address(&find_registered_server(client, name).await?)),
    }
    if addresses.is_empty() {
        return Err(Error::not_found(format!(
            "{name}: no registered server has the flag {flag}, so that nothing was changed; see nyala cluster servers"
        )));
    }
    let mut failures = Vec::new();
    for address in &addresses {
        match client.set_flag(address, flag, value, force).await {
            Ok(old) => print(&format!("{address}: {flag} is {value} (before: {old})\n")),
            Err(error) => failures.push(format!("{address}: {}", error.message)),
        }
    }
    if failures.is_empty() { Ok(()) } else { Err(Error::invalid(failures.join("\n"))) }
}

/// Returns true if servers of `kind` may have a flag; one that this program does not know is for the servers to reject.
fn may_have(kind: ServerKind, flag: &str) -> bool {
    flags::spec(flag).is_none_or(|spec| spec.is_of(kind))
}

async fn run_rebalance(client: &Client, matches: &ArgMatches) -> Result<()> {
    let tables: Vec<String> = texts(matches, "tables").map(str::to_string).collect();
    check_tables(client, &tables).await?;
    let (_, excluded) = client.usable_servers().await?;
    for excluded in &excluded {
        print(&format!("server {} takes no replicas: {}\n", excluded.server.id, excluded.reason));
    }
    print(&show(&client.layout(&tables).await?));
    if matches.get_flag("report-only") {
        return Ok(());
    }
    if let Some(down) = excluded.iter().find(|excluded| excluded.down && !matches.get_flag("ignore-down")) {
        return Err(Error::not_ready(format!(
            "server {}: down ({}); start it, or give --ignore-down",
            down.server.id, down.reason
        )));
    }
    let patience = Duration::from_secs(number(matches, "move-timeout"));
    let wanted = Rebalance { tables, at_once: number(matches, "at-once") as usize, patience };
    let on_move =
        |ReplicaMove { tablet, from, to }| print(&format!("moved tablet {tablet} from {from} to {to}\n"));
    let moved = client.rebalance(&wanted, on_move).await?;
    print(&format!("moved {moved} replicas\n{}", show(&client.layout(&wanted.tables).await?)));
    Ok(())
}

/// Fails if one of these tables does not exist.
async fn check_tables(client: &Client, names: &[String]) -> Result<()> {
    if names.is_empty() {
        return Ok(());
    }
    let tables = client.tables_with_replicas().await?;
    let missing = names.iter().filter(|name| tables.iter().all(|table| table.name != **name));
    let missing: Vec<&str> = missing.map(String::as_str).collect();
    match missing.is_empty() {
        true => Ok(()),
        false => Err(Error::not_found(format!("table {}: not found; nothing was moved", missing.join(", ")))),
    }
}

fn show(layout: &Placement) -> String {
    let row = |(id, location, replicas): (engine::ids::PeerId, &str, usize)| {
        vec![id.to_string(), location.to_string(), replicas.to_string()]
    };
    let table = text_table(&["server", "location", "replicas>"], layout.loads().map(row));
    let (all, of_table) = layout.skew();
    format!(
        "{table}skew: {all} replicas per server, {of_table} per table; \
         tablets with an avoidable majority in one location: {}\n",
        layout.count_overcrowded_tablets()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use nyala_client::rebalance::{ServerLoad, TabletVoters};

    #[test]
    fn a_placement_is_shown_with_its_skew() {
        let (id, rack) = (|n: u8| Uuid([n; 16]), |n: u8| if n < 3 { "/rack-1" } else { "/rack-2" });
        let servers: Vec<ServerLoad> =
            (1..=4).map(|n| ServerLoad { id: id(n), location: rack(n).to_string() }).collect();
        let tablet = |n: u8, table: &str, on: &[u8]| TabletVoters {
            id: id(100 + n),
            table: table.to_string(),
            servers: on.iter().map(|n| id(*n)).collect(),
        };
        let tablets = vec![tablet(0, "a", &[1, 2, 3]), tablet(1, "a", &[1, 3, 4]), tablet(2, "b", &[1])];
        insta::assert_snapshot!(show(&Placement::new(&servers, tablets)), @"
         server                            location  replicas
         01010101010101010101010101010101  /rack-1          3
         02020202020202020202020202020202  /rack-1          1
         03030303030303030303030303030303  /rack-2          2
         04040404040404040404040404040404  /rack-2          1
        skew: 2 replicas per server, 1 per table; tablets with an avoidable majority in one location: 0
        ");
    }
}
