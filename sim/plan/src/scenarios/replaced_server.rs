//! Scenario: a replaced server. A server loses its disks and comes back at its address with a new identity, as after a
//! repair. Its former replicas must be replaced, also where there is no other server than the new one, and all of its
//! tablets are copied to it at about the same time (KUDU-1613, KUDU-951).
//!
//! In some plans the servers are far apart: the copies take longer than a follower may be silent (KUDU-2020).

use std::time::Duration;

use crate::client_ops::{ClientOp, ClientProgram, ClientSetup, FlushMode, WriteKind, WriteWait};
use crate::draws::{MS, SECOND, rounded};
use crate::faults::{DiskEffect, Fault, TimedFault};
use crate::host::Host;
use crate::plan::Plan;
use crate::profile::FaultProfile;
use crate::random_stream::RandomStream;

/// First of the keys that are written, and their number.
const FIRST_KEY: u32 = 7_900;
const KEYS: u64 = 40;
/// Latency between servers that are far apart. A tablet is copied in a dozen round trips or more.
const FAR_MIN: Duration = Duration::from_millis(110);
const FAR_MAX: Duration = Duration::from_millis(140);
/// Ops of each client if servers are far apart: one takes a second with its retries.
const FAR_OPS_MAX: usize = 40;

fn percent(profile: FaultProfile) -> u64 {
    match profile {
        FaultProfile::Copy => 12,
        FaultProfile::Crash | FaultProfile::Swarm => 4,
        FaultProfile::Disk
        | FaultProfile::Network
        | FaultProfile::Memory
        | FaultProfile::Clock
        | FaultProfile::Calm
        | FaultProfile::Tables => 0,
    }
}

/// Adds a replaced server to some plans, as their only fault.
pub(super) fn add(random: &mut RandomStream, plan: &mut Plan, profile: FaultProfile) {
    let is_damaged = |fault: &TimedFault| fault.kind.kind().disk_effect() != DiskEffect::None;
    let unsuitable = plan.cluster.replicas < 3 || plan.faults.iter().any(is_damaged);
    if unsuitable || !random.percent(percent(profile)) {
        return;
    }
    // What operators do to members may leave a tablet with two replicas, one of them on this server.
    for op in plan.clients.iter_mut().flat_map(|client| &mut client.ops).filter(|op| op.is_by_operator()) {
        *op = ClientOp::Wait { span: Duration::from_millis(1) };
    }
    plan.cluster.follower_failed = random.pick(&[2, 3, 5]) * SECOND;
    let target = Host::Tserver(random.below(u64::from(plan.cluster.tservers)) as u8);
    let at = rounded(random.span(2 * SECOND, 4 * SECOND));
    let down = rounded(random.span(SECOND / 10, 2 * SECOND));
    plan.faults = vec![TimedFault { at, target, kind: Fault::Wipe { down } }];
    let number = plan.clients.len() as u8;
    let program = writer(random, number, plan.cluster.tables, at + plan.cluster.follower_failed + 6 * SECOND);
    plan.clients.push(program);
    // A slow scan must end before its history is dropped.
    if plan.data.history.is_zero() && random.percent(40) {
        move_apart(random, plan);
    }
}

/// Makes every message take long, so that a copy lasts longer than the silence after which a follower is evicted.
fn move_apart(random: &mut RandomStream, plan: &mut Plan) {
    let latency = rounded(random.span(FAR_MIN, FAR_MAX));
    (plan.network.latency, plan.network.jitter, plan.network.loss_per_mille) = (latency, latency / 8, 0);
    plan.cluster.raft_heartbeat = 500 * MS;
    plan.cluster.follower_failed = 2 * SECOND;
    (plan.cluster.rpc_timeout, plan.cluster.op_timeout) = (3 * SECOND, 30 * SECOND);
    plan.clients.iter_mut().for_each(|client| client.ops.truncate(FAR_OPS_MAX));
}

/// Returns a client that writes until the server's tablets have been copied to it.
fn writer(random: &mut RandomStream, number: u8, tables: u8, until: Duration) -> ClientProgram {
    let pace = rounded(random.span(SECOND / 20, SECOND / 5));
    let setup =
        ClientSetup { number, flush: FlushMode::Sync, waits: WriteWait::No, pace, propagate_every: 0 };
    let op = |random: &mut RandomStream| ClientOp::Write {
        kind: WriteKind::Upsert,
        table: random.below(u64::from(tables)) as u8,
        key: FIRST_KEY + random.below(KEYS) as u32,
        value: random.below(1_000_000) as u32,
    };
    let count = until.as_millis() / pace.as_millis();
    ClientProgram { setup, ops: (0..count).map(|_| op(random)).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::PlanSize;

    #[test]
    fn one_server_is_wiped_and_nothing_else_is_wrong() {
        let plans = (0..400).map(|seed| Plan::generate(seed, FaultProfile::Copy, PlanSize::Smoke));
        let is_replaced = |plan: &Plan| matches!(plan.faults[..], [TimedFault { kind: Fault::Wipe { .. }, at, .. }] if at >= 2 * SECOND);
        let plans: Vec<Plan> = plans.filter(is_replaced).collect();
        assert!(plans.len() > 10, "only {} plans", plans.len());
        assert!(plans.iter().all(|plan| !plan.any_op(ClientOp::is_by_operator)));
        assert!(plans.iter().any(|plan| plan.cluster.tservers == plan.cluster.replicas));
        assert!(plans.iter().any(|plan| plan.cluster.tservers > plan.cluster.replicas));
        assert!(plans.iter().any(|plan| plan.network.latency >= FAR_MIN));
    }
}
