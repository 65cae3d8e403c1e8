//! Traces, wherever they come from, and the verdict on them: kept ones, those of the simulator's seeds, of storms in
//! the lockstep groups, and files that are there already.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};

use super::replay::{Refusal, replay};
use super::tlc::{self, Tlc};
use super::trace::{ACTIONS, TraceFile, begins_with};
use super::{Options, STORM_STEPS, example, report};
use crate::command::Run;

/// Events that a seed should have, to be worth its while.
const SEED_EVENTS: usize = 500;

/// Refused traces of one run that are told of in full; of the others only what was refused.
const REFUSALS_TOLD: usize = 6;

/// The traces of `spec/traces`: `good` ones must be followed, `bad` ones refused for the reason that they give.
pub fn kept_traces(root: &Path, tlc: &Tlc) -> Result<()> {
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
pub fn sim_traces(root: &Path, tlc: &Tlc, options: &Options, count: u64) -> Result<()> {
    let dir = root.join("target/spec/traces");
    if dir.exists() {
        fs::remove_dir_all(&dir)?;
    }
    fs::create_dir_all(&dir)?;
    let (start, before_cpu) = (Instant::now(), tlc::children_cpu());
    for (profile, seeds) in shares(options, count) {
        simulate(root, &dir, options, profile, &seeds)?;
    }
    let cpu = report::cpu_since(before_cpu);
    println!("{count} seeds run in {:.0} s ({cpu} CPU s)", start.elapsed().as_secs_f64());
    let left_out = remove_unmade(&dir)?;
    println!("{left_out} traces left out: a crash cut the creation of their tablets off");
    let traces = read_traces(&dir)?;
    let events = events_of_runs(&traces);
    let small = events.values().filter(|events| **events < SEED_EVENTS).count();
    let origin = format!(
        "`cargo ci spec --traces {count} --seed {} --profile {} --size {}`: {small} of {} seeds have less than \
         {SEED_EVENTS} events",
        options.seed,
        options.profile.join(","),
        options.size,
        events.len()
    );
    println!("{origin}");
    judge(root, tlc, &traces, options.write.then_some(origin.as_str()))
}

/// Each profile's seeds, one after the other: FROM..TO.
fn shares(options: &Options, count: u64) -> Vec<(&str, String)> {
    let profiles = options.profile.len() as u64;
    let bound = |at: u64| options.seed + count * at / profiles;
    let profiles = options.profile.iter().zip(0..);
    profiles.map(|(profile, at)| (profile.as_str(), format!("{}..{}", bound(at), bound(at + 1)))).collect()
}

fn simulate(root: &Path, dir: &Path, options: &Options, profile: &str, seeds: &str) -> Result<()> {
    let words = ["sim", "run", "--seeds", seeds, "--profile", profile, "--size", &options.size];
    let jobs = options.workers.to_string();
    let said = Run::cargo(root).args(words).args(["--jobs", &jobs, "--trace"]).args([dir]).output()?;
    let wrote = files(dir)?.iter().any(|path| name(path).contains(&format!("-{profile}-")));
    ensure!(wrote, "cargo {} wrote no traces: {}", words.join(" "), said.stderr);
    Ok(())
}

/// How many events each run has, all its tablets together.
fn events_of_runs(traces: &[TraceFile]) -> BTreeMap<&str, usize> {
    let mut events = BTreeMap::new();
    for trace in traces {
        let run = trace.name.rsplit_once('-').map_or(trace.name.as_str(), |(run, _)| run);
        *events.entry(run).or_default() += trace.events.len();
    }
    events
}

/// Removes the traces that begin with a restart, whether it could open the replica or not: the power went before
/// anybody was told that the tablet is there, and with what configuration. How many they were.
fn remove_unmade(dir: &Path) -> Result<usize> {
    let mut removed = 0;
    for path in files(dir)? {
        let text = fs::read_to_string(&path)?;
        if begins_with(&text, "Restart") || begins_with(&text, "FailOpen") {
            fs::remove_file(&path)?;
            removed += 1;
        }
    }
    Ok(removed)
}

/// Lets groups of Raft cores run through storms and checks their traces.
pub fn lockstep_traces(root: &Path, tlc: &Tlc, first: u64, count: u64) -> Result<()> {
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

pub fn trace_files(root: &Path, tlc: &Tlc, path: &Path) -> Result<()> {
    let traces = read_traces(path)?;
    ensure!(!traces.is_empty(), "no *.trace in {}", path.display());
    judge(root, tlc, &traces, None)
}

/// All traces must be followed; says which actions they took. `write`: where they come from, for the table, in which
/// every action must have been seen.
fn judge(root: &Path, tlc: &Tlc, traces: &[TraceFile], write: Option<&str>) -> Result<()> {
    let (start, before_cpu) = (Instant::now(), tlc::children_cpu());
    let refused: Vec<Refusal> = replay(root, tlc, traces)?;
    let cpu = report::cpu_since(before_cpu);
    let events: usize = traces.iter().map(|trace| trace.events.len()).sum();
    let counts = counts(traces);
    println!("{}", report::counts_line(&counts));
    let sum = report::traces_line(traces.len(), events, refused.len(), start.elapsed(), &cpu);
    println!("{sum}");
    if let Some(origin) = write {
        report::write(root, "traces", &report::counts(&counts, &format!("{origin}; {sum}")))?;
        let unseen = report::unseen(&counts);
        ensure!(unseen.is_empty(), "actions in no trace: {}", unseen.join(" "));
    }
    if refused.is_empty() {
        return Ok(());
    }
    bail!("{} of {} traces refused:\n{}", refused.len(), traces.len(), told(&refused))
}

fn told(refused: &[Refusal]) -> String {
    let (first, rest) = refused.split_at(refused.len().min(REFUSALS_TOLD));
    let in_full = first.iter().map(|refusal| refusal.reason.as_str());
    let in_short = rest.iter().filter_map(|refusal| refusal.reason.lines().next());
    in_full.chain(in_short).collect::<Vec<&str>>().join("\n")
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

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Args {
        #[command(flatten)]
        options: Options,
    }

    #[test]
    fn profiles_share_the_seeds() {
        let args = Args::parse_from(["spec", "--seed", "10", "--profile", "swarm,disk,copy"]);
        let shares = shares(&args.options, 7);
        let expected = [("swarm", "10..12"), ("disk", "12..14"), ("copy", "14..17")];
        assert_eq!(shares, expected.map(|(profile, seeds)| (profile, seeds.to_owned())));
    }
}
