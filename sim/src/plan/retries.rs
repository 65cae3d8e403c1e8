//! Answers that are lost on the way: servers are killed just as something is committed there and are back at once,
//! while clients insert and delete the same few rows, each waiting for one answer after the other.
//!
//! An insert that is made a second time finds its own row. What must not be made twice, and whose first answer nobody
//! heard, is what exactly-once is about (the paper's section 3.3, RIFL).

use std::time::Duration;

use super::faults::{Blow, Fault, Moment};
use super::generate::{Profile, rounded};
use super::ops::{ClientProgram, ClientSetup, Flush, Op, Waits, WriteKind};
use super::{Host, Plan, TimedFault};
use crate::draw::Draw;

const MS: Duration = Duration::from_millis(1);
/// Keys from here on are written by one client each.
const OWN_KEYS: u32 = 5_000;
const KEYS_EACH: u32 = 10;

/// How many plans in a hundred have such kills.
fn percent_with_retries(profile: Profile) -> u64 {
    match profile {
        Profile::Crash => 25,
        Profile::Swarm => 10,
        Profile::Copy | Profile::Network | Profile::Memory => 5,
        Profile::Disk | Profile::Clock | Profile::Calm => 0,
    }
}

/// Lost answers in some plans.
pub(super) fn retries(draw: &mut Draw, plan: &mut Plan, profile: Profile, work: Duration) {
    if !draw.percent(percent_with_retries(profile)) {
        return;
    }
    let present = plan.clients.len() as u8;
    for number in present..present + draw.between(1, 2) as u8 {
        let program = teller(draw, number, work);
        plan.clients.push(program);
    }
    for _ in 0..draw.between(3, 12) {
        let at = rounded(work.mul_f64(draw.below(1_000) as f64 / 1_000.0));
        let target = Host::Tserver(draw.below(u64::from(plan.cluster.tservers)) as u8);
        let (nth, span) = (draw.between(1, 12) as u32, rounded(draw.span(5 * MS, 500 * MS)));
        let kind = Fault::StrikeAfter { moment: Moment::Commit, nth, blow: Blow::Kill, span };
        plan.faults.push(TimedFault { at, target, kind });
    }
    plan.faults.sort_by_key(|fault| fault.at);
}

/// Inserts and deletes rows of its own.
fn teller(draw: &mut Draw, number: u8, work: Duration) -> ClientProgram {
    let ops = draw.between(30, 80);
    let pace = rounded((work / ops as u32).clamp(2 * MS, 100 * MS));
    let setup = ClientSetup { number, flush: Flush::Sync, waits: Waits::No, pace, propagate_every: 0 };
    let keys = draw.between(1, u64::from(KEYS_EACH));
    let op = |draw: &mut Draw| Op::Write {
        kind: draw.pick(&[WriteKind::Insert, WriteKind::Delete]),
        table: 0,
        key: OWN_KEYS + u32::from(number) * KEYS_EACH + draw.below(keys) as u32,
        value: draw.below(1_000_000) as u32,
    };
    ClientProgram { setup, ops: (0..ops).map(|_| op(draw)).collect() }
}
