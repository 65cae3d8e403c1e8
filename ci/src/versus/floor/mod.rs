//! The floor: nyala beside Redis, bare servers and a file, in one run.
//!
//! ```text
//!   log sync off   nyala │ redis │ echo on epoll │ echo on tokio
//!   log sync on    nyala │ redis, appendfsync always │ echo on epoll with a log │ file: append + fdatasync
//!   on each        insert (SET, a round trip), update, read (GET) · 1 and 16 clients
//!   drive_report.rs  the report of `drive floor` → samples
//!   servers.rs       the processes of each system
//! ```

mod drive_report;
mod servers;

use std::path::Path;

use anyhow::{Context, Result, anyhow, ensure};
use chart::{Better, Ratio};

use super::measure;
use super::report::{self, Cell, ReportSpec, Sample};
use super::round::{Turn, VersusOptions};
use crate::command::{CommandLine, Output};
use crate::tools;
use drive_report::DriveReport;
use servers::{BareServerKind, Process};

pub(super) const PAGE: ReportSpec = ReportSpec {
    path: "benches/VERSUS-FLOOR.md",
    title: "Operations by key: nyala, Redis and the floor side by side",
    turn: "A turn is a fresh server of each system on loopback: nyala's master and tablet server (replication 1, \
           four tablets), `redis-server` (`save \"\"`; with log sync `appendonly yes`, `appendfsync always`), a bare \
           server on epoll and one on tokio that take and send as many bytes as the operation does, and a file. \
           With log sync the bare server on epoll appends the requests of a wake-up to a preallocated file and calls \
           `fdatasync` before it replies; the file alone is 4 KiB appended to such a file and `fdatasync`, without a \
           server. A row is a key of 24 bytes and 1,000 bytes of values (ten strings for nyala). Insert and update \
           are SET for Redis, of new and of existing keys; read is GET, and a read by key of nyala. One client and \
           then 16, each with a connection, one operation at a time; the client of all is `benches/drive` on tokio, \
           with nyala's Rust client and the crate `redis`. CPU is that of all processes of a system, and of the \
           client. A smaller figure is better but for operations/s.",
    figures: &["versus-floor/p50.svg", "versus-floor/server-cpu.svg"],
};

const CLIENTS: [u64; 2] = [1, 16];
const OPERATIONS: [&str; 3] = ["insert", "update", "read"];

/// Fails if Redis is not installed.
pub(super) fn require() -> Result<()> {
    tools::require(&["redis-server"], &["redis-server"])
}

pub(super) fn settings(options: &VersusOptions) -> String {
    let version = CommandLine::new("redis-server").args(["--version"]).output();
    let version = version.map_or_else(|error| error.to_string(), |output| output.stdout);
    let version = version.split_whitespace().find_map(|word| word.strip_prefix("v=")).unwrap_or("unknown");
    format!(" {} s each line; Redis {version}.", options.seconds)
}

/// A system with servers that run.
struct System<'a> {
    turn: &'a Turn<'a>,
    /// Name in the report.
    name: &'static str,
    /// Word of `drive floor --system`.
    kind: &'static str,
    address: String,
    pids: Vec<u32>,
}

/// Runs every system once.
pub(super) fn turn(turn: &Turn<'_>) -> Result<Vec<Sample>> {
    let mut samples = nyala(turn)?;
    samples.extend(redis(turn)?);
    samples.extend(bare(turn, BareServerKind::Epoll)?);
    samples.extend(if turn.log_sync { file(turn)? } else { bare(turn, BareServerKind::Tokio)? });
    Ok(samples)
}

fn nyala(turn: &Turn<'_>) -> Result<Vec<Sample>> {
    let (cluster, _dir) = turn.cluster(1, 1, &[])?;
    let (address, pids) = (cluster.master_addresses(), measure::pids(&cluster).collect());
    System { turn, name: "nyala", kind: "nyala", address, pids }.all_operations()
}

fn redis(turn: &Turn<'_>) -> Result<Vec<Sample>> {
    let dir = tempfile::tempdir_in(turn.target)?;
    let server = Process::redis(dir.path(), turn.log_sync)?;
    let (address, pids) = (server.address.to_string(), vec![server.pid()]);
    System { turn, name: "redis", kind: "redis", address, pids }.all_operations()
}

fn bare(turn: &Turn<'_>, kind: BareServerKind) -> Result<Vec<Sample>> {
    let dir = tempfile::tempdir_in(turn.target)?;
    let log = turn.log_sync.then(|| dir.path().join("log"));
    let server = Process::bare(turn.drive, kind, log.as_deref())?;
    let (address, pids) = (server.address.to_string(), vec![server.pid()]);
    System { turn, name: kind.name(), kind: "echo", address, pids }.all_operations()
}

