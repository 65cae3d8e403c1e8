//! Scenario: a member that is left behind. It is away until the others' logs no longer have what it lacks, and comes
//! back. With as many servers as replicas there is no other server for a new replica: its own is the only one, and it
//! must be taken out and copied to again (KUDU-2367).
//!
//! Logs of other small plans have all that a member lacks, or keep it for the member (`lagging_member`).

use crate::client_ops::{
    ClientOp, ClientProgram, ClientSetup, FlushMode, LARGE_VALUE_MIN, WriteKind, WriteWait,
};
use crate::draws::{MS, SECOND, rounded};
use crate::faults::{Fault, LinkDirection, TimedFault};
use crate::generate::HDD_SYNC_MIN;
use crate::host::Host;
use crate::plan::Plan;
use crate::profile::FaultProfile;
use crate::random_stream::RandomStream;
use crate::spec::EngineLimits;

/// Memory in which a server takes the large rows.
const MEMORY_MIN: u64 = 64 << 20;
/// First of the keys that are written, and their number.
const FIRST_KEY: u32 = 7_700;
const KEYS: u64 = 200;
/// Rows of all writers together. With the large ones they are several times what a small log spares for a member.
const ROWS: u64 = 500;
const LARGE_PERCENT: u64 = 25;

fn percent(profile: FaultProfile) -> u64 {
    match profile {
        FaultProfile::Copy => 30,
        FaultProfile::Crash => 15,
        FaultProfile::Swarm | FaultProfile::Network => 10,
        // A replica with a disk fault is copied anyway, and little memory delays flushes.
        FaultProfile::Disk
        | FaultProfile::Memory
        | FaultProfile::Clock
        | FaultProfile::Calm
        | FaultProfile::Tables => 0,
    }
}

/// Makes a member that is left behind by small logs the only fault of some plans.
pub(super) fn add(random: &mut RandomStream, plan: &mut Plan, profile: FaultProfile) {
    let cluster = &plan.cluster;
    let is_slow = plan.devices.sync >= HDD_SYNC_MIN || cluster.memory < MEMORY_MIN;
    let unsuitable = cluster.replicas < 3 || cluster.tservers > cluster.replicas || is_slow;
    if unsuitable || !random.percent(percent(profile)) {
        return;
    }
    plan.cluster.limits = EngineLimits::Tiny;
    // Members that are evicted for their silence do not come back with an old log.
    plan.cluster.follower_failed = 300 * SECOND;
    let first = plan.clients.len() as u8;
    let writers = random.between(3, 5);
    for number in first..first + writers as u8 {
        let program = writer(random, number, ROWS / writers);
        plan.clients.push(program);
    }
    let target = Host::Tserver(random.below(u64::from(plan.cluster.tservers)) as u8);
    let at = rounded(random.span(SECOND / 10, SECOND));
    let span = rounded(random.span(4 * SECOND, 9 * SECOND));
    let kind = match random.below(4) {
        0 => Fault::Pause { span },
        1 | 2 => Fault::Kill { down: span },
        _ => Fault::Isolate { way: LinkDirection::Both, span },
    };
    plan.faults = vec![TimedFault { at, target, kind }];
}

/// Returns a client that writes rows of one table as fast as the cluster accepts them.
fn writer(random: &mut RandomStream, number: u8, rows: u64) -> ClientProgram {
    let pace = rounded(random.span(MS, 8 * MS));
    let setup =
        ClientSetup { number, flush: FlushMode::Sync, waits: WriteWait::No, pace, propagate_every: 0 };
    let op = |random: &mut RandomStream| ClientOp::Write {
        kind: random.weighted(&[(WriteKind::Upsert, 6), (WriteKind::Insert, 2)]),
        table: 0,
        key: FIRST_KEY + random.below(KEYS) as u32,
        value: random.below(1_000_000) as u32
            + if random.percent(LARGE_PERCENT) { LARGE_VALUE_MIN } else { 0 },
    };
    ClientProgram { setup, ops: (0..rows).map(|_| op(random)).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::PlanSize;

    #[test]
    fn one_member_is_away_while_much_is_written() {
        let plans = (0..400).map(|seed| Plan::generate(seed, FaultProfile::Copy, PlanSize::Smoke));
        let keys = FIRST_KEY..FIRST_KEY + KEYS as u32;
        let is_of_writers = |op: &ClientOp| matches!(op, ClientOp::Write { key, .. } if keys.contains(key));
        // The scenario of a replaced server has no other fault.
        let is_wiped = |plan: &Plan| plan.faults.iter().any(|fault| matches!(fault.kind, Fault::Wipe { .. }));
        let plans: Vec<Plan> =
            plans.filter(|plan| plan.any_op(is_of_writers)).filter(|plan| !is_wiped(plan)).collect();
        assert!(plans.len() > 3, "only {} plans", plans.len());
        for plan in plans {
            let away = |fault: &TimedFault| fault.kind.span() >= 4 * SECOND && fault.at <= SECOND;
            assert!(plan.faults.iter().any(away), "{plan}");
            assert_eq!(plan.cluster.limits, EngineLimits::Tiny);
        }
    }
}
