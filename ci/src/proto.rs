//! Generates `node/src/proto` from `node/proto`: protox parses, prost-build writes, no protoc needed.
//!
//! The generated files are committed, so that a build of the node needs neither.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

const SOURCES: &str = "node/proto";
const GENERATED: &str = "node/src/proto";

/// Rewrites the generated sources under `root`.
pub fn write(root: &Path) -> Result<()> {
    let out = root.join(GENERATED);
    fs::create_dir_all(&out)?;
    for stale in fs::read_dir(&out)? {
        fs::remove_file(stale?.path())?;
    }
    generate(root, &out)
}

/// Fails, naming the first file, when the committed sources differ from what `node/proto` gives.
pub fn check(root: &Path) -> Result<()> {
    let fresh = tempfile::tempdir()?;
    generate(root, fresh.path())?;
    for name in names(fresh.path())? {
        let committed = root.join(GENERATED).join(&name);
        let have = fs::read(&committed).unwrap_or_default();
        if have != fs::read(fresh.path().join(&name))? {
            bail!("{} is not what node/proto gives; run `cargo ci fix`", committed.display());
        }
    }
    Ok(())
}

fn names(dir: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir)? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

fn generate(root: &Path, out: &Path) -> Result<()> {
    let sources = root.join(SOURCES);
    let mut files = Vec::new();
    proto_files(&sources, &mut files)?;
    files.sort();
    let descriptors = protox::compile(&files, [&sources]).context("compiling node/proto")?;
    prost_build::Config::new()
        .bytes(["."])
        .btree_map(["."])
        .out_dir(out)
        .include_file("mod.rs")
        .format(false)
        .compile_fds(descriptors)
        .context("generating node/src/proto")?;
    let status = std::process::Command::new("rustfmt")
        .args(["--edition", "2024"])
        .args(names(out)?.iter().map(|name| out.join(name)))
        .status()
        .context("running rustfmt")?;
    if !status.success() {
        bail!("rustfmt failed on the generated sources");
    }
    Ok(())
}

fn proto_files(dir: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(dir).with_context(|| format!("reading {}", dir.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            proto_files(&path, files)?;
        } else if path.extension().is_some_and(|ext| ext == "proto") {
            files.push(path);
        }
    }
    Ok(())
}
