//! Sources of traces, and their checks: kept traces, seeds of the simulator, randomized Raft tests, and given files.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};

use super::options::{RANDOM_GROUP_STEPS, SpecOptions, example};
use super::report;
use super::tlc::{self, Tlc};
use super::trace::{ACTIONS, TraceFile, begins_with};
use super::trace_checking::{RejectedTrace, replay};
use crate::command::CommandLine;

/// Events below which a seed's traces are of little use.
const SEED_EVENTS: usize = 500;

/// Rejected traces of one run that are reported in full; of the others only the action.
const REFUSALS_TOLD: usize = 6;

/// Checks the traces of `spec/traces`: `good` ones must be followed, `bad` ones rejected for their stated reason.
pub(super) fn kept_traces(root: &Path, tlc: &Tlc) -> Result<()> {
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

/// Returns each bad trace's name and its line `# refused: words`.
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

/// Runs the simulator and checks its traces. Verdicts of its oracles are ignored here.
pub(super) fn sim_traces(root: &Path, tlc: &Tlc, options: &SpecOptions, count: u64) -> Result<()> {
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
    check_traces(root, tlc, &traces, options.write.then_some(origin.as_str()))
}

/// Returns each profile's seeds, one range after another: FROM..TO.
fn shares(options: &SpecOptions, count: u64) -> Vec<(&str, String)> {
    let profiles = options.profile.len() as u64;
    let bound = |at: u64| options.seed + count * at / profiles;
    let profiles = options.profile.iter().zip(0..);
    profiles.map(|(profile, at)| (profile.as_str(), format!("{}..{}", bound(at), bound(at + 1)))).collect()
}

fn simulate(root: &Path, dir: &Path, options: &SpecOptions, profile: &str, seeds: &str) -> Result<()> {
    let words = ["sim", "run", "--seeds", seeds, "--profile", profile, "--size", &options.size];
    let jobs = options.workers.to_string();
    let said =
        CommandLine::cargo(root).args(words).args(["--jobs", &jobs, "--trace"]).args([dir]).output()?;
    let wrote = files(dir)?.iter().any(|path| name(path).contains(&format!("-{profile}-")));
    ensure!(wrote, "cargo {} wrote no traces: {}", words.join(" "), said.stderr);
    Ok(())
}

/// Returns the number of events of each run, all its tablets together.
fn events_of_runs(traces: &[TraceFile]) -> BTreeMap<&str, usize> {
    let mut events = BTreeMap::new();
    for trace in traces {
        let run = trace.name.rsplit_once('-').map_or(trace.name.as_str(), |(run, _)| run);
        *events.entry(run).or_default() += trace.events.len();
    }
    events
}

/// Removes traces that begin with a restart, also a failed one: a power cut came before the tablet's creation was
/// reported, so its first configuration is unknown. Returns their number.
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

/// Runs randomized Raft tests and checks their traces.
pub(super) fn random_group_traces(root: &Path, tlc: &Tlc, first: u64, count: u64) -> Result<()> {
    CommandLine::cargo(root)
        .args(["build", "--quiet", "--package", "engine", "--example", "raft_trace"])
        .run()?;
    let example = example("raft_trace")?;
    let mut traces = Vec::new();
    for seed in first..first + count {
        let words = [seed.to_string(), RANDOM_GROUP_STEPS.to_string()];
        let said = CommandLine::new(&example).args(words).output()?;
        ensure!(said.success, "raft_trace, seed {seed}: {}", said.stderr);
        traces.push(TraceFile::parse(&format!("seed {seed}"), &said.stdout)?);
    }
    check_traces(root, tlc, &traces, None)
}

pub(super) fn trace_files(root: &Path, tlc: &Tlc, path: &Path) -> Result<()> {
    let traces = read_traces(path)?;
    ensure!(!traces.is_empty(), "no *.trace in {}", path.display());
    check_traces(root, tlc, &traces, None)
}

/// Checks that all traces are followed; prints the counts of their actions. `write` is the traces' origin for the
/// table, in which every action must appear.
fn check_traces(root: &Path, tlc: &Tlc, traces: &[TraceFile], write: Option<&str>) -> Result<()> {
    let (start, before_cpu) = (Instant::now(), tlc::children_cpu());
    let refused: Vec<RejectedTrace> = replay(root, tlc, traces)?;
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
    bail!("{} of {} traces refused:\n{}", refused.len(), traces.len(), format_rejected(&refused))
}

fn format_rejected(refused: &[RejectedTrace]) -> String {
    let (first, rest) = refused.split_at(refused.len().min(REFUSALS_TOLD));
    let in_full = first.iter().map(|refusal| refusal.reason.as_str());
    let in_short = rest.iter().filter_map(|refusal| refusal.reason.lines().next());
    in_full.chain(in_short).collect::<Vec<&str>>().join("\n")
}

/// Returns the count of each action, in the order of the list.
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

/// Returns `path` itself, or the trace files in it, sorted.
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
        options: SpecOptions,
    }

    #[test]
    fn profiles_share_the_seeds() {
        let args = Args::parse_from(["spec", "--seed", "10", "--profile", "swarm,disk,copy"]);
        let shares = shares(&args.options, 7);
        let expected = [("swarm", "10..12"), ("disk", "12..14"), ("copy", "14..17")];
        assert_eq!(shares, expected.map(|(profile, seeds)| (profile, seeds.to_owned())));
    }
}
