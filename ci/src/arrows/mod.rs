//! Import rules: allowed arrows between modules, banned names, and no import cycles among files.
//!
//! ```text
//!   rules.rs    the tables, as data         paths.rs   every path a source file names, resolved
//!   cycles.rs   cycles among the files of a crate
//! ```
//!
//! - An arrow is checked by the first part of its path after the crate: `crate::wal::Wal` and `super::super::wal` are
//!   both an arrow to `wal`. Engine and node have tables of allowed arrows and banned names.
//! - Cycles among files are checked in every crate of the workspace; `cycles.rs` says what counts as an import.
//! - `#[cfg(test)]` items and files of tests are not checked: a test may import anything.
//!
//! *Not here:* bans of single types and functions, which `clippy.toml` of each crate has.

mod cycles;
mod paths;
mod rules;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::proto;
use crate::tidy::rust::is_test;
use paths::NamedPath;
use rules::{CRATES, CrateRules, Module};

/// Fails with every arrow that points the wrong way, every banned name and every cycle, one a line.
pub(crate) fn check(root: &Path) -> Result<()> {
    let mut findings = Vec::new();
    for rules in &CRATES {
        check_crate(root, rules, &mut findings)?;
    }
    for member in members(root)? {
        check_cycles(root, &member, &mut findings)?;
    }
    for finding in &findings {
        println!("{finding}");
    }
    if !findings.is_empty() {
        bail!("{} findings; the tables are in ci/src/arrows/rules.rs", findings.len());
    }
    Ok(())
}

/// Returns the folders of the workspace's crates.
fn members(root: &Path) -> Result<Vec<String>> {
    let manifest: toml::Table = fs::read_to_string(root.join("Cargo.toml"))?.parse()?;
    let members = manifest.get("workspace").and_then(|workspace| workspace.get("members")?.as_array());
    let members = members.context("Cargo.toml has no workspace.members")?;
    Ok(members.iter().filter_map(|member| member.as_str()).map(str::to_owned).collect())
}

/// Adds the cycles of a crate.
fn check_cycles(root: &Path, member: &str, findings: &mut Vec<String>) -> Result<()> {
    let source = root.join(member).join("src");
    let mut paths = Vec::new();
    rust_files(&source, &mut paths)?;
    paths.sort();
    let generated = root.join(proto::GENERATED);
    let mut files = Vec::new();
    for path in paths.iter().filter(|path| !is_test(path) && !path.starts_with(&generated)) {
        let text = fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
        files.push((path.strip_prefix(&source).expect("it was found under it").display().to_string(), text));
    }
    for cycle in cycles::cycles(&files).with_context(|| format!("in {member}/src"))? {
        let (files, arrows) = (cycle.files.join(", "), cycle.arrows.join("\n  "));
        findings.push(format!("{member}/src: files import each other in a cycle: {files}\n  {arrows}"));
    }
    Ok(())
}

fn check_crate(root: &Path, rules: &'static CrateRules, findings: &mut Vec<String>) -> Result<()> {
    let source = root.join(rules.source);
    let mut files = Vec::new();
    rust_files(&source, &mut files)?;
    files.sort();
    for path in files {
        let file = path.strip_prefix(&source).expect("it was found under it").to_string_lossy().into_owned();
        if is_test(&path) || rules.exempt.iter().any(|exempt| file.starts_with(exempt)) {
            continue;
        }
        let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        check_text(rules, &file, &text, findings)?;
    }
    Ok(())
}

/// Checks one file; `file` is its path under the crate's sources.
fn check_text(rules: &'static CrateRules, file: &str, text: &str, findings: &mut Vec<String>) -> Result<()> {
    let parsed = syn::parse_file(text).with_context(|| format!("parsing {}/{file}", rules.source))?;
    for named in paths::named(file, &parsed) {
        if let Some(why) = arrow(rules, file, &named).or_else(|| ban(rules, file, &named)) {
            findings.push(format!(
                "{}/{file}:{}: {}: {why}",
                rules.source,
                named.line,
                named.path.join("::")
            ));
        }
    }
    for word in rules.words.iter().filter(|word| !word.except.contains(&file)) {
        if let Some(line) = text.lines().position(|line| line.contains(word.text)) {
            findings.push(format!("{}/{file}:{}: {}: {}", rules.source, line + 1, word.text, word.reason));
        }
    }
    Ok(())
}

/// Returns the reason if this file's module may not import the path; none for a path outside the crate.
fn arrow(rules: &'static CrateRules, file: &str, named: &NamedPath) -> Option<String> {
    let (root, parts) = named.path.split_first()?;
    if root != "crate" || rules.roots == ["*"] || rules.roots.contains(&file) {
        return None;
    }
    let to = row(rules, parts.iter().map(String::as_str))?;
    let Some(from) = row(rules, file.trim_end_matches(".rs").split('/')) else {
        return Some(format!("{file} has no row in the table"));
    };
    let own = to.name == from.name || to.name == top(from.name);
    let allowed =
        rules.base.contains(&to.name) || from.may_import.contains(&to.name) || from.may_import == ["*"];
    (!own && !allowed).then(|| format!("{} may not import {}", from.name, to.name))
}

