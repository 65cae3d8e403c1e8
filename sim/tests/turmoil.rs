//! turmoil's world passes the conformance suite of every environment, kills hosts correctly, and is deterministic.

use std::time::Duration;

use nyala_common::env::conformance::{CASES, TestBed};
use sim::event_log::{EventLog, RunFingerprint};
use sim::world::turmoil::TurmoilWorld;

fn world(seed: u64) -> TurmoilWorld {
    TurmoilWorld::new(seed, Duration::from_secs(600), EventLog::new(false))
}

/// Runs the conformance suite on one machine beside another that cannot be reached.
fn conforms(seed: u64, loopback: &'static str) -> RunFingerprint {
    let mut world = world(seed);
    let silent = (world.ip("silent"), 7051).into();
    let own = world.ip("tested");
    world.host("silent", |_| std::future::pending());
    world.client("tested", move |env| async move {
        let ip = if loopback == "own" { own } else { loopback.parse()? };
        for (name, case) in CASES {
            let place =
                TestBed { env: env.clone(), loopback: (ip, 0).into(), silent, dir: "disk".to_string() };
            case(&place).await.map_err(|violation| format!("{name}: {}", violation.0))?;
        }
        Ok(())
    });
    world.hold("tested", "silent");
    world.run().expect("it conforms");
    world.fingerprint()
}

#[test]
fn conforms_on_loopback() {
    conforms(1, "127.0.0.1");
}

#[test]
fn conforms_on_its_own_address_and_repeats_itself() {
    assert_eq!(conforms(7, "own"), conforms(7, "own"));
    assert_ne!(conforms(7, "own"), conforms(8, "own"));
}
