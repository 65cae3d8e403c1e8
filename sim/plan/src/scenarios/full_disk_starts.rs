//! Scenario: starts on full disks. A tablet server is killed while one of its disks is full, and starts before there is
//! space again. Tablets that cannot be opened must be opened later, without another start.
//!
//! ```text
//! full ├───── kill ├─ down ─┤ start ─────────────┤ space: all tablets are open soon
//! ```
//!
//! In other plans a server rarely starts while its disk is full.

use crate::draws::{MS, rounded};
use crate::faults::{Fault, TimedFault};
use crate::host::Host;
use crate::plan::Plan;
use crate::profile::FaultProfile;
use crate::random_stream::RandomStream;

fn percent(profile: FaultProfile) -> u64 {
    match profile {
        FaultProfile::Disk => 60,
        FaultProfile::Swarm => 40,
        FaultProfile::Copy
        | FaultProfile::Crash
        | FaultProfile::Network
        | FaultProfile::Memory
        | FaultProfile::Clock
        | FaultProfile::Calm
        | FaultProfile::Tables => 0,
    }
}

/// Kills tablet servers whose disk is full, in some plans.
pub(super) fn add(random: &mut RandomStream, plan: &mut Plan, profile: FaultProfile) {
    if !random.percent(percent(profile)) {
        return;
    }
    let of_tservers = plan.faults.iter().filter(|fault| matches!(fault.target, Host::Tserver(_)));
    let kills: Vec<TimedFault> = of_tservers.filter_map(|fault| kill_within(random, fault)).collect();
    plan.faults.extend(kills);
    plan.faults.sort_by_key(|fault| fault.at);
}

/// Returns a death that ends while the disk of a fault is full; `None` for another fault, or a short one.
fn kill_within(random: &mut RandomStream, fault: &TimedFault) -> Option<TimedFault> {
    let Fault::DiskFull { span, .. } = fault.kind else { return None };
    let (at, down_max) = (fault.at + rounded(span / 4), span / 2);
    let down = rounded(random.span(10 * MS, down_max));
    let kind = Fault::Kill { down };
    (down_max > 10 * MS).then_some(TimedFault { at, target: fault.target, kind })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::profile::PlanSize;

    #[test]
    fn some_servers_start_while_their_disk_is_full() {
        let starts = |plan: &Plan| {
            let is_full_at = |host: Host, at: Duration| {
                plan.faults.iter().any(|fault| {
                    let is_full = matches!(fault.kind, Fault::DiskFull { .. }) && fault.target == host;
                    is_full && fault.at <= at && at < fault.at + fault.kind.span()
                })
            };
            let kills = plan.faults.iter().filter(|fault| matches!(fault.kind, Fault::Kill { .. }));
            kills.filter(|kill| is_full_at(kill.target, kill.at + kill.kind.span())).count()
        };
        let plans = (0..200).map(|seed| Plan::generate(seed, FaultProfile::Disk, PlanSize::Smoke));
        let plans: Vec<Plan> = plans.filter(|plan| starts(plan) > 0).collect();
        assert!(plans.len() > 15, "only {} plans", plans.len());
        assert!(plans.iter().all(|plan| plan.faults.is_sorted_by_key(|fault| fault.at)));
    }
}
