//! A leader that its group goes on without: it is cut off, a member is moved away, and the first who hears the leader
//! again is that member's old server.
//!
//! ```text
//! a  leads ── cut off ──────────────────────────────── b hears it: what b lacks it would copy there
//! b  follows ──── its replica moves to e, a tombstone stays ── must refuse: a's term is over
//! c  follows ── is elected, lets a go for d, then b for e ────────── hears a no sooner
//! ```
//!
//! Whom a hears first when a partition heals is a matter of milliseconds otherwise, and replicas rarely move meanwhile.

use std::time::Duration;

use super::faults::{Blow, Fault};
use super::generate::{Profile, rounded};
use super::ops::{Asked, ClientProgram, ClientSetup, Flush, Op, Waits};
use super::{Host, Plan, TimedFault, Way};
use crate::draw::Draw;

const SECOND: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);
/// One replaces the leader, which masters let go first, and one more the member.
const TSERVERS_MIN: u8 = 5;

fn percent_with_deposed(profile: Profile) -> u64 {
    match profile {
        Profile::Copy => 15,
        Profile::Network => 8,
        Profile::Swarm | Profile::Crash => 4,
        Profile::Disk | Profile::Clock | Profile::Memory | Profile::Calm => 0,
    }
}

/// Such a leader in some plans.
pub(super) fn deposed(draw: &mut Draw, plan: &mut Plan, profile: Profile) {
    if plan.cluster.replicas < 3 || !draw.percent(percent_with_deposed(profile)) {
        return;
    }
    plan.cluster.tservers = plan.cluster.tservers.max(TSERVERS_MIN);
    plan.cluster.follower_failed = draw.pick(&[2, 300]) * SECOND;
    // Elections of a second leave no time for moves.
    plan.cluster.raft_heartbeat = plan.cluster.raft_heartbeat.min(100 * MS);
    let at = rounded(SECOND / 2 + draw.span(MS, SECOND));
    let election = plan.cluster.raft_heartbeat * 3;
    let span = rounded(election * 2 + SECOND + draw.span(2 * SECOND, 4 * SECOND));
    // Whatever else befalls them, the group does not come that far.
    plan.faults = if draw.percent(50) { cut_links(draw, plan, at, span) } else { cut_leader(at, span) };
    let program = mover(draw, plan, at + election * 2, span);
    plan.clients.push(program);
}

/// Some server, with luck a leader, which one other hears before the rest do.
fn cut_links(draw: &mut Draw, plan: &Plan, at: Duration, span: Duration) -> Vec<TimedFault> {
    let later = rounded(draw.span(SECOND / 2, 2 * SECOND));
    let servers = plan.cluster.tservers;
    let leader = draw.below(u64::from(servers)) as u8;
    let heard_by = (leader + 1 + draw.below(u64::from(servers) - 1) as u8) % servers;
    let others = (0..servers).filter(|number| *number != leader).map(Host::Tserver);
    let cut = |peer| {
        let span = if peer == Host::Tserver(heard_by) { span } else { span + later };
        let kind = Fault::CutLink { peer, way: Way::Both, span };
        TimedFault { at, target: Host::Tserver(leader), kind }
    };
    others.chain((0..plan.cluster.masters).map(Host::Master)).map(cut).collect()
}

/// A leader, which all hear again at once.
fn cut_leader(at: Duration, span: Duration) -> Vec<TimedFault> {
    let kind = Fault::StrikeLeader { blow: Blow::CutPeers, span };
    vec![TimedFault { at, target: Host::Tserver(0), kind }]
}

/// Moves replicas of every tablet of one table, from `begins` on and for as long as `span`.
fn mover(draw: &mut Draw, plan: &Plan, begins: Duration, span: Duration) -> ClientProgram {
    let tablets = plan.cluster.tablets;
    let moves = tablets * draw.between(2, 4) as u8;
    let pace = rounded((span / 2 / u32::from(moves)).clamp(20 * MS, SECOND));
    let asked = draw.pick(&[Asked::Leader, Asked::Leader, Asked::All]);
    let one = |number: u8| Op::Move { table: 0, tablet: number % tablets, asked };
    let wait = Op::Wait { span: rounded(begins) };
    let ops = std::iter::once(wait).chain((0..moves).map(one)).collect();
    let number = plan.clients.len() as u8;
    let setup = ClientSetup { number, flush: Flush::Sync, waits: Waits::No, pace, propagate_every: 0 };
    ClientProgram { setup, ops }
}
