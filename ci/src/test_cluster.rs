//! A cluster of `nyala up` with a table and rows, for checks of what it shows on its web ports.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::command::{CommandLine, cargo, target_dir};

/// Text that `nyala up` prints once clients can connect.
const READY: &str = "Stop with Ctrl-C";

/// A running cluster, stopped when dropped.
pub(crate) struct TestCluster {
    child: Child,
    /// Web addresses, masters first.
    pub web: Vec<String>,
    program: PathBuf,
    masters: String,
    _dir: tempfile::TempDir,
}

impl TestCluster {
    /// Starts a master and three tablet servers, and makes the table `measurements`.
    pub(crate) fn start(root: &Path) -> Result<TestCluster> {
        cargo(root, &["build", "--quiet", "--package", "node"])?;
        let program = target_dir()?.join("debug/nyala");
        let dir = tempfile::tempdir()?;
        let mut child = Command::new(&program)
            .args(["up", "--free-ports", "--log-level=info", "--dir"])
            .arg(dir.path().join("data"))
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .context("starting nyala up")?;
        let mut printed = String::new();
        let mut lines = BufReader::new(child.stdout.take().context("its output")?);
        while !printed.contains(READY) {
            ensure!(lines.read_line(&mut printed)? > 0, "nyala up ended early: {printed}");
        }
        let urls = printed.split_whitespace().filter_map(|word| word.strip_prefix("http://"));
        let web = urls.filter_map(|url| url.strip_suffix("/metrics")).map(str::to_owned).collect();
        let masters = printed.lines().find(|line| line.contains("--masters")).context("an example")?;
        let masters = masters.rsplit(' ').next().unwrap_or_default().to_owned();
        let cluster = TestCluster { child, web, program, masters, _dir: dir };
        cluster.table(
            &["create", "measurements", "--column", "host string", "--column", "value double null"],
            &["--key", "host", "--hash", "host:4"],
        )?;
        Ok(cluster)
    }

    /// Runs `nyala table`.
    pub(crate) fn table(&self, words: &[&str], more: &[&str]) -> Result<()> {
        let masters = ["--masters", &self.masters];
        CommandLine::new(&self.program).args(["table"]).args(words).args(more).args(masters).run()
    }

    /// Returns the URL of a page of a server: 0 is the master.
    pub(crate) fn url(&self, server: usize, path: &str) -> Result<String> {
        let address = self.web.get(server).context("nyala up names its web ports")?;
        Ok(format!("http://{address}{path}"))
    }
}

impl Drop for TestCluster {
    fn drop(&mut self) {
        // A process that has ended already needs no end.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the body of an answer with status 200. HTTP/1.0 has no chunks.
pub(crate) fn http_get(address: &str, path: &str) -> Result<String> {
    let mut stream = TcpStream::connect(address).with_context(|| format!("connecting to {address}"))?;
    write!(stream, "GET {path} HTTP/1.0\r\nhost: {address}\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").context("an answer has a head")?;
    let status = head.lines().next().unwrap_or_default();
    ensure!(status.contains(" 200 "), "http://{address}{path}: {status}: {body}");
    Ok(body.to_owned())
}