/// Appends to a file; an update would be the same.
fn file(turn: &Turn<'_>) -> Result<Vec<Sample>> {
    let dir = tempfile::tempdir_in(turn.target)?;
    let address = dir.path().join("file").display().to_string();
    let system = System { turn, name: "file", kind: "file", address, pids: Vec::new() };
    Ok(system.operate("insert", 1, 0)?.1)
}

impl System<'_> {
    fn all_operations(&self) -> Result<Vec<Sample>> {
        let (mut samples, mut rows) = (Vec::new(), 0);
        for operation in OPERATIONS {
            for clients in CLIENTS {
                let (now, measured) = self.operate(operation, clients, rows)?;
                rows = now;
                samples.extend(measured);
            }
        }
        Ok(samples)
    }

    /// Runs one operation; returns the rows that exist after it, and its samples.
    fn operate(&self, operation: &str, clients: u64, rows: u64) -> Result<(u64, Vec<Sample>)> {
        let seconds = self.turn.options.seconds;
        let words = [
            ("--system", self.kind.to_string()),
            ("--address", self.address.clone()),
            ("--operation", operation.to_string()),
            ("--clients", clients.to_string()),
            ("--rows", rows.to_string()),
            ("--seconds", seconds.to_string()),
            ("--warm-up", (seconds / 8.0).to_string()),
        ];
        let pids = self.pids.iter().map(|pid| ("--server-pid", pid.to_string()));
        let words = words.into_iter().chain(pids).flat_map(|(name, value)| [name.to_string(), value]);
        let Output { success, stdout, stderr } =
            CommandLine::new(self.turn.drive).args(["floor"]).args(words).output()?;
        ensure!(success, "drive floor, {}, {operation}: {stderr}", self.name);
        let report = DriveReport::parse(&stdout).with_context(|| format!("{}, {operation}", self.name))?;
        let plural = if clients == 1 { "" } else { "s" };
        let workload = format!("{operation}, {clients} client{plural}");
        let has_server = !self.pids.is_empty();
        let samples = report.figures(has_server).into_iter().map(|(measure, value)| {
            let cell =
                Cell { workload: workload.clone(), log_sync: self.turn.log_sync, measure, server: self.name };
            Sample { cell, value }
        });
        Ok((report.rows, samples.collect()))
    }
}

/// Draws nyala's ratios to Redis.
pub(super) fn draw(root: &Path, samples: &[Sample]) -> Result<()> {
    std::fs::create_dir_all(root.join("benches/versus-floor"))?;
    for (file, measure, title) in [
        ("p50.svg", drive_report::P50, "Median latency, nyala / Redis (shorter is better)"),
        (
            "server-cpu.svg",
            drive_report::SERVER_CPU,
            "Server CPU of an operation, nyala / Redis (shorter is better)",
        ),
    ] {
        let path = root.join("benches/versus-floor").join(file);
        chart::draw_ratios(&path, title, Better::Below1, &ratios(samples, measure))
            .map_err(|error| anyhow!("{}: {error}", path.display()))?;
    }
    Ok(())
}

/// Returns the ratio of the medians of nyala and Redis for each workload that both ran.
fn ratios(samples: &[Sample], measure: report::Metric) -> Vec<Ratio> {
    let rows = report::rows(samples).into_iter().filter(|row| row.measure == measure);
    let ratio = |row: Cell| {
        let median = |server| Some(report::spread(samples, &Cell { server, ..row.clone() })?.median);
        let (nyala, redis) = (median("nyala")?, median("redis")?);
        let sync = if row.log_sync { ", log sync" } else { "" };
        (redis > 0.0).then(|| Ratio { label: format!("{}{sync}", row.workload), value: nyala / redis })
    };
    rows.filter_map(ratio).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(server: &'static str, log_sync: bool, measure: report::Metric, value: f64) -> Sample {
        Sample { cell: Cell { workload: "read, 1 client".to_string(), log_sync, measure, server }, value }
    }

    #[test]
    fn ratios_are_of_medians_and_leave_out_rows_of_one_system() {
        let samples = [
            sample("nyala", false, drive_report::P50, 60.0),
            sample("nyala", false, drive_report::P50, 30.0),
            sample("redis", false, drive_report::P50, 30.0),
            sample("nyala", true, drive_report::P50, 10.0),
            sample("nyala", true, drive_report::SERVER_CPU, 10.0),
            sample("redis", true, drive_report::SERVER_CPU, 4.0),
        ];
        let found = |measure| {
            let ratios = ratios(&samples, measure);
            ratios.into_iter().map(|ratio| (ratio.label, ratio.value)).collect::<Vec<_>>()
        };
        assert_eq!(found(drive_report::P50), [("read, 1 client".to_string(), 1.5)]);
        assert_eq!(found(drive_report::SERVER_CPU), [("read, 1 client, log sync".to_string(), 2.5)]);
    }
}
