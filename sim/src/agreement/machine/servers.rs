//! The servers' processes: started, killed, paused and watched. Each writes what it prints into a file.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use sim_plan::{Host, Plan};

/// Lines that a failure quotes of what a server has printed.
const LINES_MAX: usize = 20;

/// The processes of a run. They end when this is dropped.
pub(super) struct Servers {
    plan: PathBuf,
    dir: PathBuf,
    network: u32,
    hosts: Vec<Host>,
    running: BTreeMap<Host, Child>,
    failures: Vec<String>,
    /// Number of kills and pauses.
    pub faults: u64,
}

impl Servers {
    /// `dir`: the directory of the run, where each server has one of its own.
    pub(super) fn new(plan: &Plan, dir: &Path, network: u32) -> io::Result<Servers> {
        let path = dir.join("plan");
        fs::write(&path, plan.to_string())?;
        let hosts = plan.servers();
        hosts.iter().try_for_each(|host| fs::create_dir_all(dir.join(host.name())))?;
        let (running, failures, dir) = (BTreeMap::new(), Vec::new(), dir.to_path_buf());
        Ok(Servers { plan: path, dir, network, hosts, running, failures, faults: 0 })
    }

    /// Starts a server that is down.
    pub(super) fn start(&mut self, host: Host) -> io::Result<()> {
        if self.running.contains_key(&host) {
            return Ok(());
        }
        let log = File::options().create(true).append(true).open(self.log(host))?;
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("serve").arg(&self.plan).arg(host.name()).arg("--dir").arg(&self.dir);
        command.args(["--network", &self.network.to_string()]).env("RUST_BACKTRACE", "1");
        let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        self.running.insert(host, quiet.spawn()?);
        Ok(())
    }

    /// Kills a server that is up.
    pub(super) fn kill(&mut self, host: Host) -> io::Result<()> {
        let Some(mut child) = self.running.remove(&host) else { return Ok(()) };
        if let Some(status) = child.try_wait()? {
            self.failures.push(format!("{host} ended with {status}: {}", self.printed(host)));
            return Ok(());
        }
        self.faults += 1;
        child.kill()?;
        child.wait().map(drop)
    }

    pub(super) fn pause(&mut self, host: Host) -> io::Result<()> {
        self.faults += u64::from(self.running.contains_key(&host));
        self.signal(host, "-STOP")
    }

    pub(super) fn resume(&mut self, host: Host) -> io::Result<()> {
        self.signal(host, "-CONT")
    }

    fn signal(&self, host: Host, signal: &str) -> io::Result<()> {
        let Some(child) = self.running.get(&host) else { return Ok(()) };
        // A process that has ended meanwhile is reported when it is waited for.
        Command::new("kill").args([signal, &child.id().to_string()]).stderr(Stdio::null()).status().map(drop)
    }

    /// Resumes and starts what faults have left.
    pub(super) fn end_faults(&mut self) -> io::Result<()> {
        for host in self.hosts.clone() {
            self.resume(host)?;
            self.start(host)?;
        }
        Ok(())
    }

    /// Kills all servers and starts them again.
    pub(super) fn restart_all(&mut self) -> io::Result<()> {
        let hosts = self.hosts.clone();
        hosts.iter().try_for_each(|host| self.kill(*host))?;
        hosts.iter().try_for_each(|host| self.start(*host))
    }

    /// Ends all servers; returns what went wrong in them.
    pub(super) fn end(&mut self) -> io::Result<Vec<String>> {
        for host in self.hosts.clone() {
            self.kill(host)?;
            let log = self.printed(host);
            if log.contains("panicked at") {
                self.failures.push(format!("{host}: {log}"));
            }
        }
        Ok(std::mem::take(&mut self.failures))
    }

    fn log(&self, host: Host) -> PathBuf {
        self.dir.join(format!("{host}.log"))
    }

    /// Returns the last lines that a server has printed, from its panic on.
    fn printed(&self, host: Host) -> String {
        let text = fs::read_to_string(self.log(host)).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        let panic = lines.iter().position(|line| line.contains("panicked at"));
        let first = panic.unwrap_or(lines.len().saturating_sub(LINES_MAX));
        lines[first..].iter().take(LINES_MAX).copied().collect::<Vec<_>>().join("\n")
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        for child in self.running.values_mut() {
            // One that has ended already is what is wanted.
            let _ended = child.kill().and_then(|()| child.wait());
        }
    }
}
