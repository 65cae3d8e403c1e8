//! Links of the finished site: every one leads to a file of the site, and an anchor to an element with that id.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};

use super::markdown::normalized;

/// A page of the site.
#[derive(Default)]
struct HtmlPage {
    ids: BTreeSet<String>,
    links: Vec<String>,
}

/// Fails with every broken link; returns the numbers of pages and links.
pub(super) fn check(book: &Path) -> Result<(usize, usize)> {
    let mut files = Vec::new();
    collect(book, book, &mut files)?;
    let mut pages = BTreeMap::new();
    for file in files.iter().filter(|file| is_html(file)) {
        let text = fs::read_to_string(book.join(file))?;
        pages.insert(file.clone(), HtmlPage { ids: values(&text, "id"), links: links(&text) });
    }
    let files: BTreeSet<PathBuf> = files.into_iter().collect();
    let broken = broken(&pages, &files);
    broken.iter().for_each(|line| println!("{line}"));
    ensure!(broken.is_empty(), "{} broken links", broken.len());
    Ok((pages.len(), pages.values().map(|page| page.links.len()).sum()))
}

fn is_html(file: &Path) -> bool {
    // A server shows this page for paths of any depth: its links are absolute.
    file.extension().is_some_and(|extension| extension == "html") && file != Path::new("404.html")
}

fn collect(book: &Path, dir: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        match path.is_dir() {
            true => collect(book, &path, files)?,
            false => files.push(path.strip_prefix(book)?.to_path_buf()),
        }
    }
    Ok(())
}

/// Returns the values of an attribute.
fn values(html: &str, name: &str) -> BTreeSet<String> {
    let begin = format!(" {name}=\"");
    let rest = html.split(&begin).skip(1);
    rest.filter_map(|rest| rest.split_once('"')).map(|(value, _)| value.replace("&amp;", "&")).collect()
}

/// Returns the links to this site.
fn links(html: &str) -> Vec<String> {
    let all = values(html, "href").into_iter().chain(values(html, "src"));
    all.filter(|link| !link.contains(':') && !link.starts_with("//")).collect()
}

fn broken(pages: &BTreeMap<PathBuf, HtmlPage>, files: &BTreeSet<PathBuf>) -> Vec<String> {
    let mut broken = Vec::new();
    for (from, page) in pages {
        let folder = from.parent().unwrap_or(Path::new(""));
        for link in &page.links {
            let (path, anchor) = link.split_once('#').unwrap_or((link.as_str(), ""));
            let target = if path.is_empty() { from.clone() } else { normalized(&folder.join(path)) };
            let has_anchor =
                || anchor.is_empty() || pages.get(&target).is_none_or(|page| page.ids.contains(anchor));
            if !files.contains(&target) {
                broken.push(format!("{}: {link}: no such file", from.display()));
            } else if !has_anchor() {
                broken.push(format!("{}: {link}: no such heading", from.display()));
            }
        }
    }
    broken
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broken_links_and_anchors_are_found() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("a")).unwrap();
        let page = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
        page("x.html", "<h1 id=\"top\">x</h1><img src=\"a/p.png\"><a href=\"https://h/\">h</a>");
        page("a/p.png", "");
        page("a/y.html", "<a href=\"../x.html#top\">x</a>");
        assert_eq!(check(dir.path()).unwrap(), (2, 2));
        page("a/y.html", "<a href=\"../x.html#gone\">x</a><a href=\"z.html\">z</a>");
        assert_eq!(check(dir.path()).unwrap_err().to_string(), "2 broken links");
    }
}
