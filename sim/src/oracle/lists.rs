//! Lists across tablets: who sees a row sees the one before it, and what was appended stays.
//!
//! Each client appends to a list of its own, whose rows lie in all tablets of the table: a row holds the key of the
//! last one before it that was acknowledged. A client's own writes are ordered, so each snapshot of all tablets has a
//! list's beginning without gaps. As nothing is ever changed or deleted, each is also a subset of every later one.

use std::collections::BTreeSet;

use super::{Finding, Report};
use crate::history::{ClientNo, Operation, Outcome, Request, RowAnswer, RowOutcome, Seen, Stamp, TableNo};

const NAME: &str = "lists";

/// The table of lists.
pub const LISTS: TableNo = 201;
/// Rows of one client's list, at most.
pub const LENGTH_MAX: i64 = 1_000;
/// What the first row of a list holds instead of a key.
pub const NONE_BEFORE: i64 = -1;

/// The key of a client's row of this number.
pub fn key(client: ClientNo, number: i64) -> i64 {
    i64::from(client) * LENGTH_MAX + number
}

/// All keys of all lists of so many clients.
pub fn keys(clients: usize) -> (i64, i64) {
    (0, clients as i64 * LENGTH_MAX)
}

/// A snapshot of every list.
struct Look<'a> {
    operation: usize,
    at: Stamp,
    rows: &'a [Seen],
}

/// Checks every snapshot of the lists.
pub fn check(operations: &[Operation], report: &mut Report) {
    let mut looks: Vec<Look<'_>> = operations.iter().enumerate().filter_map(look).collect();
    looks.sort_by_key(|look| look.at);
    let mut appended: Vec<(Stamp, i64)> = operations.iter().flat_map(acknowledged).collect();
    appended.sort_unstable();
    // What every snapshot from here on must have, whoever said so.
    let (mut known, mut next) = (BTreeSet::new(), appended.iter().peekable());
    for look in &looks {
        while let Some((_, key)) = next.next_if(|(at, _)| *at < look.at) {
            known.insert(*key);
        }
        report.checked += look.rows.len() as u64;
        let seen: BTreeSet<i64> = look.rows.iter().map(|seen| seen.key).collect();
        let gap = look.rows.iter().find(|row| before(row).is_some_and(|key| !seen.contains(&key)));
        if let Some(row) = gap {
            let what = format!("row {} is there, {:?} before it is not", row.key, before(row));
            report.add(finding(look, &what));
        }
        if let Some(key) = known.difference(&seen).next() {
            report.add(finding(look, &format!("row {key}, which was there before, is gone")));
        }
        known.extend(seen);
    }
}

fn finding(look: &Look<'_>, what: &str) -> Finding {
    let (operation, at) = (look.operation, look.at);
    let show = |seen: &Seen| format!("{} after {:?}", seen.key, before(seen));
    let message = format!("op {operation} at {at}: {what}");
    Finding { oracle: NAME, message, story: look.rows.iter().map(show).collect() }
}

/// The key of the row before this one.
fn before(seen: &Seen) -> Option<i64> {
    let key = seen.row.as_ref()?.first().copied().flatten();
    key.filter(|key| *key != NONE_BEFORE)
}

fn look((operation, of): (usize, &Operation)) -> Option<Look<'_>> {
    let (Request::Scan(scan), Outcome::Rows { at: Some(at), rows }) = (&of.request, &of.outcome) else {
        return None;
    };
    let whole = scan.table == LISTS && scan.diff_from.is_none();
    whole.then_some(Look { operation, at: *at, rows })
}

/// Rows that were appended, with their timestamps.
fn acknowledged(operation: &Operation) -> Vec<(Stamp, i64)> {
    let (Request::Write { table: LISTS, rows }, Outcome::Written(answers)) =
        (&operation.request, &operation.outcome)
    else {
        return Vec::new();
    };
    let done = rows.iter().zip(answers).filter_map(|(row, answer)| match answer {
        RowAnswer::At { at, outcome: RowOutcome::Done } => Some((*at, row.key)),
        _ => None,
    });
    done.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{Mode, RowOp, RowOpKind, Scan};
    use crate::view::WHOLE;

    fn operation(request: Request, outcome: Outcome) -> Operation {
        Operation { client: 0, invoked: 1, returned: Some(2), after: 0, request, outcome }
    }

    fn append(at: Stamp, key: i64) -> Operation {
        let rows = vec![RowOp { kind: RowOpKind::Insert, key, cells: vec![Some(Some(key - 1))] }];
        let answers = vec![RowAnswer::At { at, outcome: RowOutcome::Done }];
        operation(Request::Write { table: LISTS, rows }, Outcome::Written(answers))
    }

    fn look(at: Stamp, keys: &[i64]) -> Operation {
        let of = |key: &i64| {
            let before = if *key == 0 { NONE_BEFORE } else { *key - 1 };
            Seen { key: *key, row: Some(vec![Some(before)]) }
        };
        let all = super::keys(1);
        let scan =
            Scan { table: LISTS, keys: all, mode: Mode::Stale, diff_from: None, ordered: false, view: WHOLE };
        let rows = keys.iter().map(of).collect();
        operation(Request::Scan(scan), Outcome::Rows { at: Some(at), rows })
    }

    fn objections(operations: &[Operation]) -> usize {
        let mut report = Report::default();
        check(operations, &mut report);
        report.findings.len()
    }

    #[test]
    fn a_list_grows_and_has_no_gaps() {
        let appended = [append(10, 0), append(20, 1)];
        let with = |looks: &[Operation]| objections(&[&appended[..], looks].concat());
        assert_eq!(with(&[look(5, &[]), look(15, &[0]), look(25, &[0, 1])]), 0);
        // One whose answer was lost may be there or not, but not come and go.
        assert_eq!(with(&[look(25, &[0, 1]), look(30, &[0, 1, 2]), look(40, &[0, 1, 2])]), 0);
        assert_eq!(with(&[look(40, &[0, 1]), look(30, &[0, 1, 2])]), 1);
        assert_eq!(with(&[look(15, &[])]), 1, "it had been acknowledged");
        assert_eq!(objections(&[look(15, &[0, 2])]), 1, "one in the middle is missing");
    }
}
