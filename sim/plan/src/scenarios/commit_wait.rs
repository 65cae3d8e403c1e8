//! Scenario: commit wait. One client waits after each write until the write's timestamp has passed on every clock.

use crate::client_ops::{FlushMode, WriteWait};
use crate::faults::Fault;
use crate::plan::Plan;
use crate::profile::FaultProfile;
use crate::random_stream::RandomStream;

fn percent(profile: FaultProfile) -> u64 {
    if profile == FaultProfile::Clock { 50 } else { 15 }
}

/// Makes one client of some plans wait. No client waits if a clock reports so large an error that a wait would take
/// longer than the op's timeout.
pub(super) fn add(random: &mut RandomStream, plan: &mut Plan, profile: FaultProfile) {
    let uncertain = plan.faults.iter().any(|fault| matches!(fault.kind, Fault::ClockError { .. }));
    if uncertain || !random.percent(percent(profile)) {
        return;
    }
    let index = random.below(plan.clients.len() as u64) as usize;
    if plan.clients[index].setup.flush == FlushMode::Sync {
        plan.clients[index].setup.waits = WriteWait::Commit;
    }
}
