//! Planted bugs: how soon each is caught, and by which judge.
//!
//! All patches of a folder are built into one program ([`super::schema`]), those that cannot be joined into one each,
//! and each is run until a judge objects. A run that fails without the patch too proves nothing and is passed over.
//! Controls, whose patches change nothing that matters, must stay clean.
//!
//! Every patch has the same runs ([`course`]), as if nobody knew what it is about. What became of each is kept in a
//! page as soon as it is known ([`super::verdicts`]), so that a search that was broken off goes on where it ended.
//!
//! ```text
//! # What the bug is.              the first lines of a patch
//! # Caught by: durability         which judges should notice
//! # Profile: crash                the faults it needs
//! ```

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::Args;

use super::child::Job;
use super::kinds::{self, Page, Shown};
use super::needs::needs;
use super::schema::join;
use super::scratch::{apply, copy_tree};
use super::verdicts::{Verdict, Verdicts};
use super::{How, Which};
use crate::plan::kinds::profile_of;
use crate::plan::{Profile, Size};
use crate::run::{Outcome, WorldKind};

#[derive(Args)]
pub struct MutantsArgs {
    /// Only patches whose names contain one of these, with commas between
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// The folder of patches
    #[arg(long, default_value = "sim/mutants")]
    dir: PathBuf,
    /// The first seed
    #[arg(long, default_value_t = 1)]
    from: u64,
    /// CPU minutes that one mutant may take
    #[arg(long, default_value_t = 10.0)]
    minutes: f64,
    /// Mutants that are tried at the same time
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    /// Where the scratch copy and its target directory are
    #[arg(long, default_value = "target/mutants")]
    scratch: PathBuf,
    /// The page of verdicts
    #[arg(long, default_value = "sim/MUTANTS.md")]
    verdicts: PathBuf,
    /// Look for a bug that each of these kinds of faults shows, with commas between; none is judged otherwise
    #[arg(long, value_delimiter = ',')]
    kind: Vec<String>,
    /// The page of what kinds of faults show
    #[arg(long, default_value = "sim/FAULTS.md")]
    kinds: PathBuf,
    /// Judge again what was caught already, or missed with as much time
    #[arg(long)]
    again: bool,
    /// The profile that mutants are built with
    #[arg(long, default_value = "mutant")]
    build: String,
    #[arg(long, default_value = "madsim", value_parser = super::parse_field::<WorldKind>)]
    world: WorldKind,
    /// Profiles of plans, in turn, with commas between
    #[arg(long, value_delimiter = ',', value_parser = super::parse_field::<Profile>,
          default_value = "swarm,crash,disk,network,copy,memory,clock,calm")]
    profile: Vec<Profile>,
    /// Sizes of plans, with commas between
    #[arg(long, default_value = "smoke,full", value_delimiter = ',',
          value_parser = super::parse_field::<Size>)]
    size: Vec<Size>,
}

/// One planted bug.
struct Mutant {
    name: String,
    path: PathBuf,
    /// Which of those in the program.
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
}

/// One run of a search.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Try {
    size: Size,
    profile: Profile,
    seed: u64,
}

/// What a run comes to without any bug.
struct Plain {
    hash: String,
    judges: Vec<String>,
}

/// The search for one mutant after the other.
struct Search<'a> {
    args: &'a MutantsArgs,
    /// The program with all that could be joined, and those of others by their numbers.
    program: PathBuf,
    others: HashMap<u32, PathBuf>,
    plain: Mutex<HashMap<Try, Arc<OnceLock<Plain>>>>,
    verdicts: Mutex<Verdicts>,
    day: String,
}

/// Tries each patch that has no verdict; true if all are caught and no control is.
pub fn mutants(args: &MutantsArgs) -> Result<bool> {
    let all = find(args)?;
    let wanted = |mutant: &&Mutant| {
        args.only.is_empty() || args.only.iter().any(|part| mutant.name.contains(part.as_str()))
    };
    let mutants: Vec<&Mutant> = all.iter().filter(wanted).collect();
    ensure!(!mutants.is_empty(), "no patch in {} has such a name", args.dir.display());
    let verdicts = Mutex::new(Verdicts::read(&args.verdicts)?);
    let day = output(Command::new("date").args(["-u", "+%F"]))?.trim().to_string();
    let (program, others) = programs(args, &all, &mutants)?;
    let search = Search { args, program, others, plain: Mutex::default(), verdicts, day };
    if !args.kind.is_empty() {
        return search.kinds(&mutants);
    }
    println!("{:<36} {:>6} {:>6} {:>8}  caught by", "mutant", "runs", "differ", "CPU s");
    let right = search.all(&mutants)?;
    let share = 100.0 * right as f64 / mutants.len() as f64;
    println!("{right} of {} as they should be: {share:.0} %", mutants.len());
    Ok(right == mutants.len())
}

