//! More loads of `kudu perf loadgen`: keys in order and at random, sent in the background and in batches of a hundred,
//! rows of a hundred columns; with one replica and with three.

use anyhow::{Context, Result};
use serde_json::json;

use super::measure;
use super::report::{ReportSpec, Sample};
use super::round::{Turn, VersusOptions};
use super::single::measured;

pub(super) const PAGE: ReportSpec = ReportSpec {
    path: "benches/VERSUS-LOADGEN.md",
    title: "kudu perf loadgen with nyala and Kudu 1.18.1",
    turn: "A turn is two fresh clusters on loopback, of one master and one tablet server with one replica, then of \
           three masters and three tablet servers with three replicas. On each, the real `kudu` tool loads \
           tables of eight hash buckets with two threads: with keys in order and at random (`--use_random_pk \
           --use_random_non_pk`), sent in the background; in order, sent by hundreds of rows \
           (`--flush_per_n_rows=100`); and a tenth of the rows into a table of 100 columns, half of them int64, half \
           strings. Each is then read by `kudu perf table_scan`. CPU is that of all servers together, memory that \
           of the first tablet server so far, disk what all files occupy so far. A smaller figure is better but \
           for rows/s.",
    figures: &[],
};

const ROWS: u64 = 1_000_000;
const THREADS: u64 = 2;
const COLUMNS: usize = 100;
/// Divisor of the number of rows for the wide table.
const WIDE_SHARE: u64 = 10;
/// Loads by name, with their flags.
const LOADS: [(&str, &[&str]); 3] = [
    ("in order", &[]),
    ("at random", &["--use_random_pk", "--use_random_non_pk"]),
    ("in order, by hundreds", &["--flush_per_n_rows=100"]),
];

pub(super) fn settings(options: &VersusOptions) -> String {
    format!(" {} rows.", rows(options))
}

fn rows(options: &VersusOptions) -> u64 {
    options.rows.unwrap_or(ROWS)
}

/// Runs one server's round.
pub(super) fn turn(turn: &Turn<'_>) -> Result<Vec<Sample>> {
    let mut samples = Vec::new();
    for (servers, name) in [(1, "1 replica"), (3, "3 replicas")] {
        samples.extend(with_replicas(turn, servers, name)?);
    }
    Ok(samples)
}

fn with_replicas(turn: &Turn<'_>, servers: usize, name: &str) -> Result<Vec<Sample>> {
    let (cluster, dir) = turn.cluster(servers, servers, &[])?;
    let masters = cluster.master_addresses();
    let mut samples = Vec::new();
    let mut load = |kind: &str, rows: u64, flags: &[String]| -> Result<()> {
        let shared = [
            format!("--num_threads={THREADS}"),
            format!("--num_rows_per_thread={}", rows.div_ceil(THREADS)),
            format!("--table_num_replicas={servers}"),
        ];
        let words = ["perf", "loadgen", &masters].map(str::to_string);
        let words: Vec<String> = words.into_iter().chain(shared).chain(flags.iter().cloned()).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let (load, said) = measured(turn, &cluster, dir.path(), &format!("{kind}, {name}"), &words)?;
        let table = match measure::auto_table(&said) {
            Some(table) => table,
            None => WIDE.to_string(),
        };
        let words = ["perf", "table_scan", &masters, &table];
        let (scan, _) = measured(turn, &cluster, dir.path(), &format!("{kind}, {name}: scan"), &words)?;
        samples.extend(load.into_iter().chain(scan));
        Ok(())
    };
    for (kind, flags) in LOADS {
        let own = ["--keep_auto_table", "--table_num_hash_partitions=8"];
        let flags: Vec<String> = own.iter().chain(flags).map(|flag| flag.to_string()).collect();
        load(kind, rows(turn.options), &flags)?;
    }
    turn.kudu(&["table", "create", &masters, &wide(servers)]).context("making the wide table")?;
    load("100 columns", rows(turn.options) / WIDE_SHARE, &[format!("--table_name={WIDE}")])?;
    Ok(samples)
}

const WIDE: &str = "wide";

/// Returns the wide table's description for the tool.
fn wide(replicas: usize) -> String {
    let column = |number: usize| {
        let kind = if number.is_multiple_of(2) { "INT64" } else { "STRING" };
        json!({ "column_name": format!("c{number}"), "column_type": kind, "is_nullable": false })
    };
    let columns: Vec<serde_json::Value> = (0..COLUMNS).map(column).collect();
    json!({
        "table_name": WIDE,
        "schema": { "columns": columns, "key_column_names": ["c0"] },
        "partition": { "hash_partitions": [{ "columns": ["c0"], "num_buckets": 8 }] },
        "num_replicas": replicas,
    })
    .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wide_table_has_its_columns_and_a_key_of_numbers() {
        let table: serde_json::Value = serde_json::from_str(&wide(3)).unwrap();
        let columns = table["schema"]["columns"].as_array().unwrap();
        assert_eq!(columns.len(), COLUMNS);
        assert_eq!((&columns[0]["column_name"], &columns[0]["column_type"]), (&json!("c0"), &json!("INT64")));
        assert_eq!((&columns[1]["column_type"], &table["num_replicas"]), (&json!("STRING"), &json!(3)));
    }
}
