//! `cargo ci code-mutants`: small mutants of the engine's core, one by one, which tests must kill.
//!
//! Needs cargo-mutants; without it the step fails with the command that installs it. Mutants are built in a copy of
//! the tree. A mutant that does not compile is not counted; a mutant that makes the tests hang is killed.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use serde_json::Value;

use crate::command::CommandLine;
use crate::steps::Steps;

/// Smallest share of killed mutants, in percent.
const KILLED_PERCENT_MIN: f64 = 85.0;
/// Multiple of the unmutated tests' time after which tests hang.
const TIMEOUT_TIMES: &str = "5";
/// Results of cargo-mutants, under its output folder.
const OUTCOMES: &str = "mutants.out/outcomes.json";

/// Mutated files of the engine, and the tests that must kill their mutants. Every mutant builds and runs these tests,
/// so they are few. They are arguments of `cargo test`; the last one is a part of tests' names if it is no option.
struct Part {
    name: &'static str,
    files: &'static [&'static str],
    tests: &'static [&'static str],
}

const PARTS: [Part; 5] = [
    Part {
        name: "encoding",
        files: &["cfile/encoding.rs", "cfile/bitshuffle.rs"],
        tests: &["--lib", "cfile"],
    },
    Part { name: "key", files: &["schema/key.rs"], tests: &["--lib", "schema"] },
    Part { name: "mvcc", files: &["tablet/mvcc.rs"], tests: &["--lib", "--test=group"] },
    Part { name: "raft-state", files: &RAFT_STATE, tests: &["--lib", "--test=raft", "raft"] },
    Part { name: "raft", files: &RAFT, tests: &["--test=raft", "--test=raft_random", "--test=group"] },
];
/// Files with unit tests.
const RAFT_STATE: [&str; 5] =
    ["raft/cmeta.rs", "raft/config.rs", "raft/log.rs", "raft/queue.rs", "raft/vote.rs"];
/// Files tested through the Raft core as a whole.
const RAFT: [&str; 8] = [
    "raft/election.rs",
    "raft/follower.rs",
    "raft/hold.rs",
    "raft/leader.rs",
    "raft/membership.rs",
    "raft/mod.rs",
    "raft/safe_time.rs",
    "raft/transfer.rs",
];

#[derive(Args)]
pub(crate) struct CodeMutantOptions {
    /// Only this part: encoding, key, mvcc, raft-state or raft; may be given several times
    #[arg(long)]
    part: Vec<String>,
    /// Only every N-th mutant of a part, as I/N with I from 0; all of them take hours
    #[arg(long)]
    shard: Option<String>,
    /// Read the outcomes of the last run only
    #[arg(long)]
    again: bool,
}

/// Results of mutants.
#[derive(Debug, Default, PartialEq)]
struct Counts {
    caught: u64,
    hung: u64,
    unviable: u64,
    missed: Vec<String>,
}

impl Counts {
    /// Returns the number of mutants that compile.
    fn all(&self) -> u64 {
        self.caught + self.hung + self.missed.len() as u64
    }

    fn percent(&self) -> f64 {
        if self.all() == 0 { 100.0 } else { 100.0 * (self.caught + self.hung) as f64 / self.all() as f64 }
    }
}

/// Runs a step for each part, and one for their sum.
pub(crate) fn run(root: &Path, options: &CodeMutantOptions, steps: &mut Steps) {
    let mut total = Counts::default();
    for part in
        PARTS.iter().filter(|part| options.part.is_empty() || options.part.iter().any(|p| p == part.name))
    {
        steps.run(&format!("code mutants: {}", part.name), || {
            let counts = measure(root, part, options)?;
            counts.missed.iter().for_each(|mutant| println!("survived: {mutant}"));
            println!("{}", format_counts(part.name, &counts));
            total.caught += counts.caught;
            total.hung += counts.hung;
            total.unviable += counts.unviable;
            total.missed.extend(counts.missed);
            Ok(())
        });
    }
    steps.run("code mutants", || check_threshold(&total));
}

fn measure(root: &Path, part: &Part, options: &CodeMutantOptions) -> Result<Counts> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let (build, output) = (target.join("code-mutants"), target.join("code-mutants-out").join(part.name));
    if !options.again {
        run_mutants(root, part, options.shard.as_deref(), &build, &output)?;
    }
    let file = output.join(OUTCOMES);
    let text = std::fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
    counts(&text).with_context(|| format!("reading {}", file.display()))
}

