//! Shrinks a failing plan: removes everything without which it still fails.
//!
//! Delta debugging (Zeller, *Yesterday, my program worked*, 1999) over faults, clients and ops. Then the times before
//! faults are halved while the plan still fails, and special cluster settings are replaced by defaults. A plan is data,
//! so the rest keeps its meaning.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Args;

use super::arguments;
use super::plan_source::PlanSource;
use super::run_process::RunJob;
use super::scratch_plans::ScratchPlans;
use crate::output::outln;
use crate::run::RunOutcome;
use sim_plan::{EngineLimits, FinalRestart, Host, Plan, TimedFault};

#[derive(Args)]
pub(super) struct ShrinkArgs {
    #[command(flatten)]
    source: PlanSource,
    /// File of the shrunk plan [default: sim/plans/ORACLE-SEED.plan]
    #[arg(long)]
    out: Option<PathBuf>,
    /// Minutes after which shrinking stops
    #[arg(long, default_value = "10", value_parser = arguments::minutes)]
    minutes: Duration,
}

/// Shrinks the plan, writes it and prints the next command.
pub(super) fn shrink(args: &ShrinkArgs) -> Result<bool> {
    let plan = args.source.plan()?;
    let first = RunJob::new(args.source.clone()).outcome()?;
    let Some(failure) = first.failures.first() else {
        return Err(arguments::wrong(format!("{}: does not fail; give a failing run", args.source.what)));
    };
    let (ops, faults) = (plan.op_count(), plan.faults.len());
    outln!("{}: {}", failure.oracle, failure.message);
    let until = Instant::now() + args.minutes;
    let scratch = ScratchPlans::new(&std::env::temp_dir())?;
    let oracle = failure.oracle.clone();
    let mut shrinker = Shrinker { args, oracle, scratch: scratch.path("shrink"), until, tried: 0 };
    let small = shrinker.shrink(plan)?;
    let name = format!("sim/plans/{}-{}.plan", failure.oracle.replace(' ', "-"), small.seed);
    let path = args.out.clone().unwrap_or_else(|| name.into());
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let note = format!("# {}: {}\n", failure.oracle, failure.message.lines().next().unwrap_or_default());
    std::fs::write(&path, note + &small.to_string())
        .with_context(|| format!("writing {}", path.display()))?;
    outln!(
        "{} runs: {ops} ops became {}, {faults} faults {}",
        shrinker.tried,
        small.op_count(),
        small.faults.len()
    );
    outln!("{}", path.display());
    outln!("see it: cargo sim show {} --world {}", path.display(), args.source.options.world.word());
    Ok(true)
}

struct Shrinker<'a> {
    args: &'a ShrinkArgs,
    /// The oracle that must still report a violation.
    oracle: String,
    scratch: PathBuf,
    until: Instant,
    tried: usize,
}