/// Returns the most specific row: that of `server/startup` before that of `server`.
fn row<'a>(rules: &'static CrateRules, parts: impl Iterator<Item = &'a str>) -> Option<&'static Module> {
    let path = parts.collect::<Vec<_>>().join("/");
    let fits =
        |name: &str| path.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    rules.modules.iter().filter(|module| fits(module.name)).max_by_key(|module| module.name.len())
}

/// Returns the module of the crate's root that a row belongs to.
fn top(name: &str) -> &str {
    name.split('/').next().unwrap_or(name)
}

/// Returns the reason if this file may not name the path.
fn ban(rules: &'static CrateRules, file: &str, named: &NamedPath) -> Option<String> {
    let path = named.path.join("::");
    let banned = rules.bans.iter().find(|ban| {
        let within =
            path.strip_prefix(ban.path).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"));
        within && !ban.except.contains(&file)
    });
    banned.map(|ban| ban.reason.to_owned())
}

fn rust_files(dir: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(dir).with_context(|| format!("reading {}", dir.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            rust_files(&path, files)?;
        } else if path.extension().is_some_and(|ext| ext == "rs") {
            files.push(path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the findings for `text` as `file` of the engine (0) or the node's common crate (1).
    fn findings(which: usize, file: &str, text: &str) -> Vec<String> {
        let mut findings = Vec::new();
        check_text(&CRATES[which], file, text, &mut findings).unwrap();
        findings
    }

    #[test]
    fn an_arrow_of_the_table_passes() {
        let text = "use crate::{cfile::Reader, disk::Disk, schema::{Schema, key}, ids, error::Result};\n\
                    use super::scan; use std::collections::BTreeMap;";
        assert_eq!(findings(0, "tablet/flush.rs", text), Vec::<String>::new());
    }

    #[test]
    fn a_wrong_arrow_is_found_in_every_spelling() {
        let why = "tablet may not import wal";
        for text in [
            "use crate::wal::Wal;",
            "use crate::{schema, wal};",
            "use super::super::wal::{self, Entry};",
            "fn f() { crate::wal::open() }",
            "fn f(wal: &crate::wal::Wal) {}",
            "fn f() { assert!(crate::wal::is_open()) }",
            "mod inner { use super::super::super::wal::Wal; }",
        ] {
            let found = findings(0, "tablet/flush.rs", text);
            assert!(!found.is_empty() && found.iter().all(|line| line.contains(why)), "{text}: {found:?}");
        }
    }

    #[test]
    fn the_pure_modules_reach_nothing() {
        assert_eq!(
            findings(0, "raft/queue.rs", "use crate::disk::Disk;\nuse crate::time::Instant;"),
            ["engine/src/raft/queue.rs:1: crate::disk::Disk: raft may not import disk"]
        );
        assert_eq!(findings(1, "env/mod.rs", "use crate::rpc::Service;").len(), 1);
    }

    #[test]
    fn os_modules_may_be_named_by_their_one_file_only() {
        for text in ["use std::fs;", "fn f() { std::thread::yield_now() }", "use {std::{env}, core::mem};"] {
            assert_eq!(findings(0, "wal/mod.rs", text).len(), 1, "{text}");
        }
        assert_eq!(findings(0, "disk/os.rs", "use std::fs;"), Vec::<String>::new());
        assert_eq!(findings(1, "rpc/client.rs", "use tokio::net::TcpStream;").len(), 1);
        assert_eq!(findings(1, "rpc/client.rs", "use tokio::{io::AsyncRead, sync::oneshot};").len(), 0);
        assert_eq!(findings(1, "env/os.rs", "use tokio::{net::TcpStream, time};"), Vec::<String>::new());
        assert_eq!(findings(1, "env/mod.rs", "// how madsim does it\n").len(), 1);
    }

    #[test]
    fn async_and_printing_are_found_in_the_engine() {
        assert_eq!(findings(0, "wal/mod.rs", "async fn f() {}").len(), 1);
        assert_eq!(findings(0, "wal/mod.rs", "fn f() { let x = async { 1 }; }").len(), 1);
        assert_eq!(findings(0, "wal/mod.rs", "fn f() { println!(\"{}\", 1) }").len(), 1);
    }

    #[test]
    fn an_unbiased_select_is_found_in_the_node() {
        let biased = "async fn f() { tokio::select! { biased; a = b() => {}, c = d() => {} } }";
        assert_eq!(findings(1, "mailbox.rs", biased), Vec::<String>::new());
        assert_eq!(findings(1, "mailbox.rs", &biased.replace("biased; ", "")).len(), 1);
    }

    #[test]
    fn tests_may_import_anything() {
        let text = "#[cfg(test)] mod tests { use crate::wal::Wal; use std::fs; }\n#[cfg(test)] use std::env;";
        assert_eq!(findings(0, "tablet/flush.rs", text), Vec::<String>::new());
    }
}
