//! `cargo ci spec`: the models of `spec`, the specs broken on purpose, and the code's traces against them.
//!
//! Every model must hold, every mutant must be rejected by the property named for it, and every trace must be one
//! that the spec allows. TLC does the work; here it is fetched, fed and read.

mod directed;
mod model;
mod mutant;
mod planted;
mod replay;
mod report;
#[path = "../../../sim/src/cli/scratch.rs"]
mod scratch;
mod tla;
mod tlc;
mod trace;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::command::Run;
use crate::steps::Steps;
use model::{Model, Size};
use mutant::Mutant;
use replay::{Refusal, replay};
use report::{ModelRow, MutantRow};
use tlc::{Outcome, Tlc, Verdict, Walk};
use trace::{ACTIONS, TraceFile};

/// Steps of one random behaviour in the deep models.
const WALK_DEPTH: u32 = 120;

/// Events that a seed should have, to be worth its while.
const SEED_EVENTS: usize = 500;

/// Refused traces of one run that are told of.
const REFUSALS_TOLD: usize = 6;

/// Steps of one storm: about 600 events.
const STORM_STEPS: u64 = 12_000;

/// What to check; without a choice the smoke and the full models, and the traces kept in `spec/traces`.
#[derive(clap::Args)]
pub struct Options {
    /// Only the small models and the traces kept in spec/traces
    #[arg(long)]
    smoke: bool,
    /// The specs broken on purpose: each must be rejected by the property named for it
    #[arg(long)]
    mutants: bool,
    /// Random behaviours of the deep models
    #[arg(long)]
    deep: bool,
    /// How long the deep models walk, together
    #[arg(long, default_value_t = 10)]
    minutes: u64,
    /// Traces of this many seeds of the simulator, faults on
    #[arg(long, value_name = "N")]
    traces: Option<u64>,
    /// With --traces: which faults, as `cargo sim run --profile` has them
    #[arg(long, default_value = "swarm")]
    profile: String,
    /// With --traces: how large the runs are, as `cargo sim run --size` has it
    #[arg(long, default_value = "full")]
    size: String,
    /// Traces of this many seeds of the lockstep groups, faults on
    #[arg(long, value_name = "N")]
    storms: Option<u64>,
    /// Drives the code along behaviours of the models, and counterexamples of the specs broken on purpose
    #[arg(long)]
    directed: bool,
    /// With --directed: random behaviours of each model
    #[arg(long, default_value_t = 25)]
    walks: u64,
    /// Planted bugs of sim/mutants: the traces of storms must give them away
    #[arg(long)]
    planted: bool,
    /// The trace files in this folder, or this one
    #[arg(long, value_name = "PATH")]
    trace_files: Option<PathBuf>,
    /// With --mutants, --directed and --planted: only what has this in the name of its model, guard, property or file
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// TLC's threads
    #[arg(long, default_value_t = 2)]
    workers: u32,
    /// The first seed of --traces, --storms and --deep
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Writes what was measured into the tables of spec/README.md
    #[arg(long)]
    write: bool,
}

impl Options {
    fn chooses(&self) -> bool {
        let traces = self.traces.is_some() || self.storms.is_some() || self.trace_files.is_some();
        self.smoke || self.mutants || self.deep || self.directed || self.planted || traces
    }
}

/// What every pull request needs.
pub fn smoke(root: &Path, steps: &mut Steps) {
    steps.run("spec", || {
        let tlc = Tlc::fetch(root, 2)?;
        models(root, &tlc, Size::Smoke).map(|_| ())?;
        kept_traces(root, &tlc)
    });
}

