//! `cargo ci bench`: the criterion benches, compared with an earlier run on this machine.
//!
//! The first run becomes the baseline, under `target/criterion`. Later runs are compared with it until `--bless` makes
//! one of them the new baseline. Criterion computes a 95 % confidence interval of each change; a change has moved if
//! its whole interval is beyond ±2 %.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Parser;
use serde::Deserialize;

use crate::command::{CommandLine, target_dir};

/// Benches with criterion's harness.
const BENCHES: [&str; 5] = ["paths", "cfile", "tablet", "deltas", "lineitem"];
const BASELINE: &str = "before";
/// File with commit and date of the baseline.
const TAKEN: &str = "before.txt";
/// Smallest change that is no noise, as a share; criterion's own threshold.
const NOISE: f64 = 0.02;

#[derive(Parser)]
pub(crate) struct BenchOptions {
    /// The benches to run; all of them if none is named
    #[arg(value_parser = BENCHES)]
    benches: Vec<String>,
    /// Only benchmarks whose names contain this
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
    /// Make this run the new baseline
    #[arg(long)]
    bless: bool,
}

pub(crate) fn run(root: &Path, options: &BenchOptions) -> Result<()> {
    let home = target_dir()?.join("criterion");
    let known = folders(&home, BASELINE)?;
    for stale in folders(&home, "change")? {
        fs::remove_dir_all(stale)?;
    }
    let save = options.bless || known.is_empty();
    measure(root, options, save, &home)?;
    if save {
        let taken = taken(root)?;
        println!("the baseline is now that of {taken}");
        return Ok(fs::write(home.join(TAKEN), taken)?);
    }
    let changes: Vec<Change> =
        folders(&home, "change")?.iter().map(|dir| Change::read(dir)).collect::<Result<_>>()?;
    let taken = fs::read_to_string(home.join(TAKEN)).unwrap_or_default();
    print!("{}", report(changes, taken.trim()));
    Ok(())
}

fn measure(root: &Path, options: &BenchOptions, save: bool, home: &Path) -> Result<()> {
    let named = options.benches.iter().map(String::as_str);
    let benches: Vec<&str> = if options.benches.is_empty() { BENCHES.to_vec() } else { named.collect() };
    let how = if save { "--save-baseline" } else { "--baseline-lenient" };
    CommandLine::cargo(root)
        .args(["bench", "--quiet", "--package", "benches"])
        .args(benches.iter().flat_map(|name| ["--bench", name]))
        .args(["--", "--noplot", how, BASELINE])
        .args(&options.filter)
        .env("CRITERION_HOME", home)
        .run()
}

fn taken(root: &Path) -> Result<String> {
    let commit = CommandLine::new("git").args(["describe", "--always", "--dirty"]).dir(root).output()?;
    let date = CommandLine::new("date").args(["-u", "+%F %R"]).output()?;
    Ok(format!("{}, {} UTC", commit.stdout.trim(), date.stdout.trim()))
}

/// Returns the folders of this name below `dir`, sorted.
fn folders(dir: &Path, name: &str) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let Ok(entries) = fs::read_dir(dir) else { return Ok(found) };
    for entry in entries {
        let path = entry?.path();
        if path.is_dir() {
            if path.file_name().is_some_and(|last| last == name) {
                found.push(path);
            } else {
                found.extend(folders(&path, name)?);
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Change of one benchmark; each number is a share of the baseline's time.
#[derive(Debug, Clone, PartialEq)]
struct Change {
    name: String,
    mean: f64,
    least: f64,
    most: f64,
}

impl Change {
    /// Reads a benchmark's `change` folder and the neighbouring file with its name.
    fn read(dir: &Path) -> Result<Change> {
        let of = dir.parent().context("a benchmark has a folder")?;
        let text =
            |path: PathBuf| fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()));
        Change::parse(&text(of.join("new/benchmark.json"))?, &text(dir.join("estimates.json"))?)
    }

    fn parse(benchmark: &str, estimates: &str) -> Result<Change> {
        #[derive(Deserialize)]
        struct Benchmark {
            full_id: String,
        }
        #[derive(Deserialize)]
        struct Estimates {
            mean: Estimate,
        }
        #[derive(Deserialize)]
        struct Estimate {
            point_estimate: f64,
            confidence_interval: Interval,
        }
        #[derive(Deserialize)]
        struct Interval {
            lower_bound: f64,
            upper_bound: f64,
        }
        let name = serde_json::from_str::<Benchmark>(benchmark)?.full_id;
        let Estimates { mean } = serde_json::from_str(estimates)?;
        let Interval { lower_bound, upper_bound } = mean.confidence_interval;
        Ok(Change { name, mean: mean.point_estimate, least: lower_bound, most: upper_bound })
    }

    fn moved(&self) -> bool {
        self.least > NOISE || self.most < -NOISE
    }
}

/// Returns a line for each benchmark that moved, the slowest first, and the number of the others.
fn report(mut changes: Vec<Change>, taken: &str) -> String {
    changes.sort_by(|a, b| b.mean.total_cmp(&a.mean));
    let percent = |share: f64| format!("{:+.1} %", share * 100.0);
    let line = |change: &Change| {
        let Change { name, mean, least, most } = change;
        let word = if *mean > 0.0 { "slower" } else { "faster" };
        format!("{word} {name:<44} {:>9} ({} to {})\n", percent(*mean), percent(*least), percent(*most))
    };
    let lines: String = changes.iter().filter(|change| change.moved()).map(line).collect();
    let level = changes.iter().filter(|change| !change.moved()).count();
    format!("{lines}{level} of {} took as long as before ({taken}), within noise\n", changes.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(name: &str, mean: f64, least: f64, most: f64) -> Change {
        Change { name: name.to_owned(), mean, least, most }
    }

    #[test]
    fn criterions_files_are_read() {
        let benchmark = r#"{"group_id":"wal","full_id":"wal/append","directory_name":"wal/append"}"#;
        let estimates = r#"{"mean":{"confidence_interval":{"confidence_level":0.95,"lower_bound":-0.02,
            "upper_bound":0.03},"point_estimate":0.01,"standard_error":0.01}}"#;
        assert_eq!(Change::parse(benchmark, estimates).unwrap(), change("wal/append", 0.01, -0.02, 0.03));
    }

    #[test]
    fn only_changes_beyond_the_noise_are_reported() {
        let changes = vec![
            change("a", -0.2, -0.25, -0.15),
            change("b", 0.1, 0.05, 0.15),
            change("c", 0.1, 0.01, 0.2),
            change("d", 0.01, 0.005, 0.015),
        ];
        let printed = report(changes, "abc");
        let lines: Vec<&str> = printed.lines().collect();
        assert!(
            lines[0].starts_with("slower b ") && lines[0].ends_with("+10.0 % (+5.0 % to +15.0 %)"),
            "{printed}"
        );
        assert!(lines[1].starts_with("faster a "), "{printed}");
        assert_eq!(lines[2], "2 of 4 took as long as before (abc), within noise");
    }
}
