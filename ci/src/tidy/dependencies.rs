//! Dependencies that no source of their crate names.
//!
//! Every build compiles them, and readers of a manifest believe that the crate needs them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use toml::Table;

/// Tables of a manifest that list dependencies.
const TABLES: [&str; 3] = ["dependencies", "dev-dependencies", "build-dependencies"];

/// Adds a finding for each dependency of a member of the workspace that none of its tracked files in Rust names.
pub(super) fn check(root: &Path, files: &[PathBuf], findings: &mut Vec<String>) -> Result<()> {
    let manifests = files.iter().filter(|file| file.ends_with("Cargo.toml"));
    let folders: Vec<&Path> = manifests.filter_map(|manifest| manifest.parent()).collect();
    let mut words: BTreeMap<&Path, BTreeSet<String>> = BTreeMap::new();
    for file in files.iter().filter(|file| file.extension().is_some_and(|extension| extension == "rs")) {
        // Crates nest: a source belongs to the innermost one.
        if let Some(folder) = file.ancestors().skip(1).find(|above| folders.contains(above)) {
            let text = fs::read_to_string(root.join(file))?;
            add_words(&text, words.entry(folder).or_default());
        }
    }
    for (folder, words) in words {
        let manifest = folder.join("Cargo.toml");
        let text = fs::read_to_string(root.join(&manifest))?;
        let parsed = text.parse().with_context(|| format!("parsing {}", manifest.display()))?;
        for unused in unused(&parsed, &words) {
            let manifest = manifest.display();
            findings.push(format!("{manifest}: no source names the dependency {unused}; remove it"));
        }
    }
    Ok(())
}

/// Returns the dependencies of a manifest whose crates are not among `words`.
fn unused(manifest: &Table, words: &BTreeSet<String>) -> Vec<String> {
    let targets = manifest.get("target").and_then(|targets| targets.as_table());
    let targets =
        targets.into_iter().flat_map(|targets| targets.values().filter_map(|target| target.as_table()));
    let tables = targets.chain([manifest]).flat_map(|owner| TABLES.map(|name| owner.get(name)));
    let names = tables.flatten().filter_map(|table| table.as_table()).flat_map(|table| table.keys());
    names.filter(|name| !words.contains(&name.replace('-', "_"))).cloned().collect()
}

/// Adds the identifiers of a source.
fn add_words(text: &str, words: &mut BTreeSet<String>) {
    let parts = text.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
    words.extend(parts.filter(|part| !part.is_empty()).map(str::to_owned));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dependency_that_no_source_names_is_found() {
        let manifest = "[dependencies]\na-b.workspace = true\nc = \"1\"\n\
                        [target.'cfg(unix)'.dev-dependencies]\nd = \"1\"";
        let mut words = BTreeSet::new();
        add_words("use a_b::X; // cd", &mut words);
        assert_eq!(unused(&manifest.parse().unwrap(), &words), ["d", "c"]);
    }
}
