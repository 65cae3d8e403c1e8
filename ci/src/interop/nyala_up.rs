//! `nyala up`: a whole cluster in one process, as an operator starts it.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::command::CommandLine;

/// Text before the addresses of the masters in its output.
const GREETING: &str = "Connect Kudu clients to the master ";
const STOP_TIMEOUT: Duration = Duration::from_secs(30);

/// A running `nyala up`; dropping it kills the process.
pub(super) struct NyalaUp {
    child: Child,
    pub masters: String,
}

impl NyalaUp {
    /// Starts it on free ports with its data under `dir`, and waits for the line with the masters' addresses.
    pub(super) fn start(program: &Path, dir: &Path) -> Result<NyalaUp> {
        let log = dir.join("log");
        let mut child = Command::new(program)
            .args(["up", "--free-ports", "--dir"])
            .arg(dir.join("data"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(File::create(&log)?)
            .spawn()
            .with_context(|| format!("starting {}", program.display()))?;
        let stdout = child.stdout.take().expect("it was asked for");
        for line in BufReader::new(stdout).lines() {
            if let Some(masters) = masters(&line?) {
                return Ok(NyalaUp { child, masters });
            }
        }
        let status = child.wait()?;
        bail!("nyala up ended with {status}:\n{}", std::fs::read_to_string(log)?);
    }

    /// Stops it with a signal, as a service manager does; it must exit successfully.
    pub(super) fn stop(mut self) -> Result<()> {
        CommandLine::new("kill").args(["-TERM", &self.child.id().to_string()]).run()?;
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait()? {
                ensure!(status.success(), "it ended with {status}");
                return Ok(());
            }
            ensure!(start.elapsed() < STOP_TIMEOUT, "it still runs after {} s", STOP_TIMEOUT.as_secs());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for NyalaUp {
    fn drop(&mut self) {
        // Both fail only for an ended process.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the addresses from the greeting.
fn masters(line: &str) -> Option<String> {
    let rest = line.strip_prefix(GREETING)?;
    Some(rest.split(", ").next().unwrap_or(rest).trim_end_matches('.').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_greeting_has_the_addresses() {
        let one = masters("Connect Kudu clients to the master 127.0.0.1:7051, for example");
        assert_eq!(one.as_deref(), Some("127.0.0.1:7051"));
        let two = masters("Connect Kudu clients to the master 127.0.0.1:1,127.0.0.1:2, for example");
        assert_eq!(two.as_deref(), Some("127.0.0.1:1,127.0.0.1:2"));
        assert_eq!(masters("nyala is up"), None);
    }
}
