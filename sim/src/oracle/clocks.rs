//! O7: HybridTime respects what clients can know.
//!
//! - A write's timestamp is above every timestamp that its client had seen when it called (external consistency
//!   with propagated timestamps).
//! - Of two writes to one row, if the first had returned before the second was called, the second's timestamp is the
//!   greater, whoever wrote them.
//! - No two clients' writes of one row have the same timestamp; one client's may, if it sent them together.
//! - A client that chooses no snapshot is given one that includes all it has seen.

use std::collections::BTreeMap;
use std::time::Duration;

use engine::time::{Now, Timestamp};

use super::touch::{RowKey, Touch, What};
use super::{Finding, Report};
use crate::history::{Mode, Nanos, Operation, Outcome, Request, RowAnswer, RowOutcome, Stamp};
use crate::plan::faults::{Fault, TimedFault};
use crate::plan::{ClockError, Plan};

const NAME: &str = "hybrid time";
/// How right the clock of a machine is that the plan does not name.
const RIGHT_US: i64 = 1_000;

/// Checks calls one by one, then each row.
pub fn check(operations: &[Operation], rows: &BTreeMap<RowKey, Vec<Touch>>, report: &mut Report) {
    for (index, operation) in operations.iter().enumerate() {
        check_call(index, operation, report);
    }
    for (key, touches) in rows {
        check_row(*key, touches, report);
    }
}

/// A write that was answered once its time had passed, at `stamp`, to a client whose clock is right.
///
/// Clocks that are as right as they say have passed it; of others it may be ahead by as much as they are off.
pub fn check_waited(plan: &Plan, stamp: Stamp, now: Now) -> Option<Finding> {
    let jumps = |fault: &TimedFault| {
        matches!(fault.kind, Fault::ClockJump { .. } | Fault::ClockDrift { .. } | Fault::ClockError { .. })
    };
    if plan.faults.iter().any(jumps) {
        return None;
    }
    let elapsed_us = now.mono.0 / 1_000;
    let wrong = |clock: &ClockError| {
        let drifted = elapsed_us as i64 / 1_000 * clock.drift_ppm / 1_000;
        u64::try_from(clock.offset_us + drifted).unwrap_or(0).saturating_sub(clock.error_us)
    };
    let wrong = plan.clocks.iter().map(wrong).max().unwrap_or(0);
    let (at, micros) = (Timestamp(stamp).micros(), now.wall.micros);
    (at > micros + wrong).then(|| {
        let early = at - micros;
        Finding::new(NAME, format!("a write at {stamp} that waits was answered {early} us before that"))
    })
}

/// How far the clocks of two machines may differ by some time of a run.
pub fn apart(plan: &Plan, by: Nanos) -> Nanos {
    let drifted = |ppm: i64, nanos: u64| ppm * (nanos / 1_000_000_000) as i64;
    let off = |clock: &ClockError| clock.offset_us + drifted(clock.drift_ppm, by);
    let (least, most) = plan
        .clocks
        .iter()
        .map(off)
        .fold((-RIGHT_US, RIGHT_US), |(least, most), off| (least.min(off), most.max(off)));
    let moved = |fault: &TimedFault| match &fault.kind {
        Fault::ClockJump { micros } => micros.unsigned_abs(),
        Fault::ClockDrift { ppm, span } => drifted(ppm.abs(), span.as_nanos() as u64 + 1_000_000_000) as u64,
        Fault::ClockError { micros, .. } => micros / 2,
        _ => 0,
    };
    ((most - least) as u64 + plan.faults.iter().map(moved).sum::<u64>()) * 1_000
}

