//! Makes a failing plan smaller: what it fails without, it does not need.
//!
//! Delta debugging (Zeller, *Yesterday, my program worked*, 1999) over faults, clients and ops, then the time
//! between faults is halved as long as that still fails, and what is unusual about the cluster is made usual. A plan is
//! data, so what is left still means what it meant.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;

use super::Which;
use super::child::Job;
use crate::plan::{Ending, Host, Limits, Plan, TimedFault};
use crate::run::Outcome;

#[derive(Args)]
pub struct ShrinkArgs {
    #[command(flatten)]
    which: Which,
    /// Where to keep the small plan [default: sim/plans/ORACLE-SEED.plan]
    #[arg(long)]
    out: Option<PathBuf>,
    /// Try no longer than so many minutes
    #[arg(long, default_value_t = 10.0)]
    minutes: f64,
}

/// Shrinks, writes, says how to go on.
pub fn shrink(args: &ShrinkArgs) -> Result<bool> {
    let plan = args.which.plan()?;
    let first = Job::new(args.which.clone()).run()?;
    let Some(failure) = first.failures.first() else { bail!("{} does not fail", args.which.what) };
    let (ops, faults) = (plan.op_count(), plan.faults.len());
    println!("{}: {}", failure.oracle, failure.message);
    let until = Instant::now() + Duration::from_secs_f64(args.minutes * 60.0);
    let scratch = std::env::temp_dir().join(format!("sim-shrink-{}.plan", std::process::id()));
    let mut shrinker = Shrinker { args, oracle: failure.oracle.clone(), scratch, until, tried: 0 };
    let small = shrinker.shrink(plan)?;
    let _gone = std::fs::remove_file(&shrinker.scratch);
    let name = format!("sim/plans/{}-{}.plan", failure.oracle.replace(' ', "-"), small.seed);
    let path = args.out.clone().unwrap_or_else(|| name.into());
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let note = format!("# {}: {}\n", failure.oracle, failure.message.lines().next().unwrap_or_default());
    std::fs::write(&path, note + &small.to_string())
        .with_context(|| format!("writing {}", path.display()))?;
    println!(
        "{} runs: {ops} ops became {}, {faults} faults {}",
        shrinker.tried,
        small.op_count(),
        small.faults.len()
    );
    println!("{}", path.display());
    println!("see it: cargo sim show {} --world {}", path.display(), args.which.how.world.word());
    Ok(true)
}

struct Shrinker<'a> {
    args: &'a ShrinkArgs,
    /// Which judge must go on objecting.
    oracle: String,
    scratch: PathBuf,
    until: Instant,
    tried: usize,
}

impl Shrinker<'_> {
    fn outcome(&mut self, plan: &Plan) -> Result<Outcome> {
        self.tried += 1;
        std::fs::write(&self.scratch, plan.to_string())?;
        let which = Which { what: self.scratch.display().to_string(), how: self.args.which.how.clone() };
        Job::new(which).run()
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
            plan = self.closer(plan)?;
            plan = self.shorter(plan)?;
            plan = self.plainer(plan)?;
            if plan.to_string().len() == before || Instant::now() >= self.until {
                return Ok(plan);
            }
        }
    }

    /// A client that is not needed loses its ops, then goes; the others keep their numbers.
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

    /// Takes away parts of a list, large ones first, as long as the plan fails.
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
    fn closer(&mut self, mut plan: Plan) -> Result<Plan> {
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

    /// Halves how long faults last.
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

    /// Takes what is special about the cluster and its network away, one thing after the other.
    fn plainer(&mut self, mut plan: Plan) -> Result<Plan> {
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

/// What a plan can do without.
const PLAIN: [fn(&mut Plan); 8] = [
    |plan| plan.ending = Ending::Stay,
    |plan| plan.cluster.tablets = 1,
    |plan| {
        let others = |fault: &TimedFault| !matches!(fault.target, Host::Master(number) if number > 0);
        if plan.faults.iter().all(others) {
            plan.cluster.masters = 1;
        }
    },
    |plan| plan.cluster.memory = plan.cluster.memory.max(1 << 30),
    |plan| plan.cluster.limits = Limits::Normal,
    |plan| plan.network.loss_per_mille = 0,
    |plan| plan.network.jitter = Duration::ZERO,
    |plan| plan.network.cut_one_in = 64,
];
