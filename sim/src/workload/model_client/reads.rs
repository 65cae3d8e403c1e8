//! Scans of plain clients.

use std::time::Duration;

use engine::time::Instant;
use nyala_common::rpc::client::{CallOptions, RpcResponse};
use nyala_proto::kudu::tserver::{ScanRequestPb, ScanResponsePb};
use sim_plan::client_ops::{ClientOp, ReadMode, ReplicaChoice, RowsFormat};
use sim_plan::tables::Value;
use sim_plan::{RandomStream, client_ops};

use super::reading::{Progress, Reading, ScannerUse, Stopped, whole};
use super::scan_replies::{ScanCall, row_key};
use super::{ModelClient, View};
use crate::history::{HybridStamp, Nanos};
use crate::model::{ColNo, RowCells, draws};
use crate::model_oracle::metadata::KeyRange;
use crate::model_oracle::{ReadOutcome, TableCall};
use crate::wire::client::{CallFailure, PAUSE, ReplicaPlace, TSERVER, TabletPlace, text_of};
use crate::wire::keys;
use crate::wire::scan::ScanTime;
use crate::workload::nanos;

/// Codes that speak of the scan itself.
const OF_REQUEST: [i32; 4] = [2, 5, 8, 13];

/// Percentage of scans that `nyala-client` makes.
pub(super) const CLIENT_PERCENT: u64 = 25;

impl ModelClient {
    /// Draws a scan and reads each tablet.
    pub(super) async fn scan(&mut self, table: u8, op: &ClientOp, random: &mut RandomStream) {
        let Some(view) = self.view(table, random) else { return };
        let Some(reading) = self.reading(&view, op, random) else { return };
        let Some(places) = self.locate(&view, reading.deadline).await else { return };
        if reading.by_client && self.client.is_some() {
            return self.scan_by_client(&view, &places, &reading).await;
        }
        for place in places {
            self.read(&view, &place, &reading, random).await;
        }
    }

    /// Returns all rows of a tablet at a timestamp, its columns in order, from the first replica that answers.
    pub(super) async fn rows_at(
        &mut self,
        view: &View,
        place: &TabletPlace,
        at: HybridStamp,
        deadline: Instant,
    ) -> ReadOutcome {
        let columns: Vec<ColNo> = view.spec.columns.iter().map(|column| column.number).collect();
        let reading = Reading::whole(view, columns, ScanTime::Named(at), RowsFormat::RowWise, deadline);
        self.outcome(view, place, &reading, &mut RandomStream::new(0, "rows")).await
    }

    fn reading(&self, view: &View, op: &ClientOp, random: &mut RandomStream) -> Option<Reading> {
        let (tests, format) = match op {
            ClientOp::TableScan { tests, format, .. } | ClientOp::TableDiff { tests, format, .. } => {
                (*tests, *format)
            }
            _ => return None,
        };
        let known = self.workload.state().model.known(view.table);
        let conditions = draws::conditions(random, &view.spec, tests, &known);
        let mut columns = draws::projection(random, &view.spec);
        let (mut scan, mut from) = (whole(view, &columns, ScanTime::Chosen, format), ReplicaChoice::Leader);
        match op {
            ClientOp::TableScan { at, back, ordered, limit, bounded, count, from: chosen, .. } => {
                scan.ordered = *ordered;
                scan.limit = (*limit > 0).then_some(*limit);
                scan.time = self.time(*at, *back, random);
                from = *chosen;
                if *count && !ordered {
                    (columns, scan.columns) = (Vec::new(), Vec::new());
                }
                if *bounded {
                    (scan.lower, scan.upper) = known_bounds(view, random, &known);
                }
            }
            ClientOp::TableDiff { back, to, .. } => {
                scan.ordered = true;
                scan.since = Some(self.ago(*back));
                scan.time = ScanTime::Named(self.ago(*to));
            }
            _ => return None,
        }
        let batch = random.pick(&[60, 400, 1 << 20]);
        let by_client = random.percent(CLIENT_PERCENT);
        // A token is of one tablet, as are the limit and the number of rows of a recorded call.
        let by_token = random.percent(50) || columns.is_empty() || scan.limit.is_some();
        let deadline = self.op_deadline();
        let (none, pause) = (Vec::new(), None);
        let mut reading =
            Reading { columns, conditions: none, scan, from, batch, deadline, by_client, by_token, pause };
        reading.set_conditions(view, conditions);
        Some(reading)
    }

