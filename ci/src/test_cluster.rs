//! A cluster of `nyala up` with a table and rows, for checks of what it shows on its web ports.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::command::{CommandLine, cargo, target_dir};
use crate::nyala_up::NyalaUp;
use crate::tools::kerberos_feature;

/// A running cluster, stopped when dropped.
pub(crate) struct TestCluster {
    up: NyalaUp,
    program: PathBuf,
    _dir: tempfile::TempDir,
}

impl TestCluster {
    /// Starts a master and three tablet servers, and makes the table `measurements`.
    pub(crate) fn start(root: &Path) -> Result<TestCluster> {
        // With the features of the tests, which have built it.
        let words = ["build", "--quiet", "--package", "node"];
        cargo(root, &[&words, kerberos_feature()].concat())?;
        let program = target_dir()?.join("debug/nyala");
        let dir = tempfile::tempdir()?;
        let up = NyalaUp::start(&program, dir.path())?;
        let cluster = TestCluster { up, program, _dir: dir };
        cluster.table(
            &["create", "measurements", "--column", "host string", "--column", "value double null"],
            &["--key", "host", "--hash", "host:4"],
        )?;
        Ok(cluster)
    }

    /// Returns the web addresses, masters first.
    pub(crate) fn web(&self) -> &[String] {
        &self.up.web
    }

    /// Runs `nyala table`.
    pub(crate) fn table(&self, words: &[&str], more: &[&str]) -> Result<()> {
        let masters = ["--masters", &self.up.masters];
        CommandLine::new(&self.program).args(["table"]).args(words).args(more).args(masters).run()
    }

    /// Returns the URL of a page of a server: 0 is the master.
    pub(crate) fn url(&self, server: usize, path: &str) -> Result<String> {
        let address = self.web().get(server).context("nyala up names its web ports")?;
        Ok(format!("http://{address}{path}"))
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
