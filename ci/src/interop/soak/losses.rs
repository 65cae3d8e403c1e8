//! Faults after which an operator, or the cluster, has work: lost and damaged data, wrong clocks, a power cut.
//!
//! What an operator does is what `node/RUNBOOKS.md` says. The cluster is healthy before and after; see `faults.rs`.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::draw::Fault;
use super::stage::{HEALED_SECONDS, Stage};
use crate::interop::daemon::{Daemon, DaemonSpec, Role};
use crate::interop::faketime;
use crate::test_cluster::http_get;

/// Longest wait for a server that refuses to start.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(120);
/// Exit codes of a server whose data directories are not its own, and whose clock is wrong.
const BAD_DIRS: i32 = 4;
const BAD_CLOCK: i32 = 6;
/// Clocks that are this far ahead must be noticed.
const NOTICED_SECONDS: u64 = 60;
/// Time in which they must be.
const NOTICE_TIMEOUT: Duration = Duration::from_secs(120);
/// Position of a byte in the first records of a log segment.
const LOG_RECORD_AT: usize = 200;
/// Smallest size of a damaged data file.
const DATA_BYTES_MIN: u64 = 4096;

impl Stage {
    pub(super) fn apply_loss(&mut self, fault: Fault, span: Duration) -> Result<()> {
        match fault {
            Fault::PowerCut => {
                self.cluster.kill_all();
                thread::sleep(span);
                self.cluster.start()
            }
            Fault::Rebalance => self.rebalance(),
            Fault::ClockAhead { tserver, seconds } => self.bad_clock(tserver, seconds, span),
            Fault::DeadDataDir { tserver, dir } => self.dead_data_dir(tserver, dir),
            Fault::LostServer(index) => self.lost_server(index),
            Fault::LostMaster(index) => self.lost_master(index),
            Fault::DamagedLog { tserver, at } => self.damage(tserver, at, log_files, |_| LOG_RECORD_AT),
            Fault::DamagedData { tserver, at } => self.damage(tserver, at, data_files, |bytes| bytes / 2),
            _ => bail!("it is no loss"),
        }
    }

    fn bad_clock(&mut self, index: usize, seconds: u64, span: Duration) -> Result<()> {
        if !faketime::is_installed() {
            self.watch.say("NO CLOCK IS SET WRONG, as libfaketime is not there (apt-get install faketime)");
            return Ok(());
        }
        let node = (Role::TabletServer, index);
        let daemon = self.cluster.daemon(node.0, node.1)?;
        daemon.kill();
        daemon.spec.clock_ahead = seconds;
        self.cluster.launch(node.0, node.1)?;
        let ended = self.cluster.daemon(node.0, node.1)?.exit_code_within(span)?;
        ensure!(ended.is_none_or(|code| code == BAD_CLOCK), "it ended with code {ended:?}");
        if seconds > NOTICED_SECONDS {
            self.until_clock_is_noticed()?;
            self.until_unhealthy()?;
        }
        let daemon = self.cluster.daemon(node.0, node.1)?;
        daemon.kill();
        daemon.spec.clock_ahead = 0;
        self.cluster.start_daemon(node.0, node.1)
    }

    /// Waits until a master's `/readyz` says that a clock differs, as the runbook looks for it.
    fn until_clock_is_noticed(&self) -> Result<()> {
        let begun = Instant::now();
        let says_so = |master: &Daemon| {
            // Another status than 200 is an error, which has the page.
            let page = http_get(&master.spec.web.to_string(), "/readyz");
            page.unwrap_or_else(|error| error.to_string()).contains("refused clock")
        };
        while !self.cluster.masters.iter().any(says_so) {
            ensure!(begun.elapsed() < NOTICE_TIMEOUT, "no master's /readyz says that the clock differs");
            thread::sleep(Duration::from_millis(200));
        }
        Ok(())
    }

    /// Waits until the check finds errors.
    fn until_unhealthy(&self) -> Result<()> {
        let begun = Instant::now();
        while self.nyala(&["cluster", "check"]).is_ok() {
            ensure!(begun.elapsed() < NOTICE_TIMEOUT, "the check finds no error");
            thread::sleep(Duration::from_millis(200));
        }
        Ok(())
    }

