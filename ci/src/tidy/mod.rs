//! What the compiler and clippy do not check: sizes, module docs, licence, and what must not be committed.
//!
//! Only files that git tracks are read. Generated sources ([`proto::GENERATED`]) are held to freshness alone.

pub mod rust;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::command::Run;
use crate::proto;

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
/// Any single tracked file, in bytes. Data sets are generated, never committed.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// All fuzz corpora together, in bytes.
const CORPORA_BYTES_MAX: u64 = 5 << 20;
/// One simulator plan, in bytes: a plan that big was not shrunk.
const PLAN_BYTES_MAX: u64 = 64 << 10;

/// Fails with every finding, one a line.
pub fn check(root: &Path) -> Result<()> {
    let mut findings = Vec::new();
    let files = tracked(root)?;
    for file in &files {
        check_file(root, file, &mut findings)?;
    }
    check_corpora(root, &files, &mut findings)?;
    check_licence(root, &files, &mut findings)?;
    report(findings)
}

/// Turns findings into the step's error.
fn report(findings: Vec<String>) -> Result<()> {
    if findings.is_empty() {
        return Ok(());
    }
    for finding in &findings {
        println!("{finding}");
    }
    bail!("{} findings", findings.len())
}

/// The files git tracks, and those it would if they were added now; paths relative to `root`.
pub fn tracked(root: &Path) -> Result<Vec<PathBuf>> {
    let words = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"];
    let listed = Run::new("git").args(words).dir(root).output()?;
    if !listed.success {
        bail!("git ls-files: {}", listed.stderr.trim());
    }
    let names = listed.stdout.split('\0').filter(|name| !name.is_empty());
    // A file removed but not yet committed is listed and gone.
    Ok(names.map(PathBuf::from).filter(|name| root.join(name).is_file()).collect())
}

fn check_file(root: &Path, file: &Path, findings: &mut Vec<String>) -> Result<()> {
    let bytes = fs::read(root.join(file)).with_context(|| format!("reading {}", file.display()))?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        findings.push(format!("{}: {} bytes; data is generated, not committed", file.display(), bytes.len()));
    }
    let Ok(text) = String::from_utf8(bytes) else { return Ok(()) };
    if !file.ends_with("Cargo.lock") {
        check_hosts(file, &text, findings);
    }
    if file.extension().is_some_and(|ext| ext == "rs") && !file.starts_with(proto::GENERATED) {
        rust::check(file, &text, findings);
    }
    Ok(())
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
