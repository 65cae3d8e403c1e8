//! A cluster in a directory, which the program `nyala` runs as long as this program needs it.
//!
//! ```text
//! nyala-sql --dir d ── starts ──► nyala up --dir d --stop-at-eof
//!        └── holds the pipe of its standard input: the servers stop when it closes, however this program ends
//! ```

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};
use std::time::Duration;

use nyala_common::env::Env;

use super::error::{SqlError, state};

/// Longest wait for the servers to stop in order; then they are killed. They recover at the next start.
const STOP_TIME: Duration = Duration::from_secs(20);
/// Time between two looks at a process that is stopping.
const STOP_POLL: Duration = Duration::from_millis(10);

/// Words around the addresses that the servers print once they serve.
const READY: (&str, &str) = ("Connect Kudu clients to the master ", ", for example");

/// A running cluster. Dropped, it stops, too, but nothing waits for that.
pub struct EmbeddedCluster {
    env: Env,
    child: Child,
    /// Held open: the servers print when they stop.
    _stdout: BufReader<ChildStdout>,
    masters: String,
}

impl EmbeddedCluster {
    /// Starts a cluster on the data in `dir` and waits until it serves. `program` is the program `nyala`; by default
    /// the one beside this program, or the first one on PATH.
    pub async fn start(env: &Env, program: Option<&str>, dir: &str) -> Result<EmbeddedCluster, SqlError> {
        let program = program_path(program);
        let failed = |reason: String| {
            SqlError::with_state(state::UNAVAILABLE, format!("--dir {dir}: {}: {reason}", program.display()))
        };
        let mut child = spawn(&program, dir).map_err(|error| {
            failed(format!("{error}; install it beside nyala-sql or on PATH, or give --nyala PROGRAM"))
        })?;
        let (Some(stdout), Some(stderr)) = (child.stdout.take(), child.stderr.take()) else {
            return Err(failed("its output is not a pipe".to_string()));
        };
        let mut stdout = BufReader::new(stdout);
        let Some(masters) = env.run(|| read_masters(&mut stdout)).await else {
            let reason = env.run(|| reason_of_end(&mut child, stderr)).await;
            return Err(failed(reason));
        };
        forward(env, stderr);
        Ok(EmbeddedCluster { env: env.clone(), child, _stdout: stdout, masters })
    }

    /// Returns the addresses of the masters.
    pub fn masters(&self) -> &str {
        &self.masters
    }

    /// Stops the servers and waits until they have ended.
    pub async fn stop(mut self) -> Result<(), SqlError> {
        drop(self.child.stdin.take());
        let env = self.env.clone();
        let ended = env.timeout(STOP_TIME, async {
            while let Ok(None) = self.child.try_wait() {
                env.sleep(STOP_POLL).await;
            }
        });
        if ended.await.is_some() {
            return Ok(());
        }
        let seconds = STOP_TIME.as_secs();
        let killed = self.child.kill().and_then(|()| self.child.wait());
        Err(SqlError::with_state(
            state::INTERNAL,
            format!("the servers did not stop within {seconds} s and were killed ({killed:?})"),
        ))
    }
}

fn program_path(given: Option<&str>) -> PathBuf {
    if let Some(given) = given {
        return PathBuf::from(given);
    }
    let beside = std::env::current_exe().map(|this| this.with_file_name("nyala"));
    beside.ok().filter(|beside| beside.exists()).unwrap_or_else(|| PathBuf::from("nyala"))
}

fn spawn(program: &PathBuf, dir: &str) -> std::io::Result<Child> {
    Command::new(program)
        .args(["up", "--stop-at-eof", "--free-ports", "--masters=1", "--tablet-servers=1", "--dir", dir])
        .args(["--webserver-enabled=false", "--log-level=error", "--default-num-replicas=1"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        // Ctrl-C cancels a statement; the terminal sends it to the whole group of processes.
        .process_group(0)
        .spawn()
}

/// Reads the addresses of the masters; `None` if the output ends before them.
fn read_masters(stdout: &mut BufReader<ChildStdout>) -> Option<String> {
    stdout.lines().map_while(std::io::Result::ok).find_map(|line| masters_of(&line))
}

fn masters_of(line: &str) -> Option<String> {
    let masters = line.strip_prefix(READY.0)?.strip_suffix(READY.1)?;
    Some(masters.to_string())
}

/// Returns why the program ended: its last line.
fn reason_of_end(child: &mut Child, mut stderr: ChildStderr) -> String {
    drop(child.stdin.take());
    let mut text = String::new();
    let read = stderr.read_to_string(&mut text);
    match (child.wait(), text.lines().last().filter(|_| read.is_ok())) {
        (_, Some(line)) => line.trim_start_matches("nyala: ").to_string(),
        (Ok(status), None) => format!("ended with {status} before it served"),
        (Err(error), None) => error.to_string(),
    }
}

/// Prints the errors of the servers.
fn forward(env: &Env, stderr: ChildStderr) {
    let waiting = env.clone();
    env.spawn("errors of the servers", async move {
        let print = || {
            for line in BufReader::new(stderr).lines().map_while(std::io::Result::ok) {
                eprintln!("{line}");
            }
        };
        waiting.run(print).await;
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_with_the_masters_is_known() {
        let line = "Connect Kudu clients to the master 127.0.0.1:7051, for example";
        assert_eq!(masters_of(line), Some("127.0.0.1:7051".to_string()));
        assert_eq!(masters_of("  master  127.0.0.1:7051"), None);
    }
}
