//! Scenario: a lone candidate. An operator asks a member that is cut off from its peers to stand for election: it has
//! the highest term and lacks the last entries. Before it is reached again the leader is away for long. The two members
//! that are left have the higher term and the longer log one each, and must elect a leader (etcd 8501).
//!
//! ```text
//! a  cut off ├── stands, term + 1, term + 2 ──┤ pre-votes: its log is too short
//! b  leads, writes                           ┼ away
//! c  follows b                                  pre-votes: its term is too low, learns the term, is elected
//! ```

use std::time::Duration;

use crate::client_ops::{ClientOp, ClientProgram, ClientSetup, FlushMode, WriteKind, WriteWait};
use crate::draws::{MS, SECOND, rounded};
use crate::faults::{Fault, LinkDirection, TimedFault, TriggeredFault};
use crate::generate::HDD_SYNC_MIN;
use crate::host::Host;
use crate::plan::Plan;
use crate::profile::FaultProfile;
use crate::random_stream::RandomStream;

/// First of the keys that are written, and their number.
const FIRST_KEY: u32 = 7_600;
const KEYS: u64 = 30;
/// Time of the leader's absence: recovery from the cut, and several pre-votes with backoff.
const AWAY_MIN: Duration = Duration::from_secs(12);
const AWAY_MAX: Duration = Duration::from_secs(20);

fn percent(profile: FaultProfile) -> u64 {
    match profile {
        FaultProfile::Network => 10,
        FaultProfile::Crash => 8,
        FaultProfile::Swarm => 5,
        FaultProfile::Copy => 3,
        // Slow disks and little memory delay elections.
        FaultProfile::Disk
        | FaultProfile::Memory
        | FaultProfile::Clock
        | FaultProfile::Calm
        | FaultProfile::Tables => 0,
    }
}

/// Makes a lone candidate and an absent leader the only faults of some plans.
pub(super) fn add(random: &mut RandomStream, plan: &mut Plan, profile: FaultProfile) {
    let unsuitable = plan.cluster.replicas < 3 || plan.devices.sync >= HDD_SYNC_MIN;
    if unsuitable || !random.percent(percent(profile)) {
        return;
    }
    // Other candidates would raise the terms of all members.
    for op in plan.clients.iter_mut().flat_map(|client| &mut client.ops).filter(|op| op.is_by_operator()) {
        *op = ClientOp::Wait { span: MS };
    }
    plan.cluster.raft_heartbeat = plan.cluster.raft_heartbeat.min(100 * MS);
    let at = rounded(random.span(SECOND, 3 * SECOND));
    let span = rounded(random.span(SECOND, 2 * SECOND));
    let candidate = Host::Tserver(random.below(u64::from(plan.cluster.tservers)) as u8);
    let away = rounded(random.span(AWAY_MIN, AWAY_MAX));
    let blow = random.pick(&[TriggeredFault::Pause, TriggeredFault::Kill]);
    let cut = Fault::CutPeers { way: LinkDirection::Both, span };
    let leaves = Fault::StrikeLeader { blow, span: away };
    plan.faults = vec![
        TimedFault { at, target: candidate, kind: cut },
        TimedFault { at: at + span - 100 * MS, target: Host::Tserver(0), kind: leaves },
    ];
    let number = plan.clients.len() as u8;
    let programs = [operator(random, plan, number, at, span), writer(random, number + 1, at + span)];
    plan.clients.extend(programs);
}

/// Returns a client that asks one replica of each tablet to stand, several times while the candidate is cut off.
fn operator(
    random: &mut RandomStream,
    plan: &Plan,
    number: u8,
    at: Duration,
    span: Duration,
) -> ClientProgram {
    let tablets = plan.cluster.tablets;
    let asked: Vec<(u8, u8)> = (0..tablets).map(|tablet| (tablet, random.below(3) as u8)).collect();
    let rounds = random.between(1, 3) as u32;
    let begins = at + span / 3;
    let pace = rounded(span / 3 / (rounds * u32::from(tablets)));
    let elect = |(tablet, replica): (u8, u8)| ClientOp::Elect { table: 0, tablet, replica };
    let elections = (0..rounds).flat_map(|_| asked.iter().copied().map(elect));
    let wait = ClientOp::Wait { span: rounded(begins) };
    ClientProgram { setup: setup(number, pace), ops: std::iter::once(wait).chain(elections).collect() }
}

/// Returns a client that writes until the candidate is reached again.
fn writer(random: &mut RandomStream, number: u8, until: Duration) -> ClientProgram {
    let pace = rounded(random.span(10 * MS, 40 * MS));
    let op = |random: &mut RandomStream| {
        let (key, value) = (FIRST_KEY + random.below(KEYS) as u32, random.below(1_000_000) as u32);
        ClientOp::Write { kind: WriteKind::Upsert, table: 0, key, value }
    };
    let count = until.as_millis() / pace.as_millis();
    ClientProgram { setup: setup(number, pace), ops: (0..count).map(|_| op(random)).collect() }
}

fn setup(number: u8, pace: Duration) -> ClientSetup {
    ClientSetup { number, flush: FlushMode::Sync, waits: WriteWait::No, pace, propagate_every: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::PlanSize;

    #[test]
    fn the_candidate_is_asked_while_it_is_cut_off_and_the_leader_leaves_after_that() {
        let plans = (0..400).map(|seed| Plan::generate(seed, FaultProfile::Network, PlanSize::Smoke));
        let is_lone = |plan: &Plan| {
            matches!(plan.faults[..], [
                TimedFault { kind: Fault::CutPeers { .. }, .. },
                TimedFault { kind: Fault::StrikeLeader { span, .. }, .. }
            ] if span >= AWAY_MIN)
        };
        let plans: Vec<Plan> = plans.filter(is_lone).collect();
        assert!(plans.len() > 10, "only {} plans", plans.len());
        for plan in plans {
            let [cut, leaves] = &plan.faults[..] else { unreachable!("two faults") };
            assert!(cut.at < leaves.at && leaves.at < cut.at + cut.kind.span(), "{plan}");
            assert!(plan.any_op(|op| matches!(op, ClientOp::Elect { .. })));
        }
    }
}
