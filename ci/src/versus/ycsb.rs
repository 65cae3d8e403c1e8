//! The YCSB study: rows of 1 KB, loaded row by row and in batches, and the workloads on loaded rows.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;

use super::load_driver::{DrivenCluster, DriverResult, Latency, split_args};
use super::report::{ReportSpec, Sample};
use super::round::{Prepared, Turn, VersusOptions};
use crate::command::CommandLine;

pub(super) const PAGE: ReportSpec = ReportSpec {
    path: "benches/VERSUS-YCSB.md",
    title: "YCSB: nyala and Kudu 1.18.1 side by side",
    turn: "A turn is two fresh clusters of one master and one tablet server, replication 1, four tablets that \
           are ranges of keys. Rows are YCSB's: a string key and ten strings of 100 bytes. On the first cluster \
           16 clients load rows one at a time; on the second they load batches of 100, and then do the \
           workloads on those rows, each operation waiting for the last: A half reads, half updates of a field; \
           B 95 % reads; C reads; F half reads, half reads with an update of the same row; E 95 % scans of 1 to \
           100 rows, 5 % inserts. Rows are picked by Zipf's law (0.99). The client of both is the same: \
           `benches/drive`, on nyala's Rust client (`node::client`) rather than the official Java client, so that on \
           few cores a JVM is not what is measured. CPU is that of master and tablet server together, and of \
           the client; memory and bytes written (`write_bytes` of `/proc`) are the tablet server's; disk is what \
           all files occupy, the log's preallocation included; memory and disk are those of the cluster so far. \
           A smaller figure is better but for operations/s.",
    figures: &[
        "versus-ycsb/load-throughput.svg",
        "versus-ycsb/load-latency.svg",
        "versus-ycsb/load-memory.svg",
        "versus-ycsb/load-rejections.svg",
        "versus-ycsb/load-written.svg",
        "versus-ycsb/load-lookups.svg",
        "versus-ycsb/batches-throughput.svg",
        "versus-ycsb/batches-latency.svg",
        "versus-ycsb/batches-memory.svg",
        "versus-ycsb/batches-rejections.svg",
        "versus-ycsb/batches-written.svg",
        "versus-ycsb/batches-lookups.svg",
    ],
};

const FIGURES: &str = "benches/versus-ycsb";
const CLIENTS: u64 = 16;
const TABLE: &str = "usertable";
const ROWS: u64 = 300_000;
/// Rows of the load in batches for each row of the load row by row.
const BATCHED_PER_SINGLE: u64 = 6;
const WORKLOADS: [(&str, &str); 5] = [
    ("A: half updates", "read:50,update:50"),
    ("B: 5 % updates", "read:95,update:5"),
    ("C: reads", "read:1"),
    ("F: half read-modify-write", "read:50,read-modify-write:50"),
    ("E: scans, 5 % inserts", "scan:95,insert:5"),
];

fn rows(options: &VersusOptions) -> u64 {
    options.rows.unwrap_or(ROWS)
}

pub(super) fn settings(options: &VersusOptions) -> String {
    let rows = rows(options);
    format!(
        " {} rows one at a time, {rows} in batches, {} s each workload; the tablet server may use {} MiB.",
        rows / BATCHED_PER_SINGLE,
        options.seconds,
        options.memory_mib
    )
}

/// Runs one server's round.
pub(super) fn turn(turn: &Turn<'_>) -> Result<Vec<Sample>> {
    let mut samples = single(turn)?;
    samples.extend(batched(turn)?);
    Ok(samples)
}

fn start<'a>(turn: &'a Turn<'a>) -> Result<DrivenCluster<'a>> {
    let memory = format!("--memory_limit_hard_bytes={}", turn.options.memory_mib << 20);
    DrivenCluster::start(turn, &[memory], None)
}

fn single(turn: &Turn<'_>) -> Result<Vec<Sample>> {
    let rows = rows(turn.options) / BATCHED_PER_SINGLE;
    let load = split_args(&format!("--mix insert:1 --operations {rows}"));
    let done = start(turn)?.run("ycsb", TABLE, CLIENTS, &load)?;
    keep(turn.target, turn.log_sync, turn.server.name(), "load", &done)?;
    Ok(done.samples(turn, "load, one row at a time", Latency::OfOperations))
}

fn batched(turn: &Turn<'_>) -> Result<Vec<Sample>> {
    let driven = start(turn)?;
    let mut rows = rows(turn.options);
    let load = split_args(&format!("--mix insert:1 --batch 100 --operations {rows}"));
    let done = driven.run("ycsb", TABLE, CLIENTS, &load)?;
    keep(turn.target, turn.log_sync, turn.server.name(), "batches", &done)?;
    let mut samples = done.samples(turn, "load, batches of 100", Latency::OfBatches);
    rows = done.operations().min(rows);
    for (name, mix) in WORKLOADS {
        let work = split_args(&format!("--mix {mix} --rows {rows} --seconds {}", turn.options.seconds));
        samples.extend(driven.run("ycsb", TABLE, CLIENTS, &work)?.samples(turn, name, Latency::OfOperations));
    }
    Ok(samples)
}

/// Path of a load's report, which is kept until the charts are drawn.
fn report(target: &Path, log_sync: bool, server: &str, load: &str) -> PathBuf {
    let sync = if log_sync { "sync" } else { "no-sync" };
    target.join("versus").join(format!("{load}-{sync}-{server}.json"))
}

fn keep(target: &Path, log_sync: bool, server: &str, load: &str, done: &DriverResult) -> Result<()> {
    fs::create_dir_all(target.join("versus"))?;
    Ok(fs::write(report(target, log_sync, server, load), &done.json)?)
}

/// Draws charts of the loads of the last rounds, with log sync off as in the study.
pub(super) fn draw(root: &Path, prepared: &Prepared) -> Result<()> {
    let out = root.join(FIGURES);
    for load in ["load", "batches"] {
        let lines = ["nyala", "kudu"]
            .map(|server| format!("{server}={}", report(&prepared.target, false, server, load).display()));
        CommandLine::new(&prepared.drive)
            .args(["plot", "--prefix", load, "--out"])
            .args([&out])
            .args(lines)
            .run()?;
    }
    Ok(())
}
