//! Scenario: lost replies. Servers are killed when they commit and restart at once. Clients insert and delete the same
//! few rows, and wait for each reply before the next write.
//!
//! A client retries the write whose reply is lost. An insert that is executed twice finds its own row. Exactly-once
//! semantics must suppress the retry (Kudu paper §3.3, RIFL).

use std::time::Duration;

use crate::client_ops::{ClientOp, ClientProgram, ClientSetup, FlushMode, WriteKind, WriteWait};
use crate::draws::{MS, rounded};
use crate::faults::{Fault, TimedFault, Trigger, TriggeredFault};
use crate::host::Host;
use crate::plan::Plan;
use crate::profile::FaultProfile;
use crate::random_stream::RandomStream;

/// First of the keys that one client writes alone.
const FIRST_KEY: u32 = 5_000;
/// Keys of each client.
const KEYS_PER_CLIENT: u32 = 10;

fn percent(profile: FaultProfile) -> u64 {
    match profile {
        FaultProfile::Crash => 25,
        FaultProfile::Swarm => 10,
        FaultProfile::Copy | FaultProfile::Network | FaultProfile::Memory => 5,
        FaultProfile::Disk | FaultProfile::Clock | FaultProfile::Calm | FaultProfile::Tables => 0,
    }
}

/// Adds kills at commits to some plans.
pub(super) fn add(random: &mut RandomStream, plan: &mut Plan, profile: FaultProfile, work: Duration) {
    if !random.percent(percent(profile)) {
        return;
    }
    let first = plan.clients.len() as u8;
    for number in first..first + random.between(1, 2) as u8 {
        let program = insert_delete_client(random, number, work);
        plan.clients.push(program);
    }
    for _ in 0..random.between(3, 12) {
        let at = rounded(work.mul_f64(random.below(1_000) as f64 / 1_000.0));
        let target = Host::Tserver(random.below(u64::from(plan.cluster.tservers)) as u8);
        let (nth, span) = (random.between(1, 12) as u32, rounded(random.span(5 * MS, 500 * MS)));
        let kind = Fault::StrikeAfter { moment: Trigger::Commit, nth, blow: TriggeredFault::Kill, span };
        plan.faults.push(TimedFault { at, target, kind });
    }
    plan.faults.sort_by_key(|fault| fault.at);
}

/// Returns a client that inserts and deletes rows of its own.
fn insert_delete_client(random: &mut RandomStream, number: u8, work: Duration) -> ClientProgram {
    let ops = random.between(30, 80);
    let pace = rounded((work / ops as u32).clamp(2 * MS, 100 * MS));
    let setup =
        ClientSetup { number, flush: FlushMode::Sync, waits: WriteWait::No, pace, propagate_every: 0 };
    let keys = random.between(1, u64::from(KEYS_PER_CLIENT));
    let op = |random: &mut RandomStream| ClientOp::Write {
        kind: random.pick(&[WriteKind::Insert, WriteKind::Delete]),
        table: 0,
        key: FIRST_KEY + u32::from(number) * KEYS_PER_CLIENT + random.below(keys) as u32,
        value: random.below(1_000_000) as u32,
    };
    ClientProgram { setup, ops: (0..ops).map(|_| op(random)).collect() }
}
