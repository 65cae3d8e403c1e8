//! What runs cost: how often the world does each kind of its work, per run, simulated second and millisecond of CPU.
//!
//! A prediction of what a change saves is a count here times the cost of one.

use std::collections::BTreeMap;
use std::ops::Range;

use anyhow::Result;
use clap::Args;

use super::arguments;
use super::plan_source::{PlanSource, RunOptions};
use super::run_pool::RunPool;
use crate::output::outln;
use crate::run::RunOutcome;

#[derive(Args)]
pub(super) struct CostArgs {
    /// Seeds, FROM..TO, the end not included
    #[arg(long, default_value = "1..11", value_parser = arguments::range)]
    seeds: Range<u64>,
    #[command(flatten)]
    options: RunOptions,
    /// Runs at a time
    #[arg(long, default_value = "1", value_parser = arguments::count)]
    jobs: usize,
}

/// A counter of all runs together.
#[derive(Debug, PartialEq)]
struct CostRow {
    name: String,
    per_run: f64,
    per_simulated_second: f64,
    per_cpu_ms: f64,
}

/// Runs seeds and prints the table.
pub(super) fn cost(args: &CostArgs) -> Result<bool> {
    let source = |seed: u64| PlanSource { what: seed.to_string(), options: args.options.clone() };
    let pool = RunPool { jobs: args.jobs, until: None, stop: false, trace: None };
    let results = pool.run(args.seeds.clone().map(source).collect())?;
    let outcomes: Vec<&RunOutcome> = results.runs.iter().map(|(_, outcome)| outcome).collect();
    let rows = rows(&outcomes);
    if rows.is_empty() {
        let world = args.options.world.word();
        return Err(arguments::wrong(format!("--world {world}: it counts nothing; use madsim")));
    }
    let cpu: u64 = outcomes.iter().map(|outcome| outcome.cpu_ms).sum();
    outln!("{} runs, {:.2} s of CPU a run", outcomes.len(), cpu as f64 / 1e3 / outcomes.len() as f64);
    outln!("{:<24}{:>14}{:>20}{:>14}", "", "a run", "a simulated second", "a CPU ms");
    for row in rows {
        let CostRow { name, per_run, per_simulated_second, per_cpu_ms } = row;
        outln!("{name:<24}{per_run:>14.0}{per_simulated_second:>20.0}{per_cpu_ms:>14.1}");
    }
    Ok(results.failures() == 0)
}

fn rows(outcomes: &[&RunOutcome]) -> Vec<CostRow> {
    let mut sums: BTreeMap<&str, u64> = BTreeMap::new();
    for (name, count) in outcomes.iter().flat_map(|outcome| &outcome.work) {
        *sums.entry(name).or_default() += count;
    }
    let sum =
        |of: fn(&RunOutcome) -> u64| outcomes.iter().map(|outcome| of(outcome)).sum::<u64>().max(1) as f64;
    let (simulated_s, cpu_ms) = (sum(|outcome| outcome.simulated_ms) / 1e3, sum(|outcome| outcome.cpu_ms));
    let row = |(name, count): (&str, u64)| CostRow {
        name: name.to_string(),
        per_run: count as f64 / outcomes.len() as f64,
        per_simulated_second: count as f64 / simulated_s,
        per_cpu_ms: count as f64 / cpu_ms,
    };
    sums.into_iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_all_runs_are_set_in_relation() {
        let outcome = |polls| RunOutcome {
            simulated_ms: 2_000,
            cpu_ms: 10,
            work: BTreeMap::from([("polls".to_string(), polls)]),
            ..RunOutcome::default()
        };
        let expected = CostRow {
            name: "polls".to_string(),
            per_run: 200.0,
            per_simulated_second: 100.0,
            per_cpu_ms: 20.0,
        };
        assert_eq!(rows(&[&outcome(100), &outcome(300)]), [expected]);
        assert_eq!(rows(&[&RunOutcome::default()]), []);
    }
}