pub fn run(root: &Path, options: &Options, steps: &mut Steps) {
    let tlc = match Tlc::fetch(root, options.workers) {
        Ok(tlc) => tlc,
        Err(error) => return steps.run("TLC", || Err(error)),
    };
    if options.smoke || !options.chooses() {
        let sizes = if options.smoke { vec![Size::Smoke] } else { vec![Size::Smoke, Size::Full] };
        steps.run("models", || {
            let rows =
                sizes.iter().map(|size| models(root, &tlc, *size)).collect::<Result<Vec<_>>>()?.concat();
            if options.write { report::write(root, "models", &report::models(&rows)) } else { Ok(()) }
        });
        steps.run("traces", || kept_traces(root, &tlc));
    }
    if options.mutants {
        steps.run("mutants", || {
            let rows = mutants(root, &tlc, options.only.as_deref())?;
            if options.write { report::write(root, "mutants", &report::mutants(&rows)) } else { Ok(()) }
        });
    }
    if options.deep {
        steps.run("deep", || deep(root, &tlc, options));
    }
    if options.directed {
        let (seed, walks, only) = (options.seed, options.walks, options.only.as_deref());
        steps.run("directed", || directed::run(root, &tlc, seed, walks, only, options.write));
    }
    if options.planted {
        let only = options.only.as_deref();
        steps.run("planted", || planted::run(root, &tlc, only, STORM_STEPS, options.write));
    }
    if let Some(count) = options.traces {
        steps.run("traces", || sim_traces(root, &tlc, options, count));
    }
    if let Some(count) = options.storms {
        steps.run("storms", || lockstep_traces(root, &tlc, options.seed, count));
    }
    if let Some(path) = &options.trace_files {
        steps.run("traces", || trace_files(root, &tlc, path));
    }
}

/// Checks the models of one size; the first that does not hold is the error.
fn models(root: &Path, tlc: &Tlc, size: Size) -> Result<Vec<ModelRow>> {
    let all = Model::all(&root.join("spec"))?;
    let listed = Mutant::parse_all(&fs::read_to_string(root.join("spec/mutants.txt"))?)?;
    mutant::every_property_bites(&all, &listed)?;
    let mut rows = Vec::new();
    for model in all.iter().filter(|model| model.size == size) {
        let run = tlc.folder(&root.join("spec"), &model.name)?;
        let outcome = tlc.check(&run, &model.module, model.config())?;
        ensure!(outcome.verdict == Verdict::Holds, "{} does not hold: {}", model.name, complaint(&outcome));
        let row = ModelRow { model: model.clone(), outcome };
        println!("{}", row.line());
        rows.push(row);
    }
    Ok(rows)
}

/// The verdict, and the behaviour that led to it.
fn complaint(outcome: &Outcome) -> String {
    let behaviour = outcome.output.find("Error: The behavior up to this point is:");
    format!("{:?}\n{}", outcome.verdict, behaviour.map_or("", |at| &outcome.output[at..]))
}

fn mutants(root: &Path, tlc: &Tlc, only: Option<&str>) -> Result<Vec<MutantRow>> {
    let spec = root.join("spec");
    let models = Model::all(&spec)?;
    let mutants = Mutant::parse_all(&fs::read_to_string(spec.join("mutants.txt"))?)?;
    mutant::every_property_bites(&models, &mutants)?;
    let mut rows = Vec::new();
    let mut survived = Vec::new();
    for mutant in mutants.into_iter().filter(|mutant| only.is_none_or(|text| mutant.is_about(text))) {
        let (module, config) = mutant.config(&models)?;
        let run = tlc.folder(&spec, &format!("{}-{}-{}", mutant.model, mutant.guard, mutant.property))?;
        let outcome = tlc.check(&run, &module, &config)?;
        let rejected = match &outcome.verdict {
            Verdict::Violated(name) => name.is_empty() || *name == mutant.property,
            Verdict::Broken(error) => bail!("{} without {}: {error}", mutant.model, mutant.guard),
            Verdict::Holds | Verdict::OutOfTime => false,
        };
        if !rejected {
            survived.push(format!("{} without {} keeps {}", mutant.model, mutant.guard, mutant.property));
        }
        let row = MutantRow { mutant, outcome, rejected };
        println!("{}", row.line());
        rows.push(row);
    }
    ensure!(survived.is_empty(), "not rejected: {}", survived.join("; "));
    Ok(rows)
}

