//! Scenario: slow scans. One client fills a table. Another reads it a few rows at a time with pauses, while servers are
//! killed.
//!
//! Tablets of other small plans have fewer rows than one scan response holds. No client has to resume a scan at another
//! server there.

use std::time::Duration;

use crate::client_ops::{ClientOp, ClientProgram, ClientSetup, FlushMode, WriteKind, WriteWait};
use crate::draws::{MS, SECOND, replica_choice, rounded};
use crate::faults::{Fault, TimedFault};
use crate::host::Host;
use crate::plan::Plan;
use crate::profile::FaultProfile;
use crate::random_stream::RandomStream;

/// First of the keys that are filled.
const FIRST_KEY: u32 = 6_000;

fn percent(profile: FaultProfile) -> u64 {
    match profile {
        FaultProfile::Crash | FaultProfile::Copy => 20,
        FaultProfile::Swarm | FaultProfile::Network => 12,
        FaultProfile::Memory | FaultProfile::Disk => 6,
        FaultProfile::Clock | FaultProfile::Calm | FaultProfile::Tables => 3,
    }
}

/// Adds slow scans to some plans.
pub(super) fn add(random: &mut RandomStream, plan: &mut Plan, profile: FaultProfile, work: Duration) {
    // A slow scan outlives a short history.
    if !plan.data.history.is_zero() || !random.percent(percent(profile)) {
        return;
    }
    let span = work.clamp(SECOND, 5 * SECOND);
    let first = plan.clients.len() as u8;
    plan.clients.extend([filler(random, first), reader(random, first + 1, span)]);
    if !matches!(profile, FaultProfile::Crash | FaultProfile::Copy | FaultProfile::Swarm) {
        return;
    }
    for _ in 0..random.between(2, 6) {
        let at = rounded(random.span(SECOND / 4, 2 * span));
        let target = Host::Tserver(random.below(u64::from(plan.cluster.tservers)) as u8);
        let down = rounded(random.span(5 * MS, SECOND));
        plan.faults.push(TimedFault { at, target, kind: Fault::Kill { down } });
    }
    plan.faults.sort_by_key(|fault| fault.at);
}

/// Returns a client that fills the first table, a batch of rows at a time.
fn filler(random: &mut RandomStream, number: u8) -> ClientProgram {
    let (rows, batch) = (random.between(20, 100) as u32, random.between(5, 30) as u32);
    let setup =
        ClientSetup { number, flush: FlushMode::Manual, waits: WriteWait::No, pace: MS, propagate_every: 0 };
    let mut ops = Vec::new();
    for row in 0..rows {
        let (key, value) = (FIRST_KEY + row, random.below(1_000_000) as u32);
        ops.push(ClientOp::Write { kind: WriteKind::Upsert, table: 0, key, value });
        if row % batch == batch - 1 || row + 1 == rows {
            ops.push(ClientOp::Flush {});
        }
    }
    ClientProgram { setup, ops }
}

/// Returns a client that reads the first table slowly.
fn reader(random: &mut RandomStream, number: u8, span: Duration) -> ClientProgram {
    let pace = span / 10;
    let setup =
        ClientSetup { number, flush: FlushMode::Sync, waits: WriteWait::No, pace, propagate_every: 0 };
    let op = |random: &mut RandomStream| ClientOp::SlowScan {
        table: 0,
        ordered: random.percent(70),
        pause: rounded(random.span(span / 200, span / 20)),
        from: replica_choice(random),
    };
    ClientProgram { setup, ops: (0..random.between(2, 6)).map(|_| op(random)).collect() }
}
