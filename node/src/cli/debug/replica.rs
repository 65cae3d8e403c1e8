//! `nyala debug replica …`: lists, reads, copies and deletes replicas of a stopped server.

use std::sync::Arc;

use clap::{Arg, ArgAction, ArgMatches, Command};
use engine::error::{Error, Result};
use engine::ids::TabletId;
use engine::replica::copy::{CopySink, CopySource, LocalData, LocalReplica};
use engine::replica::{consensus_meta_store, tombstone, wal_dir};
use engine::schema::row_block::{ProjectedColumn, RowBlock};
use engine::schema::{ColumnSchema, PhysicalType, ValueKind, format_cell};
use engine::tablet::Tablet;
use engine::tablet::scan::ScanSpec;
use engine::tablet::superblock::{DataState, Superblock};
use engine::wal::Wal;

use super::super::exit::ExitError;
use super::super::options::{option, text};
use super::super::output::{print, table as text_table, write_rows};
use super::arguments::{tablet_argument, with_directories};
use super::stopped::{directory_of, is_missing, named_tablet, open_replica, open_server, tablets, view};
use crate::dirs::{Directory, StoppedServer, open_stopped};
use crate::server::flags::Flags;
use nyala_client::arrow::arrow_schema;
use nyala_common::env::Env;
use nyala_common::number_text::bytes;
use nyala_files::delimited::{csv_header, write_record};

/// Bytes copied at once.
const CHUNK: usize = 1 << 20;

pub(super) fn command() -> Command {
    let yes = || Arg::new("yes").long("yes").action(ArgAction::SetTrue).help("Do it; needed");
    let list = Command::new("list").about("List replicas and tombstones");
    let dump = Command::new("dump")
        .about("Print all rows of a replica as CSV, with a header, as table import reads it")
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
    let rows = print_rows(replica.tablet(), write_rows)?;
    tracing::info!(rows, "dumped");
    Ok(String::new())
}

/// Gives the lines of all rows to `write` until it returns false. Returns the number of rows.
fn print_rows(tablet: &Tablet, write: impl Fn(&[u8]) -> Result<bool>) -> Result<u64> {
    let schema = tablet.schema();
    let (columns, mut rows) = (schema.columns(), 0);
    if !write(&csv_header(&arrow_schema(columns)))? {
        return Ok(rows);
    }
    let spec = ScanSpec::latest(columns.iter().map(ProjectedColumn::from).collect());
    let mut scan = tablet.scan(&spec)?;
    while let Some(block) = scan.next_block()? {
        if !write(&csv_rows(columns, &block))? {
            break;
        }
        rows += block.rows as u64;
    }
    Ok(rows)
}

/// Returns rows as CSV of which an import makes the same rows.
///
/// Not by Arrow as in an export, which refuses text that is not UTF-8: a dump has what is stored.
fn csv_rows(columns: &[ColumnSchema], block: &RowBlock) -> Vec<u8> {
    let mut out = Vec::new();
    for row in 0..block.rows {
        let cells = columns.iter().zip(&block.columns);
        let cells: Vec<_> = cells.map(|(column, values)| csv_cell(column, values.cell(row))).collect();
        write_record(&mut out, cells.iter().map(|(cell, quoted)| (cell.as_slice(), *quoted)));
    }
    out
}

/// Returns the text of a cell, and whether it must be quoted.
fn csv_cell(column: &ColumnSchema, cell: Option<&[u8]>) -> (Vec<u8>, bool) {
    let Some(cell) = cell else { return (Vec::new(), false) };
    let text = match (column.ty.kind(), column.ty.physical()) {
        (ValueKind::Text, _) => return (cell.to_vec(), cell.is_empty()),
        (_, PhysicalType::Binary) => {
            let digits = cell.iter().map(|byte| format!("{byte:02x}"));
            format!("0x{}", digits.collect::<String>())
        }
        _ => format_cell(column.ty, column.attributes, cell),
    };
    (text.into_bytes(), false)
}

