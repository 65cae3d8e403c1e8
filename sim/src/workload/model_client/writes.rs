//! Writes of plain clients.

use std::collections::BTreeMap;

use bytes::Bytes;
use engine::time::Instant;
use nyala_common::rpc::client::{CallOptions, RpcResponse};
use nyala_proto::kudu::tserver::{WriteRequestPb, WriteResponsePb};
use sim_plan::RandomStream;
use sim_plan::client_ops::WriteKind;
use sim_plan::tables::Value;

use super::{ModelClient, View};
use crate::history::HybridStamp;
use crate::model::{RowAnswer, RowWrite, draws, extra_draws};
use crate::model_oracle::{TableCall, WriteOutcome};
use crate::wire::client::{CallFailure, PAUSE, TSERVER, TabletPlace, text_of};
use crate::wire::rows::{RowEncoder, Slot, op_number};
use crate::wire::{keys, schema};
use crate::workload::nanos;

/// Codes and statuses of whole requests that speak of the request itself.
const INVALID_SCHEMA: i32 = 2;
const MISMATCHED_SCHEMA: i32 = 5;
const UNKNOWN_ERROR: i32 = 1;
const NOT_FOUND: i32 = 1;

/// Percentage of writes that go through `nyala-client`, and of those to tables whose ranges have changed: what it
/// remembers of them is old.
const CLIENT_PERCENT: u64 = 25;
const CLIENT_PERCENT_OF_CHANGED: u64 = 50;

/// Percentage of the writes of several rows of a tablet whose request is sent once more after it had a reply.
const REPEAT_PERCENT: u64 = 25;

impl ModelClient {
    /// Draws rows and writes them, one request for each tablet.
    pub(super) async fn write(&mut self, table: u8, kind: WriteKind, count: u8, random: &mut RandomStream) {
        let Some(view) = self.view(table, random) else { return };
        let known = self.workload.state().model.known(view.table);
        let draw = |random: &mut RandomStream| draws::row_among(random, &view.spec, kind, &known);
        let mut rows: Vec<RowWrite> = (0..count).map(|_| draw(random)).collect();
        // An upsert of a row whose number is not known is drawn as an insert; the rows of a request are of one kind.
        let kind = rows.first().map(|row| row.kind);
        rows.retain(|row| Some(row.kind) == kind);
        let deadline = self.op_deadline();
        let Some(places) = self.locate(&view, deadline).await else { return };
        let percent = if self.has_first_ranges(&view) { CLIENT_PERCENT } else { CLIENT_PERCENT_OF_CHANGED };
        let by_number = view
            .spec
            .auto_increment()
            .is_some_and(|auto| rows.iter().any(|row| row.cells.contains_key(&auto)));
        if random.percent(percent) && self.writes_by_client() && !by_number {
            // Enough rows for batches of several tablets.
            rows.extend((0..3 * count).map(|_| draw(random)).filter(|row| Some(row.kind) == kind));
            return self.write_by_client(&view, &places, rows, random).await;
        }
        extra_draws::exceed_types(random, &view.spec, &mut rows);
        let spec = self.version_of(&view, &places);
        let mut by_tablet: BTreeMap<usize, Vec<RowWrite>> = BTreeMap::new();
        for row in rows {
            let cell = |number: u8| row.cells.get(&number).cloned().unwrap_or(Value::Null);
            // The newest ranges may have no place for a row, or another than the client's.
            let Some(key) = keys::partition_key(&spec, &cell) else { continue };
            if let Some(at) = places.iter().position(|place| keys::holds(&place.bounds, &key))
                && self.is_of_tablet(&view, &places[at].id, &row)
            {
                by_tablet.entry(at).or_default().push(row);
            }
        }
        for (at, rows) in by_tablet {
            if rows.len() > 2 && random.percent(REPEAT_PERCENT) {
                self.write_and_repeat(&view, &places[at], rows, deadline).await;
            } else {
                self.write_to_tablet(&view, &places[at], rows, deadline).await;
            }
        }
    }

