//! Scans at the double: small batches, some of them empty, in any order unless the scan is ordered.

use bytes::Bytes;
use nyala_common::rpc::{Call, Reply};
use nyala_proto::kudu::app_status_pb::ErrorCode;
use nyala_proto::kudu::column_predicate_pb::Predicate;
use nyala_proto::kudu::tserver::tablet_server_error_pb::Code;
use nyala_proto::kudu::tserver::{
    NewScanRequestPb, ScanRequestPb, ScanResponsePb, ScannerKeepAliveRequestPb, ScannerKeepAliveResponsePb,
    TabletServerErrorPb,
};
use nyala_proto::kudu::{OrderMode, ReadMode};

use super::cluster::Cluster;
use super::codec::{self, COLUMNS, decoded_key};
use super::conditions::Condition;
use super::limits::FIRST_BATCH;
use super::rows::Row;
use super::scanner_state::ScannerState;
use super::writes::{refusal, token_refusal};
use crate::wire::keys;

/// Most rows of a response.
const ROWS: u64 = 6;

impl Cluster {
    pub(super) fn scan_call(&mut self, server: usize, call: &Call, now: u64) -> Reply {
        let request: ScanRequestPb = match call.decode() {
            Ok(request) => request,
            Err(reply) => return reply,
        };
        if self.servers[server] == Condition::Starting && self.random.percent(50) {
            self.lose_scanners(server);
        }
        let scanner = match &request.new_scan_request {
            Some(new) if !self.accepts(new.authz_token.as_ref()) => return token_refusal(),
            Some(new) => self.open(server, new, request.batch_size_bytes(), now),
            None => self.scanner(server, &request),
        };
        match scanner {
            Ok(id) if request.close_scanner() => {
                self.scanners.remove(&id);
                Reply::message(&ScanResponsePb { has_more_results: Some(false), ..Default::default() })
            }
            Ok(id) => self.next_rows(id),
            Err(error) => Reply::message(&ScanResponsePb { error: Some(error), ..Default::default() }),
        }
    }

    pub(super) fn keep_alive_call(&mut self, server: usize, call: &Call) -> Reply {
        let request: ScannerKeepAliveRequestPb = match call.decode() {
            Ok(request) => request,
            Err(reply) => return reply,
        };
        let id = scanner_number(&request.scanner_id);
        let is_there = self.scanners.get(&id).is_some_and(|scanner| scanner.server == server);
        let error = if is_there { None } else { expired() };
        Reply::message(&ScannerKeepAliveResponsePb { error })
    }

    /// Returns the scanner of a call that continues it.
    fn scanner(&mut self, server: usize, request: &ScanRequestPb) -> Result<u64, TabletServerErrorPb> {
        let id = scanner_number(request.scanner_id());
        let found = self.scanners.get_mut(&id).filter(|scanner| scanner.server == server);
        let scanner = found.ok_or_else(|| expired().expect("an error"))?;
        if !request.close_scanner() && request.call_seq_id() != scanner.next_call {
            let text = "the double has another call of the scanner next";
            let error = refusal(Code::InvalidScanCallSeqId, ErrorCode::InvalidArgument, text);
            return Err(error.expect("an error"));
        }
        Ok(id)
    }

    fn open(
        &mut self,
        server: usize,
        new: &NewScanRequestPb,
        batch_bytes: u32,
        now: u64,
    ) -> Result<u64, TabletServerErrorPb> {
        let op = batch_bytes.saturating_sub(FIRST_BATCH) as usize;
        let began = self.ops[op].began;
        if let Some(tablet) = self.tablets.find(&new.tablet_id) {
            self.object(tablet, began, now);
        }
        let tablet = self.served_tablet(server, &new.tablet_id)?;
        let snapshot = self.snapshot(new, op);
        let rows = self.rows_of(tablet, new, snapshot);
        let name =
            |column: &nyala_proto::kudu::ColumnSchemaPb| COLUMNS.iter().position(|name| *name == column.name);
        let id = self.next_scanner;
        self.next_scanner += 1;
        let scanner = ScannerState {
            server,
            tablet,
            op,
            snapshot,
            is_ordered: new.order_mode() == OrderMode::Ordered,
            columns: new.projected_columns.iter().filter_map(name).collect(),
            rows,
            next_call: 0,
        };
        self.scanners.insert(id, scanner);
        Ok(id)
    }

