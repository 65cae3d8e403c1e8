//! Scenario: a busy catalog. Clients create, alter and drop tables without a pause; masters lose power at one of the
//! next few writes of their log, time after time. A change of several rows of the catalog is interrupted in the middle
//! (KUDU-495).
//!
//! Other plans change tables now and then, so a crash of a master mostly finds nothing in progress.

use crate::client_ops::{ClientOp, ClientProgram, ClientSetup, FlushMode, WriteWait};
use crate::draws::{MS, SECOND, rounded};
use crate::faults::{Fault, HostDir, TimedFault, TriggeredFault};
use crate::host::Host;
use crate::plan::Plan;
use crate::profile::FaultProfile;
use crate::random_stream::RandomStream;

/// Disk operations of a few changes.
const DISK_OPS_MAX: u64 = 15;
/// Memory of a server, in bytes, that takes the tablets of all tables.
const MEMORY_MIN: u64 = 64 << 20;

fn percent(profile: FaultProfile) -> u64 {
    match profile {
        FaultProfile::Crash => 15,
        FaultProfile::Swarm => 6,
        FaultProfile::Disk
        | FaultProfile::Network
        | FaultProfile::Copy
        | FaultProfile::Memory
        | FaultProfile::Clock
        | FaultProfile::Calm
        | FaultProfile::Tables => 0,
    }
}

/// Adds clients that change tables, and power cuts of masters, to some plans whose logs are synced.
pub(super) fn add(random: &mut RandomStream, plan: &mut Plan, profile: FaultProfile) {
    // A master that restarts while an operator changes the masters' group may know another one than the operator.
    // Tablets of many tables do not fit in little memory: each reserves some as soon as it has a row.
    let unsuitable = plan.changes_masters() || plan.cluster.memory < MEMORY_MIN;
    if !plan.cluster.log_sync || unsuitable || !random.percent(percent(profile)) {
        return;
    }
    let first = plan.clients.len() as u8;
    for number in first..first + 2 {
        let program = changer(random, number, plan.cluster.tables);
        plan.clients.push(program);
    }
    let (masters, mut at) = (u64::from(plan.cluster.masters), SECOND / 4);
    for _ in 0..random.between(5, 10) {
        let target = Host::Master(random.below(masters) as u8);
        let down = rounded(random.span(50 * MS, SECOND));
        let kind = match random.percent(20) {
            true => Fault::StrikeLeader { blow: TriggeredFault::Kill, span: down },
            false => {
                let (dir, op) = (HostDir::Wal, random.between(1, DISK_OPS_MAX) as u32);
                Fault::PowerCutInDisk { dir, op, down }
            }
        };
        plan.faults.push(TimedFault { at: rounded(at), target, kind });
        at += down + random.span(100 * MS, SECOND);
    }
    plan.faults.sort_by_key(|fault| fault.at);
}

/// Returns a client that creates and drops tables, ranges and columns.
fn changer(random: &mut RandomStream, number: u8, tables: u8) -> ClientProgram {
    let pace = rounded(random.span(5 * MS, 50 * MS));
    let setup =
        ClientSetup { number, flush: FlushMode::Sync, waits: WriteWait::No, pace, propagate_every: 0 };
    let op = |random: &mut RandomStream| {
        let table = random.below(u64::from(tables)) as u8;
        let range = random.below(4) as u8;
        match random.below(6) {
            0..=2 => ClientOp::ShortTable { number: random.below(8) as u8, rows: random.below(3) as u32 },
            3 | 4 => ClientOp::AddRange { table, range },
            _ => ClientOp::DropRange { table, range },
        }
    };
    let count = random.between(15, 30);
    ClientProgram { setup, ops: (0..count).map(|_| op(random)).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::PlanSize;

    #[test]
    fn masters_lose_power_while_tables_change() {
        let plans = (0..300).map(|seed| Plan::generate(seed, FaultProfile::Crash, PlanSize::Smoke));
        let is_of_master = |fault: &&TimedFault| matches!(fault.target, Host::Master(_));
        let busy = |plan: &Plan| plan.faults.iter().filter(is_of_master).count() >= 5;
        let plans: Vec<Plan> = plans.filter(busy).collect();
        assert!(plans.len() > 8, "only {} plans", plans.len());
        let changes = |op: &ClientOp| matches!(op, ClientOp::ShortTable { .. });
        assert!(plans.iter().filter(|plan| plan.any_op(changes)).count() > 8);
    }
}
