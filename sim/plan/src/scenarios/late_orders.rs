//! Scenario: late orders to delete. A replica is evicted, and as there is no other server it returns to its own, while
//! the order to delete the evicted one is still on its way. It arrives when the server knows the newer configuration,
//! committed or not, or learns of it in the same instant.
//!
//! ```text
//! leader   N: without t ───── N+1: learner t ── deaf: N+1 stays uncommitted ─────
//! master   knows N ── delete (N) ──╲  slow link
//! t                        has N+1  ╲──▶ must refuse
//! t        ├── paused ─────────────────┤ delete (N) and N+1 at once
//! ```
//!
//! In other plans orders take milliseconds, and a replica is added again later than that.

use std::time::Duration;

use super::clients::{add_client, drop_operators};
use crate::client_ops::{ChangeTarget, ClientOp, WriteKind};
use crate::draws::{MS, SECOND, rounded};
use crate::faults::{Fault, TimedFault, Trigger, TriggeredFault};
use crate::host::Host;
use crate::plan::Plan;
use crate::profile::FaultProfile;
use crate::random_stream::RandomStream;

/// Silence after which a member is evicted. It is longer than any fault here.
const FOLLOWER_FAILED: Duration = Duration::from_secs(300);

fn percent(profile: FaultProfile) -> u64 {
    match profile {
        FaultProfile::Copy => 15,
        FaultProfile::Network => 8,
        FaultProfile::Swarm | FaultProfile::Crash => 5,
        FaultProfile::Disk
        | FaultProfile::Memory
        | FaultProfile::Clock
        | FaultProfile::Calm
        | FaultProfile::Tables => 0,
    }
}

/// Makes late orders the only faults of some plans; true for those.
pub(super) fn add(random: &mut RandomStream, plan: &mut Plan, profile: FaultProfile) -> bool {
    if plan.cluster.replicas != 3 || plan.changes_masters() || !random.percent(percent(profile)) {
        return false;
    }
    plan.cluster.tservers = 3;
    plan.cluster.follower_failed = FOLLOWER_FAILED;
    plan.cluster.heartbeat = plan.cluster.heartbeat.min(500 * MS);
    // A move needs another server.
    drop_operators(plan);
    plan.faults.clear();
    let late = Host::Tserver(random.below(3) as u8);
    let work = rounded(random.span(4 * SECOND, 7 * SECOND));
    if random.percent(60) {
        plan.faults.extend(slow_links(random, plan, late, work));
        plan.faults.extend(deaf_leaders(random, work));
    } else {
        plan.faults.extend(pauses(random, late, work));
    }
    plan.faults.sort_by_key(|fault| fault.at);
    add_operator(random, plan, work);
    true
}

/// Makes orders of masters to one server late.
fn slow_links(random: &mut RandomStream, plan: &Plan, late: Host, work: Duration) -> Vec<TimedFault> {
    let latency = rounded(random.span(50 * MS, 800 * MS));
    let masters = (0..plan.cluster.masters).map(Host::Master);
    let slow = |peer| TimedFault {
        at: SECOND / 5,
        target: late,
        kind: Fault::SlowLink { peer, latency, span: work },
    };
    masters.map(slow).collect()
}

/// Makes leaders deaf as they append a change: it reaches the others, and is not committed.
fn deaf_leaders(random: &mut RandomStream, work: Duration) -> Vec<TimedFault> {
    let mut faults = Vec::new();
    for _ in 0..random.between(2, 5) {
        let (at, span) = (rounded(random.span(SECOND / 5, work)), rounded(random.span(SECOND / 5, SECOND)));
        let (moment, nth) = (Trigger::Members, random.weighted(&[(1, 1), (2, 3), (3, 1)]));
        let kind = Fault::StrikeAfter { moment, nth, blow: TriggeredFault::Deaf, span };
        faults.push(TimedFault { at, target: Host::Tserver(random.below(3) as u8), kind });
    }
    faults
}

/// Pauses one server again and again: what was sent to it meanwhile arrives at once.
fn pauses(random: &mut RandomStream, late: Host, work: Duration) -> Vec<TimedFault> {
    let (mut faults, mut at) = (Vec::new(), random.span(SECOND / 5, SECOND));
    while at < work {
        let span = rounded(random.span(100 * MS, 1500 * MS));
        faults.push(TimedFault { at: rounded(at), target: late, kind: Fault::Pause { span } });
        at += span + random.span(100 * MS, SECOND);
    }
    faults
}

/// Adds a client that evicts replicas, with some writes in between.
fn add_operator(random: &mut RandomStream, plan: &mut Plan, work: Duration) {
    let (tablets, ops) = (u64::from(plan.cluster.tablets), random.between(25, 50));
    let op = |random: &mut RandomStream| {
        let (table, tablet) = (0, random.below(tablets) as u8);
        match random.below(10) {
            0..=6 => ClientOp::Evict { table, tablet, asked: ChangeTarget::Leader },
            7 => ClientOp::StepDown { table, tablet },
            _ => {
                let (key, value) = (random.below(8) as u32, random.below(1_000_000) as u32);
                ClientOp::Write { kind: WriteKind::Upsert, table, key, value }
            }
        }
    };
    let drawn = (0..ops).map(|_| op(random)).collect();
    add_client(plan, work / ops as u32, drawn);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::PlanSize;

    #[test]
    fn replicas_are_evicted_while_orders_are_late() {
        let plans = (0..300).map(|seed| Plan::generate(seed, FaultProfile::Copy, PlanSize::Smoke));
        let evicts = |plan: &Plan| {
            let ops = plan.clients.iter().flat_map(|client| &client.ops);
            ops.filter(|op| matches!(op, ClientOp::Evict { .. })).count()
        };
        let is_late = |plan: &Plan| {
            let kinds = plan.faults.iter().map(|fault| &fault.kind);
            let mut late = kinds.filter(|kind| matches!(kind, Fault::SlowLink { .. } | Fault::Pause { .. }));
            plan.cluster.tservers == 3 && evicts(plan) >= 10 && late.next().is_some()
        };
        let plans: Vec<Plan> = plans.filter(is_late).collect();
        assert!(plans.len() > 5, "only {} plans", plans.len());
    }
}
