//! Scenarios: faults and ops that belong together, in some plans of each profile.
//!
//! The swarm draws faults and ops independently, so sequences that need several of them within a second are rare. A
//! scenario adds such a sequence. It may change the cluster's settings to make the sequence possible.
//!
//! Each file has `percent`, the percentage of plans of each profile with the scenario, and `add`.

use std::time::Duration;

use crate::plan::Plan;
use crate::profile::FaultProfile;
use crate::random_stream::RandomStream;

mod ancient_rows;
pub(crate) mod backups;
mod busy_catalog;
mod clients;
mod commit_wait;
mod competing_leaders;
mod deaf_leaders;
mod deposed_leader;
pub(crate) mod failing_steps;
mod full_disk_starts;
mod honest_clocks;
mod lagging_member;
mod late_damage;
mod late_orders;
mod left_behind;
mod lone_candidate;
pub(crate) mod long_trouble;
mod lost_quorum;
mod lost_replies;
pub(crate) mod master_changes;
mod membership_churn;
mod memory_load;
mod rebalancing;
mod replaced_server;
mod slow_scans;
mod stopped_server;
mod unopened_replicas;
pub(crate) mod unsynced_logs;

/// Adds scenarios to a plan. `work` is the time that clients work if nothing delays them.
///
/// Order: each scenario reads the clients, settings and faults of those before it. A new one comes last, with a stream
/// name of its own, so that plans without it stay as they are. Stream names are older than the names of the files.
pub(crate) fn add_scenarios(plan: &mut Plan, profile: FaultProfile, work: Duration) {
    let seed = plan.seed;
    let stream = |name| RandomStream::new(seed, name);
    memory_load::add(&mut stream("heavy"), plan, profile);
    commit_wait::add(&mut stream("waits"), plan, profile);
    competing_leaders::add(&mut stream("duels"), plan, profile, work);
    membership_churn::add(&mut stream("members"), plan, profile, work);
    lost_quorum::add(&mut stream("bereft"), plan, profile);
    lost_replies::add(&mut stream("retries"), plan, profile, work);
    slow_scans::add(&mut stream("slow scans"), plan, profile, work);
    rebalancing::add(&mut stream("spread"), plan, profile, work);
    lagging_member::add(&mut stream("laggard"), plan, profile);
    deposed_leader::add(&mut stream("deposed"), plan, profile);
    master_changes::add(&mut stream("masters"), plan, profile, work);
    honest_clocks::add(&mut stream("honest clocks"), plan, profile);
    stopped_server::add(&mut stream("stopped server"), plan, profile);
    lone_candidate::add(&mut stream("lone candidate"), plan, profile);
    left_behind::add(&mut stream("left behind"), plan, profile);
    replaced_server::add(&mut stream("replaced server"), plan, profile);
    busy_catalog::add(&mut stream("busy catalog"), plan, profile);
    ancient_rows::add(&mut stream("ancient rows"), plan, profile);
    late_damage::add(&mut stream("late damage"), plan, profile, work);
    // One of them at most: each replaces faults that the others need.
    let _added = !has_only_fault(plan)
        && (late_orders::add(&mut stream("late orders"), plan, profile)
            || failing_steps::add(&mut stream("failing steps"), plan, profile)
            || unopened_replicas::add(&mut stream("unopened replicas"), plan, profile)
            || deaf_leaders::add(&mut stream("deaf leaders"), plan, profile));
    full_disk_starts::add(&mut stream("starts on full disks"), plan, profile);
}

/// Returns true for a plan that another scenario has given its only fault.
fn has_only_fault(plan: &Plan) -> bool {
    plan.faults.len() == 1
}
