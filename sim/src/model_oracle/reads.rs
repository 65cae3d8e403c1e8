//! Comparison of a read with a state of a row.

use std::collections::BTreeMap;

use super::history::ReadCall;
use crate::model::rows::cell;
use crate::model::{ColNo, Incarnation, ModelRow, RowCells, Truth};
use crate::wire::scan::ScanRow;

/// The columns that a client's numbers mean.
pub(crate) type Meaning = BTreeMap<ColNo, ColNo>;

/// Returns whether a row meets all conditions of a scan.
fn kept(table: &Incarnation, call: &ReadCall, meaning: &Meaning, row: &RowCells) -> Truth {
    let each = call.conditions.iter().map(|(number, condition)| {
        let column = meaning.get(number).and_then(|number| table.columns.get(number));
        column.map_or(Truth::Open, |column| condition.keeps(column.kind, &cell(row, column)))
    });
    each.min().unwrap_or(Truth::Yes)
}

/// Returns true if a scan returns the values that a row has.
pub(crate) fn has_values(
    table: &Incarnation,
    call: &ReadCall,
    meaning: &Meaning,
    row: &RowCells,
    seen: &ScanRow,
) -> bool {
    call.columns.iter().zip(&seen.values).all(|(number, value)| {
        let column = meaning.get(number).and_then(|number| table.columns.get(number));
        column.is_some_and(|column| cell(row, column) == *value)
    })
}

/// Returns true if a scan fits a row. `complete`: a row that was not returned was not there.
pub(crate) fn fits(
    table: &Incarnation,
    call: &ReadCall,
    meaning: &Meaning,
    state: &ModelRow,
    seen: Option<&ScanRow>,
    complete: bool,
) -> bool {
    match (state, seen) {
        (None, None) => true,
        (None, Some(_)) => false,
        (Some(row), None) => !complete || kept(table, call, meaning, row) != Truth::Yes,
        (Some(row), Some(seen)) => {
            !seen.deleted
                && kept(table, call, meaning, row) != Truth::No
                && has_values(table, call, meaning, row, seen)
        }
    }
}

/// Returns the least and the most rows that a scan for the number of rows may count for a row.
pub(super) fn counted(
    table: &Incarnation,
    call: &ReadCall,
    meaning: &Meaning,
    state: &ModelRow,
) -> (u64, u64) {
    let truth = state.as_ref().map_or(Truth::No, |row| kept(table, call, meaning, row));
    (u64::from(truth == Truth::Yes), u64::from(truth != Truth::No))
}

/// Returns true if a diff scan fits a change: the row at its beginning and at its end, and whether it was written
/// between.
pub(crate) fn fits_diff(
    table: &Incarnation,
    call: &ReadCall,
    meaning: &Meaning,
    (before, after, touched): (&ModelRow, &ModelRow, bool),
    seen: Option<&ScanRow>,
) -> bool {
    if !touched {
        return seen.is_none();
    }
    let passes = |row: &ModelRow| row.as_ref().map_or(Truth::No, |row| kept(table, call, meaning, row));
    match (before, after) {
        (None, None) => seen.is_none(),
        (_, Some(row)) => {
            let now = passes(after);
            let live = seen.is_some_and(|seen| !seen.deleted && has_values(table, call, meaning, row, seen));
            match seen {
                // A row that was written but is as before may be left out.
                None => now != Truth::Yes || before == after,
                // A row that passes no more may be told as gone: the documentation leaves it open.
                Some(seen) if seen.deleted => now != Truth::Yes && before.is_some(),
                Some(_) => live && now != Truth::No,
            }
        }
        (Some(row), None) => {
            let of_keys = call.conditions.iter().all(|(number, _)| usize::from(*number) < table.key_count());
            match seen {
                Some(seen) => seen.deleted,
                // Which values of a deleted row conditions see is not documented: it may be told whatever they are.
                None => !of_keys || kept(table, call, meaning, row) != Truth::Yes,
            }
        }
    }
}
