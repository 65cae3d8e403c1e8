//! Members that lag: one is away while others write more than a log has to keep of itself, and is brought up from what
//! its leaders kept for it (the paper's section 3.3), while maintenance flushes and cuts their logs all the time.
//!
//! Small plans write too little to one tablet for that, and a member that is given up is copied anew, which hides
//! whether the log had it all.

use std::time::Duration;

use super::faults::Fault;
use super::generate::{Profile, rounded};
use super::ops::{ClientProgram, ClientSetup, Flush, Op, Waits, WriteKind};
use super::{Host, Limits, Plan, TimedFault, Way};
use crate::draw::Draw;

const SECOND: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);
/// Keys that are written, from the first on.
const FIRST_KEY: u32 = 7_000;
const KEYS: u64 = 100;
/// No member is given up before: longer than anyone is away.
const PATIENCE: Duration = Duration::from_secs(300);

fn percent_lagging(profile: Profile) -> u64 {
    match profile {
        Profile::Crash | Profile::Network => 12,
        Profile::Swarm | Profile::Copy => 10,
        Profile::Memory | Profile::Clock => 4,
        // Who loses what it had is made anew.
        Profile::Disk | Profile::Calm => 0,
    }
}

/// A member that lags in some plans, and logs that keep all of what it lacks.
pub(super) fn laggard(draw: &mut Draw, plan: &mut Plan, profile: Profile) {
    let others = plan.cluster.limits == Limits::Normal || plan.cluster.replicas < 3;
    if others || !draw.percent(percent_lagging(profile)) {
        return;
    }
    plan.cluster.limits = Limits::Spared;
    plan.cluster.follower_failed = PATIENCE;
    let present = plan.clients.len() as u8;
    for number in present..present + draw.between(3, 5) as u8 {
        let program = writer(draw, number);
        plan.clients.push(program);
    }
    let tservers = u64::from(plan.cluster.tservers);
    for _ in 0..draw.between(1, 2) {
        let at = rounded(draw.span(SECOND / 10, SECOND));
        let span = rounded(draw.span(2 * SECOND, 5 * SECOND));
        let kind = match draw.below(4) {
            0 => Fault::Pause { span },
            1 => Fault::Kill { down: span },
            2 => Fault::PowerCut { down: span },
            _ => Fault::Isolate { way: Way::Both, span },
        };
        plan.faults.push(TimedFault { at, target: Host::Tserver(draw.below(tservers) as u8), kind });
    }
    plan.faults.sort_by_key(|fault| fault.at);
}

/// Writes rows as fast as they are taken.
fn writer(draw: &mut Draw, number: u8) -> ClientProgram {
    let pace = rounded(draw.span(MS, 10 * MS));
    let setup = ClientSetup { number, flush: Flush::Sync, waits: Waits::No, pace, propagate_every: 0 };
    let ops = draw.between(120, 240);
    let op = |draw: &mut Draw| Op::Write {
        kind: draw.weighted(&[(WriteKind::Upsert, 6), (WriteKind::Insert, 2), (WriteKind::Delete, 1)]),
        table: 0,
        key: FIRST_KEY + draw.below(KEYS) as u32,
        value: draw.below(1_000_000) as u32,
    };
    ClientProgram { setup, ops: (0..ops).map(|_| op(draw)).collect() }
}
