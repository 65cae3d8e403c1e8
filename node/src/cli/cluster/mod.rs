//! `nyala cluster …`: the servers of a running cluster, and how replicas lie on them.

mod plan;

use std::collections::BTreeSet;
use std::time::Duration;

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use engine::error::{Error, Result};
use engine::ids::TabletId;
use futures_util::future::join_all;

use self::plan::{Layout, Move, Server, Tablet};
use super::Failure;
use super::out::{print, table as text_table};
use super::table::{base, connect, option, texts};
use crate::client::Client;
use crate::client::replicas::{ServerInfo, TabletReplicas};
use crate::env::Env;

/// A server silent for longer is given no replicas.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// What was asked for.
pub struct ClusterCommand {
    matches: ArgMatches,
}

pub fn command() -> Command {
    Command::new("cluster")
        .about("Look at the servers of a cluster, and spread replicas evenly over them")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommands([base("servers", "List the tablet servers and what they hold"), rebalance()])
}

fn rebalance() -> Command {
    let seconds = |name, default, help| {
        option(name, "SECONDS", help).default_value(default).value_parser(value_parser!(u64).range(1..))
    };
    base("rebalance", "Move replicas until every server holds as many as the others, of every table")
        .arg(
            option("tables", "NAME", "Only replicas of this table; may be repeated")
                .action(ArgAction::Append),
        )
        .arg(
            option("at-once", "N", "Replicas that move at the same time")
                .default_value("5")
                .value_parser(value_parser!(u64).range(1..=100)),
        )
        .arg(seconds("move-timeout", "600", "How long one move may take"))
        .arg(
            Arg::new("report-only")
                .long("report-only")
                .action(ArgAction::SetTrue)
                .help("Only show how replicas lie"),
        )
}

/// What [`command`] was asked to do.
pub fn parse(matches: &ArgMatches) -> ClusterCommand {
    ClusterCommand { matches: matches.clone() }
}

impl ClusterCommand {
    pub async fn run(self, env: &Env) -> Result<(), Failure> {
        let (name, matches) = self.matches.subcommand().expect("clap asks for a command");
        let client = connect(env, matches).await?;
        match name {
            "servers" => print(&show(&look(&client, &[]).await?)),
            _ => run_rebalance(&client, matches).await?,
        }
        Ok(())
    }
}

async fn run_rebalance(client: &Client, matches: &ArgMatches) -> Result<()> {
    let tables: Vec<&str> = texts(matches, "tables").collect();
    let layout = look(client, &tables).await?;
    print(&show(&layout));
    if matches.get_flag("report-only") {
        return Ok(());
    }
    let number = |name| *matches.get_one::<u64>(name).expect("it has a default");
    let patience = Duration::from_secs(number("move-timeout"));
    let moved = settle(client, &tables, number("at-once") as usize, patience).await?;
    let layout = look(client, &tables).await?;
    print(&format!("moved {moved} replicas\n{}", show(&layout)));
    Ok(())
}

/// Moves replicas until nothing gets better; how many.
async fn settle(client: &Client, tables: &[&str], at_once: usize, patience: Duration) -> Result<usize> {
    let mut moved = 0;
    loop {
        let mut layout = look(client, tables).await?;
        let mut moves: Vec<Move> = Vec::new();
        let mut moving: BTreeSet<TabletId> = BTreeSet::new();
        while let Some(next) = layout.next_move(|tablet| !moving.contains(&tablet)) {
            if moves.len() >= at_once {
                break;
            }
            layout.apply(next);
            moving.insert(next.tablet);
            moves.push(next);
        }
        if moves.is_empty() {
            return Ok(moved);
        }
        for (done, result) in moves.iter().zip(join_all(moves.iter().map(|m| go(client, *m, patience))).await)
        {
            let Move { tablet, from, to } = done;
            result.map_err(|error| error.context(format!("move of tablet {tablet} from {from} to {to}")))?;
            print(&format!("moved tablet {tablet} from {from} to {to}\n"));
            moved += 1;
        }
    }
}

async fn go(client: &Client, wanted: Move, patience: Duration) -> Result<()> {
    client.move_replica(wanted.tablet, wanted.from, wanted.to, patience).await
}

/// How the replicas of these tables (all, if none is named) lie on the servers that live.
async fn look(client: &Client, tables: &[&str]) -> Result<Layout> {
    let alive = |server: &ServerInfo| server.silent_for <= SILENCE_MAX && !server.maintenance;
    let servers: Vec<Server> = client
        .servers()
        .await?
        .into_iter()
        .filter(alive)
        .map(|server| Server { id: server.id, location: server.location.unwrap_or_default() })
        .collect();
    let mut tablets = Vec::new();
    for table in client.list_tables(None).await? {
        if !tables.is_empty() && !tables.contains(&table.name.as_str()) {
            continue;
        }
        for tablet in client.replicas(&table.name).await? {
            tablets.push(Tablet { id: tablet.id, table: table.name.clone(), servers: voters(&tablet)? });
        }
    }
    Ok(Layout::new(&servers, tablets))
}

fn voters(tablet: &TabletReplicas) -> Result<Vec<engine::ids::PeerId>> {
    let voters: Vec<_> =
        tablet.replicas.iter().filter(|replica| replica.voter).map(|replica| replica.server).collect();
    match voters.is_empty() {
        true => Err(Error::not_ready(format!("tablet {} has no voter", tablet.id))),
        false => Ok(voters),
    }
}

fn show(layout: &Layout) -> String {
    let row = |(id, location, replicas): (engine::ids::PeerId, &str, usize)| {
        vec![id.to_string(), location.to_string(), replicas.to_string()]
    };
    let table = text_table(&["server", "location", "replicas>"], layout.loads().map(row));
    let (all, of_table) = layout.skew();
    format!(
        "{table}largest difference: {all} replicas, {of_table} of one table; \
         tablets with a needless majority in one location: {}\n",
        layout.crowded()
    )
}

#[cfg(test)]
mod tests {
    use engine::ids::Uuid;

    use super::*;

    #[test]
    fn a_layout_is_shown_with_what_is_wrong_with_it() {
        let (id, rack) = (|n: u8| Uuid([n; 16]), |n: u8| if n < 3 { "/rack-1" } else { "/rack-2" });
        let servers: Vec<Server> =
            (1..=4).map(|n| Server { id: id(n), location: rack(n).to_string() }).collect();
        let tablet = |n: u8, table: &str, on: &[u8]| Tablet {
            id: id(100 + n),
            table: table.to_string(),
            servers: on.iter().map(|n| id(*n)).collect(),
        };
        let tablets = vec![tablet(0, "a", &[1, 2, 3]), tablet(1, "a", &[1, 3, 4]), tablet(2, "b", &[1])];
        insta::assert_snapshot!(show(&Layout::new(&servers, tablets)), @"
         server                            location  replicas
         01010101010101010101010101010101  /rack-1          3
         02020202020202020202020202020202  /rack-1          1
         03030303030303030303030303030303  /rack-2          2
         04040404040404040404040404040404  /rack-2          1
        largest difference: 2 replicas, 1 of one table; tablets with a needless majority in one location: 0
        ");
    }
}
