//! Searching for new inputs of the fuzz targets: libFuzzer over each of them in turn.
//!
//! Needs a nightly toolchain and cargo-fuzz; a machine without them is told how to get them. New inputs and finds go
//! under the target folder, never into the source tree: what is worth keeping is copied there by hand.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::command::{Output, Run};
use crate::steps::Steps;

const HARNESS: &str = "fuzz/harness";
/// A single input that takes longer is a hang.
const INPUT_SECONDS_MAX: u32 = 10;
/// Of the whole process: what it found stays in memory. A target's own bound is far below.
const RSS_MB_MAX: u32 = 4096;
/// Lines of libFuzzer's that are shown of a find.
const FIND_LINES: usize = 40;

#[derive(Args)]
pub struct Options {
    /// Only this target; may be given several times
    #[arg(long)]
    target: Vec<String>,
    /// Minutes for each target, or a part of one
    #[arg(long, default_value_t = 1.0)]
    minutes: f64,
    /// What the targets are built with besides assertions: address or none
    #[arg(long, default_value = "address")]
    sanitizer: String,
}

/// Builds the harness and lets it search, target after target; a find fails its step.
pub fn run(root: &Path, options: &Options, steps: &mut Steps) {
    let mut ready = Err(anyhow::anyhow!("not built"));
    steps.run("fuzz: build", || {
        ready = build(root, options);
        ready.as_ref().map(drop).map_err(|error| anyhow::anyhow!("{error:#}"))
    });
    let Ok(targets) = ready else { return };
    for target in targets {
        steps.run(&format!("fuzz: {target}"), || search(root, options, &target));
    }
}

/// Gives the targets to run.
fn build(root: &Path, options: &Options) -> Result<Vec<String>> {
    let targets = targets(root, &options.target)?;
    let found = cargo_fuzz(root, "--version").output();
    if !found.is_ok_and(|found| found.success) {
        bail!("cargo-fuzz is not installed: rustup toolchain install nightly && cargo install cargo-fuzz");
    }
    cargo_fuzz(root, "build").args(harness(root, options)).run()?;
    Ok(targets)
}

/// The targets asked for, all without any; each has a corpus.
fn targets(root: &Path, asked: &[String]) -> Result<Vec<String>> {
    let corpora = root.join("fuzz/corpus");
    let mut known = Vec::new();
    for entry in std::fs::read_dir(&corpora).with_context(|| format!("reading {}", corpora.display()))? {
        known.push(entry?.file_name().to_string_lossy().into_owned());
    }
    known.sort();
    match asked.iter().find(|name| !known.contains(name)) {
        Some(name) => bail!("{name} is no target; there are {}", known.join(", ")),
        None if asked.is_empty() => Ok(known),
        None => Ok(asked.to_vec()),
    }
}

fn cargo_fuzz(root: &Path, word: &str) -> Run {
    Run::new("cargo").args(["+nightly", "fuzz", word]).dir(root)
}

/// Where everything of the search lies.
fn folder(root: &Path) -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    target.join("fuzz")
}

/// Options and the harness's only program.
fn harness(root: &Path, options: &Options) -> Vec<String> {
    let words = ["--fuzz-dir", HARNESS, "--sanitizer", &options.sanitizer, "--target-dir"];
    let mut words: Vec<String> = words.iter().map(|word| (*word).to_string()).collect();
    words.extend([folder(root).display().to_string(), "any".to_string()]);
    words
}

