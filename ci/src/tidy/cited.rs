//! Cited paths: what pages and TLA+ modules name must exist.
//!
//! A path in backticks (or anywhere in a TLA+ comment) is checked if it begins with a folder of the repository; a link
//! of a page is checked relative to the page, and its anchor against the headings there. A module may be cited without
//! its `.rs` or `/mod.rs`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::comments;
use crate::site::markdown::{anchors, normalized, page_links};

/// Folders of the repository that cited paths begin with.
const FOLDERS: [&str; 8] = ["benches/", "ci/", "engine/", "fuzz/", "node/", "sim/", "spec/", ".github/"];

/// All tracked files, and the folders around them.
pub(super) struct Tree {
    paths: BTreeSet<PathBuf>,
    /// Anchors of each page.
    anchors: BTreeMap<PathBuf, BTreeSet<String>>,
}

impl Tree {
    pub(super) fn new(files: &[PathBuf]) -> Self {
        let paths = files.iter().flat_map(|file| file.ancestors().map(Path::to_path_buf)).collect();
        Tree { paths, anchors: BTreeMap::new() }
    }

    /// Takes the anchors of a page.
    pub(super) fn add_page(&mut self, file: &Path, text: &str) {
        self.anchors.insert(file.to_path_buf(), anchors(text));
    }

    fn has(&self, path: &Path) -> bool {
        let path = normalized(path);
        self.paths.contains(&path) || self.paths.contains(&path.with_added_extension("rs"))
    }
}

/// Adds the paths that `text` cites and the tree lacks.
pub(super) fn check(file: &Path, text: &str, tree: &Tree, findings: &mut Vec<String>) {
    let mut missing = |line: usize, path: &str| {
        findings.push(format!("{}:{line}: {path}: no such file", file.display()));
    };
    match file.extension().and_then(|ext| ext.to_str()) {
        Some("md") => {
            for (number, line) in (1..).zip(text.lines()) {
                for path in line.split('`').skip(1).step_by(2).flat_map(cited) {
                    if !tree.has(Path::new(&path)) {
                        missing(number, &path);
                    }
                }
            }
            check_links(file, text, tree, findings);
        }
        Some("tla") => {
            for line in comments::tla(text) {
                for path in cited(&line.text).into_iter().filter(|path| !tree.has(Path::new(path))) {
                    missing(line.line, &path);
                }
            }
        }
        _ => {}
    }
}

/// Returns the paths among the words of a text; patterns such as `fuzz/corpus/<target>` are none.
fn cited(text: &str) -> Vec<String> {
    let is_path = |c: char| c.is_ascii_alphanumeric() || "._-/".contains(c);
    let mut paths = Vec::new();
    for word in text.split([' ', ',', ';', '(', ')', '"']) {
        let word = word.trim_end_matches(['.', ':']).split(':').next().unwrap_or_default();
        if FOLDERS.iter().any(|folder| word.starts_with(folder)) && word.chars().all(is_path) {
            paths.push(word.trim_end_matches('/').to_owned());
        }
    }
    paths
}

/// Adds the links of a page that lead to no file, or to no heading.
fn check_links(file: &Path, text: &str, tree: &Tree, findings: &mut Vec<String>) {
    let folder = file.parent().unwrap_or(Path::new(""));
    for (number, link) in page_links(text) {
        let Some((path, anchor)) = link.parts() else { continue };
        let target = if path.is_empty() { file.to_path_buf() } else { normalized(&folder.join(path)) };
        let mut add = |fault| findings.push(format!("{}:{number}: {}: {fault}", file.display(), link.target));
        if !tree.has(&target) {
            add("no such file");
        } else if let (Some(anchor), Some(known)) = (anchor, tree.anchors.get(&target))
            && !known.contains(anchor)
        {
            add("no such heading");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(file: &str, text: &str) -> Vec<String> {
        let files = ["engine/src/raft/vote.rs", "sim/README.md", "sim/PLAN.md"].map(PathBuf::from);
        let mut findings = Vec::new();
        let mut tree = Tree::new(&files);
        tree.add_page(Path::new("sim/README.md"), "# x\n");
        check(Path::new(file), text, &tree, &mut findings);
        findings
    }

    #[test]
    fn an_anchor_without_its_heading_is_found() {
        assert_eq!(findings("sim/README.md", "[x](#x)"), Vec::<String>::new());
        let expected = ["README.md:1: sim/README.md#gone: no such heading"];
        assert_eq!(findings("README.md", "[x](sim/README.md#gone)"), expected);
    }

    #[test]
    fn files_folders_and_modules_that_exist_may_be_cited() {
        let text = "`engine/src/raft/vote.rs`, `engine/src/raft` and `engine/src/raft/vote`, `fuzz/corpus/<target>`\n";
        assert_eq!(findings("README.md", text), Vec::<String>::new());
        assert_eq!(
            findings("sim/README.md", "[plan](PLAN.md) [home](../sim/README.md#x)"),
            Vec::<String>::new()
        );
    }

    #[test]
    fn a_path_that_is_gone_is_found_at_its_line() {
        let expected = ["README.md:2: engine/src/raft/hold.rs: no such file"];
        assert_eq!(findings("README.md", "one\nsee `engine/src/raft/hold.rs`.\n"), expected);
        assert_eq!(findings("sim/README.md", "[x](GONE.md)"), ["sim/README.md:1: GONE.md: no such file"]);
        assert_eq!(findings("spec/X.tla", "A == 1\n\\* as engine/src/hold.rs does\n").len(), 1);
    }
}