    fn dead_data_dir(&mut self, index: usize, dir: usize) -> Result<()> {
        let role = Role::TabletServer;
        let daemon = self.cluster.daemon(role, index)?;
        daemon.kill();
        let dir = daemon.spec.data_dir(dir);
        fs::remove_dir_all(&dir)?;
        self.cluster.launch(role, index)?;
        let daemon = self.cluster.daemon(role, index)?;
        let ended = daemon.exit_code_within(REFUSAL_TIMEOUT)?;
        ensure!(ended == Some(BAD_DIRS), "a data directory is missing, and it ended with code {ended:?}");
        daemon.spec.gflags.push(format!("--fs_lost_data_dirs={}", dir.display()));
        self.cluster.start_daemon(role, index)?;
        self.until_healthy()?;
        self.cluster.daemon(role, index)?.spec.gflags.pop();
        Ok(())
    }

    /// Loses a tablet server with its disk. Another one takes its place and is given replicas. It has another address:
    /// the Java client keeps connections by address.
    fn lost_server(&mut self, index: usize) -> Result<()> {
        let role = Role::TabletServer;
        let daemon = self.cluster.daemon(role, index)?;
        let address = daemon.spec.address().to_string();
        daemon.kill();
        daemon.spec.wipe()?;
        self.nyala(&["cluster", "check", "--down", &address, "--wait", HEALED_SECONDS])?;
        self.nyala(&["cluster", "remove-server", &address, "--wait", "120"])?;
        self.cluster.move_daemon(role, index)?;
        self.cluster.start_daemon(role, index)?;
        self.cluster.wait_ready()?;
        self.rebalance()
    }

    fn rebalance(&self) -> Result<()> {
        self.nyala(&["cluster", "rebalance"]).map(drop)
    }

    fn lost_master(&mut self, index: usize) -> Result<()> {
        let daemon = self.cluster.daemon(Role::Master, index)?;
        let address = daemon.spec.address().to_string();
        daemon.kill();
        daemon.spec.wipe()?;
        self.until_unhealthy()?;
        self.nyala(&["cluster", "remove-master", &address])?;
        self.cluster.start_daemon(Role::Master, index)
    }

    /// Flips a bit in one of a stopped tablet server's files.
    fn damage(
        &mut self,
        index: usize,
        choice: u64,
        files: fn(&DaemonSpec) -> Result<Vec<PathBuf>>,
        position: fn(usize) -> usize,
    ) -> Result<()> {
        let daemon = self.cluster.daemon(Role::TabletServer, index)?;
        daemon.kill();
        let files = files(&daemon.spec)?;
        let Some(file) = files.get((choice % files.len().max(1) as u64) as usize) else {
            self.watch.say("NOTHING IS DAMAGED, as the server has no such file yet");
            return self.cluster.start_daemon(Role::TabletServer, index);
        };
        let mut bytes = fs::read(file)?;
        let at = position(bytes.len());
        *bytes.get_mut(at).context("the file is too short")? ^= 0x10;
        fs::write(file, bytes)?;
        self.watch.say(&format!("a bit at {at} of {} is flipped", file.display()));
        self.cluster.start_daemon(Role::TabletServer, index)
    }
}

fn log_files(spec: &DaemonSpec) -> Result<Vec<PathBuf>> {
    files_under(&spec.wal_dir().join("wals"), LOG_RECORD_AT as u64 + 1)
}

fn data_files(spec: &DaemonSpec) -> Result<Vec<PathBuf>> {
    let all = (0..spec.data_dirs).map(|index| files_under(&spec.data_dir(index), DATA_BYTES_MIN));
    Ok(all.collect::<Result<Vec<_>>>()?.concat())
}

/// Returns all files of at least this size, sorted.
fn files_under(dir: &Path, bytes_min: u64) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut dirs = vec![dir.to_path_buf()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).with_context(|| format!("reading {}", dir.display()))? {
            let entry = entry?;
            let metadata = entry.metadata()?;
            if metadata.is_dir() {
                dirs.push(entry.path());
            } else if metadata.len() >= bytes_min {
                files.push(entry.path());
            }
        }
    }
    files.sort();
    Ok(files)
}
