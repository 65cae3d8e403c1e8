//! `cargo ci versus`: nyala and real Kudu under the same load, in the same run, round by round.
//!
//! Each round starts on fresh directories, with one client for both: the real `kudu` tool, or `benches/drive`. Log
//! sync is off for both, then on for both. A B A B …: other load on the machine affects both alike.
//!
//! ```text
//!   single.rs      one replica: the default load, two million rows with their scan, a table scan
//!   replicated.rs  three replicas: a load, a master's failover, a tablet copy
//!   idle.rs        and the cost of idle tablets
//!   loadgen.rs     more loads with one replica and three: random keys, batches, a hundred columns
//!   ycsb.rs        YCSB's loads, and its workloads on loaded rows
//!   flush.rs       rows flushed in the background, by number of clients and buffer watermark
//!   latency.rs     insert, update and read by key: one client and 16, the WAL beside the data and elsewhere
//!   lineitem.rs    TPC-H's lineitem, beside Parquet files too
//!   load_driver.rs runs `benches/drive` against a round's cluster: results and costs
//!   measure.rs     processes and folders → CPU, memory, bytes; the tool's output → rows and seconds
//!   report.rs      samples → medians, spreads, a report under benches/
//!   charts.rs      reports → charts of throughput, latency and memory beside Kudu
//! ```

mod charts;
mod flush;
mod idle;
mod latency;
mod lineitem;
mod load_driver;
mod loadgen;
mod measure;
mod replicated;
mod report;
mod single;
mod ycsb;

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use clap::{Parser, ValueEnum};

use crate::command::{Output, cargo};
use crate::interop::cluster::{Cluster, ClusterPlan};
use crate::interop::daemon::ServerKind;
use crate::interop::packages::Packages;
use crate::interop::{ServerChoice, server, target_dir};
use crate::steps::Steps;
use report::{Cell, Metric, ReportInput, ReportSpec, Sample};

#[derive(Parser)]
pub struct VersusOptions {
    /// The parts to measure, each with a separate report; all of them if none is named
    parts: Vec<Part>,
    /// Rounds of each server per setting
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Path of a built nyala program
    #[arg(long, value_name = "PROGRAM")]
    nyala: Option<PathBuf>,
    /// Path of a built program of benches/drive
    #[arg(long, value_name = "PROGRAM")]
    drive: Option<PathBuf>,
    /// With loadgen, ycsb and flush: rows to load
    #[arg(long)]
    rows: Option<u64>,
    /// With ycsb and latency: duration of each workload, in seconds
    #[arg(long, default_value_t = 4.0)]
    seconds: f64,
    /// With ycsb: memory budget of the tablet server, in MiB
    #[arg(long, default_value_t = 1024)]
    memory_mib: u64,
    /// With latency: a folder for the WAL, on another device than the target folder
    #[arg(long, default_value = "/dev/shm")]
    wal_dir: PathBuf,
    /// With lineitem: TPC-H's scale factor; 1 is 6 million rows
    #[arg(long, default_value_t = 0.1)]
    scale: f64,
    /// A note for the reports
    #[arg(long, default_value = "")]
    note: String,
    /// Print the tables only, leave the reports alone
    #[arg(long)]
    dry: bool,
    /// Draw the charts from the reports that are there, without measuring
    #[arg(long, conflicts_with_all = ["parts", "dry"])]
    charts: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// One replica
    Single,
    /// Three replicas
    Replicated,
    /// More loads with one replica and three
    Loadgen,
    /// YCSB
    Ycsb,
    /// Flushes in the background
    Flush,
    /// Latency of operations by key
    Latency,
    /// TPC-H's lineitem
    Lineitem,
}

impl Part {
    fn page(self) -> ReportSpec {
        match self {
            Part::Single => single::PAGE,
            Part::Replicated => replicated::PAGE,
            Part::Loadgen => loadgen::PAGE,
            Part::Ycsb => ycsb::PAGE,
            Part::Flush => flush::PAGE,
            Part::Latency => latency::PAGE,
            Part::Lineitem => lineitem::PAGE,
        }
    }

    /// Returns the settings of its rounds.
    fn settings(self, options: &VersusOptions) -> String {
        match self {
            Part::Single | Part::Replicated => String::new(),
            Part::Loadgen => loadgen::settings(options),
            Part::Ycsb => ycsb::settings(options),
            Part::Flush => flush::settings(options),
            Part::Latency => latency::settings(options),
            Part::Lineitem => lineitem::settings(options),
        }
    }

    /// Returns true if `benches/drive` is its client.
    fn is_driven(self) -> bool {
        !matches!(self, Part::Single | Part::Replicated | Part::Loadgen)
    }

    fn turn(self, turn: &Turn<'_>) -> Result<Vec<Sample>> {
        match self {
            Part::Single => single::turn(turn),
            Part::Replicated => replicated::turn(turn),
            Part::Loadgen => loadgen::turn(turn),
            Part::Ycsb => ycsb::turn(turn),
            Part::Flush => flush::turn(turn),
            Part::Latency => latency::turn(turn),
            Part::Lineitem => lineitem::turn(turn),
        }
    }
}

