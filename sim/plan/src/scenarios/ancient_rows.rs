//! Scenario: rows whose history is no longer kept. A few rows are inserted, updated and deleted in turn, with pauses
//! longer than the history, in tablets that flush all the time. So a deleted row is dropped, or is on disk beside its
//! successor with the same key, when the next write of the key comes.
//!
//! Other plans with a short history seldom write a key again after it.

use std::time::Duration;

use crate::client_ops::{
    ClientOp, ClientProgram, ClientSetup, FlushMode, ReadMode, ReplicaChoice, WriteKind, WriteWait,
};
use crate::draws::{MS, SECOND, rounded};
use crate::generate::HDD_SYNC_MIN;
use crate::plan::Plan;
use crate::profile::FaultProfile;
use crate::random_stream::RandomStream;
use crate::spec::EngineLimits;

/// First of the keys that are written, and their number.
const FIRST_KEY: u32 = 7_400;
const KEYS: u64 = 5;
/// Rounds of writes. Each ends with a pause.
const ROUNDS: u64 = 7;
const WRITES: u64 = 6;
/// Retention of history where the plan had none.
const HISTORY: Duration = Duration::from_secs(2);
const HISTORY_MAX: Duration = Duration::from_secs(5);

fn percent(profile: FaultProfile) -> u64 {
    match profile {
        FaultProfile::Crash => 12,
        FaultProfile::Swarm | FaultProfile::Calm => 8,
        FaultProfile::Disk | FaultProfile::Memory | FaultProfile::Network => 4,
        FaultProfile::Copy | FaultProfile::Clock | FaultProfile::Tables => 0,
    }
}

/// Adds a client that writes the same rows again after their history.
pub(super) fn add(random: &mut RandomStream, plan: &mut Plan, profile: FaultProfile) {
    // Flushes of a spinning disk take longer than the pauses, which a long history would stretch beyond a run.
    let unsuitable = plan.devices.sync >= HDD_SYNC_MIN || plan.data.history > HISTORY_MAX;
    if unsuitable || !random.percent(percent(profile)) {
        return;
    }
    if plan.data.history.is_zero() {
        plan.data.history = HISTORY;
    }
    plan.cluster.limits = EngineLimits::Tiny;
    let number = plan.clients.len() as u8;
    let table = random.below(u64::from(plan.cluster.tables)) as u8;
    let program = writer(random, number, table, plan.data.history);
    plan.clients.push(program);
}

fn writer(random: &mut RandomStream, number: u8, table: u8, history: Duration) -> ClientProgram {
    let pace = rounded(random.span(5 * MS, 40 * MS));
    let setup =
        ClientSetup { number, flush: FlushMode::Sync, waits: WriteWait::No, pace, propagate_every: 0 };
    let mut ops = Vec::new();
    for _ in 0..ROUNDS {
        // In most rounds all writes are of one kind: those of the next round meet rows in that state.
        let most = random.weighted(&[
            (WriteKind::Delete, 4),
            (WriteKind::Insert, 3),
            (WriteKind::Update, 3),
            (WriteKind::Upsert, 1),
        ]);
        for _ in 0..WRITES {
            let kind = if random.percent(80) { most } else { random.pick(WriteKind::ALL) };
            let (key, value) = (FIRST_KEY + random.below(KEYS) as u32, random.below(1_000_000) as u32);
            ops.push(ClientOp::Write { kind, table, key, value });
        }
        ops.push(read(table));
        ops.push(ClientOp::Wait { span: rounded(random.span(history / 4, history + SECOND)) });
    }
    ops.push(read(table));
    ClientProgram { setup, ops }
}

fn read(table: u8) -> ClientOp {
    ClientOp::Scan {
        table,
        low: FIRST_KEY,
        high: FIRST_KEY + KEYS as u32,
        at: ReadMode::Snapshot,
        back: Duration::ZERO,
        ordered: true,
        from: ReplicaChoice::Leader,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::PlanSize;

    #[test]
    fn rows_are_written_again_after_their_history() {
        let plans = (0..300).map(|seed| Plan::generate(seed, FaultProfile::Crash, PlanSize::Smoke));
        let keys = FIRST_KEY..FIRST_KEY + KEYS as u32;
        let is_of_writer = |op: &ClientOp| matches!(op, ClientOp::Write { key, .. } if keys.contains(key));
        let plans: Vec<Plan> = plans.filter(|plan| plan.any_op(is_of_writer)).collect();
        assert!(plans.len() > 10, "only {} plans", plans.len());
        for plan in plans {
            assert!(!plan.data.history.is_zero(), "{plan}");
            let longest =
                |op: &ClientOp| matches!(op, ClientOp::Wait { span } if *span > plan.data.history / 2);
            assert!(plan.any_op(longest), "{plan}");
        }
    }
}