impl Search<'_> {
    /// How many are as they should be.
    fn all(&self, mutants: &[&Mutant]) -> Result<usize> {
        self.share(mutants, |mutant| Ok(self.verdict(mutant)?.caught.is_some() != mutant.is_control()))
    }

    /// Lets as many as may work at a time do what is to be done; how often it came to `true`.
    fn share<T: Sync>(&self, all: &[T], work: impl Fn(&T) -> Result<bool> + Sync) -> Result<usize> {
        let (next, right) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let work = || -> Result<()> {
            while let Some(one) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
                right.fetch_add(usize::from(work(one)?), Ordering::Relaxed);
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..self.args.jobs.max(1)).map(|_| scope.spawn(work)).collect();
            let ends =
                workers.into_iter().map(|worker| worker.join().map_err(|_| anyhow!("a worker died"))?);
            ends.collect::<Result<Vec<()>>>()
        })?;
        Ok(right.into_inner())
    }

    /// Looks for a bug that each kind of fault shows; true if there is one for each.
    fn kinds(&self, mutants: &[&Mutant]) -> Result<bool> {
        let page = Mutex::new(Page::read(&self.args.kinds)?);
        let shown = self.share(&self.args.kind, |kind| {
            let found = self.shown_by(kind, mutants)?;
            let named = found.as_ref().map(|shown| (mutants[shown.bug].name.as_str(), shown));
            match named {
                Some((bug, Shown { judge, run, .. })) => println!("{kind:<18} {bug:<36} {judge} ({run})"),
                None => println!("{kind:<18} NONE"),
            }
            let mut page = page.lock().map_err(|_| anyhow!("another worker died"))?;
            page.keep(kind, named, &self.day)?;
            Ok(found.is_some())
        })?;
        Ok(shown == self.args.kind.len())
    }

    fn shown_by(&self, kind: &str, mutants: &[&Mutant]) -> Result<Option<Shown>> {
        let profile = profile_of(kind).with_context(|| format!("no fault is called {kind:?}"))?;
        let (scratch, mut spent) = (self.args.scratch.join(format!("{kind}.plan")), Duration::ZERO);
        let sizes = self.args.size.iter().copied().cycle();
        let plans = (self.args.from..).zip(sizes).map(|(seed, size)| {
            let how = How { world: self.args.world, profile, size };
            (format!("{} {} {seed}", profile.word(), size.word()), how.plan(seed))
        });
        let bugs: Vec<usize> = (0..mutants.len()).filter(|bug| !mutants[*bug].is_control()).collect();
        let found = kinds::shown_by(kind, plans, &bugs, |plan, bug| {
            if spent >= self.limit() {
                return Ok(None);
            }
            fs::write(&scratch, plan.to_string())?;
            let next = Try { size: self.args.size[0], profile, seed: plan.seed };
            let job = bug.map_or_else(|| self.clean(next), |bug| self.job(next, mutants[bug]));
            let which = Which { what: scratch.display().to_string(), how: job.which.how.clone() };
            let (outcome, cpu) = timed(&Job { which, ..job })?;
            spent += cpu;
            Ok(Some(outcome.failures.into_iter().map(|failure| failure.oracle).collect()))
        });
        let _gone = fs::remove_file(&scratch);
        found
    }

    /// What is known of it, or what comes of trying.
    fn verdict(&self, mutant: &Mutant) -> Result<Verdict> {
        let enough = |known: &Verdict| known.caught.is_some() || known.cpu >= self.limit();
        let known = self.lock()?.get(&mutant.name).filter(|known| !self.args.again && enough(known)).cloned();
        if let Some(known) = known {
            print(mutant, &known, "");
            return Ok(known);
        }
        let (verdict, said) = self.judge(mutant)?;
        print(mutant, &verdict, &said);
        self.lock()?.keep(&mutant.name, verdict.clone())?;
        Ok(verdict)
    }

    fn lock(&self) -> Result<std::sync::MutexGuard<'_, Verdicts>> {
        self.verdicts.lock().map_err(|_| anyhow!("another worker died"))
    }

    fn limit(&self) -> Duration {
        Duration::from_secs_f64(self.args.minutes * 60.0)
    }

    /// The verdict, and what the judge said.
    fn judge(&self, mutant: &Mutant) -> Result<(Verdict, String)> {
        let mut verdict = Verdict {
            caught: None,
            needs: Vec::new(),
            seeds: 0,
            differ: 0,
            cpu: Duration::ZERO,
            day: self.day.clone(),
        };
        for next in course(self.args) {
            if verdict.cpu >= self.limit() {
                break;
            }
            let (outcome, cpu) = timed(&self.job(next, mutant))?;
            let plain = self.plain(next)?;
            let plain = plain.get().context("it was run")?;
            verdict.seeds += 1;
            verdict.cpu += cpu;
            verdict.differ += u64::from(outcome.hash != plain.hash);
            let fresh = outcome.failures.into_iter().find(|failure| !plain.judges.contains(&failure.oracle));
            if let Some(failure) = fresh {
                let run = format!("{} {} {}", next.profile.word(), next.size.word(), next.seed);
                verdict.needs = self.needs(next, mutant, &failure.oracle)?;
                verdict.caught = Some((failure.oracle, run));
                return Ok((verdict, failure.message));
            }
        }
        Ok((verdict, String::new()))
    }

    /// Kinds of faults without which `judge` is silent in a run that it objected to.
    fn needs(&self, next: Try, mutant: &Mutant, judge: &str) -> Result<Vec<String>> {
        let scratch = self.args.scratch.join(format!("needs-{}.plan", mutant.number));
        let job = self.job(next, mutant);
        let found = needs(&job.which.plan()?, |plan| {
            fs::write(&scratch, plan.to_string())?;
            let which = Which { what: scratch.display().to_string(), how: job.which.how.clone() };
            let outcome = Job { which, ..job.clone() }.run()?;
            Ok(outcome.failures.iter().any(|failure| failure.oracle == judge))
        });
        let _gone = fs::remove_file(&scratch);
        found
    }

    fn job(&self, next: Try, mutant: &Mutant) -> Job {
        let alone = self.others.get(&mutant.number);
        Job {
            planted: mutant.number,
            program: alone.cloned().or(Some(self.program.clone())),
            ..self.clean(next)
        }
    }

    fn clean(&self, next: Try) -> Job {
        let how = How { world: self.args.world, profile: next.profile, size: next.size };
        Job { program: Some(self.program.clone()), ..Job::new(Which { what: next.seed.to_string(), how }) }
    }

    /// The run without any bug; all mutants share it.
    fn plain(&self, next: Try) -> Result<Arc<OnceLock<Plain>>> {
        let mut all = self.plain.lock().map_err(|_| anyhow!("another worker died"))?;
        let plain = all.entry(next).or_default().clone();
        drop(all);
        if plain.get().is_none() {
            let outcome = self.clean(next).run()?;
            let judges = outcome.failures.into_iter().map(|failure| failure.oracle).collect();
            // Another worker may have been faster.
            let _same = plain.set(Plain { hash: outcome.hash, judges });
        }
        Ok(plain)
    }
}

