//! Mutants: how soon each is killed, and by which oracle.
//!
//! All patches of a folder are built into one program ([`super::mutant_schemata`]); those that cannot be joined are
//! built one by one. Each mutant runs until an oracle reports a violation. A run that also fails without the patch
//! proves nothing and is skipped. Controls, whose patches change no observable behaviour, must stay clean.
//!
//! Every mutant has the same runs ([`course`]), chosen without knowledge of the patch. Each outcome is stored as soon
//! as it is known ([`super::mutant_results`]), and so is each run ([`super::search_log`]), so an interrupted search
//! continues where it was.
//!
//! ```text
//! # Description of the mutant.     the first lines of a patch
//! # Caught by: durability         oracles expected to kill it
//! # Profile: crash                faults it needs
//! ```

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use engine::sync::Mutex;

use super::arguments;
use super::fault_report::{self, FaultFinding, FaultReport};
use super::history_page::{self, ShippedBug};
use super::mutant_results::{MutantResult, MutantResults};
use super::mutant_schemata::join;
use super::plan_source::{PlanSource, RunOptions, SearchedPlans};
use super::required_faults::needs;
use super::run_process::RunJob;
use super::scratch_plans::ScratchPlans;
use super::search_log::{RunKey, RunRecord, SearchLog, fingerprint};
use crate::output::outln;
use crate::run::{RunOutcome, WorldKind};
use scratch_tree::{apply, copy_tree};
use sim_plan::fault_weights::profile_of;
use sim_plan::{FaultKind, FaultProfile, PlanSize};

#[derive(Args)]
pub(super) struct MutantsArgs {
    /// Only patches whose names contain one of these, separated by commas
    #[arg(long, value_delimiter = ',', value_parser = arguments::some_text())]
    only: Vec<String>,
    /// The folder of patches
    #[arg(long, default_value = "sim/mutants")]
    dir: PathBuf,
    /// The first seed
    #[arg(long, default_value_t = 1)]
    from: u64,
    /// CPU minutes for each mutant
    #[arg(long, default_value = "10", value_parser = arguments::minutes)]
    minutes: Duration,
    /// Mutants that run at the same time
    #[arg(long, default_value = "2", value_parser = arguments::count)]
    jobs: usize,
    /// Folder of the scratch copy and its target directory
    #[arg(long, default_value = "target/mutants")]
    scratch: PathBuf,
    /// The file of results
    #[arg(long, default_value = "sim/MUTANTS.md")]
    verdicts: PathBuf,
    /// The file of mutants that are bugs of history
    #[arg(long, default_value = "sim/HISTORY.md")]
    history: PathBuf,
    /// Find a mutant that each of these kinds of faults exposes, separated by commas; nothing else runs
    #[arg(long, value_delimiter = ',', value_parser = arguments::one_of::<FaultKind>())]
    kind: Vec<FaultKind>,
    /// The file of mutants by kind of fault
    #[arg(long, default_value = "sim/FAULTS.md")]
    kinds: PathBuf,
    /// CPU minutes for finding which faults a killed mutant needs
    #[arg(long, default_value = "2", value_parser = arguments::minutes)]
    ablation: Duration,
    /// Do not look for the faults that a killed mutant needs
    #[arg(long)]
    no_ablation: bool,
    /// Run mutants again that were killed already, or survived with as much time
    #[arg(long)]
    again: bool,
    /// The cargo profile for building mutants
    #[arg(long, default_value = "mutant")]
    build: String,
    // Profiles and sizes are taken in turn.
    #[command(flatten)]
    plans: SearchedPlans,
}

/// Entry of the needed faults if they are not determined.
const UNDETERMINED: &str = "?";
/// Attempts of a run that is killed from outside.
const TRIES: u32 = 3;

/// One mutant.
struct Mutant {
    name: String,
    path: PathBuf,
    /// Its number in the joined program.
    number: u32,
}

impl Mutant {
    fn read(number: u32, path: PathBuf) -> Mutant {
        let name = path.file_stem().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        Mutant { name, path, number }
    }

    fn is_control(&self) -> bool {
        self.name.contains("control")
    }

