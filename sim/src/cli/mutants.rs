//! Planted bugs: how soon each is caught, and by which judge.
//!
//! Each patch of a folder is applied to a scratch copy, built there, and run seed after seed until a judge objects. A
//! seed that fails without the patch too proves nothing and is passed over. Controls, whose patches change nothing
//! that matters, must stay clean.
//!
//! What became of each is kept in a file as soon as it is known, so that a run that was broken off goes on where it
//! ended ([`super::verdicts`]). All patches share one target directory, whose builds only see what differs from the
//! last, and the profile `mutant`, which compiles faster than it runs: most bugs are caught by the first few seeds.
//!
//! ```text
//! # What the bug is.              the first lines of a patch
//! # Caught by: durability         which judges should notice
//! # Profile: crash                the faults it needs; swarm if it does not say
//! ```

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use super::child::Job;
use super::scratch::{apply, copy_tree};
use super::verdicts::{Verdict, Verdicts};
use super::{How, Which, parse_range};
use crate::plan::record::Field;
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
    /// Seeds to try in each size, FROM..TO, the end not included
    #[arg(long, default_value = "1..201")]
    seeds: String,
    /// CPU minutes that one mutant may take
    #[arg(long, default_value_t = 10.0)]
    minutes: f64,
    /// Where the scratch copy and its target directory are
    #[arg(long, default_value = "target/mutants")]
    scratch: PathBuf,
    /// Where verdicts are kept [default: verdicts.tsv in the scratch directory]
    #[arg(long)]
    verdicts: Option<PathBuf>,
    /// Judge again what has a verdict already
    #[arg(long)]
    again: bool,
    /// The profile that mutants are built with
    #[arg(long, default_value = "mutant")]
    build: String,
    #[arg(long, default_value = "madsim", value_parser = super::parse_field::<WorldKind>)]
    world: WorldKind,
    /// Sizes of plans, one after the other, with commas between
    #[arg(long, default_value = "smoke,full", value_delimiter = ',',
          value_parser = super::parse_field::<Size>)]
    size: Vec<Size>,
}

/// One planted bug.
struct Mutant {
    name: String,
    path: PathBuf,
    profile: Profile,
}

impl Mutant {
    fn read(path: &Path) -> Result<Mutant> {
        let text = fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
        let name = path.file_stem().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let word = text.lines().find_map(|line| line.strip_prefix("# Profile: ")).unwrap_or("swarm");
        let profile = Profile::parse(word.trim()).with_context(|| format!("{name}: no profile {word:?}"))?;
        Ok(Mutant { name, path: path.to_path_buf(), profile })
    }

    fn is_control(&self) -> bool {
        self.name.contains("control")
    }
}

/// Builds and runs each patch that has no verdict; true if all are caught and no control is.
pub fn mutants(args: &MutantsArgs) -> Result<bool> {
    let mutants = find(args)?;
    let path = args.verdicts.clone().unwrap_or_else(|| args.scratch.join("verdicts.tsv"));
    let mut verdicts = Verdicts::read(&path)?;
    let tree = args.scratch.join("tree");
    println!("{:<36} {:>6} {:>8}  caught by", "mutant", "seeds", "CPU s");
    let mut right = 0;
    for mutant in &mutants {
        let known = verdicts.get(&mutant.name).filter(|_| !args.again).cloned();
        let verdict = match known {
            Some(verdict) => verdict,
            None => {
                copy_tree(Path::new("."), &tree)?;
                apply(&tree, &mutant.path)?;
                let program = build(args, &tree).with_context(|| format!("building {}", mutant.name))?;
                let verdict = judge(args, mutant, &program)?;
                verdicts.keep(&mutant.name, verdict.clone())?;
                verdict
            }
        };
        right += usize::from(verdict.caught.is_some() != mutant.is_control());
        print(mutant, &verdict);
    }
    let share = 100.0 * right as f64 / mutants.len().max(1) as f64;
    println!("{right} of {} as they should be: {share:.0} %", mutants.len());
    Ok(right == mutants.len())
}

fn print(mutant: &Mutant, verdict: &Verdict) {
    let Verdict { caught, seeds, cpu } = verdict;
    let said = match caught {
        Some((judge, what)) => {
            let what: String = what.chars().take(100).collect();
            format!("{judge}: {what}")
        }
        None if mutant.is_control() => "nobody, as it should be".to_string(),
        None => "NOBODY".to_string(),
    };
    println!("{:<36} {seeds:>6} {:>8.1}  {said}", mutant.name, cpu.as_secs_f64());
}

fn find(args: &MutantsArgs) -> Result<Vec<Mutant>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(&args.dir).with_context(|| format!("listing {}", args.dir.display()))? {
        let path = entry?.path();
        if path.extension().is_some_and(|ext| ext == "patch") {
            paths.push(path);
        }
    }
    paths.sort();
    let mutants = paths.iter().map(|path| Mutant::read(path)).collect::<Result<Vec<_>>>()?;
    let wanted = |mutant: &Mutant| {
        args.only.is_empty() || args.only.iter().any(|part| mutant.name.contains(part.as_str()))
    };
    let mutants: Vec<Mutant> = mutants.into_iter().filter(wanted).collect();
    ensure!(!mutants.is_empty(), "no patch in {} has such a name", args.dir.display());
    Ok(mutants)
}

fn output(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("starting {command:?}"))?;
    if !output.status.success() {
        bail!("{command:?} failed:\n{}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The program of the patched tree.
fn build(args: &MutantsArgs, tree: &Path) -> Result<PathBuf> {
    let target = std::env::current_dir()?.join(&args.scratch).join("target");
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(tree).env("CARGO_TARGET_DIR", &target);
    command.args(["build", "--quiet", "--package", "sim", "--profile", &args.build]);
    if args.world == WorldKind::Madsim {
        command.args(["--config", "build.rustflags=['--cfg','madsim']"]);
    }
    output(command.stdin(Stdio::null()))?;
    let folder = if args.build == "dev" { "debug" } else { &args.build };
    Ok(target.join(folder).join("sim"))
}

fn judge(args: &MutantsArgs, mutant: &Mutant, program: &Path) -> Result<Verdict> {
    let limit = Duration::from_secs_f64(args.minutes * 60.0);
    let mut verdict = Verdict { caught: None, seeds: 0, cpu: Duration::ZERO };
    let seeds = parse_range(&args.seeds)?;
    let sized = args.size.iter().flat_map(|size| seeds.clone().map(|seed| (*size, seed)));
    for (size, seed) in sized {
        if verdict.cpu >= limit {
            break;
        }
        let how = How { world: args.world, profile: mutant.profile, size };
        let job = Job::new(Which { what: seed.to_string(), how });
        verdict.seeds += 1;
        let (outcome, cpu) = timed(&Job { program: Some(program.to_path_buf()), ..job.clone() })?;
        verdict.cpu += cpu;
        if outcome.failures.is_empty() {
            continue;
        }
        // The same seed without the bug.
        let (plain, _) = timed(&job)?;
        let known = |judge: &str| plain.failures.iter().any(|other| other.oracle == judge);
        let fresh = outcome.failures.into_iter().find(|failure| !known(&failure.oracle));
        if let Some(failure) = fresh {
            verdict.caught = Some((failure.oracle, failure.message));
            break;
        }
    }
    Ok(verdict)
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
