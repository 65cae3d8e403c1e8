//! Scenario: rebalancing. An operator moves replicas until servers are unbalanced, and runs the rebalancer, while other
//! clients work and servers restart.
//!
//! The rebalancer moves replicas of several tablets at once. Each move has a learner, a promotion, a leadership
//! transfer and an eviction. A move continues if the rebalancer fails.

use std::time::Duration;

use crate::client_ops::{ChangeTarget, ClientOp, ClientProgram, ClientSetup, FlushMode, WriteWait};
use crate::draws::{MS, SECOND, rounded};
use crate::faults::Fault;
use crate::plan::Plan;
use crate::profile::FaultProfile;
use crate::random_stream::RandomStream;

fn percent(profile: FaultProfile) -> u64 {
    match profile {
        FaultProfile::Copy => 15,
        FaultProfile::Swarm | FaultProfile::Crash | FaultProfile::Network => 6,
        FaultProfile::Calm | FaultProfile::Tables | FaultProfile::Clock | FaultProfile::Memory => 3,
        // Disk faults leave too few sound replicas for moves.
        FaultProfile::Disk => 0,
    }
}

/// Adds an operator with a rebalancer to some plans.
pub(super) fn add(random: &mut RandomStream, plan: &mut Plan, profile: FaultProfile, work: Duration) {
    if loses_replicas(plan) || !random.percent(percent(profile)) {
        return;
    }
    // A move needs a server without a replica of the tablet.
    plan.cluster.tservers = plan.cluster.tservers.max(plan.cluster.replicas + random.between(1, 2) as u8);
    let (tables, tablets) = (u64::from(plan.cluster.tables), u64::from(plan.cluster.tablets));
    let at_once = random.pick(&[1, 2, 5]);
    let mut ops = vec![ClientOp::Wait { span: rounded(random.span(MS, work.clamp(SECOND, 4 * SECOND))) }];
    for _ in 0..random.between(1, 3) {
        ops.extend((0..random.between(0, 3)).map(|_| {
            let (table, tablet) = (random.below(tables) as u8, random.below(tablets) as u8);
            ClientOp::Move { table, tablet, asked: ChangeTarget::Leader }
        }));
        ops.push(ClientOp::Rebalance { at_once });
    }
    let number = plan.clients.len() as u8;
    let pace = rounded(random.span(20 * MS, SECOND));
    let setup =
        ClientSetup { number, flush: FlushMode::Sync, waits: WriteWait::No, pace, propagate_every: 0 };
    plan.clients.push(ClientProgram { setup, ops });
}

/// Returns true if a replica may be lost: a server is wiped, or power is cut while the only replica of a tablet moves
/// and logs are not synced.
fn loses_replicas(plan: &Plan) -> bool {
    let wiped = plan.faults.iter().any(|fault| matches!(fault.kind, Fault::Wipe { .. }));
    wiped || plan.cluster.replicas == 1 && plan.faults.iter().any(|fault| fault.kind.cuts_power())
}
