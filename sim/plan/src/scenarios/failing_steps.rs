//! Scenario: failing steps. Clients create, drop and move replicas all the time, and a creation, a removal, a copy or
//! the end of a copy is interrupted at one of its next disk operations: by an error that no operator notices, by a loss
//! of power, or by the death of the process.
//!
//! ```text
//! step begins ── op ── op ── error: the step fails, its server runs on ── repeated, or given up
//!             ── op ── power cut: half of it is on the disk ──────────── completed, or undone at the restart
//! ```
//!
//! Disk errors of other plans come at random operations, mostly of the log, and the operator restarts the server, which
//! takes away what a failed step has left in memory (KUDU-2293, KUDU-1968).

use std::time::Duration;

use super::clients::{add_client, drop_operators};
use crate::client_ops::{ChangeTarget, ClientOp};
use crate::draws::{MS, SECOND, rounded};
use crate::faults::{DiskEffect, Fault, HostDir, TimedFault, Trigger, TriggeredFault};
use crate::host::Host;
use crate::plan::Plan;
use crate::profile::FaultProfile;
use crate::random_stream::RandomStream;
use crate::spec::FinalRestart;

/// Memory of a server, in bytes, that takes the tablets of all tables.
const MEMORY_MIN: u64 = 64 << 20;
/// Disk operations of one step in one directory, about.
const DISK_OPS_MAX: u64 = 12;

fn percent(profile: FaultProfile) -> u64 {
    match profile {
        FaultProfile::Copy | FaultProfile::Disk => 25,
        FaultProfile::Crash => 15,
        FaultProfile::Swarm => 10,
        FaultProfile::Network
        | FaultProfile::Memory
        | FaultProfile::Clock
        | FaultProfile::Calm
        | FaultProfile::Tables => 0,
    }
}

/// Adds clients that create, drop and move replicas, and faults in the middle of that, to some plans; true for those.
pub(super) fn add(random: &mut RandomStream, plan: &mut Plan, profile: FaultProfile) -> bool {
    let unsuitable = plan.cluster.replicas < 3 || plan.cluster.memory < MEMORY_MIN || plan.changes_masters();
    if unsuitable || !random.percent(percent(profile)) {
        return false;
    }
    // A failed replica and an evicted one leave no majority, and other damage may hit another server.
    drop_operators(plan);
    plan.faults.retain(|fault| fault.kind.kind().disk_effect() == DiskEffect::None);
    plan.cluster.tservers = plan.cluster.tservers.max(random.pick(&[3, 4, 4, 5]));
    plan.cluster.follower_failed = random.pick(&[2, 3, 15]) * SECOND;
    let fragile = Host::Tserver(random.below(u64::from(plan.cluster.tservers)) as u8);
    let work = rounded(random.span(3 * SECOND, 6 * SECOND));
    for _ in 0..random.between(3, 6) {
        let at = rounded(random.span(SECOND / 5, work));
        plan.faults.extend(interruption(random, plan, fragile, at));
    }
    plan.faults.extend(power_cuts_of_masters(random, plan, work));
    plan.faults.sort_by_key(|fault| fault.at);
    add_changer(random, plan, work);
    add_mover(random, plan, work);
    true
}

/// Draws what interrupts a step. A copy that fails is given up, which may fail, too.
fn interruption(random: &mut RandomStream, plan: &Plan, fragile: Host, at: Duration) -> Vec<TimedFault> {
    let any = Host::Tserver(random.below(u64::from(plan.cluster.tservers)) as u8);
    let (moment, nth) = (step(random), random.between(1, 3) as u32);
    let evicted = plan.cluster.follower_failed.min(4 * SECOND) + SECOND;
    let down = rounded(if random.percent(30) { evicted } else { random.span(10 * MS, SECOND) });
    let error = |random: &mut RandomStream, moment, nth| {
        let (dir, op) = disk_op(random);
        TimedFault { at, target: fragile, kind: Fault::DiskErrorAfter { moment, nth, dir, op } }
    };
    match random.weighted(&[(0, 4), (1, 3), (2, 4), (3, 2)]) {
        0 => vec![error(random, moment, nth)],
        1 => vec![error(random, Trigger::Copy, 1), error(random, Trigger::GiveUp, 1)],
        2 => {
            let (dir, op) = disk_op(random);
            let kind = Fault::PowerCutAfter { moment, nth, dir, op, down };
            vec![TimedFault { at, target: any, kind }]
        }
        _ => {
            let kind = Fault::StrikeAfter { moment, nth, blow: TriggeredFault::Kill, span: down };
            vec![TimedFault { at, target: any, kind }]
        }
    }
}

