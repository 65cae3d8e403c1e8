//! `cargo ci package`: the Debian package, built and tried in a fresh Debian.
//!
//! ```text
//!   release programs ─► nyala man, nyala completions ─► cargo deb ─► target/package/nyala_VERSION_ARCH.deb
//!   units: systemd-analyze verify; exposure at most 2.5      package: lintian
//!   mmdebstrap ─► chroot: install, run a server from /etc/nyala, install again, remove, purge; data stays
//!              └► chroot: a secured cluster of three machines, by the blocks of node/OPERATIONS.md
//!   buildah ─► image.rs: the OCI image, from the package ─► a cluster in a container ─► target/package/nyala-image.tar
//! ```

mod image;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::Parser;

use crate::command::{CommandLine, cargo, target_dir};
use crate::steps::Steps;
use crate::tools;

#[derive(Parser)]
pub(crate) struct PackageOptions {
    /// A package that is built already, to try
    #[arg(long, value_name = "FILE")]
    deb: Option<PathBuf>,
}

const UNITS: [&str; 2] = ["nyala-master.service", "nyala-tablet-server.service"];

/// Largest exposure that `systemd-analyze security` may give a unit, in tenths.
const EXPOSURE_MAX: &str = "25";

/// Script that runs as root in the fresh system: see the module's picture.
const TRIAL: &str = include_str!("trial.sh");

/// Script that runs the page's blocks, and checks after each what a newcomer should see.
const CLUSTER: &str = include_str!("cluster.sh");
/// Command that installs packages without questions, and those that the page's blocks use.
const INSTALL: &str =
    "env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends /root/nyala.deb";
const CLUSTER_PACKAGES: &str = "openssl curl apache2-utils prometheus iproute2 procps";
/// Page and heading of these blocks.
const PAGE: &str = "node/OPERATIONS.md";
const HEADING: &str = "## A secured cluster of three machines";
/// Places of the blocks, in the order of the page: once, or on each machine.
const BLOCKS: [&str; 5] = ["once", "machine", "once", "once", "machine"];

/// Builds the package and tries it.
pub(crate) fn run(root: &Path, options: &PackageOptions, steps: &mut Steps) {
    let mut package = options.deb.clone();
    if package.is_none() {
        steps.run("package: deb", || {
            package = Some(build(root)?);
            Ok(())
        });
    }
    steps.run("package: units", || check_units(root));
    let Some(package) = package else { return };
    steps.run("package: lintian", || lint(&package));
    let files = [("trial.sh", TRIAL.to_owned())];
    let commands = ["chroot \"$1\" sh -eux /root/trial.sh"];
    steps.run("package: install, run, upgrade, remove, purge", || try_in_chroot(&package, &files, &commands));
    steps.run("package: a secured cluster by its page", || try_cluster(root, &package));
    steps.run("package: image", || {
        println!("{}", image::build_and_try(root, &package)?.display());
        Ok(())
    });
}

fn build(root: &Path) -> Result<PathBuf> {
    tools::require_kerberos()?;
    let words = ["build", "--quiet", "--release", "--package", "node", "--package", "nyala-sql"];
    cargo(root, &[&words, tools::kerberos_feature()].concat())?;
    // Apart: the clients of object stores turn on features of libraries that servers have without them.
    cargo(
        root,
        &["build", "--quiet", "--release", "--package", "nyala-backup-cloud", "--features", "kerberos"],
    )?;
    let target = target_dir()?;
    let (program, sql_program) = (target.join("release/nyala"), target.join("release/nyala-sql"));
    let parts = target.join("release/package");
    if parts.exists() {
        fs::remove_dir_all(&parts)?;
    }
    fs::create_dir_all(&parts)?;
    for program in [&program, &sql_program] {
        CommandLine::new(program).args(["man"]).args([parts.join("man")]).run()?;
    }
    let pages = fs::read_dir(parts.join("man"))?.map(|page| Ok(page?.path()));
    CommandLine::new("gzip").args(["-9n"]).args(pages.collect::<std::io::Result<Vec<_>>>()?).run()?;
    for (program, name) in [(&program, "nyala"), (&sql_program, "nyala-sql")] {
        write_completions(program, name, &parts)?;
    }
    let package = target.join("package/nyala.deb");
    fs::create_dir_all(package.parent().context("it is in a folder")?)?;
    tools::require_cargo("cargo-deb", "3.8.0")?;
    CommandLine::cargo(root)
        .args(["deb", "--quiet", "--package", "node", "--no-build", "--no-strip", "--output"])
        .args([&package])
        .run()?;
    Ok(package)
}

