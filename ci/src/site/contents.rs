//! Contents of the site: which page of the tree is in which part, in which order.
//!
//! A row names a page, or a folder with all its further pages. Every page of the tree must belong to a row
//! (`cargo ci tidy`), so that a new page is found on the site without another table.

use std::path::{Path, PathBuf};

/// Folder of the pages that the program writes.
pub(crate) const REFERENCE: &str = "reference";

/// A part of the book: its title, and rows of path and title. Without a title a page has that of its first heading.
type Part = (&'static str, &'static [(&'static str, &'static str)]);

const PARTS: [Part; 8] = [
    ("", &[("README.md", "Overview and quick start")]),
    ("Concepts and design", &[("engine/", "Storage engine"), ("node/README.md", "Servers and client")]),
    (
        "Operations",
        &[
            ("node/OPERATIONS.md", "Operations and runbooks"),
            ("node/TOOLS.md", ""),
            ("node/client/python/", "Python client"),
            ("node/", ""),
            (".github/SECURITY.md", ""),
            (".github/CHANGELOG.md", ""),
        ],
    ),
    (
        "Reference",
        &[
            ("reference/settings.md", "Settings"),
            ("reference/metrics.md", "Metrics"),
            ("reference/commands.md", "Commands"),
        ],
    ),
    ("Protocol compatibility", &[("ci/COMPATIBILITY.md", "Clients and upstream's tests")]),
    (
        "Verification",
        &[
            ("sim/README.md", "Simulator"),
            ("sim/", ""),
            ("spec/README.md", "Specifications"),
            ("spec/", ""),
            ("fuzz/README.md", "Fuzzing"),
            ("fuzz/", ""),
        ],
    ),
    ("Performance", &[("benches/README.md", "Measurements"), ("benches/", "")]),
    ("Contributing", &[("ci/README.md", "Checks"), ("ci/", "")]),
];

/// Returns true for a page of the tree.
pub(crate) fn is_page(file: &Path) -> bool {
    file.extension().is_some_and(|extension| extension == "md")
}

/// Returns the place of a page or a picture on the site: that in the tree, but not in a hidden folder.
pub(crate) fn place(file: &Path) -> &Path {
    file.strip_prefix(".github").unwrap_or(file)
}

/// Returns part and row of a page: its own row, else that of the innermost folder.
fn row_of(file: &Path) -> Option<(usize, usize)> {
    let parts = PARTS.iter().enumerate();
    let rows =
        parts.flat_map(|(part, (_, rows))| rows.iter().enumerate().map(move |(row, of)| (part, row, of.0)));
    let of_page = rows.filter(|(_, _, path)| match path.ends_with('/') {
        true => file.starts_with(path),
        false => file == Path::new(path),
    });
    of_page.max_by_key(|(_, _, path)| path.len()).map(|(part, row, _)| (part, row))
}

/// Adds the pages that no part of the site has.
pub(crate) fn check(files: &[PathBuf], findings: &mut Vec<String>) {
    for file in files.iter().filter(|file| is_page(file) && row_of(file).is_none()) {
        findings.push(format!("{}: in no part of the site; see ci/src/site/contents.rs", file.display()));
    }
}

/// Returns the list of chapters in mdbook's form. `heading` gives the first heading of a page.
pub(super) fn summary(pages: &[PathBuf], heading: impl Fn(&Path) -> String) -> String {
    let mut text = "# Summary\n".to_owned();
    for (part, (title, rows)) in PARTS.iter().enumerate() {
        if !title.is_empty() {
            text.push_str(&format!("\n# {title}\n"));
        }
        text.push('\n');
        for (row, (_, given)) in rows.iter().enumerate() {
            let mut of_row: Vec<_> = pages.iter().filter(|page| row_of(page) == Some((part, row))).collect();
            of_row.sort();
            for (at, page) in of_row.into_iter().enumerate() {
                let is_first = at == 0 && !given.is_empty();
                let name = if is_first { (*given).to_owned() } else { heading(page) };
                let bullet = if title.is_empty() { "" } else { "- " };
                text.push_str(&format!("{bullet}[{name}]({})\n", place(page).display()));
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(names: &[&str]) -> Vec<PathBuf> {
        names.iter().map(PathBuf::from).collect()
    }

    #[test]
    fn pages_follow_their_rows_and_have_titles() {
        let pages =
            paths(&["sim/BUGS.md", "README.md", "sim/README.md", ".github/SECURITY.md", "ci/STYLE.md"]);
        let summary = summary(&pages, |page| format!("heading of {}", page.display()));
        let lines: Vec<&str> = summary.lines().filter(|line| line.contains('[')).collect();
        let expected = [
            "[Overview and quick start](README.md)",
            "- [heading of .github/SECURITY.md](SECURITY.md)",
            "- [Simulator](sim/README.md)",
            "- [heading of sim/BUGS.md](sim/BUGS.md)",
            "- [heading of ci/STYLE.md](ci/STYLE.md)",
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn a_page_in_no_part_is_found() {
        let mut findings = Vec::new();
        check(&paths(&["node/NEW.md", "elsewhere/README.md", "elsewhere/x.rs"]), &mut findings);
        assert_eq!(findings, ["elsewhere/README.md: in no part of the site; see ci/src/site/contents.rs"]);
    }
}
