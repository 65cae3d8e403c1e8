//! O8: a request takes effect once, however often it was sent.
//!
//! The main case is an INSERT of a key that no other call ever writes: however often its client retries it, the reply
//! must never be "already present". An UPDATE or DELETE of a row that only its client writes must not miss the row
//! because its own first attempt deleted it.
//!
//! A scan also returns a row once, wherever its tablet stores it.

use std::collections::{BTreeMap, BTreeSet};

use super::row_history::{RowEvent, RowEventKind, RowKey};
use super::{OracleReport, Violation};
use crate::history::{CallOutcome, ClientRequest, HistoryOp, RowOpKind, RowOutcome};

const NAME: &str = "exactly once";

/// Checks every row without concurrent writes.
pub fn check(rows: &BTreeMap<RowKey, Vec<RowEvent>>, report: &mut OracleReport) {
    for (key, row_events) in rows {
        let writes: Vec<&RowEvent> = row_events
            .iter()
            .filter(|row_event| matches!(row_event.what, RowEventKind::Write { .. }))
            .collect();
        if is_alone(&writes) {
            check_row(*key, row_events, &writes, report);
        }
    }
}

/// Checks that no scan returns a row twice. (The other oracles use the last copy of a row in a scan.)
pub fn check_scans(operations: &[HistoryOp], report: &mut OracleReport) {
    for (index, operation) in operations.iter().enumerate() {
        let (ClientRequest::Scan(_), CallOutcome::Rows { rows, .. }) =
            (&operation.request, &operation.outcome)
        else {
            continue;
        };
        report.checked += 1;
        let mut given = BTreeSet::new();
        if let Some(again) = rows.iter().find(|seen| !given.insert(seen.key)) {
            let what = format!("op {index} returned row {} more than once: {operation}", again.key);
            report.add(Violation::new(NAME, what));
        }
    }
}

/// Returns true if each write was acknowledged before the next was called.
fn is_alone(writes: &[&RowEvent]) -> bool {
    let ended = |pair: &[&RowEvent]| {
        let one_call = pair[0].operation == pair[1].operation;
        one_call || pair[0].settled.is_some_and(|settled| settled < pair[1].invoked)
    };
    writes.windows(2).all(ended)
}

fn check_row(key: RowKey, row_events: &[RowEvent], writes: &[&RowEvent], report: &mut OracleReport) {
    let mut there = false;
    for row_event in writes {
        let RowEventKind::Write { row, answer: Some((_, outcome)) } = &row_event.what else { return };
        let expected = match (row.kind, there) {
            (RowOpKind::Insert, true) => RowOutcome::AlreadyPresent,
            (RowOpKind::Update | RowOpKind::Delete, false) => RowOutcome::NotFound,
            _ => RowOutcome::Done,
        };
        if *outcome == RowOutcome::Refused {
            continue;
        }
        report.checked += 1;
        if *outcome != expected {
            let what = format!("alone on its row, {row} returned {outcome:?} instead of {expected:?}");
            report.add(Violation::of_row(NAME, key, &what, row_events, row_event.operation));
            return;
        }
        match row.kind {
            RowOpKind::Delete | RowOpKind::DeleteIgnore => there = false,
            RowOpKind::Update | RowOpKind::UpdateIgnore => {}
            _ => there = true,
        }
    }
}
