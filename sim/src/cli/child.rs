//! One run in a process of its own.
//!
//! The child writes its outcome as one line of JSON behind [`MARK`]; all else that it prints is the story of a panic.

use std::io::{BufRead, BufReader, Read, Write};
use std::ops::Range;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use clap::Args;
use serde::{Deserialize, Serialize};

use super::{Which, parse_range};
use crate::run::{Fault, Keep, Outcome, run};
use crate::trace::{LANE_MS, Track};

/// Begins the line with the outcome.
const MARK: &str = "@outcome ";
const LINE_MARK: &str = "@line ";
const MOMENT_MARK: &str = "@moment ";
const CURVE_MARK: &str = "@curve ";
/// Lines of a panic's story that are kept.
const STORY_LINES: usize = 60;
/// A run that takes longer, in real time, hangs.
const HANG: Duration = Duration::from_secs(300);

#[derive(Args)]
pub struct OneArgs {
    #[command(flatten)]
    which: Which,
    /// Print the events with these numbers, FROM..TO
    #[arg(long)]
    events: Option<String>,
    /// Print the run's moments
    #[arg(long)]
    moments: bool,
    /// Write the traces of replication into this folder
    #[arg(long)]
    trace: Option<PathBuf>,
}

/// A moment as it travels from the child.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Shown {
    pub ms: f64,
    pub host: String,
    pub kind: String,
    pub text: String,
}

/// One lane of one host, as it travels from the child.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Curve {
    pub host: String,
    pub lane: String,
    /// The width of a step.
    pub step_ms: u64,
    /// Steps that have a value, and their values.
    pub points: Vec<(u64, u64)>,
}

/// All that comes from a child.
pub struct Heard {
    pub outcome: Outcome,
    pub lines: Vec<String>,
    pub moments: Vec<Shown>,
    pub curves: Vec<Curve>,
}

/// Runs the plan here.
pub fn one(args: &OneArgs) -> Result<bool> {
    let plan = args.which.plan()?;
    let events = args.events.as_deref().map(parse_range).transpose()?.unwrap_or(0..0);
    let traces = args.trace.as_ref().map(|dir| (dir.clone(), args.which.file_name()));
    let keep = Keep { events, moments: args.moments, traces };
    let ran = run(&plan, args.which.how.world, keep).map_err(|error| anyhow!(error))?;
    let mut out = std::io::stdout().lock();
    for line in &ran.lines {
        writeln!(out, "{LINE_MARK}{line}")?;
    }
    for moment in ran.moments {
        let (ms, host) = (moment.nanos as f64 / 1e6, moment.host);
        let shown = Shown { ms, host, kind: moment.kind.to_string(), text: moment.text };
        writeln!(out, "{MOMENT_MARK}{}", serde_json::to_string(&shown)?)?;
    }
    for Track { host, lane, points } in ran.lanes {
        let curve = Curve { host, lane: lane.name().to_string(), step_ms: LANE_MS, points };
        writeln!(out, "{CURVE_MARK}{}", serde_json::to_string(&curve)?)?;
    }
    writeln!(out, "{MARK}{}", serde_json::to_string(&ran.outcome)?)?;
    out.flush()?;
    // The tasks of the world are not worth their dropping.
    std::process::exit(if ran.outcome.failures.is_empty() { 0 } else { 1 });
}

/// A run to be made in a child.
#[derive(Debug, Clone)]
pub struct Job {
    pub which: Which,
    pub events: Option<Range<u64>>,
    pub moments: bool,
    /// Where the traces of replication go.
    pub trace: Option<PathBuf>,
    /// The program to run, if it is not this one.
    pub program: Option<PathBuf>,
    /// The planted bug that it is to run with.
    pub planted: u32,
}

impl Job {
    pub fn new(which: Which) -> Job {
        Job { which, events: None, moments: false, trace: None, program: None, planted: 0 }
    }

