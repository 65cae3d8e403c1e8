//! The two programs of an upgrade.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};

use crate::command::{CommandLine, cargo, target_dir};

/// Builds the program of this source tree.
pub(super) fn of_tree(root: &Path) -> Result<PathBuf> {
    cargo(root, &["build", "--quiet", "--package", "node"])?;
    Ok(target_dir()?.join("debug/nyala"))
}

/// Builds the program of a tag or commit, in a work tree of its own that later runs use again.
pub(super) fn of_commit(root: &Path, commit: &str) -> Result<PathBuf> {
    let folder = target_dir()?.join("upgrade");
    let (source, build) = (folder.join("source"), folder.join("build"));
    let git = |dir: &Path| CommandLine::new("git").dir(dir);
    if source.join(".git").exists() {
        git(&source).args(["checkout", "--quiet", "--detach", commit]).run()?;
    } else {
        git(root).args(["worktree", "prune"]).run()?;
        let words = ["worktree", "add", "--quiet", "--detach"];
        git(root).args(words).args([source.as_os_str(), commit.as_ref()]).run()?;
    }
    CommandLine::cargo(&source)
        .args(["build", "--quiet", "--package", "node"])
        .env("CARGO_TARGET_DIR", &build)
        .run()?;
    Ok(build.join("debug/nyala"))
}

/// Returns what the program says of its version.
pub(super) fn version(program: &Path) -> Result<String> {
    let output = CommandLine::new(program).args(["--version"]).output()?;
    ensure!(output.success, "{} --version:\n{}", program.display(), output.stderr);
    Ok(output.stdout)
}
