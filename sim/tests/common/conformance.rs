//! The conformance suite of [`nyala_common::env::Env`] in a simulated world.

use std::sync::Arc;
use std::time::Duration;

use nyala_common::env::conformance::{CASES, TestBed};
use sim::net::rules::LinkEffect;
use sim::world::{LinkRule, StopReason, World};
use sim_plan::{FaultProfile, NetworkSpec, Plan, PlanSize};

/// Returns the network of a seed's plan.
pub(super) fn network(seed: u64) -> NetworkSpec {
    Plan::generate(seed, FaultProfile::Calm, PlanSize::Smoke).network
}

/// Runs the suite on one machine beside another that accepts no connections.
pub(super) fn run(world: &mut dyn World) {
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
