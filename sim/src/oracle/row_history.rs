//! The history by row: all operations on one key of one table.

use std::collections::{BTreeMap, BTreeSet};

use crate::history::{
    CallOutcome, ClientNo, ClientRequest, HistoryOp, HybridStamp, Nanos, RowOp, RowOutcome, RowResult,
    ScanMode, ScanRequest, TableNo,
};
use crate::projection::Projection;
use crate::rows::RowState;

/// A row of a table, present or not.
pub type RowKey = (TableNo, i64);

/// One operation as it affects one row. There are as many as rows in all scans, so they are small.
#[derive(Debug, Clone)]
pub struct RowEvent<'a> {
    /// Index of its operation in the history, and its index within that.
    pub operation: usize,
    pub order: usize,
    pub client: ClientNo,
    pub invoked: Nanos,
    /// Earliest time at which it may have happened: a stale read shows any time before.
    pub since: Nanos,
    /// `None` if its effect may come at any later time.
    pub settled: Option<Nanos>,
    /// The newest timestamp its client had seen before.
    pub after: HybridStamp,
    pub what: RowEventKind<'a>,
}

#[derive(Debug, Clone)]
pub enum RowEventKind<'a> {
    /// `answer`: its timestamp and outcome; `None` if unknown.
    Write { row: &'a RowOp, answer: Option<(HybridStamp, RowOutcome)> },
    /// `at`: the snapshot that was read, for snapshot reads. `view`: the columns requested.
    Read { mode: ScanMode, at: Option<HybridStamp>, state: &'a RowState, view: &'a Projection },
    /// A diff scan from `from` to `at`; `seen`: what it returned of this row, if anything.
    Diff { from: HybridStamp, at: HybridStamp, seen: Option<&'a RowState> },
}

impl RowEventKind<'_> {
    pub fn is_unknown_write(&self) -> bool {
        matches!(self, RowEventKind::Write { answer: None, .. })
    }
}

/// Returns each row's events, in the order of calls. `apart`: the largest difference of two servers' clocks.
pub fn by_row(operations: &[HistoryOp], apart: Nanos) -> BTreeMap<RowKey, Vec<RowEvent<'_>>> {
    let mut rows: BTreeMap<RowKey, Vec<RowEvent<'_>>> =
        keys(operations).into_iter().map(|key| (key, Vec::new())).collect();
    for (index, operation) in operations.iter().enumerate() {
        match &operation.request {
            ClientRequest::Write { table, rows: ops } => {
                for (order, row) in ops.iter().enumerate() {
                    let row_events = rows.get_mut(&(*table, row.key)).expect("each key was listed");
                    row_events.push(write(index, order, operation, row));
                }
            }
            ClientRequest::Scan(scan) => {
                if let CallOutcome::Rows { at, .. } = &operation.outcome {
                    read(index, operation, scan, since(operation, scan.mode, *at, apart), &mut rows);
                }
            }
            ClientRequest::Other(_) | ClientRequest::Operator(_) => {}
        }
    }
    rows
}

/// Returns the earliest time at which a read may have happened.
///
/// A snapshot of now is of the server's now. A deposed leader that a client still asks lacks what the next leader
/// wrote since with a clock that is ahead.
fn since(operation: &HistoryOp, mode: ScanMode, at: Option<HybridStamp>, apart: Nanos) -> Nanos {
    match (mode, at) {
        (ScanMode::Stale, _) => 0,
        (ScanMode::Fresh, Some(_)) => operation.invoked.saturating_sub(apart),
        (ScanMode::Fresh, None) | (ScanMode::Snapshot, _) => operation.invoked,
    }
}

/// Returns every key that was written or read.
fn keys(operations: &[HistoryOp]) -> BTreeSet<RowKey> {
    let mut keys = BTreeSet::new();
    for operation in operations {
        match (&operation.request, &operation.outcome) {
            (ClientRequest::Write { table, rows }, _) => {
                keys.extend(rows.iter().map(|row| (*table, row.key)))
            }
            (ClientRequest::Scan(scan), CallOutcome::Rows { rows, .. }) => {
                keys.extend(rows.iter().map(|seen| (scan.table, seen.key)));
            }
            _ => {}
        }
    }
    keys
}

fn write<'a>(index: usize, order: usize, operation: &HistoryOp, row: &'a RowOp) -> RowEvent<'a> {
    let answer = match &operation.outcome {
        CallOutcome::Written(answers) => match answers.get(order) {
            Some(RowResult::At { at, outcome }) => Some((*at, *outcome)),
            Some(RowResult::Unknown) | None => None,
        },
        // A call without effect is handled like a rejected row.
        CallOutcome::Failed(_) => Some((0, RowOutcome::Refused)),
        _ => None,
    };
    let settled = answer.and(operation.returned);
    let what = RowEventKind::Write { row, answer };
    let HistoryOp { client, invoked, after, .. } = *operation;
    RowEvent { operation: index, order, client, invoked, since: invoked, settled, after, what }
}

fn read<'a>(
    index: usize,
    operation: &'a HistoryOp,
    scan: &'a ScanRequest,
    since: Nanos,
    rows: &mut BTreeMap<RowKey, Vec<RowEvent<'a>>>,
) {
    let CallOutcome::Rows { rows: seen, at } = &operation.outcome else { return };
    let at = *at;
    let seen: BTreeMap<i64, &RowState> = seen.iter().map(|seen| (seen.key, &seen.row)).collect();
    let (from, to) = scan.keys;
    for ((_, key), row_events) in rows.range_mut((scan.table, from)..(scan.table, to.max(from))) {
        let state = seen.get(key).copied();
        if state.is_none() && !scan.view.filter.is_none_or(|filter| filter.may_hold(*key)) {
            continue;
        }
        let what = match (scan.diff_from, at) {
            (Some(from), Some(at)) => RowEventKind::Diff { from, at, seen: state },
            _ => RowEventKind::Read { mode: scan.mode, at, state: state.unwrap_or(&None), view: &scan.view },
        };
        let HistoryOp { client, invoked, after, .. } = *operation;
        let settled = operation.settled();
        row_events.push(RowEvent {
            operation: index,
            order: 0,
            client,
            invoked,
            since,
            settled,
            after,
            what,
        });
    }
}
