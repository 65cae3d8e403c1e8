//! `cargo ci python`: the Python package, tested in a virtual environment of its own under `target`, and Python's
//! drivers against the SQL server.
//!
//! ```text
//!   cargo build ─► lib_nyala.so ─┐
//!   node/client/python/nyala ────┴─► target/python/package ─► stubtest, pytest (a cluster by `nyala up`)
//!                 nyala-sql ─► serve ◄─ psycopg, ADBC (node/sql/tests/drivers)
//!   --wheel: maturin build ─► pip install into a new environment ─► pytest
//! ```

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::command::{CommandLine, Compiler, cargo, target_dir};
use crate::steps::Steps;
use crate::tools;

/// Packages of the tests.
const PACKAGES: [&str; 5] = ["pytest", "pyarrow", "pandas", "polars", "mypy"];
/// Packages of the tests of drivers.
const DRIVERS: [&str; 5] = ["pytest", "pyarrow", "adbc-driver-flightsql", "psycopg[binary]", "trustme"];

#[derive(Args, Default)]
pub(crate) struct PythonOptions {
    /// Build the wheel as it is shipped, install it into a new environment, and test that
    #[arg(long)]
    wheel: bool,
}

/// Tests the package.
pub(crate) fn run(root: &Path, options: &PythonOptions, compiler: Compiler, steps: &mut Steps) {
    steps.run("python: package", || package(root, compiler));
    steps.run("python: drivers of SQL", || drivers(root, compiler));
    if options.wheel {
        steps.run("python: wheel", || wheel(root));
    }
}

/// Builds all programs and libraries for tests.
fn build(root: &Path, compiler: Compiler) -> Result<PathBuf> {
    // With the tests, which choose features of libraries: without them the step before would have built others.
    let words = ["build", "--quiet", "--workspace", "--lib", "--bins", "--examples", "--tests"];
    compiler.cargo(root, &[&words, tools::kerberos_feature()].concat())?;
    target_dir()
}

fn package(root: &Path, compiler: Compiler) -> Result<()> {
    let target = build(root, compiler)?;
    let dir = target.join("python/package/nyala");
    if dir.exists() {
        fs::remove_dir_all(&dir)?;
    }
    fs::create_dir_all(&dir)?;
    for file in fs::read_dir(sources(root).join("nyala"))? {
        let path = file?.path();
        if path.is_file() {
            fs::copy(&path, dir.join(path.file_name().context("a file has a name")?))?;
        }
    }
    fs::copy(target.join("debug/lib_nyala.so"), dir.join("_nyala.abi3.so"))?;
    let python = environment(&target.join("python/env"), &PACKAGES)?;
    let path = target.join("python/package");
    CommandLine::new(&python)
        .args(["-m", "mypy.stubtest", "nyala", "--ignore-missing-stub"])
        .env("PYTHONPATH", &path)
        .dir(&target.join("python"))
        .run()?;
    test(root, &python, Some(&path), &target.join("debug/nyala"))
}

/// Tests drivers against the SQL server.
fn drivers(root: &Path, compiler: Compiler) -> Result<()> {
    let target = build(root, compiler)?;
    let python = environment(&target.join("python/drivers"), &DRIVERS)?;
    CommandLine::new(&python)
        .args(["-m", "pytest", "-q", "-p", "no:cacheprovider"])
        .args([root.join("node/sql/tests/drivers")])
        .env("NYALA", target.join("debug/nyala"))
        .env("NYALA_SQL", target.join("debug/nyala-sql"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .run()
}

fn wheel(root: &Path) -> Result<()> {
    let words = ["build", "--quiet", "--release", "--package", "node"];
    cargo(root, &[&words, tools::kerberos_feature()].concat())?;
    let target = target_dir()?;
    let builder = environment(&target.join("python/build"), &["maturin"])?;
    let wheels = target.join("wheels");
    if wheels.exists() {
        fs::remove_dir_all(&wheels)?;
    }
    CommandLine::new(builder)
        .args(["-m", "maturin", "build", "--release", "--quiet", "--out"])
        .args([&wheels])
        .dir(&sources(root))
        .run()?;
    let files: Vec<PathBuf> =
        fs::read_dir(&wheels)?.map(|file| Ok(file?.path())).collect::<std::io::Result<_>>()?;
    ensure!(files.len() == 1, "maturin made {} wheels", files.len());
    let installed = target.join("python/installed");
    if installed.exists() {
        fs::remove_dir_all(&installed)?;
    }
    let wheel = files[0].to_str().context("the path of a wheel is text")?;
    let python = environment(&installed, &[&PACKAGES[..], &[wheel]].concat())?;
    test(root, &python, None, &target.join("release/nyala"))
}

fn sources(root: &Path) -> PathBuf {
    root.join("node/client/python")
}

/// Makes a virtual environment with these packages, unless it has them; returns its interpreter.
pub(crate) fn environment(dir: &Path, packages: &[&str]) -> Result<PathBuf> {
    let python = dir.join("bin/python");
    let stamp = dir.join("packages");
    let wanted = packages.join("\n");
    if fs::read_to_string(&stamp).is_ok_and(|has| has == wanted) {
        return Ok(python);
    }
    CommandLine::new("python3")
        .args(["-m", "venv"])
        .args([dir])
        .run()
        .context("making a virtual environment; install python3 and python3-venv")?;
    CommandLine::new(&python)
        .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"])
        .args(packages)
        .run()?;
    fs::write(stamp, wanted)?;
    Ok(python)
}

fn test(root: &Path, python: &Path, path: Option<&Path>, program: &Path) -> Result<()> {
    let mut pytest = CommandLine::new(python)
        .args(["-m", "pytest", "-q", "-p", "no:cacheprovider"])
        .args([sources(root).join("tests")])
        .env("NYALA", program)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        // Beside the sources, Python would import them without their native part.
        .dir(&target_dir()?.join("python"));
    if let Some(path) = path {
        pytest = pytest.env("PYTHONPATH", path);
    }
    pytest.run()
}
