//! Scenario: memory load. A few clients load rows of several kilobytes into servers with little memory. The engine's
//! limits are high, so flushes, backpressure and evictions from the page cache come from memory pressure only.

use std::time::Duration;

use crate::client_ops::{
    ClientOp, ClientProgram, ClientSetup, FlushMode, LARGE_VALUE_MIN, WriteKind, WriteWait,
};
use crate::draws::{MS, rounded};
use crate::faults::Fault;
use crate::plan::Plan;
use crate::profile::{FaultProfile, SMALL_PLAN_OPS_MAX};
use crate::random_stream::RandomStream;
use crate::spec::EngineLimits;

const MIB: u64 = 1 << 20;
/// Minimum window in bytes that lets several kilobytes cross a slow link within half a second.
const WINDOW_MIN: u32 = 256 << 10;
/// Retention of history that outlasts a scan under memory pressure.
const HISTORY: Duration = Duration::from_secs(20);
/// Keys that are loaded. Other clients use the keys below.
const KEYS: std::ops::Range<u64> = 2_000..4_000;

fn percent(profile: FaultProfile) -> u64 {
    match profile {
        FaultProfile::Memory => 70,
        FaultProfile::Swarm => 12,
        FaultProfile::Disk | FaultProfile::Copy => 6,
        FaultProfile::Crash
        | FaultProfile::Network
        | FaultProfile::Clock
        | FaultProfile::Calm
        | FaultProfile::Tables => 3,
    }
}

/// Adds clients with large rows to some plans, and reduces memory.
pub(super) fn add(random: &mut RandomStream, plan: &mut Plan, profile: FaultProfile) {
    // The check of memory trackers does not expect the memory that opening a tablet takes above the limit.
    let inspects =
        plan.clients.iter().flat_map(|client| &client.ops).any(|op| matches!(op, ClientOp::Inspect { .. }));
    if inspects || !random.percent(percent(profile)) {
        return;
    }
    // The limit must cover the tracked memory of all open files; large plans have more of them.
    let large = if plan.op_count() > SMALL_PLAN_OPS_MAX { 4 } else { 1 };
    plan.cluster.memory = large * random.pick(&[MIB, MIB, 2 * MIB]);
    plan.cluster.limits = EngineLimits::Normal;
    // A follower accepts an update as a whole, even one larger than the memory limit.
    plan.sending.batch = plan.sending.batch.min(16 << 10);
    // A response has several large rows and must arrive before the call times out.
    plan.network.window = plan.network.window.max(WINDOW_MIN);
    // A scan with few rows in each response takes longer.
    if !plan.data.history.is_zero() {
        plan.data.history = HISTORY;
    }
    for fault in &mut plan.faults {
        if let Fault::Memory { bytes, .. } = &mut fault.kind {
            *bytes = random.pick(&[MIB / 4, MIB / 2, MIB]);
        }
    }
    let (first, tables) = (plan.clients.len() as u8, u64::from(plan.cluster.tables));
    for number in first..first + random.between(1, 4) as u8 {
        let program = loader(random, number, tables);
        plan.clients.push(program);
    }
}

/// Returns a client that loads large rows, some keys more than once.
fn loader(random: &mut RandomStream, number: u8, tables: u64) -> ClientProgram {
    let pace = rounded(random.span(MS, 30 * MS));
    let (ops, keys) = (random.between(50, 120), random.between(20, KEYS.end - KEYS.start));
    let setup =
        ClientSetup { number, flush: FlushMode::Sync, waits: WriteWait::No, pace, propagate_every: 0 };
    let op = |random: &mut RandomStream| ClientOp::Write {
        kind: random.weighted(&[(WriteKind::Upsert, 6), (WriteKind::Insert, 2), (WriteKind::Delete, 1)]),
        table: random.below(tables) as u8,
        key: (KEYS.start + random.below(keys)) as u32,
        value: LARGE_VALUE_MIN + random.below(1_000_000) as u32,
    };
    ClientProgram { setup, ops: (0..ops).map(|_| op(random)).collect() }
}
