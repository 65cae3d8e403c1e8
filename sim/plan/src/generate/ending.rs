//! The final restart of a plan: of all servers at once, after the clients end.
//!
//! Most plans have one, so that the post-run checks notice data that was not stored or that cannot be read again.

use crate::faults::Fault;
use crate::host::Host;
use crate::plan::Plan;
use crate::random_stream::RandomStream;
use crate::scenarios::{failing_steps, master_changes};
use crate::spec::{ClusterSpec, FinalRestart};

/// Percentage of plans with full disks that have no final restart.
const FULL_STAY_PERCENT: u64 = 50;

/// Returns the final restart of a plan whose ops and faults are drawn.
pub(super) fn final_restart(plan: &Plan) -> FinalRestart {
    let stream = |name| RandomStream::new(plan.seed, name);
    let restart = drawn(&mut stream("ending"), &plan.cluster);
    let restart = failing_steps::final_restart(plan, master_changes::final_restart(plan, restart));
    after_full_disks(&mut stream("ending of full disks"), plan, restart)
}

fn drawn(random: &mut RandomStream, cluster: &ClusterSpec) -> FinalRestart {
    match random.weighted(&[(FinalRestart::Stay, 1), (FinalRestart::Kill, 2), (FinalRestart::PowerCut, 2)]) {
        // A power cut may lose unsynced writes.
        FinalRestart::PowerCut if !cluster.log_sync => FinalRestart::Kill,
        restart => restart,
    }
}

/// Returns no restart for some plans in which a server's disk is full: what waits for space must continue by itself.
fn after_full_disks(random: &mut RandomStream, plan: &Plan, restart: FinalRestart) -> FinalRestart {
    let is_full = plan.faults.iter().any(|fault| {
        matches!(fault.kind, Fault::DiskFull { .. }) && !matches!(fault.target, Host::Client(_))
    });
    if is_full && random.percent(FULL_STAY_PERCENT) { FinalRestart::Stay } else { restart }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::{FaultProfile, PlanSize};

    #[test]
    fn many_plans_with_full_disks_have_no_final_restart_and_others_have_one() {
        let plans = (0..300).map(|seed| Plan::generate(seed, FaultProfile::Disk, PlanSize::Smoke));
        let stays = |full: bool| {
            let is_full = |fault: &crate::faults::TimedFault| matches!(fault.kind, Fault::DiskFull { .. });
            let plans = plans.clone().filter(|plan| plan.faults.iter().any(is_full) == full);
            let plans: Vec<bool> = plans.map(|plan| plan.ending == FinalRestart::Stay).collect();
            (plans.iter().filter(|stays| **stays).count(), plans.len())
        };
        let ((full_stay, full), (others_stay, others)) = (stays(true), stays(false));
        assert!(full > 30 && full_stay * 100 > full * 40 && full_stay < full, "{full_stay} of {full}");
        assert!(others_stay * 100 < others * 45, "{others_stay} of {others}");
    }
}
