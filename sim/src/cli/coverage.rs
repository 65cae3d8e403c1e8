//! The generator-coverage table: cells of ops, types, conditions and shapes of model tables that runs reached.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use rusqlite::Connection;

use super::arguments;
use crate::model_oracle::coverage::{PREFIX, wanted};
use crate::output::outln;

#[derive(Args)]
pub(super) struct CoverageArgs {
    /// A file of results, as `cargo sim run --profile tables --db FILE` writes it
    db: PathBuf,
    /// Fail if a cell is not reached
    #[arg(long)]
    all: bool,
    /// Print every cell, not only those that are not reached
    #[arg(long)]
    list: bool,
}

/// Prints the table; returns false if a cell is missing and `--all` asks for each.
pub(super) fn coverage(args: &CoverageArgs) -> Result<bool> {
    let reached = cells(args)?;
    let wanted = wanted();
    let missing: BTreeSet<&String> = wanted.iter().filter(|cell| !reached.contains_key(*cell)).collect();
    let show = |cell: &str| cell.trim_start_matches(PREFIX).to_string();
    if args.list {
        for (cell, (times, runs)) in &reached {
            outln!("{:<44}{times:>10}{runs:>8}", show(cell));
        }
    }
    outln!("reached     {} of {} cells", wanted.len() - missing.len(), wanted.len());
    missing.iter().for_each(|cell| outln!("missing     {}", show(cell)));
    Ok(!args.all || missing.is_empty())
}

/// Returns the cells in a file of results: how often, and in how many runs they were reached.
fn cells(args: &CoverageArgs) -> Result<BTreeMap<String, (u64, u64)>> {
    if !args.db.is_file() {
        let name = args.db.display();
        return Err(arguments::wrong(format!("{name}: no such file; name what `cargo sim run --db` wrote")));
    }
    let flags = rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY;
    let open = || format!("opening {}", args.db.display());
    let db = Connection::open_with_flags(&args.db, flags).with_context(open)?;
    let mut query =
        db.prepare("SELECT mark, SUM(times), COUNT(*) FROM marks WHERE mark LIKE ? || '%' GROUP BY mark")?;
    let rows = query.query_map([PREFIX], |row| {
        let count = |at| row.get::<_, i64>(at).map(i64::unsigned_abs);
        Ok((row.get::<_, String>(0)?, (count(1)?, count(2)?)))
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}
