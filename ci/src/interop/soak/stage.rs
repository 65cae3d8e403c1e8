//! The cluster of a soak, and the check that it is healthy.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Result, ensure};

use super::draw::Fault;
use crate::command::CommandLine;
use crate::interop::cluster::Cluster;
use crate::interop::small_disk::SmallDisk;

/// Longest wait for a healthy cluster.
pub(super) const HEALED_SECONDS: &str = "300";

/// Time since the begin of a run, before each line that it prints.
#[derive(Clone, Copy)]
pub(super) struct Stopwatch(pub Instant);

impl Stopwatch {
    pub(super) fn say(self, what: &str) {
        let seconds = self.0.elapsed().as_secs();
        println!("    {:02}:{:02} {what}", seconds / 60, seconds % 60);
    }
}

/// The cluster and what its faults need.
pub(super) struct Stage {
    pub cluster: Cluster,
    /// `None` where mounting is not allowed.
    pub disk: Option<SmallDisk>,
    pub program: PathBuf,
    pub masters: String,
    pub watch: Stopwatch,
    /// Number of faults by kind.
    pub counts: BTreeMap<&'static str, usize>,
}

impl Stage {
    /// Runs a command of nyala, which must succeed; returns its output.
    pub(super) fn nyala(&self, words: &[&str]) -> Result<String> {
        let masters = ["--masters", &self.masters];
        let output = CommandLine::new(&self.program).args(words).args(masters).output()?;
        ensure!(output.success, "nyala {}:\n{}{}", words.join(" "), output.stdout, output.stderr);
        Ok(output.stdout)
    }

    /// Waits until the check finds no error; nothing is done for it.
    pub(super) fn until_healthy(&self) -> Result<()> {
        let begun = Instant::now();
        self.nyala(&["cluster", "check", "--wait", HEALED_SECONDS])?;
        self.watch.say(&format!("the cluster is healthy, after {} s", begun.elapsed().as_secs()));
        Ok(())
    }

    pub(super) fn count(&mut self, fault: &Fault) {
        *self.counts.entry(fault.kind()).or_default() += 1;
    }

    /// Copies the small disk, which is in memory, to a folder.
    pub(super) fn keep_small_disk(&self, to: &Path) -> Result<()> {
        let Some(disk) = &self.disk else { return Ok(()) };
        CommandLine::new("cp").args(["-a"]).args([&disk.dir, to]).run()
    }
}
