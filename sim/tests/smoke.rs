//! Whole runs in turmoil's world without violations: a plan's cluster, clients, faults and oracles.

use std::time::Duration;

use sim::run::{KeepOptions, WorldKind, run};
use sim_plan::{FaultProfile, Plan, PlanSize, SecuritySpec};

#[test]
fn small_plans_run_clean() {
    for (seed, profile) in [(1, FaultProfile::Calm), (2, FaultProfile::Crash)] {
        let plan = Plan::generate(seed, profile, PlanSize::Smoke);
        let keep = KeepOptions { events: 0..1, timeline: true, ..KeepOptions::default() };
        let ran = run(&plan, WorldKind::Turmoil, keep).expect("the world is in every build");
        assert_eq!(ran.outcome.failures, [], "seed {seed}");
        assert!(ran.outcome.answered > 0 && ran.outcome.checked > 0);
        assert_eq!(ran.lines.len(), 1);
        assert!(ran.timeline.iter().any(|event| event.kind == "log"), "nodes' logs are recorded");
    }
}

#[test]
fn a_cluster_that_requires_security_runs_clean() {
    let seconds = Duration::from_secs;
    let mut plan = Plan::generate(2, FaultProfile::Crash, PlanSize::Smoke);
    plan.security = Some(SecuritySpec { authn: seconds(3), authz: seconds(2), rotation: seconds(2) });
    let keep = KeepOptions { events: 0..1, timeline: true, ..KeepOptions::default() };
    let ran = run(&plan, WorldKind::Turmoil, keep).expect("the world is in every build");
    assert_eq!(ran.outcome.failures, []);
    assert!(ran.outcome.answered > 0 && ran.outcome.checked > 0);
    let imported = |event: &&sim::event_log::TimelineEvent| event.text.contains("token keys were imported");
    assert!(ran.timeline.iter().filter(imported).count() > 3, "keys rotate within the run");
}
