//! Scans that pause after their scanner was opened: servers drop scanners that are idle for too long, calls keep them
//! alive, and an ordered scan continues at another replica.

use std::time::Duration;

use bytes::Bytes;
use nyala_common::rpc::client::{CallOptions, RpcResponse};
use nyala_proto::kudu::tserver::{
    ScannerKeepAliveRequestPb, ScannerKeepAliveResponsePb, TabletServerErrorPb,
};
use sim_plan::RandomStream;
use sim_plan::client_ops::{ClientOp, SCANNER_TTL, ScanPause};

use super::reading::{PAUSES_MAX, Pause, Reading, ScannerUse, Stopped};
use super::reads::CLIENT_PERCENT;
use super::{ModelClient, View};
use crate::history::Nanos;
use crate::model::draws;
use crate::model_oracle::TableCall;
use crate::model_oracle::metadata::Metadata;
use crate::wire::client::{TSERVER, TabletPlace, text_of};
use crate::wire::scan::ScanTime;
use crate::workload::nanos;

/// Rows before a scan continues elsewhere.
const FIRST_ROWS_MAX: u64 = 4;
/// Bytes of a batch: servers end a batch after each block of rows.
const BATCH_BYTES: u32 = 60;
const SCANNER_EXPIRED: i32 = 7;

impl ModelClient {
    /// Reads one tablet with pauses.
    pub(super) async fn scan_with_pauses(&mut self, table: u8, op: &ClientOp, random: &mut RandomStream) {
        let ClientOp::TablePausedScan { pause: kind, span, ordered, format, from, .. } = op else { return };
        let Some(view) = self.view(table, random) else { return };
        // The pauses are no part of the time that the operation has.
        let deadline = self
            .plain
            .deadline(self.workload.plan().cluster.op_timeout + *span * (u32::from(PAUSES_MAX) + 1));
        let Some(places) = self.locate(&view, self.op_deadline()).await else { return };
        if places.is_empty() {
            return;
        }
        let place = places[random.below(places.len() as u64) as usize].clone();
        let columns = draws::projection(random, &view.spec);
        let time = ScanTime::Named(self.ago(Duration::ZERO).max(self.plain.seen + 1));
        let mut reading = Reading::whole(&view, columns, time, *format, deadline);
        // Only an ordered scan continues after a key.
        reading.scan.ordered = *ordered || *kind == ScanPause::Elsewhere;
        (reading.from, reading.batch) = (*from, BATCH_BYTES);
        reading.pause = Some(Pause { kind: *kind, span: *span, rows: random.between(1, FIRST_ROWS_MAX) });
        if self.client.is_some() && random.percent(CLIENT_PERCENT) {
            self.pause_scan_by_client(&view, &places, reading, random).await;
        } else {
            self.read(&view, &place, &reading, random).await;
        }
        let way = format!("scan pause {}", kind.word());
        *self.workload.state().model.steps.entry(way).or_default() += 1;
    }

    /// Reads the whole table through the client, with pauses. Some batches have no rows, as no row meets a condition.
    async fn pause_scan_by_client(
        &mut self,
        view: &View,
        places: &[TabletPlace],
        mut reading: Reading,
        random: &mut RandomStream,
    ) {
        if random.percent(50) {
            let known = self.workload.state().model.known(view.table);
            reading.set_conditions(view, draws::conditions(random, &view.spec, 1, &known));
        }
        // Where rows have no order, the client cannot go on after its scanner expired.
        reading.scan.ordered |= reading.pause.is_some_and(|pause| pause.kind == ScanPause::Expire);
        reading.by_token = random.percent(50);
        self.scan_by_client(view, places, &reading).await;
    }

    /// Pauses; returns the last use of the scanner.
    pub(super) async fn pause(
        &mut self,
        (view, tablet, address): (&View, &str, &str),
        reading: &Reading,
        scanner: Bytes,
        mut used: ScannerUse,
    ) -> Result<ScannerUse, Stopped> {
        let Some(pause) = reading.pause else { return Ok(used) };
        if pause.kind != ScanPause::KeepAlive {
            self.env.sleep(pause.span).await;
            return Ok(used);
        }
        let times = pause.keep_alive_calls();
        for _ in 0..times {
            self.env.sleep(pause.span / times).await;
            let request = ScannerKeepAliveRequestPb { scanner_id: scanner.clone() };
            let sent = nanos(&self.env);
            let called =
                self.plain.call(address, TSERVER, "ScannerKeepAlive", &request, CallOptions::default()).await;
            let reply: RpcResponse<ScannerKeepAliveResponsePb> =
                called.map_err(|failure| Stopped::Retry(failure.to_string()))?;
            let now = ScannerUse { sent, received: nanos(&self.env) };
            self.record_use(view, tablet, used, now, reply.message.error.as_ref());
            if let Some(error) = &reply.message.error {
                self.plain.errors.add("ScannerKeepAlive", error.code, &error.status);
                return Err(Stopped::Retry(text_of(&error.status)));
            }
            used = now;
        }
        Ok(used)
    }

    /// Records how long a scanner was idle before its use, and whether it had expired.
    pub(super) fn record_use(
        &self,
        view: &View,
        tablet: &str,
        before: ScannerUse,
        now: ScannerUse,
        error: Option<&TabletServerErrorPb>,
    ) {
        let is_expired = error.is_some_and(|error| error.code == SCANNER_EXPIRED);
        if error.is_some() && !is_expired {
            return;
        }
        let answer = Metadata::Scanner {
            least: now.sent.saturating_sub(before.received),
            most: now.received.saturating_sub(before.sent),
            ttl: SCANNER_TTL.as_nanos() as Nanos,
            is_expired,
            is_undisturbed: self.keeps_scanners(view),
        };
        let began = (now.sent, self.plain.seen);
        self.record(began, view, tablet, TableCall::Metadata { answer, since: 0 });
    }

    /// Returns true if nothing but time ends a scanner of a table.
    fn keeps_scanners(&self, view: &View) -> bool {
        let plan = self.workload.plan();
        let state = self.workload.state();
        let table = &state.model.incarnations[view.table];
        let is_altered = table.versions.len() > 1 || !table.absent.is_empty();
        plan.faults.is_empty() && !plan.any_op(ClientOp::is_by_operator) && !is_altered
    }
}