    /// Returns false for a change by a number that another tablet gave a row: here it may be that of one that no read
    /// has returned, and which could not be recognised any more.
    fn is_of_tablet(&self, view: &View, tablet: &str, row: &RowWrite) -> bool {
        let auto = view.spec.auto_increment();
        let Some(number) = auto.and_then(|auto| row.cells.get(&auto)).and_then(Value::number) else {
            return true;
        };
        let state = self.workload.state();
        let seen = state.model.numbers.get(tablet).is_some_and(|numbers| numbers.contains(&number));
        seen || number == draws::NO_AUTO_INCREMENT
    }

    /// Writes rows of one tablet by a request, and records it. Returns the timestamp.
    async fn write_to_tablet(
        &mut self,
        view: &View,
        place: &TabletPlace,
        rows: Vec<RowWrite>,
        deadline: Instant,
    ) -> Option<HybridStamp> {
        self.count_inserts(view, &rows);
        let began = (nanos(&self.env), self.plain.seen);
        let outcome = self.write_to(view, place.clone(), &rows, deadline).await;
        let written = match outcome {
            WriteOutcome::Applied { at, .. } => Some(at),
            _ => None,
        };
        self.workload.count(|counts| {
            counts.answered += u64::from(written.is_some());
            counts.unanswered += u64::from(written.is_none());
            counts.rows_written += if written.is_some() { rows.len() as u64 } else { 0 };
        });
        self.record(began, view, &place.id, TableCall::Write { rows, outcome });
        written
    }

    /// Writes rows of one tablet by three requests, then sends the second one again, as if its reply had been lost and
    /// the third one had overtaken it. It must not take effect twice: the reply is an error or has the same timestamp.
    ///
    /// The second request is sent while the first one counts as incomplete, and is itself the first incomplete one when
    /// the third is sent: the server drops replies up to it, and must keep its own.
    async fn write_and_repeat(
        &mut self,
        view: &View,
        place: &TabletPlace,
        mut rows: Vec<RowWrite>,
        deadline: Instant,
    ) {
        let third = rows.split_off(rows.len() - 1);
        let second = rows.split_off(rows.len() - 1);
        let request = self.request(view, &place.id, &second);
        self.plain.hold_next_request();
        self.write_to_tablet(view, place, rows, deadline).await;
        let written = self.write_to_tablet(view, place, second, deadline).await;
        self.plain.hold_last_request();
        self.write_to_tablet(view, place, third, deadline).await;
        let request_id = self.plain.release();
        let (Some(at), Some(replica)) = (written, place.replicas.first()) else { return };
        let options = CallOptions { request_id, ..CallOptions::default() };
        let called: Result<RpcResponse<WriteResponsePb>, CallFailure> =
            self.plain.call(&replica.address, TSERVER, "Write", &request, options).await;
        let Ok(reply) = called else { return };
        if reply.message.error.is_none() && reply.message.timestamp != Some(at) {
            let (tablet, again) = (&place.id, reply.message.timestamp);
            self.report(format!("tablet {tablet}: a write at {at} took effect again at {again:?}"));
        }
    }

    /// Remembers rows, and counts them before they are sent, as masters may report them before the reply.
    pub(super) fn count_inserts(&self, view: &View, rows: &[RowWrite]) {
        use WriteKind::{Delete, DeleteIgnore, Insert, InsertIgnore, Upsert, UpsertIgnore};
        let stays = |row: &&RowWrite| !matches!(row.kind, Delete | DeleteIgnore);
        let written = rows.iter().filter(stays).map(|row| &row.cells);
        self.workload.state().model.remember(view.table, written);
        let inserts = |row: &&RowWrite| matches!(row.kind, Insert | InsertIgnore | Upsert | UpsertIgnore);
        let count = rows.iter().filter(inserts).count() as u64;
        *self.workload.state().model.inserted.entry(view.table).or_default() += count;
    }

