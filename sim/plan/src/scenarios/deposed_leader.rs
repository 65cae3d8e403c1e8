//! Scenario: a deposed leader. A leader is cut off and evicted, and another member is moved away. The first server that
//! the old leader reaches again is that member's old server, which has a tombstone.
//!
//! ```text
//! a  leads ── cut off ──────────────────────────────── reaches b first: it would start a tablet copy to b
//! b  follows ──── its replica moves to e, a tombstone stays ── must reject a, whose term is over
//! c  follows ── is elected, evicts a for d, then b for e ────────── reachable from a only later
//! ```
//!
//! In other plans milliseconds decide which server is reached first after a partition, and replicas rarely move during
//! one.

use std::time::Duration;

use crate::client_ops::{ChangeTarget, ClientOp, ClientProgram, ClientSetup, FlushMode, WriteWait};
use crate::draws::{MS, SECOND, rounded};
use crate::faults::{Fault, LinkDirection, TimedFault, TriggeredFault};
use crate::host::Host;
use crate::plan::Plan;
use crate::profile::FaultProfile;
use crate::random_stream::RandomStream;

/// Three members, one server that replaces the evicted leader, and one that replaces the moved member.
const TSERVERS_MIN: u8 = 5;

fn percent(profile: FaultProfile) -> u64 {
    match profile {
        FaultProfile::Copy => 15,
        FaultProfile::Network => 8,
        FaultProfile::Swarm | FaultProfile::Crash => 4,
        FaultProfile::Disk
        | FaultProfile::Clock
        | FaultProfile::Memory
        | FaultProfile::Calm
        | FaultProfile::Tables => 0,
    }
}

/// Adds a deposed leader to some plans.
pub(super) fn add(random: &mut RandomStream, plan: &mut Plan, profile: FaultProfile) {
    if plan.cluster.replicas < 3 || !random.percent(percent(profile)) {
        return;
    }
    plan.cluster.tservers = plan.cluster.tservers.max(TSERVERS_MIN);
    plan.cluster.follower_failed = random.pick(&[2, 300]) * SECOND;
    // With election timeouts above a second the moves would not end in time.
    plan.cluster.raft_heartbeat = plan.cluster.raft_heartbeat.min(100 * MS);
    let at = rounded(SECOND / 2 + random.span(MS, SECOND));
    let election = plan.cluster.raft_heartbeat * 3;
    let span = rounded(election * 2 + SECOND + random.span(2 * SECOND, 4 * SECOND));
    // The plan has no other faults, because they would keep the group from getting that far.
    plan.faults = if random.percent(50) { cut_links(random, plan, at, span) } else { cut_leader(at, span) };
    let program = mover(random, plan, at + election * 2, span);
    plan.clients.push(program);
}

/// Cuts the links of one server, which may be a leader. One link is restored before the others.
fn cut_links(random: &mut RandomStream, plan: &Plan, at: Duration, span: Duration) -> Vec<TimedFault> {
    let extra = rounded(random.span(SECOND / 2, 2 * SECOND));
    let servers = plan.cluster.tservers;
    let leader = random.below(u64::from(servers)) as u8;
    let first_reached = (leader + 1 + random.below(u64::from(servers) - 1) as u8) % servers;
    let others = (0..servers).filter(|number| *number != leader).map(Host::Tserver);
    let cut = |peer| {
        let span = if peer == Host::Tserver(first_reached) { span } else { span + extra };
        let kind = Fault::CutLink { peer, way: LinkDirection::Both, span };
        TimedFault { at, target: Host::Tserver(leader), kind }
    };
    others.chain((0..plan.cluster.masters).map(Host::Master)).map(cut).collect()
}

/// Cuts off the current leader. All links are restored at once.
fn cut_leader(at: Duration, span: Duration) -> Vec<TimedFault> {
    let kind = Fault::StrikeLeader { blow: TriggeredFault::CutPeers, span };
    vec![TimedFault { at, target: Host::Tserver(0), kind }]
}

/// Returns a client that moves replicas of all tablets of one table, from `begins` on and for the time `span`.
fn mover(random: &mut RandomStream, plan: &Plan, begins: Duration, span: Duration) -> ClientProgram {
    let tablets = plan.cluster.tablets;
    let moves = tablets * random.between(2, 4) as u8;
    let pace = rounded((span / 2 / u32::from(moves)).clamp(20 * MS, SECOND));
    let asked = random.pick(&[ChangeTarget::Leader, ChangeTarget::Leader, ChangeTarget::All]);
    let one = |number: u8| ClientOp::Move { table: 0, tablet: number % tablets, asked };
    let wait = ClientOp::Wait { span: rounded(begins) };
    let ops = std::iter::once(wait).chain((0..moves).map(one)).collect();
    let number = plan.clients.len() as u8;
    let setup =
        ClientSetup { number, flush: FlushMode::Sync, waits: WriteWait::No, pace, propagate_every: 0 };
    ClientProgram { setup, ops }
}
