//! `cargo ci fuzz`: libFuzzer over each target in turn.
//!
//! Needs a nightly toolchain and cargo-fuzz; without them the step fails with the command that installs them. New
//! inputs and crash inputs go under the target folder. Only `--keep` writes into the source tree: it adds inputs that
//! reach new edges to the corpora.

mod libfuzzer_output;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;

use crate::command::{CommandLine, Output};
use crate::steps::Steps;

const HARNESS: &str = "fuzz/harness";
const CORPUS: &str = "fuzz/corpus";
/// Time after which a single input hangs.
const INPUT_SECONDS_MAX: u32 = 10;
/// Memory of the whole process, which retains new inputs. A target's own limit is far below.
const RSS_MB_MAX: u32 = 4096;
/// Time for minimizing a crash input.
const SHRINK_SECONDS: u32 = 60;
/// Length to which a kept input is cut.
const KEPT_BYTES_MAX: u32 = 2048;
/// Size up to which `--keep` adds to a corpus: every `cargo test` replays all inputs.
const KEPT_INPUTS_MAX: usize = 64;
/// Ticks of the counts in `/proc/self/stat`.
const TICKS_PER_SECOND: f64 = 100.0;
/// Lines of libFuzzer's output that are printed for a crash.
const FIND_LINES: usize = 40;

#[derive(Args)]
pub(crate) struct FuzzOptions {
    /// Only this target; may be given several times
    #[arg(long)]
    target: Vec<String>,
    /// Minutes for each target; fractions are allowed
    #[arg(long, default_value_t = 1.0)]
    minutes: f64,
    /// Sanitizer of the build, besides assertions: address or none
    #[arg(long, default_value = "address")]
    sanitizer: String,
    /// Add the fewest new inputs that reach all new edges to fuzz/corpus
    #[arg(long)]
    keep: bool,
}

/// Builds the harness and searches target after target; a crash input fails its step.
pub(crate) fn run(root: &Path, options: &FuzzOptions, steps: &mut Steps) {
    let mut ready = Err(anyhow!("not built"));
    steps.run("fuzz: build", || {
        ready = build(root, options);
        ready.as_ref().map(drop).map_err(|error| anyhow!("{error:#}"))
    });
    let Ok((harness, targets)) = ready else { return };
    let built = cpu_seconds();
    for target in targets {
        steps.run(&format!("fuzz: {target}"), || {
            let searched = harness.search(&target, options.minutes);
            if options.keep { harness.keep(&target).and(searched) } else { searched }
        });
    }
    println!("{:.0} s of CPU were searched", cpu_seconds() - built);
}

/// Returns the CPU time of ended child processes; zero without `/proc`.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    libfuzzer_output::children_ticks(&stat).unwrap_or_default() as f64 / TICKS_PER_SECOND
}

/// Builds the one program for all targets; returns it with the targets to run.
fn build(root: &Path, options: &FuzzOptions) -> Result<(Harness, Vec<String>)> {
    let targets = targets(root, &options.target)?;
    let host = host()?;
    let found = nightly().args(["fuzz", "--version"]).output();
    if !found.is_ok_and(|found| found.success) {
        bail!("cargo-fuzz is not installed: cargo install --locked cargo-fuzz");
    }
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let folder = target.join("fuzz");
    let words = ["fuzz", "build", "--fuzz-dir", HARNESS, "--sanitizer", &options.sanitizer];
    let place = ["--target", &host, "--target-dir"];
    nightly().args(words).args(place).args([&folder]).args(["any"]).dir(root).run()?;
    let program = folder.join(&host).join("release/any");
    Ok((Harness { program, folder, root: root.to_path_buf() }, targets))
}

/// Returns a nightly cargo. Rustup must not install a missing toolchain.
fn nightly() -> CommandLine {
    CommandLine::new("cargo").args(["+nightly"]).env("RUSTUP_AUTO_INSTALL", "0")
}

