//! `nyala debug replica …`: lists, reads, copies and deletes replicas of a stopped server.

use std::io::Write;
use std::sync::Arc;

use clap::{Arg, ArgAction, ArgMatches, Command};
use engine::error::{Error, Result};
use engine::ids::TabletId;
use engine::replica::copy::{CopySink, CopySource, LocalData, LocalReplica};
use engine::replica::{consensus_meta_store, tombstone};
use engine::schema::row_block::{ColumnBlock, ProjectedColumn};
use engine::schema::{ColumnSchema, format_cell};
use engine::tablet::Tablet;
use engine::tablet::scan::ScanSpec;
use engine::tablet::superblock::{DataState, Superblock};

use super::super::exit::ExitError;
use super::super::options::{option, text};
use super::super::output::{print, table as text_table};
use super::arguments::{tablet_argument, with_directories};
use super::stopped::{is_missing, named_tablet, open_replica, open_server, tablets, view};
use crate::dirs::{Directory, StoppedServer, open_stopped};
use crate::server::flags::Flags;
use nyala_common::env::Env;
use nyala_common::number_text::bytes;

/// Bytes copied at once.
const CHUNK: usize = 1 << 20;

pub(super) fn command() -> Command {
    let yes = || Arg::new("yes").long("yes").action(ArgAction::SetTrue).help("Do it; needed");
    let list = Command::new("list").about("List replicas and tombstones");
    let dump = Command::new("dump")
        .about("Print all rows of a replica as CSV, with a header")
        .arg(tablet_argument(true));
    let copy = Command::new("copy")
        .about("Copy a replica to another stopped tablet server, which has none or a tombstone of it")
        .arg(tablet_argument(true))
        .arg(option("to", "DIR", "WAL directory of the other server").required(true));
    let delete = Command::new("delete")
        .about("Delete a replica's rows and log, or with --forget also what it voted for")
        .arg(tablet_argument(true))
        .arg(yes())
        .arg(
            Arg::new("forget")
                .long("forget")
                .action(ArgAction::SetTrue)
                .help("Leave no tombstone: only for a tablet that no longer exists"),
        );
    Command::new("replica")
        .about("List, read, copy or delete replicas of a stopped server")
        .subcommand_required(true)
        .subcommands([list, dump, copy, delete].map(with_directories))
}

pub(super) async fn run(env: &Env, matches: &ArgMatches, flags: &Flags) -> Result<(), ExitError> {
    let (name, matches) = matches.subcommand().expect("clap asks for a command");
    let server = open_server(env, flags).await?;
    let named = || named_tablet(&server, matches);
    let work = || match name {
        "list" => list(env, &server),
        "dump" => named().and_then(|(tablet, dir)| dump(env, &server, &dir, tablet)),
        "copy" => named().and_then(|(tablet, dir)| {
            copy(env, &server, &dir, tablet, text(matches, "to").unwrap_or_default())
        }),
        _ => named().and_then(|(tablet, dir)| delete(&server, &dir, tablet, matches)),
    };
    print(&env.run(work).await?);
    Ok(())
}

fn list(env: &Env, server: &StoppedServer) -> Result<String> {
    let mut rows = Vec::new();
    for (tablet, dir) in tablets(server)? {
        let mut row = vec![tablet.to_string()];
        match Superblock::load(&*view(&dir), tablet) {
            Ok(meta) if meta.data_state == DataState::Ready => {
                let size: u64 = meta.rowsets.iter().map(|rowset| rowset.bytes).sum();
                let (state, last, live) = match open_replica(env, server, &dir, tablet) {
                    Ok((replica, log)) => {
                        let live = replica.tablet().stats().live_rows.to_string();
                        ("READY".to_string(), log.last_op().to_string(), live)
                    }
                    Err(error) => (format!("DAMAGED: {error}"), String::new(), String::new()),
                };
                row.extend([meta.table_name, state, live, bytes(size), last, dir.path.clone()]);
            }
            Ok(meta) => {
                let last = meta.tombstone_last_op.map_or("unknown".to_string(), |last| last.to_string());
                let state = format!("{:?}", meta.data_state).to_uppercase();
                row.extend([meta.table_name, state, String::new(), String::new(), last, dir.path.clone()]);
            }
            Err(error) => {
                let state = format!("DAMAGED: {error}");
                row.extend([String::new(), state, String::new(), String::new(), String::new()]);
                row.push(dir.path.clone());
            }
        }
        rows.push(row);
    }
    let header = ["tablet", "table", "state", "rows>", "size>", "last operation>", "directory"];
    Ok(text_table(&header, rows))
}

