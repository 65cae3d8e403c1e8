//! Many runs: a pool of processes, a bar, a table of what was reached.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};

use super::child::Job;
use super::results::{self, Results};
use super::{How, Which, parse_range};
use crate::plan::record::Field;
use crate::run::{Outcome, WorldKind};

#[derive(Args)]
pub struct RunArgs {
    /// Seeds, FROM..TO, the end not included
    #[arg(long, default_value = "1..101")]
    seeds: String,
    #[command(flatten)]
    how: How,
    /// Runs at a time [default: as many as there are processors]
    #[arg(long)]
    jobs: Option<usize>,
    /// Begin no new run after so many minutes
    #[arg(long)]
    minutes: Option<f64>,
    /// Only every N-th seed, beginning with the I-th, from 0
    #[arg(long, value_name = "I/N")]
    shard: Option<String>,
    /// Stop at the first failure
    #[arg(long)]
    stop: bool,
    /// With so many runs or more, a kind of fault that was drawn and never struck is a failure
    #[arg(long, default_value_t = 200, value_name = "RUNS")]
    every_fault_from: usize,
    /// Put the results into this SQLite file
    #[arg(long)]
    db: Option<PathBuf>,
    /// Write a JUnit report
    #[arg(long)]
    junit: Option<PathBuf>,
    /// Write what each tablet's replicas did into this folder, for `cargo ci spec --trace-files`
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
    let whiches: Vec<Which> =
        seeds.map(|seed| Which { what: seed.to_string(), how: args.how.clone() }).collect();
    let until = args.minutes.map(|minutes| Instant::now() + Duration::from_secs_f64(minutes * 60.0));
    let farm = Farm { jobs: jobs(args.jobs), until, stop: args.stop, trace: args.trace.clone() };
    let results = farm.run(whiches)?;
    results.print();
    if let Some(path) = &args.db {
        results::store(path, &args.how, &results)?;
    }
    if let Some(path) = &args.junit {
        results::junit(path, &results)?;
    }
    let silent = results.never_struck();
    let blind = results.runs.len() >= args.every_fault_from && !silent.is_empty();
    if blind {
        println!("FAIL {} runs, and these faults never struck: {}", results.runs.len(), silent.join("; "));
    }
    Ok(results.failures() == 0 && !blind)
}

/// Runs every plan of a folder, in its order.
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
    let mut whiches = Vec::new();
    for path in paths {
        for world in &worlds {
            let how =
                How { world: *world, profile: crate::plan::Profile::Swarm, size: crate::plan::Size::Full };
            whiches.push(Which { what: path.display().to_string(), how });
        }
    }
    let farm = Farm { jobs: jobs(args.jobs), until: None, stop: false, trace: None };
    let results = farm.run(whiches)?;
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
pub struct Farm {
    pub jobs: usize,
    pub until: Option<Instant>,
    pub stop: bool,
    /// Where the traces of replication go.
    pub trace: Option<PathBuf>,
}

impl Farm {
    /// Runs all of them, as far as time allows.
    pub fn run(&self, whiches: Vec<Which>) -> Result<Results> {
        let bar = bar(whiches.len() as u64);
        let begun = Instant::now();
        let next = AtomicUsize::new(0);
        let done: Mutex<BTreeMap<usize, (Which, Outcome)>> = Mutex::default();
        let failed = AtomicUsize::new(0);
        let work = || -> Result<()> {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                let over = self.until.is_some_and(|until| Instant::now() >= until);
                let stopped = self.stop && failed.load(Ordering::Relaxed) > 0;
                let Some(which) = whiches.get(number).filter(|_| !over && !stopped) else { return Ok(()) };
                let outcome = Job { trace: self.trace.clone(), ..Job::new(which.clone()) }.run()?;
                if !outcome.failures.is_empty() {
                    failed.fetch_add(1, Ordering::Relaxed);
                    bar.suspend(|| results::print_failures(&outcome, which));
                }
                bar.set_message(format!("{} failed", failed.load(Ordering::Relaxed)));
                bar.inc(1);
                done.lock()
                    .expect("nothing panics while it holds the results")
                    .insert(number, (which.clone(), outcome));
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
