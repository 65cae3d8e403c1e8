//! Scenario: replicas that do not open. Metadata of a server's tablets rots, and the server restarts: some replicas
//! fail to open. They must be evicted, copied again or deleted, also while tables are dropped, and copies onto them are
//! given up before they begin, as their source dies (KUDU-1607, KUDU-1968).
//!
//! In other plans a rotten file is read again only if the server happens to restart before its replica is replaced.

use std::time::Duration;

use super::clients::{add_client, drop_operators};
use crate::client_ops::{ClientOp, WriteKind};
use crate::draws::{MS, SECOND, rounded};
use crate::faults::{Fault, MetadataKind, TimedFault, Trigger, TriggeredFault};
use crate::host::Host;
use crate::plan::Plan;
use crate::profile::FaultProfile;
use crate::random_stream::RandomStream;
use crate::spec::EngineLimits;

/// Memory of a server, in bytes, that takes the tablets of all tables.
const MEMORY_MIN: u64 = 64 << 20;
/// First of the keys that are written, and their number.
const FIRST_KEY: u32 = 8_100;
const KEYS: u64 = 60;

fn percent(profile: FaultProfile) -> u64 {
    match profile {
        FaultProfile::Disk => 20,
        FaultProfile::Copy => 12,
        FaultProfile::Swarm => 5,
        FaultProfile::Crash
        | FaultProfile::Network
        | FaultProfile::Memory
        | FaultProfile::Clock
        | FaultProfile::Calm
        | FaultProfile::Tables => 0,
    }
}

/// Makes rot that a restart meets, and deaths of the copies' sources, the only faults of some plans; true for those.
pub(super) fn add(random: &mut RandomStream, plan: &mut Plan, profile: FaultProfile) -> bool {
    let unsuitable = plan.cluster.replicas < 3 || plan.cluster.memory < MEMORY_MIN || plan.changes_masters();
    if unsuitable || !random.percent(percent(profile)) {
        return false;
    }
    drop_operators(plan);
    // Full segments, which are read at a restart, are there soon.
    plan.cluster.limits = EngineLimits::Tiny;
    plan.cluster.tservers = plan.cluster.tservers.max(random.pick(&[3, 4, 5]));
    let rotten = random.below(u64::from(plan.cluster.tservers)) as u8;
    plan.faults.clear();
    let mut at = random.span(SECOND / 2, 2 * SECOND);
    for _ in 0..random.between(1, 3) {
        plan.faults.extend(rot(random, Host::Tserver(rotten), rounded(at)));
        at += random.span(SECOND, 4 * SECOND);
    }
    let others = (0..plan.cluster.tservers).filter(|number| *number != rotten).map(Host::Tserver);
    if random.percent(50) {
        plan.faults.extend(others.map(|host| death_of_source(random, host)));
    }
    plan.faults.sort_by_key(|fault| fault.at);
    let until = at + SECOND;
    add_writer(random, plan, until);
    add_changer(random, plan, until);
    true
}

/// Returns rot of a server's metadata, and a restart right after it.
fn rot(random: &mut RandomStream, target: Host, at: Duration) -> Vec<TimedFault> {
    let (files, bits) = (random.pick(MetadataKind::ALL), random.between(1, 4) as u8);
    let down = rounded(random.span(10 * MS, SECOND));
    let rots = TimedFault { at, target, kind: Fault::MetadataRot { files, bits } };
    vec![rots, TimedFault { at: at + MS, target, kind: Fault::Kill { down } }]
}

/// Returns the death of a server that another one is about to copy from.
fn death_of_source(random: &mut RandomStream, target: Host) -> TimedFault {
    let (nth, span) = (random.between(1, 2) as u32, rounded(random.span(10 * MS, SECOND)));
    let kind = Fault::StrikeAfter { moment: Trigger::Source, nth, blow: TriggeredFault::Kill, span };
    TimedFault { at: SECOND / 2, target, kind }
}

fn add_writer(random: &mut RandomStream, plan: &mut Plan, until: Duration) {
    let tables = u64::from(plan.cluster.tables);
    let op = |random: &mut RandomStream| ClientOp::Write {
        kind: random.weighted(&[(WriteKind::Upsert, 6), (WriteKind::Delete, 1)]),
        table: random.below(tables) as u8,
        key: FIRST_KEY + random.below(KEYS) as u32,
        value: random.below(1_000_000) as u32,
    };
    add_drawn_client(random, plan, until, 20 * MS, op);
}

fn add_changer(random: &mut RandomStream, plan: &mut Plan, until: Duration) {
    let tables = u64::from(plan.cluster.tables);
    let op = |random: &mut RandomStream| {
        let (table, range) = (random.below(tables) as u8, random.below(3) as u8);
        match random.below(5) {
            0 => ClientOp::ShortTable { number: random.below(4) as u8, rows: 2 },
            1 | 2 => ClientOp::AddRange { table, range },
            _ => ClientOp::DropRange { table, range },
        }
    };
    add_drawn_client(random, plan, until, 300 * MS, op);
}

fn add_drawn_client(
    random: &mut RandomStream,
    plan: &mut Plan,
    until: Duration,
    pace: Duration,
    op: impl Fn(&mut RandomStream) -> ClientOp,
) {
    let count = (until.as_millis() / pace.as_millis()).min(200);
    let ops = (0..count).map(|_| op(random)).collect();
    add_client(plan, pace, ops);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::PlanSize;

    #[test]
    fn a_server_restarts_right_after_its_metadata_rots() {
        let plans = (0..300).map(|seed| Plan::generate(seed, FaultProfile::Disk, PlanSize::Smoke));
        let restarts = |plan: &Plan| {
            plan.faults.windows(2).any(|pair| {
                matches!((&pair[0].kind, &pair[1].kind), (Fault::MetadataRot { .. }, Fault::Kill { .. }))
                    && pair[1].at == pair[0].at + MS
            })
        };
        let plans: Vec<Plan> = plans.filter(restarts).collect();
        assert!(plans.len() > 10, "only {} plans", plans.len());
        assert!(plans.iter().all(|plan| plan.cluster.limits == EngineLimits::Tiny));
        assert!(plans.iter().any(|plan| plan.cluster.tservers > plan.cluster.replicas));
    }
}
