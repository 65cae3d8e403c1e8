//! The mutants' part of `cargo ci tidy`: each patch of `sim/mutants/` must apply, or its mutant is lost, and no two may
//! make the same change, or it counts twice.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::command::CommandLine;

const FOLDER: &str = "sim/mutants";

/// Fails with the patches that no longer apply, and with those that repeat another one.
pub(crate) fn check(root: &Path) -> Result<()> {
    let (mut stale, mut patches) = (Vec::new(), Vec::new());
    for entry in std::fs::read_dir(root.join(FOLDER)).with_context(|| format!("listing {FOLDER}"))? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if !name.ends_with(".patch") {
            continue;
        }
        let patch = format!("{FOLDER}/{name}");
        let text = std::fs::read_to_string(root.join(&patch)).with_context(|| format!("reading {patch}"))?;
        let applied = CommandLine::new("git").dir(root).args(["apply", "--check", &patch]).output()?;
        if !applied.success {
            stale.push(name.clone());
        }
        patches.push((name, text));
    }
    stale.sort();
    ensure!(!patches.is_empty(), "{FOLDER} holds no patch");
    ensure!(
        stale.is_empty(),
        "these patches no longer apply; write them again for the code as it is: {}",
        stale.join(", ")
    );
    let repeated = repeated(&patches);
    ensure!(repeated.is_empty(), "these patches make the same change; keep one: {}", repeated.join("; "));
    Ok(())
}

/// Returns the names of patches that make the same change, a text for each change.
fn repeated(patches: &[(String, String)]) -> Vec<String> {
    let mut by_change: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for (name, text) in patches {
        by_change.entry(change_of(text)).or_default().push(name);
    }
    let several = by_change.into_values().filter(|names| names.len() > 1);
    several
        .map(|mut names| {
            names.sort_unstable();
            names.join(", ")
        })
        .collect()
}

/// Returns the files that a patch changes, with what it removes and what it adds. Lines may be broken and indented in
/// any way; the text above the first file, the places of the changes and the lines around them do not count.
fn change_of(patch: &str) -> String {
    let (mut change, mut removed, mut added) = (String::new(), String::new(), String::new());
    let without_spaces = |line: &str| line.split_whitespace().collect::<String>();
    for line in patch.lines().skip_while(|line| !line.starts_with("--- ")) {
        if let Some(file) = line.strip_prefix("+++ ") {
            change += &format!("{removed}\n{added}\n{file}\n");
            (removed, added) = Default::default();
        } else if let Some(gone) = line.strip_prefix('-').filter(|_| !line.starts_with("--- ")) {
            removed += &without_spaces(gone);
        } else if let Some(new) = line.strip_prefix('+') {
            added += &without_spaces(new);
        }
    }
    change + &removed + "\n" + &added
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patch(name: &str, text: &str) -> (String, String) {
        (name.to_string(), text.to_string())
    }

    #[test]
    fn patches_that_make_the_same_change_are_found() {
        let one = "# Rows are lost.\n--- a/x.rs\n+++ b/x.rs\n@@ -1,2 +1,2 @@\n a\n-  b;\n+  c(d);\n";
        let other = "# The same.\n--- a/x.rs\n+++ b/x.rs\n@@ -7,2 +8,3 @@\n-b;\n+c(\n+    d);\n e\n";
        let elsewhere = other.replace("x.rs", "y.rs");
        let opposite = other.replace("\n-b;", "\n+b;");
        let all = [patch("1", one), patch("2", other), patch("3", &elsewhere), patch("4", &opposite)];
        assert_eq!(repeated(&all), ["1, 2"]);
    }
}
