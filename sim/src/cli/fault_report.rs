//! The mutant that each kind of fault exposes: killed in a plan with faults of that kind only, and surviving in the
//! same plan without faults.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use sim_plan::{FaultKind, FinalRestart, Plan};

/// A mutant that one kind of fault alone exposes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FaultFinding {
    /// Index of the mutant.
    pub mutant: usize,
    pub oracle: String,
    /// The run whose plan also has other faults.
    pub run: String,
}

/// Returns the plan with faults of this kind only.
fn only(mut plan: Plan, kind: FaultKind) -> Plan {
    plan.faults.retain(|fault| fault.kind.kind() == kind);
    plan.clocks.clear();
    plan.network.loss_per_mille = 0;
    plan.ending = FinalRestart::Stay;
    if kind == FaultKind::LostWrite {
        // A lost write stays readable from the machine's memory until power is cut, with the fault and without it.
        plan.ending = FinalRestart::PowerCut;
        plan.cluster.log_sync = true;
    }
    plan
}

/// Returns the first of `mutants` that faults of `kind` expose in one of the named `plans`. `oracles` returns the
/// oracles that report a violation in a plan with a mutant, or with none; `None` when no time is left.
pub(super) fn shown_by(
    kind: FaultKind,
    plans: impl Iterator<Item = (String, Plan)>,
    mutants: &[usize],
    mut oracles: impl FnMut(&Plan, Option<usize>) -> Result<Option<Vec<String>>>,
) -> Result<Option<FaultFinding>> {
    // Mutants killed without any fault: this kind of fault has no part in it.
    let mut killed_without_faults = BTreeSet::new();
    for (run, plan) in plans {
        let with_faults = only(plan, kind);
        if with_faults.faults.is_empty() {
            continue;
        }
        let without_faults = Plan { faults: Vec::new(), ..with_faults.clone() };
        let Some(baseline) = oracles(&with_faults, None)? else { return Ok(None) };
        for mutant in mutants {
            if killed_without_faults.contains(mutant) {
                continue;
            }
            let Some(reported) = oracles(&with_faults, Some(*mutant))? else { return Ok(None) };
            let Some(oracle) = reported.into_iter().find(|oracle| !baseline.contains(oracle)) else {
                continue;
            };
            let Some(without) = oracles(&without_faults, Some(*mutant))? else { return Ok(None) };
            if without.is_empty() {
                return Ok(Some(FaultFinding { mutant: *mutant, oracle, run }));
            }
            killed_without_faults.insert(*mutant);
        }
    }
    Ok(None)
}

/// FAULTS.md: one row for each kind of fault.
pub(super) struct FaultReport {
    path: PathBuf,
    rows: BTreeMap<String, String>,
}

const HEAD: &str = "# Mutants by kind of fault

Written by `cargo sim mutants --kind KIND`, row by row: a mutant that is killed in a plan with faults of that kind only,
and survives the same plan without them. `run` names the plan before other faults were removed. With `lost-write`, and
without it, power of all servers is cut at the end: a lost write is invisible before.

| kind of fault | mutant | killed by | run | day |
| --- | --- | --- | --- | --- |
";

impl FaultReport {
    /// Reads the file; empty if there is none.
    pub(super) fn read(path: &Path) -> Result<FaultReport> {
        let text = match path.exists() {
            true => fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?,
            false => String::new(),
        };
        let rows = text.lines().filter(|line| line.starts_with("| ")).skip(2);
        let kind = |row: &str| row.split('|').nth(1).unwrap_or_default().trim().to_string();
        Ok(FaultReport {
            path: path.to_path_buf(),
            rows: rows.map(|row| (kind(row), row.to_string())).collect(),
        })
    }

    /// Records the mutant that a kind of fault exposes; `None` if none is known.
    pub(super) fn keep(
        &mut self,
        kind: FaultKind,
        shown: Option<(&str, &FaultFinding)>,
        day: &str,
    ) -> Result<()> {
        let kind = kind.word();
        let (mutant, oracle, run) =
            shown.map_or(("none", "", ""), |(mutant, shown)| (mutant, &shown.oracle, &shown.run));
        let row = format!("| {kind} | {mutant} | {oracle} | {run} | {day} |");
        self.rows.insert(kind.to_string(), row);
        let rows: String = self.rows.values().map(|row| format!("{row}\n")).collect();
        fs::write(&self.path, format!("{HEAD}{rows}"))
            .with_context(|| format!("writing {}", self.path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sim_plan::{FaultProfile, PlanSize};

    fn plans() -> impl Iterator<Item = (String, Plan)> {
        let plan =
            |seed: u64| (seed.to_string(), Plan::generate(seed, FaultProfile::Network, PlanSize::Full));
        (1..50).map(plan)
    }

    #[test]
    fn a_kind_exposes_a_mutant_that_survives_without_it() {
        let oracles = |plan: &Plan, mutant: Option<usize>| {
            assert!(plan.faults.iter().all(|fault| fault.kind.kind() == FaultKind::Reset));
            let reported = match mutant {
                // 7 is killed always, 8 whenever there is a fault, 6 never.
                Some(7) => true,
                Some(8) => !plan.faults.is_empty(),
                _ => false,
            };
            Ok(Some(reported.then(|| "rows".to_string()).into_iter().collect()))
        };
        let shown = shown_by(FaultKind::Reset, plans(), &[6, 7, 8], oracles).expect("no run fails");
        let shown = shown.expect("one is exposed");
        assert_eq!((shown.mutant, shown.oracle.as_str()), (8, "rows"));
        assert_eq!(shown_by(FaultKind::Reset, plans(), &[6, 7], oracles).expect("no run fails"), None);
    }

    #[test]
    fn a_page_is_read_and_written() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("kinds.md");
        let shown = FaultFinding { mutant: 3, oracle: "rows".to_string(), run: "disk smoke 7".to_string() };
        let mut page = FaultReport::read(&path).expect("no file yet");
        page.keep(FaultKind::Reset, None, "2026-01-31").expect("a row");
        page.keep(FaultKind::Loss, Some(("03-c", &shown)), "2026-01-31").expect("another");
        let mut page = FaultReport::read(&path).expect("what was written");
        page.keep(FaultKind::Reset, Some(("03-c", &shown)), "2026-02-01").expect("the same row");
        let text = fs::read_to_string(&path).expect("what was written");
        let rows: Vec<&str> = text.lines().filter(|line| line.starts_with("| ")).skip(2).collect();
        let expected = [
            "| loss | 03-c | rows | disk smoke 7 | 2026-01-31 |",
            "| reset | 03-c | rows | disk smoke 7 | 2026-02-01 |",
        ];
        assert_eq!(rows, expected);
    }
}
