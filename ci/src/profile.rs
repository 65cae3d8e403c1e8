//! `cargo ci profile WORKLOAD`: CPU time and allocations of a workload, in a folder under `target`.

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::{Parser, ValueEnum};

use crate::command::{CommandLine, target_dir};

#[derive(Parser)]
pub(crate) struct ProfileOptions {
    /// Workload to profile
    workload: Workload,
    /// Amount of work, in percent of the usual
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(2..=10_000))]
    percent: u64,
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