impl Shrinker<'_> {
    fn outcome(&mut self, plan: &Plan) -> Result<RunOutcome> {
        self.tried += 1;
        std::fs::write(&self.scratch, plan.to_string())?;
        let source = PlanSource {
            what: self.scratch.display().to_string(),
            options: self.args.source.options.clone(),
        };
        RunJob::new(source).outcome()
    }

    fn fails(&mut self, plan: &Plan) -> Result<bool> {
        if Instant::now() >= self.until {
            return Ok(false);
        }
        Ok(self.outcome(plan)?.failures.iter().any(|failure| failure.oracle == self.oracle))
    }

    fn shrink(&mut self, mut plan: Plan) -> Result<Plan> {
        loop {
            let before = plan.to_string().len();
            plan = self.without(plan, |plan| &mut plan.faults)?;
            plan = self.without_clients(plan)?;
            for client in 0..plan.clients.len() {
                plan = self.without(plan, |plan| &mut plan.clients[client].ops)?;
            }
            plan = self.without(plan, |plan| &mut plan.clocks)?;
            plan = self.without(plan, |plan| &mut plan.reseeds)?;
            plan = self.halve_fault_times(plan)?;
            plan = self.shorter(plan)?;
            plan = self.simplify_cluster(plan)?;
            if plan.to_string().len() == before || Instant::now() >= self.until {
                return Ok(plan);
            }
        }
    }

    /// Removes the ops of each unneeded client, then the client; the others keep their numbers.
    fn without_clients(&mut self, mut plan: Plan) -> Result<Plan> {
        for client in (0..plan.clients.len()).rev() {
            let mut smaller = plan.clone();
            smaller.clients[client].ops.clear();
            if !plan.clients[client].ops.is_empty() && !self.fails(&smaller)? {
                continue;
            }
            plan = smaller.clone();
            smaller.clients.remove(client);
            if !smaller.clients.is_empty() && self.fails(&smaller)? {
                plan = smaller;
            }
        }
        Ok(plan)
    }

    /// Removes parts of a list, large ones first, while the plan fails.
    fn without<T: Clone>(&mut self, mut plan: Plan, list: impl Fn(&mut Plan) -> &mut Vec<T>) -> Result<Plan> {
        let mut size = list(&mut plan).len();
        while size > 0 {
            let mut at = 0;
            while at < list(&mut plan).len() {
                let mut smaller = plan.clone();
                let items = list(&mut smaller);
                let end = items.len().min(at + size);
                items.drain(at..end);
                if self.fails(&smaller)? {
                    plan = smaller;
                } else {
                    at += size;
                }
            }
            size /= 2;
        }
        Ok(plan)
    }

    /// Halves the times before faults, one after the other.
    fn halve_fault_times(&mut self, mut plan: Plan) -> Result<Plan> {
        for number in 0..plan.faults.len() {
            let before = number.checked_sub(1).map_or(Duration::ZERO, |before| plan.faults[before].at);
            let gap = plan.faults[number].at.saturating_sub(before) / 2;
            let gap = Duration::from_millis(gap.as_millis() as u64);
            let mut smaller = plan.clone();
            smaller.faults[number..].iter_mut().for_each(|fault| fault.at -= gap);
            if gap > Duration::from_millis(1) && self.fails(&smaller)? {
                plan = smaller;
            }
        }
        Ok(plan)
    }

    /// Halves the durations of faults.
    fn shorter(&mut self, mut plan: Plan) -> Result<Plan> {
        for number in 0..plan.faults.len() {
            let mut smaller = plan.clone();
            let span = smaller.faults[number].kind.span() / 2;
            let span = Duration::from_millis(span.as_millis() as u64);
            smaller.faults[number].kind.set_span(span);
            if span > Duration::from_millis(1) && self.fails(&smaller)? {
                plan = smaller;
            }
        }
        Ok(plan)
    }

    /// Replaces special settings of cluster and network by defaults, one after the other.
    fn simplify_cluster(&mut self, mut plan: Plan) -> Result<Plan> {
        for make_plain in PLAIN {
            let mut smaller = plan.clone();
            make_plain(&mut smaller);
            if smaller != plan && self.fails(&smaller)? {
                plan = smaller;
            }
        }
        Ok(plan)
    }
}

/// Replacements that make a plan simpler.
const PLAIN: [fn(&mut Plan); 9] = [
    |plan| plan.ending = FinalRestart::Stay,
    |plan| plan.cluster.tablets = 1,
    |plan| plan.data_dirs = 1,
    |plan| {
        let others = |fault: &TimedFault| !matches!(fault.target, Host::Master(number) if number > 0);
        if plan.faults.iter().all(others) {
            plan.cluster.masters = 1;
        }
    },
    |plan| plan.cluster.memory = plan.cluster.memory.max(1 << 30),
    |plan| plan.cluster.limits = EngineLimits::Normal,
    |plan| plan.network.loss_per_mille = 0,
    |plan| plan.network.jitter = Duration::ZERO,
    |plan| plan.network.cut_one_in = 64,
];
