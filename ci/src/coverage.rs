//! `cargo ci coverage`: lines that the tests of engine, node and fuzz run, compared with thresholds.
//!
//! Needs cargo-llvm-cov and the toolchain's llvm-tools; without them the step fails with the command that installs
//! them. Unit tests inside a file count as lines of it; files that hold only tests do not count.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use serde_json::Value;

use crate::command::CommandLine;

/// Name, folders and smallest covered share of lines, in percent, of well-tested parts.
const THRESHOLDS: [(&str, &[&str], f64); 2] =
    [("engine", &["engine/src/"], 90.0), ("node's wire", &["node/src/wire/", "node/src/rpc/"], 85.0)];
const REPORT: &str = "coverage.json";
/// Number of files listed, those with most uncovered lines first.
const FILES_SHOWN: usize = 25;

#[derive(Args)]
pub(crate) struct CoverageOptions {
    /// Read the report of the last run only
    #[arg(long)]
    again: bool,
}

/// Lines of code, and covered ones.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Lines {
    count: u64,
    ran: u64,
}

impl Lines {
    fn percent(self) -> f64 {
        if self.count == 0 { 100.0 } else { 100.0 * self.ran as f64 / self.count as f64 }
    }

    fn add(&mut self, other: Lines) {
        self.count += other.count;
        self.ran += other.ran;
    }

    fn missed(self) -> u64 {
        self.count - self.ran
    }
}

pub(crate) fn run(root: &Path, options: &CoverageOptions) -> Result<()> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), Into::into);
    let report = target.join(REPORT);
    if !options.again {
        measure(root, &report)?;
    }
    let text = std::fs::read_to_string(&report).with_context(|| format!("reading {}", report.display()))?;
    check_thresholds(&files(&text, root)?)
}

fn measure(root: &Path, report: &Path) -> Result<()> {
    let found = CommandLine::cargo(root).args(["llvm-cov", "--version"]).output();
    if !found.is_ok_and(|found| found.success) {
        bail!(
            "cargo-llvm-cov: not installed; rustup component add llvm-tools && cargo install --locked cargo-llvm-cov"
        );
    }
    CommandLine::cargo(root)
        // Without it cargo-llvm-cov would download llvm-tools.
        .env("CARGO_LLVM_COV_SETUP", "no")
        .args(["llvm-cov", "test", "--quiet", "--no-fail-fast", "--json", "--summary-only"])
        .args(["--package", "engine", "--package", "node", "--package", "fuzz", "--output-path"])
        .args([report])
        .run()
}

/// Returns the lines of each file of the tree.
fn files(report: &str, root: &Path) -> Result<BTreeMap<String, Lines>> {
    let report: Value = serde_json::from_str(report).context("the report of cargo-llvm-cov")?;
    let listed = report["data"][0]["files"].as_array().context("the report lists no files")?;
    let mut files = BTreeMap::new();
    for file in listed {
        let name = file["filename"].as_str().context("a file without a name")?;
        let lines = &file["summary"]["lines"];
        let number = |what: &str| lines[what].as_u64().with_context(|| format!("{name}: no {what} of lines"));
        let Ok(name) = Path::new(name).strip_prefix(root) else { continue };
        let name = name.to_string_lossy().into_owned();
        files.insert(name, Lines { count: number("count")?, ran: number("covered")? });
    }
    Ok(files)
}

/// Returns the threshold and the part that a file belongs to: its folder below `src`, or the file itself.
fn part(file: &str) -> Option<(&'static str, String)> {
    let of = |(bar, places, _): &(&'static str, &[&str], f64)| {
        let place = places.iter().find(|place| file.starts_with(**place))?;
        let inside = &file[place.len()..];
        let name = inside.split_once('/').map_or(inside, |(folder, _)| folder);
        Some((*bar, format!("{place}{name}")))
    };
    THRESHOLDS.iter().find_map(of)
}

/// Prints the parts and the files with most uncovered lines; fails if a threshold is missed.
fn check_thresholds(files: &BTreeMap<String, Lines>) -> Result<()> {
    let mut parts: BTreeMap<(&str, String), Lines> = BTreeMap::new();
    for (file, lines) in files {
        if let Some(part) = part(file) {
            parts.entry(part).or_default().add(*lines);
        }
    }
    for ((_, part), lines) in &parts {
        println!("{:>6.1} %  {:>6} lines  {part}", lines.percent(), lines.count);
    }
    let mut worst: Vec<_> = files.iter().filter(|(file, _)| part(file).is_some()).collect();
    worst.sort_by_key(|(_, lines)| std::cmp::Reverse(lines.missed()));
    println!("lines that no test runs:");
    for (file, lines) in worst.iter().take(FILES_SHOWN).filter(|(_, lines)| lines.missed() > 0) {
        println!("{:>6}  of {:>5}  {file}", lines.missed(), lines.count);
    }
    let mut missed = Vec::new();
    for (bar, _, least) in THRESHOLDS {
        let mut total = Lines::default();
        parts.iter().filter(|((of, _), _)| *of == bar).for_each(|(_, lines)| total.add(*lines));
        ensure!(total.count > 0, "the report has no line of {bar}");
        let summary = format!("{bar}: {:.1} % of {} lines, at least {least} %", total.percent(), total.count);
        println!("{summary}");
        if total.percent() < least {
            missed.push(summary);
        }
    }
    ensure!(missed.is_empty(), "coverage below its threshold: {}", missed.join("; "));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(engine: u64, wire: u64) -> String {
        let file = |name: &str, covered: u64| {
            format!(
                "{{\"filename\":\"/w/{name}\",\"summary\":{{\"lines\":{{\"count\":100,\"covered\":{covered}}}}}}}"
            )
        };
        let files = [
            file("engine/src/raft/vote.rs", engine),
            file("engine/src/codec.rs", 95),
            file("node/src/rpc/frame.rs", wire),
            file("node/src/cli/mod.rs", 1),
        ];
        format!("{{\"data\":[{{\"files\":[{}]}}]}}", files.join(","))
    }

    #[test]
    fn lines_are_summed_and_compared_with_the_thresholds() {
        let read = |report: &str| files(report, Path::new("/w")).expect("a report");
        check_thresholds(&read(&report(85, 85))).expect("90 and 85 percent");
        let error = check_thresholds(&read(&report(84, 85))).expect_err("89.5 percent").to_string();
        assert_eq!(error, "coverage below its threshold: engine: 89.5 % of 200 lines, at least 90 %");
        assert!(check_thresholds(&read(&report(85, 84))).is_err());
        assert!(check_thresholds(&BTreeMap::new()).is_err(), "nothing was measured");
    }

    #[test]
    fn files_belong_to_the_folder_below_src() {
        assert_eq!(part("engine/src/raft/vote.rs"), Some(("engine", "engine/src/raft".to_string())));
        assert_eq!(part("engine/src/codec.rs"), Some(("engine", "engine/src/codec.rs".to_string())));
        assert_eq!(part("node/src/rpc/frame.rs"), Some(("node's wire", "node/src/rpc/frame.rs".to_string())));
        assert_eq!(part("node/src/cli/mod.rs"), None);
    }
}
