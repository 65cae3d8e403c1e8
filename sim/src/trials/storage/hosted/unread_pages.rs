//! Scans by calls, which name the client's columns, and pages that they cannot read: the replica fails with
//! the scan, so that others take its place.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use engine::disk::mem::DiskOpKind;
use nyala_common::env::Env;
use nyala_common::rpc::client::{CallOptions, RpcResponse};
use nyala_proto::kudu::tserver::{ScanRequestPb, ScanResponsePb};
use sim_plan::client_ops::RowsFormat;

use super::{HostedTrial, SERVER, TABLET, view};
use crate::history::HybridStamp;
use crate::model::ColNo;
use crate::model_oracle::ReadCall;
use crate::trials::fleet::{CALL, host};
use crate::trigger::EIO;
use crate::wire::client::{PlainClient, TSERVER, text_of};
use crate::wire::scan::{ScanRow, ScanTime, TabletScan};
use crate::workload::TSERVER_PORT;

/// Time after which stores are flushed.
const FLUSHED: Duration = Duration::from_secs(2);
/// Farthest read that fails, and reads in a row that do: one that fails is made once more.
const READS_AHEAD: u64 = 6;
const READS: u64 = 3;
/// Text of the operating system for a read that fails.
const UNREAD: &str = "Input/output error";

impl HostedTrial {
    /// Scans by calls, and compares the rows with the model.
    pub(super) fn scan(&mut self) {
        let Some(scan) = self.drawn_scan() else { return };
        if self.fleet.replica(SERVER, TABLET).is_none() {
            self.recover();
        }
        let columns = view::meaning(&self.view, &self.table.shape);
        match (columns, self.scan_by_calls(&scan, None)) {
            (None, Err(why)) => self.fleet.note(format!("a scan of other columns is refused: {why}")),
            (None, Ok(_)) => {
                self.fleet.report("a scan of columns that the table does not have is executed".to_string());
            }
            (Some(columns), Ok(rows)) => {
                self.fleet.note(format!("{} rows are read", rows.len()));
                self.compare(&scan, &columns, &rows);
            }
            (Some(_), Err(why)) => self.fleet.report(format!("a scan fails: {why}")),
        }
    }

    pub(super) fn compare(&mut self, scan: &TabletScan, columns: &BTreeMap<ColNo, ColNo>, rows: &[ScanRow]) {
        let call = ReadCall {
            columns: scan.columns.iter().map(|column| columns[&column.number]).collect(),
            conditions: Vec::new(),
            lower: None,
            upper: None,
            time: scan.time,
            since: None,
            ordered: scan.ordered,
            limit: None,
            partial: false,
        };
        let differs = self.table.difference(&self.rows, &call, rows);
        differs.into_iter().for_each(|what| self.fleet.report(what));
    }

    /// Lets pages be unreadable while a scan reads them for the first time.
    pub(super) fn lose_reads(&mut self) {
        let Some(scan) = self.drawn_scan() else { return };
        self.fleet.pass(FLUSHED);
        self.fleet.kill(SERVER);
        self.fleet.restart(SERVER);
        let [_, data] = self.disks();
        let failed = data.fault_counts().ops_failed;
        let first = self.random.between(1, READS_AHEAD);
        (first..first + READS).for_each(|read| data.fail_nth(DiskOpKind::Read, read, EIO));
        let outcome = self.scan_by_calls(&scan, None);
        data.end_faults();
        let failed = data.fault_counts().ops_failed - failed;
        let entry = self.fleet.entry(SERVER, TABLET);
        let has_failed = entry.is_none_or(|entry| entry.failure().is_some());
        let why = outcome.err();
        self.fleet.note(format!("{failed} reads fail, scan: {why:?}, replica failed: {has_failed}"));
        if failed > 0 && !has_failed && why.as_ref().is_some_and(|why| why.contains(UNREAD)) {
            let what = "a page that cannot be read fails a scan, and its replica runs on";
            self.fleet.report(format!("{what}: {why:?}"));
        }
        self.recover();
    }

    /// Draws a scan of all rows by the client's columns; none before the first write, as of when history is
    /// not kept.
    pub(super) fn drawn_scan(&mut self) -> Option<TabletScan> {
        (self.first > 0).then(|| TabletScan {
            columns: self.view.columns.clone(),
            keys: self.view.key_columns().len(),
            conditions: Vec::new(),
            lower: None,
            upper: None,
            time: ScanTime::Named(self.last + 1),
            since: None,
            ordered: self.random.percent(50),
            limit: None,
            format: self.random.pick(&[RowsFormat::RowWise, RowsFormat::Columnar]),
        })
    }

    /// Reads all rows of a scan, or those after an encoded key.
    pub(super) fn scan_by_calls(
        &mut self,
        scan: &TabletScan,
        after: Option<Vec<u8>>,
    ) -> Result<Vec<ScanRow>, String> {
        let scan = scan.clone();
        let read = self.fleet.run_client(move |env| read(env, scan.clone(), after.clone()));
        read.unwrap_or_else(|| Err("no reply".to_string())).map(|(rows, _)| rows)
    }
}

/// Reads all rows of a scan, or those after a key. Also returns the snapshot that the server names.
pub(super) async fn read(
    env: Env,
    scan: TabletScan,
    after: Option<Vec<u8>>,
) -> Result<(Vec<ScanRow>, Option<HybridStamp>), String> {
    let mut client = PlainClient::new(env, Vec::new(), 0, CALL);
    let address = format!("{}:{TSERVER_PORT}", host(SERVER));
    let mut request = ScanRequestPb {
        new_scan_request: Some(scan.request(&TABLET.to_string(), 0, after.as_deref())),
        call_seq_id: Some(0),
        ..Default::default()
    };
    let (mut rows, mut at) = (Vec::new(), None);
    loop {
        let options = CallOptions { features: scan.features(), ..CallOptions::default() };
        let called: Result<RpcResponse<ScanResponsePb>, _> =
            client.call(&address, TSERVER, "Scan", &request, options).await;
        let reply = called.map_err(|failure| failure.to_string())?;
        if let Some(error) = &reply.message.error {
            return Err(text_of(&error.status));
        }
        rows.extend(scan.rows(&reply)?.rows);
        at = at.or(reply.message.snap_timestamp);
        let scanner: Option<Bytes> = reply.message.scanner_id.clone().or(request.scanner_id);
        if !reply.message.has_more_results() {
            return Ok((rows, at));
        }
        let next = request.call_seq_id.map(|number| number + 1);
        request = ScanRequestPb { scanner_id: scanner, call_seq_id: next, ..Default::default() };
    }
}
