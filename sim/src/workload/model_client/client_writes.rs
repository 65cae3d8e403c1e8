//! Writes to model tables by `nyala-client`: the model checks how the client encodes, routes, batches and retries.
//!
//! Rows of one tablet that have one timestamp were one batch, and are recorded as one call. Rows without a receipt may
//! have been written or not.

use std::collections::BTreeMap;

use engine::error::{Error, ErrorKind, Result};
use engine::schema::row_ops::ClientCell;
use nyala_client::{Client, FlushMode, RowReceipt, Session, SessionConfig, Table};
use nyala_common::wire::schema::column_to_pb;
use sim_plan::RandomStream;
use sim_plan::client_ops::WriteKind;
use sim_plan::tables::{ModelTable, Value};

use super::{ModelClient, View};
use crate::history::{CallOutcome, ClientRequest, HybridStamp, Nanos};
use crate::model::{RowAnswer, RowWrite};
use crate::model_oracle::{TableCall, WriteOutcome};
use crate::wire::client::TabletPlace;
use crate::wire::{keys, schema};
use crate::workload::{nanos, row_encoding};

/// Bytes of buffers: some begin a flush after every few rows.
const BUFFERS: [usize; 3] = [200, 4 << 10, 7 << 20];

/// Times at which rows are sent.
const MODES: [FlushMode; 3] = [FlushMode::AutoSync, FlushMode::AutoBackground, FlushMode::Manual];
/// Outcome of rows whose table has other ranges by now: which tablet got them is not known.
const MOVED: &str = "Tablet not found: ranges changed meanwhile";

/// Part of the message about a value that may not change. Columns name themselves in capitals.
const OF_IMMUTABLE: &str = "for immutable column";

/// Rows that were given to a session.
struct Batch {
    rows: Vec<RowWrite>,
    /// The tablet of each row, by its index among the places.
    tablets: Vec<Option<usize>>,
    receipts: Vec<RowReceipt>,
    /// The first error that is not a row's own.
    error: Option<Error>,
}

impl ModelClient {
    /// Returns true if rows may be written through the client: the tablets that get them must be known.
    pub(super) fn writes_by_client(&self, view: &View) -> bool {
        self.client.is_some() && !self.workload.is_determined() && self.sees_all_ranges(view)
    }

    /// Writes rows through the client, and records them by tablet and timestamp.
    pub(super) async fn write_by_client(
        &mut self,
        view: &View,
        places: &[TabletPlace],
        rows: Vec<RowWrite>,
        random: &mut RandomStream,
    ) {
        let Some(client) = self.client.clone() else { return };
        let (began, mode) = ((nanos(&self.env), self.plain.seen), random.pick(&MODES));
        client.observe_timestamp(self.plain.seen);
        let request = ClientRequest::Other("put rows into a model table".to_string());
        let call = self.workload.history().invoke(self.number, began.0, began.1, request);
        let opened = self.open_as(&client, view).await;
        let mut batch = Batch::new(&self.newest_spec(view), places, rows);
        let mut number = view.number;
        match opened {
            Ok(Some((table, version))) => {
                number = version;
                self.count_inserts(view, &batch.rows);
                self.send(&table, view, &mut batch, mode, random.pick(&BUFFERS)).await;
            }
            Ok(None) => batch.rows.clear(),
            Err(error) => {
                batch.error = Some(error);
                batch.rows.clear();
            }
        }
        let outcome = match &batch.error {
            None => CallOutcome::Done,
            Some(error) => CallOutcome::Failed(error.into()),
        };
        self.workload.history().answer(call, nanos(&self.env), outcome);
        self.plain.observe(client.observed_timestamp().unwrap_or_default());
        self.record_batch(began, &View { number, ..view.clone() }, places, &batch).await;
    }

    /// Opens the table, and finds the version whose columns the client has; `None` if it has those of another table, or
    /// of no version in which the rows of the view mean the same.
    async fn open_as(&self, client: &Client, view: &View) -> Result<Option<(Table, usize)>> {
        let table = client.open_table(&self.newest_name(view)).await?;
        if table.id() != view.id {
            return Ok(None);
        }
        let state = self.workload.state();
        let versions = &state.model.incarnations[view.table].versions;
        let is_seen = |spec: &ModelTable| has_columns(&table, spec) && has_all(spec, &view.spec);
        let found = versions.iter().rposition(|version| !version.void && is_seen(&version.table));
        Ok(found.map(|number| (table.clone(), number)))
    }

