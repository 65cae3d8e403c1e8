//! Style that compiler and clippy do not check: sizes, docs, words, names, cited paths, dependencies, licence,
//! committed data.
//!
//! ```text
//!   rust.rs    sizes and docs of a file      words.rs   words of ci/STYLE.md in comments.rs' prose
//!   names.rs   names of public types         cited.rs   paths and links of pages, paths of TLA+ modules
//!   dependencies.rs   dependencies that no source names
//! ```
//!
//! Only files that git tracks are read. Generated sources ([`proto::GENERATED`]) are checked for freshness alone, in
//! `proto.rs`.

mod cited;
mod comments;
mod dependencies;
mod names;
pub(crate) mod rust;
mod words;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::command::CommandLine;
use crate::proto;
use crate::site::contents;

#[derive(Args, Default)]
pub(crate) struct TidyOptions {
    /// Print the counts of the word lint instead
    #[arg(long, hide = true)]
    words: bool,
    /// Print every use that the word lint finds instead
    #[arg(long, hide = true)]
    word_uses: bool,
}

/// Hosts of package registries: sources must build from whatever mirror a machine is set up with.
const REGISTRY_HOSTS: [&str; 7] = [
    concat!("crates", ".io"),
    concat!("repo1.maven", ".org"),
    concat!("repo.maven.apache", ".org"),
    concat!("pypi", ".org"),
    concat!("files.pythonhosted", ".org"),
    concat!("registry.npmjs", ".org"),
    concat!("proxy.golang", ".org"),
];
/// Largest tracked file, in bytes. Data sets are generated, never committed.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Size of all fuzz corpora together, in bytes.
const CORPORA_BYTES_MAX: u64 = 5 << 20;
/// Size of a simulator plan, in bytes: a larger plan was not shrunk.
const PLAN_BYTES_MAX: u64 = 64 << 10;

/// Fails with every finding, one a line.
pub(crate) fn run(root: &Path, options: &TidyOptions) -> Result<()> {
    let mut findings = Vec::new();
    let files = tracked(root)?;
    let mut tree = cited::Tree::new(&files);
    for page in files.iter().filter(|file| contents::is_page(file)) {
        tree.add_page(page, &fs::read_to_string(root.join(page))?);
    }
    let mut lints = Lints { tree, words: words::WordLint::new(), names: names::NameLint::default() };
    for file in &files {
        lints.check_file(root, file, &mut findings)?;
    }
    if options.words || options.word_uses {
        if options.words {
            lints.words.print_counts();
        }
        if options.word_uses {
            lints.words.print_uses();
        }
        return Ok(());
    }
    lints.words.report(&mut findings);
    lints.names.report(&mut findings);
    dependencies::check(root, &files, &mut findings)?;
    contents::check(&files, &mut findings);
    check_corpora(root, &files, &mut findings)?;
    check_licence(root, &files, &mut findings)?;
    report(findings)
}

/// Prints the findings, and returns the step's error if there are any.
fn report(findings: Vec<String>) -> Result<()> {
    if findings.is_empty() {
        return Ok(());
    }
    for finding in &findings {
        println!("{finding}");
    }
    bail!("{} findings", findings.len())
}

/// Returns the files git tracks, and those that `git add` would add; paths are relative to `root`.
pub(crate) fn tracked(root: &Path) -> Result<Vec<PathBuf>> {
    let words = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"];
    let listed = CommandLine::new("git").args(words).dir(root).output()?;
    if !listed.success {
        bail!("git ls-files: {}", listed.stderr.trim());
    }
    let names = listed.stdout.split('\0').filter(|name| !name.is_empty());
    // A file that was removed without a commit is listed, but missing.
    Ok(names.map(PathBuf::from).filter(|name| root.join(name).is_file()).collect())
}

/// Lints that look at all files together.
struct Lints {
    tree: cited::Tree,
    words: words::WordLint,
    names: names::NameLint,
}

impl Lints {
    fn check_file(&mut self, root: &Path, file: &Path, findings: &mut Vec<String>) -> Result<()> {
        let bytes = fs::read(root.join(file)).with_context(|| format!("reading {}", file.display()))?;
        if bytes.len() as u64 > FILE_BYTES_MAX {
            let found =
                format!("{}: {} bytes; data is generated, not committed", file.display(), bytes.len());
            findings.push(found);
        }
        let Ok(text) = String::from_utf8(bytes) else { return Ok(()) };
        if !file.ends_with("Cargo.lock") {
            check_hosts(file, &text, findings);
        }
        if file.starts_with(proto::GENERATED) {
            return Ok(());
        }
        if file.extension().is_some_and(|ext| ext == "rs") {
            rust::check(file, &text, findings);
        }
        cited::check(file, &text, &self.tree, findings);
        self.words.add(file, &text);
        self.names.add(file, &text);
        Ok(())
    }
}

fn check_hosts(file: &Path, text: &str, findings: &mut Vec<String>) {
    for (number, line) in text.lines().enumerate() {
        if let Some(host) = REGISTRY_HOSTS.iter().find(|host| line.contains(**host)) {
            findings.push(format!("{}:{}: names the registry host {host}", file.display(), number + 1));
        }
    }
}

fn check_corpora(root: &Path, files: &[PathBuf], findings: &mut Vec<String>) -> Result<()> {
    let mut corpora = 0;
    for file in files {
        let bytes = fs::metadata(root.join(file))?.len();
        if file.starts_with("fuzz/corpus") {
            corpora += bytes;
        }
        if file.starts_with("sim/plans") && bytes > PLAN_BYTES_MAX {
            findings.push(format!("{}: {bytes} bytes; shrink the plan", file.display()));
        }
    }
    if corpora > CORPORA_BYTES_MAX {
        findings.push(format!("fuzz/corpus: {corpora} bytes; minimise the corpora"));
    }
    Ok(())
}

fn check_licence(root: &Path, files: &[PathBuf], findings: &mut Vec<String>) -> Result<()> {
    let licence = fs::read_to_string(root.join("LICENSE")).unwrap_or_default();
    if !licence.contains("Apache License") || !licence.contains("END OF TERMS AND CONDITIONS") {
        findings.push("LICENSE: the full text of the Apache License 2.0 is missing".to_owned());
    }
    for file in files.iter().filter(|file| file.ends_with("Cargo.toml") && *file != Path::new("Cargo.toml")) {
        let manifest: toml::Table = fs::read_to_string(root.join(file))?.parse()?;
        let inherited = manifest.get("package").and_then(|package| package.get("license")?.get("workspace"));
        if inherited.is_none() {
            findings.push(format!("{}: license.workspace = true is missing", file.display()));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_registry_host_is_found_on_its_line() {
        let mut findings = Vec::new();
        let text = format!("fine\nsee https://{}/crates/x\n", REGISTRY_HOSTS[0]);
        check_hosts(Path::new("README.md"), &text, &mut findings);
        assert_eq!(findings.len(), 1);
        assert!(findings[0].starts_with("README.md:2: "), "{findings:?}");
    }
}