    async fn write_to(
        &mut self,
        view: &View,
        mut place: TabletPlace,
        rows: &[RowWrite],
        deadline: Instant,
    ) -> WriteOutcome {
        let mut id = self.plain.next_request();
        let mut before = false;
        loop {
            let request = self.request(view, &place.id, rows);
            // The leader as masters know it, twice; then one replica after the other.
            let at = (id.attempt_no.max(1) - 1) as usize;
            let replica = place.replicas.get(at % place.replicas.len().max(1)).cloned();
            let options = CallOptions { request_id: Some(id.clone()), ..CallOptions::default() };
            let called: Result<RpcResponse<WriteResponsePb>, CallFailure> = match replica {
                Some(replica) => self.plain.call(&replica.address, TSERVER, "Write", &request, options).await,
                None => Err(CallFailure::NotNow("the tablet has no replica".to_string())),
            };
            let why = match called {
                Ok(reply) => match &reply.message.error {
                    None => return self.applied(rows, &reply.message),
                    Some(error) => {
                        self.plain.errors.add("Write", error.code, &error.status);
                        let (code, status, message) = (error.code, error.status.code, text_of(&error.status));
                        let of_request = [INVALID_SCHEMA, MISMATCHED_SCHEMA].contains(&code)
                            || code == UNKNOWN_ERROR && status == NOT_FOUND;
                        if of_request && !before {
                            return WriteOutcome::Refused { code, status, message };
                        }
                        message
                    }
                },
                Err(failure) => failure.to_string(),
            };
            before = true;
            if self.plain.is_over(deadline) {
                return WriteOutcome::Unknown(why);
            }
            id.attempt_no += 1;
            self.env.sleep(PAUSE).await;
            let Ok(places) = self.plain.locate(&view.id, deadline).await else { continue };
            if let Some(found) = places.into_iter().find(|found| found.id == place.id) {
                place = found;
            }
        }
    }

    fn request(&self, view: &View, tablet: &str, rows: &[RowWrite]) -> WriteRequestPb {
        let columns = &view.spec.columns;
        let slots: Vec<Slot> = columns.iter().map(schema::slot).collect();
        let mut encoder = RowEncoder::default();
        for row in rows {
            let cells: Vec<Option<Value>> =
                columns.iter().map(|column| row.cells.get(&column.number).cloned()).collect();
            encoder.push(op_number(row.kind), &slots, &cells);
        }
        WriteRequestPb {
            tablet_id: Bytes::copy_from_slice(tablet.as_bytes()),
            schema: Some(schema::columns(columns, view.spec.key_columns().len())),
            row_operations: Some(encoder.finish()),
            propagated_timestamp: (self.plain.seen > 0).then_some(self.plain.seen),
            ..Default::default()
        }
    }

    fn applied(&mut self, rows: &[RowWrite], reply: &WriteResponsePb) -> WriteOutcome {
        let Some(at) = reply.timestamp else {
            self.report("a write's reply has no timestamp".to_string());
            return WriteOutcome::Unknown("no timestamp".to_string());
        };
        self.plain.observe(at);
        let counts = WriteCounts::of(rows, reply);
        if let Some(what) = counts.fault() {
            self.report(format!("the counts of a write's reply: {what}"));
        }
        let mut answers: Vec<RowAnswer> = rows.iter().map(|_| counts.answer()).collect();
        for error in &reply.per_row_errors {
            let code = error.error.code;
            let Some(answer) = RowAnswer::of_status(code) else {
                self.report(format!("a row was refused with status {code}: {}", text_of(&error.error)));
                return WriteOutcome::Unknown(text_of(&error.error));
            };
            match answers.get_mut(error.row_index as usize) {
                Some(of_row) => *of_row = answer,
                None => self.report(format!("an error of row {} of {}", error.row_index, rows.len())),
            }
        }
        WriteOutcome::Applied { at, answers }
    }
}