/// By how much more than its stated error a clock of this plan may be wrong, at worst.
pub fn beyond_error(plan: &Plan) -> Duration {
    let whole_s = (plan.limit + plan.quiet).as_secs() as i64;
    let wrong = |clock: &ClockError| {
        let off = clock.offset_us.abs() + (clock.drift_ppm * whole_s).abs();
        (off as u64).saturating_sub(clock.error_us)
    };
    let moved = |fault: &TimedFault| match &fault.kind {
        Fault::ClockJump { micros } => micros.unsigned_abs(),
        Fault::ClockDrift { ppm, span } => ppm.unsigned_abs() * (span.as_secs() + 1),
        _ => 0,
    };
    let moved: u64 = plan.faults.iter().map(moved).sum();
    Duration::from_micros(moved + plan.clocks.iter().map(wrong).max().unwrap_or_default())
}

fn check_call(index: usize, operation: &Operation, report: &mut Report) {
    let (Request::Write { .. }, Outcome::Written(answers)) = (&operation.request, &operation.outcome) else {
        return;
    };
    for answer in answers {
        let RowAnswer::At { at, outcome } = answer else { continue };
        if *outcome == RowOutcome::Refused {
            continue;
        }
        report.checked += 1;
        if *at <= operation.after {
            let what = format!(
                "op {index} was written at {at}, not after {}, which its client had seen: {operation}",
                operation.after
            );
            report.add(Finding::new(NAME, what));
        }
    }
}

fn check_row(key: RowKey, touches: &[Touch], report: &mut Report) {
    let mut writes: Vec<(&Touch, Stamp)> = touches.iter().filter_map(stamped).collect();
    // In order of return, those that have returned before a call are a prefix.
    let mut returned = writes.clone();
    returned.sort_by_key(|(touch, _)| touch.settled);
    writes.sort_by_key(|(touch, _)| touch.invoked);
    let mut newest: Option<(&Touch, Stamp)> = None;
    let mut ended = returned.into_iter().peekable();
    for (touch, at) in &writes {
        let before = |other: &Touch| other.settled.is_some_and(|settled: Nanos| settled < touch.invoked);
        while let Some((other, stamp)) = ended.next_if(|(other, _)| before(other)) {
            if newest.is_none_or(|(_, newest)| stamp > newest) {
                newest = Some((other, stamp));
            }
        }
        report.checked += 1;
        if let Some((other, stamp)) = newest.filter(|(_, stamp)| at <= stamp) {
            let what =
                format!("op {} at {stamp} had returned before a call written at {at}", other.operation);
            report.add(Finding::of_row(NAME, key, &what, touches, touch.operation));
            return;
        }
    }
    check_unique(key, touches, &writes, report);
}

fn check_unique(key: RowKey, touches: &[Touch], writes: &[(&Touch, Stamp)], report: &mut Report) {
    let mut by_stamp: BTreeMap<Stamp, &Touch> = BTreeMap::new();
    for (touch, at) in writes {
        let first = *by_stamp.entry(*at).or_insert(touch);
        if first.client != touch.client {
            let first = first.operation;
            let what = format!("op {first} and op {} have one timestamp, {at}", touch.operation);
            report.add(Finding::of_row(NAME, key, &what, touches, touch.operation));
            return;
        }
    }
}

fn stamped<'a>(touch: &'a Touch<'a>) -> Option<(&'a Touch<'a>, Stamp)> {
    match &touch.what {
        What::Write { answer: Some((_, RowOutcome::Refused)), .. } => None,
        What::Write { answer: Some((at, _)), .. } => Some((touch, *at)),
        _ => None,
    }
}

/// Whether snapshots chosen by servers include what their clients had seen.
pub fn check_snapshots(operations: &[Operation], report: &mut Report) {
    for (index, operation) in operations.iter().enumerate() {
        let Request::Scan(scan) = &operation.request else { continue };
        let Outcome::Rows { at: Some(at), .. } = &operation.outcome else { continue };
        // A snapshot that the client named may be of any time.
        if scan.mode == Mode::Snapshot {
            continue;
        }
        report.checked += 1;
        if *at <= operation.after {
            let seen = operation.after;
            let what = format!("op {index} read a snapshot at {at} though its client had seen {seen}");
            report.add(Finding::new(NAME, what));
        }
    }
}
