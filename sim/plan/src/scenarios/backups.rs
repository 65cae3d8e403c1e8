//! Scenario: backups. A client of its own backs up tables, full and incremental, while others write and alter them. Its
//! host is killed, loses power, or has a disk that fails or is full. After the run backups are restored and compared.
//!
//! The client comes last in the plan: ops, settings and faults of the others stay as they were drawn.

use std::time::Duration;

use crate::client_ops::{BackupChoice, ClientOp, ClientProgram, ClientSetup, FlushMode, WriteWait};
use crate::draws::{MS, SECOND, rounded};
use crate::faults::{Fault, HostDir, TimedFault};
use crate::host::Host;
use crate::plan::Plan;
use crate::profile::{FaultProfile, PlanSize};
use crate::random_stream::RandomStream;

/// Memory of servers with which the tablets of restored tables are no reason to refuse requests.
const MEMORY_MIN: u64 = 64 << 20;
/// Time of a backup that nothing delays. Its snapshot is a second old when it is read.
const BACKUP_TIME: Duration = Duration::from_millis(1_500);
/// Time that backups and restores may wait for disks, and for tablets of new tables.
const PATIENCE: Duration = Duration::from_secs(120);
/// Disk operations of the store until a fault of its disk applies: those of one or two backups.
const DISK_OPS: u64 = 120;

fn percent(profile: FaultProfile) -> u64 {
    match profile {
        FaultProfile::Tables => 15,
        FaultProfile::Swarm => 8,
        FaultProfile::Crash
        | FaultProfile::Network
        | FaultProfile::Disk
        | FaultProfile::Memory
        | FaultProfile::Clock
        | FaultProfile::Copy
        | FaultProfile::Calm => 0,
    }
}

/// Adds a client that backs up tables to some plans, and faults of its host to most of these.
pub(crate) fn add(random: &mut RandomStream, plan: &mut Plan, profile: FaultProfile, size: PlanSize) {
    if size == PlanSize::Bench || !random.percent(percent(profile)) {
        return;
    }
    if plan.may_lose_acknowledged() || plan.cluster.memory < MEMORY_MIN {
        return;
    }
    let work = plan.working_time();
    let client = program(random, plan, work);
    if random.percent(60) {
        let target = Host::Client(client.setup.number);
        let at = rounded(random.span(SECOND / 2, (BACKUP_TIME * 3).max(work)));
        plan.faults.push(TimedFault { at, target, kind: fault(random, plan.cluster.log_sync) });
        plan.faults.sort_by_key(|fault| fault.at);
    }
    plan.clients.push(client);
    plan.limit += PATIENCE + (plan.cluster.op_timeout + BACKUP_TIME) * 40;
}

/// Returns a client that backs up one or two tables several times over the time that the others work.
fn program(random: &mut RandomStream, plan: &Plan, work: Duration) -> ClientProgram {
    let setup = ClientSetup {
        number: plan.clients.len() as u8,
        flush: FlushMode::Sync,
        waits: WriteWait::No,
        pace: rounded(random.span(10 * MS, SECOND / 2)),
        propagate_every: 0,
    };
    let count = random.between(2, 4);
    let pause = (work / count as u32).saturating_sub(BACKUP_TIME).max(10 * MS);
    let mut ops = Vec::new();
    for number in 0..count {
        let kind = match number {
            0 => random.weighted(&[
                (BackupChoice::Any, 4),
                (BackupChoice::Full, 2),
                (BackupChoice::Incremental, 1),
            ]),
            _ => random.weighted(&[
                (BackupChoice::Any, 4),
                (BackupChoice::Full, 1),
                (BackupChoice::Incremental, 3),
            ]),
        };
        ops.push(ClientOp::Wait { span: rounded(random.span(10 * MS, pause.max(20 * MS))) });
        ops.push(backup(random, plan, kind));
    }
    ClientProgram { setup, ops }
}

/// Returns a backup of a model table, if there are any, mostly of the first: a chain needs several of one table.
fn backup(random: &mut RandomStream, plan: &Plan, kind: BackupChoice) -> ClientOp {
    let table = |random: &mut RandomStream, count: u64| {
        if random.percent(75) { 0 } else { random.below(count.max(1)) as u8 }
    };
    match plan.tables.len() as u64 {
        0 => ClientOp::Backup { table: table(random, u64::from(plan.cluster.tables)), kind },
        count => ClientOp::TableBackup { table: table(random, count), kind },
    }
}

/// Returns a fault of the backup client's host. `synced`: power cuts lose nothing that is acknowledged.
fn fault(random: &mut RandomStream, synced: bool) -> Fault {
    let dir = HostDir::Data;
    let (down, span) =
        (rounded(random.span(10 * MS, 2 * SECOND)), rounded(random.span(SECOND / 2, 3 * SECOND)));
    let op = random.between(1, DISK_OPS) as u32;
    match random.below(if synced { 7 } else { 5 }) {
        0 => Fault::Kill { down },
        1 => Fault::DiskFull { dir, free: 1 << random.between(0, 14), span },
        2 => Fault::DiskError { dir, op },
        3 => Fault::SyncError { dir, sync: random.between(1, 12) as u32 },
        4 => Fault::DiskStall { dir, span },
        5 => Fault::PowerCut { down },
        _ => Fault::PowerCutInDisk { dir, op, down },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backup_clients_have_backups_and_waits_only_and_change_no_other_line() {
        let mut found = 0;
        for seed in 0..200 {
            for profile in [FaultProfile::Tables, FaultProfile::Swarm] {
                let plan = Plan::generate(seed, profile, PlanSize::Smoke);
                let Some((last, others)) = plan.clients.split_last().filter(|(last, _)| last.backs_up())
                else {
                    continue;
                };
                found += 1;
                assert!(last.ops.iter().all(|op| op.is_backup() || matches!(op, ClientOp::Wait { .. })));
                assert!(others.iter().all(|client| !client.backs_up()));
                assert!(plan.faults.is_sorted_by_key(|fault| fault.at));
                assert_eq!(plan.to_string().parse::<Plan>().as_ref(), Ok(&plan));
            }
        }
        assert!(found > 20, "only {found} plans");
    }
}
