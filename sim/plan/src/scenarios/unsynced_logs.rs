//! Scenario: power cuts without synced logs, which is Kudu's default.
//!
//! Acknowledged writes may be lost then, and several replicas may contradict each other. Plans with one replica of each
//! tablet still have guarantees: servers restart without an operator, their state is one that they had before, and they
//! continue from it.

use crate::host::Host;
use crate::plan::Plan;
use crate::profile::FaultProfile;
use crate::random_stream::RandomStream;

/// Returns the percentage of plans without synced logs, of those with one replica and power cuts.
fn percent(profile: FaultProfile) -> u64 {
    match profile {
        FaultProfile::Crash | FaultProfile::Disk => 40,
        _ => 25,
    }
}

/// Turns log sync on where power is cut, except in some plans with one replica.
///
/// In those plans masters keep their power, because a lost table would look like a lost acknowledgement.
pub(crate) fn unsync_logs(random: &mut RandomStream, plan: &mut Plan, profile: FaultProfile) {
    // Changes of masters need synced logs, which such plans already have.
    if plan.changes_masters() || !plan.faults.iter().any(|fault| fault.kind.cuts_power()) {
        return;
    }
    plan.cluster.log_sync = plan.cluster.replicas > 1 || !random.percent(percent(profile));
    if plan.cluster.log_sync {
        return;
    }
    let tservers = plan.cluster.tservers;
    for fault in plan.faults.iter_mut().filter(|fault| fault.kind.cuts_power()) {
        if let Host::Master(number) = fault.target {
            fault.target = Host::Tserver(number % tservers);
        }
    }
}
