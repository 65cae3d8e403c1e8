//! The world over madsim's executor keeps what an environment promises. Only with `--cfg madsim`.
#![cfg(madsim)]

use std::sync::Arc;
use std::time::Duration;

use engine::disk::mem::DiskCost;
use node::env::conformance::{CASES, Place};
use sim::net::rules::Effect;
use sim::plan::{Plan, Profile, Size};
use sim::trace::{EventLog, Fingerprint};
use sim::world::madsim::MadsimWorld;
use sim::world::{LinkRule, Stopped, World};

/// Runs the conformance suite on one machine beside another that lets nobody in.
fn conformance(seed: u64) -> Fingerprint {
    let network = Plan::generate(seed, Profile::Calm, Size::Smoke).network;
    let log = EventLog::new(false);
    let mut world = MadsimWorld::new(seed, network, DiskCost::default(), log.clone());
    world.add_rule(LinkRule { from: None, to: Some("silent".to_string()), effect: Effect::Ignore });
    world.client(
        "checker",
        Arc::new(|env| {
            Box::pin(async move {
                let silent = env.net.resolve("silent:1").await?[0];
                for (name, case) in CASES {
                    let loopback = "127.0.0.1:0".parse()?;
                    let place = Place { env: env.clone(), loopback, silent, dir: name.to_string() };
                    case(&place).await.map_err(|violation| format!("{name}: {}", violation.0))?;
                }
                Ok(())
            })
        }),
    );
    assert_eq!(world.run_until(Duration::from_secs(600)), Ok(Stopped::ClientsEnded));
    log.fingerprint()
}

#[test]
fn it_keeps_what_an_environment_promises() {
    for seed in 0..10 {
        conformance(seed);
    }
}