/// Runs cargo-mutants over a part. Its exit status reports survivors, which [`check_threshold`] evaluates.
fn run_mutants(root: &Path, part: &Part, shard: Option<&str>, build: &Path, output: &Path) -> Result<()> {
    let found = CommandLine::cargo(root).args(["mutants", "--version"]).output();
    if !found.is_ok_and(|found| found.success) {
        bail!("cargo-mutants: not installed; cargo install --locked cargo-mutants");
    }
    std::fs::create_dir_all(output).with_context(|| format!("creating {}", output.display()))?;
    let mut words = vec!["mutants", "--package", "engine", "--test-package", "engine", "--jobs", "1"];
    words.extend(["--timeout-multiplier", TIMEOUT_TIMES, "--no-times", "--colors", "never"]);
    words.extend(shard.iter().flat_map(|shard| ["--sharding", "round-robin", "--shard", *shard]));
    let files = part.files.iter().map(|file| format!("--file=engine/src/{file}"));
    // The build needs the same selection of tests.
    let tests = part.tests.iter().map(|test| format!("--cargo-arg={test}"));
    let run = CommandLine::cargo(root).env("CARGO_TARGET_DIR", build).args(words).args(files).args(tests);
    let status = run.args(["--output"]).args([output]).run();
    let has_outcomes = output.join(OUTCOMES).is_file();
    if has_outcomes { Ok(()) } else { status }
}

/// Reads cargo-mutants' outcomes; fails if the tests fail without a mutant.
fn counts(outcomes: &str) -> Result<Counts> {
    let read: Value = serde_json::from_str(outcomes)?;
    let mut counts = Counts::default();
    for outcome in read["outcomes"].as_array().context("no outcomes")? {
        let name = outcome["scenario"]["Mutant"]["name"].as_str();
        match (outcome["summary"].as_str().context("an outcome without a summary")?, name) {
            ("CaughtMutant", _) => counts.caught += 1,
            ("Timeout", Some(_)) => counts.hung += 1,
            ("Unviable", _) => counts.unviable += 1,
            ("MissedMutant", name) => counts.missed.push(name.unwrap_or("without a name").to_string()),
            ("Success", None) => {}
            (summary, _) => bail!("{}: {summary}", name.unwrap_or("the tests without a mutant")),
        }
    }
    Ok(counts)
}

fn format_counts(name: &str, counts: &Counts) -> String {
    format!(
        "{name}: {:.1} % of {} mutants killed, {} of them by a timeout; {} did not compile",
        counts.percent(),
        counts.all(),
        counts.hung,
        counts.unviable
    )
}

fn check_threshold(total: &Counts) -> Result<()> {
    ensure!(total.all() > 0, "no mutant was tested");
    let summary = format_counts("all", total);
    println!("{summary}");
    ensure!(total.percent() >= KILLED_PERCENT_MIN, "{summary} (threshold {KILLED_PERCENT_MIN} %)");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcomes(summaries: &[(&str, &str)]) -> String {
        let outcome = |(name, summary): &(&str, &str)| {
            let scenario = match *name {
                "" => "\"Baseline\"".to_string(),
                name => format!("{{\"Mutant\":{{\"name\":\"{name}\"}}}}"),
            };
            format!("{{\"scenario\":{scenario},\"summary\":\"{summary}\"}}")
        };
        format!("{{\"outcomes\":[{}]}}", summaries.iter().map(outcome).collect::<Vec<_>>().join(","))
    }

    #[test]
    fn outcomes_are_counted_and_compared_with_the_threshold() {
        let mut ended = vec![("", "Success"), ("a", "Timeout"), ("b", "Unviable"), ("c", "MissedMutant")];
        ended.extend([("d", "CaughtMutant"); 5]);
        let read = counts(&outcomes(&ended)).expect("outcomes");
        assert_eq!(read, Counts { caught: 5, hung: 1, unviable: 1, missed: vec!["c".to_string()] });
        assert_eq!(
            format_counts("x", &read),
            "x: 85.7 % of 7 mutants killed, 1 of them by a timeout; 1 did not compile"
        );
        check_threshold(&read).expect("6 of 7");
        ended.push(("e", "MissedMutant"));
        check_threshold(&counts(&outcomes(&ended)).expect("outcomes")).expect_err("6 of 8");
    }

    #[test]
    fn runs_without_a_verdict_are_errors() {
        check_threshold(&Counts::default()).expect_err("nothing was tested");
        counts(&outcomes(&[("", "Failure")])).expect_err("the tests fail without a mutant");
        counts(&outcomes(&[("", "Success"), ("a", "Success")])).expect_err("no word for a mutant");
    }
}
