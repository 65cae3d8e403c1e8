//! The simulator's part of a pull request: some seeds in each world, plans that end equally there and on this machine,
//! every kept plan, the determinism check, and a point of a study.
//!
//! Bounded to a few minutes; long runs are `cargo sim run`'s, sharded over machines (`ci/sim-farm.yaml`).

use std::path::Path;

use anyhow::Result;

use crate::command::{cargo, target_dir};
use crate::interop::packages::Packages;
use crate::steps::Steps;

/// Runs by name.
const RUNS: [(&str, &[&str]); 11] = [
    ("sim madsim", &["sim", "run", "--seeds", "1..119", "--size", "smoke", "--minutes", "1"]),
    ("sim madsim full", &["sim", "run", "--seeds", "121..151", "--minutes", "1"]),
    (
        "sim tables",
        &["sim", "run", "--seeds", "1..61", "--size", "smoke", "--minutes", "1", "--profile", "tables"],
    ),
    (
        "sim turmoil",
        &["sim", "run", "--seeds", "1..21", "--size", "smoke", "--minutes", "1", "--world", "turmoil"],
    ),
    (
        "sim keyed",
        &["sim", "run", "--seeds", "1..61", "--size", "smoke", "--minutes", "0.5", "--world", "keyed"],
    ),
    ("sim trials", &["sim", "trials", "--seeds", "1..181"]),
    ("sim twice", &["sim", "twice", "--seeds", "1..11", "--size", "smoke"]),
    ("sim twice keyed", &["sim", "twice", "--seeds", "1..11", "--size", "smoke", "--world", "keyed"]),
    ("sim plans", &["sim", "plans"]),
    ("sim study", &["sim", "study", "scale", "--points", "1"]),
    // Tests that need madsim's interception.
    (
        "sim tests",
        &[
            "test",
            "--quiet",
            "--package",
            "sim",
            "--profile",
            "sim",
            "--config",
            "build.rustflags=['--cfg','madsim']",
            "--test",
            "keyed",
            "--test",
            "madsim",
        ],
    ),
];

/// Determined plans. Runs on the machine mostly wait: more at a time than there are processors.
const AGREE: [&str; 7] = ["sim", "agree", "--plans", "20", "--jobs", "4", "--kudu"];

/// Runs all of them.
pub(crate) fn run(root: &Path, steps: &mut Steps) {
    for (name, words) in RUNS {
        steps.run(name, || -> Result<()> { cargo(root, words) });
    }
    steps.run("sim agree", || agree(root));
}

/// Compares worlds; the real tool checks the clusters on this machine.
fn agree(root: &Path) -> Result<()> {
    let packages = Packages::fetch(root, &target_dir()?.join("interop"))?;
    let kudu = packages.kudu().display().to_string();
    cargo(root, &[&AGREE[..], &[kudu.as_str()]].concat())
}

/// Runs a few seeds, as long as the build is warm.
pub(crate) fn quick(root: &Path, steps: &mut Steps) {
    let words = ["sim", "run", "--seeds", "1..41", "--size", "smoke", "--minutes", "1"];
    steps.run("sim madsim", || -> Result<()> { cargo(root, &words) });
}