/// Numbers in a reply of rows without an error, which are all of one kind.
#[derive(Debug, Clone, Copy)]
struct WriteCounts {
    kind: WriteKind,
    rows: i64,
    done: i64,
    ignored: i64,
    /// Rows of other kinds.
    foreign: i64,
}

impl WriteCounts {
    fn of(rows: &[RowWrite], reply: &WriteResponsePb) -> WriteCounts {
        let sums = reply.resource_metrics.unwrap_or_default();
        let inserts = (sums.successful_inserts(), sums.insert_ignore_errors());
        let upserts = (sums.successful_upserts(), sums.upsert_ignore_errors());
        let updates = (sums.successful_updates(), sums.update_ignore_errors());
        let deletes = (sums.successful_deletes(), sums.delete_ignore_errors());
        let kind = rows.first().map_or(WriteKind::Upsert, |row| row.kind);
        let (done, ignored) = match kind {
            WriteKind::Insert | WriteKind::InsertIgnore => inserts,
            WriteKind::Upsert | WriteKind::UpsertIgnore => upserts,
            WriteKind::Update | WriteKind::UpdateIgnore => updates,
            WriteKind::Delete | WriteKind::DeleteIgnore => deletes,
        };
        let all: i64 =
            [inserts, upserts, updates, deletes].iter().map(|(done, ignored)| done + ignored).sum();
        let rows = rows.len() as i64 - reply.per_row_errors.len() as i64;
        WriteCounts { kind, rows, done, ignored, foreign: all - done - ignored }
    }

    /// Returns what is wrong with the counts. A row of which some cells are ignored counts twice.
    fn fault(&self) -> Option<String> {
        let WriteCounts { kind, rows, done, ignored, foreign } = *self;
        let counted = done + ignored;
        let fits = match kind {
            WriteKind::Insert | WriteKind::Upsert | WriteKind::Update | WriteKind::Delete => {
                done == rows && ignored == 0
            }
            WriteKind::InsertIgnore | WriteKind::DeleteIgnore => counted == rows,
            WriteKind::UpsertIgnore | WriteKind::UpdateIgnore => {
                done <= rows && ignored <= rows && counted >= rows
            }
        };
        let what = format!("{done} done, {ignored} ignored and {foreign} of other kinds of {rows}");
        (!fits || foreign != 0).then(|| format!("{}: {what}", kind.word()))
    }

    /// Returns what the counts say of each row without an error.
    fn answer(&self) -> RowAnswer {
        match (self.done, self.ignored) {
            (done, 0) if done == self.rows => RowAnswer::Done,
            (0, ignored) if ignored == self.rows => RowAnswer::Ignored,
            _ => RowAnswer::Accepted,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_that_do_not_add_up_are_reported() {
        let counts = |kind, done, ignored, foreign| WriteCounts { kind, rows: 2, done, ignored, foreign };
        for good in [
            counts(WriteKind::Insert, 2, 0, 0),
            counts(WriteKind::InsertIgnore, 1, 1, 0),
            counts(WriteKind::UpsertIgnore, 2, 1, 0),
        ] {
            assert_eq!(good.fault(), None);
        }
        for bad in [
            counts(WriteKind::Insert, 1, 1, 0),
            counts(WriteKind::Delete, 1, 0, 0),
            counts(WriteKind::InsertIgnore, 2, 1, 0),
            counts(WriteKind::UpdateIgnore, 1, 0, 0),
            counts(WriteKind::Upsert, 2, 0, 1),
        ] {
            assert!(bad.fault().is_some(), "{bad:?}");
        }
    }

    #[test]
    fn counts_tell_the_answer_of_each_row_if_all_have_the_same() {
        let counts =
            |done, ignored| WriteCounts { kind: WriteKind::InsertIgnore, rows: 2, done, ignored, foreign: 0 };
        assert_eq!(counts(2, 0).answer(), RowAnswer::Done);
        assert_eq!(counts(0, 2).answer(), RowAnswer::Ignored);
        assert_eq!(counts(1, 1).answer(), RowAnswer::Accepted);
    }
}
