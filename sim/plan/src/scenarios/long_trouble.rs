//! Scenario: minutes of trouble. One server is silent for longer than followers may be by default, or its device or its
//! links are slow for minutes, while one client continues to write and read.
//!
//! Other faults end within seconds: the default time after which a silent follower is evicted never passes, nor does
//! the time after which scanners and sessions of copies expire.

use std::time::Duration;

use crate::client_ops::{
    ClientOp, ClientProgram, ClientSetup, FlushMode, ReadMode, ReplicaChoice, WriteKind, WriteWait,
};
use crate::draws::{MS, SECOND, rounded};
use crate::faults::{Fault, HostDir, LinkDirection, TimedFault};
use crate::host::Host;
use crate::plan::Plan;
use crate::profile::FaultProfile;
use crate::random_stream::RandomStream;

/// Time after which leaders evict a silent follower by default.
const FOLLOWER_FAILED: Duration = Duration::from_secs(300);
/// Ops of the client.
const OPS: u64 = 60;

fn percent(profile: FaultProfile) -> u64 {
    match profile {
        FaultProfile::Crash | FaultProfile::Network => 8,
        FaultProfile::Swarm | FaultProfile::Copy | FaultProfile::Disk => 4,
        FaultProfile::Clock | FaultProfile::Memory | FaultProfile::Calm | FaultProfile::Tables => 0,
    }
}

/// Adds minutes of trouble at one server, and a client, to some plans.
pub(crate) fn add(random: &mut RandomStream, plan: &mut Plan, profile: FaultProfile) {
    if plan.cluster.replicas < 3 || !random.percent(percent(profile)) {
        return;
    }
    let damaging = plan.faults.iter().find(|fault| fault.kind.kind().loses_durable_data());
    let any = Host::Tserver(random.below(u64::from(plan.cluster.tservers)) as u8);
    let target = damaging.map_or(any, |fault| fault.target);
    let at = rounded(random.span(300 * MS, 3 * SECOND));
    let silent = rounded(FOLLOWER_FAILED + random.span(5 * SECOND, 30 * SECOND));
    let slow = rounded(random.span(30 * SECOND, 120 * SECOND));
    let peer = Host::Tserver(random.below(u64::from(plan.cluster.tservers)) as u8);
    let latency = rounded(random.span(50 * MS, SECOND));
    let factor = random.pick(&[10, 30, 100]);
    let kind = match random.below(5) {
        0 => Fault::Pause { span: silent },
        1 => Fault::Kill { down: silent },
        2 => Fault::Isolate { way: LinkDirection::Both, span: silent },
        3 if peer != target => Fault::SlowLink { peer, latency, span: slow },
        _ => Fault::DiskSlow { dir: random.pick(&[HostDir::Wal, HostDir::Data]), factor, span: slow },
    };
    let span = kind.span();
    if span > FOLLOWER_FAILED {
        plan.cluster.follower_failed = FOLLOWER_FAILED;
    }
    plan.faults.push(TimedFault { at, target, kind });
    plan.faults.sort_by_key(|fault| fault.at);
    let number = plan.clients.len() as u8;
    plan.clients.push(client(random, number, at + span));
}

/// Returns a client whose ops take this long.
fn client(random: &mut RandomStream, number: u8, span: Duration) -> ClientProgram {
    let pace = rounded(span / OPS as u32);
    let setup =
        ClientSetup { number, flush: FlushMode::Sync, waits: WriteWait::No, pace, propagate_every: 0 };
    let op = |random: &mut RandomStream| {
        let key = random.below(50) as u32;
        match random.percent(60) {
            true => ClientOp::Write {
                kind: WriteKind::Upsert,
                table: 0,
                key,
                value: random.below(1_000_000) as u32,
            },
            false => ClientOp::Get { table: 0, key, at: ReadMode::Latest, from: ReplicaChoice::Leader },
        }
    };
    ClientProgram { setup, ops: (0..OPS).map(|_| op(random)).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::PlanSize;

    #[test]
    fn some_large_plans_are_silent_for_minutes() {
        let long = |size| {
            let plans = (0..300).map(|seed| Plan::generate(seed, FaultProfile::Crash, size));
            let is_long = |plan: &Plan| plan.faults.iter().any(|fault| fault.kind.span() > FOLLOWER_FAILED);
            plans.filter(is_long).collect::<Vec<_>>()
        };
        let plans = long(PlanSize::Full);
        assert!(plans.len() > 2, "only {} plans", plans.len());
        for plan in plans {
            assert!(plan.limit > plan.faults_end_at());
            assert_eq!(plan.cluster.follower_failed, FOLLOWER_FAILED);
        }
        assert!(long(PlanSize::Smoke).is_empty());
    }
}
