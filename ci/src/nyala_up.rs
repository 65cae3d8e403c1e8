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
/// Text of its last line, once clients can connect.
const READY: &str = "Stop with Ctrl-C";
const STOP_TIMEOUT: Duration = Duration::from_secs(30);

/// A running `nyala up`; dropping it kills the process.
pub(crate) struct NyalaUp {
    child: Child,
    pub masters: String,
    /// Web addresses, masters first.
    pub web: Vec<String>,
}

impl NyalaUp {
    /// Starts it on free ports with its data under `dir`, and waits until clients can connect.
    pub(crate) fn start(program: &Path, dir: &Path) -> Result<NyalaUp> {
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
        let mut up = NyalaUp { child, masters: String::new(), web: Vec::new() };
        for line in BufReader::new(stdout).lines() {
            if up.is_ready(&line?) {
                return Ok(up);
            }
        }
        let status = up.child.wait()?;
        bail!("nyala up ended with {status}:\n{}", std::fs::read_to_string(log)?);
    }

    /// Reads a line of its output; returns true if it is the last one.
    fn is_ready(&mut self, line: &str) -> bool {
        if let Some(masters) = masters(line) {
            self.masters = masters;
        }
        self.web.extend(web_addresses(line));
        line.contains(READY)
    }

    /// Stops it with a signal, as a service manager does; it must exit successfully.
    pub(crate) fn stop(mut self) -> Result<()> {
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

/// Returns the web addresses in a line, from the URLs of their metrics.
fn web_addresses(line: &str) -> impl Iterator<Item = String> {
    let urls = line.split_whitespace().filter_map(|word| word.strip_prefix("http://"));
    urls.filter_map(|url| url.strip_suffix("/metrics")).map(str::to_owned)
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
        let web: Vec<String> = web_addresses("metrics http://127.0.0.1:8051/metrics and http://x/").collect();
        assert_eq!(web, ["127.0.0.1:8051"]);
    }
}
