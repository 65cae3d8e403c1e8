//! Scans that last: one client fills a table, another reads it a few rows at a time with pauses between, and servers
//! die in the middle of that.
//!
//! Most tables of small plans have fewer rows in a tablet than one answer holds, so that nobody has to go on where
//! another server stopped.

use std::time::Duration;

use super::faults::Fault;
use super::generate::{Profile, replicas, rounded};
use super::ops::{ClientProgram, ClientSetup, Flush, Op, Waits, WriteKind};
use super::{Host, Plan, TimedFault};
use crate::draw::Draw;

const SECOND: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);
/// Keys that are filled, from the first on.
const FIRST_KEY: u32 = 6_000;

fn percent_slow(profile: Profile) -> u64 {
    match profile {
        Profile::Crash | Profile::Copy => 20,
        Profile::Swarm | Profile::Network => 12,
        Profile::Memory | Profile::Disk => 6,
        Profile::Clock | Profile::Calm => 3,
    }
}

/// Slow scans in some plans.
pub(super) fn slow_scans(draw: &mut Draw, plan: &mut Plan, profile: Profile, work: Duration) {
    // What is forgotten meanwhile cannot be read.
    if !plan.data.history.is_zero() || !draw.percent(percent_slow(profile)) {
        return;
    }
    let span = work.clamp(SECOND, 5 * SECOND);
    let present = plan.clients.len() as u8;
    plan.clients.extend([filler(draw, present), reader(draw, present + 1, span)]);
    if !matches!(profile, Profile::Crash | Profile::Copy | Profile::Swarm) {
        return;
    }
    for _ in 0..draw.between(2, 6) {
        let at = rounded(draw.span(SECOND / 4, 2 * span));
        let target = Host::Tserver(draw.below(u64::from(plan.cluster.tservers)) as u8);
        let down = rounded(draw.span(5 * MS, SECOND));
        plan.faults.push(TimedFault { at, target, kind: Fault::Kill { down } });
    }
    plan.faults.sort_by_key(|fault| fault.at);
}

/// Fills the first table, some rows at a time.
fn filler(draw: &mut Draw, number: u8) -> ClientProgram {
    let (rows, batch) = (draw.between(20, 100) as u32, draw.between(5, 30) as u32);
    let setup = ClientSetup { number, flush: Flush::Manual, waits: Waits::No, pace: MS, propagate_every: 0 };
    let mut ops = Vec::new();
    for row in 0..rows {
        let (key, value) = (FIRST_KEY + row, draw.below(1_000_000) as u32);
        ops.push(Op::Write { kind: WriteKind::Upsert, table: 0, key, value });
        if row % batch == batch - 1 || row + 1 == rows {
            ops.push(Op::Flush {});
        }
    }
    ClientProgram { setup, ops }
}

fn reader(draw: &mut Draw, number: u8, span: Duration) -> ClientProgram {
    let pace = span / 10;
    let setup = ClientSetup { number, flush: Flush::Sync, waits: Waits::No, pace, propagate_every: 0 };
    let op = |draw: &mut Draw| Op::SlowScan {
        table: 0,
        ordered: draw.percent(70),
        pause: rounded(draw.span(span / 200, span / 20)),
        from: replicas(draw),
    };
    ClientProgram { setup, ops: (0..draw.between(2, 6)).map(|_| op(draw)).collect() }
}
