//! Scenario: a stopped server. One tablet server is down or paused for most of the run, and nothing else is wrong. The
//! other replicas must serve: clients fail over, tablets elect leaders, and masters replace what is missing.
//!
//! Other plans disturb several servers for some seconds each. There an operation that fails is excused by one of these
//! disturbances, so a client that does not fail over, or a tablet that needs all its replicas, is not noticed.

use std::time::Duration;

use crate::client_ops::{ClientOp, ClientProgram, ClientSetup, FlushMode, ReadMode, WriteKind, WriteWait};
use crate::draws::{MS, SECOND, read_mode, replica_choice, rounded};
use crate::faults::{Fault, TimedFault};
use crate::host::Host;
use crate::plan::Plan;
use crate::profile::FaultProfile;
use crate::random_stream::RandomStream;
use crate::spec::ClusterSpec;

/// Shortest time for which the server is away: recovery, and some operations with all their retries.
const AWAY_MIN: Duration = Duration::from_secs(35);
const AWAY_MAX: Duration = Duration::from_secs(60);
/// Operation timeout: several attempts, the first of which may be at the stopped server for each tablet.
const OP_TIMEOUT: Duration = Duration::from_secs(10);
/// First of the keys that are written, and their number.
const FIRST_KEY: u32 = 7_500;
const KEYS: u64 = 40;

fn percent(profile: FaultProfile) -> u64 {
    match profile {
        FaultProfile::Crash => 12,
        FaultProfile::Swarm | FaultProfile::Network => 6,
        FaultProfile::Copy => 4,
        // Little memory and slow disks are excuses of their own.
        FaultProfile::Disk
        | FaultProfile::Memory
        | FaultProfile::Clock
        | FaultProfile::Calm
        | FaultProfile::Tables => 0,
    }
}

/// Makes the long absence of one server the only fault of some plans.
pub(super) fn add(random: &mut RandomStream, plan: &mut Plan, profile: FaultProfile) {
    if plan.cluster.replicas < 3 || !random.percent(percent(profile)) {
        return;
    }
    // What operators do to leaders and members is an excuse too.
    for op in plan.clients.iter_mut().flat_map(|client| &mut client.ops).filter(|op| op.is_by_operator()) {
        *op = ClientOp::Wait { span: MS };
    }
    let ClusterSpec { rpc_timeout, raft_heartbeat, op_timeout, .. } = &mut plan.cluster;
    (*rpc_timeout, *op_timeout) = ((*rpc_timeout).min(SECOND), OP_TIMEOUT);
    *raft_heartbeat = (*raft_heartbeat).min(100 * MS);
    let target = Host::Tserver(random.below(u64::from(plan.cluster.tservers)) as u8);
    let at = rounded(random.span(SECOND / 2, 3 * SECOND));
    let span = rounded(random.span(AWAY_MIN, AWAY_MAX));
    let kind = if random.percent(60) { Fault::Pause { span } } else { Fault::Kill { down: span } };
    plan.faults = vec![TimedFault { at, target, kind }];
    let number = plan.clients.len() as u8;
    let program = user(random, number, plan.cluster.tables, at + span);
    plan.clients.push(program);
}

/// Returns a client that reads and writes rows all the time.
fn user(random: &mut RandomStream, number: u8, tables: u8, span: Duration) -> ClientProgram {
    let pace = rounded(random.span(200 * MS, SECOND));
    let setup =
        ClientSetup { number, flush: FlushMode::Sync, waits: WriteWait::No, pace, propagate_every: 0 };
    let op = |random: &mut RandomStream| {
        let (table, key) = (random.below(u64::from(tables)) as u8, FIRST_KEY + random.below(KEYS) as u32);
        let (at, from) = (read_mode(random), replica_choice(random));
        match random.below(5) {
            0 => ClientOp::Get { table, key, at, from },
            1 => {
                let (low, high, back) = (FIRST_KEY, FIRST_KEY + KEYS as u32, Duration::ZERO);
                ClientOp::Scan { table, low, high, at: ReadMode::Snapshot, back, ordered: true, from }
            }
            _ => {
                let (kind, value) = (WriteKind::Upsert, random.below(1_000_000) as u32);
                ClientOp::Write { kind, table, key, value }
            }
        }
    };
    let count = span.as_millis() / pace.as_millis() + 1;
    ClientProgram { setup, ops: (0..count).map(|_| op(random)).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::PlanSize;

    #[test]
    fn one_server_is_away_and_clients_work_all_the_time() {
        let plans = (0..400).map(|seed| Plan::generate(seed, FaultProfile::Crash, PlanSize::Smoke));
        let away = |plan: &Plan| matches!(plan.faults[..], [ref one] if one.kind.span() >= AWAY_MIN);
        let plans: Vec<Plan> = plans.filter(away).collect();
        assert!(plans.len() > 10, "only {} plans", plans.len());
        for plan in plans {
            let ends = plan.faults_end_at();
            let work = |client: &ClientProgram| client.setup.pace * client.ops.len() as u32;
            assert!(plan.clients.iter().any(|client| work(client) >= ends), "{plan}");
            assert!(!plan.any_op(ClientOp::is_by_operator));
        }
    }
}