    async fn send(&self, table: &Table, view: &View, batch: &mut Batch, mode: FlushMode, buffer: usize) {
        let mut config = SessionConfig::new(mode);
        config.timeout = self.workload.plan().cluster.op_timeout;
        config.receipts = true;
        config.buffer_bytes = if mode == FlushMode::Manual { BUFFERS[2] } else { buffer };
        let session = table.client().session(config);
        for tag in 0..batch.rows.len() {
            let applied = apply(&session, table, &view.spec, &batch.rows[tag], tag as u64).await;
            batch.receipts.extend(session.take_receipts());
            if let Err(error) = applied
                && batch.receipt(tag).is_none()
            {
                // The rows after it are not sent.
                batch.error = Some(error);
                batch.rows.truncate(tag + 1);
                break;
            }
        }
        let failures = session.flush().await;
        batch.receipts.extend(session.take_receipts());
        let has_receipt = |tag: u64| batch.receipts.iter().any(|receipt| receipt.tag == tag);
        let without = failures.into_iter().find(|failure| !has_receipt(failure.tag));
        batch.error = batch.error.take().or(without.map(|failure| failure.error));
        self.check_sums(&session, batch);
    }

    /// Reports numbers of written and ignored rows that do not fit the receipts.
    fn check_sums(&self, session: &Session, batch: &Batch) {
        let ok = batch.receipts.iter().filter(|receipt| receipt.refused.is_none()).count() as u64;
        let (written, ignored) = (session.written(), session.ignored());
        let fits = match batch.rows.first().map(|row| row.kind) {
            None | Some(WriteKind::UpsertIgnore | WriteKind::UpdateIgnore) => true,
            Some(WriteKind::InsertIgnore | WriteKind::DeleteIgnore) => written + ignored == ok,
            Some(_) => written == ok && ignored == 0,
        };
        if !fits {
            self.report(format!("the client tells {written} written and {ignored} ignored rows of {ok}"));
        }
    }

    async fn record_batch(
        &mut self,
        began: (Nanos, HybridStamp),
        view: &View,
        places: &[TabletPlace],
        batch: &Batch,
    ) {
        let moved = !self.sees_all_ranges(view);
        for (at, place) in places.iter().enumerate() {
            for (stamp, tags) in batch.by_time(at) {
                let rows: Vec<RowWrite> = tags.iter().map(|tag| batch.rows[*tag].clone()).collect();
                let outcome = match stamp {
                    Some(at) if !moved => WriteOutcome::Applied { at, answers: batch.answers(&tags) },
                    Some(_) => WriteOutcome::Unknown(MOVED.to_string()),
                    None => WriteOutcome::Unknown(batch.why()),
                };
                let written = matches!(outcome, WriteOutcome::Applied { .. });
                self.workload.count(|counts| {
                    counts.answered += u64::from(written);
                    counts.unanswered += u64::from(!written);
                    counts.rows_written += if written { rows.len() as u64 } else { 0 };
                });
                *self.workload.state().model.steps.entry("write by the client".to_string()).or_default() += 1;
                self.record(began, view, &place.id, TableCall::Write { rows, outcome });
            }
        }
        let tablets = places.len().min(batch.tablets_written());
        if tablets > 1 {
            let many = "write of several tablets by the client".to_string();
            *self.workload.state().model.steps.entry(many).or_default() += 1;
        }
    }
}

async fn apply(session: &Session, table: &Table, view: &ModelTable, row: &RowWrite, tag: u64) -> Result<()> {
    let cells: Vec<Option<Option<Vec<u8>>>> = table
        .schema()
        .columns()
        .iter()
        .map(|column| {
            let spec = view.columns.iter().find(|spec| spec.name == column.name)?;
            row.cells.get(&spec.number).map(|value| spec.kind.cell(value))
        })
        .collect();
    let cells: Vec<ClientCell<'_>> = cells.iter().map(cell_of).collect();
    session.apply(table, row_encoding::kind(row.kind), &cells, tag).await
}

fn cell_of(cell: &Option<Option<Vec<u8>>>) -> ClientCell<'_> {
    match cell {
        None => ClientCell::Unset,
        Some(None) => ClientCell::Null,
        Some(Some(bytes)) => ClientCell::Value(bytes),
    }
}

/// Returns true if the client's columns are those of a version.
fn has_columns(table: &Table, spec: &ModelTable) -> bool {
    let found = table.schema().columns();
    let keys = spec.key_columns().len();
    let mut pairs = found.iter().zip(&spec.columns).enumerate();
    found.len() == spec.columns.len()
        && pairs.all(|(at, (column, spec))| {
            let own = schema::spec_of(&column_to_pb(column, at < keys), spec.number);
            own.is_some_and(|own| {
                (&own.name, own.kind, own.nullable, own.immutable)
                    == (&spec.name, spec.kind, spec.nullable, spec.immutable)
            })
        })
}

/// Returns true if a version has all columns of another, under the same names.
fn has_all(spec: &ModelTable, view: &ModelTable) -> bool {
    view.columns.iter().all(|column| spec.column(column.number).is_some_and(|own| own.name == column.name))
}

