//! `cargo ci profile WORKLOAD`: CPU time and allocations of a workload, or its contention, in a folder under `target`.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::{Parser, ValueEnum};
use cores_model::Measurement;

use crate::command::{CommandLine, target_dir};

#[derive(Parser)]
pub(crate) struct ProfileOptions {
    /// Workload to profile
    workload: Workload,
    /// Amount of work, in percent of the usual
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(2..=10_000))]
    percent: u64,
    /// Seconds of each operation of `contention`
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// Write the pages and the model's demands from what `contention` measured
    #[arg(long)]
    bless: bool,
    /// The folder of the report, instead of target/profile/WORKLOAD
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Workload {
    /// TPC-H's lineitem loaded by one client: 600 000 rows
    Load,
    /// Scans of Q1's six columns of flushed rows
    Scan,
    /// YCSB's rows of 1 KB from 16 clients, in batches of 100
    Inserts,
    /// Waits for locks and queues of small operations from 16 clients, by site
    Contention,
}

/// Divisor of the work for counting allocations, which takes long.
const ALLOCATIONS_SHARE: u64 = 10;

pub(crate) fn run(root: &Path, options: &ProfileOptions) -> Result<()> {
    let word = options.workload.to_possible_value().expect("no workload is hidden");
    let name = word.get_name();
    let out = match &options.out {
        Some(out) => root.join(out),
        None => target_dir()?.join("profile").join(name),
    };
    if matches!(options.workload, Workload::Contention) {
        return contention(root, options, &out);
    }
    let part = |bench: &str, percent: u64| {
        CommandLine::cargo(root)
            .args(["bench", "--quiet", "--package", "benches", "--bench", bench, "--", name])
            .args(["--percent", &percent.to_string(), "--out"])
            .args([&out])
            .run()
    };
    part("profile", options.percent)?;
    part("allocations", (options.percent / ALLOCATIONS_SHARE).max(2))?;
    println!("{}: cpu.svg, cpu.txt, allocations.json, allocations.txt", out.display());
    Ok(())
}

/// Measures sites and queues; the locks that measure are in a build of their own.
fn contention(root: &Path, options: &ProfileOptions, out: &Path) -> Result<()> {
    CommandLine::cargo(root)
        .args(["bench", "--quiet", "--package", "benches", "--features", "contention"])
        .args(["--bench", "contention", "--", "--seconds", &options.seconds.to_string(), "--out"])
        .args([out])
        .run()?;
    println!("{}: contention.md, demands.json", out.display());
    if options.bless {
        bless_contention(root, out)?;
    }
    Ok(())
}

/// Writes the page of the profile, the model's demands, and the page of the model.
fn bless_contention(root: &Path, out: &Path) -> Result<()> {
    fs::copy(out.join("contention.md"), root.join("benches/CONTENTION.md"))?;
    let demands = fs::read_to_string(out.join("demands.json"))?;
    let measured: Measurement = serde_json::from_str(&demands).context("the measured demands")?;
    fs::write(root.join("sim/cores/demands.json"), demands)?;
    fs::write(root.join("sim/STUDY-CORES.md"), cores_model::page(&measured))?;
    Ok(())
}
