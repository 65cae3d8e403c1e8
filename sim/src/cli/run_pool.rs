//! The run pool: a pool of run processes, a progress bar, a coverage table.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};

use super::results::{self, Results};
use super::run_process::RunJob;
use super::{PlanSource, RunOptions, parse_range};
use crate::run::{RunOutcome, WorldKind};
use sim_plan::line_format::LineField;

#[derive(Args)]
pub struct RunArgs {
    /// Seeds, FROM..TO, the end not included
    #[arg(long, default_value = "1..101")]
    seeds: String,
    #[command(flatten)]
    options: RunOptions,
    /// Runs at a time [default: number of processors]
    #[arg(long)]
    jobs: Option<usize>,
    /// Minutes after which no new run starts
    #[arg(long)]
    minutes: Option<f64>,
    /// Only every N-th seed, beginning with the I-th, from 0
    #[arg(long, value_name = "I/N")]
    shard: Option<String>,
    /// Stop at the first failure
    #[arg(long)]
    stop: bool,
    /// From this number of runs on, a kind of fault that was drawn and never fired is a failure
    #[arg(long, default_value_t = 200, value_name = "RUNS")]
    every_fault_from: usize,
    /// Store the results in this SQLite file
    #[arg(long)]
    db: Option<PathBuf>,
    /// Write a JUnit report
    #[arg(long)]
    junit: Option<PathBuf>,
    /// Write replication traces into this folder, for `cargo ci spec --trace-files`
    #[arg(long, value_name = "DIR")]
    trace: Option<PathBuf>,
}

#[derive(Args)]
pub struct PlansArgs {
    /// The folder of plans
    #[arg(default_value = "sim/plans")]
    dir: PathBuf,
    /// In this world only
    #[arg(long)]
    world: Option<String>,
    #[arg(long)]
    jobs: Option<usize>,
}

/// Runs seeds.
pub fn run(args: &RunArgs) -> Result<bool> {
    let range = parse_range(&args.seeds)?;
    let (index, count) = shard(args.shard.as_deref())?;
    let seeds = range.filter(|seed| seed % count == index);
    let sources: Vec<PlanSource> =
        seeds.map(|seed| PlanSource { what: seed.to_string(), options: args.options.clone() }).collect();
    let until = args.minutes.map(|minutes| Instant::now() + Duration::from_secs_f64(minutes * 60.0));
    let pool = RunPool { jobs: jobs(args.jobs), until, stop: args.stop, trace: args.trace.clone() };
    let results = pool.run(sources)?;
    results.print();
    if let Some(path) = &args.db {
        results::store(path, &args.options, &results)?;
    }
    if let Some(path) = &args.junit {
        results::junit(path, &results)?;
    }
    let silent = results.never_fired();
    let blind = results.runs.len() >= args.every_fault_from && !silent.is_empty();
    if blind {
        println!("FAIL {} runs, and these faults never fired: {}", results.runs.len(), silent.join("; "));
    }
    Ok(results.failures() == 0 && !blind)
}

/// Runs every plan of a folder, in order.
pub fn plans(args: &PlansArgs) -> Result<bool> {
    let mut paths = Vec::new();
    if args.dir.is_dir() {
        for entry in std::fs::read_dir(&args.dir)? {
            let path = entry?.path();
            if path.extension().is_some_and(|ext| ext == "plan") {
                paths.push(path);
            }
        }
    }
    paths.sort();
    let worlds = WorldKind::ALL.iter().copied();
    let worlds: Vec<WorldKind> =
        worlds.filter(|world| args.world.as_ref().is_none_or(|word| world.word() == word)).collect();
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

fn jobs(wanted: Option<usize>) -> usize {
    wanted.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, |count| count.get())).max(1)
}

fn shard(text: Option<&str>) -> Result<(u64, u64)> {
    let Some(text) = text else { return Ok((0, 1)) };
    let parts =
        text.split_once('/').and_then(|(index, count)| Some((u64::parse(index)?, u64::parse(count)?)));
    match parts {
        Some((index, count)) if index < count => Ok((index, count)),
        _ => bail!("{text:?} is not I/N with I below N"),
    }
}

/// A pool of processes.
pub struct RunPool {
    pub jobs: usize,
    pub until: Option<Instant>,
    pub stop: bool,
    /// Folder of replication traces.
    pub trace: Option<PathBuf>,
}

impl RunPool {
    /// Runs all of them, as far as time allows.
    pub fn run(&self, sources: Vec<PlanSource>) -> Result<Results> {
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
                done.lock()
                    .expect("no panic with the results locked")
                    .insert(number, (source.clone(), outcome));
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
        let runs = done.into_inner().expect("every worker has ended").into_values().collect();
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
