//! `cargo ci site`: the documentation site, a book that mdbook makes of the pages of the tree.
//!
//! ```text
//!   pages of the tree ──┬─► target/site/src, SUMMARY.md (contents.rs) ─► mdbook ─► target/site/book ─► links.rs
//!   nyala reference ────┘   settings, metrics, commands
//! ```
//!
//! No page is written for the site alone: a page of the tree is copied, its links fit the site, and a link to a file
//! that is no page becomes its text. `cargo ci tidy` checks pages, links and anchors without the book.

pub(crate) mod contents;
mod links;
pub(crate) mod markdown;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::command::{CommandLine, cargo, target_dir};
use crate::steps::Steps;
use crate::tidy;
use crate::tools;

/// Settings of the book. mdbook would rename README.md, which links name.
const BOOK: &str = "[book]\ntitle = \"nyala\"\nlanguage = \"en\"\nsrc = \"src\"\n\n\
                    [build]\nbuild-dir = \"book\"\ncreate-missing = false\nuse-default-preprocessors = false\n\n\
                    [output.html]\nno-section-label = true\n\n[output.html.print]\nenable = false\n";

/// Makes the site.
pub(crate) fn run(root: &Path, steps: &mut Steps) {
    let site = root.join("target/site");
    let mut made = false;
    steps.run("site: book", || {
        tools::require_cargo("mdbook", "0.5.4")?;
        write_sources(root, &site)?;
        CommandLine::new("mdbook").args(["build"]).args([&site]).run()?;
        made = true;
        Ok(())
    });
    if made {
        steps.run("site: links", || {
            let (pages, links) = links::check(&site.join("book"))?;
            println!("{pages} pages, {links} links; {}", site.join("book/index.html").display());
            Ok(())
        });
    }
}

/// Writes the book's sources into a folder, in place of those of an earlier run.
fn write_sources(root: &Path, site: &Path) -> Result<()> {
    if site.exists() {
        fs::remove_dir_all(site)?;
    }
    let sources = site.join("src");
    let tracked = tidy::tracked(root)?;
    let mut pages: Vec<PathBuf> = tracked.iter().filter(|file| contents::is_page(file)).cloned().collect();
    for file in tracked.iter().filter(|file| is_shown(file)) {
        let target = sources.join(contents::place(file));
        fs::create_dir_all(target.parent().context("a file is in a folder")?)?;
        match contents::is_page(file) {
            true => fs::write(target, page_source(root, file, &tracked)?)?,
            false => drop(fs::copy(root.join(file), target)?),
        }
    }
    cargo(root, &["build", "--quiet", "--package", "node"])?;
    let reference = sources.join(contents::REFERENCE);
    CommandLine::new(target_dir()?.join("debug/nyala")).args(["reference"]).args([&reference]).run()?;
    for file in fs::read_dir(&reference)? {
        pages.push(Path::new(contents::REFERENCE).join(file?.file_name()));
    }
    let heading = |page: &Path| {
        let text = fs::read_to_string(sources.join(contents::place(page))).unwrap_or_default();
        markdown::headings(&text).next().unwrap_or("untitled").to_owned()
    };
    fs::write(sources.join("SUMMARY.md"), contents::summary(&pages, heading))?;
    fs::write(site.join("book.toml"), BOOK)?;
    Ok(())
}

/// Returns true for pages and for pictures, which pages show.
fn is_shown(file: &Path) -> bool {
    contents::is_page(file)
        || file.extension().is_some_and(|extension| extension == "svg" || extension == "png")
}

/// Returns a page with links that fit the site.
fn page_source(root: &Path, file: &Path, tracked: &[PathBuf]) -> Result<String> {
    let text = fs::read_to_string(root.join(file))?;
    let folder = file.parent().unwrap_or(Path::new(""));
    let up = "../".repeat(contents::place(file).components().count() - 1);
    Ok(markdown::with_links(&text, |link| {
        let (path, anchor) = link.parts()?;
        if path.is_empty() {
            return None;
        }
        let target = markdown::normalized(&folder.join(path));
        if !(is_shown(&target) && tracked.contains(&target)) {
            return Some(link.text.to_owned());
        }
        let anchor = anchor.map(|anchor| format!("#{anchor}")).unwrap_or_default();
        Some(format!("[{}]({up}{}{anchor})", link.text, contents::place(&target).display()))
    }))
}
