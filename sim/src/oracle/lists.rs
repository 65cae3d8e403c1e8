//! Lists across tablets: a snapshot with a row has the row before it, and appended rows stay.
//!
//! Each client appends to its own list, whose rows are spread over all tablets of the table. A row holds the key of
//! the last acknowledged one before it. A client's writes are ordered, so each snapshot of all tablets has a list's
//! prefix without gaps. Rows are never changed or deleted, so each snapshot is also a subset of every later one.

use std::collections::BTreeSet;

use super::{OracleReport, Violation};
use crate::history::{
    CallOutcome, ClientNo, ClientRequest, HistoryOp, HybridStamp, RowOutcome, RowResult, ScannedRow, TableNo,
};

const NAME: &str = "lists";

/// The table of lists.
pub const LISTS: TableNo = 201;
/// Rows of one client's list, at most.
pub const LENGTH_MAX: i64 = 1_000;
/// Value of the first row of a list, in place of a key.
pub const NONE_BEFORE: i64 = -1;

/// Returns the key of a client's row of this number.
pub fn key(client: ClientNo, number: i64) -> i64 {
    i64::from(client) * LENGTH_MAX + number
}

/// Returns the key range of all lists of `clients` clients.
pub fn keys(clients: usize) -> (i64, i64) {
    (0, clients as i64 * LENGTH_MAX)
}

/// A snapshot of every list.
struct Look<'a> {
    operation: usize,
    at: HybridStamp,
    rows: &'a [ScannedRow],
}

/// Checks every snapshot of the lists.
pub fn check(operations: &[HistoryOp], report: &mut OracleReport) {
    let mut looks: Vec<Look<'_>> = operations.iter().enumerate().filter_map(look).collect();
    looks.sort_by_key(|look| look.at);
    let mut appended: Vec<(HybridStamp, i64)> = operations.iter().flat_map(acknowledged).collect();
    appended.sort_unstable();
    // Rows that every snapshot from here on must have, from writes and from earlier snapshots.
    let (mut known, mut next) = (BTreeSet::new(), appended.iter().peekable());
    for look in &looks {
        while let Some((_, key)) = next.next_if(|(at, _)| *at < look.at) {
            known.insert(*key);
        }
        report.checked += look.rows.len() as u64;
        let seen: BTreeSet<i64> = look.rows.iter().map(|seen| seen.key).collect();
        let gap = look.rows.iter().find(|row| before(row).is_some_and(|key| !seen.contains(&key)));
        if let Some(row) = gap {
            let what = format!("row {} is there, {:?} before it is missing", row.key, before(row));
            report.add(violation(look, &what));
        }
        if let Some(key) = known.difference(&seen).next() {
            report.add(violation(look, &format!("row {key}, which an earlier snapshot had, is missing")));
        }
        known.extend(seen);
    }
}

fn violation(look: &Look<'_>, what: &str) -> Violation {
    let (operation, at) = (look.operation, look.at);
    let show = |seen: &ScannedRow| format!("{} after {:?}", seen.key, before(seen));
    let message = format!("op {operation} at {at}: {what}");
    Violation { oracle: NAME, message, story: look.rows.iter().map(show).collect() }
}

/// Returns the key of the row before this one.
fn before(seen: &ScannedRow) -> Option<i64> {
    let key = seen.row.as_ref()?.first().copied().flatten();
    key.filter(|key| *key != NONE_BEFORE)
}

fn look((operation, of): (usize, &HistoryOp)) -> Option<Look<'_>> {
    let (ClientRequest::Scan(scan), CallOutcome::Rows { at: Some(at), rows }) = (&of.request, &of.outcome)
    else {
        return None;
    };
    let whole = scan.table == LISTS && scan.diff_from.is_none();
    whole.then_some(Look { operation, at: *at, rows })
}

/// Returns acknowledged rows with their timestamps.
fn acknowledged(operation: &HistoryOp) -> Vec<(HybridStamp, i64)> {
    let (ClientRequest::Write { table: LISTS, rows }, CallOutcome::Written(answers)) =
        (&operation.request, &operation.outcome)
    else {
        return Vec::new();
    };
    let done = rows.iter().zip(answers).filter_map(|(row, answer)| match answer {
        RowResult::At { at, outcome: RowOutcome::Done } => Some((*at, row.key)),
        _ => None,
    });
    done.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{RowOp, RowOpKind, ScanMode, ScanRequest};
    use crate::projection::WHOLE;

    fn operation(request: ClientRequest, outcome: CallOutcome) -> HistoryOp {
        HistoryOp { client: 0, invoked: 1, returned: Some(2), after: 0, request, outcome }
    }

    fn append(at: HybridStamp, key: i64) -> HistoryOp {
        let rows = vec![RowOp { kind: RowOpKind::Insert, key, cells: vec![Some(Some(key - 1))] }];
        let answers = vec![RowResult::At { at, outcome: RowOutcome::Done }];
        operation(ClientRequest::Write { table: LISTS, rows }, CallOutcome::Written(answers))
    }

    fn look(at: HybridStamp, keys: &[i64]) -> HistoryOp {
        let of = |key: &i64| {
            let before = if *key == 0 { NONE_BEFORE } else { *key - 1 };
            ScannedRow { key: *key, row: Some(vec![Some(before)]) }
        };
        let all = super::keys(1);
        let scan = ScanRequest {
            table: LISTS,
            keys: all,
            mode: ScanMode::Stale,
            diff_from: None,
            ordered: false,
            view: WHOLE,
        };
        let rows = keys.iter().map(of).collect();
        operation(ClientRequest::Scan(scan), CallOutcome::Rows { at: Some(at), rows })
    }

    fn failed_oracles(operations: &[HistoryOp]) -> usize {
        let mut report = OracleReport::default();
        check(operations, &mut report);
        report.violations.len()
    }

    #[test]
    fn a_list_grows_and_has_no_gaps() {
        let appended = [append(10, 0), append(20, 1)];
        let with = |looks: &[HistoryOp]| failed_oracles(&[&appended[..], looks].concat());
        assert_eq!(with(&[look(5, &[]), look(15, &[0]), look(25, &[0, 1])]), 0);
        // A row whose reply was lost may be there or not, but may not come and go.
        assert_eq!(with(&[look(25, &[0, 1]), look(30, &[0, 1, 2]), look(40, &[0, 1, 2])]), 0);
        assert_eq!(with(&[look(40, &[0, 1]), look(30, &[0, 1, 2])]), 1);
        assert_eq!(with(&[look(15, &[])]), 1, "it had been acknowledged");
        assert_eq!(failed_oracles(&[look(15, &[0, 2])]), 1, "one in the middle is missing");
    }
}
