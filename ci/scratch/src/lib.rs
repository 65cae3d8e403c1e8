//! Scratch copies of the working tree, in which `cargo sim mutants` and `cargo ci spec` build patches.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

/// Makes the scratch copy `tree` equal to the working tree `root`. Equal files are left alone, so a build only sees
/// what changed. Ignored files of the copy, such as builds, stay.
pub fn copy_tree(root: &Path, tree: &Path) -> Result<()> {
    fs::create_dir_all(tree).with_context(|| format!("making {}", tree.display()))?;
    if !tree.join(".git").exists() {
        // Its own repository: inside another one, git would take paths as that one's.
        git(tree, &["init", "--quiet", "."])?;
    }
    let files = files_of(root)?;
    for file in files_of(tree)?.difference(&files) {
        let copy = tree.join(file);
        fs::remove_file(&copy).with_context(|| format!("removing {}", copy.display()))?;
    }
    for file in &files {
        let content = fs::read(root.join(file))?;
        let copy = tree.join(file);
        if fs::read(&copy).is_ok_and(|old| old == content) {
            continue;
        }
        if let Some(parent) = copy.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::write(&copy, content).with_context(|| format!("writing {}", copy.display()))?;
    }
    Ok(())
}

/// Returns the files of a tree that git would track.
fn files_of(tree: &Path) -> Result<BTreeSet<String>> {
    let listed = git(tree, &["ls-files", "-z", "--cached", "--others", "--exclude-standard"])?;
    // A file that was removed is listed until the removal is committed.
    let files = listed.split('\0').filter(|file| tree.join(file).is_file());
    Ok(files.map(str::to_string).collect())
}

/// Applies a patch to the copy.
pub fn apply(tree: &Path, patch: &Path) -> Result<()> {
    let patch = fs::canonicalize(patch).with_context(|| format!("reading {}", patch.display()))?;
    git(tree, &["apply", &patch.to_string_lossy()]).map(drop)
}

fn git(dir: &Path, words: &[&str]) -> Result<String> {
    let output = Command::new("git").current_dir(dir).args(words).output().context("starting git")?;
    if !output.status.success() {
        bail!("git {} in {}:\n{}", words.join(" "), dir.display(), String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scratch_copy_is_made_equal_again() {
        let (root, tree) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
        git(root.path(), &["init", "--quiet", "."]).expect("a repository");
        fs::write(root.path().join("x"), "as it is").expect("written");
        copy_tree(root.path(), tree.path()).expect("copied");
        fs::write(tree.path().join("x"), "patched").expect("written");
        fs::write(tree.path().join("y"), "added by a patch, or moved since").expect("written");
        copy_tree(root.path(), tree.path()).expect("copied");
        assert_eq!(fs::read_to_string(tree.path().join("x")).expect("read"), "as it is");
        assert!(!tree.path().join("y").exists());
    }

    #[test]
    fn a_patch_that_does_not_fit_is_an_error_that_says_so() {
        let tree = tempfile::tempdir().expect("a folder");
        git(tree.path(), &["init", "--quiet", "."]).expect("a repository");
        let patch = tree.path().join("x.patch");
        fs::write(&patch, "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-old\n+new\n").expect("written");
        let said = apply(tree.path(), &patch).expect_err("there is no x").to_string();
        assert!(said.contains("git apply") && said.contains("x.patch"), "{said}");
    }
}
