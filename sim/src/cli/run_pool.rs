//! The run pool: a pool of run processes, a progress bar, a coverage table.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Args;
use engine::sync::Mutex;
use indicatif::{ProgressBar, ProgressStyle};

use super::plan_source::{PlanSource, RunOptions};
use super::results::{self, Results};
use super::run_process::RunJob;
use super::{arguments, gates, junit};
use crate::output::outln;
use crate::run::{RunOutcome, WorldKind};

#[derive(Args)]
pub(super) struct RunArgs {
    /// Seeds, FROM..TO, the end not included
    #[arg(long, default_value = "1..101", value_parser = arguments::range)]
    seeds: Range<u64>,
    #[command(flatten)]
    options: RunOptions,
    /// Runs at a time [default: number of processors]
    #[arg(long, value_parser = arguments::count)]
    jobs: Option<usize>,
    /// Minutes after which no new run starts
    #[arg(long, value_parser = arguments::minutes)]
    minutes: Option<Duration>,
    /// Only every N-th seed, beginning with the I-th, from 0
    #[arg(long, value_name = "I/N", value_parser = arguments::shard)]
    shard: Option<(u64, u64)>,
    /// Stop at the first failure
    #[arg(long)]
    stop: bool,
    /// From this number of runs on, a kind of fault that was drawn and never fired is a failure
    #[arg(long, default_value_t = 200, value_name = "RUNS")]
    every_fault_from: usize,
    /// Store the results in this SQLite file
    #[arg(long, value_parser = arguments::new_file)]
    db: Option<PathBuf>,
    /// Write a JUnit report
    #[arg(long, value_parser = arguments::new_file)]
    junit: Option<PathBuf>,
    /// Write replication traces into this folder, for `cargo ci spec --trace-files`
    #[arg(long, value_name = "DIR")]
    trace: Option<PathBuf>,
}

#[derive(Args)]
pub(super) struct PlansArgs {
    /// The folder of plans
    #[arg(default_value = "sim/plans")]
    dir: PathBuf,
    /// In this world only
    #[arg(long, value_parser = arguments::one_of::<WorldKind>())]
    world: Option<WorldKind>,
    /// Runs at a time [default: number of processors]
    #[arg(long, value_parser = arguments::count)]
    jobs: Option<usize>,
}

/// Runs seeds.
pub(super) fn run(args: &RunArgs) -> Result<bool> {
    let (index, count) = args.shard.unwrap_or((0, 1));
    let seeds = args.seeds.clone().filter(|seed| seed % count == index);
    let sources: Vec<PlanSource> =
        seeds.map(|seed| PlanSource { what: seed.to_string(), options: args.options.clone() }).collect();
    if sources.is_empty() {
        let seeds = &args.seeds;
        let message = format!("--shard: no seed ({index}/{count} of {seeds:?}); give more seeds");
        return Err(arguments::wrong(message));
    }
    let until = args.minutes.map(|minutes| Instant::now() + minutes);
    let pool = RunPool { jobs: jobs(args.jobs), until, stop: args.stop, trace: args.trace.clone() };
    let results = pool.run(sources)?;
    if results.runs.is_empty() {
        return Err(arguments::wrong(format!(
            "--minutes: no run began ({:?}); give more time",
            args.minutes
        )));
    }
    results.print();
    let closed = gates::closed(&results, args.every_fault_from);
    closed.iter().for_each(|gate| outln!("FAIL {}: {}", gate.name, gate.message));
    if let Some(path) = &args.db {
        results::store(path, &args.options, &results)?;
    }
    if let Some(path) = &args.junit {
        junit::write(path, &results, &closed)?;
    }
    Ok(results.failures() == 0 && closed.is_empty())
}

/// Runs every plan of a folder, in order.
pub(super) fn plans(args: &PlansArgs) -> Result<bool> {
    let (mut paths, dir) = (Vec::new(), args.dir.display());
    if !args.dir.is_dir() {
        return Err(arguments::wrong(format!("{dir}: no such folder; name a folder of plans")));
    }
    for entry in std::fs::read_dir(&args.dir).with_context(|| format!("listing {dir}"))? {
        let path = entry?.path();
        if path.extension().is_some_and(|ext| ext == "plan") {
            paths.push(path);
        }
    }
    if paths.is_empty() {
        return Err(arguments::wrong(format!("{dir}: no plan (*.plan); name a folder of plans")));
    }
    paths.sort();
    let worlds = WorldKind::ALL.iter().copied();
    let worlds: Vec<WorldKind> = worlds.filter(|world| args.world.is_none_or(|one| *world == one)).collect();
    let mut sources = Vec::new();
    for path in paths {
        for world in &worlds {
            let options = RunOptions {
                world: *world,
                profile: sim_plan::FaultProfile::Swarm,
                size: sim_plan::PlanSize::Full,
            };
            sources.push(PlanSource { what: path.display().to_string(), options });
        }
    }
    let pool = RunPool { jobs: jobs(args.jobs), until: None, stop: false, trace: None };
    let results = pool.run(sources)?;
    results.print();
    Ok(results.failures() == 0)
}

pub(super) fn jobs(wanted: Option<usize>) -> usize {
    wanted.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, |count| count.get()))
}

/// A pool of processes.
pub(super) struct RunPool {
    pub jobs: usize,
    pub until: Option<Instant>,
    pub stop: bool,
    /// Folder of replication traces.
    pub trace: Option<PathBuf>,
}

impl RunPool {
    /// Runs all of them, as far as time allows.
    pub(super) fn run(&self, sources: Vec<PlanSource>) -> Result<Results> {
        let bar = bar(sources.len() as u64);
        let begun = Instant::now();
        let next = AtomicUsize::new(0);
        let done: Mutex<BTreeMap<usize, (PlanSource, RunOutcome)>> = Mutex::default();
        let failed = AtomicUsize::new(0);
        let work = || -> Result<()> {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                let over = self.until.is_some_and(|until| Instant::now() >= until);
                let stopped = self.stop && failed.load(Ordering::Relaxed) > 0;
                let Some(source) = sources.get(number).filter(|_| !over && !stopped) else { return Ok(()) };
                let outcome =
                    RunJob { trace: self.trace.clone(), ..RunJob::new(source.clone()) }.outcome()?;
                if !outcome.failures.is_empty() {
                    failed.fetch_add(1, Ordering::Relaxed);
                    bar.suspend(|| results::print_failures(&outcome, source));
                }
                bar.set_message(format!("{} failed", failed.load(Ordering::Relaxed)));
                bar.inc(1);
                done.lock().insert(number, (source.clone(), outcome));
            }
        };
        let ended: Vec<Result<()>> = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..self.jobs).map(|_| scope.spawn(work)).collect();
            let join = |worker: std::thread::ScopedJoinHandle<'_, Result<()>>| {
                worker.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a worker panicked")))
            };
            workers.into_iter().map(join).collect()
        });
        bar.finish_and_clear();
        ended.into_iter().collect::<Result<Vec<()>>>()?;
        let runs = done.into_inner().into_values().collect();
        Ok(Results { runs, elapsed: begun.elapsed() })
    }
}

fn bar(length: u64) -> ProgressBar {
    let bar = ProgressBar::new(length);
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} {per_sec} {elapsed} eta {eta} {msg}");
    if let Ok(style) = style {
        bar.set_style(style);
    }
    bar
}
