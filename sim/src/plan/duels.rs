//! Leaders that lose each other: one is cut off with what a crowd of clients sends it, its successor is struck when it
//! has just begun to commit, and the first comes back about then.
//!
//! ```text
//! a  leads ── cut off, takes writes ────────┐ heals ── asks for votes …
//! b            is elected, commits ── struck ──────────────────┐ heals
//! c            follows b                      votes
//! ```
//!
//! That is when logs differ the most, and what Raft's rules on terms are for (Raft §5.4); single faults rarely come in
//! that order.

use std::time::Duration;

use super::faults::{Blow, Fault, Moment};
use super::generate::{Profile, rounded};
use super::ops::{ClientProgram, ClientSetup, Flush, Op, Waits, WriteKind};
use super::{Cluster, Host, Plan, TimedFault};
use crate::draw::Draw;

/// No duel begins before.
const CALM_START: Duration = Duration::from_millis(500);

/// How many plans in a hundred have duels.
fn percent_with_duels(profile: Profile) -> u64 {
    match profile {
        Profile::Swarm => 30,
        Profile::Crash | Profile::Network => 50,
        Profile::Copy => 20,
        Profile::Disk | Profile::Clock | Profile::Memory | Profile::Calm => 0,
    }
}

/// Duels in some plans.
pub fn duels(draw: &mut Draw, plan: &mut Plan, profile: Profile, work: Duration) {
    let groups = groups(&plan.cluster);
    if groups.is_empty() || !draw.percent(percent_with_duels(profile)) {
        return;
    }
    if plan.cluster.replicas >= 3 {
        crowd(draw, plan, work);
        if draw.percent(60) {
            agitator(draw, plan, work);
        }
    }
    for _ in 0..draw.between(1, 4) {
        let hosts = draw.weighted(&groups);
        let at = rounded(CALM_START + work.mul_f64(draw.below(1_000) as f64 / 1_000.0));
        plan.faults.extend(duel(draw, &plan.cluster, hosts, at));
    }
    plan.faults.sort_by_key(|fault| fault.at);
}

/// Servers that elect leaders among themselves, and how to make them of numbers.
type Group = (u8, fn(u8) -> Host);

fn groups(cluster: &Cluster) -> Vec<(Group, u32)> {
    let tservers: Group = (if cluster.replicas >= 3 { cluster.tservers } else { 0 }, Host::Tserver);
    let masters: Group = (cluster.masters, Host::Master);
    [(tservers, 4), (masters, 1)].into_iter().filter(|((count, _), _)| *count >= 3).collect()
}

fn duel(draw: &mut Draw, cluster: &Cluster, (count, host): Group, at: Duration) -> Vec<TimedFault> {
    let election = cluster.raft_heartbeat * 3;
    let span = |draw: &mut Draw| rounded(election.mul_f64(draw.between(80, 400) as f64 / 100.0));
    let moment = draw.weighted(&[(Moment::Settle, 3), (Moment::Lead, 1)]);
    let strike = |draw: &mut Draw| {
        let blow =
            draw.weighted(&[(Blow::CutPeers, 4), (Blow::Isolate, 2), (Blow::Kill, 2), (Blow::Pause, 1)]);
        Fault::StrikeAfter { moment, nth: 1, blow, span: span(draw) }
    };
    let mut faults: Vec<TimedFault> =
        (0..count).map(|number| TimedFault { at, target: host(number), kind: strike(draw) }).collect();
    // Or else the first to go is who is asked to step down (see `crowd`), or who leads next anyway.
    if draw.percent(75) {
        let blow = draw.weighted(&[(Blow::CutPeers, 5), (Blow::Isolate, 1), (Blow::Pause, 1)]);
        let kind = Fault::StrikeLeader { blow, span: span(draw) };
        faults.push(TimedFault { at, target: host(0), kind });
    }
    faults
}

/// Clients that all write to the same few rows: each that waits for a leader who is cut off has put an entry more into
/// that leader's log.
fn crowd(draw: &mut Draw, plan: &mut Plan, work: Duration) {
    let (size, ops) = (draw.between(2, 6) as u8, draw.between(20, 60));
    let pace = rounded((work / ops as u32).clamp(Duration::from_millis(2), Duration::from_millis(100)));
    let (keys, tablets) = (draw.between(1, 2), u64::from(plan.cluster.tablets));
    let present = plan.clients.len() as u8;
    for number in present..present + size {
        let setup = ClientSetup { number, flush: Flush::Sync, waits: Waits::No, pace, propagate_every: 1 };
        let op = |draw: &mut Draw| match draw.percent(4) {
            true => Op::StepDown { table: 0, tablet: draw.below(tablets) as u8 },
            false => Op::Write {
                kind: WriteKind::Upsert,
                table: 0,
                key: draw.below(keys) as u32,
                value: draw.below(1_000_000) as u32,
            },
        };
        plan.clients.push(ClientProgram { setup, ops: (0..ops).map(|_| op(draw)).collect() });
    }
}

/// A client who asks replicas to stand for election all the time, whoever leads and whatever they have: what voters
/// must refuse is asked of them then.
fn agitator(draw: &mut Draw, plan: &mut Plan, work: Duration) {
    let election = plan.cluster.raft_heartbeat * 3;
    let pace = rounded(election.mul_f64(draw.between(20, 300) as f64 / 100.0));
    let ops = (work.as_millis() / pace.as_millis()).clamp(10, 60);
    // A crowd writes to few tablets: the first may be one of them.
    let tablets = draw.between(1, u64::from(plan.cluster.tablets));
    let (number, flush) = (plan.clients.len() as u8, Flush::Sync);
    let setup = ClientSetup { number, flush, waits: Waits::No, pace, propagate_every: 0 };
    let op = |draw: &mut Draw| {
        let (tablet, replica) = (draw.below(tablets) as u8, draw.below(3) as u8);
        Op::Elect { table: 0, tablet, replica }
    };
    plan.clients.push(ClientProgram { setup, ops: (0..ops).map(|_| op(draw)).collect() });
}
