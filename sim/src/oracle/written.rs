//! What is there in the end was written once: no row comes from nowhere, and no cell of it.
//!
//! All that can be asked of the data where power was cut and logs were not synced ([`Plan::forgets`]): the end of a log
//! may be gone, so a row may be there or not, and may be what it was at any time before.
//!
//! [`Plan::forgets`]: crate::plan::Plan::forgets

use std::collections::BTreeMap;

use super::row;
use super::touch::{RowKey, Touch, What};
use super::{Finding, Report};

const NAME: &str = "written";

/// Checks the last read of each row that shows all of it.
pub fn check(rows: &BTreeMap<RowKey, Vec<Touch>>, report: &mut Report) {
    for (key, touches) in rows {
        let last = touches.iter().rev().find_map(|touch| match &touch.what {
            What::Read { state: Some(row), view, .. } if view.is_whole() => Some((touch, row)),
            _ => None,
        });
        let Some((read, seen)) = last else { continue };
        report.checked += 1;
        let known = |(at, cell): (usize, &Option<i64>)| cell.is_none() || given(touches, at, *cell);
        if touches.iter().any(makes_rows) && seen.iter().enumerate().all(known) {
            continue;
        }
        let what = format!("read {} at the end, which nobody wrote", row::show(&Some(seen.clone())));
        report.add(Finding::of_row(NAME, *key, &what, touches, read.operation));
    }
}

/// Whether some operation sets this cell so.
fn given(touches: &[Touch], at: usize, cell: Option<i64>) -> bool {
    touches.iter().any(|touch| match &touch.what {
        What::Write { row, .. } => row.cells.get(at).copied().flatten() == Some(cell),
        _ => false,
    })
}

fn makes_rows(touch: &Touch) -> bool {
    use crate::history::RowOpKind::{Insert, InsertIgnore, Upsert, UpsertIgnore};
    let What::Write { row, .. } = &touch.what else { return false };
    matches!(row.kind, Insert | InsertIgnore | Upsert | UpsertIgnore)
}
