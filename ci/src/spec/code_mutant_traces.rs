//! `cargo ci spec --planted`: code mutants that trace checking alone must kill.
//!
//! Each patch of `sim/mutants` with a line `# Traces: random groups` is applied to a scratch copy of the working tree,
//! where randomized Raft tests run. Their own checks are off: the mutant is killed if TLC finds an event in one of the
//! traces that the spec does not allow.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::command::CommandLine;

use super::report::{self, CodeMutantRow};
use super::tlc::Tlc;
use super::trace::TraceFile;
use super::trace_checking::replay;
use scratch_tree::{apply, copy_tree};

const FOLDER: &str = "sim/mutants";
const MARK: &str = "# Traces: random groups";
/// Randomized tests per start of TLC.
const BATCH: usize = 12;
const BATCHES_MAX: usize = 6;

/// Runs each mutant whose name contains `only`; `steps` are those of a randomized test.
pub(super) fn run(root: &Path, tlc: &Tlc, only: Option<&str>, steps: u64, write: bool) -> Result<()> {
    let patches = patches(root, only)?;
    let scratch = root.join("target/planted");
    let tree = scratch.join("tree");
    let mut rows = Vec::new();
    for (path, about) in &patches {
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        copy_tree(root, &tree)?;
        apply(&tree, path).with_context(|| name.clone())?;
        let program = build(&tree, &scratch.join("target")).with_context(|| name.clone())?;
        let (groups, action) = groups(root, tlc, &program, steps)?;
        let row = CodeMutantRow { name, about: about.clone(), groups, action };
        println!("{}", report::planted_line(&row));
        rows.push(row);
    }
    if write {
        report::write(root, "planted", &report::planted(&rows))?;
    }
    let missed: Vec<&str> =
        rows.iter().filter(|row| row.action.is_none()).map(|row| row.name.as_str()).collect();
    ensure!(missed.is_empty(), "allowed by the specification in {BATCHES_MAX} x {BATCH} groups: {missed:?}");
    Ok(())
}

/// Returns the marked patches with the first lines, which describe their mutants.
fn patches(root: &Path, only: Option<&str>) -> Result<Vec<(PathBuf, String)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(root.join(FOLDER)).with_context(|| format!("listing {FOLDER}"))? {
        let path = entry?.path();
        let name = path.to_string_lossy().into_owned();
        if !name.ends_with(".patch") || only.is_some_and(|text| !name.contains(text)) {
            continue;
        }
        let text = fs::read_to_string(&path)?;
        if text.lines().any(|line| line == MARK) {
            let about = text.lines().next().unwrap_or_default().trim_start_matches("# ").to_owned();
            found.push((path, about));
        }
    }
    found.sort();
    ensure!(!found.is_empty(), "no patch in {FOLDER} has such a name and a line `{MARK}`");
    Ok(found)
}

/// Builds the patched tree's program that writes the traces.
fn build(tree: &Path, target: &Path) -> Result<PathBuf> {
    let words = ["build", "--quiet", "--package", "engine", "--example", "raft_trace"];
    let built = CommandLine::cargo(tree).env("CARGO_TARGET_DIR", target).args(words).output()?;
    ensure!(built.success, "does not build:\n{}", built.stderr);
    Ok(target.join("debug/examples/raft_trace"))
}

/// Runs randomized tests until the spec rejects a trace; returns their number and the rejected action. Their groups
/// begin with three voters (`Group::from_seed`), so that one TLC takes them together.
fn groups(root: &Path, tlc: &Tlc, program: &Path, steps: u64) -> Result<(usize, Option<&'static str>)> {
    let seeds: Vec<u64> = (1..).filter(|seed| seed % 6 < 2).take(BATCH * BATCHES_MAX).collect();
    for (number, batch) in seeds.chunks(BATCH).enumerate() {
        let mut traces = Vec::new();
        for seed in batch {
            let said = CommandLine::new(program).args([seed.to_string(), steps.to_string()]).output()?;
            ensure!(said.success, "raft_trace, seed {seed}: {}", said.stderr);
            traces.push(TraceFile::parse(&format!("seed {seed}"), &said.stdout)?);
        }
        let refused = replay(root, tlc, &traces)?;
        let place = |name: &str| traces.iter().position(|trace| trace.name == name).unwrap_or_default();
        if let Some(refusal) = refused.iter().min_by_key(|refusal| place(&refusal.trace)) {
            return Ok((number * BATCH + place(&refusal.trace) + 1, Some(refusal.action)));
        }
    }
    Ok((seeds.len(), None))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marked_patches_are_found_and_unmarked_ones_are_not() {
        let root = tempfile::tempdir().expect("a folder");
        fs::create_dir_all(root.path().join(FOLDER)).expect("a folder in it");
        let write = |name: &str, text: &str| fs::write(root.path().join(FOLDER).join(name), text);
        write("1-a.patch", "# Forgets a vote.\n# Traces: random groups\ndiff\n").expect("written");
        write("2-b.patch", "# Something else.\ndiff\n").expect("written");
        let found = patches(root.path(), None).expect("one is marked");
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].1, "Forgets a vote.");
        assert!(patches(root.path(), Some("2-b")).is_err());
    }
}
