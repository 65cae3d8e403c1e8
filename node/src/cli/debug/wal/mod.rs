//! `nyala debug wal …`: shows the operations and outcomes in a log of a stopped server, and removes the last ones.

mod cut;

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use engine::error::Result;
use engine::ids::TabletId;
use engine::raft::RaftConfig;
use engine::raft::interface::kind;
use engine::replica::wal_dir;
use engine::wal::{LogEntry, ReplicateEntry, Wal};

use super::arguments::{tablet_argument, with_directories};
use super::stopped::{LOG_CONFIG, open_server, view};
use crate::cli::exit::ExitError;
use crate::cli::options::{option, text};
use crate::cli::output::print;
use crate::dirs::StoppedServer;
use crate::server::flags::Flags;
use nyala_common::env::Env;

pub(super) fn command() -> Command {
    let index = |name, help| option(name, "INDEX", help).value_parser(value_parser!(u64));
    let dump = Command::new("dump")
        .about("Show a log's operations and outcomes, without truncated ones; exit code 1: it is damaged")
        .arg(tablet_argument(true))
        .arg(index("from", "First index"))
        .arg(index("to", "Last index"));
    let switch = |name, help| Arg::new(name).long(name).action(ArgAction::SetTrue).help(help);
    let cut = Command::new("cut")
        .about("Remove the operations of a log after an index, outcomes included")
        .long_about(
            "Remove the operations of a log after an index, outcomes included.\n\n\
             For a replica whose last operations cannot be applied. Operations that only this replica has are lost. \
             Operations without an outcome here may be committed on other replicas: then the leader sends them \
             again. The old log stays beside the new one, in a directory with .bak appended.",
        )
        .arg(tablet_argument(true))
        .arg(index("after", "Index of the last operation that stays").required(true))
        .arg(switch("force", "Also remove operations that are known to be committed"))
        .arg(switch("yes", "Do it; without, only show it"));
    Command::new("wal")
        .about("Show or cut logs of a stopped server")
        .subcommand_required(true)
        .subcommands([with_directories(dump), with_directories(cut)])
}

pub(super) async fn run(env: &Env, matches: &ArgMatches, flags: &Flags) -> Result<(), ExitError> {
    let (name, matches) = matches.subcommand().expect("clap asks for a command");
    let tablet = TabletId::parse(text(matches, "tablet").unwrap_or_default().as_bytes());
    let tablet = tablet.map_err(ExitError::usage)?;
    let server = open_server(env, flags).await?;
    if name == "cut" {
        print(&env.run(|| cut::cut(&server, matches)).await?);
        return Ok(());
    }
    let index = |name: &str| matches.get_one::<u64>(name).copied();
    let wanted = index("from").unwrap_or(0)..=index("to").unwrap_or(u64::MAX);
    Ok(env.run(|| dump(&server, tablet, &wanted)).await?)
}

fn dump(server: &StoppedServer, tablet: TabletId, wanted: &std::ops::RangeInclusive<u64>) -> Result<()> {
    let mut show = |entry: LogEntry| {
        let op = match &entry {
            LogEntry::Replicate(replicate) => replicate.op,
            LogEntry::Commit(commit) => commit.op,
        };
        if wanted.contains(&op.index) {
            print(&describe(&entry)?);
        }
        Ok(())
    };
    let (_, found) = Wal::open(view(&server.wal), &wal_dir(tablet), LOG_CONFIG, &mut show)?;
    print(&format!(
        "{} segments, {} operations, {} truncated ones, {} outcomes, last {}; {} bytes at the end are no batch\n",
        found.segments, found.replicates, found.void, found.commits, found.last_op, found.cut_bytes
    ));
    Ok(())
}

fn describe(entry: &LogEntry) -> Result<String> {
    let ReplicateEntry { op, timestamp, kind, payload } = match entry {
        LogEntry::Commit(commit) => {
            return Ok(format!("{} outcome, {} bytes\n", commit.op, commit.payload.len()));
        }
        LogEntry::Replicate(replicate) => replicate,
    };
    let (name, detail) = match *kind {
        kind::WRITE => ("write", String::new()),
        kind::ALTER => ("alter", String::new()),
        kind::NO_OP => ("no-op", String::new()),
        kind::CONFIG => ("configuration", format!(" {}", RaftConfig::decode(payload)?)),
        _ => ("unknown", format!(" kind {kind}")),
    };
    Ok(format!("{op} {name} at {timestamp}, {} bytes{detail}\n", payload.len()))
}