fn copy(env: &Env, server: &StoppedServer, dir: &Directory, tablet: TabletId, to: &str) -> Result<String> {
    let target = open_stopped(env, to, &[])?;
    let home = directory_of(&target, tablet)?;
    let into = home.as_ref().unwrap_or(&target.data[0]);
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
        Err(error) if is_missing(&error) => {
            let nothing = LocalReplica::nothing(server, tablet);
            let unused = Wal::is_unused(&*view(&target.wal), &wal_dir(tablet))?;
            // A log with operations proves that there was a replica, whose vote was lost with its superblock.
            Ok(if unused { nothing } else { LocalReplica { has: LocalData::Failed, ..nothing } })
        }
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

#[cfg(test)]
mod tests {
    use engine::schema::row_block::ColumnBlock;
    use engine::schema::{DataType, Schema, TypeAttributes};
    use nyala_files::ImportInput;
    use nyala_files::reader::{CsvReader, ImportTarget};

    use super::*;

    fn columns() -> Vec<ColumnSchema> {
        let mut decimal = ColumnSchema::new(4, "d", DataType::Decimal32).nullable();
        decimal.attributes = TypeAttributes { precision: 9, scale: 2, length: 0 };
        vec![
            ColumnSchema::new(0, "k", DataType::Int32),
            ColumnSchema::new(1, "a \"text\", quoted", DataType::String).nullable(),
            ColumnSchema::new(2, "raw", DataType::Binary).nullable(),
            ColumnSchema::new(3, "at", DataType::UnixtimeMicros).nullable(),
            decimal,
            ColumnSchema::new(5, "f", DataType::Double).nullable(),
        ]
    }

    /// Rows with what CSV must quote, and with NULL beside an empty text.
    fn block(columns: &[ColumnSchema]) -> RowBlock {
        let texts = ["back\\slash", "say \"x\"", "a,b", "two\nlines\r\n", "", " \u{e9} ", "\\N", "NULL"];
        let mut blocks: Vec<ColumnBlock> =
            columns.iter().map(|column| ColumnBlock::new(column.ty.physical(), column.nullable)).collect();
        for (row, text) in texts.iter().enumerate() {
            blocks[0].push(Some(&(row as i32).to_le_bytes()));
            blocks[1].push(Some(text.as_bytes()));
            blocks[2].push(Some(&[b"\x00\xff\\\"", text.as_bytes()].concat()));
            blocks[3].push(Some(&(row as i64 - 3).to_le_bytes()));
            blocks[4].push(Some(&(-150 + row as i32).to_le_bytes()));
            blocks[5].push(Some(&(0.1 * row as f64).to_le_bytes()));
        }
        blocks[0].push(Some(&i32::MAX.to_le_bytes()));
        blocks[1..].iter_mut().for_each(|block| block.push(None));
        RowBlock { rows: texts.len() + 1, columns: blocks }
    }

    #[test]
    fn an_import_reads_the_rows_of_a_dump() {
        let schema = Schema::new(columns(), 1).expect("a lawful schema");
        let block = block(schema.columns());
        let text = [csv_header(&arrow_schema(schema.columns())), csv_rows(schema.columns(), &block)].concat();
        let target = ImportTarget::new(&schema, "t");
        let reader = CsvReader::open(&text[..], target, b',', b"").expect("a header");
        let mut input = ImportInput::Csv(Box::new(reader));
        let (rows, bad) = input.next(target).expect("CSV").expect("rows");
        assert_eq!((rows.tags.len(), bad), (block.rows, Vec::new()));
        for (column, (read, stored)) in rows.columns.iter().zip(&block.columns).enumerate() {
            let read = read.as_ref().expect("all columns are in the file");
            for row in 0..block.rows {
                assert_eq!(read.cell(row), stored.cell(row), "column {column}, row {row}");
            }
        }
    }
}
