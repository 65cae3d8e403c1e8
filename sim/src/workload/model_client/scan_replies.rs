//! Replies of scans besides the values of their rows: the scanner, the snapshot, the timestamps and the last key, call
//! by call. Each reply without an error is checked.

use nyala_proto::kudu::ReadMode;
use nyala_proto::kudu::tserver::{NewScanRequestPb, ScanRequestPb, ScanResponsePb};
use sim_plan::tables::Value;

use super::reading::Reading;
use super::{ModelClient, View};
use crate::history::HybridStamp;
use crate::wire::keys;
use crate::wire::scan::{ScanBatch, ScanRow};

/// A call of a scan and its reply.
#[derive(Clone, Copy)]
pub(super) struct ScanCall<'a> {
    pub request: &'a ScanRequestPb,
    pub reply: &'a ScanResponsePb,
    /// Timestamp of the reply before this one, of the same scanner.
    pub before: Option<HybridStamp>,
}

impl ModelClient {
    /// Reports what is wrong with a reply besides the values of its rows.
    pub(super) fn check_reply(&self, view: &View, reading: &Reading, call: ScanCall<'_>, batch: &ScanBatch) {
        let wrong_key = || self.last_key_fault(view, reading, call.reply, batch);
        if let Some(what) = reply_fault(call, reading.scan.ordered, batch.count).or_else(wrong_key) {
            self.report(format!("table {}: a scan's reply {what}", view.spec.spec.number));
        }
    }

    /// Returns what is wrong with the last key of a reply: it is that of the batch's last row. Not checked if the scan
    /// lacks a key column, for a diff scan, and once the table is altered: a name may mean another column by then.
    fn last_key_fault(
        &self,
        view: &View,
        reading: &Reading,
        reply: &ScanResponsePb,
        batch: &ScanBatch,
    ) -> Option<String> {
        let (told, row) = (reply.last_primary_key.as_deref()?, batch.rows.last()?);
        let has_key = view.spec.key_columns().iter().all(|column| reading.columns.contains(&column.number));
        if !has_key || reading.scan.since.is_some() || self.is_altered(view) {
            return None;
        }
        let own = row_key(view, reading, row);
        (told != own).then(|| format!("has the last key {told:02x?}, and its last row {own:02x?}"))
    }

    /// Returns true if an alteration of the table was ever called.
    fn is_altered(&self, view: &View) -> bool {
        self.workload.state().model.incarnations[view.table].versions.len() > 1
    }
}

/// Returns the encoded primary key of a row that a scan returned.
pub(super) fn row_key(view: &View, reading: &Reading, row: &ScanRow) -> Vec<u8> {
    let cell = |number: u8| {
        let at = reading.columns.iter().position(|column| *column == number);
        at.and_then(|at| row.values.get(at)).cloned().unwrap_or(Value::Null)
    };
    keys::primary_key(&view.spec, &cell)
}

/// Returns what is wrong with a reply of this number of rows. An ordered scan has the key of its last row.
fn reply_fault(call: ScanCall<'_>, ordered: bool, rows: u64) -> Option<String> {
    let ScanCall { request, reply, before } = call;
    let Some(seen) = reply.propagated_timestamp else { return Some("has no timestamp".to_string()) };
    let has_key = reply.last_primary_key.is_some();
    if has_key != (ordered && rows > 0) {
        return Some(format!("with {rows} rows (ordered: {ordered}) has a last key: {has_key}"));
    }
    match &request.new_scan_request {
        Some(new) => opening_fault(new, request, reply, seen, rows),
        None => continuing_fault(reply, seen, before),
    }
}

/// Returns what is wrong with a reply that opens a scan. It names the scanner if there is more to read, has the
/// snapshot unless the scan reads the newest state, has no rows if none are asked for, and its time is not before what
/// the client had seen.
fn opening_fault(
    new: &NewScanRequestPb,
    request: &ScanRequestPb,
    reply: &ScanResponsePb,
    seen: HybridStamp,
    rows: u64,
) -> Option<String> {
    if reply.scanner_id.is_some() != reply.has_more_results() {
        let (id, more) = (&reply.scanner_id, reply.has_more_results());
        return Some(format!("names the scanner {id:?}, and there is more: {more}"));
    }
    let (mode, snapshot) = (new.read_mode(), reply.snap_timestamp);
    if snapshot.is_some() != (mode != ReadMode::ReadLatest) {
        return Some(format!("has the snapshot {snapshot:?} in the mode {mode:?}"));
    }
    if rows > 0 && request.batch_size_bytes == Some(0) {
        return Some(format!("has {rows} rows, and the call only opens the scanner"));
    }
    let known = new.propagated_timestamp();
    (seen < known).then(|| format!("has the timestamp {seen}, and its client had seen {known}"))
}

