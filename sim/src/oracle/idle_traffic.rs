//! O12: a cluster without requests is nearly silent. One in a livelock is not.

use std::time::Duration;

use super::Violation;
use sim_plan::ClusterSpec;

const NAME: &str = "idle traffic";

/// Events of the world (tasks, reads, writes, disk work) that one exchange of two servers may take, with a margin.
const EVENTS_PER_EXCHANGE: f64 = 60.0;
/// Events per second that a server may cause by itself.
const EVENTS_OF_ITS_OWN: f64 = 600.0;

/// Returns the highest event rate of an idle cluster, per second.
pub fn bound(cluster: &ClusterSpec) -> f64 {
    let per_second = |interval: Duration| 1.0 / interval.as_secs_f64().max(1e-3);
    let (masters, tservers) = (f64::from(cluster.masters), f64::from(cluster.tservers));
    let servers = masters + tservers;
    // Leaders send heartbeats to each other server; each server sends heartbeats to each master; maintenance checks its
    // tablets.
    let raft = per_second(cluster.raft_heartbeat) * tservers * (tservers - 1.0).max(0.0);
    let system = per_second(cluster.raft_heartbeat) * masters * (masters - 1.0);
    let reports = per_second(cluster.heartbeat) * tservers * masters;
    let upkeep = per_second(cluster.maintenance) * servers;
    (raft + system + reports + upkeep) * EVENTS_PER_EXCHANGE + servers * EVENTS_OF_ITS_OWN
}

/// Checks the number of events while no client sent requests.
pub fn check(cluster: &ClusterSpec, events: u64, idle: Duration) -> Option<Violation> {
    let rate = events as f64 / idle.as_secs_f64();
    let bound = bound(cluster);
    (rate > bound).then(|| {
        let message = format!("{rate:.0} events per second in an idle cluster (limit {bound:.0})");
        Violation::new(NAME, message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use sim_plan::{FaultProfile, Plan, PlanSize};

    #[test]
    fn a_loop_without_a_pause_is_noticed() {
        let cluster = Plan::generate(1, FaultProfile::Calm, PlanSize::Bench).cluster;
        let usual = bound(&cluster) as u64;
        assert!(check(&cluster, usual, Duration::from_secs(2)).is_none());
        assert!(check(&cluster, 3 * usual, Duration::from_secs(2)).is_some());
    }
}