/// Writes the completion scripts of a program, under the names by which shells find them.
fn write_completions(program: &Path, name: &str, parts: &Path) -> Result<()> {
    let files =
        [("bash", format!("{name}.bash")), ("zsh", format!("_{name}")), ("fish", format!("{name}.fish"))];
    for (shell, file) in files {
        let script = CommandLine::new(program).args(["completions", shell]).output()?;
        fs::write(parts.join(file), script.stdout)?;
    }
    Ok(())
}

/// Checks the units' syntax and how little they may do.
fn check_units(root: &Path) -> Result<()> {
    tools::require(&["systemd-analyze"], &["systemd"])?;
    for unit in UNITS {
        let path = root.join("node/package").join(unit);
        let judged = CommandLine::new("systemd-analyze")
            .args(["security", "--offline=true", "--no-pager", "--threshold", EXPOSURE_MAX])
            .args([&path])
            .output()?;
        let verdict = judged.stdout.lines().last().unwrap_or_default().to_string();
        ensure!(judged.success, "{unit} may do too much: {verdict}\n{}", judged.stderr);
        println!("{unit}: {}", verdict.trim_start_matches(['→', ' ']));
    }
    Ok(())
}

fn lint(package: &Path) -> Result<()> {
    tools::require(&["lintian"], &["lintian"])?;
    // Not for Debian's own archive: no bug number that closes, no embedded copies to be replaced by its libraries.
    let suppressed = "initial-upload-closes-no-bugs,embedded-library,unstripped-binary-or-object";
    CommandLine::new("lintian")
        .args(["--fail-on", "error", "--suppress-tags", suppressed])
        .args([package])
        .run()
}

/// Runs the page's blocks on three machines.
fn try_cluster(root: &Path, package: &Path) -> Result<()> {
    let page = fs::read_to_string(root.join(PAGE)).with_context(|| format!("reading {PAGE}"))?;
    let mut files = vec![("cluster.sh", CLUSTER.to_owned())];
    let names = ["1-once", "2-machine", "3-once", "4-once", "5-machine"];
    files.extend(names.into_iter().zip(page_blocks(&page)?));
    let install = format!("chroot \"$1\" {INSTALL} {CLUSTER_PACKAGES}");
    // Namespaces whose root is a mount point: the script makes those of the machines inside.
    let cluster = "unshare --mount --net chroot \"$1\" sh -eux /root/cluster.sh /root";
    try_in_chroot(package, &files, &[&install, cluster])
}

/// Returns the shell blocks below the heading.
fn page_blocks(page: &str) -> Result<Vec<String>> {
    let (_, section) = page.split_once(HEADING).with_context(|| format!("{PAGE} has no {HEADING:?}"))?;
    let section = section.split("\n## ").next().unwrap_or_default();
    let mut blocks = Vec::new();
    let mut kinds = Vec::new();
    for text in section.split("\n```sh ").skip(1) {
        let (kind, rest) = text.split_once('\n').context("a block has a first line")?;
        let (script, _) = rest.split_once("\n```").context("a block has an end")?;
        kinds.push(kind);
        blocks.push(format!("{script}\n"));
    }
    ensure!(kinds == BLOCKS, "the blocks below {HEADING:?} are {kinds:?}, not {BLOCKS:?}");
    Ok(blocks)
}

/// Runs commands as root beside a fresh Debian (`$1`), with the package and the files in its `/root`.
fn try_in_chroot(package: &Path, files: &[(&str, String)], commands: &[&str]) -> Result<()> {
    tools::require(&["mmdebstrap"], &["mmdebstrap"])?;
    let dir = tempfile::tempdir()?;
    let copy = |from: &Path| format!("--customize-hook=copy-in {} /root", from.display());
    let mut copies = vec![copy(package)];
    for (name, text) in files {
        let file = dir.path().join(name);
        fs::write(&file, text)?;
        copies.push(copy(&file));
    }
    let output = CommandLine::new("mmdebstrap")
        .args(["--quiet", "--variant=apt", "--format=null", "--include=systemd,passwd"])
        .args(copies)
        .args(commands.iter().map(|command| format!("--customize-hook={command}")))
        .args(["bookworm", "/dev/null"])
        .output()?;
    // mmdebstrap turns what a hook prints to its own standard error.
    let passed = output.success && output.stderr.contains("trial: passed");
    ensure!(passed, "the trial did not end:\n{}", output.stderr);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_the_blocks_of_the_trial() {
        let page = include_str!("../../../node/OPERATIONS.md");
        let blocks = page_blocks(page).expect("the blocks are there");
        assert!(blocks[0].starts_with("mkdir ") && blocks[4].contains("apt-get purge"), "{blocks:?}");
        let swapped = page.replace("```sh machine", "```sh");
        assert!(page_blocks(&swapped).is_err(), "a block has left the trial");
    }
}
