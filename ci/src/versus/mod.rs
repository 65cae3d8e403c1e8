//! `cargo ci versus`: nyala and real Kudu under the same load, in the same run, turn by turn.
//!
//! Each turn is a fresh master and tablet server with replication 1, the real `kudu` tool as the client, and three
//! measurements: the default load, two million rows with their scan, and a table scan of what was loaded. The log's
//! sync is off for both, then on for both. A B A B …: whatever else the machine does falls on both alike.
//!
//! ```text
//!   measure.rs   processes and folders → CPU, memory, bytes; the tool's output → rows and seconds
//!   page.rs      samples → medians, spreads, benches/VERSUS.md
//! ```

mod measure;
mod page;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::Parser;

use crate::interop::cluster::{Cluster, Plan};
use crate::interop::daemon::Server;
use crate::interop::packages::Packages;
use crate::interop::{Which, server, target_dir};
use crate::steps::Steps;
use measure::{Cpu, Timed};
use page::{Cell, Sample};

#[derive(Parser)]
pub struct Options {
    /// Turns of each server per setting
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// A nyala program that is already built
    #[arg(long, value_name = "PROGRAM")]
    nyala: Option<PathBuf>,
    /// Print the table only, leave benches/VERSUS.md alone
    #[arg(long)]
    dry: bool,
}

/// The loads, and the table scan that follows them.
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

/// Measures and writes the page.
pub fn run(root: &Path, options: &Options, steps: &mut Steps) {
    let mut prepared = None;
    steps.run("versus: packages and programs", || {
        prepared = Some(prepare(root, options)?);
        Ok(())
    });
    let Some((packages, nyala, kudu, target)) = prepared else { return };
    let mut samples = Vec::new();
    for round in 0..options.rounds {
        for log_sync in [false, true] {
            for server in [&nyala, &kudu] {
                let name = server.name();
                let sync = if log_sync { "on" } else { "off" };
                steps.run(&format!("versus: round {}, {name}, log sync {sync}", round + 1), || {
                    samples.extend(turn(&packages, server, log_sync, &target)?);
                    Ok(())
                });
            }
        }
    }
    steps.run("versus: the table", || {
        ensure!(!samples.is_empty(), "nothing was measured");
        page::write(root, &samples, options.rounds, options.dry)
    });
}

fn prepare(root: &Path, options: &Options) -> Result<(Packages, Server, Server, PathBuf)> {
    let target = target_dir()?;
    let packages = Packages::fetch(root, &target.join("interop"))?;
    let nyala = server(root, Which::Nyala, options.nyala.as_deref(), &packages)?;
    let kudu = server(root, Which::Kudu, None, &packages)?;
    Ok((packages, nyala, kudu, target))
}

/// One server's turn, on fresh directories.
fn turn(packages: &Packages, server: &Server, log_sync: bool, target: &Path) -> Result<Vec<Sample>> {
    let dir = tempfile::tempdir_in(target)?;
    let sync = match server {
        Server::Nyala(_) => format!("--log_sync={log_sync}"),
        Server::Kudu(..) => format!("--log_force_fsync_all={log_sync}"),
    };
    let plan = Plan { masters: 1, tablet_servers: 1, master_gflags: Vec::new(), tserver_gflags: vec![sync] };
    let cluster = Cluster::started(server.clone(), dir.path(), &plan)?;
    let masters = cluster.master_addresses();
    let measured = |workload, words: &[&str]| -> Result<(Sample, String)> {
        let before = Cpu::of(&cluster)?;
        let output = packages.kudu_tool().args(words).output()?;
        ensure!(output.success, "kudu {}: {}", words.join(" "), output.stderr);
        let seconds = Cpu::of(&cluster)?.since(before);
        let timed = Timed::parse(&output.stdout)?;
        let cell = Cell { workload, log_sync, server: server.name() };
        let sample = Sample {
            cell,
            rows_per_second: timed.rows / timed.seconds,
            cpu_per_million: seconds / timed.rows * 1e6,
            peak_rss_bytes: measure::peak_rss_bytes(&cluster)?,
            disk_bytes: measure::disk_bytes(dir.path())?,
        };
        Ok((sample, output.stdout))
    };
    let (default, _) = measured(DEFAULT, &["perf", "loadgen", &masters])?;
    let big_words: Vec<&str> = ["perf", "loadgen", &masters].into_iter().chain(BIG_WORDS).collect();
    let (big, said) = measured(BIG, &big_words)?;
    let table = measure::auto_table(&said).context("loadgen did not name its table")?;
    let (scan, _) = measured(SCAN, &["perf", "table_scan", &masters, &table])?;
    Ok(vec![default, big, scan])
}
