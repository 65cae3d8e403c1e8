//! `cargo ci profile WORKLOAD`: where the CPU time of a workload goes and who allocates, in a folder under `target`.

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::{Parser, ValueEnum};

use crate::command::Run;
use crate::interop::target_dir;

#[derive(Parser)]
pub struct Options {
    /// What to look at
    workload: Workload,
    /// How much of it, in percent of the usual
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
    /// Q1's six columns of flushed rows, read again and again
    Scan,
    /// YCSB's rows of 1 KB from 16 clients, in batches of 100
    Inserts,
}

/// Counting every allocation takes long: this share of the work is enough.
const ALLOCATIONS_SHARE: u64 = 10;

pub fn run(root: &Path, options: &Options) -> Result<()> {
    let word = options.workload.to_possible_value().expect("no workload is hidden");
    let name = word.get_name();
    let out = match &options.out {
        Some(out) => root.join(out),
        None => target_dir()?.join("profile").join(name),
    };
    let part = |bench: &str, percent: u64| {
        Run::cargo(root)
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
