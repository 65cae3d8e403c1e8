//! Scenario: a lost quorum. A server is unreachable for much longer than followers may be. Once it is evicted, an
//! operator evicts others. Leaders must reject evictions after which a majority of the members would be unreachable.

use crate::client_ops::{ChangeTarget, ClientOp, ClientProgram, ClientSetup, FlushMode, WriteWait};
use crate::draws::{MS, SECOND, rounded};
use crate::faults::{Fault, LinkDirection, TimedFault};
use crate::host::Host;
use crate::plan::Plan;
use crate::profile::FaultProfile;
use crate::random_stream::RandomStream;

fn percent(profile: FaultProfile) -> u64 {
    match profile {
        FaultProfile::Copy => 15,
        FaultProfile::Swarm | FaultProfile::Crash | FaultProfile::Network => 4,
        FaultProfile::Disk
        | FaultProfile::Clock
        | FaultProfile::Memory
        | FaultProfile::Calm
        | FaultProfile::Tables => 0,
    }
}

/// Adds an unreachable server and an operator that evicts others to some plans.
pub(super) fn add(random: &mut RandomStream, plan: &mut Plan, profile: FaultProfile) {
    if plan.cluster.replicas < 3 || !random.percent(percent(profile)) {
        return;
    }
    plan.cluster.follower_failed = 2 * SECOND;
    let span = rounded(random.span(6 * SECOND, 12 * SECOND));
    let kind = match random.below(3) {
        0 => Fault::Pause { span },
        1 => Fault::Kill { down: span },
        _ => Fault::Isolate { way: LinkDirection::Both, span },
    };
    let target = Host::Tserver(random.below(u64::from(plan.cluster.tservers)) as u8);
    plan.faults.push(TimedFault { at: SECOND / 2, target, kind });
    plan.faults.sort_by_key(|fault| fault.at);
    let tablets = u64::from(plan.cluster.tablets);
    let evict = |random: &mut RandomStream| {
        let (tablet, asked) =
            (random.below(tablets) as u8, random.pick(&[ChangeTarget::Leader, ChangeTarget::All]));
        ClientOp::Evict { table: 0, tablet, asked }
    };
    let first = ClientOp::Wait { span: rounded(random.span(7 * SECOND / 2, 6 * SECOND)) };
    let ops = std::iter::once(first).chain((0..random.between(3, 10)).map(|_| evict(random))).collect();
    let (number, pace) = (plan.clients.len() as u8, rounded(random.span(20 * MS, SECOND)));
    let setup =
        ClientSetup { number, flush: FlushMode::Sync, waits: WriteWait::No, pace, propagate_every: 0 };
    plan.clients.push(ClientProgram { setup, ops });
}
