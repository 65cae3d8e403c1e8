//! O6: acknowledged writes are there at the end.
//!
//! After the faults every row is read once more. The row must be what its last acknowledged write made it, or what a
//! write of unknown outcome, or one not ordered with it, made it later.
//!
//! [`super::row_versions`] would report it too. This oracle is far simpler, uses the last read alone, and names the
//! lost write.

use std::collections::BTreeMap;

use super::row_history::{RowEvent, RowEventKind, RowKey};
use super::row_semantics;
use super::{OracleReport, Violation};
use crate::history::{HybridStamp, RowOutcome, ScanMode};
use crate::rows::RowState;

const NAME: &str = "durability";

/// Checks every row that was read last by a snapshot or fresh read.
pub fn check(rows: &BTreeMap<RowKey, Vec<RowEvent>>, report: &mut OracleReport) {
    for (key, row_events) in rows {
        let Some((read, at, seen)) = last_read(row_events) else { continue };
        let acknowledged = last_acknowledged(row_events, at);
        let Some((write, written)) = acknowledged else { continue };
        report.checked += 1;
        let later = |row_event: &&RowEvent| row_event.what.is_unknown_write();
        if written == *seen
            || row_events.iter().any(|row_event| later(&row_event) && may_explain(row_event, seen))
        {
            continue;
        }
        let what = format!(
            "read {} at the end, but the last acknowledged write (op {}) left {}",
            row_semantics::show(seen),
            write.operation,
            row_semantics::show(&written)
        );
        report.add(Violation::of_row(NAME, *key, &what, row_events, read.operation));
    }
}

/// Returns the last read that had to see everything acknowledged before it was called.
fn last_read<'a>(row_events: &'a [RowEvent<'a>]) -> Option<(&'a RowEvent<'a>, HybridStamp, &'a RowState)> {
    let mut reads = row_events.iter().rev().filter_map(|row_event| match &row_event.what {
        RowEventKind::Read { mode: ScanMode::Snapshot, at: Some(at), state, view } if view.is_whole() => {
            Some((row_event, *at, *state))
        }
        _ => None,
    });
    reads.next()
}

/// Returns the acknowledged write with the greatest timestamp below `at`, and the row it left; `None` where that
/// depends on the row before it.
fn last_acknowledged<'a>(
    row_events: &'a [RowEvent<'a>],
    at: HybridStamp,
) -> Option<(&'a RowEvent<'a>, RowState)> {
    let answered = row_events.iter().filter_map(|row_event| match &row_event.what {
        RowEventKind::Write { row, answer: Some((when, RowOutcome::Done)) } if *when < at => {
            Some(((*when, row_event.operation, row_event.order), row_event, row))
        }
        _ => None,
    });
    let (_, row_event, op) = answered.max_by_key(|(order, ..)| *order)?;
    let given = op.cells.iter().all(Option::is_some);
    use crate::history::RowOpKind::*;
    match op.kind {
        Insert => Some((row_event, row_semantics::apply(&None, op).change?)),
        Upsert | Update if given => {
            let before = Some(vec![None; op.cells.len()]);
            Some((row_event, row_semantics::apply(&before, op).change?))
        }
        Delete | DeleteIgnore => Some((row_event, None)),
        _ => None,
    }
}

/// Returns true if a write of unknown outcome can explain this read.
fn may_explain(row_event: &RowEvent, seen: &RowState) -> bool {
    let RowEventKind::Write { row, .. } = &row_event.what else { return false };
    use crate::history::RowOpKind::*;
    match (row.kind, seen) {
        (Delete | DeleteIgnore, seen) => seen.is_none(),
        (_, None) => false,
        (_, Some(seen)) => {
            row.cells.iter().zip(seen).all(|(cell, seen)| cell.is_none_or(|cell| cell == *seen))
        }
    }
}
