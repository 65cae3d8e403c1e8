//! O8: a request takes effect once, however often it was sent.
//!
//! The telling case is an INSERT of a key that nobody else ever writes: however often its client repeats it, it must
//! never be told that its row is already there; and an UPDATE or DELETE of a row that only its client touches must not
//! miss it because its own first attempt has deleted it.
//!
//! And a scan gives a row once, wherever its tablet keeps it.

use std::collections::{BTreeMap, BTreeSet};

use super::touch::{RowKey, Touch, What};
use super::{Finding, Report};
use crate::history::{Operation, Outcome, Request, RowOpKind, RowOutcome};

const NAME: &str = "exactly once";

/// Checks every row that no two clients, and no two calls of one client at a time, have written.
pub fn check(rows: &BTreeMap<RowKey, Vec<Touch>>, report: &mut Report) {
    for (key, touches) in rows {
        let writes: Vec<&Touch> =
            touches.iter().filter(|touch| matches!(touch.what, What::Write { .. })).collect();
        if is_alone(&writes) {
            check_row(*key, touches, &writes, report);
        }
    }
}

/// Checks that no scan gives a row twice. (To the other judges, a row is what was given of it last.)
pub fn check_scans(operations: &[Operation], report: &mut Report) {
    for (index, operation) in operations.iter().enumerate() {
        let (Request::Scan(_), Outcome::Rows { rows, .. }) = (&operation.request, &operation.outcome) else {
            continue;
        };
        report.checked += 1;
        let mut given = BTreeSet::new();
        if let Some(again) = rows.iter().find(|seen| !given.insert(seen.key)) {
            let what = format!("op {index} was given row {} more than once: {operation}", again.key);
            report.add(Finding::new(NAME, what));
        }
    }
}

/// Whether each write ended, with an answer, before the next was called.
fn is_alone(writes: &[&Touch]) -> bool {
    let ended = |pair: &[&Touch]| {
        let one_call = pair[0].operation == pair[1].operation;
        one_call || pair[0].settled.is_some_and(|settled| settled < pair[1].invoked)
    };
    writes.windows(2).all(ended)
}

fn check_row(key: RowKey, touches: &[Touch], writes: &[&Touch], report: &mut Report) {
    let mut there = false;
    for touch in writes {
        let What::Write { row, answer: Some((_, outcome)) } = &touch.what else { return };
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
            let what = format!("alone on its row, {row} was answered {outcome:?} instead of {expected:?}");
            report.add(Finding::of_row(NAME, key, &what, touches, touch.operation));
            return;
        }
        match row.kind {
            RowOpKind::Delete | RowOpKind::DeleteIgnore => there = false,
            RowOpKind::Update | RowOpKind::UpdateIgnore => {}
            _ => there = true,
        }
    }
}
