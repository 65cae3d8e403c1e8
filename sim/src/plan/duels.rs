//! Leaders that lose each other: one is cut off with what its clients send it, its successor is struck when it has just
//! begun to commit, and the first comes back about then.
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

use super::faults::{Blow, Fault, Moment, Way};
use super::generate::{Profile, rounded};
use super::{Cluster, Host, Plan, TimedFault};
use crate::draw::Draw;

/// No duel begins before.
const CALM_START: Duration = Duration::from_millis(500);

/// How many plans in a hundred have duels.
fn percent_with_duels(profile: Profile) -> u64 {
    match profile {
        Profile::Swarm => 25,
        Profile::Crash | Profile::Network => 40,
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
    for _ in 0..draw.between(1, 3) {
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
    let first = draw.below(u64::from(count)) as u8;
    let election = cluster.raft_heartbeat * 3;
    let mut span = |from: u64, to: u64| rounded(election.mul_f64(draw.between(from, to) as f64 / 100.0));
    let (cut_off, struck) = (span(130, 400), span(80, 400));
    let first_blow = draw.weighted(&[(Blow::CutPeers, 5), (Blow::Isolate, 1), (Blow::Pause, 1)]);
    let kind = match first_blow {
        Blow::Isolate => Fault::Isolate { way: Way::Both, span: cut_off },
        Blow::Pause => Fault::Pause { span: cut_off },
        _ => Fault::CutPeers { way: Way::Both, span: cut_off },
    };
    let moment = draw.weighted(&[(Moment::Settle, 3), (Moment::Lead, 1)]);
    let strike = |blow| Fault::StrikeAfter { moment, nth: 1, blow, span: struck };
    let mut faults = vec![TimedFault { at, target: host(first), kind }];
    for other in (0..count).filter(|other| *other != first) {
        let blow =
            draw.weighted(&[(Blow::CutPeers, 3), (Blow::Isolate, 2), (Blow::Kill, 2), (Blow::Pause, 1)]);
        faults.push(TimedFault { at, target: host(other), kind: strike(blow) });
    }
    // It may be struck in its turn when it leads again.
    if draw.percent(50) {
        let at = at + cut_off;
        faults.push(TimedFault { at, target: host(first), kind: strike(Blow::CutPeers) });
    }
    faults
}
