//! One run in its own process.
//!
//! The child prints its outcome as one line of JSON after [`MARK`]; everything else it prints is the report of a
//! panic.

use std::io::{BufRead, BufReader, Read, Write};
use std::ops::Range;
use std::os::unix::process::{ExitStatusExt, parent_id};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use serde::{Deserialize, Serialize};

use super::arguments;
use super::plan_source::PlanSource;
use crate::event_log::{SERIES_STEP_MS, SeriesPoints};
use crate::features::RunFeatures;
use crate::run::{KeepOptions, RunOutcome, ViolationRecord, run};

/// Begins the line with the outcome.
const MARK: &str = "@outcome ";
const LINE_MARK: &str = "@line ";
const TIMELINE_MARK: &str = "@timeline ";
const CURVE_MARK: &str = "@curve ";
const FEATURES_MARK: &str = "@features ";
/// Lines of a panic's report that are retained.
const STORY_LINES: usize = 60;
/// Real time after which a run counts as hung.
const HANG: Duration = Duration::from_secs(300);

/// Signals that no run sends to itself: hangup, interrupt, kill (also of a system without memory), terminate.
const OUTSIDE: [i32; 4] = [1, 2, 9, 15];
/// Interval at which a run looks for its parent.
const PARENT_LOOK: Duration = Duration::from_secs(1);

#[derive(Args)]
pub(super) struct RunOneArgs {
    #[command(flatten)]
    source: PlanSource,
    /// Print the events with these numbers, FROM..TO
    #[arg(long, value_parser = arguments::range)]
    events: Option<Range<u64>>,
    /// Print the run's timeline
    #[arg(long)]
    timeline: bool,
    /// Write replication traces into this folder
    #[arg(long)]
    trace: Option<PathBuf>,
    /// Print the run's features
    #[arg(long)]
    features: bool,
    /// Leave out the trials of the plan's seed
    #[arg(long)]
    no_trials: bool,
}

/// A timeline event as printed by the child.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct EventRecord {
    pub ms: f64,
    pub host: String,
    pub kind: String,
    pub text: String,
}

/// One series of one host as printed by the child.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct SeriesRecord {
    pub host: String,
    pub series: String,
    /// Width of a step in milliseconds.
    pub step_ms: u64,
    /// Steps that have a value, and their values.
    pub points: Vec<(u64, u64)>,
}

/// Everything a child printed.
pub(super) struct ChildOutput {
    pub outcome: RunOutcome,
    pub lines: Vec<String>,
    pub timeline: Vec<EventRecord>,
    pub curves: Vec<SeriesRecord>,
    /// Empty unless they were requested.
    pub features: RunFeatures,
}

/// Runs the plan in this process.
pub(super) fn one(args: &RunOneArgs) -> Result<bool> {
    end_with_parent();
    let plan = args.source.plan()?;
    let events = args.events.clone().unwrap_or(0..0);
    let traces = args.trace.as_ref().map(|dir| (dir.clone(), args.source.file_name()));
    let (timeline, features, no_trials) = (args.timeline, args.features, args.no_trials);
    let keep = KeepOptions { events, timeline, traces, features, no_trials };
    let result = run(&plan, args.source.options.world, keep).map_err(|error| anyhow!(error))?;
    let mut stdout = std::io::stdout().lock();
    for line in &result.lines {
        writeln!(stdout, "{LINE_MARK}{line}")?;
    }
    for event in result.timeline {
        let (ms, host) = (event.nanos as f64 / 1e6, event.host);
        let record = EventRecord { ms, host, kind: event.kind.to_string(), text: event.text };
        writeln!(stdout, "{TIMELINE_MARK}{}", serde_json::to_string(&record)?)?;
    }
    for SeriesPoints { host, series, points } in result.series {
        let curve = SeriesRecord { host, series: series.name().to_string(), step_ms: SERIES_STEP_MS, points };
        writeln!(stdout, "{CURVE_MARK}{}", serde_json::to_string(&curve)?)?;
    }
    if let Some(features) = &result.features {
        writeln!(stdout, "{FEATURES_MARK}{}", serde_json::to_string(features)?)?;
    }
    writeln!(stdout, "{MARK}{}", serde_json::to_string(&result.outcome)?)?;
    stdout.flush()?;
    // Dropping the world's tasks one by one would take long.
    std::process::exit(if result.outcome.failures.is_empty() { 0 } else { 1 });
}

/// Ends this process when its parent has ended: the outcome has no reader, and a run that hangs would never end.
pub(super) fn end_with_parent() {
    let parent = parent_id();
    std::thread::spawn(move || {
        while parent_id() == parent {
            std::thread::sleep(PARENT_LOOK);
        }
        std::process::exit(3);
    });
}

/// A run for a child process.
#[derive(Debug, Clone)]
pub(super) struct RunJob {
    pub source: PlanSource,
    pub events: Option<Range<u64>>,
    pub timeline: bool,
    /// Folder of replication traces.
    pub trace: Option<PathBuf>,
    /// True if features are requested.
    pub features: bool,
    /// True if the run ends without trials.
    pub no_trials: bool,
    /// The program to run, if it is not this one.
    pub program: Option<PathBuf>,
    /// Number of the mutant to run with; 0 for none.
    pub mutant: u32,
}

