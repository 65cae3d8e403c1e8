//! What became of planted bugs, kept in a file: a line for each, its fields between tabs.
//!
//! ```text
//! NAME    seeds    CPU milliseconds    judge, empty for nobody    what it said
//! ```

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

/// What became of one of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// The judge who noticed, and what it said.
    pub caught: Option<(String, String)>,
    pub seeds: u64,
    /// Of the runs, the one that was caught included.
    pub cpu: Duration,
}

/// All verdicts, by the name of the patch.
pub struct Verdicts {
    path: PathBuf,
    known: BTreeMap<String, Verdict>,
}

impl Verdicts {
    /// What the file has; none if there is no file.
    pub fn read(path: &Path) -> Result<Verdicts> {
        let text = if path.exists() {
            fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?
        } else {
            String::new()
        };
        let parsed = text.lines().map(|line| {
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
        let text: String = self.known.iter().map(|(name, verdict)| line(name, verdict)).collect();
        // Whoever breaks in leaves the old file or the new one.
        let fresh = self.path.with_extension("new");
        fs::write(&fresh, text).with_context(|| format!("writing {}", fresh.display()))?;
        fs::rename(&fresh, &self.path).with_context(|| format!("renaming {}", fresh.display()))
    }
}

fn line(name: &str, verdict: &Verdict) -> String {
    let none = (String::new(), String::new());
    let (judge, what) = verdict.caught.as_ref().unwrap_or(&none);
    let what = what.replace(['\t', '\n', '\r'], " ");
    format!("{name}\t{}\t{}\t{judge}\t{what}\n", verdict.seeds, verdict.cpu.as_millis())
}

fn parse(line: &str) -> Option<(String, Verdict)> {
    let mut fields = line.splitn(5, '\t');
    let name = fields.next()?.to_string();
    let seeds = fields.next()?.parse().ok()?;
    let cpu = Duration::from_millis(fields.next()?.parse().ok()?);
    let (judge, what) = (fields.next()?.to_string(), fields.next()?.to_string());
    let caught = (!judge.is_empty()).then_some((judge, what));
    Some((name, Verdict { caught, seeds, cpu }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_outlive_the_program() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("deep/verdicts.tsv");
        let caught = Verdict {
            caught: Some(("rows".to_string(), "two\tand\nthree".to_string())),
            seeds: 3,
            cpu: Duration::from_millis(1_500),
        };
        let missed = Verdict { caught: None, seeds: 400, cpu: Duration::from_secs(60) };
        let mut verdicts = Verdicts::read(&path).expect("there is none yet");
        verdicts.keep("02-b", missed.clone()).expect("a new file");
        verdicts.keep("01-a", missed.clone()).expect("another line");
        verdicts.keep("01-a", caught.clone()).expect("another verdict");
        let read = Verdicts::read(&path).expect("what was written");
        assert_eq!(read.get("02-b"), Some(&missed));
        let said = Some(("rows".to_string(), "two and three".to_string()));
        assert_eq!(read.get("01-a"), Some(&Verdict { caught: said, ..caught }));
        assert_eq!(read.get("03-c"), None);
        fs::write(&path, "01-a\tmany\n").expect("a file");
        assert!(Verdicts::read(&path).is_err());
    }
}
