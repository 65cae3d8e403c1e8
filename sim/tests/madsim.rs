//! The madsim world passes the conformance suite of [`node::env::Env`]. Only with `--cfg madsim`.
#![cfg(madsim)]

#[path = "common/conformance.rs"]
mod conformance;

use engine::disk::mem::DiskCost;
use sim::event_log::EventLog;
use sim::world::madsim::MadsimWorld;

#[test]
fn it_passes_the_conformance_suite() {
    for seed in 0..10 {
        let (network, log) = (conformance::network(seed), EventLog::new(false));
        conformance::run(&mut MadsimWorld::new(seed, network, DiskCost::default(), log));
    }
}
