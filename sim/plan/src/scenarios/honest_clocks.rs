//! Scenario: honest clocks. Clocks differ, and stay within their stated errors: oracles need not allow for more, as
//! they do where clocks drift or jump. One server is often far behind or ahead within a large stated error, and becomes
//! leader again and again, while a client reads at leaders.
//!
//! ```text
//! t1  right          leads, reads at its now ── serves up to its now
//! t2  480 ms behind, ± 500 ms      is elected ── must not write below what t1 served
//! ```

use crate::client_ops::{
    ClientOp, ClientProgram, ClientSetup, FlushMode, ReadMode, ReplicaChoice, WriteWait,
};
use crate::draws::MS;
use crate::faults::Fault;
use crate::host::Host;
use crate::plan::Plan;
use crate::profile::FaultProfile;
use crate::random_stream::RandomStream;
use crate::spec::ClockSkew;

/// The largest stated error in microseconds that servers of a plan trust.
const ERROR_US: u64 = 500_000;
/// Keys that the reader reads.
const KEYS: u64 = 50;

fn percent(profile: FaultProfile) -> u64 {
    match profile {
        FaultProfile::Clock => 50,
        FaultProfile::Swarm => 10,
        FaultProfile::Disk
        | FaultProfile::Network
        | FaultProfile::Crash
        | FaultProfile::Copy
        | FaultProfile::Memory
        | FaultProfile::Calm
        | FaultProfile::Tables => 0,
    }
}

/// Makes the clocks of some plans honest.
pub(super) fn add(random: &mut RandomStream, plan: &mut Plan, profile: FaultProfile) {
    if plan.clocks.is_empty() || !random.percent(percent(profile)) {
        return;
    }
    let of_clock = |fault: &Fault| {
        use Fault::{ClockDrift, ClockError, ClockJump, ClockStep};
        matches!(fault, ClockJump { .. } | ClockDrift { .. } | ClockError { .. } | ClockStep { .. })
    };
    plan.faults.retain(|fault| !of_clock(&fault.kind));
    plan.clocks.iter_mut().for_each(|clock| clock.drift_ppm = 0);
    if plan.cluster.replicas < 3 || !random.percent(60) {
        return;
    }
    let host = Host::Tserver(random.below(u64::from(plan.cluster.tservers)) as u8);
    let apart = random.between(100_000, 480_000) as i64;
    let offset_us = if random.percent(80) { -apart } else { apart };
    plan.clocks.retain(|clock| clock.host != host);
    plan.clocks.push(ClockSkew { host, offset_us, drift_ppm: 0, error_us: ERROR_US });
    for client in &mut plan.clients {
        // A commit wait would take as long as the error. Clients that propagate timestamps hide what servers forget.
        (client.setup.waits, client.setup.propagate_every) = (WriteWait::No, 0);
    }
    let number = plan.clients.len() as u8;
    let setup = |number, pace| ClientSetup {
        number,
        flush: FlushMode::Sync,
        waits: WriteWait::No,
        pace,
        propagate_every: 0,
    };
    let reads = (0..random.between(60, 200)).map(|_| ClientOp::Get {
        table: 0,
        key: random.below(KEYS) as u32,
        at: ReadMode::Snapshot,
        from: ReplicaChoice::Leader,
    });
    let reader = ClientProgram { setup: setup(number, 5 * MS), ops: reads.collect() };
    let tablets = u64::from(plan.cluster.tablets);
    let elect = |at: u64| ClientOp::Elect {
        table: 0,
        tablet: (at / 3 % tablets) as u8,
        replica: (at % u64::from(plan.cluster.replicas)) as u8,
    };
    let elections = (0..random.between(10, 30)).map(elect).collect();
    let pace = plan.cluster.raft_heartbeat.max(100 * MS);
    plan.clients.push(reader);
    plan.clients.push(ClientProgram { setup: setup(number + 1, pace), ops: elections });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::PlanSize;

    #[test]
    fn a_server_far_behind_is_the_only_trouble_with_clocks() {
        let plans = (0..100).map(|seed| Plan::generate(seed, FaultProfile::Clock, PlanSize::Smoke));
        let wide: Vec<Plan> =
            plans.filter(|plan| plan.clocks.iter().any(|clock| clock.error_us == ERROR_US)).collect();
        assert!(wide.len() > 10, "only {} plans have one", wide.len());
        for plan in wide {
            let honest =
                |clock: &ClockSkew| clock.drift_ppm == 0 && clock.offset_us.unsigned_abs() <= clock.error_us;
            assert!(plan.clocks.iter().all(honest), "{:?}", plan.clocks);
            assert!(!plan.faults.iter().any(|fault| fault.kind.word().starts_with("clock")));
        }
    }
}
