//! Whole runs in turmoil's world: a plan's cluster, clients and faults, and judges who have nothing to object to.

use sim::plan::{Plan, Profile, Size};
use sim::run::{Keep, WorldKind, run};

#[test]
fn small_plans_run_clean() {
    for (seed, profile) in [(1, Profile::Calm), (2, Profile::Crash)] {
        let plan = Plan::generate(seed, profile, Size::Smoke);
        let keep = Keep { events: 0..1, moments: true, traces: None };
        let ran = run(&plan, WorldKind::Turmoil, keep).expect("the world is in every build");
        assert_eq!(ran.outcome.failures, [], "seed {seed}");
        assert!(ran.outcome.answered > 0 && ran.outcome.checked > 0);
        assert_eq!(ran.lines.len(), 1);
        assert!(ran.moments.iter().any(|moment| moment.kind == "log"), "nodes' logs are heard");
    }
}
