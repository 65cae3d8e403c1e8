//! `cargo ci package`: the Debian package, built and tried in a fresh Debian.
//!
//! ```text
//!   release programs ─► nyala man, nyala completions ─► cargo deb ─► target/package/nyala_VERSION_ARCH.deb
//!   units: systemd-analyze verify; exposure at most 2.5      package: lintian
//!   mmdebstrap ─► chroot: install, run a server from /etc/nyala, install again, remove, purge; data stays
//! ```

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::command::{CommandLine, cargo, target_dir};
use crate::steps::Steps;
use crate::tools;

const UNITS: [&str; 2] = ["nyala-master.service", "nyala-tablet-server.service"];

/// Largest exposure that `systemd-analyze security` may give a unit, in tenths.
const EXPOSURE_MAX: &str = "25";

/// Script that runs as root in the fresh system: see the module's picture.
const TRIAL: &str = include_str!("package_trial.sh");

/// Builds the package and tries it.
pub(crate) fn run(root: &Path, steps: &mut Steps) {
    let mut package = None;
    steps.run("package: deb", || {
        package = Some(build(root)?);
        Ok(())
    });
    steps.run("package: units", || check_units(root));
    let Some(package) = package else { return };
    steps.run("package: lintian", || lint(&package));
    steps.run("package: install, run, upgrade, remove, purge", || try_in_chroot(&package));
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
    let program = target.join("release/nyala");
    let parts = target.join("release/package");
    if parts.exists() {
        fs::remove_dir_all(&parts)?;
    }
    fs::create_dir_all(&parts)?;
    CommandLine::new(&program).args(["man"]).args([parts.join("man")]).run()?;
    let pages = fs::read_dir(parts.join("man"))?.map(|page| Ok(page?.path()));
    CommandLine::new("gzip").args(["-9n"]).args(pages.collect::<std::io::Result<Vec<_>>>()?).run()?;
    for (shell, file) in [("bash", "nyala.bash"), ("zsh", "_nyala"), ("fish", "nyala.fish")] {
        let script = CommandLine::new(&program).args(["completions", shell]).output()?;
        fs::write(parts.join(file), script.stdout)?;
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

fn try_in_chroot(package: &Path) -> Result<()> {
    tools::require(&["mmdebstrap"], &["mmdebstrap"])?;
    let dir = tempfile::tempdir()?;
    let trial = dir.path().join("trial.sh");
    fs::write(&trial, TRIAL)?;
    let copy = |from: &Path, to: &str| format!("--customize-hook=copy-in {} {to}", from.display());
    let output = CommandLine::new("mmdebstrap")
        .args(["--quiet", "--variant=apt", "--format=null", "--include=systemd,passwd"])
        .args([copy(package, "/root"), copy(&trial, "/root")])
        .args(["--customize-hook=chroot \"$1\" sh -eux /root/trial.sh", "bookworm", "/dev/null"])
        .output()?;
    // mmdebstrap turns what a hook prints to its own standard error.
    let passed = output.success && output.stderr.contains("trial: passed");
    ensure!(passed, "the trial did not end:\n{}", output.stderr);
    Ok(())
}
