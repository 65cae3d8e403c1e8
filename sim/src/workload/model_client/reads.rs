//! Scans of plain clients, and the reads after the faults.

use std::time::Duration;

use engine::ids::TabletId;
use engine::time::Instant;
use nyala_common::env::Env;
use nyala_common::rpc::client::{CallOptions, RpcResponse};
use nyala_proto::kudu::tserver::{ScanRequestPb, ScanResponsePb};
use sim_plan::client_ops::{ClientOp, ReadMode, ReplicaChoice, RowsFormat};
use sim_plan::tables::{ColumnSpec, Value};
use sim_plan::{RandomStream, client_ops};

use super::{ModelClient, SETUP_CLIENT, View};
use crate::history::HybridStamp;
use crate::model::{ColNo, Condition, RowCells, draws};
use crate::model_oracle::{ReadCall, ReadOutcome, TableCall};
use crate::oracle::Violation;
use crate::wire::client::{CallFailure, PAUSE, ReplicaPlace, TSERVER, TabletPlace, text_of};
use crate::wire::keys;
use crate::wire::scan::{ScanRow, ScanTime, TabletScan};
use crate::workload::{Workload, nanos};

/// Codes that speak of the scan itself.
const OF_REQUEST: [i32; 4] = [2, 5, 8, 13];

/// Percentage of scans that `nyala-client` makes.
const CLIENT_PERCENT: u64 = 25;

/// A scan and its options.
pub(super) struct Reading {
    pub columns: Vec<ColNo>,
    pub conditions: Vec<(ColNo, Condition)>,
    pub scan: TabletScan,
    pub from: ReplicaChoice,
    pub batch: u32,
    deadline: Instant,
    /// True for a scan by `nyala-client`, and by its tokens.
    by_client: bool,
    pub by_token: bool,
}

impl Reading {
    /// Returns the scan of one tablet as the history has it.
    pub(super) fn call(&self) -> ReadCall {
        let scan = &self.scan;
        ReadCall {
            columns: self.columns.clone(),
            conditions: self.conditions.clone(),
            lower: scan.lower.clone(),
            upper: scan.upper.clone(),
            time: scan.time,
            since: scan.since,
            ordered: scan.ordered,
            limit: scan.limit,
        }
    }
}

/// Rows of a scan so far.
#[derive(Default)]
struct Progress {
    rows: Vec<ScanRow>,
    count: u64,
    at: Option<HybridStamp>,
}

/// Reason for which an attempt ended early.
enum Stopped {
    Refused(ReadOutcome),
    Retry(String),
}

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
        let scan = whole(view, &columns, ScanTime::Named(at), RowsFormat::RowWise);
        let (from, batch, conditions) = (ReplicaChoice::Leader, 1 << 20, Vec::new());
        let (by_client, by_token) = (false, false);
        let reading = Reading { columns, conditions, scan, from, batch, deadline, by_client, by_token };
        self.outcome(view, place, &reading, &mut RandomStream::new(0, "rows")).await
    }

    fn reading(&self, view: &View, op: &ClientOp, random: &mut RandomStream) -> Option<Reading> {
        let (tests, format) = match op {
            ClientOp::TableScan { tests, format, .. } | ClientOp::TableDiff { tests, format, .. } => {
                (*tests, *format)
            }
            _ => return None,
        };
        let conditions = draws::conditions(random, &view.spec, tests);
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
                    let (one, other) = draws::key_bounds(random, &view.spec);
                    let (one, other) = (encoded(view, &one), encoded(view, &other));
                    scan.lower = Some(one.clone().min(other.clone()));
                    scan.upper = Some(one.max(other)).filter(|upper| !upper.is_empty());
                }
            }
            ClientOp::TableDiff { back, to, .. } => {
                scan.ordered = true;
                scan.since = Some(self.ago(*back));
                scan.time = ScanTime::Named(self.ago(*to));
            }
            _ => return None,
        }
        let spec = |number: ColNo| view.spec.column(number).cloned();
        scan.conditions =
            conditions.iter().filter_map(|(number, of)| Some((spec(*number)?, of.clone()))).collect();
        let batch = random.pick(&[60, 400, 1 << 20]);
        let by_client = random.percent(CLIENT_PERCENT);
        // A token is of one tablet, as are the limit and the number of rows of a recorded call.
        let by_token = random.percent(50) || columns.is_empty() || scan.limit.is_some();
        let deadline = self.op_deadline();
        Some(Reading { columns, conditions, scan, from, batch, deadline, by_client, by_token })
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
    async fn read(&mut self, view: &View, place: &TabletPlace, reading: &Reading, random: &mut RandomStream) {
        let began = (nanos(&self.env), self.plain.seen);
        let outcome = self.outcome(view, place, reading, random).await;
        let rows = match &outcome {
            ReadOutcome::Rows { count, .. } => Some(*count),
            _ => None,
        };
        self.workload.count(|counts| {
            counts.answered += u64::from(rows.is_some());
            counts.unanswered += u64::from(rows.is_none());
            counts.rows_read += rows.unwrap_or_default();
        });
        self.record(began, view, &place.id, TableCall::Read { call: reading.call(), outcome });
    }

    async fn outcome(
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
                progress = Progress::default();
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
        let last = progress.rows.last().map(|row| {
            let cell = |number: u8| {
                let at = reading.columns.iter().position(|column| *column == number);
                at.and_then(|at| row.values.get(at)).cloned().unwrap_or(Value::Null)
            };
            keys::primary_key(&view.spec, &cell)
        });
        let new = reading.scan.request(tablet, self.plain.seen, last.as_deref());
        let mut request = ScanRequestPb {
            new_scan_request: Some(new),
            call_seq_id: Some(0),
            batch_size_bytes: Some(reading.batch),
            ..Default::default()
        };
        // Only the reply that opens a scanner names it.
        let mut scanner = None;
        for sequence in 1.. {
            let options = CallOptions { features: reading.scan.features(), ..CallOptions::default() };
            let called: Result<RpcResponse<ScanResponsePb>, CallFailure> =
                self.plain.call(&replica.address, TSERVER, "Scan", &request, options).await;
            let reply = called.map_err(|failure| Stopped::Retry(failure.to_string()))?;
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
                    progress.count += batch.count;
                    progress.rows.extend(batch.rows);
                }
                Err(what) => {
                    self.report(format!("table {}: {what}", view.spec.spec.number));
                    return Err(Stopped::Refused(ReadOutcome::Failed(what)));
                }
            }
            progress.at = progress.at.or(reply.message.snap_timestamp);
            self.plain.observe(reply.message.propagated_timestamp());
            if !reply.message.has_more_results() {
                return Ok(());
            }
            scanner = scanner.or_else(|| reply.message.scanner_id.clone());
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

