//! Histories as text, for tests of the oracles.
//!
//! ```text
//! CLIENT FROM-TO [after=TS] insert|update|... KEY=VALUE ok|present|missing|refused @TS
//! CLIENT FROM-TO insert KEY=VALUE ?                      unknown outcome
//! CLIENT FROM-TO fresh|stale [@TS] KEY=VALUE|KEY=-       one row, there or not
//! CLIENT FROM-TO snapshot @TS KEY=VALUE ...              - for no row
//! CLIENT FROM-TO diff TS..TS KEY=VALUE ...               ! for a row reported as deleted
//! ```

use crate::history::{
    CallOutcome, ClientRequest, HistoryOp, HybridStamp, Row, RowOp, RowOpKind, RowOutcome, RowResult,
    ScanMode, ScanRequest, ScannedRow,
};
use crate::projection::WHOLE;

/// Keys that scans read.
const KEYS: (i64, i64) = (0, 100);

pub(crate) fn history(text: &str) -> Vec<HistoryOp> {
    text.lines().map(str::trim).filter(|line| !line.is_empty()).map(operation).collect()
}

fn operation(line: &str) -> HistoryOp {
    let mut words = line.split_whitespace().peekable();
    let mut word = || words.next().unwrap_or_else(|| panic!("{line:?} ends early"));
    let client = word().parse().expect("a client's number");
    let (from, to) = word().split_once('-').expect("FROM-TO");
    let (invoked, returned) = (from.parse().expect("a time"), to.parse().ok());
    let mut what = word();
    let mut after = 0;
    if let Some(stamp) = what.strip_prefix("after=") {
        after = stamp.parse().expect("a timestamp");
        what = word();
    }
    let rest: Vec<&str> = words.collect();
    let (request, outcome) = match what {
        "fresh" => chosen(ScanMode::Fresh, &rest),
        "stale" => chosen(ScanMode::Stale, &rest),
        "snapshot" => scan(ScanMode::Snapshot, Some(stamp(rest[0])), None, &rest[1..]),
        "diff" => {
            let (from, at) = rest[0].split_once("..").expect("TS..TS");
            scan(ScanMode::Snapshot, Some(stamp(at)), Some(stamp(from)), &rest[1..])
        }
        kind => write(kind, &rest),
    };
    HistoryOp { client, invoked, returned, after, request, outcome }
}

fn stamp(text: &str) -> HybridStamp {
    text.trim_start_matches('@').parse().expect("a timestamp")
}

fn pair(text: &str) -> (i64, &str) {
    let (key, value) = text.split_once('=').expect("KEY=VALUE");
    (key.parse().expect("a key"), value)
}

/// Returns a read of one row, at a snapshot chosen by the server if the text names one.
fn chosen(mode: ScanMode, rest: &[&str]) -> (ClientRequest, CallOutcome) {
    match rest[0].starts_with('@') {
        true => scan(mode, Some(stamp(rest[0])), None, &rest[1..]),
        false => scan(mode, None, None, rest),
    }
}

fn scan(
    mode: ScanMode,
    at: Option<HybridStamp>,
    diff_from: Option<HybridStamp>,
    rows: &[&str],
) -> (ClientRequest, CallOutcome) {
    let rows: Vec<(i64, &str)> = rows.iter().map(|text| pair(text)).collect();
    let keys = if mode == ScanMode::Snapshot { KEYS } else { (rows[0].0, rows[0].0 + 1) };
    let row = |value: &str| -> Row { vec![Some(value.parse().expect("a value"))] };
    let seen = |(key, value): &(i64, &str)| match *value {
        "-" => None,
        "!" => Some(ScannedRow { key: *key, row: None }),
        value => Some(ScannedRow { key: *key, row: Some(row(value)) }),
    };
    let scan = ScanRequest { table: 0, keys, mode, diff_from, ordered: diff_from.is_some(), view: WHOLE };
    (ClientRequest::Scan(scan), CallOutcome::Rows { at, rows: rows.iter().filter_map(seen).collect() })
}

fn write(kind: &str, rest: &[&str]) -> (ClientRequest, CallOutcome) {
    use RowOpKind::*;
    let kinds = [Insert, Update, Delete, Upsert, InsertIgnore, UpdateIgnore, DeleteIgnore, UpsertIgnore];
    let named = |of: &&RowOpKind| of.name().eq_ignore_ascii_case(kind);
    let kind = *kinds.iter().find(named).unwrap_or_else(|| panic!("no operation {kind:?}"));
    let (key, value) = pair(rest[0]);
    let cells = vec![Some(value.parse().ok())];
    let request = ClientRequest::Write { table: 0, rows: vec![RowOp { kind, key, cells }] };
    let outcome = match rest[1] {
        "?" => return (request, CallOutcome::Unknown(None.into())),
        "ok" => RowOutcome::Done,
        "present" => RowOutcome::AlreadyPresent,
        "missing" => RowOutcome::NotFound,
        "refused" => RowOutcome::Refused,
        other => panic!("no outcome {other:?}"),
    };
    (request, CallOutcome::Written(vec![RowResult::At { at: stamp(rest[2]), outcome }]))
}