    /// Returns the bug of history that it is, if its patch names an issue.
    fn shipped(&self) -> Result<Option<ShippedBug>> {
        let text =
            fs::read_to_string(&self.path).with_context(|| format!("reading {}", self.path.display()))?;
        Ok(ShippedBug::parse(&self.name, &text))
    }
}

/// One run of a search.
#[derive(Debug, Clone, Copy)]
struct SearchAttempt {
    size: PlanSize,
    profile: FaultProfile,
    seed: u64,
}

/// The end of the runs of a mutant.
struct Verdict {
    result: MutantResult,
    /// The oracle's message.
    message: String,
    /// The run and the oracle that killed it.
    killed: Option<(SearchAttempt, String)>,
}

/// The search for all mutants.
struct Search<'a> {
    args: &'a MutantsArgs,
    /// The joined program, and the programs of other mutants by number.
    program: PathBuf,
    others: HashMap<u32, PathBuf>,
    /// Fingerprints of these programs.
    fingerprints: HashMap<PathBuf, String>,
    log: SearchLog,
    plans: ScratchPlans,
    verdicts: Mutex<MutantResults>,
    /// All mutants that are bugs of history, wanted or not.
    shipped: Vec<ShippedBug>,
    day: String,
}

/// Runs each mutant that has no result; true if all are killed and no control is.
pub(super) fn mutants(args: &MutantsArgs) -> Result<bool> {
    let all = find(args)?;
    let wanted = |mutant: &&Mutant| {
        args.only.is_empty() || args.only.iter().any(|part| mutant.name.contains(part.as_str()))
    };
    let mutants: Vec<&Mutant> = all.iter().filter(wanted).collect();
    let unknown = |part: &&String| !all.iter().any(|mutant| mutant.name.contains(part.as_str()));
    if let Some(part) = args.only.iter().find(unknown) {
        let dir = args.dir.display();
        return Err(arguments::wrong(format!("--only {part}: no patch has such a name; see {dir}")));
    }
    let verdicts = Mutex::new(MutantResults::read(&args.verdicts)?);
    let day = output(Command::new("date").args(["-u", "+%F"]))?.trim().to_string();
    let (program, others) = programs(args, &all, &mutants)?;
    let all_programs = others.values().chain([&program]);
    let fingerprints = all_programs.map(|program| Ok((program.clone(), fingerprint(program)?)));
    let fingerprints = fingerprints.collect::<Result<_>>()?;
    let log = SearchLog::open(&args.scratch.join("runs.jsonl"))?;
    let plans = ScratchPlans::new(&args.scratch)?;
    let shipped = all.iter().filter_map(|mutant| mutant.shipped().transpose()).collect::<Result<_>>()?;
    let search = Search { args, program, others, fingerprints, log, plans, verdicts, shipped, day };
    if !args.kind.is_empty() {
        return search.kinds(&mutants);
    }
    outln!("{:<36} {:>6} {:>6} {:>8}  killed by", "mutant", "runs", "differ", "CPU s");
    let right = search.all(&mutants)?;
    let share = 100.0 * right as f64 / mutants.len() as f64;
    outln!("{right} of {} as expected: {share:.0} %", mutants.len());
    Ok(right == mutants.len())
}

