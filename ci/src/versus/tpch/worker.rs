//! A worker: a process that answers requests over one store.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde_json::{Value, json};

/// A running worker. Dropped, it ends, because its standard input does.
pub(super) struct Worker {
    child: Child,
    /// `None` once the worker is to end.
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
    /// Version of its query engine.
    pub version: String,
}

/// Result and cost of a request.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
pub(super) struct Done {
    pub seconds: f64,
    /// CPU seconds of the worker.
    pub cpu: f64,
    /// Peak memory of the worker during the request, in bytes.
    pub peak_rss: f64,
}

#[derive(Deserialize)]
struct Greeting {
    version: String,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Response {
    Failed { error: String },
    Done(Done),
}

impl Worker {
    /// Starts a worker and waits until it takes requests.
    pub(super) fn start(command: &mut Command) -> Result<Worker> {
        let what = command.get_program().to_string_lossy().into_owned();
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("starting {what}; is it installed?"))?;
        let stdin = child.stdin.take();
        let stdout = BufReader::new(child.stdout.take().context("a piped output")?);
        let mut worker = Worker { child, stdin, stdout, version: String::new() };
        let greeting: Greeting = serde_json::from_str(&worker.line()?)?;
        worker.version = greeting.version;
        Ok(worker)
    }

    /// Runs a query; its rows go to a CSV file, if one is named.
    pub(super) fn query(&mut self, sql: &str, answer: Option<&Path>) -> Result<Done> {
        self.request(&json!({ "query": { "sql": sql, "answer": answer } }))
            .with_context(|| format!("query {sql}"))
    }

    /// Runs statements on a cluster.
    pub(super) fn execute(&mut self, script: &str) -> Result<Done> {
        self.request(&json!({ "statements": script })).with_context(|| format!("statements {script}"))
    }

    /// Takes the tables from a folder of files.
    pub(super) fn use_files(&mut self, dir: &Path) -> Result<Done> {
        self.request(&json!({ "files": dir }))
    }

    /// Changes a flag of the servers in the worker.
    pub(super) fn set_flag(&mut self, name: &str, value: &str) -> Result<Done> {
        self.request(&json!({ "flag": { "name": name, "value": value } }))
    }

    fn request(&mut self, request: &Value) -> Result<Done> {
        let stdin = self.stdin.as_mut().context("the worker takes requests")?;
        writeln!(stdin, "{request}").context("the worker has ended")?;
        let line = self.line()?;
        match serde_json::from_str(&line).with_context(|| format!("the worker printed {line:?}"))? {
            Response::Done(done) => Ok(done),
            Response::Failed { error } => bail!("{error}"),
        }
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        if self.stdout.read_line(&mut line)? == 0 {
            bail!("the worker ended with {}", self.child.wait()?);
        }
        Ok(line)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        drop(self.stdin.take());
        let _status = self.child.wait();
    }
}