/// All runs of a search: a round has one run of every profile in the first size, and in each other size one of the
/// profiles in turn, so that sizes have about as much of the time. No two runs have the same seed: the plans of one
/// seed have the same cluster and the same work, whatever their profiles.
fn course(args: &MutantsArgs) -> impl Iterator<Item = Try> {
    let (profiles, sizes) = (&args.profile, &args.size);
    let rounds = (0..).flat_map(move |round: usize| {
        let small = profiles.iter().map(move |profile| (sizes[0], *profile));
        let large = sizes[1..].iter().map(move |size| (*size, profiles[round % profiles.len()]));
        small.chain(large)
    });
    (args.from..).zip(rounds).map(|(seed, (size, profile))| Try { size, profile, seed })
}

fn print(mutant: &Mutant, verdict: &Verdict, said: &str) {
    let Verdict { caught, seeds, differ, cpu, .. } = verdict;
    let who = match caught {
        Some((judge, run)) => {
            let said: String = said.chars().take(100).collect();
            format!("{judge} ({run}) {said}")
        }
        None if mutant.is_control() => "nobody, as it should be".to_string(),
        None => "NOBODY".to_string(),
    };
    println!("{:<36} {seeds:>6} {differ:>6} {:>8.1}  {who}", mutant.name, cpu.as_secs_f64());
}

/// Every patch of the folder.
fn find(args: &MutantsArgs) -> Result<Vec<Mutant>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(&args.dir).with_context(|| format!("listing {}", args.dir.display()))? {
        let path = entry?.path();
        if path.extension().is_some_and(|ext| ext == "patch") {
            paths.push(path);
        }
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

/// The program with all patches that can be joined, and those of wanted ones that cannot.
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

/// The program of the patched tree, under a name of its own.
fn build(args: &MutantsArgs, tree: &Path, name: &str) -> Result<PathBuf> {
    let scratch = std::env::current_dir()?.join(&args.scratch);
    let target = scratch.join("target");
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(tree).env("CARGO_TARGET_DIR", &target);
    command.args(["build", "--quiet", "--package", "sim", "--profile", &args.build]);
    if args.world == WorldKind::Madsim {
        command.args(["--config", "build.rustflags=['--cfg','madsim']"]);
    }
    output(command.stdin(Stdio::null()))?;
    let folder = if args.build == "dev" { "debug" } else { &args.build };
    let named = scratch.join(format!("sim-{name}"));
    fs::copy(target.join(folder).join("sim"), &named).context("keeping the program")?;
    Ok(named)
}

/// The outcome, and the CPU time that it took; of a run that died, the time that it took.
fn timed(job: &Job) -> Result<(Outcome, Duration)> {
    let begun = Instant::now();
    let outcome = job.run()?;
    let cpu = match outcome.cpu_ms {
        0 => begun.elapsed(),
        ms => Duration::from_millis(ms),
    };
    Ok((outcome, cpu))
}
