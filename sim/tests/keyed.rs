//! The world whose draws are named by keys: the conformance suite, and runs that differ in one fault.

use std::sync::Arc;
use std::time::Duration;

use engine::disk::mem::DiskCost;
use nyala_common::env::conformance::{CASES, TestBed};
use sim::event_log::EventLog;
use sim::net::rules::LinkEffect;
use sim::world::keyed::KeyedWorld;
use sim::world::{LinkRule, StopReason, World};
use sim_plan::{FaultProfile, Plan, PlanSize};

/// Runs the conformance suite on one machine beside another that accepts no connections.
fn conformance(seed: u64) {
    let network = Plan::generate(seed, FaultProfile::Calm, PlanSize::Smoke).network;
    let mut world = KeyedWorld::new(seed, network, DiskCost::default(), EventLog::new(false));
    world.add_rule(LinkRule { from: None, to: Some("silent".to_string()), effect: LinkEffect::Ignore });
    world.client(
        "checker",
        Arc::new(|env| {
            Box::pin(async move {
                let silent = env.net.resolve("silent:1").await?[0];
                for (name, case) in CASES {
                    let loopback = "127.0.0.1:0".parse()?;
                    let place = TestBed { env: env.clone(), loopback, silent, dir: name.to_string() };
                    case(&place).await.map_err(|violation| format!("{name}: {}", violation.0))?;
                }
                Ok(())
            })
        }),
    );
    assert_eq!(world.run_until(Duration::from_secs(600)), Ok(StopReason::ClientsEnded));
}

#[test]
fn it_passes_the_conformance_suite() {
    (0..20).for_each(conformance);
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