/// Returns what is wrong with a later reply. It names neither the scanner nor the snapshot, and its time is not before
/// that of the reply before: both are of one process.
fn continuing_fault(
    reply: &ScanResponsePb,
    seen: HybridStamp,
    before: Option<HybridStamp>,
) -> Option<String> {
    if reply.scanner_id.is_some() || reply.snap_timestamp.is_some() {
        let (id, at) = (&reply.scanner_id, reply.snap_timestamp);
        return Some(format!("to a call that continues names the scanner {id:?} and the snapshot {at:?}"));
    }
    let before = before.filter(|before| seen < *before)?;
    Some(format!("has the timestamp {seen}, and the reply before it has {before}"))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn opening(mode: ReadMode, batch: u32) -> ScanRequestPb {
        let new = NewScanRequestPb {
            propagated_timestamp: Some(5),
            read_mode: Some(mode as i32),
            ..Default::default()
        };
        ScanRequestPb { new_scan_request: Some(new), batch_size_bytes: Some(batch), ..Default::default() }
    }

    fn more() -> ScanResponsePb {
        ScanResponsePb {
            scanner_id: Some(Bytes::from_static(b"0f")),
            has_more_results: Some(true),
            propagated_timestamp: Some(5),
            ..Default::default()
        }
    }

    fn fault(request: &ScanRequestPb, reply: &ScanResponsePb) -> Option<String> {
        reply_fault(ScanCall { request, reply, before: Some(5) }, false, 1)
    }

    #[test]
    fn a_reply_with_a_scanner_that_ended_or_an_early_time_is_reported() {
        let first = opening(ReadMode::ReadLatest, 60);
        assert_eq!(fault(&first, &more()), None);
        let wrong = [
            ScanResponsePb { scanner_id: None, ..more() },
            ScanResponsePb { has_more_results: Some(false), ..more() },
            ScanResponsePb { propagated_timestamp: Some(4), ..more() },
            ScanResponsePb { propagated_timestamp: None, ..more() },
        ];
        assert!(wrong.iter().all(|reply| fault(&first, reply).is_some()));
    }

    #[test]
    fn the_first_reply_has_the_snapshot_unless_the_newest_state_is_read() {
        let with_snapshot = ScanResponsePb { snap_timestamp: Some(3), ..more() };
        assert!(fault(&opening(ReadMode::ReadLatest, 60), &with_snapshot).is_some());
        for mode in [ReadMode::ReadAtSnapshot, ReadMode::ReadYourWrites] {
            assert_eq!(fault(&opening(mode, 60), &with_snapshot), None);
            assert!(fault(&opening(mode, 60), &more()).is_some());
        }
    }

    #[test]
    fn a_call_that_only_opens_a_scanner_gets_no_rows() {
        let request = opening(ReadMode::ReadLatest, 0);
        let of_rows =
            |rows| reply_fault(ScanCall { request: &request, reply: &more(), before: None }, false, rows);
        assert_eq!(of_rows(0), None);
        assert!(of_rows(1).is_some());
    }

    #[test]
    fn later_replies_name_no_scanner_and_no_snapshot_and_do_not_go_back() {
        let next = ScanResponsePb { scanner_id: None, ..more() };
        let request = ScanRequestPb::default();
        assert_eq!(fault(&request, &next), None);
        let wrong = [
            more(),
            ScanResponsePb { snap_timestamp: Some(3), ..next.clone() },
            ScanResponsePb { propagated_timestamp: Some(4), ..next },
        ];
        assert!(wrong.iter().all(|reply| fault(&request, reply).is_some()));
    }

    #[test]
    fn ordered_rows_alone_have_a_last_key() {
        let last_primary_key = Some(Bytes::from_static(b"k"));
        let with_key = ScanResponsePb { scanner_id: None, last_primary_key, ..more() };
        let without = ScanResponsePb { last_primary_key: None, ..with_key.clone() };
        let request = ScanRequestPb::default();
        let found = |reply: &ScanResponsePb, ordered: bool, rows: u64| {
            reply_fault(ScanCall { request: &request, reply, before: None }, ordered, rows).is_some()
        };
        assert!(!found(&with_key, true, 2) && !found(&without, true, 0) && !found(&without, false, 2));
        assert!(found(&without, true, 2) && found(&with_key, true, 0) && found(&with_key, false, 2));
    }
}
