//! Which planted bug a kind of fault shows: one that is caught in a plan with faults of that kind and of no other, and
//! is not in the same plan without any.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::plan::{Ending, Plan};

/// A bug that is seen by a kind of fault alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shown {
    /// Which of the bugs.
    pub bug: usize,
    pub judge: String,
    /// The run whose plan has other faults too.
    pub run: String,
}

/// The plan with faults of this kind only.
fn only(mut plan: Plan, kind: &str) -> Plan {
    plan.faults.retain(|fault| fault.kind.word() == kind);
    plan.clocks.clear();
    plan.network.loss_per_mille = 0;
    plan.ending = Ending::Stay;
    if kind == "lost-write" {
        // What never reached the device is in the machine's memory until the power goes, with the fault or without it.
        plan.ending = Ending::PowerCut;
        plan.cluster.log_sync = true;
    }
    plan
}

/// The first of `bugs` that a kind of fault shows in one of `plans`, which have names. `judges` says who objects to a
/// plan with a bug, or with none; `None` when it has no more time.
pub fn shown_by(
    kind: &str,
    plans: impl Iterator<Item = (String, Plan)>,
    bugs: &[usize],
    mut judges: impl FnMut(&Plan, Option<usize>) -> Result<Option<Vec<String>>>,
) -> Result<Option<Shown>> {
    // Those are seen without any fault: this kind has no part in it.
    let mut plain = BTreeSet::new();
    for (run, plan) in plans {
        let struck = only(plan, kind);
        if struck.faults.is_empty() {
            continue;
        }
        let calm = Plan { faults: Vec::new(), ..struck.clone() };
        let Some(usual) = judges(&struck, None)? else { return Ok(None) };
        for bug in bugs {
            if plain.contains(bug) {
                continue;
            }
            let Some(objects) = judges(&struck, Some(*bug))? else { return Ok(None) };
            let Some(judge) = objects.into_iter().find(|judge| !usual.contains(judge)) else { continue };
            let Some(without) = judges(&calm, Some(*bug))? else { return Ok(None) };
            if without.is_empty() {
                return Ok(Some(Shown { bug: *bug, judge, run }));
            }
            plain.insert(*bug);
        }
    }
    Ok(None)
}

/// The page of what is known, a row for each kind.
pub struct Page {
    path: PathBuf,
    rows: BTreeMap<String, String>,
}

const HEAD: &str = "# What each kind of fault shows

Written by `cargo sim mutants --kind KIND`, row by row: a planted bug that is caught in a plan with faults of that kind
and of no other, and is not in the same plan without them. `in` is the plan before the others were taken out. With
`lost-write`, and without it, all servers lose their power in the end: nobody can know of it before.

| kind of fault | bug | caught by | in | day |
| --- | --- | --- | --- | --- |
";

impl Page {
    /// What the file has; nothing if there is no file.
    pub fn read(path: &Path) -> Result<Page> {
        let text = match path.exists() {
            true => fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?,
            false => String::new(),
        };
        let rows = text.lines().filter(|line| line.starts_with("| ")).skip(2);
        let kind = |row: &str| row.split('|').nth(1).unwrap_or_default().trim().to_string();
        Ok(Page { path: path.to_path_buf(), rows: rows.map(|row| (kind(row), row.to_string())).collect() })
    }

    /// Puts down which bug a kind shows; `None` if no one is known.
    pub fn keep(&mut self, kind: &str, shown: Option<(&str, &Shown)>, day: &str) -> Result<()> {
        let (bug, judge, run) =
            shown.map_or(("none", "", ""), |(bug, shown)| (bug, &shown.judge, &shown.run));
        let row = format!("| {kind} | {bug} | {judge} | {run} | {day} |");
        self.rows.insert(kind.to_string(), row);
        let rows: String = self.rows.values().map(|row| format!("{row}\n")).collect();
        fs::write(&self.path, format!("{HEAD}{rows}"))
            .with_context(|| format!("writing {}", self.path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Profile, Size};

    fn plans() -> impl Iterator<Item = (String, Plan)> {
        let plan = |seed: u64| (seed.to_string(), Plan::generate(seed, Profile::Network, Size::Full));
        (1..50).map(plan)
    }

    #[test]
    fn a_bug_is_shown_by_what_it_is_not_seen_without() {
        let judges = |plan: &Plan, bug: Option<usize>| {
            assert!(plan.faults.iter().all(|fault| fault.kind.word() == "reset"));
            let objects = match bug {
                // Seen by anybody, by everybody with a fault, and one that is not there.
                Some(7) => true,
                Some(8) => !plan.faults.is_empty(),
                _ => false,
            };
            Ok(Some(objects.then(|| "rows".to_string()).into_iter().collect()))
        };
        let shown = shown_by("reset", plans(), &[6, 7, 8], judges).expect("no run can fail");
        let shown = shown.expect("one is shown");
        assert_eq!((shown.bug, shown.judge.as_str()), (8, "rows"));
        assert_eq!(shown_by("reset", plans(), &[6, 7], judges).expect("no run can fail"), None);
    }

    #[test]
    fn a_page_is_read_and_written() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("kinds.md");
        let shown = Shown { bug: 3, judge: "rows".to_string(), run: "disk smoke 7".to_string() };
        let mut page = Page::read(&path).expect("there is none yet");
        page.keep("reset", None, "2026-01-31").expect("a row");
        page.keep("loss", Some(("03-c", &shown)), "2026-01-31").expect("another");
        let mut page = Page::read(&path).expect("what was written");
        page.keep("reset", Some(("03-c", &shown)), "2026-02-01").expect("the same row");
        let text = fs::read_to_string(&path).expect("what was written");
        let rows: Vec<&str> = text.lines().filter(|line| line.starts_with("| ")).skip(2).collect();
        let expected = [
            "| loss | 03-c | rows | disk smoke 7 | 2026-01-31 |",
            "| reset | 03-c | rows | disk smoke 7 | 2026-02-01 |",
        ];
        assert_eq!(rows, expected);
    }
}
