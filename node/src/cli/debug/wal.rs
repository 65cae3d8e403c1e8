//! `nyala debug wal dump`: the operations and outcomes in a log of a stopped server.

use clap::{ArgMatches, Command, value_parser};
use engine::error::Result;
use engine::ids::TabletId;
use engine::raft::RaftConfig;
use engine::raft::interface::kind;
use engine::replica::wal_dir;
use engine::wal::{LogEntry, ReplicateEntry, Wal, WalConfig};

use super::super::exit::ExitError;
use super::super::options::{option, text};
use super::super::output::print;
use super::arguments::{tablet_argument, with_directories};
use super::stopped::{open_server, view};
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
    Command::new("wal")
        .about("Show logs of a stopped server")
        .subcommand_required(true)
        .subcommands([with_directories(dump)])
}

pub(super) async fn run(env: &Env, matches: &ArgMatches, flags: &Flags) -> Result<(), ExitError> {
    let (_, matches) = matches.subcommand().expect("clap asks for a command");
    let tablet = TabletId::parse(text(matches, "tablet").unwrap_or_default().as_bytes());
    let tablet = tablet.map_err(ExitError::usage)?;
    let server = open_server(env, flags).await?;
    let index = |name: &str| matches.get_one::<u64>(name).copied();
    let wanted = index("from").unwrap_or(0)..=index("to").unwrap_or(u64::MAX);
    Ok(env.run(|| dump(&server, tablet, &wanted)).await?)
}

fn dump(server: &StoppedServer, tablet: TabletId, wanted: &std::ops::RangeInclusive<u64>) -> Result<()> {
    let config = WalConfig { segment_bytes_max: 8 << 20, preallocate: false, compress: false };
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
    let (_, found) = Wal::open(view(&server.wal), &wal_dir(tablet), config, &mut show)?;
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
