//! O12: a cluster without requests is nearly silent. One in a livelock is not.
//!
//! ```text
//!   exchanges   heartbeats: of groups to each follower, of the masters' group, of tablet servers to each master
//!   timers      each exchange; ticks of each replica in a group; looks of maintenance and of quiescing
//! ```
//!
//! Rates were measured with plans that wait (30 November 2026): hosts need a quarter to a half of the bound on
//! events, and a third to nine tenths of that on timers.

use std::time::Duration;

use super::Violation;
use sim_plan::ClusterSpec;

const NAME: &str = "idle traffic";

/// Events of the world (tasks, reads, writes, disk work) in an exchange, if writes are cut at most once in as many.
const EVENTS_PER_EXCHANGE: [(u16, f64); 3] = [(2, 13.0), (8, 9.0), (u16::MAX, 8.0)];
/// Events and timers per second that a server may cause by itself.
const OWN_EVENTS: f64 = 150.0;
const OWN_TIMERS: f64 = 50.0;
/// Events of a job that fails.
const EVENTS_PER_JOB: f64 = 20.0;
/// Factor by which timers may exceed those that are known.
const TIMERS_MARGIN: f64 = 1.25;

/// An idle cluster.
#[derive(Debug, Clone)]
pub struct IdleCluster<'a> {
    pub spec: &'a ClusterSpec,
    /// One write in this number is cut.
    pub cut_one_in: u16,
    /// Replicas on tablet servers, and followers among them, in groups of several voters.
    pub replicas: u64,
    pub followers: u64,
    /// True if files of some server are damaged: a job that cannot read them is begun again and again.
    pub is_damaged: bool,
}

/// Counts over some time without requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdleCounts {
    pub span: Duration,
    pub events: u64,
    /// Timers that fired; `None` if the world counts none.
    pub timers: Option<u64>,
}

impl IdleCluster<'_> {
    /// Returns the highest rate of events, per second.
    fn events_max(&self) -> f64 {
        let (masters, tservers) = self.servers();
        let group = (self.followers as f64 + masters - 1.0) * per_second(self.spec.raft_heartbeat);
        let exchanges = group + tservers * masters * per_second(self.spec.heartbeat);
        let mut costs = EVENTS_PER_EXCHANGE.iter();
        let cost = costs.find(|(cut, _)| self.cut_one_in <= *cut).map_or(0.0, |(_, cost)| *cost);
        let jobs = if self.is_damaged { tservers * per_second(self.spec.maintenance) } else { 0.0 };
        exchanges * cost + (masters + tservers) * OWN_EVENTS + jobs * EVENTS_PER_JOB
    }

    /// Returns the highest rate of timers that fire, per second.
    fn timers_max(&self) -> f64 {
        let (masters, tservers) = self.servers();
        let ticks = (self.replicas as f64 + masters + tservers) * per_second(self.spec.raft_heartbeat);
        let reports = 2.0 * tservers * masters * per_second(self.spec.heartbeat);
        let upkeep = (masters + tservers) * per_second(self.spec.maintenance);
        (ticks + reports + upkeep) * TIMERS_MARGIN + (masters + tservers) * OWN_TIMERS
    }

    fn servers(&self) -> (f64, f64) {
        (f64::from(self.spec.masters), f64::from(self.spec.tservers))
    }
}

fn per_second(interval: Duration) -> f64 {
    1.0 / interval.as_secs_f64().max(1e-3)
}

/// Checks counts while no client sent requests.
pub fn check(cluster: &IdleCluster<'_>, counts: IdleCounts) -> Vec<Violation> {
    let rate = |count: u64| count as f64 / counts.span.as_secs_f64();
    // The timers of a job depend on its device.
    let timers = counts.timers.filter(|_| !cluster.is_damaged);
    let timers = timers.map(|timers| ("timers", rate(timers), cluster.timers_max()));
    let rates = [("events", rate(counts.events), cluster.events_max())].into_iter().chain(timers);
    let above = rates.filter(|(_, rate, bound)| rate > bound);
    above
        .map(|(what, rate, bound)| {
            let message = format!("{rate:.0} {what} per second in an idle cluster (limit {bound:.0})");
            Violation::new(NAME, message)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use sim_plan::{FaultProfile, Plan, PlanSize};

    const SPAN: Duration = Duration::from_secs(2);

    fn found(change: impl FnOnce(&mut IdleCounts)) -> usize {
        let mut spec = Plan::generate(1, FaultProfile::Calm, PlanSize::Bench).cluster;
        (spec.masters, spec.tservers) = (1, 3);
        spec.raft_heartbeat = Duration::from_millis(50);
        spec.heartbeat = Duration::from_millis(500);
        spec.maintenance = Duration::from_millis(20);
        let (replicas, followers, is_damaged) = (24, 16, false);
        let cluster = IdleCluster { spec: &spec, cut_one_in: 8, replicas, followers, is_damaged };
        // As measured with these settings (`swarm` smoke 26).
        let mut counts = IdleCounts { span: SPAN, events: 2 * 1_461, timers: Some(2 * 798) };
        change(&mut counts);
        check(&cluster, counts).len()
    }

    #[test]
    fn a_loop_without_a_pause_is_noticed() {
        assert_eq!(found(|_| {}), 0);
        assert_eq!(found(|counts| counts.events *= 3), 1);
        assert_eq!(found(|counts| counts.timers = None), 0);
        // A millisecond between two rounds at one server.
        assert_eq!(found(|counts| counts.timers = Some(2 * (798 + 1_000))), 1);
    }
}
