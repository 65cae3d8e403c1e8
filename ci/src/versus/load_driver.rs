//! `benches/drive` against a fresh cluster of one master and one tablet server, with results and costs.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use tempfile::TempDir;

use super::measure::{self, Cpu};
use super::report::{Metric, Sample};
use super::round::Turn;
use crate::command::{CommandLine, Output};
use crate::interop::cluster::Cluster;
use crate::interop::daemon::ServerKind;

/// Cluster of a round, for the load driver.
pub(super) struct DrivenCluster<'a> {
    turn: &'a Turn<'a>,
    cluster: Cluster,
    dir: TempDir,
    /// Folder of the WAL, if it is separate.
    wal: Option<TempDir>,
}

/// Report of the program.
#[derive(Debug, Deserialize)]
struct Report {
    operations: u64,
    failed: u64,
    seconds: f64,
    p50_ms: f64,
    p99_ms: f64,
    p999_ms: f64,
}

/// Result and cost of a run.
pub(super) struct DriverResult {
    report: Report,
    /// The report as printed, with its samples over time.
    pub json: String,
    server_cpu: f64,
    client_cpu: f64,
    written: u64,
    peak_rss: u64,
    on_disk: u64,
}

/// Latencies of a run that are reported.
#[derive(Clone, Copy)]
pub(super) enum Latency {
    OfOperations,
    OfBatches,
    None,
}

impl<'a> DrivenCluster<'a> {
    /// Starts the cluster; the tablet server gets these flags, and a WAL in `wal` if given.
    pub(super) fn start(
        turn: &'a Turn<'a>,
        flags: &[String],
        wal: Option<&Path>,
    ) -> Result<DrivenCluster<'a>> {
        let wal = wal.map(tempfile::tempdir_in).transpose()?;
        let wal_flag = wal.iter().map(|wal| format!("--fs_wal_dir={}", wal.path().join("wal").display()));
        let flags: Vec<String> = flags.iter().cloned().chain(wal_flag).collect();
        let (cluster, dir) = turn.cluster(1, 1, &flags)?;
        Ok(DrivenCluster { turn, cluster, dir, wal })
    }

    /// Runs the program; every operation must succeed.
    pub(super) fn run(
        &self,
        word: &str,
        table: &str,
        clients: u64,
        words: &[String],
    ) -> Result<DriverResult> {
        let cluster = &self.cluster;
        let (server, client) = (Cpu::of(cluster)?, Cpu::of_ended()?);
        let written = measure::written_bytes(cluster)?;
        let Output { success, stdout: json, stderr } =
            self.command(word, table, clients)?.args(words).output()?;
        ensure!(success, "drive {word} {}: {stderr}", words.join(" "));
        let (server_cpu, client_cpu) = (Cpu::of(cluster)?.since(server), Cpu::of_ended()?.since(client));
        let report: Report = serde_json::from_str(&json).with_context(|| format!("{word} said {json}"))?;
        ensure!(report.failed == 0, "{} of {} failed: {stderr}", report.failed, report.operations);
        ensure!(report.operations > 0, "nothing was done");
        let wal = self.wal.as_ref().map_or(Ok(0), |wal| measure::disk_bytes(wal.path()))?;
        Ok(DriverResult {
            report,
            json,
            server_cpu,
            client_cpu,
            written: measure::written_bytes(cluster)? - written,
            peak_rss: measure::peak_rss_bytes(cluster)?,
            on_disk: measure::disk_bytes(self.dir.path())? + wal,
        })
    }

    /// Returns the address of the tablet server.
    pub(super) fn tserver_address(&self) -> Result<SocketAddr> {
        Ok(self.cluster.tservers.first().context("there is a tablet server")?.spec.address())
    }

    fn command(&self, word: &str, table: &str, clients: u64) -> Result<CommandLine> {
        let tserver = self.cluster.tservers.first().context("there is a tablet server")?;
        let server = match self.turn.server {
            ServerKind::Nyala(_) => "nyala",
            ServerKind::Kudu(..) => "kudu",
        };
        let words = [
            ("--masters", self.cluster.master_addresses()),
            ("--table", table.to_string()),
            ("--clients", clients.to_string()),
            ("--server-pid", measure::tserver_pid(&self.cluster)?.to_string()),
            ("--server-web", tserver.spec.web.to_string()),
            ("--server", server.to_string()),
        ];
        let words = words.into_iter().flat_map(|(name, value)| [name.to_string(), value]);
        let tickets = self.turn.packages.map(|packages| packages.tickets()).unwrap_or_default();
        let drive = CommandLine::new(self.turn.drive).args([word]).args(words);
        Ok(tickets.iter().fold(drive, |drive, (name, value)| drive.env(name, value)))
    }
}

impl DriverResult {
    pub(super) fn operations(&self) -> u64 {
        self.report.operations
    }

    /// Returns a sample for each metric. Memory and disk are those of the round up to now.
    pub(super) fn samples(&self, turn: &Turn<'_>, workload: &str, latency: Latency) -> Vec<Sample> {
        let Report { seconds, p50_ms, p99_ms, p999_ms, .. } = self.report;
        let operations = self.report.operations as f64;
        let latencies = match latency {
            Latency::OfOperations => vec![
                (Metric("p50, ms", 2), p50_ms),
                (Metric("p99, ms", 2), p99_ms),
                (Metric("p99.9, ms", 2), p999_ms),
            ],
            Latency::OfBatches => vec![
                (Metric("p50 of a batch, ms", 1), p50_ms),
                (Metric("p99 of a batch, ms", 1), p99_ms),
                (Metric("p99.9 of a batch, ms", 1), p999_ms),
            ],
            Latency::None => Vec::new(),
        };
        let mut figures = vec![(Metric("operations/s", 0), operations / seconds)];
        figures.extend(latencies);
        figures.extend([
            (Metric("server CPU s per million operations", 2), self.server_cpu / operations * 1e6),
            (Metric("client CPU s per million operations", 2), self.client_cpu / operations * 1e6),
            (Metric("written, bytes per operation", 0), self.written as f64 / operations),
            (Metric("peak RSS, MB", 0), self.peak_rss as f64 / 1e6),
            (Metric("on disk, MB", 0), self.on_disk as f64 / 1e6),
        ]);
        figures.into_iter().map(|(measure, value)| turn.sample(workload, measure, value)).collect()
    }
}

/// Splits text into arguments of the program.
pub(super) fn split_args(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_string).collect()
}