/// Returns the machine's triple, from the nightly compiler.
fn host() -> Result<String> {
    let version =
        CommandLine::new("rustc").args(["+nightly", "-vV"]).env("RUSTUP_AUTO_INSTALL", "0").output();
    let version = version.ok().filter(|version| version.success);
    let host = version.and_then(|version| {
        version.stdout.lines().find_map(|line| line.strip_prefix("host: ")).map(str::to_string)
    });
    host.context("there is no nightly toolchain: rustup toolchain install nightly --profile minimal")
}

/// Returns the named targets, or all of them; each has a corpus.
fn targets(root: &Path, asked: &[String]) -> Result<Vec<String>> {
    let corpora = root.join(CORPUS);
    let mut known = Vec::new();
    for entry in std::fs::read_dir(&corpora).with_context(|| format!("reading {}", corpora.display()))? {
        known.push(entry?.file_name().to_string_lossy().into_owned());
    }
    known.sort();
    match asked.iter().find(|name| !known.contains(name)) {
        Some(name) => bail!("{name}: no such target; one of {}", known.join(", ")),
        None if asked.is_empty() => Ok(known),
        None => Ok(asked.to_vec()),
    }
}

struct Harness {
    program: PathBuf,
    /// Folder of everything that the search writes.
    folder: PathBuf,
    root: PathBuf,
}

impl Harness {
    /// Returns libFuzzer's command line for a target.
    fn run(&self, target: &str) -> CommandLine {
        CommandLine::new(&self.program)
            .dir(&self.root)
            .env("NYALA_FUZZ_TARGET", target)
            // The harness and its dependencies are one program, in which a duplicate symbol is no error.
            .env("ASAN_OPTIONS", "detect_odr_violation=0")
            .args([format!("-timeout={INPUT_SECONDS_MAX}"), format!("-rss_limit_mb={RSS_MB_MAX}")])
    }

    fn folder_in(&self, folder: &str) -> Result<PathBuf> {
        let folder = self.folder.join(folder);
        std::fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
        Ok(folder)
    }

