//! O12: a cluster that nobody asks for anything is nearly silent. One that goes round in circles is not.

use std::time::Duration;

use super::Finding;
use crate::plan::Cluster;

const NAME: &str = "calm";

/// Events of the world (tasks, reads, writes, disk work) that one exchange of two servers may take, with room.
const EVENTS_PER_EXCHANGE: f64 = 60.0;
/// What a server may do by itself, in events each second.
const EVENTS_OF_ITS_OWN: f64 = 600.0;

/// The events that a silent cluster may have in a second.
pub fn bound(cluster: &Cluster) -> f64 {
    let per_second = |interval: Duration| 1.0 / interval.as_secs_f64().max(1e-3);
    let (masters, tservers) = (f64::from(cluster.masters), f64::from(cluster.tservers));
    let servers = masters + tservers;
    // Leaders tell each other server that they live; each server tells each master; maintenance looks around.
    let raft = per_second(cluster.raft_heartbeat) * tservers * (tservers - 1.0).max(0.0);
    let system = per_second(cluster.raft_heartbeat) * masters * (masters - 1.0);
    let reports = per_second(cluster.heartbeat) * tservers * masters;
    let upkeep = per_second(cluster.maintenance) * servers;
    (raft + system + reports + upkeep) * EVENTS_PER_EXCHANGE + servers * EVENTS_OF_ITS_OWN
}

/// Judges how many events there were while nobody asked for anything.
pub fn check(cluster: &Cluster, events: u64, idle: Duration) -> Option<Finding> {
    let rate = events as f64 / idle.as_secs_f64();
    let bound = bound(cluster);
    (rate > bound).then(|| {
        let message =
            format!("{rate:.0} events a second while nobody asks for anything; {bound:.0} are explained");
        Finding::new(NAME, message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Plan, Profile, Size};

    #[test]
    fn a_loop_without_a_pause_is_noticed() {
        let cluster = Plan::generate(1, Profile::Calm, Size::Bench).cluster;
        let usual = bound(&cluster) as u64;
        assert!(check(&cluster, usual, Duration::from_secs(2)).is_none());
        assert!(check(&cluster, 3 * usual, Duration::from_secs(2)).is_some());
    }
}
