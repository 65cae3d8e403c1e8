//! The command line: runs many seeds, replays one, shrinks a failing plan, draws a run.
//!
//! Every run has its own process (`run_process`), because statics are part of what a seed decides. Exit codes: 0
//! success, 1 a run failed, 2 invalid arguments, 3 the environment failed.

use std::ops::Range;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Parser, Subcommand};

use crate::output::outln;
use crate::study;
use plan_source::{PlanSource, RunOptions, print_plan};

mod agree;
pub(crate) mod arguments;
mod cost;
mod counterfactual;
mod coverage;
mod determinism;
mod explore;
mod fate;
mod fault_report;
mod gates;
mod history_page;
mod junit;
mod mutant_results;
mod mutant_schemata;
mod mutants;
mod plan_source;
mod required_faults;
mod results;
mod run_pool;
mod run_process;
mod scratch_plans;
mod search_log;
mod show;
mod shrink;
mod trials;

/// Runs nyala in simulated worlds.
#[derive(Parser)]
#[command(name = "cargo sim", bin_name = "cargo sim")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Runs many seeds, one process each
    Run(run_pool::RunArgs),
    /// Searches: fresh seeds, and children of plans that showed something new
    Explore(explore::ExploreArgs),
    /// Runs every plan of a folder, in all worlds
    Plans(run_pool::PlansArgs),
    /// Runs a seed or a plan again and prints its outcome
    Replay(ReplayArgs),
    /// Runs each seed twice and compares the hashes
    Twice(determinism::TwiceArgs),
    /// Runs the trials of many seeds alone: parts of the system without a cluster
    Trials(trials::TrialsArgs),
    /// Runs determined plans in the simulated worlds and on this machine, and compares how they end
    Agree(agree::AgreeArgs),
    /// Minimizes a failing plan
    Shrink(shrink::ShrinkArgs),
    /// Runs a plan with one of its faults and without it, and prints what the fault caused
    Without(counterfactual::WithoutArgs),
    /// Finds the fault and the op by which a failing run was decided
    Fated(fate::FatedArgs),
    /// Writes the timeline of a run as one HTML file
    Show(show::ShowArgs),
    /// Prints the plan of a seed
    Plan(PlanArgs),
    /// Merges the results of several shards into one file and prints a summary
    Merge(results::MergeArgs),
    /// Prints which cells of the generator-coverage table runs reached
    Coverage(coverage::CoverageArgs),
    /// Runs all mutants and reports how soon each is killed
    Mutants(mutants::MutantsArgs),
    /// Counts what runs cost: steps, polls, timers, segments, disk operations
    Cost(cost::CostArgs),
    /// Estimates performance with a cost model
    Study(study::StudyArgs),
    /// Runs one point of a study in this process
    #[command(hide = true)]
    StudyPoint(study::PointArgs),
    /// Runs one determined plan in this process, for `agree`
    #[command(hide = true)]
    Outcome(agree::OutcomeArgs),
    /// Runs one server of a determined plan in this process, on this machine
    #[command(hide = true)]
    Serve(agree::ServeArgs),
    /// Runs one plan in this process, for the other subcommands
    #[command(hide = true)]
    One(run_process::RunOneArgs),
}

#[derive(Args)]
struct PlanArgs {
    seed: u64,
    #[command(flatten)]
    options: RunOptions,
}

#[derive(Args)]
struct ReplayArgs {
    #[command(flatten)]
    source: PlanSource,
    /// Print the events with these numbers, FROM..TO
    #[arg(long, value_parser = arguments::range)]
    events: Option<Range<u64>>,
    /// Print log lines and faults
    #[arg(long)]
    log: bool,
}

/// Runs the command and returns its exit code.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let done = match cli.command {
        Command::Run(args) => run_pool::run(&args),
        Command::Explore(args) => explore::explore(&args),
        Command::Plans(args) => run_pool::plans(&args),
        Command::Replay(args) => replay(&args),
        Command::Twice(args) => determinism::twice(&args),
        Command::Trials(args) => trials::trials(&args),
        Command::Agree(args) => agree::agree(&args),
        Command::Outcome(args) => agree::outcome(&args),
        Command::Serve(args) => agree::serve(&args),
        Command::Shrink(args) => shrink::shrink(&args),
        Command::Without(args) => counterfactual::without(&args),
        Command::Fated(args) => fate::fated(&args),
        Command::Show(args) => show::show(&args),
        Command::Plan(args) => print_plan(&args.options.plan(args.seed)),
        Command::Merge(args) => results::merge(&args),
        Command::Coverage(args) => coverage::coverage(&args),
        Command::Mutants(args) => mutants::mutants(&args),
        Command::Cost(args) => cost::cost(&args),
        Command::Study(args) => study::study(&args),
        Command::StudyPoint(args) => study::one_point(&args),
        Command::One(args) => run_process::one(&args),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("sim: {error:#}");
            ExitCode::from(arguments::exit_code(&error))
        }
    }
}

fn replay(args: &ReplayArgs) -> Result<bool> {
    // A wrong argument is none of the run.
    args.source.plan()?;
    let events = args.events.clone();
    let job =
        run_process::RunJob { events, timeline: args.log, ..run_process::RunJob::new(args.source.clone()) };
    let run_process::ChildOutput { outcome, lines, timeline, .. } = job.run()?;
    lines.iter().for_each(|line| outln!("{line}"));
    // Log entries are for the timeline only.
    for event in timeline.iter().filter(|event| event.kind != crate::run_observer::LOG_ENTRY) {
        outln!("{:>12.3} ms {:<8} {:<6} {}", event.ms, event.host, event.kind, event.text);
    }
    results::print_failures(&outcome, &args.source);
    outln!(
        "seed {} {}: {} events, hash {}, {:.1} s simulated, {} ops, {} ms CPU, {} MiB",
        outcome.seed,
        outcome.world,
        outcome.events,
        outcome.hash,
        outcome.simulated_ms as f64 / 1e3,
        outcome.answered + outcome.unanswered,
        outcome.cpu_ms,
        outcome.rss_kib / 1024,
    );
    Ok(outcome.failures.is_empty())
}
