//! Concurrent and unsafe code under loom and under Miri: every interleaving, and every rule of unsafe code.
//!
//! Both build the engine once more, each into a separate folder under the target folder: loom replaces std's types,
//! and Miri needs a nightly toolchain. Without one the step fails with the command that installs it.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use crate::command::CommandLine;

/// Prefix of the names of loom's tests.
const LOOM_TESTS: &str = "loom_";
/// Preemptions of a thread that loom explores, for a pull request and for the longer run.
const PREEMPTIONS: [(&str, &str); 2] = [("2", "a pull request's"), ("3", "all that is affordable")];
/// Tests that Miri runs: those of modules with unsafe code, and of their users.
const MIRI_TESTS: &str = "memstore";

const MIRI_INSTALL: &str = "rustup toolchain install nightly --profile minimal --component miri,rust-src";

/// Explores interleavings with loom; `far` allows more preemptions.
pub(crate) fn loom(root: &Path, far: bool) -> Result<()> {
    let (preemptions, whose) = PREEMPTIONS[usize::from(far)];
    println!("loom: up to {preemptions} preemptions, {whose} bound");
    let mut flags = std::env::var("RUSTFLAGS").unwrap_or_default();
    flags.push_str(" --cfg loom");
    CommandLine::cargo(root)
        .args(["test", "--quiet", "--package", "engine", "--lib", "--target-dir"])
        .args([target(root, "loom")])
        .args([LOOM_TESTS])
        .env("RUSTFLAGS", flags.trim())
        .env("LOOM_MAX_PREEMPTIONS", preemptions)
        .run()
}

/// Runs the unit tests of unsafe code under Miri.
pub(crate) fn miri(root: &Path) -> Result<()> {
    let found = CommandLine::new("cargo")
        .args(["+nightly", "miri", "--version"])
        .env("RUSTUP_AUTO_INSTALL", "0")
        .dir(root)
        .output();
    if !found.is_ok_and(|found| found.success) {
        bail!("there is no nightly toolchain with Miri: {MIRI_INSTALL}");
    }
    CommandLine::new("cargo")
        .args(["+nightly", "miri", "test", "--quiet", "--package", "engine", "--lib", "--target-dir"])
        .args([target(root, "miri")])
        .args(["--", MIRI_TESTS])
        .dir(root)
        .run()
}

fn target(root: &Path, name: &str) -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    target.join(name)
}
