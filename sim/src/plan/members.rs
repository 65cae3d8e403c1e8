//! Groups whose members change all the time: an operator moves and takes away replicas of one or two tablets, while
//! those who take such changes into their logs are struck, servers are away for longer than anybody waits for them, and
//! copies are broken off.
//!
//! A change of members is the rarest of what a log holds, and what goes wrong beside it (Raft §6, the dissertation's
//! §4) needs another event within the same second.

use std::time::Duration;

use super::faults::{Blow, Dir, Fault, Moment};
use super::generate::{Profile, rounded};
use super::ops::{Asked, ClientProgram, ClientSetup, Flush, Op, Waits, WriteKind};
use super::{Host, Plan, TimedFault, Way};
use crate::draw::Draw;

const SECOND: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);

/// How many plans in a hundred have an operator at work.
fn percent_with_changes(profile: Profile) -> u64 {
    match profile {
        Profile::Copy => 50,
        Profile::Swarm | Profile::Crash | Profile::Network => 20,
        Profile::Clock | Profile::Memory | Profile::Calm => 10,
        // Where disks fail, replicas are few enough.
        Profile::Disk => 0,
    }
}

/// Changes of members in some plans.
pub fn members(draw: &mut Draw, plan: &mut Plan, profile: Profile, work: Duration) {
    if plan.cluster.replicas < 3 || !draw.percent(percent_with_changes(profile)) {
        return;
    }
    // With three servers, who was taken away comes back where it was.
    plan.cluster.tservers = plan.cluster.tservers.max(draw.pick(&[3, 4, 4, 5]));
    plan.cluster.follower_failed = draw.pick(&[2, 3, 3, 15]) * SECOND;
    let span = work.max(4 * SECOND);
    operator(draw, plan, span);
    if profile == Profile::Calm {
        return;
    }
    for _ in 0..draw.between(1, 4) {
        let at = rounded(span.mul_f64(draw.below(1_000) as f64 / 1_000.0));
        let scene = match draw.weighted(&[(0, 3), (1, 3), (2, 2), (3, 2)]) {
            0 => struck_by_change(draw, plan, at),
            1 => vec![away(draw, plan, at)],
            3 => dark_at_change(draw, plan, at),
            _ => vec![broken_copy(draw, plan, at)],
        };
        plan.faults.extend(scene);
    }
    plan.faults.sort_by_key(|fault| fault.at);
}

/// A server is away for far longer than anybody waits for it, and when it has been given up an operator takes others
/// away: those that would stay must be alive.
pub fn bereft(draw: &mut Draw, plan: &mut Plan, profile: Profile) {
    let percent = match profile {
        Profile::Copy => 15,
        Profile::Swarm | Profile::Crash | Profile::Network => 4,
        Profile::Disk | Profile::Clock | Profile::Memory | Profile::Calm => 0,
    };
    if plan.cluster.replicas < 3 || !draw.percent(percent) {
        return;
    }
    plan.cluster.follower_failed = 2 * SECOND;
    let span = rounded(draw.span(6 * SECOND, 12 * SECOND));
    let kind = match draw.below(3) {
        0 => Fault::Pause { span },
        1 => Fault::Kill { down: span },
        _ => Fault::Isolate { way: Way::Both, span },
    };
    plan.faults.push(TimedFault { at: SECOND / 2, target: some_server(draw, plan), kind });
    plan.faults.sort_by_key(|fault| fault.at);
    let tablets = u64::from(plan.cluster.tablets);
    let evict = |draw: &mut Draw| {
        let (tablet, asked) = (draw.below(tablets) as u8, draw.pick(&[Asked::Leader, Asked::All]));
        Op::Evict { table: 0, tablet, asked }
    };
    let first = Op::Wait { span: rounded(draw.span(7 * SECOND / 2, 6 * SECOND)) };
    let ops = std::iter::once(first).chain((0..draw.between(3, 10)).map(|_| evict(draw))).collect();
    let (number, pace) = (plan.clients.len() as u8, rounded(draw.span(20 * MS, SECOND)));
    let setup = ClientSetup { number, flush: Flush::Sync, waits: Waits::No, pace, propagate_every: 0 };
    plan.clients.push(ClientProgram { setup, ops });
}

