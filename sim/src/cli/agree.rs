//! Determined plans in several worlds, which must end with the same rows.
//!
//! ```text
//! agree ─► outcome PLAN --world W   a process for each run; prints the final state as one line of JSON
//!             └─► serve PLAN HOST   a process for each server, on the machine
//! ```

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use clap::Args;
use engine::sync::Mutex;
use sim_plan::line_format::{LineField, words};
use sim_plan::{Host, Plan, determined};

use super::arguments;
use super::plan_source::{print_plan, read_plan};
use super::run_process::end_with_parent;
use crate::agreement::compare::{WorldEnd, differences};
use crate::agreement::{machine, simulated};
use crate::final_state::FinalState;
use crate::output::outln;
use crate::run::WorldKind;

/// Begins the line with the final state.
const MARK: &str = "@end ";
/// Real time after which a run counts as hung.
const HANG: Duration = Duration::from_secs(400);
/// Most differences of a plan that are printed.
const SHOWN_MAX: usize = 20;
/// Lines of a run's errors that are printed.
const LINES_MAX: usize = 30;

words! {
    /// The world that a determined plan runs in.
    pub enum AgreeWorld {
        Madsim = "madsim",
        Turmoil = "turmoil",
        Keyed = "keyed",
        /// Processes, sockets on loopback and files.
        Machine = "machine",
    }
}

#[derive(Args)]
pub(super) struct AgreeArgs {
    /// Plans to run: files; without any, plans of seeds
    files: Vec<PathBuf>,
    /// Number of seeds
    #[arg(long, default_value = "20", value_parser = arguments::count)]
    plans: usize,
    /// The first seed
    #[arg(long, default_value_t = 1)]
    first: u64,
    /// Worlds to compare
    #[arg(long, value_delimiter = ',', default_value = "madsim,turmoil,keyed,machine",
          value_parser = arguments::one_of::<AgreeWorld>())]
    worlds: Vec<AgreeWorld>,
    /// Plans at a time [default: number of processors]
    #[arg(long, value_parser = arguments::count)]
    jobs: Option<usize>,
    /// Minutes after which no new plan starts
    #[arg(long, value_parser = arguments::minutes)]
    minutes: Option<Duration>,
    /// Folder of Kudu's package, whose `bin/kudu cluster ksck` checks the cluster on the machine
    #[arg(long, value_name = "FOLDER")]
    kudu: Option<PathBuf>,
}

#[derive(Args)]
pub(super) struct OutcomeArgs {
    /// A seed, or the path of a plan
    #[arg(value_parser = arguments::some_text())]
    plan: String,
    #[arg(long, value_parser = arguments::one_of::<AgreeWorld>())]
    world: AgreeWorld,
    /// Print the plan instead
    #[arg(long)]
    text: bool,
    /// With world=machine: folder of Kudu's package, whose tool checks the cluster at the end
    #[arg(long, value_name = "FOLDER")]
    kudu: Option<PathBuf>,
}

#[derive(Args)]
pub(super) struct ServeArgs {
    plan: PathBuf,
    host: String,
    #[arg(long)]
    dir: PathBuf,
    #[arg(long)]
    network: u32,
}

/// Counters of all plans.
#[derive(Default)]
struct Totals {
    plans: usize,
    differing: usize,
    rows: usize,
    written: u64,
    faults: u64,
}

/// Runs plans in each world and compares how they end.
pub(super) fn agree(args: &AgreeArgs) -> Result<bool> {
    let seeds = (0..args.plans as u64).map(|at| (args.first + at).to_string());
    let files = args.files.iter().map(|path| path.display().to_string());
    let plans: Vec<String> = if args.files.is_empty() { seeds.collect() } else { files.collect() };
    plans.iter().try_for_each(|plan| read(plan).map(drop))?;
    if let Some(kudu) = args.kudu.as_ref().filter(|kudu| !kudu.join("bin/kudu").is_file()) {
        return Err(arguments::wrong(format!("--kudu {}: it has no bin/kudu", kudu.display())));
    }
    let begun = Instant::now();
    let (next, totals) = (AtomicUsize::new(0), Mutex::new(Totals::default()));
    let work = || -> Result<()> {
        while let Some(plan) = plans.get(next.fetch_add(1, Ordering::Relaxed)) {
            if args.minutes.is_some_and(|minutes| begun.elapsed() >= minutes) {
                return Ok(());
            }
            compare(plan, args, &totals)?;
        }
        Ok(())
    };
    let default = || std::thread::available_parallelism().map_or(1, |count| count.get());
    let jobs = args.jobs.unwrap_or_else(default);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..jobs).map(|_| scope.spawn(work)).collect();
        workers
            .into_iter()
            .try_for_each(|worker| worker.join().unwrap_or_else(|_| Err(anyhow!("a worker panicked"))))
    })?;
    let totals = totals.into_inner();
    print_totals(&totals, &args.worlds, begun.elapsed());
    Ok(totals.differing == 0 && totals.plans > 0)
}

