//! Logs that nobody syncs, and power cuts all the same: Kudu's default, on a machine that loses its power.
//!
//! What was acknowledged may be gone then, and where there are several copies they may contradict each other. With one
//! copy of each tablet there is still a promise: servers come back by themselves, what they have is something that they
//! once had, and they work on from there.

use super::generate::Profile;
use super::{Host, Plan};
use crate::draw::Draw;

/// In how many plans in a hundred, of those with one copy whose servers lose their power, logs are not synced.
fn percent_unsynced(profile: Profile) -> u64 {
    match profile {
        Profile::Crash | Profile::Disk => 40,
        _ => 25,
    }
}

/// Has logs synced where power is cut, but in some plans with one copy; there, masters keep their power: tables that
/// they forgot would be missed.
pub(super) fn unsynced(draw: &mut Draw, plan: &mut Plan, profile: Profile) {
    // A master that loses its disk is another matter.
    if plan.changes_masters() || !plan.faults.iter().any(|fault| fault.kind.cuts_power()) {
        return;
    }
    plan.cluster.log_sync = plan.cluster.replicas > 1 || !draw.percent(percent_unsynced(profile));
    if plan.cluster.log_sync {
        return;
    }
    let servers = plan.cluster.tservers;
    for fault in plan.faults.iter_mut().filter(|fault| fault.kind.cuts_power()) {
        if let Host::Master(number) = fault.target {
            fault.target = Host::Tserver(number % servers);
        }
    }
}