/// Writes all rows to standard output. Rows before damage are written too.
fn dump(env: &Env, server: &StoppedServer, dir: &Directory, tablet: TabletId) -> Result<String> {
    let (replica, _log) = open_replica(env, server, dir, tablet)?;
    let (mut out, mut rows) = (std::io::stdout().lock(), 0u64);
    print_rows(replica.tablet(), &mut |line| {
        rows += 1;
        // A closed pipe ends the output, not the command.
        let _ = out.write_all(line.as_bytes());
    })?;
    tracing::info!(rows, "dumped");
    Ok(String::new())
}

fn print_rows(tablet: &Tablet, each: &mut dyn FnMut(&str)) -> Result<()> {
    let schema = tablet.schema();
    let names: Vec<&str> = schema.columns().iter().map(|column| column.name.as_str()).collect();
    each(&format!("{}\n", names.join(",")));
    let spec = ScanSpec::latest(schema.columns().iter().map(ProjectedColumn::from).collect());
    let mut scan = tablet.scan(&spec)?;
    while let Some(block) = scan.next_block()? {
        for row in 0..block.rows {
            let cell = |(column, values): (&ColumnSchema, &ColumnBlock)| {
                values.cell(row).map_or(String::new(), |cell| format_cell(column.ty, column.attributes, cell))
            };
            let cells: Vec<String> = schema.columns().iter().zip(&block.columns).map(cell).collect();
            each(&format!("{}\n", cells.join(",")));
        }
    }
    Ok(())
}

fn copy(env: &Env, server: &StoppedServer, dir: &Directory, tablet: TabletId, to: &str) -> Result<String> {
    let target = open_stopped(env, to, &[])?;
    let into = target.data.iter().find(|dir| Superblock::load(&*view(dir), tablet).is_ok());
    let into = into.unwrap_or(&target.data[0]);
    let local = local_state(&target, into, tablet)?;
    let (replica, mut log) = open_replica(env, server, dir, tablet)?;
    let committed = replica.meta().last_op.index;
    let source =
        CopySource::new(replica.copy_view(replica.consensus_meta().clone())?, log.snapshot()?, committed)?;
    let (wal, data) = (target.wal.disk.clone(), into.disk.clone());
    let mut sink = CopySink::begin(wal, data, &local, None, source.manifest().clone())?;
    let mut copied = 0;
    while let Some(wanted) = sink.wanted() {
        let chunk = source.read(wanted.part, wanted.offset, CHUNK)?;
        copied += chunk.data.len() as u64;
        sink.put(wanted.part, &chunk)?;
    }
    sink.finish()?;
    let size = bytes(copied);
    Ok(format!("copied tablet {tablet} to server {} in {} ({size})\n", target.uuid, into.path))
}

/// Returns what the target has of the tablet.
fn local_state(target: &StoppedServer, dir: &Directory, tablet: TabletId) -> Result<LocalReplica> {
    let server = target.uuid;
    match Superblock::load(&*dir.disk, tablet) {
        Err(error) if is_missing(&error) => Ok(LocalReplica::nothing(server, tablet)),
        Err(error) => Err(error),
        Ok(meta) => {
            let has = match meta.data_state {
                DataState::Ready => LocalData::Replica,
                _ => LocalData::Tombstone,
            };
            let term = consensus_meta_store::load_known(&*dir.disk, tablet)?.map_or(0, |meta| meta.term);
            let (last_op, at_least) = (meta.tombstone_last_op, meta.last_op);
            Ok(LocalReplica { server, tablet, has, last_op, at_least, term, rejected: None })
        }
    }
}

fn delete(
    server: &StoppedServer,
    dir: &Arc<Directory>,
    tablet: TabletId,
    matches: &ArgMatches,
) -> Result<String> {
    if !matches.get_flag("yes") {
        return Err(Error::invalid(format!("tablet {tablet}: give --yes to delete its rows and log here")));
    }
    let (wal, data) = (&*server.wal.disk, &*dir.disk);
    if matches.get_flag("forget") {
        tombstone::delete(wal, data, tablet)?;
        return Ok(format!("deleted tablet {tablet}; nothing of it is left here\n"));
    }
    // A tombstone that does not know the end of its log does not vote.
    tombstone::tombstone(wal, data, tablet, None)?;
    Ok(format!("deleted tablet {tablet}; its tombstone keeps its vote\n"))
}