fn encoded(view: &View, cells: &RowCells) -> Vec<u8> {
    keys::primary_key(&view.spec, &|number| cells.get(&number).cloned().unwrap_or(Value::Null))
}

/// Returns an unordered scan of a whole tablet.
fn whole(view: &View, columns: &[ColNo], time: ScanTime, format: RowsFormat) -> TabletScan {
    let columns: Vec<ColumnSpec> =
        columns.iter().filter_map(|number| view.spec.column(*number).cloned()).collect();
    TabletScan {
        columns,
        keys: view.spec.key_columns().len(),
        conditions: Vec::new(),
        lower: None,
        upper: None,
        time,
        since: None,
        ordered: false,
        limit: None,
        format,
    }
}

impl Workload {
    /// Reads every row of the model tables at each replica, after the faults. Each tablet has the time `quiet`: a
    /// follower that hibernates knows of a new snapshot only with its leader's next heartbeat, so the whole takes a
    /// second for each replica.
    pub(in crate::workload) async fn recover_model_tables(&self, env: &Env, quiet: Duration) {
        let live: Vec<usize> = {
            let state = self.state();
            state.model.tables.iter().filter(|table| !table.dropped).map(|table| table.current).collect()
        };
        let mut client = ModelClient::new(self, env, SETUP_CLIENT);
        client.plain.observe(self.newest().max(self.state().model.newest));
        for table in live {
            if let Err(why) = client.read_everything(table, env, quiet).await {
                let what = format!("after the faults ended, model table {table}: {why}");
                self.report_violation(Violation::new("liveness", what));
            }
        }
    }
}

impl ModelClient {
    async fn read_everything(&mut self, table: usize, env: &Env, quiet: Duration) -> Result<(), String> {
        let versions: Vec<View> = {
            let state = self.workload.state();
            let found = &state.model.incarnations[table];
            let views =
                found.versions.iter().enumerate().skip(found.newest()).filter(|(_, version)| !version.void);
            let view = |number: usize| View {
                table,
                id: found.id.clone(),
                number,
                spec: found.versions[number].table.clone(),
            };
            views.map(|(number, _)| view(number)).collect()
        };
        let found = self.plain.locate(&versions[0].id, env.now().mono.after(quiet)).await;
        for place in found.map_err(|failure| failure.to_string())? {
            let deadline = env.now().mono.after(quiet);
            self.workload.state().live_tablets.extend(place.id.parse::<TabletId>());
            for at in 0..place.replicas.len() {
                let mut read = false;
                for view in &versions {
                    read = read || self.read_replica(view, &place, at, deadline).await;
                }
                if !read {
                    return Err(format!("tablet {}: replica {at} cannot be read", place.id));
                }
            }
        }
        Ok(())
    }

    /// Reads all rows of one replica. Returns false if it has no rows for this version.
    async fn read_replica(&mut self, view: &View, place: &TabletPlace, at: usize, deadline: Instant) -> bool {
        let columns: Vec<ColNo> = view.spec.columns.iter().map(|column| column.number).collect();
        let format = RowsFormat::ALL[at % RowsFormat::ALL.len()];
        let now = ScanTime::Named(self.ago(Duration::ZERO).max(self.plain.seen) + 1);
        let mut scan = whole(view, &columns, now, format);
        scan.ordered = at.is_multiple_of(2);
        let (from, batch, conditions) = (ReplicaChoice::Leader, 1 << 20, Vec::new());
        let (by_client, by_token) = (false, false);
        let reading = Reading { columns, conditions, scan, from, batch, deadline, by_client, by_token };
        let only = TabletPlace { replicas: vec![place.replicas[at].clone()], ..place.clone() };
        let random = &mut RandomStream::new(0, "recovery");
        let before = self.workload.table_history().events().len();
        self.read(view, &only, &reading, random).await;
        let events = self.workload.table_history().clone();
        let events = events.events();
        let rows = |event: &crate::model_oracle::TableEvent| {
            matches!(event.call, TableCall::Read { outcome: ReadOutcome::Rows { .. }, .. })
        };
        events[before..].iter().any(rows)
    }
}
