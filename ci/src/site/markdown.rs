//! Headings and links of Markdown pages, as far as this tree uses them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

/// Returns a path without `.` and `..`.
pub(crate) fn normalized(path: &Path) -> PathBuf {
    let mut clean = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(clean.pop()),
            Component::CurDir => {}
            part => clean.push(part),
        }
    }
    clean
}

/// Returns each line outside fenced blocks with its number, from 1.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fenced = false;
    (1..).zip(text.lines()).filter(move |(_, line)| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        !fenced && !fence
    })
}

/// Returns the texts of the headings.
pub(crate) fn headings(text: &str) -> impl Iterator<Item = &str> {
    prose(text).filter_map(|(_, line)| {
        let title = line.trim_start_matches('#');
        let level = line.len() - title.len();
        title.strip_prefix(' ').filter(|_| (1..=6).contains(&level)).map(str::trim)
    })
}

/// Returns the anchors of the headings. The second heading of a name has `-1` at its end.
pub(crate) fn anchors(text: &str) -> BTreeSet<String> {
    let mut uses: BTreeMap<String, usize> = BTreeMap::new();
    headings(text)
        .map(|heading| {
            let name = anchor(heading);
            let count = uses.entry(name.clone()).or_default();
            *count += 1;
            if *count == 1 { name } else { format!("{name}-{}", *count - 1) }
        })
        .collect()
}

/// Returns the anchor of a heading: its letters, digits and hyphens in lower case, and a hyphen for each space.
fn anchor(heading: &str) -> String {
    let kept = |letter: &char| letter.is_alphanumeric() || matches!(letter, '-' | '_' | ' ');
    let text = links(heading).fold(heading.to_owned(), |text, link| text.replace(link.whole, link.text));
    text.chars().filter(kept).flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// A link in a line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Link<'a> {
    /// The link from `[` to `)`.
    pub whole: &'a str,
    pub text: &'a str,
    pub target: &'a str,
}

impl<'a> Link<'a> {
    /// Returns the path and the anchor of a link within the tree; `None` for addresses.
    pub(crate) fn parts(&self) -> Option<(&'a str, Option<&'a str>)> {
        if self.target.contains(':') || self.target.contains(' ') {
            return None;
        }
        Some(self.target.split_once('#').map_or((self.target, None), |(path, anchor)| (path, Some(anchor))))
    }
}

/// Returns the links of a line, those in backticks left out.
pub(crate) fn links(line: &str) -> impl Iterator<Item = Link<'_>> {
    line.match_indices("](").filter_map(move |(middle, _)| {
        let start = line[..middle].rfind('[')?;
        let end = middle + 2 + line[middle + 2..].find(')')?;
        // A link's text may have backticks of its own, in pairs.
        let quoted = line[..start].matches('`').count() % 2 == 1;
        let (text, target) = (&line[start + 1..middle], &line[middle + 2..end]);
        (!quoted).then_some(Link { whole: &line[start..=end], text, target })
    })
}

/// Returns the links of a page with their lines.
pub(crate) fn page_links(text: &str) -> impl Iterator<Item = (usize, Link<'_>)> {
    prose(text).flat_map(|(number, line)| links(line).map(move |link| (number, link)))
}

/// Returns the page with each link as `change` wants it.
pub(crate) fn with_links(text: &str, change: impl Fn(&Link<'_>) -> Option<String>) -> String {
    let outside: BTreeSet<usize> = prose(text).map(|(number, _)| number).collect();
    let mut changed = String::with_capacity(text.len());
    for (number, line) in (1..).zip(text.lines()) {
        let mut line = line.to_owned();
        if outside.contains(&number) {
            let before = line.clone();
            for link in links(&before) {
                line = change(&link).map_or(line.clone(), |new| line.replace(link.whole, &new));
            }
        }
        changed.push_str(&line);
        changed.push('\n');
    }
    changed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anchors_are_those_of_the_headings() {
        let text = "# One `two`\n```sh\n# no heading\n```\n## To add a …\n## [A](b.md) is, well: `x_y`\n## One two\n#no\n";
        let expected = ["a-is-well-x_y", "one-two", "one-two-1", "to-add-a-"];
        assert_eq!(anchors(text).into_iter().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn links_are_found_outside_code() {
        let text = "see [a](b.md#c), [`d`](e) and `[f](g)`\n```\n[h](i)\n```\n[j](https://k)\n";
        let found: Vec<_> = page_links(text).map(|(line, link)| (line, link.text, link.parts())).collect();
        let expected = [(1, "a", Some(("b.md", Some("c")))), (1, "`d`", Some(("e", None))), (5, "j", None)];
        assert_eq!(found, expected);
    }

    #[test]
    fn links_are_replaced() {
        let text = "[a](b) `[a](b)`\n```\n[a](b)\n```\n";
        let changed =
            with_links("[a](b) x [c](d)\n", |link| (link.target == "b").then(|| link.text.to_owned()));
        assert_eq!(changed, "a x [c](d)\n");
        assert_eq!(with_links(text, |_| None), text);
    }

    #[test]
    fn a_path_is_made_simple() {
        assert_eq!(normalized(Path::new("a/../b/./c")), Path::new("b/c"));
    }
}
