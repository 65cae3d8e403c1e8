//! The search without runs: what it draws, learns and keeps.

use std::collections::BTreeMap;

use super::search::Origin;
use super::*;
use crate::features::{DISTURBANCE, RunFeatures, STATES};
use crate::run::{RunOutcome, WorldKind};
use sim_plan::{FaultProfile, PlanSize};

fn settings(plain: bool) -> Settings {
    Settings {
        world: WorldKind::Turmoil,
        profiles: vec![FaultProfile::Swarm, FaultProfile::Crash],
        sizes: vec![PlanSize::Smoke],
        first_seed: 500,
        seed: 3,
        plain,
    }
}

fn search(dir: &std::path::Path, plain: bool) -> Search {
    Search::new(settings(plain), Corpus::open(dir).expect("a corpus"))
}

/// Output of a run that had these features.
fn output(features: &[u64], failed: bool, cpu_ms: u64) -> ChildOutput {
    let mut found = RunFeatures::default();
    found.axes[STATES].extend(features);
    found.axes[DISTURBANCE].insert(u64::MAX);
    let failure =
        ViolationRecord { oracle: "rows".to_string(), message: "lost".to_string(), story: Vec::new() };
    let failures = if failed { vec![failure] } else { Vec::new() };
    let outcome = RunOutcome { cpu_ms, failures, marks: BTreeMap::new(), ..RunOutcome::default() };
    ChildOutput { outcome, lines: Vec::new(), timeline: Vec::new(), curves: Vec::new(), features: found }
}

/// Finishes runs that each have a feature of their own; returns the texts of their plans.
fn campaign(dir: &std::path::Path) -> Vec<String> {
    let mut search = search(dir, false);
    let run = |number: u64| {
        let task = search.next();
        search.finish(&task, &output(&[number], false, 100)).expect("it is kept");
        task.plan.to_string()
    };
    (0..20).map(run).collect()
}

#[test]
fn equal_seeds_search_alike() {
    let [one, other] = [(), ()].map(|()| tempfile::tempdir().expect("a temporary directory"));
    let plans = campaign(one.path());
    assert_eq!(campaign(other.path()), plans);
    let mut search = search(one.path(), false);
    let tasks: Vec<Task> = (0..10).map(|_| search.next()).collect();
    assert_eq!(tasks.iter().filter(|task| task.is_child()).count(), 0, "an empty corpus has no children");
    search.save().expect("it is written");
}

#[test]
fn children_come_from_a_saved_corpus_and_failed_plans_are_set_aside() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let mut first = search(dir.path(), false);
    let task = first.next();
    assert!(matches!(task.origin, Origin::Fresh(_, PlanSize::Smoke)) && task.plan.seed == 500);
    first.finish(&task, &output(&[1, 2], false, 100)).expect("it is kept");
    let failing = first.next();
    first.finish(&failing, &output(&[3], true, 100)).expect("it is kept");
    first.save().expect("it is written");
    assert_eq!((first.failed(), first.runs()), (1, 2));
    let mut again = search(dir.path(), false);
    let run = |_| {
        let task = again.next();
        let cpu_ms = if task.is_child() { 100 } else { 400 };
        again.finish(&task, &output(&[], false, cpu_ms)).expect("it is counted");
        task
    };
    let tasks: Vec<Task> = (0..10).map(run).collect();
    let children: Vec<&Task> = tasks.iter().filter(|task| task.is_child()).collect();
    assert_eq!(children.len(), 8, "two fresh seeds take as long");
    assert!(children.iter().all(|child| child.plan != task.plan));
    let failed = std::fs::read_dir(dir.path().join("failed")).expect("a folder").count();
    assert_eq!(failed, 1);
}

#[test]
fn a_plain_search_has_no_children_and_keeps_nothing() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let mut search = search(dir.path(), true);
    for number in 0..10 {
        let task = search.next();
        assert!(!task.is_child() && task.plan.seed == 500 + number);
        search.finish(&task, &output(&[number], false, 10)).expect("nothing to keep");
    }
    assert_eq!(std::fs::read_dir(dir.path().join("plans")).expect("a folder").count(), 0);
}

#[test]
fn an_exhausted_search_ends_after_twenty_barren_minutes_of_cpu() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let mut search = search(dir.path(), false);
    for _ in 0..60 {
        let task = search.next();
        search.finish(&task, &output(&[1], false, 1_000)).expect("it is kept");
    }
    assert!(!search.is_over(), "a minute");
    for _ in 0..20 {
        let task = search.next();
        search.finish(&task, &output(&[1], false, 60_000)).expect("it is kept");
    }
    assert!(search.is_over());
    let task = search.next();
    search.finish(&task, &output(&[2], false, 1_000)).expect("it is kept");
    assert!(!search.is_over(), "one of few seeds had a new feature");
}
