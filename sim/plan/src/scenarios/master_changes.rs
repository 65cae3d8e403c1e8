//! Scenario: changes of the masters' group. An operator removes a master and adds it again. In some plans that master
//! is wiped: it returns with a new id and no data, and auto-joins once the old id is removed.
//!
//! As in Kudu, a master does not start if its list of masters differs from the stored one, and the run does not know
//! which list a master has stored. So no other master restarts in such plans.

use std::time::Duration;

use crate::client_ops::{ClientOp, ClientProgram, ClientSetup, FlushMode, WriteWait};
use crate::draws::{MS, SECOND, rounded};
use crate::faults::{Fault, TimedFault, TriggeredFault};
use crate::host::Host;
use crate::plan::Plan;
use crate::profile::FaultProfile;
use crate::random_stream::RandomStream;
use crate::spec::{EngineLimits, FinalRestart};

/// Number of masters in such plans.
const MASTERS: u8 = 3;

fn percent(profile: FaultProfile) -> u64 {
    match profile {
        FaultProfile::Copy => 10,
        FaultProfile::Swarm | FaultProfile::Crash | FaultProfile::Network => 4,
        FaultProfile::Calm | FaultProfile::Tables | FaultProfile::Clock | FaultProfile::Memory => 3,
        // A disk fault ends a master, and too few are left for changes.
        FaultProfile::Disk => 0,
    }
}

/// Adds changes of the masters' group to some plans.
pub(super) fn add(random: &mut RandomStream, plan: &mut Plan, profile: FaultProfile, work: Duration) {
    if !plan.cluster.log_sync || plan.cluster.masters > MASTERS || !random.percent(percent(profile)) {
        return;
    }
    plan.cluster.masters = MASTERS;
    // A master that returns with an old log catches up from the logs of the others, which must have all entries.
    if plan.cluster.limits == EngineLimits::Tiny {
        plan.cluster.limits = EngineLimits::LongLog;
    }
    plan.faults.retain(|fault| !restarts_master(fault));
    let master = random.below(u64::from(MASTERS)) as u8;
    let wiped = profile != FaultProfile::Calm && random.percent(50);
    if wiped {
        let at = rounded(SECOND / 2 + random.span(MS, work.max(SECOND)));
        let down = rounded(random.span(5 * MS, 2 * SECOND));
        plan.faults.push(TimedFault { at, target: Host::Master(master), kind: Fault::Wipe { down } });
        plan.faults.sort_by_key(|fault| fault.at);
    }
    // The wiped master's old id never returns. Removing a second master would leave a single one.
    add_operator(random, plan, master, if wiped { 0 } else { 20 }, work);
}

/// Returns true if the fault restarts a master or may do so. A master ends if its disk fails.
pub(crate) fn restarts_master(fault: &TimedFault) -> bool {
    use Fault::{DiskError, DiskFull, ReadErrors, SyncError};
    let is_master = |host: &Host| matches!(host, Host::Master(_));
    let others = matches!(&fault.kind, Fault::ZonePowerCut { others, .. } if others.iter().any(is_master));
    let kills = match &fault.kind {
        Fault::StrikeAfter { blow, .. } | Fault::StrikeLeader { blow, .. } => *blow == TriggeredFault::Kill,
        Fault::Kill { .. } | Fault::RollingRestart { .. } => true,
        DiskError { .. } | DiskFull { .. } | SyncError { .. } | ReadErrors { .. } => true,
        kind => kind.cuts_power() || kind.kind().loses_durable_data(),
    };
    others || is_master(&fault.target) && kills
}

/// Adds a client that removes one master repeatedly. In `any_percent` of the rounds it removes any master.
fn add_operator(random: &mut RandomStream, plan: &mut Plan, master: u8, any_percent: u64, work: Duration) {
    let rounds = random.between(2, 8) as u32;
    let mut ops = Vec::new();
    for _ in 0..rounds {
        let master =
            if random.percent(any_percent) { random.below(u64::from(MASTERS)) as u8 } else { master };
        ops.push(ClientOp::Wait { span: rounded(random.span(MS, (work / rounds).max(SECOND))) });
        ops.push(ClientOp::RemoveMaster { master });
        ops.push(ClientOp::Wait { span: rounded(random.span(MS, 2 * SECOND)) });
        ops.push(ClientOp::AddMaster { master });
    }
    let (number, pace) = (plan.clients.len() as u8, rounded(random.span(MS, 200 * MS)));
    let setup =
        ClientSetup { number, flush: FlushMode::Sync, waits: WriteWait::No, pace, propagate_every: 0 };
    plan.clients.push(ClientProgram { setup, ops });
}

/// Returns the final restart of the plan: none if masters change, because a master that was not added yet has another
/// list of masters; otherwise `restart`.
pub(crate) fn final_restart(plan: &Plan, restart: FinalRestart) -> FinalRestart {
    if plan.changes_masters() { FinalRestart::Stay } else { restart }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::PlanSize;

    #[test]
    fn no_master_restarts_while_an_operator_changes_their_group() {
        let profiles = [FaultProfile::Crash, FaultProfile::Swarm, FaultProfile::Network];
        let sizes = [PlanSize::Smoke, PlanSize::Full];
        let of = |seed: u64| {
            let (profile, size) = (profiles[seed as usize % 3], sizes[seed as usize % 2]);
            Plan::generate(seed, profile, size)
        };
        let plans: Vec<Plan> = (0..900).map(of).filter(Plan::changes_masters).collect();
        assert!(plans.len() > 10, "only {} plans", plans.len());
        for plan in plans {
            // The wiped master is the one that is removed and added.
            let is_wipe = |fault: &&TimedFault| matches!(fault.kind, Fault::Wipe { .. });
            let restarts =
                plan.faults.iter().filter(|fault| restarts_master(fault) && !is_wipe(fault)).count();
            assert_eq!(restarts, 0, "{plan}");
        }
    }
}
