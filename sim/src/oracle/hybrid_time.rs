//! O7: hybrid timestamps respect causality as clients know it.
//!
//! - A write's timestamp is above every timestamp that its client had seen when it called (external consistency with
//!   propagated timestamps).
//! - Of two writes to one row, if the first had returned before the second was called, the second's timestamp is the
//!   greater, for any clients.
//! - No two clients' writes of one row have the same timestamp; one client's may, if it sent them together.
//! - A client that chooses no snapshot is given one that includes all it has seen.

use std::collections::BTreeMap;
use std::time::Duration;

use engine::time::{ClockReading, Timestamp};

use super::row_history::{RowEvent, RowEventKind, RowKey};
use super::{OracleReport, Violation};
use crate::history::{
    CallOutcome, ClientRequest, HistoryOp, HybridStamp, Nanos, RowOutcome, RowResult, ScanMode,
};
use sim_plan::faults::{Fault, TimedFault};
use sim_plan::{ClockSkew, Plan};

const NAME: &str = "hybrid time";
/// Clock error in microseconds of a machine that the plan does not name.
const RIGHT_US: i64 = 1_000;

/// Checks calls one by one, then each row.
pub fn check(operations: &[HistoryOp], rows: &BTreeMap<RowKey, Vec<RowEvent>>, report: &mut OracleReport) {
    for (index, operation) in operations.iter().enumerate() {
        check_call(index, operation, report);
    }
    for (key, row_events) in rows {
        check_row(*key, row_events, report);
    }
}

/// Checks a commit-wait write at `stamp`, whose reply comes once its time has passed, at a client with a correct clock.
///
/// Correct clocks have passed the timestamp; clocks with a larger error may be ahead by as much.
pub fn check_waited(plan: &Plan, stamp: HybridStamp, now: ClockReading) -> Option<Violation> {
    let jumps = |fault: &TimedFault| {
        use Fault::{ClockDrift, ClockError, ClockJump, ClockStep};
        matches!(fault.kind, ClockJump { .. } | ClockDrift { .. } | ClockError { .. } | ClockStep { .. })
    };
    if plan.faults.iter().any(jumps) {
        return None;
    }
    let elapsed_us = now.mono.0 / 1_000;
    let wrong = |clock: &ClockSkew| {
        let drifted = elapsed_us as i64 / 1_000 * clock.drift_ppm / 1_000;
        u64::try_from(clock.offset_us + drifted).unwrap_or(0).saturating_sub(clock.error_us)
    };
    let wrong = plan.clocks.iter().map(wrong).max().unwrap_or(0);
    let (at, micros) = (Timestamp(stamp).micros(), now.wall.micros);
    (at > micros + wrong).then(|| {
        let early = at - micros;
        Violation::new(NAME, format!("a commit-wait write at {stamp} returned {early} us before that"))
    })
}

/// Returns the largest possible difference of two machines' clocks by some time of a run.
pub fn max_clock_difference(plan: &Plan, by: Nanos) -> Nanos {
    let drifted = |ppm: i64, nanos: u64| ppm * (nanos / 1_000_000_000) as i64;
    let off = |clock: &ClockSkew| clock.offset_us + drifted(clock.drift_ppm, by);
    let (least, most) = plan
        .clocks
        .iter()
        .map(off)
        .fold((-RIGHT_US, RIGHT_US), |(least, most), off| (least.min(off), most.max(off)));
    let moved = |fault: &TimedFault| match &fault.kind {
        Fault::ClockJump { micros } => micros.unsigned_abs(),
        Fault::ClockDrift { ppm, span } => drifted(ppm.abs(), span.as_nanos() as u64 + 1_000_000_000) as u64,
        Fault::ClockError { micros, .. } => micros / 2,
        Fault::ClockStep { seconds, .. } => seconds.unsigned_abs() * 1_000_000,
        _ => 0,
    };
    ((most - least) as u64 + plan.faults.iter().map(moved).sum::<u64>()) * 1_000
}

