//! A look at an idle cluster: how much happens in some time without requests, and which replicas hibernate.

use std::time::Duration;

use crate::oracle::idle_traffic::{self, IdleCluster, IdleCounts};
use crate::oracle::settled_tablets::RunningReplica;
use crate::oracle::{Violation, hibernation};
use crate::run_observer::RunObserver;
use crate::world::World;
use sim_plan::Plan;

/// Mark of a heartbeat that a hibernating follower has answered.
const ANSWERED: &str = "replica: hibernated through a heartbeat";
/// Counter of the worlds that count timers.
const TIMERS: &str = "timers fired";

/// Counts since a run began.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Readings {
    events: u64,
    timers: Option<u64>,
    answers: u64,
}

/// Reads the counts.
pub(crate) fn read(world: &mut dyn World, observer: &RunObserver) -> Readings {
    Readings {
        events: world.log().fingerprint().events,
        timers: world.work_counts().get(TIMERS).copied(),
        answers: observer.mark_count(ANSWERED),
    }
}

/// Checks the counts of a span; `before`: the readings at its beginning.
pub(crate) fn check(
    world: &mut dyn World,
    plan: &Plan,
    observer: &RunObserver,
    before: Readings,
    span: Duration,
) -> Vec<Violation> {
    let (after, replicas) = (read(world, observer), observer.running().replicas());
    let is_damaged = plan.servers().iter().any(|host| world.machine(&host.name()).disks_are_damaged());
    let in_groups = replicas.iter().filter(|replica| replica.voters.len() > 1);
    let cluster = IdleCluster {
        spec: &plan.cluster,
        cut_one_in: plan.network.cut_one_in,
        replicas: in_groups.clone().count() as u64,
        followers: in_groups.filter(|replica| !replica.leads).count() as u64,
        is_damaged,
    };
    let timers = after.timers.zip(before.timers).map(|(after, before)| after - before);
    let counts = IdleCounts { span, events: after.events - before.events, timers };
    let mut found = idle_traffic::check(&cluster, counts);
    found.extend(hibernation::check(&replicas, is_far(plan)));
    found.extend(hibernation::check_answers(
        after.answers - before.answers,
        quiet_followers(&replicas),
        (span.as_nanos() / plan.cluster.raft_heartbeat.as_nanos().max(1)) as u64,
    ));
    found
}

fn quiet_followers(replicas: &[RunningReplica]) -> u64 {
    hibernation::quiet_members(replicas).iter().filter(|replica| !replica.leads).count() as u64
}

/// Returns true if leaders may send further heartbeats before the first one is answered.
fn is_far(plan: &Plan) -> bool {
    (plan.network.latency + plan.network.jitter) * 2 >= plan.cluster.raft_heartbeat
}
