//! Scenario: membership churn. An operator moves and evicts replicas of one or two tablets. Faults hit servers that
//! append a configuration change, make servers unreachable for longer than followers may be, and interrupt tablet
//! copies.
//!
//! Configuration changes are the rarest entries of a log. Errors around them (Raft §6, Raft dissertation §4) need
//! another event within the same second.

use std::time::Duration;

use crate::client_ops::{
    ChangeTarget, ClientOp, ClientProgram, ClientSetup, FlushMode, WriteKind, WriteWait,
};
use crate::draws::{MS, SECOND, rounded};
use crate::faults::{Fault, HostDir, TimedFault, Trigger, TriggeredFault};
use crate::host::Host;
use crate::plan::Plan;
use crate::profile::FaultProfile;
use crate::random_stream::RandomStream;

fn percent(profile: FaultProfile) -> u64 {
    match profile {
        FaultProfile::Copy => 50,
        FaultProfile::Swarm | FaultProfile::Crash | FaultProfile::Network => 20,
        FaultProfile::Clock | FaultProfile::Memory | FaultProfile::Calm | FaultProfile::Tables => 10,
        // Disk faults leave too few sound replicas for changes.
        FaultProfile::Disk => 0,
    }
}

/// Adds an operator with configuration changes to some plans.
pub(super) fn add(random: &mut RandomStream, plan: &mut Plan, profile: FaultProfile, work: Duration) {
    if plan.cluster.replicas < 3 || !random.percent(percent(profile)) {
        return;
    }
    // With three servers an evicted replica returns to the server that it was on.
    plan.cluster.tservers = plan.cluster.tservers.max(random.pick(&[3, 4, 4, 5]));
    plan.cluster.follower_failed = random.pick(&[2, 3, 3, 15]) * SECOND;
    let span = work.max(4 * SECOND);
    add_operator(random, plan, span);
    if profile == FaultProfile::Calm {
        return;
    }
    for _ in 0..random.between(1, 4) {
        let at = rounded(span.mul_f64(random.below(1_000) as f64 / 1_000.0));
        let faults = match random.weighted(&[(0, 3), (1, 3), (2, 2), (3, 2)]) {
            0 => strike_on_append(random, plan, at),
            1 => vec![absence(random, plan, at)],
            3 => power_cut_at_commit(random, plan, at),
            _ => vec![interrupted_copy(random, plan, at)],
        };
        plan.faults.extend(faults);
    }
    plan.faults.sort_by_key(|fault| fault.at);
}

/// Adds a client that changes configurations, with some writes in between.
fn add_operator(random: &mut RandomStream, plan: &mut Plan, span: Duration) {
    let ops = random.between(10, 40);
    let pace = rounded((span / ops as u32).clamp(20 * MS, SECOND));
    let tablets = random.between(1, 2).min(u64::from(plan.cluster.tablets));
    // With many evictions the operator mostly waits for the masters to add replicas.
    let kinds =
        [(0, random.pick(&[0, 2, 8])), (1, 4), (2, random.pick(&[0, 2])), (3, 3), (4, random.pick(&[0, 2]))];
    let asked = random.pick(&[ChangeTarget::Leader, ChangeTarget::All, ChangeTarget::All]);
    let number = plan.clients.len() as u8;
    let op = |random: &mut RandomStream| {
        let (table, tablet) = (0, random.below(tablets) as u8);
        match random.weighted(&kinds) {
            0 => ClientOp::Evict { table, tablet, asked },
            1 => ClientOp::Move { table, tablet, asked },
            2 => ClientOp::StepDown { table, tablet },
            4 => ClientOp::Elect { table, tablet, replica: random.below(3) as u8 },
            _ => {
                let (key, value) = (random.below(4) as u32, random.below(1_000_000) as u32);
                ClientOp::Write { kind: WriteKind::Upsert, table, key, value }
            }
        }
    };
    let setup =
        ClientSetup { number, flush: FlushMode::Sync, waits: WriteWait::No, pace, propagate_every: 0 };
    plan.clients.push(ClientProgram { setup, ops: (0..ops).map(|_| op(random)).collect() });
}

fn random_tserver(random: &mut RandomStream, plan: &Plan) -> Host {
    Host::Tserver(random.below(u64::from(plan.cluster.tservers)) as u8)
}

/// Hits some of the servers that append a configuration change, so that only some logs have it.
fn strike_on_append(random: &mut RandomStream, plan: &Plan, at: Duration) -> Vec<TimedFault> {
    let election = plan.cluster.raft_heartbeat * 3;
    let trigger = random.weighted(&[(Trigger::Members, 4), (Trigger::Lead, 1)]);
    let blow = random.pick(&[
        TriggeredFault::CutPeers,
        TriggeredFault::CutPeers,
        TriggeredFault::Isolate,
        TriggeredFault::Kill,
        TriggeredFault::Deaf,
    ]);
    let servers = (0..plan.cluster.tservers).map(Host::Tserver);
    let targets: Vec<Host> = servers.filter(|_| random.percent(50)).collect();
    let fault = |target| {
        let nth = random.between(1, 3) as u32;
        let span = rounded(election.mul_f64(random.between(50, 500) as f64 / 100.0));
        TimedFault { at, target, kind: Fault::StrikeAfter { moment: trigger, nth, blow, span } }
    };
    targets.into_iter().map(fault).collect()
}

/// Cuts the power of a leader that has just committed a configuration change. Its log has the commit; its consensus
/// metadata may not have it yet.
fn power_cut_at_commit(random: &mut RandomStream, plan: &Plan, at: Duration) -> Vec<TimedFault> {
    let mut targets: Vec<Host> = (0..2).map(|_| random_tserver(random, plan)).collect();
    targets.dedup();
    let cut = |target| {
        let (nth, op) = (random.between(1, 3) as u32, random.between(1, 8) as u32);
        let (dir, down) =
            (random.pick(&[HostDir::Wal, HostDir::Wal, HostDir::Data]), rounded(random.span(5 * MS, SECOND)));
        let kind = Fault::PowerCutAfter { moment: Trigger::Changed, nth, dir, op, down };
        TimedFault { at, target, kind }
    };
    targets.into_iter().map(cut).collect()
}

/// Makes a server unreachable for about the time until it is evicted, or for longer.
fn absence(random: &mut RandomStream, plan: &Plan, at: Duration) -> TimedFault {
    let span = plan.cluster.follower_failed.min(5 * SECOND);
    let (percent_min, percent_max) = random.pick(&[(50, 200), (200, 500)]);
    let span = rounded(span.mul_f64(random.between(percent_min, percent_max) as f64 / 100.0));
    let kind = if random.percent(50) { Fault::Pause { span } } else { Fault::Kill { down: span } };
    TimedFault { at, target: random_tserver(random, plan), kind }
}

/// Cuts the power of a server during a tablet copy.
fn interrupted_copy(random: &mut RandomStream, plan: &Plan, at: Duration) -> TimedFault {
    let (dir, op) = (random.pick(&[HostDir::Wal, HostDir::Data]), random.between(1, 25) as u32);
    let down = rounded(random.span(5 * MS, 2 * SECOND));
    let kind =
        Fault::PowerCutAfter { moment: Trigger::Copy, nth: random.between(1, 2) as u32, dir, op, down };
    TimedFault { at, target: random_tserver(random, plan), kind }
}