/// Returns losses of power within writes of the catalog, if logs are synced.
fn power_cuts_of_masters(random: &mut RandomStream, plan: &Plan, work: Duration) -> Vec<TimedFault> {
    let count = if plan.cluster.log_sync { random.between(0, 3) } else { 0 };
    let cut = |random: &mut RandomStream| {
        let (op, down) = (random.between(1, 15) as u32, rounded(random.span(10 * MS, SECOND)));
        let target = Host::Master(random.below(u64::from(plan.cluster.masters)) as u8);
        let at = rounded(random.span(SECOND / 5, work));
        TimedFault { at, target, kind: Fault::PowerCutInDisk { dir: HostDir::Wal, op, down } }
    };
    (0..count).map(|_| cut(random)).collect()
}

fn step(random: &mut RandomStream) -> Trigger {
    use Trigger::{Copy, Create, GiveUp, Remove, Source};
    random.weighted(&[(Create, 4), (Remove, 4), (Copy, 3), (Source, 2), (GiveUp, 1)])
}

fn disk_op(random: &mut RandomStream) -> (HostDir, u32) {
    (random.pick(&[HostDir::Wal, HostDir::Data, HostDir::Data]), random.between(1, DISK_OPS_MAX) as u32)
}

/// Adds a client that creates and drops tables and ranges.
fn add_changer(random: &mut RandomStream, plan: &mut Plan, work: Duration) {
    let tables = u64::from(plan.cluster.tables);
    let op = |random: &mut RandomStream| {
        let (table, range) = (random.below(tables) as u8, random.below(4) as u8);
        match random.below(6) {
            0..=2 => ClientOp::ShortTable { number: random.below(4) as u8, rows: random.below(3) as u32 },
            3 | 4 => ClientOp::AddRange { table, range },
            _ => ClientOp::DropRange { table, range },
        }
    };
    let count = random.between(12, 25);
    let ops = (0..count).map(|_| op(random)).collect();
    add_client(plan, work / count as u32, ops);
}

/// Adds a client that moves replicas.
fn add_mover(random: &mut RandomStream, plan: &mut Plan, work: Duration) {
    let (tables, tablets) = (u64::from(plan.cluster.tables), u64::from(plan.cluster.tablets));
    let op = |random: &mut RandomStream| {
        let (table, tablet) = (random.below(tables) as u8, random.below(tablets) as u8);
        ClientOp::Move { table, tablet, asked: ChangeTarget::Leader }
    };
    let count = random.between(6, 15);
    let ops = (0..count).map(|_| op(random)).collect();
    add_client(plan, work / count as u32, ops);
}

/// Returns the final restart of the plan: none if a step fails unnoticed, because a restart takes away what it has left
/// in memory; otherwise `restart`.
pub(crate) fn final_restart(plan: &Plan, restart: FinalRestart) -> FinalRestart {
    let is_unnoticed = |fault: &TimedFault| matches!(fault.kind, Fault::DiskErrorAfter { .. });
    if plan.faults.iter().any(is_unnoticed) { FinalRestart::Stay } else { restart }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::PlanSize;

    #[test]
    fn steps_fail_on_one_server_while_replicas_are_created_and_moved() {
        let plans = (0..300).map(|seed| Plan::generate(seed, FaultProfile::Copy, PlanSize::Smoke));
        let errors = |plan: &Plan| {
            let errors = plan.faults.iter();
            let of_steps = errors.filter(|fault| matches!(fault.kind, Fault::DiskErrorAfter { .. }));
            of_steps.map(|fault| fault.target).collect::<Vec<Host>>()
        };
        let plans: Vec<Plan> = plans.filter(|plan| errors(plan).len() > 2).collect();
        assert!(plans.len() > 8, "only {} plans", plans.len());
        for plan in plans {
            let mut hosts = errors(&plan);
            hosts.dedup();
            assert_eq!((hosts.len(), plan.ending), (1, FinalRestart::Stay));
            assert!(!plan.any_op(|op| matches!(op, ClientOp::Evict { .. })));
        }
    }
}
