//! Programs of the machine that steps need: found, or installed where nobody is there to do it.

use std::env;

use anyhow::{Result, bail, ensure};

use crate::command::Run;

/// Fails with how to install what is missing; as root in CI it installs it.
pub fn require(programs: &[&str], packages: &[&str]) -> Result<()> {
    let missing: Vec<&str> = programs.iter().copied().filter(|program| !found(program)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let words = [&["install", "-y", "--no-install-recommends"], packages].concat();
    let fix = format!("apt-get update && apt-get {}", words.join(" "));
    if env::var_os("CI").is_none() || !found("apt-get") {
        bail!("{} not found; to install: {fix}", missing.join(", "));
    }
    println!("{} not found; running {fix}", missing.join(", "));
    Run::new("apt-get").args(["update", "-q"]).run()?;
    Run::new("apt-get").args(words).run()?;
    ensure!(programs.iter().copied().all(found), "still not found after {fix}");
    Ok(())
}

fn found(program: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|dir| dir.join(program).is_file())
}
