//! A history cut by row: all that touched one key of one table.

use std::collections::{BTreeMap, BTreeSet};

use super::row::State;
use crate::history::{
    ClientNo, Mode, Nanos, Operation, Outcome, Request, RowAnswer, RowOp, RowOutcome, Scan, Stamp, TableNo,
};
use crate::view::View;

/// A row of a table, there or not.
pub type RowKey = (TableNo, i64);

/// One operation as one row met it. There are as many as rows that all scans have given, so they keep little.
#[derive(Debug, Clone)]
pub struct Touch<'a> {
    /// Its operation, by its place in the history, and its place within that.
    pub operation: usize,
    pub order: usize,
    pub client: ClientNo,
    pub invoked: Nanos,
    /// From when on it may have happened: a stale read shows any time before.
    pub since: Nanos,
    /// `None` if its effect may come at any later time.
    pub settled: Option<Nanos>,
    /// The newest timestamp its client had seen before.
    pub after: Stamp,
    pub what: What<'a>,
}

#[derive(Debug, Clone)]
pub enum What<'a> {
    /// `answer`: its timestamp and outcome; `None` if nobody knows.
    Write { row: &'a RowOp, answer: Option<(Stamp, RowOutcome)> },
    /// `at`: the snapshot that was read, for snapshot reads.
    /// `view`: what of the row it asked for.
    Read { mode: Mode, at: Option<Stamp>, state: &'a State, view: &'a View },
    /// A diff scan from `from` to `at`; `seen`: what it gave of this row, if anything.
    Diff { from: Stamp, at: Stamp, seen: Option<&'a State> },
}

impl What<'_> {
    pub fn is_unknown_write(&self) -> bool {
        matches!(self, What::Write { answer: None, .. })
    }
}

/// What touched each row, in the order of calls. `apart`: how far the clocks of two servers may differ.
pub fn by_row(operations: &[Operation], apart: Nanos) -> BTreeMap<RowKey, Vec<Touch<'_>>> {
    let mut rows: BTreeMap<RowKey, Vec<Touch<'_>>> =
        keys(operations).into_iter().map(|key| (key, Vec::new())).collect();
    for (index, operation) in operations.iter().enumerate() {
        match &operation.request {
            Request::Write { table, rows: ops } => {
                for (order, row) in ops.iter().enumerate() {
                    let touches = rows.get_mut(&(*table, row.key)).expect("each key was listed");
                    touches.push(write(index, order, operation, row));
                }
            }
            Request::Scan(scan) => {
                if let Outcome::Rows { at, .. } = &operation.outcome {
                    read(index, operation, scan, since(operation, scan.mode, *at, apart), &mut rows);
                }
            }
            Request::Other(_) => {}
        }
    }
    rows
}

/// From when on a read may have happened.
///
/// A snapshot of now is of the server's now. One that led before, and that the client still asks, does not have what
/// the next leader wrote since by a clock that is ahead.
fn since(operation: &Operation, mode: Mode, at: Option<Stamp>, apart: Nanos) -> Nanos {
    match (mode, at) {
        (Mode::Stale, _) => 0,
        (Mode::Fresh, Some(_)) => operation.invoked.saturating_sub(apart),
        (Mode::Fresh, None) | (Mode::Snapshot, _) => operation.invoked,
    }
}

/// Every key that was written or seen.
fn keys(operations: &[Operation]) -> BTreeSet<RowKey> {
    let mut keys = BTreeSet::new();
    for operation in operations {
        match (&operation.request, &operation.outcome) {
            (Request::Write { table, rows }, _) => keys.extend(rows.iter().map(|row| (*table, row.key))),
            (Request::Scan(scan), Outcome::Rows { rows, .. }) => {
                keys.extend(rows.iter().map(|seen| (scan.table, seen.key)));
            }
            _ => {}
        }
    }
    keys
}

fn write<'a>(index: usize, order: usize, operation: &Operation, row: &'a RowOp) -> Touch<'a> {
    let answer = match &operation.outcome {
        Outcome::Written(answers) => match answers.get(order) {
            Some(RowAnswer::At { at, outcome }) => Some((*at, *outcome)),
            Some(RowAnswer::Unknown) | None => None,
        },
        // What had no effect answers like a row that was refused.
        Outcome::Failed(_) => Some((0, RowOutcome::Refused)),
        _ => None,
    };
    let settled = answer.and(operation.returned);
    let what = What::Write { row, answer };
    let Operation { client, invoked, after, .. } = *operation;
    Touch { operation: index, order, client, invoked, since: invoked, settled, after, what }
}

fn read<'a>(
    index: usize,
    operation: &'a Operation,
    scan: &'a Scan,
    since: Nanos,
    rows: &mut BTreeMap<RowKey, Vec<Touch<'a>>>,
) {
    let Outcome::Rows { rows: seen, at } = &operation.outcome else { return };
    let at = *at;
    let seen: BTreeMap<i64, &State> = seen.iter().map(|seen| (seen.key, &seen.row)).collect();
    let (from, to) = scan.keys;
    for ((_, key), touches) in rows.range_mut((scan.table, from)..(scan.table, to.max(from))) {
        let state = seen.get(key).copied();
        if state.is_none() && !scan.view.filter.is_none_or(|filter| filter.may_hold(*key)) {
            continue;
        }
        let what = match (scan.diff_from, at) {
            (Some(from), Some(at)) => What::Diff { from, at, seen: state },
            _ => What::Read { mode: scan.mode, at, state: state.unwrap_or(&None), view: &scan.view },
        };
        let Operation { client, invoked, after, .. } = *operation;
        let settled = operation.settled();
        touches.push(Touch { operation: index, order: 0, client, invoked, since, settled, after, what });
    }
}
