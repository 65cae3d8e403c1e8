//! The outcome of each mutant, stored in MUTANTS.md as a table with a row for each.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

/// The outcome of one mutant.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct MutantResult {
    /// The oracle that killed it, and the run in which it did.
    pub caught: Option<(String, String)>,
    /// Kinds of faults without which the mutant survives that run.
    pub needs: Vec<String>,
    /// Number of runs.
    pub seeds: u64,
    /// Runs whose hash differs from the run without the mutant.
    pub differ: u64,
    /// CPU time of the runs, the killing one included.
    pub cpu: Duration,
    /// The day, as 2026-01-31.
    pub day: String,
}

/// All results, by the name of the patch.
pub(super) struct MutantResults {
    path: PathBuf,
    known: BTreeMap<String, MutantResult>,
}

const HEAD: &str = "# Mutants

Written by `cargo sim mutants`, row by row. Every mutant has the same runs: a small plan of every profile, then a large
one of the profiles in turn, each of another seed. A mutant is killed if an oracle or invariant reports a violation that
the unpatched run does not. `differ`: runs whose hash differs from the unpatched run. `CPU s`: CPU time of all runs, the
killing one included. `needs`: kinds of faults without which the mutant survives that plan; `?`: not determined.

| mutant | killed by | run | needs | runs | differ | CPU s | day |
| --- | --- | --- | --- | --: | --: | --: | --- |
";
const SURVIVED: &str = "survived";

impl MutantResults {
    /// Reads the file; empty if there is none.
    pub(super) fn read(path: &Path) -> Result<MutantResults> {
        let text = if path.exists() {
            fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?
        } else {
            String::new()
        };
        let rows = text.lines().filter(|line| line.starts_with("| ")).skip(2);
        let parsed = rows.map(|line| {
            parse(line)
                .with_context(|| format!("{line:?} in {} is not a result; remove the line", path.display()))
        });
        Ok(MutantResults { path: path.to_path_buf(), known: parsed.collect::<Result<_>>()? })
    }

    pub(super) fn get(&self, name: &str) -> Option<&MutantResult> {
        self.known.get(name)
    }

    /// Adds or replaces a result and writes the file.
    pub(super) fn keep(&mut self, name: &str, result: MutantResult) -> Result<()> {
        self.known.insert(name.to_string(), result);
        if let Some(folder) = self.path.parent() {
            fs::create_dir_all(folder)?;
        }
        let rows: String = self.known.iter().map(|(name, result)| line(name, result)).collect();
        // An interrupted write leaves the old file or the new one.
        let fresh = self.path.with_extension("new");
        fs::write(&fresh, format!("{HEAD}{rows}")).with_context(|| format!("writing {}", fresh.display()))?;
        fs::rename(&fresh, &self.path).with_context(|| format!("renaming {}", fresh.display()))
    }
}

fn line(name: &str, result: &MutantResult) -> String {
    let survived = (SURVIVED.to_string(), String::new());
    let (oracle, run) = result.caught.as_ref().unwrap_or(&survived);
    let MutantResult { needs, seeds, differ, cpu, day, .. } = result;
    let (needs, cpu) = (needs.join(", "), cpu.as_secs_f64());
    format!("| {name} | {oracle} | {run} | {needs} | {seeds} | {differ} | {cpu:.1} | {day} |\n")
}

fn parse(line: &str) -> Option<(String, MutantResult)> {
    let fields: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
    let [name, oracle, run, needs, seeds, differ, cpu, day] = fields[..] else { return None };
    let caught = (oracle != SURVIVED).then(|| (oracle.to_string(), run.to_string()));
    let cpu = Duration::try_from_secs_f64(cpu.parse().ok()?).ok()?;
    let needs = needs.split(", ").filter(|word| !word.is_empty()).map(str::to_string).collect();
    let (seeds, differ) = (seeds.parse().ok()?, differ.parse().ok()?);
    Some((name.to_string(), MutantResult { caught, needs, seeds, differ, cpu, day: day.to_string() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_stored_and_read_again() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("deep/verdicts.md");
        let day = "2026-01-31".to_string();
        let caught = MutantResult {
            caught: Some(("rows".to_string(), "swarm smoke 3".to_string())),
            needs: vec!["kill".to_string(), "loss".to_string()],
            seeds: 3,
            differ: 2,
            cpu: Duration::from_millis(1_500),
            day: day.clone(),
        };
        let missed = MutantResult {
            caught: None,
            needs: Vec::new(),
            seeds: 400,
            differ: 0,
            cpu: Duration::from_secs(60),
            day,
        };
        let mut results = MutantResults::read(&path).expect("no file yet");
        results.keep("02-b", missed.clone()).expect("a new file");
        results.keep("01-a", missed.clone()).expect("another line");
        results.keep("01-a", caught.clone()).expect("another result");
        let read = MutantResults::read(&path).expect("what was written");
        assert_eq!(read.get("02-b"), Some(&missed));
        assert_eq!(read.get("01-a"), Some(&caught));
        assert_eq!(read.get("03-c"), None);
        fs::write(&path, format!("{HEAD}| 01-a | many |\n")).expect("a file");
        assert!(MutantResults::read(&path).is_err());
    }
}