impl VersusOptions {
    fn wants(&self, part: Part) -> bool {
        self.parts.is_empty() || self.parts.contains(&part)
    }
}

/// Measures and writes the reports.
pub fn run(root: &Path, options: &VersusOptions, steps: &mut Steps) {
    if !options.charts {
        measure_parts(root, options, steps);
    }
    if !options.dry {
        steps.run("versus: charts", || charts::draw(root, &CHARTED.map(|part| part.page().path)));
    }
}

/// Parts whose reports are charted together.
const CHARTED: [Part; 5] = [Part::Single, Part::Replicated, Part::Ycsb, Part::Latency, Part::Lineitem];

fn measure_parts(root: &Path, options: &VersusOptions, steps: &mut Steps) {
    let mut prepared = None;
    steps.run("versus: packages and programs", || {
        prepared = Some(prepare(root, options)?);
        Ok(())
    });
    let Some(prepared) = prepared else { return };
    for part in Part::value_variants().iter().copied().filter(|part| options.wants(*part)) {
        measure(root, options, part, &prepared, steps);
    }
}

fn measure(root: &Path, options: &VersusOptions, part: Part, prepared: &Prepared, steps: &mut Steps) {
    let mut samples = Vec::new();
    for round in 0..options.rounds {
        for log_sync in [false, true] {
            for server in [&prepared.nyala, &prepared.kudu] {
                let name = server.name();
                let sync = if log_sync { "on" } else { "off" };
                steps.run(&format!("versus: round {}, {name}, log sync {sync}", round + 1), || {
                    let Prepared { packages, drive, target, .. } = prepared;
                    let turn = Turn { packages, drive, options, server, log_sync, target };
                    samples.extend(part.turn(&turn)?);
                    Ok(())
                });
            }
        }
    }
    let page = part.page();
    steps.run(&format!("versus: {}", page.path), || {
        ensure!(!samples.is_empty(), "nothing was measured");
        let note = if options.note.is_empty() { String::new() } else { format!(" {}", options.note) };
        let settings = part.settings(options) + &note;
        page.write(root, &ReportInput { samples: &samples, rounds: options.rounds, settings }, options.dry)?;
        if part == Part::Ycsb && !options.dry { ycsb::draw(root, prepared) } else { Ok(()) }
    });
}

struct Prepared {
    packages: Packages,
    nyala: ServerKind,
    kudu: ServerKind,
    /// The program of `benches/drive`; absent if no part needs it.
    drive: PathBuf,
    target: PathBuf,
}

fn prepare(root: &Path, options: &VersusOptions) -> Result<Prepared> {
    let target = target_dir()?;
    let packages = Packages::fetch(root, &target.join("interop"))?;
    let nyala = server(root, ServerChoice::Nyala, options.nyala.as_deref(), &packages)?;
    let kudu = server(root, ServerChoice::Kudu, None, &packages)?;
    let drive = match &options.drive {
        Some(program) => program.clone(),
        None => target.join("release/drive"),
    };
    if options.drive.is_none()
        && Part::value_variants().iter().any(|part| part.is_driven() && options.wants(*part))
    {
        cargo(root, &["build", "--quiet", "--release", "--package", "benches", "--bin", "drive"])?;
    }
    Ok(Prepared { packages, nyala, kudu, drive, target })
}

/// One server's round.
struct Turn<'a> {
    packages: &'a Packages,
    drive: &'a Path,
    options: &'a VersusOptions,
    server: &'a ServerKind,
    log_sync: bool,
    target: &'a Path,
}

impl Turn<'_> {
    /// Starts a fresh cluster; returns it with its folder. The tablet servers get these flags too.
    fn cluster(
        &self,
        masters: usize,
        tablet_servers: usize,
        flags: &[String],
    ) -> Result<(Cluster, tempfile::TempDir)> {
        let dir = tempfile::tempdir_in(self.target)?;
        let sync = match self.server {
            ServerKind::Nyala(_) => format!("--log_sync={}", self.log_sync),
            ServerKind::Kudu(..) => format!("--log_force_fsync_all={}", self.log_sync),
        };
        let tserver_gflags = [&[sync], flags].concat();
        let plan = ClusterPlan { masters, tablet_servers, tserver_gflags, ..ClusterPlan::default() };
        Ok((Cluster::started(self.server.clone(), dir.path(), &plan)?, dir))
    }

    /// Runs a command of the tool, which must succeed.
    fn kudu(&self, words: &[&str]) -> Result<String> {
        let Output { success, stdout, stderr } = self.packages.kudu_tool().args(words).output()?;
        ensure!(success, "kudu {}: {stderr}", words.join(" "));
        Ok(stdout)
    }

    fn sample(&self, workload: &str, measure: Metric, value: f64) -> Sample {
        let (log_sync, server) = (self.log_sync, self.server.name());
        let cell = Cell { workload: workload.to_string(), log_sync, measure, server };
        Sample { cell, value }
    }
}