/// Walks each deep model for its share of the time.
fn deep(root: &Path, tlc: &Tlc, options: &Options) -> Result<()> {
    let models = Model::all(&root.join("spec"))?;
    let deep: Vec<&Model> = models.iter().filter(|model| model.size == Size::Deep).collect();
    let share = Duration::from_secs(options.minutes * 60) / u32::try_from(deep.len().max(1))?;
    for model in deep {
        let run = tlc.folder(&root.join("spec"), &model.name)?;
        let (seed, behaviours) = (options.seed, i32::MAX as u64);
        let walk = Walk { depth: WALK_DEPTH, seed, behaviours, keep: false, time: share };
        let outcome = tlc.simulate(&run, &model.module, model.config(), &walk)?;
        match outcome.verdict {
            Verdict::OutOfTime | Verdict::Holds => {
                println!("{}: seed {}, {}", model.name, options.seed, report::walked(&outcome));
            }
            _ => bail!("{}, seed {}: {}", model.name, options.seed, complaint(&outcome)),
        }
    }
    Ok(())
}

/// The traces of `spec/traces`: `good` ones must be followed, `bad` ones refused for the reason that they give.
fn kept_traces(root: &Path, tlc: &Tlc) -> Result<()> {
    let good = read_traces(&root.join("spec/traces/good"))?;
    let bad = read_traces(&root.join("spec/traces/bad"))?;
    let wanted = expected(&root.join("spec/traces/bad"))?;
    let all: Vec<TraceFile> = good.iter().chain(&bad).cloned().collect();
    let refused = replay(root, tlc, &all)?;
    for refusal in &refused {
        if good.iter().any(|trace| trace.name == refusal.trace) {
            bail!("{}", refusal.reason);
        }
    }
    for (name, reason) in wanted {
        let refusal = refused.iter().find(|refusal| refusal.trace == name);
        let refusal = refusal.with_context(|| format!("{name}: the spec allows it, and should not"))?;
        ensure!(refusal.reason.contains(&reason), "{name}: not refused for {reason:?}:\n{}", refusal.reason);
    }
    println!("{} good traces followed, {} bad ones refused", good.len(), bad.len());
    Ok(())
}

/// Each bad trace's name and its line `# refused: words`.
fn expected(dir: &Path) -> Result<Vec<(String, String)>> {
    let mut found = Vec::new();
    for path in files(dir)? {
        let text = fs::read_to_string(&path)?;
        let reason = text.lines().find_map(|line| line.strip_prefix("# refused: "));
        let reason = reason.with_context(|| format!("{}: no line `# refused: words`", path.display()))?;
        found.push((name(&path), reason.to_owned()));
    }
    Ok(found)
}

/// Lets the simulator run, and checks the traces that it wrote. What its own judges say is not asked here.
fn sim_traces(root: &Path, tlc: &Tlc, options: &Options, count: u64) -> Result<()> {
    let dir = root.join("target/spec/traces");
    if dir.exists() {
        fs::remove_dir_all(&dir)?;
    }
    fs::create_dir_all(&dir)?;
    let seeds = format!("{}..{}", options.seed, options.seed + count);
    let words = ["sim", "run", "--seeds", &seeds, "--profile", &options.profile, "--size", &options.size];
    let jobs = options.workers.to_string();
    let start = Instant::now();
    let said = Run::cargo(root).args(words).args(["--jobs", &jobs, "--trace"]).args([&dir]).output()?;
    let left_out = remove_unmade(&dir)?;
    println!("{left_out} traces left out: a crash cut the creation of their tablets off");
    let traces = read_traces(&dir)?;
    ensure!(!traces.is_empty(), "cargo {} wrote no traces: {}", words.join(" "), said.stderr);
    println!("{count} seeds run in {:.0} s", start.elapsed().as_secs_f64());
    let seed = |trace: &TraceFile| trace.name.rsplit_once('-').map(|(run, _)| run.to_owned());
    let mut events: BTreeMap<Option<String>, usize> = BTreeMap::new();
    for trace in &traces {
        *events.entry(seed(trace)).or_default() += trace.events.len();
    }
    let small = events.values().filter(|events| **events < SEED_EVENTS).count();
    let origin = format!(
        "`cargo ci spec --traces {count} --seed {} --profile {} --size {}`: {small} of {} seeds have less than \
         {SEED_EVENTS} events",
        options.seed,
        options.profile,
        options.size,
        events.len()
    );
    println!("{origin}");
    judge(root, tlc, &traces, options.write.then_some(origin.as_str()))
}