fn search(root: &Path, options: &Options, target: &str) -> Result<()> {
    let (new, finds) = (folder(root).join("corpus").join(target), folder(root).join("finds"));
    for folder in [&new, &finds] {
        std::fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    }
    // The first folder takes new inputs.
    let corpora = [new.display().to_string(), format!("fuzz/corpus/{target}")];
    let mut words = harness(root, options);
    words.extend(corpora);
    words.push("--".to_string());
    words.push(format!("-max_total_time={}", (options.minutes * 60.0).ceil() as u64));
    words.push(format!("-timeout={INPUT_SECONDS_MAX}"));
    words.push(format!("-rss_limit_mb={RSS_MB_MAX}"));
    words.push("-print_final_stats=1".to_string());
    words.push(format!("-artifact_prefix={}/{target}-", finds.display()));
    let dictionary = format!("fuzz/dictionaries/{target}.dict");
    if root.join(&dictionary).is_file() {
        words.push(format!("-dict={dictionary}"));
    }
    let output = cargo_fuzz(root, "run").args(words).env("NYALA_FUZZ_TARGET", target).output()?;
    report(target, &output)
}

/// Prints what libFuzzer counted; a find is an error that says how to see it again.
fn report(target: &str, output: &Output) -> Result<()> {
    let log = &output.stderr;
    let shown = |number: Option<u64>| number.map_or_else(|| "?".to_string(), |number| number.to_string());
    println!(
        "{target}: {} inputs, {} executions/s, coverage {} edges, {} new inputs",
        shown(stat(log, "number_of_executed_units")),
        shown(stat(log, "average_exec_per_sec")),
        shown(coverage(log)),
        shown(stat(log, "new_units_added")),
    );
    if output.success {
        return Ok(());
    }
    let lines: Vec<&str> = log.lines().collect();
    lines.iter().skip(lines.len().saturating_sub(FIND_LINES)).for_each(|line| println!("{line}"));
    match found(log) {
        Some(file) => bail!("found something; see it again with: cargo run -p fuzz -- {target} {file}"),
        None => bail!("the search ended before its time; see above"),
    }
}

/// A number of libFuzzer's final list.
fn stat(log: &str, name: &str) -> Option<u64> {
    let line = log.lines().rev().find_map(|line| line.strip_prefix("stat::")?.strip_prefix(name))?;
    line.trim_start_matches(':').trim().parse().ok()
}

/// Edges reached, as of the last line that says so.
fn coverage(log: &str) -> Option<u64> {
    let after = log.lines().rev().find_map(|line| line.split_once(" cov: "))?.1;
    after.split_whitespace().next()?.parse().ok()
}

/// The file of the input that was found.
fn found(log: &str) -> Option<&str> {
    log.lines().rev().find_map(|line| line.split_once("Test unit written to ").map(|(_, file)| file.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "\
        #2\tINITED cov: 81 ft: 82 corp: 1/1b exec/s: 0 rss: 33Mb\n\
        #71\tNEW    cov: 90 ft: 95 corp: 2/4b lim: 4 exec/s: 0 rss: 33Mb L: 3/3 MS: 4 CrossOver-\n\
        #8191\tDONE   cov: 91 ft: 99 corp: 4/9b lim: 80 exec/s: 4095 rss: 34Mb\n\
        Done 8191 runs in 2 second(s)\n\
        stat::number_of_executed_units: 8191\n\
        stat::average_exec_per_sec:     4095\n\
        stat::new_units_added:          3\n\
        stat::slowest_unit_time_sec:    0\n";

    #[test]
    fn numbers_of_libfuzzer_are_read() {
        assert_eq!(stat(LOG, "number_of_executed_units"), Some(8191));
        assert_eq!(stat(LOG, "average_exec_per_sec"), Some(4095));
        assert_eq!(stat(LOG, "new_units_added"), Some(3));
        assert_eq!(stat(LOG, "peak_rss_mb"), None);
        assert_eq!(coverage(LOG), Some(91));
        assert_eq!(found(LOG), None);
    }

    #[test]
    fn a_find_is_named() {
        let log =
            format!("{LOG}artifact_prefix='/t/key-'; Test unit written to /t/key-crash-1a2b\nBase64: AA==\n");
        assert_eq!(found(&log), Some("/t/key-crash-1a2b"));
        let output = Output { success: false, stdout: String::new(), stderr: log };
        let error = report("key", &output).expect_err("it is a find").to_string();
        assert_eq!(error, "found something; see it again with: cargo run -p fuzz -- key /t/key-crash-1a2b");
    }
}
