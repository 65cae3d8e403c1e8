//! The same seed in two processes: equal, or something escaped the simulation.

use anyhow::Result;
use clap::Args;

use super::child::Job;
use super::{How, Which, parse_range};
use crate::run::Outcome;
use crate::trace::Steps;

#[derive(Args)]
pub struct TwiceArgs {
    /// Seeds, FROM..TO, the end not included
    #[arg(long, default_value = "1..11")]
    seeds: String,
    #[command(flatten)]
    how: How,
    #[arg(long, default_value_t = 2)]
    jobs: usize,
}

/// Events printed before the one by which two runs part.
const CONTEXT: usize = 10;

/// Runs each seed twice and compares.
pub fn twice(args: &TwiceArgs) -> Result<bool> {
    let mut whiches = Vec::new();
    for seed in parse_range(&args.seeds)? {
        let which = Which { what: seed.to_string(), how: args.how.clone() };
        whiches.extend([which.clone(), which]);
    }
    let farm = super::farm::Farm { jobs: args.jobs, until: None, stop: false, trace: None };
    let results = farm.run(whiches)?;
    let mut parted = 0;
    for pair in results.runs.chunks(2) {
        let [(which, one), (_, other)] = pair else { continue };
        if (&one.hash, one.events) != (&other.hash, other.events) {
            parted += 1;
            println!("DIFFERS {}: {} and {}", which.what, one.hash, other.hash);
            explain(which, one, other)?;
        }
    }
    // Two runs that died before they had a hash do not differ.
    let failed = results.failures();
    println!("{} seeds run twice, {parted} differ, {failed} runs failed", results.runs.len() / 2);
    Ok(parted == 0 && failed == 0)
}

/// Prints the first event that differs.
fn explain(which: &Which, one: &Outcome, other: &Outcome) -> Result<()> {
    let (steps, other_steps): (Steps, Steps) = (one.steps.parse()?, other.steps.parse()?);
    let Some(events) = steps.parting(&other_steps) else { return Ok(()) };
    println!("  they part among the events {}..{}", events.start, events.end);
    let job = Job { events: Some(events), ..Job::new(which.clone()) };
    let (lines, other_lines) = (job.hear()?.lines, job.hear()?.lines);
    match lines.iter().zip(&other_lines).position(|(one, other)| one != other) {
        Some(at) => {
            lines[at.saturating_sub(CONTEXT)..at].iter().for_each(|line| println!("    {line}"));
            println!("  - {}\n  + {}", lines[at], other_lines[at]);
        }
        None => println!("  two more runs did not part there: {} lines each", lines.len()),
    }
    Ok(())
}