    fn spawn(&self) -> Result<Child> {
        let program = match &self.program {
            Some(program) => program.clone(),
            None => std::env::current_exe().context("finding this program")?,
        };
        let mut command = Command::new(program);
        command.arg("one").args(self.which.words());
        if let Some(events) = &self.events {
            command.args(["--events".to_string(), format!("{}..{}", events.start, events.end)]);
        }
        if self.moments {
            command.arg("--moments");
        }
        if let Some(dir) = &self.trace {
            command.arg("--trace").arg(dir);
        }
        // Huge pages are mostly zeroes that a run never comes to use, and what it has freed others may need.
        command.env("RUST_BACKTRACE", "1").env("MIMALLOC_ALLOW_THP", "0").env("MIMALLOC_PURGE_DELAY", "0");
        command.env(super::schema::CHOICE, self.planted.to_string());
        let piped = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        piped.spawn().context("starting a run")
    }

    /// The outcome.
    pub fn run(&self) -> Result<Outcome> {
        Ok(self.hear()?.outcome)
    }

    /// The outcome, and the events, moments and curves that were asked for.
    pub fn hear(&self) -> Result<Heard> {
        let mut child = self.spawn()?;
        let stdout = child.stdout.take().context("the run has no output")?;
        let mut stderr = child.stderr.take().context("the run has no error output")?;
        let complaints = std::thread::spawn(move || {
            let mut text = String::new();
            // What is no text is no story.
            let _read = stderr.read_to_string(&mut text);
            text
        });
        let (done, watch) = mpsc::channel::<()>();
        let id = child.id();
        let watchdog = std::thread::spawn(move || {
            let late = watch.recv_timeout(HANG) == Err(mpsc::RecvTimeoutError::Timeout);
            if late {
                // There is no other way to end a process whose handle another thread waits with.
                let _ended = Command::new("kill").args(["-9", &id.to_string()]).status();
            }
            late
        });
        let heard = self.listen(stdout);
        let status = child.wait().context("waiting for a run")?;
        drop(done);
        let hung = watchdog.join().unwrap_or(false);
        let complaints = complaints.join().unwrap_or_default();
        let mut heard = heard?;
        if !heard.1 {
            heard.0.outcome = self.died(&complaints, &status.to_string(), hung);
        }
        Ok(heard.0)
    }

    /// What a child says, and whether it lived to tell its outcome.
    fn listen(&self, stdout: impl Read) -> Result<(Heard, bool)> {
        let (mut lived, mut outcome) = (false, Outcome::default());
        let (mut lines, mut moments, mut curves) = (Vec::new(), Vec::new(), Vec::new());
        for line in BufReader::new(stdout).lines() {
            let line = line.context("reading what a run prints")?;
            if let Some(json) = line.strip_prefix(MARK) {
                outcome = serde_json::from_str(json).context("the outcome of a run")?;
                lived = true;
            } else if let Some(json) = line.strip_prefix(CURVE_MARK) {
                curves.push(serde_json::from_str(json).context("a curve of a run")?);
            } else if let Some(json) = line.strip_prefix(MOMENT_MARK) {
                moments.push(serde_json::from_str(json).context("a moment of a run")?);
            } else if let Some(line) = line.strip_prefix(LINE_MARK) {
                lines.push(line.to_string());
            }
        }
        Ok((Heard { outcome, lines, moments, curves }, lived))
    }

    /// What a run came to that did not live to say so.
    fn died(&self, complaints: &str, status: &str, hung: bool) -> Outcome {
        let lines: Vec<&str> = complaints.lines().collect();
        let panic = lines.iter().position(|line| line.contains("panicked at"));
        let first = panic.unwrap_or(lines.len().saturating_sub(STORY_LINES));
        let what = lines.get(first + 1).filter(|_| panic.is_some()).copied().unwrap_or(status);
        let (oracle, message) = match (hung, panic) {
            (true, _) => ("hang", format!("the run has not ended after {} s", HANG.as_secs())),
            (false, Some(at)) => ("panic", format!("{what} ({})", lines[at].trim_end_matches(':'))),
            (false, None) => ("died", format!("the run ended with {status}")),
        };
        let story = lines.iter().skip(first).take(STORY_LINES).map(|line| line.to_string()).collect();
        let failures = vec![Fault { oracle: oracle.to_string(), message, story }];
        let seed = self.which.plan().map_or(0, |plan| plan.seed);
        Outcome { seed, world: self.which.how.world.word().to_string(), failures, ..Outcome::default() }
    }
}
