//! `nyala cluster …`: the servers of a running cluster, and the placement of replicas.

use std::time::Duration;

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use engine::error::Result;

use super::exit::ExitError;
use super::options::{base, connect, option, texts};
use super::output::{print, table as text_table};
use nyala_client::Client;
use nyala_client::rebalance::{Placement, Rebalance, ReplicaMove};
use nyala_common::env::Env;

/// A parsed command.
pub struct ClusterCommand {
    matches: ArgMatches,
}

pub fn command() -> Command {
    Command::new("cluster")
        .about("Show servers and rebalance replicas")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommands([base("servers", "List the tablet servers and their replicas"), rebalance()])
}

fn rebalance() -> Command {
    let seconds = |name, default, help| {
        option(name, "SECONDS", help).default_value(default).value_parser(value_parser!(u64).range(1..))
    };
    base("rebalance", "Move replicas until they are spread evenly over the servers, in all and per table")
        .arg(
            option("tables", "NAME", "Only replicas of this table; may be repeated")
                .action(ArgAction::Append),
        )
        .arg(
            option("at-once", "N", "Replicas moved at the same time")
                .default_value("5")
                .value_parser(value_parser!(u64).range(1..=100)),
        )
        .arg(seconds("move-timeout", "600", "Deadline of one move"))
        .arg(
            Arg::new("report-only")
                .long("report-only")
                .action(ArgAction::SetTrue)
                .help("Print the placement and change nothing"),
        )
}

/// Returns the command in `matches` of [`command`].
pub fn parse(matches: &ArgMatches) -> ClusterCommand {
    ClusterCommand { matches: matches.clone() }
}

impl ClusterCommand {
    pub async fn run(self, env: &Env) -> Result<(), ExitError> {
        let (name, matches) = self.matches.subcommand().expect("clap asks for a command");
        let client = connect(env, matches).await?;
        match name {
            "servers" => print(&show(&client.layout(&[]).await?)),
            _ => run_rebalance(&client, matches).await?,
        }
        Ok(())
    }
}

async fn run_rebalance(client: &Client, matches: &ArgMatches) -> Result<()> {
    let tables: Vec<String> = texts(matches, "tables").map(str::to_string).collect();
    print(&show(&client.layout(&tables).await?));
    if matches.get_flag("report-only") {
        return Ok(());
    }
    let number = |name| *matches.get_one::<u64>(name).expect("it has a default");
    let patience = Duration::from_secs(number("move-timeout"));
    let wanted = Rebalance { tables, at_once: number("at-once") as usize, patience };
    let on_move =
        |ReplicaMove { tablet, from, to }| print(&format!("moved tablet {tablet} from {from} to {to}\n"));
    let moved = client.rebalance(&wanted, on_move).await?;
    print(&format!("moved {moved} replicas\n{}", show(&client.layout(&wanted.tables).await?)));
    Ok(())
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
    use engine::ids::Uuid;

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
