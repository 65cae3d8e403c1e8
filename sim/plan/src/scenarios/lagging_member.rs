//! Scenario: a lagging member. One member is unreachable while clients write more than the minimum that a log retains.
//! It then catches up from the entries that the leader's log anchors for it (Kudu paper §3.3). Maintenance flushes and
//! runs log GC meanwhile.
//!
//! Other small plans write too little to one tablet. An evicted member is copied instead, which hides a log that
//! dropped entries too early.

use std::time::Duration;

use crate::client_ops::{ClientOp, ClientProgram, ClientSetup, FlushMode, WriteKind, WriteWait};
use crate::draws::{MS, SECOND, rounded};
use crate::faults::{Fault, LinkDirection, TimedFault};
use crate::host::Host;
use crate::plan::Plan;
use crate::profile::FaultProfile;
use crate::random_stream::RandomStream;
use crate::spec::EngineLimits;

/// First of the keys that are written.
const FIRST_KEY: u32 = 7_000;
/// Number of keys that are written.
const KEYS: u64 = 100;
/// Time until a member is evicted. It is longer than any fault here.
const FOLLOWER_FAILED: Duration = Duration::from_secs(300);

fn percent(profile: FaultProfile) -> u64 {
    match profile {
        FaultProfile::Crash | FaultProfile::Network => 12,
        FaultProfile::Swarm | FaultProfile::Copy => 10,
        FaultProfile::Memory | FaultProfile::Clock => 4,
        // A replica with a disk fault is copied instead of catching up.
        FaultProfile::Disk | FaultProfile::Calm | FaultProfile::Tables => 0,
    }
}

/// Adds a lagging member to some plans, and logs that retain all entries it lacks.
pub(super) fn add(random: &mut RandomStream, plan: &mut Plan, profile: FaultProfile) {
    let unsuitable = plan.cluster.limits == EngineLimits::Normal || plan.cluster.replicas < 3;
    if unsuitable || !random.percent(percent(profile)) {
        return;
    }
    plan.cluster.limits = EngineLimits::Spared;
    plan.cluster.follower_failed = FOLLOWER_FAILED;
    let first = plan.clients.len() as u8;
    for number in first..first + random.between(3, 5) as u8 {
        let program = writer(random, number);
        plan.clients.push(program);
    }
    let tservers = u64::from(plan.cluster.tservers);
    for _ in 0..random.between(1, 2) {
        let at = rounded(random.span(SECOND / 10, SECOND));
        let span = rounded(random.span(2 * SECOND, 5 * SECOND));
        let kind = match random.below(4) {
            0 => Fault::Pause { span },
            1 => Fault::Kill { down: span },
            2 => Fault::PowerCut { down: span },
            _ => Fault::Isolate { way: LinkDirection::Both, span },
        };
        plan.faults.push(TimedFault { at, target: Host::Tserver(random.below(tservers) as u8), kind });
    }
    plan.faults.sort_by_key(|fault| fault.at);
}

/// Returns a client that writes rows as fast as the cluster accepts them.
fn writer(random: &mut RandomStream, number: u8) -> ClientProgram {
    let pace = rounded(random.span(MS, 10 * MS));
    let setup =
        ClientSetup { number, flush: FlushMode::Sync, waits: WriteWait::No, pace, propagate_every: 0 };
    let ops = random.between(120, 240);
    let op = |random: &mut RandomStream| ClientOp::Write {
        kind: random.weighted(&[(WriteKind::Upsert, 6), (WriteKind::Insert, 2), (WriteKind::Delete, 1)]),
        table: 0,
        key: FIRST_KEY + random.below(KEYS) as u32,
        value: random.below(1_000_000) as u32,
    };
    ClientProgram { setup, ops: (0..ops).map(|_| op(random)).collect() }
}
