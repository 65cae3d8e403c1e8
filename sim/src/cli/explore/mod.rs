//! Guided search: runs of fresh seeds, and of children of plans that showed something new.
//!
//! ```text
//!              ┌────── fresh seed: profile and size by learnt weights      [`arms`]
//! CPU in halves ┤
//!              └────── child: a plan by energy, a mutation, no trials      [`corpus`], `sim_plan::mutate`
//! run ──► features ──► new ones? keep the plan, learn the weights          [`search`]
//!                 └──► fresh seeds: the discovery curve, the stopping rule [`curve`]
//! ```
//!
//! A child is a whole plan. Plan and seed decide a run, as everywhere; one child in fifty runs twice. The search's own
//! draws come from `--seed`, but it depends on CPU times and, with several jobs, on the order in which runs end.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use clap::Args;
use engine::sync::Mutex;

use self::corpus::Corpus;
use self::search::{Search, Settings, Task};
use super::arguments;
use super::plan_source::{PlanSource, SearchedPlans};
use super::run_pool;
use super::run_process::{ChildOutput, RunJob};
use super::scratch_plans::ScratchPlans;
use crate::run::ViolationRecord;

mod aims;
mod arms;
mod corpus;
mod curve;
mod search;
#[cfg(test)]
mod tests;

/// One run in this number is checked to run the same way twice, if it is a child.
const TWICE_EVERY: u64 = 50;

#[derive(Args)]
pub(super) struct ExploreArgs {
    /// Minutes after which no new run starts
    #[arg(long, value_parser = arguments::minutes)]
    minutes: Duration,
    /// The folder of the corpus; it is created if missing
    #[arg(long)]
    corpus: PathBuf,
    // Fresh seeds are of these; children may be of others.
    #[command(flatten)]
    plans: SearchedPlans,
    /// The first fresh seed
    #[arg(long, default_value_t = 1, value_name = "N")]
    seeds_from: u64,
    /// Seed of the search's own draws
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Runs at a time [default: number of processors]
    #[arg(long, value_parser = arguments::count)]
    jobs: Option<usize>,
    /// Stop at the first failure
    #[arg(long)]
    stop: bool,
    /// Only fresh seeds, by hand-set weights: what guided search is compared with
    #[arg(long)]
    plain: bool,
    /// The program that makes the runs, if it is not this one
    #[arg(long)]
    program: Option<PathBuf>,
    /// Number of the mutant in that program
    #[arg(long, default_value_t = 0)]
    mutant: u32,
}

/// Runs a campaign.
pub(super) fn explore(args: &ExploreArgs) -> Result<bool> {
    let settings = Settings {
        world: args.plans.world,
        profiles: args.plans.profile.clone(),
        sizes: args.plans.size.clone(),
        first_seed: args.seeds_from,
        seed: args.seed,
        plain: args.plain,
    };
    let search = Search::new(settings, Corpus::open(&args.corpus)?);
    let campaign = Campaign {
        args,
        scratch: ScratchPlans::new(&std::env::temp_dir())?,
        until: Instant::now() + args.minutes,
        search: Mutex::new(search),
    };
    campaign.run_all()?;
    let mut search = campaign.search.into_inner();
    if search.runs() == 0 {
        return Err(arguments::wrong("--minutes: no run began; give more time"));
    }
    search.save()?;
    search.print();
    Ok(search.failed() == 0)
}

/// A campaign and its jobs.
struct Campaign<'a> {
    args: &'a ExploreArgs,
    scratch: ScratchPlans,
    until: Instant,
    search: Mutex<Search>,
}

impl Campaign<'_> {
    fn run_all(&self) -> Result<()> {
        let ended: Vec<Result<()>> = std::thread::scope(|scope| {
            let count = run_pool::jobs(self.args.jobs);
            let workers: Vec<_> = (0..count).map(|_| scope.spawn(|| self.work())).collect();
            let join = |worker: std::thread::ScopedJoinHandle<'_, Result<()>>| {
                worker.join().unwrap_or_else(|_| Err(anyhow!("a worker panicked")))
            };
            workers.into_iter().map(join).collect()
        });
        ended.into_iter().collect()
    }

    fn work(&self) -> Result<()> {
        while let Some(task) = self.next() {
            let output = self.run(&task)?;
            self.search.lock().finish(&task, &output)?;
        }
        Ok(())
    }

    /// Returns the next run, unless the campaign is over.
    fn next(&self) -> Option<Task> {
        let mut search = self.search.lock();
        let stopped = self.args.stop && search.failed() > 0;
        (!stopped && !search.is_over() && Instant::now() < self.until).then(|| search.next())
    }

    /// Makes a run; one child in fifty runs twice.
    fn run(&self, task: &Task) -> Result<ChildOutput> {
        let name = Search::scratch_name(task);
        let job = match task.is_child() {
            true => self.scratch.job(&name, &task.plan, &task.options)?,
            false => {
                RunJob::new(PlanSource { what: task.plan.seed.to_string(), options: task.options.clone() })
            }
        };
        // A child has its parent's seed, whose trials the parent has run.
        let (program, mutant, no_trials) = (self.args.program.clone(), self.args.mutant, task.is_child());
        let job = RunJob { features: true, program, mutant, no_trials, ..job };
        let mut output = job.run()?;
        if task.is_child() {
            if task.number.is_multiple_of(TWICE_EVERY) {
                let again = job.run()?;
                output.outcome.failures.extend(difference(&output, &again));
            }
            // What stays is removed with the folder.
            let _gone = fs::remove_file(self.scratch.path(&name));
        }
        Ok(output)
    }
}

/// Returns a violation if two runs of one plan differ.
fn difference(one: &ChildOutput, again: &ChildOutput) -> Option<ViolationRecord> {
    let same = one.outcome.hash == again.outcome.hash && one.features == again.features;
    (!same).then(|| ViolationRecord {
        oracle: "determinism".to_string(),
        message: format!("hash {}, then {}", one.outcome.hash, again.outcome.hash),
        story: Vec::new(),
    })
}
