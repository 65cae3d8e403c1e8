//! Studies: the node's real code on machines of paper, as fast as figures say that machines are.
//!
//! ```text
//! scale.rs     rows loaded by many sessions: how the rate grows with servers, and with tablets
//! devices.rs   insert, update and read by key: what disks and links make of their latency
//! play.rs      one point of a study: boots the servers of a `Setup`, lets its clients work, counts
//! ```
//!
//! A server's processors are a queue that every message passes ([`crate::net::capacity`]), for as long as a real one
//! takes for it; its link is another, its disks a third ([`engine::disk::mem::DiskCost`]). Clients are never what is
//! slow. Each point is a process of its own, as every run is.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

#[path = "../../../benches/src/chart.rs"]
#[allow(dead_code, unused_imports, reason = "it draws other figures, too")]
mod chart;
mod devices;
#[cfg(madsim)]
mod play;
mod scale;

#[derive(Args)]
pub struct StudyArgs {
    study: Study,
    /// CPU of a server for each message that it gets, in ns
    #[arg(long, default_value_t = 16_700)]
    message_ns: u64,
    /// CPU of a server for each KiB of them, in ns
    #[arg(long, default_value_t = 4_850)]
    kib_ns: u64,
    /// Cores of a server
    #[arg(long, default_value_t = 2)]
    cores: usize,
    /// CPU of a real server for a row of 1 KB loaded in batches, in us, as `cargo ci versus ycsb` measured it
    #[arg(long, default_value_t = 6.0)]
    measured_us: f64,
    /// Only so many points, the smallest: whether the study still runs, and the model still agrees with its figures
    #[arg(long, conflicts_with = "out")]
    points: Option<usize>,
    /// Where the page goes, and its figures in a folder of that name
    #[arg(long)]
    out: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Study {
    /// Rows loaded per second against servers and tablets
    Scale,
    /// Operations by key on disks and links of several kinds
    Devices,
}

/// A machine of paper.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Machine {
    pub cores: usize,
    pub message_ns: u64,
    pub kib_ns: u64,
    pub wal: Device,
    pub data: Device,
}

/// What a page says of the machines.
fn machines(args: &StudyArgs) -> String {
    format!(
        "Servers of paper with {} cores, which take {:.1} us for a message and {:.2} us for each KiB of it, as real \
         ones take for operations by key and for batches (VERSUS-LATENCY.md, VERSUS-YCSB.md); clients are never \
         what is slow. The code is the real one, node and engine; time, disks and links are simulated.",
        args.cores,
        args.message_ns as f64 / 1e3,
        args.kib_ns as f64 / 1e3
    )
}

/// A disk: nanoseconds for each KiB that is written, and for a sync.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    pub kib_ns: u64,
    pub sync_ns: u64,
}

/// What is between machines: nanoseconds to get there, and bytes in a millisecond.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    pub latency_ns: u64,
    pub bytes_per_ms: u32,
}

/// A cluster of one master and some tablet servers, and a table on it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Setup {
    pub servers: u8,
    pub replicas: u8,
    pub tablets: u32,
    pub log_sync: bool,
    pub machine: Machine,
    pub link: Link,
    pub work: Work,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Operation {
    Insert,
    Update,
    Read,
}

/// What clients do, one operation after the other, each for so many milliseconds.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Work {
    pub operations: Vec<Operation>,
    pub clients: usize,
    /// Rows that a client writes before it waits for them.
    pub batch: u64,
    pub warm_ms: u64,
    pub ms: u64,
}

/// What came of it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Point {
    pub setup: Setup,
    /// In the order of [`Work::operations`].
    pub measured: Vec<Measured>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Measured {
    pub operation: Operation,
    pub rows: u64,
    pub rows_per_second: f64,
    /// Of a batch.
    pub p50_us: f64,
    pub p99_us: f64,
    /// Of all servers' cores and links, the share that was at work.
    pub cores_busy: f64,
    pub link_busy: f64,
}

/// The whole study: its page, printed, and written if asked for.
pub fn study(args: &StudyArgs) -> Result<bool> {
    let mut setups = match args.study {
        Study::Scale => scale::setups(args),
        Study::Devices => devices::setups(args),
    };
    setups.truncate(args.points.unwrap_or(usize::MAX));
    let bar = indicatif::ProgressBar::new(setups.len() as u64);
    let points: Vec<Point> = bar.wrap_iter(setups.iter()).map(point).collect::<Result<_>>()?;
    let page = match args.study {
        Study::Scale => scale::page(args, &points),
        Study::Devices => devices::page(args, &points),
    };
    println!("{page}");
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

/// Runs one point in a process of its own.
fn point(setup: &Setup) -> Result<Point> {
    let words = ["study-point".to_string(), serde_json::to_string(setup)?];
    let program = std::env::current_exe().context("finding this program")?;
    let said = Command::new(program).args(words).stderr(Stdio::inherit()).output()?;
    ensure!(said.status.success(), "a point of the study failed: {setup:?}");
    Ok(serde_json::from_slice(&said.stdout)?)
}

#[derive(Args)]
pub struct PointArgs {
    /// As JSON
    setup: String,
}

/// One point, in this very process; its result as JSON.
pub fn one_point(args: &PointArgs) -> Result<bool> {
    let setup: Setup = serde_json::from_str(&args.setup).context("the point's setup")?;
    let point = play(&setup)?;
    println!("{}", serde_json::to_string(&point)?);
    // The tasks of the world are not worth their dropping.
    std::process::exit(0);
}

#[cfg(madsim)]
fn play(setup: &Setup) -> Result<Point> {
    play::play(setup)
}

#[cfg(not(madsim))]
fn play(_: &Setup) -> Result<Point> {
    anyhow::bail!("this build has no madsim world: run it as `cargo sim`")
}