impl Search<'_> {
    /// Returns the number of mutants with the expected outcome.
    fn all(&self, mutants: &[&Mutant]) -> Result<usize> {
        self.share(mutants, |mutant| Ok(self.result(mutant)?.caught.is_some() != mutant.is_control()))
    }

    /// Runs `work` for all items on as many threads as jobs are allowed; returns the number of `true` results.
    fn share<T: Sync>(&self, all: &[T], work: impl Fn(&T) -> Result<bool> + Sync) -> Result<usize> {
        let (next, right) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let work = || -> Result<()> {
            while let Some(one) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
                right.fetch_add(usize::from(work(one)?), Ordering::Relaxed);
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..self.args.jobs).map(|_| scope.spawn(work)).collect();
            let ends =
                workers.into_iter().map(|worker| worker.join().map_err(|_| anyhow!("a worker died"))?);
            ends.collect::<Result<Vec<()>>>()
        })?;
        Ok(right.into_inner())
    }

    /// Finds a mutant that each kind of fault exposes; true if there is one for each.
    fn kinds(&self, mutants: &[&Mutant]) -> Result<bool> {
        let page = Mutex::new(FaultReport::read(&self.args.kinds)?);
        let shown = self.share(&self.args.kind, |&kind| {
            let found = self.shown_by(kind, mutants)?;
            let named = found.as_ref().map(|shown| (mutants[shown.mutant].name.as_str(), shown));
            match named {
                Some((mutant, FaultFinding { oracle, run, .. })) => {
                    outln!("{:<18} {mutant:<36} {oracle} ({run})", kind.word())
                }
                None => outln!("{:<18} NONE", kind.word()),
            }
            let mut page = page.lock();
            page.keep(kind, named, &self.day)?;
            Ok(found.is_some())
        })?;
        Ok(shown == self.args.kind.len())
    }

    fn shown_by(&self, kind: FaultKind, mutants: &[&Mutant]) -> Result<Option<FaultFinding>> {
        let profile = profile_of(kind).with_context(|| format!("no profile draws {}", kind.word()))?;
        let (scratch, mut spent) = (self.plans.path(kind.word()), Duration::ZERO);
        let sizes = self.args.plans.size.iter().copied().cycle();
        let plans = (self.args.from..).zip(sizes).map(|(seed, size)| {
            let options = RunOptions { world: self.args.plans.world, profile, size };
            (format!("{} {} {seed}", profile.word(), size.word()), options.plan(seed))
        });
        let bugs: Vec<usize> = (0..mutants.len()).filter(|mutant| !mutants[*mutant].is_control()).collect();
        let found = fault_report::shown_by(kind, plans, &bugs, |plan, mutant| {
            if spent >= self.limit() {
                return Ok(None);
            }
            fs::write(&scratch, plan.to_string())?;
            let next = SearchAttempt { size: self.args.plans.size[0], profile, seed: plan.seed };
            let job = mutant.map_or_else(|| self.clean(next), |mutant| self.job(next, mutants[mutant]));
            let source =
                PlanSource { what: scratch.display().to_string(), options: job.source.options.clone() };
            let (outcome, cpu) = timed(&RunJob { source, ..job })?;
            spent += cpu;
            Ok(Some(outcome.failures.into_iter().map(|failure| failure.oracle).collect()))
        });
        let _gone = fs::remove_file(&scratch);
        found
    }

    /// Returns the stored result of a mutant, or runs it.
    fn result(&self, mutant: &Mutant) -> Result<MutantResult> {
        let enough = |known: &MutantResult| known.caught.is_some() || known.cpu >= self.limit();
        let known =
            self.verdicts.lock().get(&mutant.name).filter(|known| !self.args.again && enough(known)).cloned();
        if let Some(known) = known {
            print(mutant, &known, "");
            return Ok(known);
        }
        let Verdict { mut result, message, killed } = self.oracle(mutant)?;
        print(mutant, &result, &message);
        // Stored before the faults that it needs are known: that may take long, or be interrupted.
        self.keep(mutant, &result)?;
        let Some((attempt, oracle)) = killed.filter(|_| !self.args.no_ablation) else { return Ok(result) };
        if let Some(needs) = self.needs(attempt, mutant, &oracle)? {
            result.needs = needs;
            self.keep(mutant, &result)?;
        }
        Ok(result)
    }

    /// Stores a result, and the page of history with it.
    fn keep(&self, mutant: &Mutant, result: &MutantResult) -> Result<()> {
        let mut verdicts = self.verdicts.lock();
        verdicts.keep(&mutant.name, result.clone())?;
        history_page::write(&self.args.history, &self.shipped, |name| verdicts.get(name))
    }

    fn limit(&self) -> Duration {
        self.args.minutes
    }

    /// Runs a mutant until it is killed or the time is over.
    fn oracle(&self, mutant: &Mutant) -> Result<Verdict> {
        let mut result = MutantResult {
            caught: None,
            needs: Vec::new(),
            seeds: 0,
            differ: 0,
            cpu: Duration::ZERO,
            day: self.day.clone(),
        };
        for next in course(self.args) {
            if result.cpu >= self.limit() {
                break;
            }
            let outcome = self.logged(next, Some(mutant))?;
            let baseline = self.logged(next, None)?;
            result.seeds += 1;
            result.cpu += outcome.cpu;
            result.differ += u64::from(outcome.hash != baseline.hash);
            let in_baseline = |oracle: &String| baseline.failures.iter().any(|(other, _)| other == oracle);
            let fresh = outcome.failures.into_iter().find(|(oracle, _)| !in_baseline(oracle));
            if let Some((oracle, message)) = fresh {
                let run = format!("{} {} {}", next.profile.word(), next.size.word(), next.seed);
                result.needs = vec![UNDETERMINED.to_string()];
                result.caught = Some((oracle.clone(), run));
                return Ok(Verdict { result, message, killed: Some((next, oracle)) });
            }
        }
        Ok(Verdict { result, message: String::new(), killed: None })
    }

    /// Returns the record of a run with a mutant or without one, from the log if it was made before.
    fn logged(&self, next: SearchAttempt, mutant: Option<&Mutant>) -> Result<RunRecord> {
        let job = mutant.map_or_else(|| self.clean(next), |mutant| self.job(next, mutant));
        let program = job.program.as_ref().and_then(|program| self.fingerprints.get(program));
        let words = [self.args.plans.world.word(), next.profile.word(), next.size.word()].join(" ");
        let key = RunKey {
            program: program.context("every program has a fingerprint")?.clone(),
            mutant: job.mutant,
            run: format!("{words} {}", next.seed),
        };
        self.log.get(key, || {
            let (outcome, cpu) = timed(&job)?;
            let failures = outcome.failures.into_iter().map(|failure| (failure.oracle, failure.message));
            Ok(RunRecord { hash: outcome.hash, failures: failures.collect(), cpu })
        })
    }

    /// Returns the kinds of faults without which `oracle` reports nothing in a run where it did; none if that takes
    /// more time than allowed.
    fn needs(&self, next: SearchAttempt, mutant: &Mutant, oracle: &str) -> Result<Option<Vec<String>>> {
        let (scratch, mut spent) = (self.plans.path(&format!("needs-{}", mutant.number)), Duration::ZERO);
        let job = self.job(next, mutant);
        let found = needs(&job.source.plan()?, |plan| {
            if spent >= self.args.ablation {
                return Ok(None);
            }
            fs::write(&scratch, plan.to_string())?;
            let source =
                PlanSource { what: scratch.display().to_string(), options: job.source.options.clone() };
            let (outcome, cpu) = timed(&RunJob { source, ..job.clone() })?;
            spent += cpu;
            Ok(Some(outcome.failures.iter().any(|failure| failure.oracle == oracle)))
        });
        let _gone = fs::remove_file(&scratch);
        found
    }

    fn job(&self, next: SearchAttempt, mutant: &Mutant) -> RunJob {
        let alone = self.others.get(&mutant.number);
        RunJob {
            mutant: mutant.number,
            program: alone.cloned().or(Some(self.program.clone())),
            ..self.clean(next)
        }
    }

    fn clean(&self, next: SearchAttempt) -> RunJob {
        let options = RunOptions { world: self.args.plans.world, profile: next.profile, size: next.size };
        RunJob {
            program: Some(self.program.clone()),
            ..RunJob::new(PlanSource { what: next.seed.to_string(), options })
        }
    }
}

