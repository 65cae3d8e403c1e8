//! Studies: the node's real code on modelled servers, with a cost model of CPU, link and disk.
//!
//! ```text
//! scale.rs       rows loaded by many sessions: rate by number of servers, and of tablets
//! devices.rs     insert, update and read by key: latency by disks and links
//! run_point.rs   one point of a study: boots the servers of a `StudySetup`, runs its clients, counts
//! ```
//!
//! A server's processors are a queue that every message passes ([`crate::net::capacity`]), with the service time of a
//! real server. Its link is another queue, its disks a third ([`engine::disk::mem::DiskCost`]). Clients are never the
//! bottleneck. Each point has its own process, as every run has.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

use crate::output::outln;

mod devices;
#[cfg(madsim)]
mod run_point;
mod scale;

#[derive(Args)]
pub struct StudyArgs {
    study: Study,
    /// CPU of a server for each received message, in ns
    #[arg(long, default_value_t = 16_700)]
    message_ns: u64,
    /// CPU of a server for each KiB of messages, in ns
    #[arg(long, default_value_t = 4_850)]
    kib_ns: u64,
    /// Cores of a server
    #[arg(long, default_value_t = 2)]
    cores: usize,
    /// CPU of a real server for a row of 1 KB loaded in batches, in us, as `cargo ci versus ycsb` measured it
    #[arg(long, default_value_t = 6.0)]
    measured_us: f64,
    /// Number of points to run, the smallest first: checks that the study runs and that the model agrees with its input
    #[arg(long, conflicts_with = "out", value_parser = crate::cli::arguments::count)]
    points: Option<usize>,
    /// File of the page; its charts go to a folder of that name
    #[arg(long)]
    out: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Study {
    /// Rows loaded per second by servers and tablets
    Scale,
    /// Operations by key on disks and links of several kinds
    Devices,
}

/// A modelled server.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct MachineModel {
    pub cores: usize,
    pub message_ns: u64,
    pub kib_ns: u64,
    pub wal: DiskModel,
    pub data: DiskModel,
}

/// Returns the page's description of the servers.
fn machines(args: &StudyArgs) -> String {
    format!(
        "Modelled servers: {} cores, {:.1} us per message and {:.2} us per KiB, as measured on real servers for \
         operations by key and for batches (VERSUS-LATENCY.md, VERSUS-YCSB.md). Clients are never the bottleneck. \
         Node and engine are the real code; time, disks and links are simulated.",
        args.cores,
        args.message_ns as f64 / 1e3,
        args.kib_ns as f64 / 1e3
    )
}

/// A disk: nanoseconds for each KiB that is written, and for a sync.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskModel {
    pub kib_ns: u64,
    pub sync_ns: u64,
}

/// A link between machines: latency in nanoseconds, and bytes in a millisecond.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkModel {
    pub latency_ns: u64,
    pub bytes_per_ms: u32,
}

/// A cluster of one master and some tablet servers, and a table on it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct StudySetup {
    pub servers: u8,
    pub replicas: u8,
    pub tablets: u32,
    pub log_sync: bool,
    pub machine: MachineModel,
    pub link: LinkModel,
    pub work: StudyWorkload,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum StudyOp {
    Insert,
    Update,
    Read,
}

/// The clients' operations, one after the other, each for `ms` milliseconds.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct StudyWorkload {
    pub operations: Vec<StudyOp>,
    pub clients: usize,
    /// Rows that a client writes before it waits for them.
    pub batch: u64,
    pub warm_ms: u64,
    pub ms: u64,
}

/// A setup and its results.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct StudyPoint {
    pub setup: StudySetup,
    /// In the order of [`StudyWorkload::operations`].
    pub measured: Vec<StudyResult>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct StudyResult {
    pub operation: StudyOp,
    pub rows: u64,
    pub rows_per_second: f64,
    /// Latency of a batch.
    pub p50_us: f64,
    pub p99_us: f64,
    /// Busy share of all servers' cores and links.
    pub cores_busy: f64,
    pub link_busy: f64,
}

/// Runs the whole study: prints its page and writes it on request.
pub fn study(args: &StudyArgs) -> Result<bool> {
    let mut setups = match args.study {
        Study::Scale => scale::setups(args),
        Study::Devices => devices::setups(args),
    };
    setups.truncate(args.points.unwrap_or(usize::MAX));
    let bar = indicatif::ProgressBar::new(setups.len() as u64);
    let points: Vec<StudyPoint> = bar.wrap_iter(setups.iter()).map(point).collect::<Result<_>>()?;
    let page = match args.study {
        Study::Scale => scale::page(args, &points),
        Study::Devices => devices::page(args, &points),
    };
    outln!("{page}");
    if let Some(path) = &args.out {
        std::fs::write(path, page).with_context(|| format!("writing {}", path.display()))?;
    }
    match (args.study, &args.out) {
        (Study::Scale, Some(path)) => scale::draw(&path.with_extension(""), &points)?,
        (Study::Scale, None) if args.points.is_some() => scale::check(args, &points)?,
        _ => {}
    }
    Ok(true)
}

/// Runs one point in its own process.
fn point(setup: &StudySetup) -> Result<StudyPoint> {
    let words = ["study-point".to_string(), serde_json::to_string(setup)?];
    let program = std::env::current_exe().context("finding this program")?;
    let output = Command::new(program).args(words).stderr(Stdio::inherit()).output()?;
    ensure!(output.status.success(), "a point of the study failed: {setup:?}");
    Ok(serde_json::from_slice(&output.stdout)?)
}

#[derive(Args)]
pub struct PointArgs {
    /// The setup as JSON
    setup: String,
}

/// Runs one point in this process and prints its result as JSON.
pub fn one_point(args: &PointArgs) -> Result<bool> {
    let setup: StudySetup = serde_json::from_str(&args.setup).context("the point's setup")?;
    let point = run_point(&setup)?;
    outln!("{}", serde_json::to_string(&point)?);
    // Dropping the world's tasks one by one would take long.
    std::process::exit(0);
}

#[cfg(madsim)]
fn run_point(setup: &StudySetup) -> Result<StudyPoint> {
    run_point::run_point(setup)
}

#[cfg(not(madsim))]
fn run_point(_: &StudySetup) -> Result<StudyPoint> {
    anyhow::bail!("this build has no madsim world: run it as `cargo sim`")
}