    /// Searches for `minutes`; a crash input is an error that says how to reproduce it. A search that a slow input
    /// ended continues.
    fn search(&self, target: &str, minutes: f64) -> Result<()> {
        let end = Instant::now() + Duration::from_secs_f64(minutes * 60.0);
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if self.search_for(target, left)? || left.is_zero() {
                return Ok(());
            }
        }
    }

    /// Runs libFuzzer and prints its counts; returns false if the search ended early.
    fn search_for(&self, target: &str, time: Duration) -> Result<bool> {
        let (new, finds) = (self.folder_in(&format!("corpus/{target}"))?, self.folder_in("finds")?);
        let mut words = vec![
            // 0 would be without bound.
            format!("-max_total_time={}", time.as_secs_f64().ceil().max(1.0)),
            "-print_final_stats=1".to_string(),
            format!("-artifact_prefix={}/{target}-", finds.display()),
        ];
        let dictionary = format!("fuzz/dictionaries/{target}.dict");
        if self.root.join(&dictionary).is_file() {
            words.push(format!("-dict={dictionary}"));
        }
        // The first folder takes new inputs.
        words.extend([new.display().to_string(), format!("{CORPUS}/{target}")]);
        let output = self.run(target).args(words).output()?;
        println!("{}", counted(target, &output.stderr));
        if output.success {
            return Ok(true);
        }
        match libfuzzer_output::found(&output.stderr) {
            Some(file) => self.check_crash(target, file, &output).map(|()| false),
            None => {
                show_end(&output.stderr);
                bail!("the search ended before its time; see above")
            }
        }
    }

    /// Runs the crash input alone: a stalled machine makes any input look slow.
    fn check_crash(&self, target: &str, file: &str, output: &Output) -> Result<()> {
        let again = self.run(target).args([file]).output()?;
        if again.success && libfuzzer_output::reason(&output.stderr).contains("timeout") {
            println!("{file} was slow in the search, not alone");
            return Ok(());
        }
        let smaller = self.shrink(target, file)?;
        show_end(&output.stderr);
        let reason = libfuzzer_output::reason(&output.stderr);
        bail!("crash input: {reason}; reproduce with: cargo run -p fuzz -- {target} {smaller}")
    }

    /// Returns the smallest input that still fails, beside the original.
    fn shrink(&self, target: &str, file: &str) -> Result<String> {
        let small = format!("{file}-small");
        let how = ["-minimize_crash=1".to_string(), format!("-max_total_time={SHRINK_SECONDS}")];
        self.run(target)
            .args(how)
            .args([format!("-exact_artifact_path={small}"), file.to_string()])
            .output()?;
        Ok(if Path::new(&small).is_file() { small } else { file.to_string() })
    }

    /// Adds the fewest new inputs that reach new edges to the corpus in the source tree; if there are too many, some
    /// of every length.
    fn keep(&self, target: &str) -> Result<()> {
        let (kept, new) = (self.root.join(CORPUS).join(target), self.folder_in(&format!("corpus/{target}"))?);
        let before = files(&kept)?;
        if before.len() >= KEPT_INPUTS_MAX {
            println!("{target}: {CORPUS}/{target} has {} inputs, and takes no more", before.len());
            return Ok(());
        }
        let how = ["-set_cover_merge=1", "-use_counters=0"].map(str::to_string);
        let output = self
            .run(target)
            .args(how)
            .args([format!("-max_len={KEPT_BYTES_MAX}")])
            .args([&kept, &new])
            .output()?;
        if !output.success {
            show_end(&output.stderr);
            bail!("merging new inputs into {} failed; see above", kept.display());
        }
        let mut added: Vec<_> = files(&kept)?.into_iter().filter(|file| !before.contains(file)).collect();
        added.sort_by_key(|file| std::fs::metadata(file).map_or(u64::MAX, |found| found.len()));
        let free = (KEPT_INPUTS_MAX - before.len()).min(added.len());
        for at in indexes_to_drop(added.len(), free) {
            let file = &added[at];
            std::fs::remove_file(file).with_context(|| format!("removing {}", file.display()))?;
        }
        println!("{target}: {free} inputs added to {CORPUS}/{target}");
        Ok(())
    }
}

/// Returns the indexes to drop so that `free` of `all` remain, spread evenly.
fn indexes_to_drop(all: usize, free: usize) -> impl Iterator<Item = usize> {
    (0..all).filter(move |at| (at + 1) * free / all == at * free / all)
}

fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let listed = std::fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))?;
    listed.map(|entry| Ok(entry?.path())).collect()
}

fn show_end(log: &str) {
    let lines: Vec<&str> = log.lines().collect();
    lines.iter().skip(lines.len().saturating_sub(FIND_LINES)).for_each(|line| println!("{line}"));
}

/// Returns libFuzzer's counts in one line.
fn counted(target: &str, log: &str) -> String {
    let shown = |number: Option<u64>| number.map_or_else(|| "?".to_string(), |number| number.to_string());
    format!(
        "{target}: {} inputs, {} executions/s, coverage {} edges, {} new inputs",
        shown(libfuzzer_output::stat(log, "number_of_executed_units")),
        shown(libfuzzer_output::stat(log, "average_exec_per_sec")),
        shown(libfuzzer_output::coverage(log)),
        shown(libfuzzer_output::stat(log, "new_units_added")),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_inputs_are_spread_over_all_lengths() {
        let left = |all: usize, free: usize| indexes_to_drop(all, free).collect::<Vec<_>>();
        assert_eq!(left(6, 3), [0, 2, 4]);
        assert_eq!(left(4, 0), [0, 1, 2, 3]);
        assert!(left(0, 0).is_empty() && left(5, 5).is_empty());
        assert!((0..200).all(|all| (0..=all).all(|free| left(all, free).len() == all - free)));
    }
}
