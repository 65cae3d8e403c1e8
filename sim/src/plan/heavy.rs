//! Servers with less memory than is written to them: a few clients load rows of many kilobytes while tablets would keep
//! them in memory for long, so that what gives way is what memory makes give way.

use std::time::Duration;

use super::faults::Fault;
use super::generate::{Profile, rounded};
use super::more::SMALL_OPS;
use super::ops::{ClientProgram, ClientSetup, Flush, HEAVY, Op, Waits, WriteKind};
use super::{Limits, Plan};
use crate::draw::Draw;

const MIB: u64 = 1 << 20;
const MS: Duration = Duration::from_millis(1);
/// What may be on its way at once, if many kilobytes are to go over a slow link in half a second.
const WINDOW: u32 = 256 << 10;
const HISTORY: Duration = Duration::from_secs(20);
/// Keys that are loaded, beyond those that most plans write.
const KEYS: std::ops::Range<u64> = 2_000..4_000;

/// How many plans in a hundred have heavy rows.
fn percent_heavy(profile: Profile) -> u64 {
    match profile {
        Profile::Memory => 70,
        Profile::Swarm => 12,
        Profile::Disk | Profile::Copy => 6,
        Profile::Crash | Profile::Network | Profile::Clock | Profile::Calm => 3,
    }
}

/// Heavy rows in some plans, and little memory for them.
pub(super) fn heavy(draw: &mut Draw, plan: &mut Plan, profile: Profile) {
    // Who looks at a server's memory knows nothing of what it had to take to open a tablet.
    let looked_at =
        plan.clients.iter().flat_map(|client| &client.ops).any(|op| matches!(op, Op::Inspect { .. }));
    if looked_at || !draw.percent(percent_heavy(profile)) {
        return;
    }
    // Less would not hold what is kept of every open file; large plans have more of them.
    let large = if plan.op_count() > SMALL_OPS { 4 } else { 1 };
    plan.cluster.memory = large * draw.pick(&[MIB, MIB, 2 * MIB]);
    plan.cluster.limits = Limits::Normal;
    // What a leader sends at once is taken whole where it is more than all the memory that there may be.
    plan.sending.batch = plan.sending.batch.min(16 << 10);
    // An answer has several rows, and must be through before its call is given up.
    plan.network.window = plan.network.window.max(WINDOW);
    // A scan that is given a few rows at a time takes longer.
    if !plan.data.history.is_zero() {
        plan.data.history = HISTORY;
    }
    for fault in &mut plan.faults {
        if let Fault::Memory { bytes, .. } = &mut fault.kind {
            *bytes = draw.pick(&[MIB / 4, MIB / 2, MIB]);
        }
    }
    let (present, tables) = (plan.clients.len() as u8, u64::from(plan.cluster.tables));
    for number in present..present + draw.between(1, 4) as u8 {
        let program = loader(draw, number, tables);
        plan.clients.push(program);
    }
}

/// One client that loads rows, some of them more than once.
fn loader(draw: &mut Draw, number: u8, tables: u64) -> ClientProgram {
    let pace = rounded(draw.span(MS, 30 * MS));
    let (ops, keys) = (draw.between(50, 120), draw.between(20, KEYS.end - KEYS.start));
    let setup = ClientSetup { number, flush: Flush::Sync, waits: Waits::No, pace, propagate_every: 0 };
    let op = |draw: &mut Draw| Op::Write {
        kind: draw.weighted(&[(WriteKind::Upsert, 6), (WriteKind::Insert, 2), (WriteKind::Delete, 1)]),
        table: draw.below(tables) as u8,
        key: (KEYS.start + draw.below(keys)) as u32,
        value: HEAVY + draw.below(1_000_000) as u32,
    };
    ClientProgram { setup, ops: (0..ops).map(|_| op(draw)).collect() }
}
