//! Each call by itself: is its error allowed, is its snapshot the one it asked for, are its rows in order?

use std::collections::BTreeSet;

use sim_plan::tables::{ColumnSpec, Value};

use super::history::{ReadCall, ReadOutcome, TableCall, TableEvent, WriteOutcome};
use super::{metadata, of_call};
use crate::history::Nanos;
use crate::model::{Incarnation, TableVersion};
use crate::oracle::Violation;
use crate::oracle::answers::FROM_THE_FUTURE;
use crate::wire::keys;
use crate::wire::scan::{ScanRow, ScanTime};

/// Codes of tablet servers that speak of the schema.
const INVALID_SCHEMA: i32 = 2;
const MISMATCHED_SCHEMA: i32 = 5;
/// Code of an invalid scan.
const INVALID_SCAN_SPEC: i32 = 8;
/// Code of a snapshot out of the history.
pub const INVALID_SNAPSHOT: i32 = 13;
/// Status of a row that is not in the tablet's partition.
const NOT_FOUND: i32 = 1;
const UNKNOWN_ERROR: i32 = 1;

/// Distance that a timestamp may be ahead of a server's clock.
const AHEAD_MAX: Nanos = 10_000_000_000;

/// Checks one call. `apart`: the largest difference of two machines' clocks.
pub fn check(at: usize, event: &TableEvent, table: &Incarnation, apart: Nanos) -> Vec<Violation> {
    let mut found = Vec::new();
    let view = &table.versions[event.view].table.columns;
    let possible: Vec<&TableVersion> = table.possible(event.span()).collect();
    match &event.call {
        TableCall::Write { outcome: WriteOutcome::Refused { code, status, message }, .. } => {
            // A server also refuses a write that lacks a column without a default.
            let needs_more = |version: &&TableVersion| {
                version.table.columns.iter().any(|column| {
                    let known = view.iter().any(|own| own.name == column.name);
                    !known && !column.nullable && column.write.is_none()
                })
            };
            let resolves = possible.iter().all(|version| version.resolve(view).is_some())
                && !possible.iter().any(needs_more);
            let misplaced = *code == UNKNOWN_ERROR && *status == NOT_FOUND;
            if misplaced || resolves && [INVALID_SCHEMA, MISMATCHED_SCHEMA].contains(code) {
                found.push(of_call(at, event, &format!("a valid write was refused ({code}): {message}")));
            }
        }
        TableCall::Write { outcome: WriteOutcome::Applied { at: stamp, .. }, .. } => {
            if possible.iter().all(|version| version.resolve(view).is_none()) {
                found.push(of_call(at, event, "no version of the table has the columns of this write"));
            }
            if *stamp <= event.after {
                let what =
                    format!("written at {stamp}, not after {}, which its client had seen", event.after);
                found.push(of_call(at, event, &what));
            }
        }
        TableCall::Read { call, outcome: ReadOutcome::Refused { code, message, .. } } => {
            let columns = columns_of(call, view);
            let resolves = possible.iter().all(|version| version.resolve(&columns).is_some());
            let of_schema = [INVALID_SCHEMA, MISMATCHED_SCHEMA, INVALID_SCAN_SPEC].contains(code);
            let wrong_snapshot = *code == INVALID_SNAPSHOT && !may_refuse_snapshot(call, message, apart);
            if resolves && of_schema || wrong_snapshot {
                found.push(of_call(at, event, &format!("a valid scan was refused ({code}): {message}")));
            }
        }
        TableCall::Read { call, outcome: ReadOutcome::Rows { at: stamp, rows, count } } => {
            if possible.iter().all(|version| version.resolve(&columns_of(call, view)).is_none()) {
                found.push(of_call(at, event, "no version of the table has the columns of this scan"));
            }
            let wrong = snapshot_fault(event, call, *stamp).or_else(|| rows_fault(table, call, rows, *count));
            found.extend(wrong.map(|what| of_call(at, event, &what)));
        }
        TableCall::Metadata { answer, .. } => {
            let wrong = metadata::fault(table, answer, event.span(), event.invoked);
            found.extend(wrong.map(|what| of_call(at, event, &what)));
        }
        TableCall::Write { .. } | TableCall::Read { .. } => {}
    }
    found
}

/// Returns true if a server may refuse the snapshot of a scan: it is ahead of the server's clock, or before the start
/// of a diff. Servers keep the history of model tables for longer than any run.
fn may_refuse_snapshot(call: &ReadCall, message: &str, apart: Nanos) -> bool {
    let goes_back = match call.time {
        ScanTime::Chosen => return false,
        ScanTime::Named(at) => call.since.is_some_and(|since| since > at),
        ScanTime::Latest | ScanTime::YourWrites => false,
    };
    goes_back || apart > AHEAD_MAX && message.contains(FROM_THE_FUTURE)
}

/// Returns the columns that a scan names.
pub fn columns_of(call: &ReadCall, view: &[ColumnSpec]) -> Vec<ColumnSpec> {
    let named: BTreeSet<u8> =
        call.columns.iter().copied().chain(call.conditions.iter().map(|(column, _)| *column)).collect();
    view.iter().filter(|column| named.contains(&column.number)).cloned().collect()
}

