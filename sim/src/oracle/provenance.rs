//! Provenance: every row at the end, and every cell of it, was written by some operation.
//!
//! The only check of the data where power was cut and logs were not synced ([`Plan::may_lose_acknowledged`]): the end
//! of a log may be lost, so a row may be there or not, and may be what it was at any time before.
//!
//! [`Plan::may_lose_acknowledged`]: sim_plan::Plan::may_lose_acknowledged

use std::collections::BTreeMap;

use super::row_history::{RowEvent, RowEventKind, RowKey};
use super::row_semantics;
use super::{OracleReport, Violation};

const NAME: &str = "provenance";

/// Checks the last read of each row that shows all of it.
pub fn check(rows: &BTreeMap<RowKey, Vec<RowEvent>>, report: &mut OracleReport) {
    for (key, row_events) in rows {
        let last = row_events.iter().rev().find_map(|row_event| match &row_event.what {
            RowEventKind::Read { state: Some(row), view, .. } if view.is_whole() => Some((row_event, row)),
            _ => None,
        });
        let Some((read, seen)) = last else { continue };
        report.checked += 1;
        let known = |(at, cell): (usize, &Option<i64>)| cell.is_none() || given(row_events, at, *cell);
        if row_events.iter().any(makes_rows) && seen.iter().enumerate().all(known) {
            continue;
        }
        let what =
            format!("read {} at the end, which was never written", row_semantics::show(&Some(seen.clone())));
        report.add(Violation::of_row(NAME, *key, &what, row_events, read.operation));
    }
}

/// Returns true if some operation sets this cell to this value.
fn given(row_events: &[RowEvent], at: usize, cell: Option<i64>) -> bool {
    row_events.iter().any(|row_event| match &row_event.what {
        RowEventKind::Write { row, .. } => row.cells.get(at).copied().flatten() == Some(cell),
        _ => false,
    })
}

fn makes_rows(row_event: &RowEvent) -> bool {
    use crate::history::RowOpKind::{Insert, InsertIgnore, Upsert, UpsertIgnore};
    let RowEventKind::Write { row, .. } = &row_event.what else { return false };
    matches!(row.kind, Insert | InsertIgnore | Upsert | UpsertIgnore)
}
