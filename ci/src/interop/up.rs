//! `nyala up`: a whole cluster in one process, as a person would start it.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::command::Run;

/// What it prints before the addresses of the masters.
const GREETING: &str = "Connect Kudu clients to the master ";
const STOP_TIMEOUT: Duration = Duration::from_secs(30);

/// A running `nyala up`; dropping it kills the process.
pub struct Up {
    child: Child,
    pub masters: String,
}

impl Up {
    /// Starts it on free ports with its data under `dir`, and waits until it says where clients connect.
    pub fn start(program: &Path, dir: &Path) -> Result<Up> {
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
                return Ok(Up { child, masters });
            }
        }
        let status = child.wait()?;
        bail!("nyala up ended with {status}:\n{}", std::fs::read_to_string(log)?);
    }

    /// Stops it with a signal, as a service manager would; it must end by itself and well.
    pub fn stop(mut self) -> Result<()> {
        Run::new("kill").args(["-TERM", &self.child.id().to_string()]).run()?;
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

impl Drop for Up {
    fn drop(&mut self) {
        // Both fail only for a process that is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The addresses in the line that tells them.
fn masters(line: &str) -> Option<String> {
    let rest = line.strip_prefix(GREETING)?;
    Some(rest.split(", ").next().unwrap_or(rest).trim_end_matches('.').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_addresses_are_read_off_the_greeting() {
        let one = masters("Connect Kudu clients to the master 127.0.0.1:7051, for example");
        assert_eq!(one.as_deref(), Some("127.0.0.1:7051"));
        let two = masters("Connect Kudu clients to the master 127.0.0.1:1,127.0.0.1:2, for example");
        assert_eq!(two.as_deref(), Some("127.0.0.1:1,127.0.0.1:2"));
        assert_eq!(masters("nyala is up"), None);
    }
}