    fn time(&self, at: client_ops::ReadMode, back: Duration, random: &mut RandomStream) -> ScanTime {
        match at {
            ReadMode::Latest => ScanTime::Latest,
            ReadMode::YourWrites => ScanTime::YourWrites,
            ReadMode::Snapshot if !back.is_zero() => ScanTime::Named(self.ago(back)),
            ReadMode::Snapshot if random.percent(50) => {
                ScanTime::Named(self.ago(Duration::ZERO).max(self.plain.seen + 1))
            }
            ReadMode::Snapshot => ScanTime::Chosen,
        }
    }

    /// Reads a tablet, at one replica after the other until one answers, and records it.
    pub(super) async fn read(
        &mut self,
        view: &View,
        place: &TabletPlace,
        reading: &Reading,
        random: &mut RandomStream,
    ) {
        let began = (nanos(&self.env), self.plain.seen);
        let outcome = self.outcome(view, place, reading, random).await;
        self.record_read(began, view, &place.id, reading, outcome);
    }

    pub(super) fn record_read(
        &self,
        began: (Nanos, HybridStamp),
        view: &View,
        tablet: &str,
        reading: &Reading,
        outcome: ReadOutcome,
    ) {
        let rows = match &outcome {
            ReadOutcome::Rows { count, .. } => Some(*count),
            _ => None,
        };
        self.workload.count(|counts| {
            counts.answered += u64::from(rows.is_some());
            counts.unanswered += u64::from(rows.is_none());
            counts.rows_read += rows.unwrap_or_default();
        });
        self.record(began, view, tablet, TableCall::Read { call: reading.call(), outcome });
    }

    pub(super) async fn outcome(
        &mut self,
        view: &View,
        place: &TabletPlace,
        reading: &Reading,
        random: &mut RandomStream,
    ) -> ReadOutcome {
        let (mut progress, mut place, mut attempt) = (Progress::default(), place.clone(), 0);
        loop {
            let any = reading.from == ReplicaChoice::Any;
            let first = if any { random.below(place.replicas.len() as u64) as usize } else { attempt };
            let replica = place.replicas.get(first % place.replicas.len().max(1)).cloned();
            let stopped = match replica {
                Some(replica) => self.attempt(view, &place.id, &replica, reading, &mut progress).await,
                None => Err(Stopped::Retry("the tablet has no replica".to_string())),
            };
            match stopped {
                Ok(()) => {
                    return ReadOutcome::Rows { at: progress.at, rows: progress.rows, count: progress.count };
                }
                Err(Stopped::Refused(outcome)) => return outcome,
                Err(Stopped::Retry(why)) if self.plain.is_over(reading.deadline) => {
                    return ReadOutcome::Failed(why);
                }
                Err(Stopped::Retry(_)) => {}
            }
            // Only an ordered scan of a named snapshot is resumed after its last row.
            let resumes = reading.scan.ordered && matches!(reading.scan.time, ScanTime::Named(_));
            if !resumes || reading.scan.limit.is_some() {
                progress = Progress { pauses: progress.pauses, ..Progress::default() };
            }
            attempt += 1;
            self.env.sleep(PAUSE).await;
            if let Ok(places) = self.plain.locate(&view.id, reading.deadline).await
                && let Some(found) = places.into_iter().find(|found| found.id == place.id)
            {
                place = found;
            }
        }
    }