/// Removes the traces that begin with a restart and never tell the first configuration: the power went before anybody
/// was told that the tablet is there. How many they were.
fn remove_unmade(dir: &Path) -> Result<usize> {
    let mut removed = 0;
    for path in files(dir)? {
        let text = fs::read_to_string(&path)?;
        let mut actions = text.lines().filter_map(|line| line.split(' ').nth(2));
        if trace::begins_with(&text, "Restart") && !actions.any(|action| action == "Create") {
            fs::remove_file(&path)?;
            removed += 1;
        }
    }
    Ok(removed)
}

/// Lets groups of Raft cores run through storms and checks their traces.
fn lockstep_traces(root: &Path, tlc: &Tlc, first: u64, count: u64) -> Result<()> {
    Run::cargo(root).args(["build", "--quiet", "--package", "engine", "--example", "raft_trace"]).run()?;
    let example = example("raft_trace")?;
    let mut traces = Vec::new();
    for seed in first..first + count {
        let words = [seed.to_string(), STORM_STEPS.to_string()];
        let said = Run::new(&example).args(words).output()?;
        ensure!(said.success, "raft_trace, seed {seed}: {}", said.stderr);
        traces.push(TraceFile::parse(&format!("seed {seed}"), &said.stdout)?);
    }
    judge(root, tlc, &traces, None)
}

/// Where cargo puts an example: beside this program, which the same cargo built.
fn example(name: &str) -> Result<PathBuf> {
    Ok(std::env::current_exe()?.with_file_name("examples").join(name))
}

fn trace_files(root: &Path, tlc: &Tlc, path: &Path) -> Result<()> {
    let traces = read_traces(path)?;
    ensure!(!traces.is_empty(), "no *.trace in {}", path.display());
    judge(root, tlc, &traces, None)
}

/// All traces must be followed; says which actions they took. `write`: where they come from, for the table, in which
/// every action must have been seen.
fn judge(root: &Path, tlc: &Tlc, traces: &[TraceFile], write: Option<&str>) -> Result<()> {
    let (start, before_cpu) = (Instant::now(), tlc::children_cpu());
    let refused: Vec<Refusal> = replay(root, tlc, traces)?;
    let cpu = tlc::children_cpu().zip(before_cpu).map(|(after, before)| after - before);
    let events: usize = traces.iter().map(|trace| trace.events.len()).sum();
    let counts = counts(traces);
    println!("{}", report::counts_line(&counts));
    let sum = report::traces_line(traces.len(), events, refused.len(), start.elapsed(), cpu);
    println!("{sum}");
    if let Some(origin) = write {
        report::write(root, "traces", &report::counts(&counts, &format!("{origin}; {sum}")))?;
        let unseen = report::unseen(&counts);
        ensure!(unseen.is_empty(), "actions in no trace: {}", unseen.join(" "));
    }
    if refused.is_empty() {
        return Ok(());
    }
    let told: Vec<&str> = refused.iter().take(REFUSALS_TOLD).map(|refusal| refusal.reason.as_str()).collect();
    bail!("{} of {} traces refused; the first:\n{}", refused.len(), traces.len(), told.join("\n"))
}

/// How often each action was taken, in the order of the list.
fn counts(traces: &[TraceFile]) -> Vec<(&'static str, usize)> {
    let mut counts: Vec<(&str, usize)> = ACTIONS.iter().map(|action| (action.name, 0)).collect();
    for event in traces.iter().flat_map(|trace| &trace.events) {
        if let Some(count) = counts.iter_mut().find(|(name, _)| *name == event.action.name) {
            count.1 += 1;
        }
    }
    counts
}

fn read_traces(path: &Path) -> Result<Vec<TraceFile>> {
    let mut traces = Vec::new();
    for path in files(path)? {
        let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        traces.push(TraceFile::parse(&name(&path), &text)?);
    }
    Ok(traces)
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// `path` itself, or the trace files in it, sorted.
fn files(path: &Path) -> Result<Vec<PathBuf>> {
    if path.is_file() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = Vec::new();
    for entry in fs::read_dir(path).with_context(|| format!("reading {}", path.display()))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "trace") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}
