//! Generates `node/proto/src/generated` from `node/proto`: protox parses, prost-build writes, no protoc needed.
//!
//! The generated files are committed, so that building the node needs neither.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::command::CommandLine;

const SOURCES: &str = "node/proto";
/// Folder of the committed generated sources, under the workspace's folder.
pub(crate) const GENERATED: &str = "node/proto/src/generated";

/// Rewrites the generated sources under `root`.
pub(crate) fn write(root: &Path) -> Result<()> {
    let fresh = tempfile::tempdir()?;
    generate(root, fresh.path())?;
    let out = root.join(GENERATED);
    fs::create_dir_all(&out)?;
    let wanted = names(fresh.path())?;
    for stale in names(&out)?.iter().filter(|name| !wanted.contains(name)) {
        fs::remove_file(out.join(stale))?;
    }
    for name in &wanted {
        write_if_changed(&out.join(name), &fs::read(fresh.path().join(name))?)?;
    }
    Ok(())
}

/// Writes a file only if its content changed, so that nothing is rebuilt for it.
fn write_if_changed(path: &Path, content: &[u8]) -> Result<()> {
    if fs::read(path).unwrap_or_default() != content {
        fs::write(path, content)?;
    }
    Ok(())
}

/// Fails with the first file whose committed text differs from the text generated from `node/proto`.
pub(crate) fn check(root: &Path) -> Result<()> {
    let fresh = tempfile::tempdir()?;
    generate(root, fresh.path())?;
    let wanted = names(fresh.path())?;
    if let Some(stale) = names(&root.join(GENERATED))?.iter().find(|name| !wanted.contains(name)) {
        bail!("{GENERATED}/{stale} comes from no file of {SOURCES}; run `cargo ci fix`");
    }
    for name in &wanted {
        let committed = fs::read(root.join(GENERATED).join(name)).unwrap_or_default();
        if committed != fs::read(fresh.path().join(name))? {
            bail!("{GENERATED}/{name} is not what {SOURCES} gives; run `cargo ci fix`");
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
        .context("generating node/proto/src/generated")?;
    // The repository's own settings, independent of `out`: `write` and `check` must produce the same text.
    CommandLine::new("rustfmt")
        .args(["--edition", "2024", "--config-path"])
        .args([root.join("rustfmt.toml")])
        .args(names(out)?.iter().map(|name| out.join(name)))
        .run()
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