    /// Reads the rest of a tablet from one replica.
    async fn attempt(
        &mut self,
        view: &View,
        tablet: &str,
        replica: &ReplicaPlace,
        reading: &Reading,
        progress: &mut Progress,
    ) -> Result<(), Stopped> {
        let mut request = opening(view, tablet, reading, progress, self.plain.seen);
        // Only the reply that opens a scanner names it.
        let mut scanner = None;
        let (mut used, mut stamp): (Option<ScannerUse>, Option<HybridStamp>) = (None, None);
        for sequence in 1.. {
            let options = CallOptions { features: reading.scan.features(), ..CallOptions::default() };
            let sent = nanos(&self.env);
            let called: Result<RpcResponse<ScanResponsePb>, CallFailure> =
                self.plain.call(&replica.address, TSERVER, "Scan", &request, options).await;
            let reply = called.map_err(|failure| Stopped::Retry(failure.to_string()))?;
            let now = ScannerUse { sent, received: nanos(&self.env) };
            if let Some(before) = used.filter(|_| reading.pause.is_some()) {
                self.record_use(view, tablet, before, now, reply.message.error.as_ref());
            }
            used = Some(now);
            if let Some(error) = &reply.message.error {
                self.plain.errors.add("Scan", error.code, &error.status);
                let (code, status, message) = (error.code, error.status.code, text_of(&error.status));
                return Err(if OF_REQUEST.contains(&code) {
                    Stopped::Refused(ReadOutcome::Refused { code, status, message })
                } else {
                    Stopped::Retry(message)
                });
            }
            match reading.scan.rows(&reply) {
                Ok(batch) => {
                    let call = ScanCall { request: &request, reply: &reply.message, before: stamp };
                    self.check_reply(view, reading, call, &batch);
                    progress.count += batch.count;
                    progress.rows.extend(batch.rows);
                }
                Err(what) => {
                    self.report(format!("table {}: {what}", view.spec.spec.number));
                    return Err(Stopped::Refused(ReadOutcome::Failed(what)));
                }
            }
            stamp = reply.message.propagated_timestamp;
            progress.at = progress.at.or(reply.message.snap_timestamp);
            self.plain.observe(reply.message.propagated_timestamp());
            if !reply.message.has_more_results() && reading.first_part(progress).is_some() {
                progress.pauses += 1;
                return Err(Stopped::Retry("the scan continues elsewhere".to_string()));
            }
            if !reply.message.has_more_results() {
                return Ok(());
            }
            scanner = scanner.or_else(|| reply.message.scanner_id.clone());
            if reading.pauses(progress) {
                progress.pauses += 1;
                let place = (view, tablet, replica.address.as_str());
                used = Some(self.pause(place, reading, scanner.clone().unwrap_or_default(), now).await?);
            }
            request = ScanRequestPb {
                scanner_id: scanner.clone(),
                call_seq_id: Some(sequence),
                batch_size_bytes: Some(reading.batch),
                ..Default::default()
            };
        }
        Ok(())
    }
}

/// Returns the request that opens a scanner, after the last row so far.
fn opening(
    view: &View,
    tablet: &str,
    reading: &Reading,
    progress: &Progress,
    seen: HybridStamp,
) -> ScanRequestPb {
    let last = progress.rows.last().map(|row| row_key(view, reading, row));
    let mut new = reading.scan.request(tablet, seen, last.as_deref());
    new.limit = new.limit.or(reading.first_part(progress));
    ScanRequestPb {
        new_scan_request: Some(new),
        call_seq_id: Some(0),
        batch_size_bytes: Some(if reading.pauses(progress) { 0 } else { reading.batch }),
        ..Default::default()
    }
}

/// Percentage of bounds that are keys of rows.
const KNOWN_KEY_PERCENT: u64 = 50;

/// Draws a range of encoded primary keys, often keys of known rows.
fn known_bounds(view: &View, random: &mut RandomStream, known: &[RowCells]) -> KeyRange {
    let (mut lower, mut upper) = drawn_bounds(view, random);
    // Rows that a server has numbered, but none read yet, have a part of their key.
    let has_key = |row: &&RowCells| view.spec.key_columns().iter().all(|key| row.contains_key(&key.number));
    let known: Vec<&RowCells> = known.iter().filter(has_key).collect();
    for bound in [&mut lower, &mut upper] {
        if !known.is_empty() && random.percent(KNOWN_KEY_PERCENT) {
            let key = encoded(view, known[random.below(known.len() as u64) as usize]);
            *bound = Some(key).filter(|key| !key.is_empty());
        }
    }
    match (lower, upper) {
        (Some(lower), Some(upper)) if upper < lower => (Some(upper), Some(lower)),
        bounds => bounds,
    }
}

/// Draws a range of encoded primary keys.
pub(super) fn drawn_bounds(view: &View, random: &mut RandomStream) -> KeyRange {
    let (one, other) = draws::key_bounds(random, &view.spec);
    let (one, other) = (encoded(view, &one), encoded(view, &other));
    let bound = |key: Vec<u8>| Some(key).filter(|key| !key.is_empty());
    (bound(one.clone().min(other.clone())), bound(one.max(other)))
}

fn encoded(view: &View, cells: &RowCells) -> Vec<u8> {
    keys::primary_key(&view.spec, &|number| cells.get(&number).cloned().unwrap_or(Value::Null))
}
