//! The trials of many seeds without a run: parts of the system, hundreds of seeds a minute.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;

use anyhow::Result;
use clap::Args;

use super::{arguments, run_pool};
use crate::oracle::Violation;
use crate::output::outln;
use crate::trials::{self, TrialKind};

#[derive(Args)]
pub(super) struct TrialsArgs {
    /// Seeds, FROM..TO, the end not included
    #[arg(long, default_value = "1..101", value_parser = arguments::range)]
    seeds: Range<u64>,
    /// Trials at a time; as many as there are processors if not given
    #[arg(long, value_parser = arguments::count)]
    jobs: Option<usize>,
    /// Run this kind of trial alone
    #[arg(long, value_enum)]
    only: Option<TrialKind>,
    /// End at the first violation
    #[arg(long)]
    stop: bool,
}

/// Runs the trials of each seed and prints what they find.
pub(super) fn trials(args: &TrialsArgs) -> Result<bool> {
    let seeds = Mutex::new(args.seeds.clone());
    let failed = Mutex::new(0u64);
    let work = || {
        while let Some(seed) = next(&seeds) {
            let found = trials_of(seed, args.only);
            if found.is_empty() {
                continue;
            }
            *failed.lock().expect("no worker panics") += 1;
            found.iter().for_each(print);
            if args.stop {
                *seeds.lock().expect("no worker panics") = 0..0;
            }
        }
    };
    std::thread::scope(|scope| {
        (0..run_pool::jobs(args.jobs)).for_each(|_| drop(scope.spawn(work)));
    });
    let failed = failed.into_inner().expect("no worker panics");
    outln!("{} seeds, {failed} failed", args.seeds.end - args.seeds.start);
    Ok(failed == 0)
}

fn next(seeds: &Mutex<Range<u64>>) -> Option<u64> {
    seeds.lock().expect("no worker panics").next()
}

/// Runs the trials of a seed. A panic is a violation too.
fn trials_of(seed: u64, only: Option<TrialKind>) -> Vec<Violation> {
    let run = || match only {
        Some(kind) => trials::run_one(kind, seed).into_iter().collect(),
        None => trials::run(seed, true),
    };
    catch_unwind(AssertUnwindSafe(run))
        .unwrap_or_else(|_| vec![Violation::new("panic", format!("seed {seed}: the trials panic"))])
}

fn print(found: &Violation) {
    outln!("FAIL {}: {}", found.oracle, found.message);
    found.story.iter().for_each(|line| outln!("  {line}"));
}