impl RunJob {
    pub(super) fn new(source: PlanSource) -> RunJob {
        RunJob {
            source,
            events: None,
            timeline: false,
            trace: None,
            features: false,
            no_trials: false,
            program: None,
            mutant: 0,
        }
    }

    fn spawn(&self) -> Result<Child> {
        let program = match &self.program {
            Some(program) => program.clone(),
            None => std::env::current_exe().context("finding this program")?,
        };
        let mut command = Command::new(program);
        command.arg("one").args(self.source.words());
        if let Some(events) = &self.events {
            command.args(["--events".to_string(), format!("{}..{}", events.start, events.end)]);
        }
        if self.timeline {
            command.arg("--timeline");
        }
        if let Some(dir) = &self.trace {
            command.arg("--trace").arg(dir);
        }
        if self.features {
            command.arg("--features");
        }
        if self.no_trials {
            command.arg("--no-trials");
        }
        // Huge pages are mostly zeroes that a run never uses, and freed memory goes back to the system for other runs.
        command.env("RUST_BACKTRACE", "1").env("MIMALLOC_ALLOW_THP", "0").env("MIMALLOC_PURGE_DELAY", "0");
        command.env(super::mutant_schemata::CHOICE, self.mutant.to_string());
        let piped = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        piped.spawn().context("starting a run")
    }

    /// Runs the child and returns its outcome.
    pub(super) fn outcome(&self) -> Result<RunOutcome> {
        Ok(self.run()?.outcome)
    }

    /// Runs the child and returns its outcome with the requested events, timeline and series.
    pub(super) fn run(&self) -> Result<ChildOutput> {
        let mut child = self.spawn()?;
        let stdout = child.stdout.take().context("the run has no output")?;
        let mut stderr = child.stderr.take().context("the run has no error output")?;
        let stderr_text = std::thread::spawn(move || {
            let mut text = String::new();
            // Bytes that are not text are dropped.
            let _read = stderr.read_to_string(&mut text);
            text
        });
        let (done, watch) = mpsc::channel::<()>();
        let id = child.id();
        let watchdog = std::thread::spawn(move || {
            let late = watch.recv_timeout(HANG) == Err(mpsc::RecvTimeoutError::Timeout);
            if late {
                // Another thread waits with the process handle, so the process can only be ended by its id.
                let _ended = Command::new("kill").args(["-9", &id.to_string()]).status();
            }
            late
        });
        let output = self.listen(stdout);
        let status = child.wait().context("waiting for a run")?;
        drop(done);
        let hung = watchdog.join().unwrap_or(false);
        let stderr_text = stderr_text.join().unwrap_or_default();
        let mut output = output?;
        if !output.1 {
            let signal = status.signal().filter(|signal| OUTSIDE.contains(signal) && !hung);
            if let Some(signal) = signal {
                bail!("{}: killed from outside (signal {signal}); run it again", self.source.what);
            }
            output.0.outcome = self.died(&stderr_text, &status.to_string(), hung);
        }
        Ok(output.0)
    }

    /// Reads the child's output; returns true if it printed an outcome.
    fn listen(&self, stdout: impl Read) -> Result<(ChildOutput, bool)> {
        let (mut finished, mut outcome) = (false, RunOutcome::default());
        let (mut lines, mut timeline, mut curves) = (Vec::new(), Vec::new(), Vec::new());
        let mut features = RunFeatures::default();
        for line in BufReader::new(stdout).lines() {
            let line = line.context("reading what a run prints")?;
            if let Some(json) = line.strip_prefix(MARK) {
                outcome = serde_json::from_str(json).context("the outcome of a run")?;
                finished = true;
            } else if let Some(json) = line.strip_prefix(FEATURES_MARK) {
                features = serde_json::from_str(json).context("the features of a run")?;
            } else if let Some(json) = line.strip_prefix(CURVE_MARK) {
                curves.push(serde_json::from_str(json).context("a series of a run")?);
            } else if let Some(json) = line.strip_prefix(TIMELINE_MARK) {
                timeline.push(serde_json::from_str(json).context("a timeline event of a run")?);
            } else if let Some(line) = line.strip_prefix(LINE_MARK) {
                lines.push(line.to_string());
            }
        }
        Ok((ChildOutput { outcome, lines, timeline, curves, features }, finished))
    }

    /// Returns the outcome of a run that ended without printing one.
    fn died(&self, stderr_text: &str, status: &str, hung: bool) -> RunOutcome {
        let lines: Vec<&str> = stderr_text.lines().collect();
        let panic = lines.iter().position(|line| line.contains("panicked at"));
        let first = panic.unwrap_or(lines.len().saturating_sub(STORY_LINES));
        let what = lines.get(first + 1).filter(|_| panic.is_some()).copied().unwrap_or(status);
        let (oracle, message) = match (hung, panic) {
            (true, _) => ("hang", format!("no end after {} s", HANG.as_secs())),
            (false, Some(at)) => ("panic", format!("{what} ({})", lines[at].trim_end_matches(':'))),
            (false, None) => ("died", format!("the run ended with {status}")),
        };
        let story = lines.iter().skip(first).take(STORY_LINES).map(|line| line.to_string()).collect();
        let failures = vec![ViolationRecord { oracle: oracle.to_string(), message, story }];
        let seed = self.source.plan().map_or(0, |plan| plan.seed);
        RunOutcome {
            seed,
            world: self.source.options.world.word().to_string(),
            failures,
            ..RunOutcome::default()
        }
    }
}
