//! Masters that come and go: an operator takes one out of their group and adds it again; one may have lost its disk,
//! comes back as another with nothing, and has itself added once the old one is removed.
//!
//! Masters refuse to start with another list of masters than they have stored, as Kudu's do, and whoever starts them
//! would have to know which; so no other master is started again in such plans.

use std::time::Duration;

use super::faults::{Blow, Fault};
use super::generate::{Profile, rounded};
use super::ops::{ClientProgram, ClientSetup, Flush, Op, Waits};
use super::{Ending, Host, Limits, Plan, TimedFault};
use crate::draw::Draw;

const SECOND: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);
/// How many masters there are then.
const MASTERS: u8 = 3;

fn percent_with_masters(profile: Profile) -> u64 {
    match profile {
        Profile::Copy => 10,
        Profile::Swarm | Profile::Crash | Profile::Network => 4,
        Profile::Calm | Profile::Clock | Profile::Memory => 3,
        // Where disks fail, masters are few enough.
        Profile::Disk => 0,
    }
}

/// Other masters in some plans.
pub(super) fn masters(draw: &mut Draw, plan: &mut Plan, profile: Profile, work: Duration) {
    if !plan.cluster.log_sync || !draw.percent(percent_with_masters(profile)) {
        return;
    }
    plan.cluster.masters = MASTERS;
    // Who comes back with an old log is brought up from the others', which must have all of it.
    if plan.cluster.limits == Limits::Tiny {
        plan.cluster.limits = Limits::LongLog;
    }
    plan.faults.retain(|fault| !starts_masters(fault));
    let master = draw.below(u64::from(MASTERS)) as u8;
    let wiped = profile != Profile::Calm && draw.percent(50);
    if wiped {
        let at = rounded(SECOND / 2 + draw.span(MS, work.max(SECOND)));
        let down = rounded(draw.span(5 * MS, 2 * SECOND));
        plan.faults.push(TimedFault { at, target: Host::Master(master), kind: Fault::Wipe { down } });
        plan.faults.sort_by_key(|fault| fault.at);
    }
    // With one master gone for good, taking another out would leave a majority of one.
    operator(draw, plan, master, if wiped { 0 } else { 20 }, work);
}

/// Whether a master is started again after it, or may be: one whose disk fails ends.
fn starts_masters(fault: &TimedFault) -> bool {
    use Fault::{BitRot, DiskError, DiskFull, LostWrite, MisdirectedWrite, ReadErrors, SyncError};
    let is_master = |host: &Host| matches!(host, Host::Master(_));
    let others = matches!(&fault.kind, Fault::ZonePowerCut { others, .. } if others.iter().any(is_master));
    let kills = match &fault.kind {
        Fault::StrikeAfter { blow, .. } | Fault::StrikeLeader { blow, .. } => *blow == Blow::Kill,
        Fault::Kill { .. } | DiskError { .. } | DiskFull { .. } | SyncError { .. } | ReadErrors { .. } => {
            true
        }
        BitRot { .. } | LostWrite { .. } | MisdirectedWrite { .. } => true,
        kind => kind.cuts_power(),
    };
    others || is_master(&fault.target) && kills
}

/// Takes one master out again and again, or in so many of a hundred turns any of them.
fn operator(draw: &mut Draw, plan: &mut Plan, master: u8, any: u64, work: Duration) {
    let turns = draw.between(2, 8) as u32;
    let mut ops = Vec::new();
    for _ in 0..turns {
        let master = if draw.percent(any) { draw.below(u64::from(MASTERS)) as u8 } else { master };
        ops.push(Op::Wait { span: rounded(draw.span(MS, (work / turns).max(SECOND))) });
        ops.push(Op::RemoveMaster { master });
        ops.push(Op::Wait { span: rounded(draw.span(MS, 2 * SECOND)) });
        ops.push(Op::AddMaster { master });
    }
    let (number, pace) = (plan.clients.len() as u8, rounded(draw.span(MS, 200 * MS)));
    let setup = ClientSetup { number, flush: Flush::Sync, waits: Waits::No, pace, propagate_every: 0 };
    plan.clients.push(ClientProgram { setup, ops });
}

/// How such a plan ends: a master that is not one of them yet when all are started again has another list.
pub(super) fn ending(plan: &Plan, ending: Ending) -> Ending {
    if plan.changes_masters() { Ending::Stay } else { ending }
}