/// Returns all runs of a search. A round has one run of every profile in the first size, and one of the profiles in
/// turn in each other size, so that sizes get about equal time. No two runs share a seed: plans of one seed have the
/// same cluster and the same client operations, whatever their profiles.
fn course(args: &MutantsArgs) -> impl Iterator<Item = SearchAttempt> {
    let (profiles, sizes) = (&args.plans.profile, &args.plans.size);
    let rounds = (0..).flat_map(move |round: usize| {
        let small = profiles.iter().map(move |profile| (sizes[0], *profile));
        let large = sizes[1..].iter().map(move |size| (*size, profiles[round % profiles.len()]));
        small.chain(large)
    });
    (args.from..).zip(rounds).map(|(seed, (size, profile))| SearchAttempt { size, profile, seed })
}

fn print(mutant: &Mutant, result: &MutantResult, message: &str) {
    let MutantResult { caught, seeds, differ, cpu, .. } = result;
    let outcome = match caught {
        Some((oracle, run)) => {
            let message: String = message.chars().take(100).collect();
            format!("{oracle} ({run}) {message}")
        }
        None if mutant.is_control() => "survived, as expected".to_string(),
        None => "SURVIVED".to_string(),
    };
    outln!("{:<36} {seeds:>6} {differ:>6} {:>8.1}  {outcome}", mutant.name, cpu.as_secs_f64());
}

