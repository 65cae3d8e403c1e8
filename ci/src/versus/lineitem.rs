//! TPC-H's lineitem: loaded, counted, scanned, searched; beside the same rows in Parquet files.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use super::measure::{self, Cpu};
use super::report::{Cell, Metric, ReportSpec, Sample};
use super::round::{Turn, VersusOptions};
use crate::command::CommandLine;
use crate::interop::cluster::Cluster;
use crate::interop::daemon::{Role, ServerKind};

pub(super) const PAGE: ReportSpec = ReportSpec {
    path: "benches/VERSUS-LINEITEM.md",
    title: "TPC-H lineitem in nyala, Kudu 1.18.1 and Parquet files",
    turn: "Each turn is on fresh directories with one master and one tablet server, one replica, four tablets by hash \
           of the order. nyala's Rust client drives both over Kudu's protocol, from a process of its own for each \
           step, and checks every answer against the generator's. After the load, rows are flushed (a \
           `flush_threshold_secs` of 1) and nothing is read before the data directory has stood still for three \
           seconds. The scan is of Q1's six columns, the selection Q6's (2 % of the rows, given per row of the table), \
           the lookups 500 rows by key, one after the other. Parquet's column is the `parquet` crate over four files \
           with LZ4, written and read by a thread each, in the page cache and without any server; it has no index by \
           key. Its CPU is that of its process, nyala's and Kudu's that of master and tablet server. A smaller figure \
           is better but for rows/s.",
    figures: &[],
};

pub(super) fn settings(options: &VersusOptions) -> String {
    format!(" Scale factor {}.", options.scale)
}

const PARQUET: &str = "parquet";
/// Time without a change of the data directory after which all rows are flushed.
const STANDSTILL: Duration = Duration::from_secs(3);
const PATIENCE: Duration = Duration::from_secs(120);
const BETWEEN_LOOKS: Duration = Duration::from_millis(200);
const RATE: Metric = Metric("rows/s", 0);
const CPU: Metric = Metric("CPU s per million rows", 3);
const DISK: Metric = Metric("data directory, MB", 1);
const MEMORY: Metric = Metric("peak RSS, MB", 0);
const MEDIAN: Metric = Metric("median, µs", 0);
const P99: Metric = Metric("p99, µs", 0);
/// Steps of the client and their names in the report.
const STEPS: [(&str, &str); 5] = [
    ("load", "load"),
    ("count", "count"),
    ("scan", "scan of Q1's six columns"),
    ("select", "selection of Q6"),
    ("find", "lookup by key"),
];

/// Runs one server's round; nyala's is followed by one of the files.
pub(super) fn turn(turn: &Turn<'_>) -> Result<Vec<Sample>> {
    let (mut cluster, dir) = turn.cluster(1, 1, &[])?;
    let masters = cluster.master_addresses();
    let data = dir.path().join("tserver-0/data");
    let mut samples = Vec::new();
    for (step, workload) in STEPS {
        let before = Cpu::of(&cluster)?;
        let did = Did::read(&client(turn, "kudu", step, &masters)?)?;
        let cpu = Cpu::of(&cluster)?.since(before);
        samples
            .extend(did.samples(workload, cpu).map(|(measure, value)| turn.sample(workload, measure, value)));
        if step == "load" {
            let megabytes = flushed(&mut cluster, &data)? as f64 / 1e6;
            samples.push(turn.sample(workload, DISK, megabytes));
            let memory = measure::peak_rss_bytes(&cluster)? as f64 / 1e6;
            samples.push(turn.sample(workload, MEMORY, memory));
        }
    }
    if let ServerKind::Nyala(_) = turn.server {
        samples.extend(files(turn)?);
    }
    Ok(samples)
}

/// Runs the same steps with Parquet files.
fn files(turn: &Turn<'_>) -> Result<Vec<Sample>> {
    let dir = tempfile::tempdir_in(turn.target)?;
    let folder = dir.path().to_str().context("a folder with a plain name")?;
    let mut samples = Vec::new();
    let sample = |workload: &str, measure, value| {
        let workload = workload.to_string();
        let cell = Cell { workload, log_sync: turn.log_sync, measure, server: PARQUET };
        Sample { cell, value }
    };
    for (step, workload) in STEPS {
        let did = Did::read(&client(turn, PARQUET, step, folder)?)?;
        samples
            .extend(did.samples(workload, did.cpu).map(|(measure, value)| sample(workload, measure, value)));
        if step == "load" {
            samples.push(sample(workload, DISK, measure::held_bytes(dir.path())? as f64 / 1e6));
        }
    }
    Ok(samples)
}

/// Runs a step of the client; returns its output.
fn client(turn: &Turn<'_>, store: &str, step: &str, at: &str) -> Result<String> {
    let scale = turn.options.scale.to_string();
    let words = ["lineitem", store, step, "--at", at, "--scale", &scale];
    let said = CommandLine::new(turn.drive).args(words).output()?;
    ensure!(said.success, "{}: {}", words.join(" "), said.stderr);
    Ok(said.stdout)
}

/// Result of a step of the client.
#[derive(Debug, PartialEq, Deserialize)]
struct Did {
    rows: f64,
    seconds: f64,
    /// CPU seconds of the client.
    cpu: f64,
    p50_us: f64,
    p99_us: f64,
}

impl Did {
    fn read(said: &str) -> Result<Did> {
        serde_json::from_str(said.trim()).with_context(|| format!("the client said {said:?}"))
    }

    /// Returns times of lookups and rates of all other steps; `cpu` is in seconds.
    fn samples(&self, workload: &str, cpu: f64) -> impl Iterator<Item = (Metric, f64)> + use<> {
        let per_million = (CPU, cpu / self.rows * 1e6);
        let told = match workload {
            "lookup by key" => vec![(MEDIAN, self.p50_us), (P99, self.p99_us), per_million],
            _ => vec![(RATE, self.rows / self.seconds), per_million],
        };
        told.into_iter()
    }
}

/// Flushes everything and waits for it; returns the bytes of the data directory.
fn flushed(cluster: &mut Cluster, data: &Path) -> Result<u64> {
    cluster.set_flag(Role::TabletServer, 0, "flush_threshold_secs", "1")?;
    let began = Instant::now();
    let (mut bytes, mut since) = (0, Instant::now());
    loop {
        let now = measure::held_bytes(data)?;
        if now != bytes {
            (bytes, since) = (now, Instant::now());
        } else if since.elapsed() > STANDSTILL {
            ensure!(fs::read_dir(data)?.next().is_some(), "nothing was flushed to {}", data.display());
            return Ok(bytes);
        }
        ensure!(began.elapsed() < PATIENCE, "{} never stands still", data.display());
        thread::sleep(BETWEEN_LOOKS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clients_output_becomes_samples() {
        let said = "{\"rows\":500,\"seconds\":2.0,\"cpu\":0.5,\"p50_us\":30,\"p99_us\":90}\n";
        let did = Did::read(said).unwrap();
        let of =
            |workload: &str| -> Vec<f64> { did.samples(workload, 0.1).map(|(_, value)| value).collect() };
        assert_eq!(of("count"), [250.0, 200.0]);
        assert_eq!(of("lookup by key"), [30.0, 90.0, 200.0]);
        assert!(Did::read("no").is_err());
    }
}
