//! What became of planted bugs, kept in a page: a table with a row for each.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

/// What became of one of them.
#[derive(Debug, Clone, PartialEq)]
pub struct Verdict {
    /// The judge who noticed, and in which run.
    pub caught: Option<(String, String)>,
    /// Kinds of faults without which that run is silent.
    pub needs: Vec<String>,
    /// Runs that were made.
    pub seeds: u64,
    /// Runs that went another way than without the bug.
    pub differ: u64,
    /// Of the runs, the one that was caught included.
    pub cpu: Duration,
    /// The day, as 2026-01-31.
    pub day: String,
}

/// All verdicts, by the name of the patch.
pub struct Verdicts {
    path: PathBuf,
    known: BTreeMap<String, Verdict>,
}

const HEAD: &str = "# Planted bugs

Written by `cargo sim mutants`, row by row. Every patch has the same runs, whatever it is about: a small plan of every
profile, then a large one of the profiles in turn, each of another seed. A run counts as caught if a judge objects that
is silent without the patch; `differ` are runs that went another way at all. CPU seconds are those of the runs, up to
the catch. What the catch needs: kinds of faults without which the same plan passes, each of them; `?`: nobody asked.

| patch | caught by | in | needs | runs | differ | CPU s | day |
| --- | --- | --- | --- | --: | --: | --: | --- |
";
const NOBODY: &str = "nobody";

impl Verdicts {
    /// What the file has; none if there is no file.
    pub fn read(path: &Path) -> Result<Verdicts> {
        let text = if path.exists() {
            fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?
        } else {
            String::new()
        };
        let rows = text.lines().filter(|line| line.starts_with("| ")).skip(2);
        let parsed = rows.map(|line| {
            parse(line).with_context(|| format!("{line:?} in {} is no verdict: remove it", path.display()))
        });
        Ok(Verdicts { path: path.to_path_buf(), known: parsed.collect::<Result<_>>()? })
    }

    pub fn get(&self, name: &str) -> Option<&Verdict> {
        self.known.get(name)
    }

    /// Adds a verdict, or replaces it, and writes all of them down.
    pub fn keep(&mut self, name: &str, verdict: Verdict) -> Result<()> {
        self.known.insert(name.to_string(), verdict);
        if let Some(folder) = self.path.parent() {
            fs::create_dir_all(folder)?;
        }
        let rows: String = self.known.iter().map(|(name, verdict)| line(name, verdict)).collect();
        // Whoever breaks in leaves the old file or the new one.
        let fresh = self.path.with_extension("new");
        fs::write(&fresh, format!("{HEAD}{rows}")).with_context(|| format!("writing {}", fresh.display()))?;
        fs::rename(&fresh, &self.path).with_context(|| format!("renaming {}", fresh.display()))
    }
}

fn line(name: &str, verdict: &Verdict) -> String {
    let nobody = (NOBODY.to_string(), String::new());
    let (judge, run) = verdict.caught.as_ref().unwrap_or(&nobody);
    let Verdict { needs, seeds, differ, cpu, day, .. } = verdict;
    let (needs, cpu) = (needs.join(", "), cpu.as_secs_f64());
    format!("| {name} | {judge} | {run} | {needs} | {seeds} | {differ} | {cpu:.1} | {day} |\n")
}

fn parse(line: &str) -> Option<(String, Verdict)> {
    let fields: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
    let [name, judge, run, needs, seeds, differ, cpu, day] = fields[..] else { return None };
    let caught = (judge != NOBODY).then(|| (judge.to_string(), run.to_string()));
    let cpu = Duration::try_from_secs_f64(cpu.parse().ok()?).ok()?;
    let needs = needs.split(", ").filter(|word| !word.is_empty()).map(str::to_string).collect();
    let (seeds, differ) = (seeds.parse().ok()?, differ.parse().ok()?);
    Some((name.to_string(), Verdict { caught, needs, seeds, differ, cpu, day: day.to_string() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_outlive_the_program() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("deep/verdicts.md");
        let day = "2026-01-31".to_string();
        let caught = Verdict {
            caught: Some(("rows".to_string(), "swarm smoke 3".to_string())),
            needs: vec!["kill".to_string(), "loss".to_string()],
            seeds: 3,
            differ: 2,
            cpu: Duration::from_millis(1_500),
            day: day.clone(),
        };
        let missed = Verdict {
            caught: None,
            needs: Vec::new(),
            seeds: 400,
            differ: 0,
            cpu: Duration::from_secs(60),
            day,
        };
        let mut verdicts = Verdicts::read(&path).expect("there is none yet");
        verdicts.keep("02-b", missed.clone()).expect("a new file");
        verdicts.keep("01-a", missed.clone()).expect("another line");
        verdicts.keep("01-a", caught.clone()).expect("another verdict");
        let read = Verdicts::read(&path).expect("what was written");
        assert_eq!(read.get("02-b"), Some(&missed));
        assert_eq!(read.get("01-a"), Some(&caught));
        assert_eq!(read.get("03-c"), None);
        fs::write(&path, format!("{HEAD}| 01-a | many |\n")).expect("a file");
        assert!(Verdicts::read(&path).is_err());
    }
}
