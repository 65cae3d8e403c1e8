//! The command: many seeds, one seed again, a failing plan made smaller, a run's page.
//!
//! Every run is a process of its own ([`child`]): what a process holds in statics is part of what a seed decides.
//! Exit codes: 0 nothing wrong, 1 a run failed, 2 the command makes no sense, 3 something around it failed.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::{Args, Parser, Subcommand};

use crate::plan::record::Field;
use crate::plan::{Plan, Profile, Size};
use crate::run::WorldKind;
use crate::study;

mod child;
mod farm;
mod kinds;
mod mutants;
mod needs;
mod results;
mod schema;
mod scratch;
mod show;
mod shrink;
mod twice;
mod verdicts;

/// Runs nyala in simulated worlds.
#[derive(Parser)]
#[command(name = "cargo sim", bin_name = "cargo sim")]
struct Cli {
    #[command(subcommand)]
    word: Word,
}

#[derive(Subcommand)]
enum Word {
    /// Runs many seeds, each in a process of its own
    Run(farm::RunArgs),
    /// Runs every kept plan of a folder, in both worlds
    Plans(farm::PlansArgs),
    /// Runs a seed or a plan again and prints what it came to
    Replay(ReplayArgs),
    /// Runs seeds twice each and compares their hashes
    Twice(twice::TwiceArgs),
    /// Makes a failing plan as small as it can get
    Shrink(shrink::ShrinkArgs),
    /// Writes the page of a run: one HTML file
    Show(show::ShowArgs),
    /// Prints the plan of a seed
    Plan(PlanArgs),
    /// Puts the results of several shards into one file and sums them up
    Merge(results::MergeArgs),
    /// Plants bugs, and says how soon each is caught
    Mutants(mutants::MutantsArgs),
    /// What the node would reach on machines of paper
    Study(study::StudyArgs),
    /// Runs one point of a study in this very process
    #[command(hide = true)]
    StudyPoint(study::PointArgs),
    /// Runs one plan in this very process, for the other words
    #[command(hide = true)]
    One(child::OneArgs),
}

/// Which plan, in which world.
#[derive(Args, Debug, Clone)]
pub(crate) struct Which {
    /// A seed, or the path of a plan
    pub what: String,
    #[command(flatten)]
    pub how: How,
}

/// How plans are made and run.
#[derive(Args, Debug, Clone)]
pub(crate) struct How {
    /// madsim or turmoil
    #[arg(long, default_value = "madsim", value_parser = parse_field::<WorldKind>)]
    pub world: WorldKind,
    /// Faults to draw from: swarm, disk, network, crash, clock, memory, copy, calm
    #[arg(long, default_value = "swarm", value_parser = parse_field::<Profile>)]
    pub profile: Profile,
    /// How large plans are: smoke, full, bench
    #[arg(long, default_value = "full", value_parser = parse_field::<Size>)]
    pub size: Size,
}

#[derive(Args)]
struct PlanArgs {
    seed: u64,
    #[command(flatten)]
    how: How,
}

#[derive(Args)]
struct ReplayArgs {
    #[command(flatten)]
    which: Which,
    /// Print the events with these numbers, FROM..TO
    #[arg(long)]
    events: Option<String>,
    /// Print what the nodes logged and what befell them
    #[arg(long)]
    log: bool,
}

fn parse_field<T: Field>(text: &str) -> Result<T, String> {
    T::parse(text).ok_or_else(|| format!("{text:?} is not one of them"))
}

impl Which {
    /// The plan, generated or read.
    pub fn plan(&self) -> Result<Plan> {
        match self.what.parse() {
            Ok(seed) => Ok(self.how.plan(seed)),
            Err(_) => read_plan(&PathBuf::from(&self.what)),
        }
    }

    /// What files of this run's are named: the seed with its world and faults, or the plan's own name.
    pub fn file_name(&self) -> String {
        let How { world, profile, size } = &self.how;
        let what = match self.what.parse::<u64>() {
            Ok(seed) => format!("{}-{}-{seed}", profile.word(), size.word()),
            Err(_) => Path::new(&self.what).file_stem().unwrap_or_default().to_string_lossy().into_owned(),
        };
        format!("{}-{what}", world.word())
    }

    /// The words that name this plan on a command line.
    pub fn words(&self) -> Vec<String> {
        let mut words = vec![self.what.clone()];
        words.extend(self.how.words());
        words
    }
}

impl How {
    pub fn plan(&self, seed: u64) -> Plan {
        Plan::generate(seed, self.profile, self.size)
    }

    pub fn words(&self) -> Vec<String> {
        let pairs = [
            ("--world", self.world.word()),
            ("--profile", self.profile.word()),
            ("--size", self.size.word()),
        ];
        pairs.iter().flat_map(|(name, value)| [name.to_string(), value.to_string()]).collect()
    }
}

pub(crate) fn read_plan(path: &Path) -> Result<Plan> {
    let text =
        std::fs::read_to_string(path).with_context(|| format!("reading the plan {}", path.display()))?;
    Ok(text.parse()?)
}

/// `FROM..TO`, the end not included.
pub(crate) fn parse_range(text: &str) -> Result<std::ops::Range<u64>> {
    let Some((from, to)) = text.split_once("..") else { bail!("{text:?} is not FROM..TO") };
    Ok(from.parse().context("the first number")?..to.parse().context("the last number")?)
}

/// The program: parses, runs, says how it went.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let done = match cli.word {
        Word::Run(args) => farm::run(&args),
        Word::Plans(args) => farm::plans(&args),
        Word::Replay(args) => replay(&args),
        Word::Twice(args) => twice::twice(&args),
        Word::Shrink(args) => shrink::shrink(&args),
        Word::Show(args) => show::show(&args),
        Word::Plan(args) => print_plan(&args.how.plan(args.seed)),
        Word::Merge(args) => results::merge(&args),
        Word::Mutants(args) => mutants::mutants(&args),
        Word::Study(args) => study::study(&args),
        Word::StudyPoint(args) => study::one_point(&args),
        Word::One(args) => child::one(&args),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("sim: {error:#}");
            ExitCode::from(3)
        }
    }
}

/// Prints as much of it as the reader takes: `head`, for one, has enough at some line.
fn print_plan(plan: &Plan) -> Result<bool> {
    match std::io::stdout().lock().write_all(plan.to_string().as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(error).context("printing the plan")
        }
        _ => Ok(true),
    }
}

fn replay(args: &ReplayArgs) -> Result<bool> {
    let events = args.events.as_deref().map(parse_range).transpose()?;
    let job = child::Job { events, moments: args.log, ..child::Job::new(args.which.clone()) };
    let child::Heard { outcome, lines, moments, .. } = job.hear()?;
    lines.iter().for_each(|line| println!("{line}"));
    // Every single entry of every log is for the page.
    for moment in moments.iter().filter(|moment| moment.kind != crate::observer::LOG_ENTRY) {
        println!("{:>12.3} ms {:<8} {:<6} {}", moment.ms, moment.host, moment.kind, moment.text);
    }
    results::print_failures(&outcome, &args.which);
    println!(
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
