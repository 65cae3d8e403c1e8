//! Scenario: pages of rows become unreadable or rot on one server as clients end. So reads find most of the damage: the
//! last checks and the scans before them, and not the compactions that rewrite files all the time.
//!
//! Other plans damage few pages at any time, most of which jobs read first or drop.

use std::time::Duration;

use crate::draws::rounded;
use crate::faults::{Fault, TimedFault};
use crate::host::Host;
use crate::plan::Plan;
use crate::profile::FaultProfile;
use crate::random_stream::RandomStream;
use crate::spec::EngineLimits;

/// Most faults, and most pages or bits of each.
const FAULTS_MAX: u64 = 3;
const PAGES_MAX: u64 = 8;

fn percent(profile: FaultProfile) -> u64 {
    match profile {
        FaultProfile::Disk => 35,
        FaultProfile::Swarm | FaultProfile::Copy => 4,
        FaultProfile::Crash
        | FaultProfile::Network
        | FaultProfile::Memory
        | FaultProfile::Calm
        | FaultProfile::Clock
        | FaultProfile::Tables => 0,
    }
}

/// Adds damage of one server to some plans. `work` is the time that clients work if nothing delays them.
pub(super) fn add(random: &mut RandomStream, plan: &mut Plan, profile: FaultProfile, work: Duration) {
    if plan.cluster.replicas < 3 || !random.percent(percent(profile)) {
        return;
    }
    plan.cluster.limits = EngineLimits::Tiny;
    let damaging = plan.faults.iter().find(|fault| fault.kind.kind().loses_durable_data());
    let any = Host::Tserver(random.below(u64::from(plan.cluster.tservers)) as u8);
    let target = damaging.map_or(any, |fault| fault.target);
    for _ in 0..random.between(1, FAULTS_MAX) {
        let at = rounded(work * random.between(60, 105) as u32 / 100);
        let count = random.between(1, PAGES_MAX) as u8;
        let kind = match random.percent(75) {
            true => Fault::UnreadablePages { pages: count },
            false => Fault::BitRot { bits: count },
        };
        plan.faults.push(TimedFault { at, target, kind });
    }
    plan.faults.sort_by_key(|fault| fault.at);
}