    /// Returns the snapshot of a new scan: the one that is asked for, or one that the double chooses.
    fn snapshot(&mut self, new: &NewScanRequestPb, op: usize) -> u64 {
        let newest = self.tick();
        match new.read_mode() {
            ReadMode::ReadYourWrites => {
                let known = self.ops[op].observed;
                if new.propagated_timestamp() < known {
                    self.report(format!(
                        "a scan of the client's own writes is to see those up to {known}: {new:?}"
                    ));
                }
                // The oldest that holds them, or the newest.
                if self.random.percent(50) { new.propagated_timestamp() + 1 } else { newest }
            }
            ReadMode::ReadAtSnapshot => new.snap_timestamp.unwrap_or(newest),
            _ => newest,
        }
    }

    /// Returns the rows that a new scan asks for, in the order in which they are sent.
    fn rows_of(&mut self, tablet: usize, new: &NewScanRequestPb, snapshot: u64) -> Vec<(i64, Row)> {
        let (lower, upper) = (self.tablets.all[tablet].lower, self.tablets.all[tablet].upper);
        let key = |bytes: &Option<Bytes>| bytes.as_deref().and_then(decoded_key);
        let lower = key(&new.start_primary_key).map_or(lower, |start| start.max(lower));
        let lower = key(&new.last_primary_key).map_or(lower, |last| (last + 1).max(lower));
        let upper = key(&new.stop_primary_key).map_or(upper, |stop| stop.min(upper));
        let mut rows = if lower < upper { self.rows.as_of(lower, upper, snapshot) } else { Vec::new() };
        rows.retain(|(key, row)| {
            new.column_predicates.iter().all(|predicate| {
                let cell = if predicate.column() == COLUMNS[0] { Some(*key) } else { row.number };
                cell.is_some_and(|cell| passes(predicate.predicate.as_ref(), cell))
            })
        });
        if new.order_mode() != OrderMode::Ordered {
            for at in (1..rows.len()).rev() {
                rows.swap(at, self.random.below(at as u64 + 1) as usize);
            }
        }
        rows.truncate(new.limit.map_or(usize::MAX, |limit| limit as usize));
        rows
    }

    fn next_rows(&mut self, id: u64) -> Reply {
        let count = if self.random.percent(25) { 0 } else { self.random.below(ROWS) as usize };
        let lingers = self.random.percent(30);
        let stamp = self.stamp;
        let scanner = self.scanners.get_mut(&id).expect("it was found");
        let rows: Vec<(i64, Row)> = scanner.rows.drain(..count.min(scanner.rows.len())).collect();
        // A scanner may be at its end without knowing.
        let has_more = !scanner.rows.is_empty() || lingers;
        scanner.next_call += 1;
        let (columnar_data, sidecars) = codec::columnar(&rows, &scanner.columns);
        let last = rows.last().filter(|_| scanner.is_ordered);
        let reply = ScanResponsePb {
            scanner_id: has_more.then(|| Bytes::copy_from_slice(&id.to_le_bytes())),
            has_more_results: Some(has_more),
            columnar_data: Some(columnar_data),
            snap_timestamp: Some(scanner.snapshot),
            last_primary_key: last.map(|(key, _)| Bytes::from(keys::int64_key(*key))),
            propagated_timestamp: Some(stamp),
            ..Default::default()
        };
        if !has_more {
            self.scanners.remove(&id);
        }
        Reply::with_sidecars(&reply, sidecars)
    }
}

fn expired() -> Option<TabletServerErrorPb> {
    refusal(Code::ScannerExpired, ErrorCode::NotFound, "the double has no such scanner")
}

fn scanner_number(id: &[u8]) -> u64 {
    id.try_into().map(u64::from_le_bytes).unwrap_or_default()
}

fn passes(predicate: Option<&Predicate>, cell: i64) -> bool {
    let number = |bytes: &Bytes| bytes.as_ref().try_into().map(i64::from_le_bytes).unwrap_or_default();
    match predicate {
        Some(Predicate::Range(range)) => {
            let above = range.lower.as_ref().is_none_or(|lower| cell >= number(lower));
            above && range.upper.as_ref().is_none_or(|upper| cell < number(upper))
        }
        Some(Predicate::Equality(equality)) => {
            equality.value.as_ref().is_some_and(|value| number(value) == cell)
        }
        Some(Predicate::InList(list)) => list.values.iter().any(|value| number(value) == cell),
        Some(Predicate::IsNull(_)) => false,
        _ => true,
    }
}
