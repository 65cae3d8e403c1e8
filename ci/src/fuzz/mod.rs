//! Searching for new inputs of the fuzz targets: libFuzzer over each of them in turn.
//!
//! Needs a nightly toolchain and cargo-fuzz; a machine without them is told how to get them. New inputs and finds go
//! under the target folder. Only `--keep` writes into the source tree: it adds to the corpora what reaches new edges.

mod said;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;

use crate::command::{Output, Run};
use crate::steps::Steps;

const HARNESS: &str = "fuzz/harness";
const CORPUS: &str = "fuzz/corpus";
/// A single input that takes longer is a hang.
const INPUT_SECONDS_MAX: u32 = 10;
/// Of the whole process: what it found stays in memory. A target's own bound is far below.
const RSS_MB_MAX: u32 = 4096;
/// How long a find is made smaller.
const SHRINK_SECONDS: u32 = 60;
/// Longer inputs are cut when they are kept.
const KEPT_BYTES_MAX: u32 = 2048;
/// No corpus grows beyond so many inputs by itself: every `cargo test` replays them all.
const KEPT_INPUTS_MAX: usize = 64;
/// Of the counts in `/proc/self/stat`.
const TICKS_PER_SECOND: f64 = 100.0;
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
    /// Afterwards, adds the fewest of the new inputs that reach all new edges to fuzz/corpus
    #[arg(long)]
    keep: bool,
}

/// Builds the harness and lets it search, target after target; a find fails its step.
pub fn run(root: &Path, options: &Options, steps: &mut Steps) {
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

/// What ended child processes took; nothing is known where there is no `/proc`.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    said::children_ticks(&stat).unwrap_or_default() as f64 / TICKS_PER_SECOND
}

/// The one program for all targets, and the targets to run.
fn build(root: &Path, options: &Options) -> Result<(Harness, Vec<String>)> {
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

/// Rustup would install a toolchain that is missing.
fn nightly() -> Run {
    Run::new("cargo").args(["+nightly"]).env("RUSTUP_AUTO_INSTALL", "0")
}

/// The machine's triple, by the nightly compiler's word.
fn host() -> Result<String> {
    let said = Run::new("rustc").args(["+nightly", "-vV"]).env("RUSTUP_AUTO_INSTALL", "0").output();
    let said = said.ok().filter(|said| said.success);
    let host = said.and_then(|said| {
        said.stdout.lines().find_map(|line| line.strip_prefix("host: ")).map(str::to_string)
    });
    host.context("there is no nightly toolchain: rustup toolchain install nightly --profile minimal")
}

/// The targets asked for, all without any; each has a corpus.
fn targets(root: &Path, asked: &[String]) -> Result<Vec<String>> {
    let corpora = root.join(CORPUS);
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

struct Harness {
    program: PathBuf,
    /// Where everything of the search lies.
    folder: PathBuf,
    root: PathBuf,
}

impl Harness {
    /// libFuzzer on a target.
    fn run(&self, target: &str) -> Run {
        Run::new(&self.program)
            .dir(&self.root)
            .env("NYALA_FUZZ_TARGET", target)
            // The harness and its dependencies are one program: a symbol twice is no error here.
            .env("ASAN_OPTIONS", "detect_odr_violation=0")
            .args([format!("-timeout={INPUT_SECONDS_MAX}"), format!("-rss_limit_mb={RSS_MB_MAX}")])
    }

    fn made(&self, folder: &str) -> Result<PathBuf> {
        let folder = self.folder.join(folder);
        std::fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
        Ok(folder)
    }

    /// Searches for so long; a find is an error that says how to see it again. A search that an input ended which is
    /// none goes on.
    fn search(&self, target: &str, minutes: f64) -> Result<()> {
        let end = Instant::now() + Duration::from_secs_f64(minutes * 60.0);
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if self.search_for(target, left)? || left.is_zero() {
                return Ok(());
            }
        }
    }

    /// Prints what libFuzzer counted; false if the search ended before its time.
    fn search_for(&self, target: &str, time: Duration) -> Result<bool> {
        let (new, finds) = (self.made(&format!("corpus/{target}"))?, self.made("finds")?);
        let mut words = vec![
            // 0 would be for ever.
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
        match said::found(&output.stderr) {
            Some(file) => self.judge(target, file, &output).map(|()| false),
            None => {
                show_end(&output.stderr);
                bail!("the search ended before its time; see above")
            }
        }
    }

    /// Runs the find by itself: a machine that stood still makes an input look slow.
    fn judge(&self, target: &str, file: &str, output: &Output) -> Result<()> {
        let again = self.run(target).args([file]).output()?;
        if again.success && said::reason(&output.stderr).contains("timeout") {
            println!("{file} was slow in the search, but not by itself");
            return Ok(());
        }
        let smaller = self.shrink(target, file)?;
        show_end(&output.stderr);
        let reason = said::reason(&output.stderr);
        bail!("found something: {reason}; see it again with: cargo run -p fuzz -- {target} {smaller}")
    }

    /// The smallest input that still fails, beside the one found.
    fn shrink(&self, target: &str, file: &str) -> Result<String> {
        let small = format!("{file}-small");
        let how = ["-minimize_crash=1".to_string(), format!("-max_total_time={SHRINK_SECONDS}")];
        self.run(target)
            .args(how)
            .args([format!("-exact_artifact_path={small}"), file.to_string()])
            .output()?;
        Ok(if Path::new(&small).is_file() { small } else { file.to_string() })
    }

    /// Adds the fewest new inputs to the corpus in the source tree that reach what it does not: if they are too many,
    /// some of every length.
    fn keep(&self, target: &str) -> Result<()> {
        let (kept, new) = (self.root.join(CORPUS).join(target), self.made(&format!("corpus/{target}"))?);
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
        let room = (KEPT_INPUTS_MAX - before.len()).min(added.len());
        for at in left_out(added.len(), room) {
            let file = &added[at];
            std::fs::remove_file(file).with_context(|| format!("removing {}", file.display()))?;
        }
        println!("{target}: {room} inputs added to {CORPUS}/{target}");
        Ok(())
    }
}

/// Which of so many go, so that `room` stay, spread evenly.
fn left_out(all: usize, room: usize) -> impl Iterator<Item = usize> {
    (0..all).filter(move |at| (at + 1) * room / all == at * room / all)
}

fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let listed = std::fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))?;
    listed.map(|entry| Ok(entry?.path())).collect()
}

fn show_end(log: &str) {
    let lines: Vec<&str> = log.lines().collect();
    lines.iter().skip(lines.len().saturating_sub(FIND_LINES)).for_each(|line| println!("{line}"));
}

/// What libFuzzer counted, in a line.
fn counted(target: &str, log: &str) -> String {
    let shown = |number: Option<u64>| number.map_or_else(|| "?".to_string(), |number| number.to_string());
    format!(
        "{target}: {} inputs, {} executions/s, coverage {} edges, {} new inputs",
        shown(said::stat(log, "number_of_executed_units")),
        shown(said::stat(log, "average_exec_per_sec")),
        shown(said::coverage(log)),
        shown(said::stat(log, "new_units_added")),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_spread_over_all_lengths() {
        let left = |all: usize, room: usize| left_out(all, room).collect::<Vec<_>>();
        assert_eq!(left(6, 3), [0, 2, 4]);
        assert_eq!(left(4, 0), [0, 1, 2, 3]);
        assert!(left(0, 0).is_empty() && left(5, 5).is_empty());
        assert!((0..200).all(|all| (0..=all).all(|room| left(all, room).len() == all - room)));
    }
}
