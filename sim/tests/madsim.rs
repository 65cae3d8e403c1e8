//! The madsim world passes the conformance suite of [`node::env::Env`]. Only with `--cfg madsim`.
#![cfg(madsim)]

use std::sync::Arc;
use std::time::Duration;

use engine::disk::mem::DiskCost;
use nyala_common::env::conformance::{CASES, TestBed};
use sim::event_log::{EventLog, RunFingerprint};
use sim::net::rules::LinkEffect;
use sim::world::madsim::MadsimWorld;
use sim::world::{LinkRule, StopReason, World};
use sim_plan::{FaultProfile, Plan, PlanSize};

/// Runs the conformance suite on one machine beside another that accepts no connections.
fn conformance(seed: u64) -> RunFingerprint {
    let network = Plan::generate(seed, FaultProfile::Calm, PlanSize::Smoke).network;
    let log = EventLog::new(false);
    let mut world = MadsimWorld::new(seed, network, DiskCost::default(), log.clone());
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
    log.fingerprint()
}

#[test]
fn it_passes_the_conformance_suite() {
    for seed in 0..10 {
        conformance(seed);
    }
}
