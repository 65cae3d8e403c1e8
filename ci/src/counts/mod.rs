//! `cargo ci counts`: instructions of the hot paths, compared with their thresholds.
//!
//! ```text
//!   benches/src/paths ──▶ benches/counts.rs ──▶ gungraun-runner ──▶ callgrind ──▶ JSON, one line a path
//!   benches/COUNTS.toml ◀── `--bless` ──── thresholds.rs ──── more than 5 % above its threshold: red
//! ```
//!
//! Valgrind emulates a processor, so the machine does not select the routines of memchr or crc32c;
//! [`thresholds::Toolchain`] lists the rest that does. The runner is a program of the library's version, installed
//! under `target/tools`: linking it would add its hundred dependencies to the lock file.

mod thresholds;

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use serde::Deserialize;

use crate::command::{CommandLine, target_dir};
use crate::tools;
use thresholds::{Thresholds, Toolchain};

const FILE: &str = "benches/COUNTS.toml";
const LIBRARY: &str = "gungraun";
const RUNNER: &str = "gungraun-runner";

#[derive(Parser, Default)]
pub(crate) struct CountsOptions {
    /// Make the counts the new thresholds
    #[arg(long)]
    bless: bool,
}

/// Checks the counts as a part of `cargo ci`; prints so and passes where valgrind cannot be installed.
pub(crate) fn check(root: &Path) -> Result<()> {
    if let Err(missing) = tools::require(&["valgrind"], &["valgrind"]) {
        println!("skipped: {missing:#}");
        return Ok(());
    }
    run(root, &CountsOptions::default())
}

pub(crate) fn run(root: &Path, options: &CountsOptions) -> Result<()> {
    tools::require(&["valgrind"], &["valgrind"])?;
    let counts = count(root, &runner(root)?)?;
    let counted = Thresholds { made: Toolchain::here()?, instructions: counts };
    let path = root.join(FILE);
    if options.bless {
        return Ok(fs::write(path, counted.show()?)?);
    }
    let bars = Thresholds::parse(&fs::read_to_string(path).with_context(|| format!("reading {FILE}"))?)?;
    let verdict = bars.compare(&counted);
    print!("{}", verdict.table);
    ensure!(verdict.failures.is_empty(), "{}", verdict.failures.join("; "));
    Ok(())
}

/// Returns the folder of the runner, which is installed there if it is missing. It is not optimized, because it only
/// starts valgrind.
fn runner(root: &Path) -> Result<PathBuf> {
    let version = locked(&fs::read_to_string(root.join("Cargo.lock"))?, LIBRARY)?;
    let place = target_dir()?.join("tools").join(format!("{RUNNER}-{version}"));
    if !place.join("bin").join(RUNNER).is_file() {
        println!("installing {RUNNER} {version} into {}", place.display());
        CommandLine::cargo(root)
            .args(["install", "--quiet", "--debug", "--locked", RUNNER, "--version"])
            .args([format!("={version}")])
            .args(["--root"])
            .args([&place])
            .run()?;
    }
    Ok(place.join("bin"))
}

/// Returns the version of a package in a lock file.
fn locked(lock: &str, name: &str) -> Result<String> {
    #[derive(Deserialize)]
    struct Lock {
        package: Vec<Package>,
    }
    #[derive(Deserialize)]
    struct Package {
        name: String,
        version: String,
    }
    let lock: Lock = toml::from_str(lock)?;
    let package = lock.package.into_iter().find(|package| package.name == name);
    Ok(package.with_context(|| format!("{name} is not locked"))?.version)
}

/// Returns the instructions by path.
fn count(root: &Path, runner: &Path) -> Result<BTreeMap<String, u64>> {
    let mut path = vec![runner.to_path_buf()];
    path.extend(env::split_paths(&env::var_os("PATH").unwrap_or_default()));
    let said = CommandLine::cargo(root)
        .args(["bench", "--quiet", "--package", "benches", "--bench", "counts", "--"])
        .args(["--output-format=json", "--parallel=auto"])
        .env("PATH", env::join_paths(path)?)
        // As programs are built, so that their libraries are not compiled once more.
        .env("CARGO_PROFILE_BENCH_DEBUG", "false")
        .env("CARGO_PROFILE_BENCH_STRIP", "debuginfo")
        .output()?;
    if !said.success {
        bail!("the count failed: {}", said.stderr);
    }
    said.stdout.lines().map(read).collect()
}

/// Reads one line of the runner: a path's name and instructions. Ids have no dots: the first underscore stands for
/// one.
fn read(line: &str) -> Result<(String, u64)> {
    let said: serde_json::Value = serde_json::from_str(line).with_context(|| format!("reading {line:?}"))?;
    let id = said["id"].as_str().context("a count of nothing")?;
    let instructions = said["profiles"][0]["data"]["total"]["metrics"]["Ir"]["values"]["new"]
        .as_u64()
        .with_context(|| format!("no instructions of {id}"))?;
    Ok((id.replacen('_', ".", 1), instructions))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_runner_is_parsed() {
        let line = r#"{"id":"cells_encode_shuffle","profiles":[{"data":{"total":{"metrics":
            {"Ir":{"values":{"new":812,"old":7}}}}}}]}"#;
        assert_eq!(read(line).unwrap(), ("cells.encode_shuffle".to_owned(), 812));
        assert!(read("{}").is_err());
    }

    #[test]
    fn the_version_is_the_locked_one() {
        let lock = "[[package]]\nname = \"gungraun\"\nversion = \"0.20.0\"\n";
        assert_eq!(locked(lock, "gungraun").unwrap(), "0.20.0");
        assert!(locked(lock, "other").is_err());
    }
}