/// Returns every patch of the folder.
fn find(args: &MutantsArgs) -> Result<Vec<Mutant>> {
    let (mut paths, dir) = (Vec::new(), args.dir.display());
    if !args.dir.is_dir() {
        return Err(arguments::wrong(format!("--dir {dir}: no such folder; name a folder of patches")));
    }
    for entry in fs::read_dir(&args.dir).with_context(|| format!("listing {dir}"))? {
        let path = entry?.path();
        if path.extension().is_some_and(|ext| ext == "patch") {
            paths.push(path);
        }
    }
    if paths.is_empty() {
        return Err(arguments::wrong(format!("--dir {dir}: no patch (*.patch); name a folder of patches")));
    }
    paths.sort();
    Ok((1..).zip(paths).map(|(number, path)| Mutant::read(number, path)).collect())
}

fn output(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("starting {command:?}"))?;
    if !output.status.success() {
        bail!("{command:?} failed:\n{}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Builds the program with all patches that can be joined, and those of wanted ones that cannot.
fn programs(
    args: &MutantsArgs,
    all: &[Mutant],
    wanted: &[&Mutant],
) -> Result<(PathBuf, HashMap<u32, PathBuf>)> {
    let (root, tree) = (Path::new("."), args.scratch.join("tree"));
    let patches: Vec<(u32, &Path)> =
        all.iter().map(|mutant| (mutant.number, mutant.path.as_path())).collect();
    let alone = join(root, &args.scratch.join("plain"), &tree, &patches)?;
    let program = build(args, &tree, "all").context("building the patched tree")?;
    let mut others = HashMap::new();
    for mutant in wanted.iter().filter(|mutant| alone.contains(&mutant.number)) {
        copy_tree(root, &tree)?;
        apply(&tree, &mutant.path)?;
        let built = build(args, &tree, &mutant.name).with_context(|| format!("building {}", mutant.name))?;
        others.insert(mutant.number, built);
    }
    Ok((program, others))
}

/// Builds the program of the patched tree under its own name.
fn build(args: &MutantsArgs, tree: &Path, name: &str) -> Result<PathBuf> {
    let scratch = std::env::current_dir()?.join(&args.scratch);
    let target = scratch.join("target");
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(tree).env("CARGO_TARGET_DIR", &target);
    command.args(["build", "--quiet", "--package", "sim", "--profile", &args.build]);
    if args.plans.world != WorldKind::Turmoil {
        command.args(["--config", "build.rustflags=['--cfg','madsim']"]);
    }
    output(command.stdin(Stdio::null()))?;
    let folder = if args.build == "dev" { "debug" } else { &args.build };
    let named = scratch.join(format!("sim-{name}"));
    fs::copy(target.join(folder).join("sim"), &named).context("keeping the program")?;
    Ok(named)
}

/// Returns the outcome of a run and its CPU time; for a run that died, the elapsed time.
fn timed(job: &RunJob) -> Result<(RunOutcome, Duration)> {
    let (begun, mut tries) = (Instant::now(), 1);
    let outcome = loop {
        match job.outcome() {
            // An operator may have killed it.
            Err(_) if tries < TRIES => tries += 1,
            outcome => break outcome?,
        }
    };
    let cpu = match outcome.cpu_ms {
        0 => begun.elapsed(),
        ms => Duration::from_millis(ms),
    };
    Ok((outcome, cpu))
}
