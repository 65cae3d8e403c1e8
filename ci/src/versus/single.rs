//! One master, one tablet server, one replica.

use std::path::Path;

use anyhow::{Context, Result};

use super::measure::{self, Cpu, Timed};
use super::report::{Metric, ReportSpec, Sample};
use super::round::Turn;
use crate::interop::cluster::Cluster;

pub(super) const PAGE: ReportSpec = ReportSpec {
    path: "benches/VERSUS.md",
    title: "nyala and Kudu 1.18.1 side by side",
    turn: "Each turn is on fresh directories with one master and one tablet server, replication 1, the real \
           `kudu` tool as the client of both on the same machine. CPU is that of master and tablet server \
           together, memory the tablet server's, disk what its files occupy, the log's preallocation \
           included. A smaller figure is better but for rows/s.",
    figures: &[],
};

/// Names of the loads, and of the table scan after them.
const DEFAULT: &str = "loadgen, default (2 000 rows)";
const BIG: &str = "loadgen, 2 threads × 1 M rows, 8 hash buckets, run_scan";
const SCAN: &str = "table_scan of those 2 M rows";
const BIG_WORDS: [&str; 5] = [
    "--num_threads=2",
    "--num_rows_per_thread=1000000",
    "--table_num_hash_partitions=8",
    "--run_scan",
    "--keep_auto_table",
];

/// Runs one server's round, on fresh directories.
pub(super) fn turn(turn: &Turn<'_>) -> Result<Vec<Sample>> {
    let (cluster, dir) = turn.cluster(1, 1, &[])?;
    let masters = cluster.master_addresses();
    let measured = |workload, words: &[&str]| measured(turn, &cluster, dir.path(), workload, words);
    let (default, _) = measured(DEFAULT, &["perf", "loadgen", &masters])?;
    let big_words: Vec<&str> = ["perf", "loadgen", &masters].into_iter().chain(BIG_WORDS).collect();
    let (big, said) = measured(BIG, &big_words)?;
    let table = measure::auto_table(&said).context("loadgen did not name its table")?;
    let (scan, _) = measured(SCAN, &["perf", "table_scan", &masters, &table])?;
    Ok([default, big, scan].concat())
}

/// Runs a command of the tool; returns its result, cost and output.
pub(super) fn measured(
    turn: &Turn<'_>,
    cluster: &Cluster,
    dir: &Path,
    workload: &str,
    words: &[&str],
) -> Result<(Vec<Sample>, String)> {
    let before = Cpu::of(cluster)?;
    let said = turn.kudu(words)?;
    let seconds = Cpu::of(cluster)?.since(before);
    let timed = Timed::parse(&said)?;
    let megabytes = |bytes: u64| bytes as f64 / 1e6;
    let samples = vec![
        turn.sample(workload, Metric("rows/s", 0), timed.rows / timed.seconds),
        turn.sample(workload, Metric("server CPU s per million rows", 2), seconds / timed.rows * 1e6),
        turn.sample(workload, Metric("peak RSS, MB", 0), megabytes(measure::peak_rss_bytes(cluster)?)),
        turn.sample(workload, Metric("on disk, MB", 0), megabytes(measure::disk_bytes(dir)?)),
    ];
    Ok((samples, said))
}