/// One client that changes groups, and writes a little between.
fn operator(draw: &mut Draw, plan: &mut Plan, span: Duration) {
    let ops = draw.between(10, 40);
    let pace = rounded((span / ops as u32).clamp(20 * MS, SECOND));
    let tablets = draw.between(1, 2).min(u64::from(plan.cluster.tablets));
    // Who takes more away than is put back waits for the masters most of the time.
    let kinds =
        [(0, draw.pick(&[0, 2, 8])), (1, 4), (2, draw.pick(&[0, 2])), (3, 3), (4, draw.pick(&[0, 2]))];
    let asked = draw.pick(&[Asked::Leader, Asked::All, Asked::All]);
    let number = plan.clients.len() as u8;
    let op = |draw: &mut Draw| {
        let (table, tablet) = (0, draw.below(tablets) as u8);
        match draw.weighted(&kinds) {
            0 => Op::Evict { table, tablet, asked },
            1 => Op::Move { table, tablet, asked },
            2 => Op::StepDown { table, tablet },
            4 => Op::Elect { table, tablet, replica: draw.below(3) as u8 },
            _ => {
                let (key, value) = (draw.below(4) as u32, draw.below(1_000_000) as u32);
                Op::Write { kind: WriteKind::Upsert, table, key, value }
            }
        }
    };
    let setup = ClientSetup { number, flush: Flush::Sync, waits: Waits::No, pace, propagate_every: 0 };
    plan.clients.push(ClientProgram { setup, ops: (0..ops).map(|_| op(draw)).collect() });
}

fn some_server(draw: &mut Draw, plan: &Plan) -> Host {
    Host::Tserver(draw.below(u64::from(plan.cluster.tservers)) as u8)
}

/// Some of those who take a change into their logs are struck with it, so that it is in some logs and not in others.
fn struck_by_change(draw: &mut Draw, plan: &Plan, at: Duration) -> Vec<TimedFault> {
    let election = plan.cluster.raft_heartbeat * 3;
    let moment = draw.weighted(&[(Moment::Members, 4), (Moment::Lead, 1)]);
    let blow = draw.pick(&[Blow::CutPeers, Blow::CutPeers, Blow::Isolate, Blow::Kill, Blow::Deaf]);
    let servers = (0..plan.cluster.tservers).map(Host::Tserver);
    let struck: Vec<Host> = servers.filter(|_| draw.percent(50)).collect();
    let strike = |target| {
        let nth = draw.between(1, 3) as u32;
        let span = rounded(election.mul_f64(draw.between(50, 500) as f64 / 100.0));
        TimedFault { at, target, kind: Fault::StrikeAfter { moment, nth, blow, span } }
    };
    struck.into_iter().map(strike).collect()
}

/// The power goes when whoever leads has just committed a change: its log says so, and what it stores beside that may
/// not yet.
fn dark_at_change(draw: &mut Draw, plan: &Plan, at: Duration) -> Vec<TimedFault> {
    let mut targets: Vec<Host> = (0..2).map(|_| some_server(draw, plan)).collect();
    targets.dedup();
    let cut = |target| {
        let (nth, op) = (draw.between(1, 3) as u32, draw.between(1, 8) as u32);
        let (dir, down) = (draw.pick(&[Dir::Wal, Dir::Wal, Dir::Data]), rounded(draw.span(5 * MS, SECOND)));
        let kind = Fault::PowerCutAfter { moment: Moment::Changed, nth, dir, op, down };
        TimedFault { at, target, kind }
    };
    targets.into_iter().map(cut).collect()
}

/// A server is away for about as long as anybody waits for it, or for so long that changes are asked for without it.
fn away(draw: &mut Draw, plan: &Plan, at: Duration) -> TimedFault {
    let span = plan.cluster.follower_failed.min(5 * SECOND);
    let (least, most) = draw.pick(&[(50, 200), (200, 500)]);
    let span = rounded(span.mul_f64(draw.between(least, most) as f64 / 100.0));
    let kind = if draw.percent(50) { Fault::Pause { span } } else { Fault::Kill { down: span } };
    TimedFault { at, target: some_server(draw, plan), kind }
}

/// The power goes while a copy is made.
fn broken_copy(draw: &mut Draw, plan: &Plan, at: Duration) -> TimedFault {
    let (dir, op) = (draw.pick(&[Dir::Wal, Dir::Data]), draw.between(1, 25) as u32);
    let down = rounded(draw.span(5 * MS, 2 * SECOND));
    let kind = Fault::PowerCutAfter { moment: Moment::Copy, nth: draw.between(1, 2) as u32, dir, op, down };
    TimedFault { at, target: some_server(draw, plan), kind }
}
