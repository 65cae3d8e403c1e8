//! `cargo ci soak`: a cluster of real processes under load for hours, with faults drawn at random from a seed.
//!
//! ```text
//!   draw.rs     rounds of faults from the seed         rows.rs      the rows that must be there
//!   faults.rs   faults that end by themselves          cli_load.rs  load by the nyala program (the Rust client)
//!   losses.rs   faults that lose a server's data       Soak.java    load by the Java client
//!   stage.rs    the cluster, and its check        background.rs  the soak of a pull request, beside other steps
//! ```
//!
//! - Every read finds each row as its last acknowledged write left it; see [`rows`].
//! - No server ends by itself, but for one whose clock is wrong (code 6) or whose data directory is missing (code 4).
//! - After a fault that loses data the cluster is healthy again by what the runbook says, and nothing else.
//! - At the end `nyala cluster check` and `kudu cluster ksck --checksum_scan` find nothing.

pub(crate) mod background;
mod cli_load;
mod draw;
mod faults;
mod losses;
mod rows;
mod stage;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use super::ServerChoice;
use super::cluster::Cluster;
use super::daemon::ServerKind;
use super::java_writer::{JavaWriter, WriterProgram};
use super::nemesis;
use super::packages::Packages;
use super::small_disk::SmallDisk;
use super::{ksck, server};
use crate::command::target_dir;
use crate::steps::Steps;
use cli_load::CliLoad;
use draw::{DATA_DIRS, Dice, MASTERS, SMALL_DISK_TSERVER, TABLET_SERVERS};
use stage::{Stage, Stopwatch};

/// Flags that make work of hours happen within a run: scrubs, flushes with the compactions after them, history GC.
const TSERVER_FLAGS: [&str; 3] =
    ["--scrub_interval_sec=30", "--flush_threshold_secs=15", "--tablet_history_max_age_sec=300"];

#[derive(Args)]
pub(crate) struct SoakOptions {
    /// Duration of load and faults, in minutes
    #[arg(long, default_value_t = 120)]
    minutes: u64,
    /// Seed of the faults; by default another one each time
    #[arg(long)]
    seed: Option<u64>,
    /// Path of a built nyala program
    #[arg(long, value_name = "PROGRAM")]
    nyala: Option<PathBuf>,
}

/// Runs a soak as a step.
pub(crate) fn run(root: &Path, options: &SoakOptions, steps: &mut Steps) {
    let seed = options.seed.unwrap_or_else(fresh_seed);
    steps.run(&format!("soak: {} min, --seed {seed}", options.minutes), || {
        let target = target_dir()?.join("interop");
        let packages = Packages::fetch(root, &target)?;
        let server = server(root, ServerChoice::Nyala, options.nyala.as_deref(), &packages)?;
        let dir = tempfile::Builder::new().prefix("soak-").tempdir_in(&target)?;
        let soak = Soak { root, target: &target, packages: &packages, dir: dir.path(), seed };
        let result = soak.run(server, Duration::from_secs(60 * options.minutes));
        if result.is_err() {
            eprintln!("soak with --seed {seed} failed; what the servers left is in {}", dir.keep().display());
        }
        result
    });
}

fn fresh_seed() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.map_or(0, |since| since.as_secs())
}

/// One run.
struct Soak<'a> {
    root: &'a Path,
    target: &'a Path,
    packages: &'a Packages,
    dir: &'a Path,
    seed: u64,
}

impl Soak<'_> {
    fn run(&self, server: ServerKind, duration: Duration) -> Result<()> {
        let mut stage = self.stage(server)?;
        let result = self.play(&mut stage, duration);
        if result.is_err() {
            stage.cluster.kill_all();
            stage.keep_small_disk(&self.dir.join("small-kept"))?;
        }
        result
    }

    fn stage(&self, server: ServerKind) -> Result<Stage> {
        let ServerKind::Nyala(program) = &server else { bail!("a soak is nyala's") };
        let program = program.clone();
        let mut plan = nemesis::cluster_plan(TABLET_SERVERS);
        ensure!(plan.masters == MASTERS, "faults are drawn for {MASTERS} masters");
        plan.more_data_dirs = DATA_DIRS - 1;
        plan.tserver_gflags.extend(TSERVER_FLAGS.map(str::to_owned));
        let mut cluster = Cluster::new(server, self.dir, &plan)?;
        let disk = SmallDisk::mount(&self.dir.join("small"))?;
        if let Some(disk) = &disk {
            cluster.tservers[SMALL_DISK_TSERVER].spec.disk = disk.dir.clone();
        }
        cluster.start()?;
        let (masters, watch) = (cluster.master_addresses(), Stopwatch(Instant::now()));
        Ok(Stage { cluster, disk, program, masters, watch, counts: BTreeMap::new() })
    }

    fn play(&self, stage: &mut Stage, duration: Duration) -> Result<()> {
        let seed = self.seed.to_string();
        let program = WriterProgram { class: "Soak", args: &[&stage.masters, "soak_java", &seed] };
        let mut java = JavaWriter::start(self.root, self.target, self.packages, &program, self.dir)?;
        stage.watch = Stopwatch(Instant::now());
        let mut cli = CliLoad::start(stage, self.dir, self.seed)?;
        let mut dice = Dice::new(self.seed);
        while stage.watch.0.elapsed() < duration {
            stage.round(&dice.round())?;
            java.check_runs()?;
            cli.check_runs()?;
        }
        stage.watch.say("faults end");
        let by_cli = cli.stop()?;
        let by_java = java.stop()?;
        stage.until_healthy()?;
        ksck::until_clean(self.packages, &stage.masters)?;
        let summary = by_java.lines().last().context("the Java program printed nothing")?;
        println!("    {summary}\n    {by_cli}");
        for (kind, count) in &stage.counts {
            println!("    {count:4} {kind}");
        }
        Ok(())
    }
}
