//! Scenario: competing leaders. A leader is cut off together with the writes of several clients. The next leader is hit
//! by a fault when it begins to commit, and the previous one returns about then.
//!
//! ```text
//! a  leads ── cut off, appends writes ──────┐ returns ── requests votes …
//! b            is elected, commits ── fault ───────────────────┐ returns
//! c            follows b                      votes
//! ```
//!
//! Logs differ the most then. Raft's rules on terms are for this case (Raft §5.4). Independent faults rarely occur in
//! that order.

use std::time::Duration;

use crate::client_ops::{ClientOp, ClientProgram, ClientSetup, FlushMode, WriteKind, WriteWait};
use crate::draws::rounded;
use crate::faults::{Fault, TimedFault, Trigger, TriggeredFault};
use crate::host::Host;
use crate::plan::Plan;
use crate::profile::FaultProfile;
use crate::random_stream::RandomStream;
use crate::spec::ClusterSpec;

/// Time from the beginning of the workload to the first fault.
const CALM_START: Duration = Duration::from_millis(500);

fn percent(profile: FaultProfile) -> u64 {
    match profile {
        FaultProfile::Swarm => 30,
        FaultProfile::Crash | FaultProfile::Network => 50,
        FaultProfile::Copy => 20,
        FaultProfile::Disk
        | FaultProfile::Clock
        | FaultProfile::Memory
        | FaultProfile::Calm
        | FaultProfile::Tables => 0,
    }
}

/// Adds competing leaders to some plans.
pub(super) fn add(random: &mut RandomStream, plan: &mut Plan, profile: FaultProfile, work: Duration) {
    let groups = groups(&plan.cluster);
    if groups.is_empty() || !random.percent(percent(profile)) {
        return;
    }
    if plan.cluster.replicas >= 3 {
        add_writers(random, plan, work);
        if random.percent(60) {
            add_election_client(random, plan, work);
        }
    }
    for _ in 0..random.between(1, 4) {
        let group = random.weighted(&groups);
        let at = rounded(CALM_START + work.mul_f64(random.below(1_000) as f64 / 1_000.0));
        plan.faults.extend(faults(random, &plan.cluster, group, at));
    }
    plan.faults.sort_by_key(|fault| fault.at);
}

/// Servers of one role that elect leaders: their count and the constructor of a host.
type Group = (u8, fn(u8) -> Host);

fn groups(cluster: &ClusterSpec) -> Vec<(Group, u32)> {
    let tservers: Group = (if cluster.replicas >= 3 { cluster.tservers } else { 0 }, Host::Tserver);
    let masters: Group = (cluster.masters, Host::Master);
    [(tservers, 4), (masters, 1)].into_iter().filter(|((count, _), _)| *count >= 3).collect()
}

fn faults(
    random: &mut RandomStream,
    cluster: &ClusterSpec,
    (count, host): Group,
    at: Duration,
) -> Vec<TimedFault> {
    let election = cluster.raft_heartbeat * 3;
    let span = |random: &mut RandomStream| rounded(election.mul_f64(random.between(80, 400) as f64 / 100.0));
    let trigger = random.weighted(&[(Trigger::Settle, 3), (Trigger::Lead, 1)]);
    let triggered = |random: &mut RandomStream| {
        let blow = random.weighted(&[
            (TriggeredFault::CutPeers, 4),
            (TriggeredFault::Isolate, 2),
            (TriggeredFault::Kill, 2),
            (TriggeredFault::Pause, 1),
        ]);
        Fault::StrikeAfter { moment: trigger, nth: 1, blow, span: span(random) }
    };
    let mut faults: Vec<TimedFault> =
        (0..count).map(|number| TimedFault { at, target: host(number), kind: triggered(random) }).collect();
    // Otherwise the previous leader is one that steps down (see `add_writers`), or any leader that is elected next.
    if random.percent(75) {
        let blow = random.weighted(&[
            (TriggeredFault::CutPeers, 5),
            (TriggeredFault::Isolate, 1),
            (TriggeredFault::Pause, 1),
        ]);
        let kind = Fault::StrikeLeader { blow, span: span(random) };
        faults.push(TimedFault { at, target: host(0), kind });
    }
    faults
}

/// Adds clients that all write to the same few rows. Each client that waits for a cut-off leader has appended one more
/// entry to that leader's log.
fn add_writers(random: &mut RandomStream, plan: &mut Plan, work: Duration) {
    let (size, ops) = (random.between(2, 6) as u8, random.between(20, 60));
    let pace = rounded((work / ops as u32).clamp(Duration::from_millis(2), Duration::from_millis(100)));
    let (keys, tablets) = (random.between(1, 2), u64::from(plan.cluster.tablets));
    let first = plan.clients.len() as u8;
    for number in first..first + size {
        let setup =
            ClientSetup { number, flush: FlushMode::Sync, waits: WriteWait::No, pace, propagate_every: 1 };
        let op = |random: &mut RandomStream| match random.percent(4) {
            true => ClientOp::StepDown { table: 0, tablet: random.below(tablets) as u8 },
            false => ClientOp::Write {
                kind: WriteKind::Upsert,
                table: 0,
                key: random.below(keys) as u32,
                value: random.below(1_000_000) as u32,
            },
        };
        plan.clients.push(ClientProgram { setup, ops: (0..ops).map(|_| op(random)).collect() });
    }
}

/// Adds a client that asks replicas to start elections, even while there is a leader and with any log. Voters must
/// reject some of these candidates.
fn add_election_client(random: &mut RandomStream, plan: &mut Plan, work: Duration) {
    let election = plan.cluster.raft_heartbeat * 3;
    let pace = rounded(election.mul_f64(random.between(20, 300) as f64 / 100.0));
    let ops = (work.as_millis() / pace.as_millis()).clamp(10, 60);
    // The writers use few tablets; the first one may be among them.
    let tablets = random.between(1, u64::from(plan.cluster.tablets));
    let (number, flush) = (plan.clients.len() as u8, FlushMode::Sync);
    let setup = ClientSetup { number, flush, waits: WriteWait::No, pace, propagate_every: 0 };
    let op = |random: &mut RandomStream| {
        let (tablet, replica) = (random.below(tablets) as u8, random.below(3) as u8);
        ClientOp::Elect { table: 0, tablet, replica }
    };
    plan.clients.push(ClientProgram { setup, ops: (0..ops).map(|_| op(random)).collect() });
}
