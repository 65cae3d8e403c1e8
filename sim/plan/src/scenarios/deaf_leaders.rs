//! Scenario: deaf leaders. A leader receives nothing from its peers for some elections, while clients write to it and
//! change its configuration. Messages that it has sent arrive, later entries are sent to no peer, and the replies come
//! when another one leads.
//!
//! ```text
//! a  leads ── appends a change, sends it ── deaf ── appends writes ───────── hears late answers ── truncates
//! b            has the change ──────────────────── is elected, appends others
//! ```
//!
//! Entries are truncated right after a change of members, changes of masters are accepted by a leader that loses them,
//! and late answers confirm what was proposed meanwhile. In other plans leaders are mostly cut off in both directions,
//! and between two changes.

use std::time::Duration;

use super::clients::add_client;
use crate::client_ops::{ChangeTarget, ClientOp, WriteKind};
use crate::draws::{MS, SECOND, rounded};
use crate::faults::{Fault, TimedFault, Trigger, TriggeredFault};
use crate::host::Host;
use crate::plan::Plan;
use crate::profile::FaultProfile;
use crate::random_stream::RandomStream;

/// Keys that all writers share.
const FIRST_KEY: u32 = 8_300;
const KEYS: u64 = 24;

fn percent(profile: FaultProfile) -> u64 {
    match profile {
        FaultProfile::Network => 20,
        FaultProfile::Copy => 15,
        FaultProfile::Crash => 10,
        FaultProfile::Swarm => 8,
        FaultProfile::Disk
        | FaultProfile::Memory
        | FaultProfile::Clock
        | FaultProfile::Calm
        | FaultProfile::Tables => 0,
    }
}

/// Makes leaders that are deaf at changes of their configuration the only faults of some plans; true for those.
pub(super) fn add(random: &mut RandomStream, plan: &mut Plan, profile: FaultProfile) -> bool {
    if plan.cluster.replicas != 3 || plan.changes_masters() || !random.percent(percent(profile)) {
        return false;
    }
    plan.cluster.tservers = plan.cluster.tservers.max(random.pick(&[3, 4, 4]));
    // Elections take a second at most, so that several fit into the plan.
    plan.cluster.raft_heartbeat = plan.cluster.raft_heartbeat.min(100 * MS);
    plan.cluster.follower_failed = random.pick(&[2, 3, 300]) * SECOND;
    // With one update in flight nothing follows an entry that has no answer yet.
    plan.sending.inflight = random.pick(&[1, 1, 4]);
    plan.faults.clear();
    let work = rounded(random.span(4 * SECOND, 7 * SECOND));
    let election = plan.cluster.raft_heartbeat * 3;
    for _ in 0..random.between(3, 7) {
        let fault = deafness(random, plan.cluster.tservers, election, work);
        plan.faults.push(fault);
    }
    // Masters add a replica while the others are deaf.
    if plan.cluster.follower_failed < 4 * SECOND && random.percent(60) {
        let target = Host::Tserver(random.below(u64::from(plan.cluster.tservers)) as u8);
        let (at, down) = (rounded(random.span(MS, SECOND)), rounded(random.span(3 * SECOND, 6 * SECOND)));
        plan.faults.push(TimedFault { at, target, kind: Fault::Kill { down } });
    }
    plan.faults.sort_by_key(|fault| fault.at);
    for _ in 0..random.between(2, 3) {
        add_writer(random, plan, work);
    }
    add_operator(random, plan, work);
    true
}

/// Makes the present leader deaf, or one that appends a change of its configuration.
fn deafness(random: &mut RandomStream, tservers: u8, election: Duration, work: Duration) -> TimedFault {
    let at = rounded(random.span(SECOND / 5, work));
    let span = rounded(election.mul_f64(random.between(100, 600) as f64 / 100.0));
    let blow = random.weighted(&[
        (TriggeredFault::Deaf, 6),
        (TriggeredFault::CutPeers, 2),
        (TriggeredFault::Pause, 2),
    ]);
    let target = Host::Tserver(random.below(u64::from(tservers)) as u8);
    let kind = match random.percent(30) {
        true => Fault::StrikeLeader { blow, span },
        false => {
            let nth = random.between(1, 3) as u32;
            Fault::StrikeAfter { moment: Trigger::Members, nth, blow, span }
        }
    };
    TimedFault { at, target, kind }
}

fn add_writer(random: &mut RandomStream, plan: &mut Plan, work: Duration) {
    let (pace, tables) = (rounded(random.span(5 * MS, 40 * MS)), u64::from(plan.cluster.tables));
    let op = |random: &mut RandomStream| ClientOp::Write {
        kind: random.weighted(&[(WriteKind::Upsert, 6), (WriteKind::Delete, 1)]),
        table: random.below(tables) as u8,
        key: FIRST_KEY + random.below(KEYS) as u32,
        value: random.below(1_000_000) as u32,
    };
    let count = (work.as_millis() / pace.as_millis()).min(150);
    let ops = (0..count).map(|_| op(random)).collect();
    add_client(plan, pace, ops);
}

/// Adds a client that moves replicas and leaders of two tablets.
fn add_operator(random: &mut RandomStream, plan: &mut Plan, work: Duration) {
    let (tablets, ops) = (u64::from(plan.cluster.tablets).min(2), random.between(15, 30));
    let spare = plan.cluster.tservers > plan.cluster.replicas;
    let op = |random: &mut RandomStream| {
        let (table, tablet) = (0, random.below(tablets) as u8);
        match random.below(8) {
            0 => ClientOp::StepDown { table, tablet },
            1..=5 if spare => ClientOp::Move { table, tablet, asked: ChangeTarget::Leader },
            _ => ClientOp::Evict { table, tablet, asked: ChangeTarget::Leader },
        }
    };
    let ops: Vec<ClientOp> = (0..ops).map(|_| op(random)).collect();
    let pace = rounded(work / ops.len() as u32);
    add_client(plan, pace, ops);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::PlanSize;

    #[test]
    fn leaders_are_deaf_while_their_configurations_change() {
        let plans = (0..200).map(|seed| Plan::generate(seed, FaultProfile::Network, PlanSize::Smoke));
        let is_deaf = |fault: &&TimedFault| {
            matches!(
                fault.kind,
                Fault::StrikeAfter { moment: Trigger::Members, blow: TriggeredFault::Deaf, .. }
            )
        };
        let deaf = |plan: &Plan| plan.faults.iter().filter(is_deaf).count() >= 2;
        let plans: Vec<Plan> = plans.filter(deaf).collect();
        assert!(plans.len() > 6, "only {} plans", plans.len());
        assert!(plans.iter().any(|plan| plan.sending.inflight == 1));
    }
}
