//! Replicas that are spread: an operator makes servers uneven, and has a rebalancer make them even again, while others
//! work and servers come and go.
//!
//! Who rebalances moves replicas of several tablets at once, each with a learner, a promotion, a leader that hands over
//! and an eviction; what it began goes on when it fails.

use std::time::Duration;

use super::Plan;
use super::faults::Fault;
use super::generate::{Profile, rounded};
use super::ops::{Asked, ClientProgram, ClientSetup, Flush, Op, Waits};
use crate::draw::Draw;

const SECOND: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);

/// How many plans in a hundred have replicas spread.
fn percent_spread(profile: Profile) -> u64 {
    match profile {
        Profile::Copy => 15,
        Profile::Swarm | Profile::Crash | Profile::Network => 6,
        Profile::Calm | Profile::Clock | Profile::Memory => 3,
        // Where disks fail, replicas are few enough.
        Profile::Disk => 0,
    }
}

/// A rebalancer in some plans.
pub(super) fn spread(draw: &mut Draw, plan: &mut Plan, profile: Profile, work: Duration) {
    if loses_replicas(plan) || !draw.percent(percent_spread(profile)) {
        return;
    }
    // With as many servers as a tablet has replicas, nothing can move.
    plan.cluster.tservers = plan.cluster.tservers.max(plan.cluster.replicas + draw.between(1, 2) as u8);
    let (tables, tablets) = (u64::from(plan.cluster.tables), u64::from(plan.cluster.tablets));
    let at_once = draw.pick(&[1, 2, 5]);
    let mut ops = vec![Op::Wait { span: rounded(draw.span(MS, work.clamp(SECOND, 4 * SECOND))) }];
    for _ in 0..draw.between(1, 3) {
        ops.extend((0..draw.between(0, 3)).map(|_| {
            let (table, tablet) = (draw.below(tables) as u8, draw.below(tablets) as u8);
            Op::Move { table, tablet, asked: Asked::Leader }
        }));
        ops.push(Op::Rebalance { at_once });
    }
    let number = plan.clients.len() as u8;
    let pace = rounded(draw.span(20 * MS, SECOND));
    let setup = ClientSetup { number, flush: Flush::Sync, waits: Waits::No, pace, propagate_every: 0 };
    plan.clients.push(ClientProgram { setup, ops });
}

/// Whether a server comes back as another one, with empty disks; or the only copy of a tablet might be half-way when
/// power goes where logs are not synced.
fn loses_replicas(plan: &Plan) -> bool {
    let wiped = plan.faults.iter().any(|fault| matches!(fault.kind, Fault::Wipe { .. }));
    wiped || plan.cluster.replicas == 1 && plan.faults.iter().any(|fault| fault.kind.cuts_power())
}