/// Returns how far a clock of this plan may be wrong beyond its stated error, at worst.
pub fn beyond_error(plan: &Plan) -> Duration {
    let whole_s = (plan.limit + plan.quiet).as_secs() as i64;
    let wrong = |clock: &ClockSkew| {
        let off = clock.offset_us.abs() + (clock.drift_ppm * whole_s).abs();
        (off as u64).saturating_sub(clock.error_us)
    };
    let moved = |fault: &TimedFault| match &fault.kind {
        Fault::ClockJump { micros } => micros.unsigned_abs(),
        Fault::ClockDrift { ppm, span } => ppm.unsigned_abs() * (span.as_secs() + 1),
        Fault::ClockStep { seconds, told: false, .. } => seconds.unsigned_abs() * 1_000_000,
        _ => 0,
    };
    let moved: u64 = plan.faults.iter().map(moved).sum();
    Duration::from_micros(moved + plan.clocks.iter().map(wrong).max().unwrap_or_default())
}

fn check_call(index: usize, operation: &HistoryOp, report: &mut OracleReport) {
    let (ClientRequest::Write { .. }, CallOutcome::Written(answers)) =
        (&operation.request, &operation.outcome)
    else {
        return;
    };
    for answer in answers {
        let RowResult::At { at, outcome } = answer else { continue };
        if *outcome == RowOutcome::Refused {
            continue;
        }
        report.checked += 1;
        if *at <= operation.after {
            let what = format!(
                "op {index} was written at {at}, not after {}, which its client had seen: {operation}",
                operation.after
            );
            report.add(Violation::new(NAME, what));
        }
    }
}

fn check_row(key: RowKey, row_events: &[RowEvent], report: &mut OracleReport) {
    let mut writes: Vec<(&RowEvent, HybridStamp)> = row_events.iter().filter_map(stamped).collect();
    // In order of return, the writes that have returned before a call are a prefix.
    let mut returned = writes.clone();
    returned.sort_by_key(|(row_event, _)| row_event.settled);
    writes.sort_by_key(|(row_event, _)| row_event.invoked);
    let mut newest: Option<(&RowEvent, HybridStamp)> = None;
    let mut ended = returned.into_iter().peekable();
    for (row_event, at) in &writes {
        let before =
            |other: &RowEvent| other.settled.is_some_and(|settled: Nanos| settled < row_event.invoked);
        while let Some((other, stamp)) = ended.next_if(|(other, _)| before(other)) {
            if newest.is_none_or(|(_, newest)| stamp > newest) {
                newest = Some((other, stamp));
            }
        }
        report.checked += 1;
        if let Some((other, stamp)) = newest.filter(|(_, stamp)| at <= stamp) {
            let what =
                format!("op {} at {stamp} had returned before a call written at {at}", other.operation);
            report.add(Violation::of_row(NAME, key, &what, row_events, row_event.operation));
            return;
        }
    }
    check_unique(key, row_events, &writes, report);
}

fn check_unique(
    key: RowKey,
    row_events: &[RowEvent],
    writes: &[(&RowEvent, HybridStamp)],
    report: &mut OracleReport,
) {
    let mut by_stamp: BTreeMap<HybridStamp, &RowEvent> = BTreeMap::new();
    for (row_event, at) in writes {
        let first = *by_stamp.entry(*at).or_insert(row_event);
        if first.client != row_event.client {
            let first = first.operation;
            let what = format!("op {first} and op {} have one timestamp, {at}", row_event.operation);
            report.add(Violation::of_row(NAME, key, &what, row_events, row_event.operation));
            return;
        }
    }
}

fn stamped<'a>(row_event: &'a RowEvent<'a>) -> Option<(&'a RowEvent<'a>, HybridStamp)> {
    match &row_event.what {
        RowEventKind::Write { answer: Some((_, RowOutcome::Refused)), .. } => None,
        RowEventKind::Write { answer: Some((at, _)), .. } => Some((row_event, *at)),
        _ => None,
    }
}

/// Checks that snapshots chosen by servers include what their clients had seen.
pub fn check_snapshots(operations: &[HistoryOp], report: &mut OracleReport) {
    for (index, operation) in operations.iter().enumerate() {
        let ClientRequest::Scan(scan) = &operation.request else { continue };
        let CallOutcome::Rows { at: Some(at), .. } = &operation.outcome else { continue };
        // A snapshot that the client named may be of any time.
        if scan.mode == ScanMode::Snapshot {
            continue;
        }
        report.checked += 1;
        if *at <= operation.after {
            let seen = operation.after;
            let what = format!("op {index} read a snapshot at {at} though its client had seen {seen}");
            report.add(Violation::new(NAME, what));
        }
    }
}