fn print_totals(totals: &Totals, worlds: &[AgreeWorld], took: Duration) {
    let words: Vec<&str> = worlds.iter().map(|world| world.word()).collect();
    let Totals { plans, differing, rows, written, faults } = totals;
    let agree = plans - differing;
    let each = took.as_secs_f64() / (*plans).max(1) as f64;
    outln!(
        "{plans} plans in {}: {agree} agree, {differing} differ; {each:.1} s for each plan",
        words.join(", ")
    );
    outln!("{rows} rows at the end, {written} writes and {faults} faults in the last of these worlds");
}

/// Runs one plan in each world, and prints what differs.
fn compare(plan: &str, args: &AgreeArgs, totals: &Mutex<Totals>) -> Result<()> {
    let end = |world: &AgreeWorld| {
        let kudu = args.kudu.as_deref().filter(|_| *world == AgreeWorld::Machine);
        Ok(WorldEnd { world: world.word().to_string(), state: run_child(plan, *world, kudu)? })
    };
    let ends = args.worlds.iter().map(end).collect::<Result<Vec<WorldEnd>>>()?;
    let found = differences(plan, &ends);
    let mut totals = totals.lock();
    found.iter().take(SHOWN_MAX).for_each(|what| outln!("DIFFERS {what}"));
    if found.len() > SHOWN_MAX {
        outln!("  and {} more", found.len() - SHOWN_MAX);
    }
    if !found.is_empty() {
        let again =
            if plan.parse::<u64>().is_ok() { format!("--plans 1 --first {plan}") } else { plan.to_string() };
        outln!("  again: cargo sim agree {again}; the plan: cargo sim outcome {plan} --world machine --text");
    }
    totals.plans += 1;
    totals.differing += usize::from(!found.is_empty());
    if let Some(WorldEnd { state, .. }) = ends.last() {
        totals.rows += state.tables.values().map(|table| table.rows.len()).sum::<usize>();
        totals.written += state.written;
        totals.faults += state.faults;
    }
    Ok(())
}

/// Runs a plan in a process of its own. A run that prints no final state has failed.
fn run_child(plan: &str, world: AgreeWorld, kudu: Option<&Path>) -> Result<FinalState> {
    let mut command = Command::new(std::env::current_exe().context("finding this program")?);
    command.args(["outcome", plan, "--world", world.word()]).env("RUST_BACKTRACE", "1").stdin(Stdio::null());
    if let Some(kudu) = kudu {
        command.arg("--kudu").arg(kudu);
    }
    let output = command.output().context("starting a run")?;
    let (printed, errors) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if let Some(json) = printed.lines().find_map(|line| line.strip_prefix(MARK)) {
        return serde_json::from_str(json).context("the final state of a run");
    }
    let lines: Vec<&str> = errors.lines().take(LINES_MAX).collect();
    let failure = format!("the run ended with {}: {}", output.status, lines.join("\n"));
    Ok(FinalState { failures: vec![failure], ..FinalState::default() })
}

/// Returns the plan of a seed or of a file, which must be determined.
fn read(plan: &str) -> Result<Plan> {
    let found = match plan.parse() {
        Ok(seed) => Plan::determined(seed),
        Err(_) => read_plan(&PathBuf::from(plan))?,
    };
    match determined::undetermined(&found) {
        None => Ok(found),
        Some(why) => Err(arguments::wrong(format!("{plan}: its end is not determined: {why}"))),
    }
}

/// Runs a plan in this process and prints its final state.
pub(super) fn outcome(args: &OutcomeArgs) -> Result<bool> {
    let plan = read(&args.plan)?;
    if args.text {
        return print_plan(&plan);
    }
    end_with_parent();
    std::thread::spawn(|| {
        std::thread::sleep(HANG);
        eprintln!("no end after {} s", HANG.as_secs());
        std::process::exit(3);
    });
    let state = match args.world {
        AgreeWorld::Madsim => simulated::run(&plan, WorldKind::Madsim).map_err(|error| anyhow!(error))?,
        AgreeWorld::Turmoil => simulated::run(&plan, WorldKind::Turmoil).map_err(|error| anyhow!(error))?,
        AgreeWorld::Keyed => simulated::run(&plan, WorldKind::Keyed).map_err(|error| anyhow!(error))?,
        AgreeWorld::Machine => {
            machine::run(&plan, args.kudu.as_deref()).context("running the plan on this machine")?
        }
    };
    outln!("{MARK}{}", serde_json::to_string(&state)?);
    // Dropping the world's tasks one by one would take long.
    std::process::exit(if state.failures.is_empty() { 0 } else { 1 });
}

/// Runs a server of a plan in this process.
pub(super) fn serve(args: &ServeArgs) -> Result<bool> {
    end_with_parent();
    let plan = read_plan(&args.plan)?;
    let host = Host::parse(&args.host).ok_or_else(|| arguments::wrong(format!("{}: no host", args.host)))?;
    match machine::serve(&plan, host, &args.dir, args.network) {
        Ok(()) => Ok(true),
        Err(error) => Err(anyhow!("{host}: {error}")),
    }
}
