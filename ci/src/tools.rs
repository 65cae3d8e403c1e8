//! External programs that steps need; installed in CI if they are missing.

use std::path::{Path, PathBuf};
use std::{env, fs};

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
    )?;
    require_libclang()
}

/// Fails with the install command if the library that reads the C headers of Kerberos in a build is missing; in CI it
/// installs it. No program of its package tells.
fn require_libclang() -> Result<()> {
    const FIX: [&str; 4] = ["install", "-y", "--no-install-recommends", "libclang-dev"];
    if has_libclang() {
        return Ok(());
    }
    let fix = format!("apt-get update && apt-get {}", FIX.join(" "));
    if env::var_os("CI").is_none() || !is_installed("apt-get") {
        bail!("libclang not installed, without which no build has Kerberos; to install: {fix}");
    }
    println!("libclang not installed; running {fix}");
    CommandLine::new("apt-get").args(["update", "-q"]).run()?;
    CommandLine::new("apt-get").args(FIX).env("DEBIAN_FRONTEND", "noninteractive").run()?;
    ensure!(has_libclang(), "libclang still not installed after {fix}");
    Ok(())
}

/// Returns true if a build finds libclang: in the folder of `LIBCLANG_PATH`, or where Debian and Fedora put it.
fn has_libclang() -> bool {
    let named = env::var_os("LIBCLANG_PATH").map(PathBuf::from);
    let llvm = folders_in("/usr/lib").filter(|folder| name_begins(folder, "llvm")).map(|dir| dir.join("lib"));
    let system =
        folders_in("/usr/lib").chain(["/usr/lib", "/usr/lib64", "/usr/local/lib"].map(PathBuf::from));
    named.into_iter().chain(llvm).chain(system).any(|folder| {
        let files = fs::read_dir(folder).into_iter().flatten().flatten();
        files
            .map(|file| file.path())
            .any(|file| name_begins(&file, "libclang.so") || name_begins(&file, "libclang-"))
    })
}

fn folders_in(folder: &str) -> impl Iterator<Item = PathBuf> {
    fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.is_dir())
}

fn name_begins(path: &Path, start: &str) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(start))
}

/// Returns true if [`require_kerberos`] is met; if not, prints that Kerberos is not tested, and why.
pub(crate) fn try_kerberos() -> bool {
    require_kerberos().inspect_err(|missing| println!("skipped, as to Kerberos: {missing:#}")).is_ok()
}

/// Returns the arguments of cargo that build `node` with Kerberos, if this machine has the library's headers and what
/// reads them.
pub(crate) fn kerberos_feature() -> &'static [&'static str] {
    if is_installed("krb5-config") && has_libclang() { &["--features", "node/kerberos"] } else { &[] }
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
