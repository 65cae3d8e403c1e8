//! Processes of Redis and of the bare servers. Dropping one kills it.

use std::ffi::OsString;
use std::fs::File;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::interop::daemon::free_addresses;

const READY_TIMEOUT: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(10);

/// Kinds of `drive echo`.
#[derive(Clone, Copy)]
pub(super) enum BareServerKind {
    Epoll,
    Tokio,
}

impl BareServerKind {
    /// Returns the name in the report.
    pub(super) fn name(self) -> &'static str {
        match self {
            BareServerKind::Epoll => "echo-epoll",
            BareServerKind::Tokio => "echo-tokio",
        }
    }

    fn word(self) -> &'static str {
        match self {
            BareServerKind::Epoll => "epoll",
            BareServerKind::Tokio => "tokio",
        }
    }
}

/// A running server.
pub(super) struct Process {
    child: Child,
    pub(super) address: SocketAddr,
}

impl Process {
    /// Starts Redis in `dir` without persistence, or with an append-only file that is synced before each reply.
    pub(super) fn redis(dir: &Path, log_sync: bool) -> Result<Process> {
        let address = free_address()?;
        let mut command = Command::new("redis-server");
        command.args(redis_words(address, dir, log_sync)).stdout(File::create(dir.join("output"))?);
        Process::start(command, address)
    }

    /// Starts a bare server, with a log if a path is given.
    pub(super) fn bare(drive: &Path, kind: BareServerKind, log: Option<&Path>) -> Result<Process> {
        let address = free_address()?;
        let mut command = Command::new(drive);
        command.args(["echo", "--kind", kind.word(), "--address", &address.to_string()]);
        if let Some(log) = log {
            command.arg("--log").arg(log);
        }
        Process::start(command, address)
    }

    /// Starts a server and waits until it accepts connections.
    fn start(mut command: Command, address: SocketAddr) -> Result<Process> {
        let name = command.get_program().display().to_string();
        let child = command.stdin(Stdio::null()).spawn().with_context(|| format!("starting {name}"))?;
        let mut process = Process { child, address };
        let begun = Instant::now();
        while let Err(error) = TcpStream::connect(address) {
            if let Some(status) = process.child.try_wait()? {
                bail!("{name} ended with {status}");
            }
            if begun.elapsed() > READY_TIMEOUT {
                bail!("{name} does not listen on {address}: {error}");
            }
            thread::sleep(POLL);
        }
        Ok(process)
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail only for an ended process.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn free_address() -> Result<SocketAddr> {
    free_addresses(1)?.pop().context("one address was asked for")
}

/// Returns the arguments of Redis. Words after `--name` are its values.
fn redis_words(address: SocketAddr, dir: &Path, log_sync: bool) -> Vec<OsString> {
    let durable = if log_sync { "yes" } else { "no" };
    let (ip, port) = (address.ip().to_string(), address.port().to_string());
    let words = ["--bind", &ip, "--port", &port, "--save", "", "--appendonly", durable];
    let words = words.iter().chain(&["--appendfsync", "always", "--daemonize", "no", "--dir"]);
    words.map(OsString::from).chain([dir.as_os_str().to_owned()]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(log_sync: bool) -> String {
        let words = redis_words("127.0.0.1:7".parse().unwrap(), Path::new("/d"), log_sync);
        words.iter().map(|word| format!("{} ", word.to_string_lossy())).collect()
    }

    #[test]
    fn redis_listens_on_loopback_only_and_stores_nothing_without_log_sync() {
        let off = words(false);
        assert!(off.starts_with("--bind 127.0.0.1 --port 7 --save  --appendonly no "), "{off}");
    }

    #[test]
    fn redis_with_log_sync_syncs_before_each_reply() {
        assert!(words(true).contains("--appendonly yes --appendfsync always "));
    }

    #[test]
    fn a_program_that_ends_is_no_server() {
        let error = Process::start(Command::new("false"), free_address().unwrap()).err().unwrap();
        assert!(error.to_string().contains("false ended with"), "{error}");
    }
}
