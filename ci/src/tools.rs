//! External programs that steps need; installed in CI if they are missing.

use std::env;

use anyhow::{Result, bail, ensure};

use crate::command::CommandLine;

/// Fails with the install command for missing programs; as root in CI it installs them.
pub(crate) fn require(programs: &[&str], packages: &[&str]) -> Result<()> {
    let missing: Vec<&str> = programs.iter().copied().filter(|program| !is_installed(program)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let words = [&["install", "-y", "--no-install-recommends"], packages].concat();
    let fix = format!("apt-get update && apt-get {}", words.join(" "));
    if env::var_os("CI").is_none() || !is_installed("apt-get") {
        bail!("{} not installed; to install: {fix}", missing.join(", "));
    }
    println!("{} not installed; running {fix}", missing.join(", "));
    CommandLine::new("apt-get").args(["update", "-q"]).run()?;
    // Without a terminal, a package that asks a question would wait without bound: krb5-config asks for the realm.
    CommandLine::new("apt-get").args(words).env("DEBIAN_FRONTEND", "noninteractive").run()?;
    ensure!(programs.iter().copied().all(is_installed), "still not installed after {fix}");
    Ok(())
}

/// Fails with the install command if a KDC, or what a build with Kerberos needs, is missing; in CI it installs them.
pub(crate) fn require_kerberos() -> Result<()> {
    require(
        &["krb5kdc", "kadmin.local", "kinit", "krb5-config"],
        &["krb5-kdc", "krb5-admin-server", "krb5-user", "libkrb5-dev", "libclang-dev"],
    )
}

/// Returns true if [`require_kerberos`] is met; if not, prints that Kerberos is not tested, and why.
pub(crate) fn try_kerberos() -> bool {
    require_kerberos().inspect_err(|missing| println!("skipped, as to Kerberos: {missing:#}")).is_ok()
}

/// Returns the arguments of cargo that build `node` with Kerberos, if this machine has the library's headers.
pub(crate) fn kerberos_feature() -> &'static [&'static str] {
    if is_installed("krb5-config") { &["--features", "node/kerberos"] } else { &[] }
}

/// Fails with the install command for a missing program of cargo's; in CI it installs the program.
pub(crate) fn require_cargo(program: &str, version: &str) -> Result<()> {
    if is_installed(program) {
        return Ok(());
    }
    let words = ["install", "--locked", program, "--version", version];
    if env::var_os("CI").is_none() {
        bail!("{program} not installed; to install: cargo {}", words.join(" "));
    }
    CommandLine::new("cargo").args(words).run()
}

/// Fails with the install command for a missing program written in Go; in CI it installs the program.
pub(crate) fn require_go(program: &str, source: &str) -> Result<()> {
    if is_installed(program) {
        return Ok(());
    }
    if env::var_os("CI").is_none() {
        bail!("{program} not installed; to install: GOBIN=/usr/local/bin go install {source}");
    }
    CommandLine::new("go").args(["install", source]).env("GOBIN", "/usr/local/bin").run()
}

fn is_installed(program: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|dir| dir.join(program).is_file())
}