fn snapshot_fault(event: &TableEvent, call: &ReadCall, stamp: Option<u64>) -> Option<String> {
    match (call.time, stamp) {
        (ScanTime::Named(named), Some(stamp)) if named != stamp => {
            Some(format!("it read the snapshot {stamp} instead of {named}"))
        }
        (ScanTime::Named(_) | ScanTime::Chosen | ScanTime::YourWrites, None) => {
            Some("the reply has no snapshot".to_string())
        }
        (ScanTime::Chosen | ScanTime::YourWrites, Some(stamp)) if stamp <= event.after => {
            Some(format!("it read a snapshot at {stamp} though its client had seen {}", event.after))
        }
        (ScanTime::Latest, Some(stamp)) => {
            Some(format!("a scan of the newest state has a snapshot ({stamp})"))
        }
        _ => None,
    }
}

/// Returns the encoded primary key of a returned row.
pub fn key_of(table: &Incarnation, call: &ReadCall, row: &ScanRow) -> Vec<u8> {
    let cell = |number: u8| {
        let at = call.columns.iter().position(|column| *column == number);
        at.and_then(|at| row.values.get(at)).cloned().unwrap_or(Value::Null)
    };
    keys::primary_key(&table.versions[0].table, &cell)
}

/// Checks order, bounds, limit and count, and that no row comes twice.
fn rows_fault(table: &Incarnation, call: &ReadCall, rows: &[ScanRow], count: u64) -> Option<String> {
    if call.limit.is_some_and(|limit| count > u64::from(limit)) {
        return Some(format!("{count} rows, more than it asked for"));
    }
    if call.columns.is_empty() {
        return None;
    }
    if rows.len() as u64 != count {
        return Some(format!("{} rows instead of the {count} that the reply states", rows.len()));
    }
    let keys: Vec<Vec<u8>> = rows.iter().map(|row| key_of(table, call, row)).collect();
    let unordered = keys.windows(2).position(|pair| pair[0] >= pair[1]).filter(|_| call.ordered);
    if let Some(at) = unordered {
        let (before, after) = (&keys[at], &keys[at + 1]);
        return Some(format!(
            "the rows are not in the order of their keys: {after:02x?} follows {before:02x?} at row {}",
            at + 1
        ));
    }
    if keys.iter().collect::<BTreeSet<_>>().len() < keys.len() {
        return Some("a row came twice".to_string());
    }
    let outside = |key: &&Vec<u8>| !within(call, key);
    keys.iter().find(outside).map(|key| format!("the key {key:02x?} is out of its bounds"))
}

/// Returns true if a key is within the bounds of a scan.
pub fn within(call: &ReadCall, key: &[u8]) -> bool {
    call.lower.as_deref().is_none_or(|lower| lower <= key)
        && call.upper.as_deref().is_none_or(|upper| key < upper)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(time: ScanTime, since: Option<u64>, outcome: ReadOutcome) -> TableEvent {
        let call = ReadCall {
            columns: Vec::new(),
            conditions: Vec::new(),
            lower: None,
            upper: None,
            time,
            since,
            ordered: since.is_some(),
            limit: None,
            partial: false,
        };
        TableEvent {
            client: 1,
            invoked: 20,
            returned: 30,
            after: 0,
            table: 0,
            tablet: "t".to_string(),
            view: 0,
            call: TableCall::Read { call, outcome },
        }
    }

    fn refused(time: ScanTime, since: Option<u64>, message: &str, apart: Nanos) -> usize {
        let outcome =
            ReadOutcome::Refused { code: INVALID_SNAPSHOT, status: 4, message: message.to_string() };
        check(0, &read(time, since, outcome), &crate::model::tests::incarnation(), apart).len()
    }

    #[test]
    fn a_scan_of_a_snapshot_has_it_in_its_reply() {
        let found = |time: ScanTime, at: Option<u64>| {
            let outcome = ReadOutcome::Rows { at, rows: Vec::new(), count: 0 };
            check(0, &read(time, None, outcome), &crate::model::tests::incarnation(), 0).len()
        };
        for time in [ScanTime::Named(9), ScanTime::Chosen, ScanTime::YourWrites] {
            assert_eq!((found(time, Some(9)), found(time, None)), (0, 1), "{time:?}");
        }
        assert_eq!((found(ScanTime::Latest, None), found(ScanTime::Latest, Some(9))), (0, 1));
    }

    #[test]
    fn only_wrong_clocks_explain_a_refused_snapshot() {
        let gone = "snapshot scan end timestamp is earlier than the ancient history mark";
        let ahead = "cannot verify timestamp: timestamp 9 is 11000000 us ahead of this server's clock";
        let (named, far) = (ScanTime::Named(9), 2 * AHEAD_MAX);
        assert_eq!((refused(named, None, gone, 0), refused(named, None, gone, far)), (1, 1));
        assert_eq!((refused(named, None, ahead, 0), refused(named, None, ahead, far)), (1, 0));
        assert_eq!(refused(ScanTime::Latest, None, ahead, far), 0);
        assert_eq!(refused(ScanTime::Chosen, None, ahead, far), 1);
        assert_eq!((refused(named, Some(12), "cannot go back", 0), refused(named, Some(3), gone, 0)), (0, 1));
    }
}
