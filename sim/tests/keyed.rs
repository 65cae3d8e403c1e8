//! The world whose draws are named by keys: the conformance suite, and runs that differ in one fault.

#[path = "common/conformance.rs"]
mod conformance;

use engine::disk::mem::DiskCost;
use sim::event_log::EventLog;
use sim::world::keyed::KeyedWorld;

#[test]
fn it_passes_the_conformance_suite() {
    for seed in 0..20 {
        let (network, log) = (conformance::network(seed), EventLog::new(false));
        conformance::run(&mut KeyedWorld::new(seed, network, DiskCost::default(), log));
    }
}

/// Runs in other processes, whose hashers are seeded: only with `--cfg madsim`.
#[cfg(madsim)]
mod counterfactual {
    use std::process::Command;

    use sim_plan::faults::HostDir;
    use sim_plan::{Fault, FaultProfile, Host, Plan, PlanSize, TimedFault};

    /// Returns the plan with one more fault, the first, which waits for a disk operation far beyond the run's end.
    fn with_a_fault_that_never_strikes(mut plan: Plan) -> Plan {
        let kind = Fault::DiskError { dir: HostDir::Data, op: u32::MAX };
        plan.faults.insert(0, TimedFault { at: plan.faults[0].at, target: Host::Tserver(0), kind });
        plan
    }

    #[test]
    fn a_fault_that_never_strikes_changes_no_event() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("one.plan").display().to_string();
        let plans = (1..).map(|seed| Plan::generate(seed, FaultProfile::Crash, PlanSize::Smoke));
        for plan in plans.filter(|plan| !plan.faults.is_empty()).take(3) {
            let seed = plan.seed;
            let plan = with_a_fault_that_never_strikes(plan);
            std::fs::write(&path, plan.to_string()).expect("a writable folder");
            let mut command = Command::new(env!("CARGO_BIN_EXE_sim"));
            command.args(["without", &path, "--fault", "1", "--world", "keyed"]);
            let output = command.output().expect("the program starts");
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(
                text.contains("besides the fault's own events the runs are equal"),
                "seed {seed}: {text}"
            );
        }
    }
}
