//! The determinism check: the same seed in two processes must give equal hashes.

use std::ops::Range;

use anyhow::Result;
use clap::Args;

use super::arguments;
use super::plan_source::{PlanSource, RunOptions};
use super::run_process::RunJob;
use crate::event_log::HashCheckpoints;
use crate::output::outln;
use crate::run::RunOutcome;

#[derive(Args)]
pub(super) struct TwiceArgs {
    /// Seeds, FROM..TO, the end not included
    #[arg(long, default_value = "1..11", value_parser = arguments::range)]
    seeds: Range<u64>,
    #[command(flatten)]
    options: RunOptions,
    /// Runs at a time
    #[arg(long, default_value = "2", value_parser = arguments::count)]
    jobs: usize,
}

/// Events printed before the first event that differs.
const CONTEXT: usize = 10;

/// Runs each seed twice and compares.
pub(super) fn twice(args: &TwiceArgs) -> Result<bool> {
    let mut sources = Vec::new();
    for seed in args.seeds.clone() {
        let source = PlanSource { what: seed.to_string(), options: args.options.clone() };
        sources.extend([source.clone(), source]);
    }
    let pool = super::run_pool::RunPool { jobs: args.jobs, until: None, stop: false, trace: None };
    let results = pool.run(sources)?;
    let mut differing = 0;
    for pair in results.runs.chunks(2) {
        let [(source, one), (_, other)] = pair else { continue };
        if (&one.hash, one.events) != (&other.hash, other.events) {
            differing += 1;
            outln!("DIFFERS {}: {} and {}", source.what, one.hash, other.hash);
            explain(source, one, other)?;
        }
    }
    // Two runs that died before they had a hash do not differ.
    let failed = results.failures();
    outln!("{} seeds run twice, {differing} differ, {failed} runs failed", results.runs.len() / 2);
    Ok(differing == 0 && failed == 0)
}

/// Prints the first event that differs.
fn explain(source: &PlanSource, one: &RunOutcome, other: &RunOutcome) -> Result<()> {
    let (steps, other_steps): (HashCheckpoints, HashCheckpoints) = (one.steps.parse()?, other.steps.parse()?);
    let Some(events) = steps.first_difference(&other_steps) else { return Ok(()) };
    outln!("  first difference among events {}..{}", events.start, events.end);
    let job = RunJob { events: Some(events), ..RunJob::new(source.clone()) };
    let (lines, other_lines) = (job.run()?.lines, job.run()?.lines);
    match lines.iter().zip(&other_lines).position(|(one, other)| one != other) {
        Some(at) => {
            lines[at.saturating_sub(CONTEXT)..at].iter().for_each(|line| outln!("    {line}"));
            outln!("  - {}\n  + {}", lines[at], other_lines[at]);
        }
        None => outln!("  two more runs are equal there: {} lines each", lines.len()),
    }
    Ok(())
}
