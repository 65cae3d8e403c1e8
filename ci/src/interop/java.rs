//! A Java program on the real Java client: `ci/java/Interop.java`, compiled and run against a cluster.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;

use super::packages::Packages;
use crate::command::CommandLine;

/// JVM options that every run needs: upstream's harness accesses these packages.
pub(super) const JVM: [&str; 5] = [
    "--add-opens=java.base/java.net=ALL-UNNAMED",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "-Xmx1g",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
];

/// Compiles the program and runs it; it prints a line per check and fails if one did.
pub(super) fn check(root: &Path, target: &Path, packages: &Packages, masters: &str) -> Result<()> {
    let classes = compile(packages, &target.join("classes"), &[root.join("ci/java/Interop.java")])?;
    fs::copy(root.join("ci/java/log4j2.properties"), classes.join("log4j2.properties"))?;
    CommandLine::new("java")
        .args(JVM)
        .args(["-cp"])
        .args([packages.class_path(&classes)])
        .args(["Interop", masters])
        .run()
}

/// Compiles sources into an emptied `classes`.
pub(super) fn compile(packages: &Packages, classes: &Path, sources: &[PathBuf]) -> Result<PathBuf> {
    if classes.exists() {
        fs::remove_dir_all(classes)?;
    }
    fs::create_dir_all(classes)?;
    CommandLine::new("javac")
        .args(["-nowarn", "-proc:none", "-d"])
        .args([classes])
        .args(["-cp"])
        .args([packages.class_path(classes)])
        .args(sources)
        .run()?;
    Ok(classes.to_path_buf())
}