impl Batch {
    fn new(newest: &ModelTable, places: &[TabletPlace], rows: Vec<RowWrite>) -> Batch {
        let tablet = |row: &RowWrite| {
            let cell = |number: u8| row.cells.get(&number).cloned().unwrap_or(Value::Null);
            let key = keys::partition_key(newest, &cell)?;
            places.iter().position(|place| keys::holds(&place.bounds, &key))
        };
        // A row without a place is not given to the client: it would be of no tablet.
        let (rows, tablets): (Vec<RowWrite>, Vec<Option<usize>>) = rows
            .into_iter()
            .map(|row| (tablet(&row), row))
            .filter(|(at, _)| at.is_some())
            .map(|(at, row)| (row, at))
            .unzip();
        Batch { rows, tablets, receipts: Vec::new(), error: None }
    }

    fn receipt(&self, tag: usize) -> Option<&RowReceipt> {
        self.receipts.iter().find(|receipt| receipt.tag == tag as u64)
    }

    /// Returns the rows of a tablet by timestamp; those without a receipt one by one.
    fn by_time(&self, tablet: usize) -> Vec<(Option<HybridStamp>, Vec<usize>)> {
        let mut by_stamp: BTreeMap<HybridStamp, Vec<usize>> = BTreeMap::new();
        let mut unknown = Vec::new();
        for tag in (0..self.rows.len()).filter(|tag| self.tablets[*tag] == Some(tablet)) {
            match self.receipt(tag) {
                Some(receipt) => by_stamp.entry(receipt.timestamp).or_default().push(tag),
                None => unknown.push((None, vec![tag])),
            }
        }
        by_stamp.into_iter().map(|(stamp, tags)| (Some(stamp), tags)).chain(unknown).collect()
    }

    fn answers(&self, tags: &[usize]) -> Vec<RowAnswer> {
        tags.iter().filter_map(|tag| Some(answer(self.rows[*tag].kind, self.receipt(*tag)?))).collect()
    }

    fn tablets_written(&self) -> usize {
        let written = self.receipts.iter().filter_map(|receipt| self.tablets.get(receipt.tag as usize));
        written.flatten().collect::<std::collections::BTreeSet<_>>().len()
    }

    fn why(&self) -> String {
        self.error.as_ref().map_or("no receipt".to_string(), |error| error.message.clone())
    }
}

/// Returns what a receipt says of a row. It does not say if an IGNORE operation had something to do.
fn answer(kind: WriteKind, receipt: &RowReceipt) -> RowAnswer {
    use WriteKind::{DeleteIgnore, InsertIgnore, UpdateIgnore, UpsertIgnore};
    match receipt.refused.as_ref().map(|error| (error.kind, error.message.as_str())) {
        None if matches!(kind, InsertIgnore | UpsertIgnore | UpdateIgnore | DeleteIgnore) => {
            RowAnswer::Accepted
        }
        None => RowAnswer::Done,
        Some((ErrorKind::AlreadyPresent, _)) => RowAnswer::AlreadyPresent,
        Some((ErrorKind::NotFound, _)) => RowAnswer::NotFound,
        Some((_, message)) if message.contains(OF_IMMUTABLE) => RowAnswer::Immutable,
        Some(_) => RowAnswer::Refused,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(kind: WriteKind, receipts: &[(u64, u64, Option<Error>)]) -> Batch {
        let row = RowWrite { kind, cells: Default::default() };
        let receipt = |(tag, timestamp, refused): &(u64, u64, Option<Error>)| RowReceipt {
            tag: *tag,
            timestamp: *timestamp,
            refused: refused.clone(),
        };
        let receipts = receipts.iter().map(receipt).collect();
        Batch { rows: vec![row; 4], tablets: vec![Some(0), Some(1), Some(0), Some(0)], receipts, error: None }
    }

    #[test]
    fn rows_of_one_tablet_and_timestamp_are_one_call() {
        let written = batch(WriteKind::Insert, &[(0, 7, None), (1, 7, None), (2, 7, None)]);
        assert_eq!(written.by_time(0), vec![(Some(7), vec![0, 2]), (None, vec![3])]);
        assert_eq!(written.by_time(1), vec![(Some(7), vec![1])]);
        assert_eq!(written.tablets_written(), 2);
    }

    #[test]
    fn a_receipt_tells_the_answer_of_its_row() {
        use RowAnswer::{Accepted, AlreadyPresent, Done, Immutable};
        let told = [
            (2, 7, Some(Error::already_present("key already present"))),
            (0, 7, None),
            (3, 7, Some(Error::invalid("UPDATE not allowed for immutable column: c"))),
        ];
        let tags = [0, 2, 3];
        assert_eq!(batch(WriteKind::Upsert, &told).answers(&tags), [Done, AlreadyPresent, Immutable]);
        assert_eq!(
            batch(WriteKind::UpdateIgnore, &told).answers(&tags),
            [Accepted, AlreadyPresent, Immutable]
        );
    }
}
