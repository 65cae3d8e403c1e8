//! Writes to model tables by `nyala-client`: the model checks how the client encodes, routes, batches and retries.
//!
//! Rows of one tablet that have one timestamp were one batch, and are recorded as one call. Rows without a receipt may
//! have been written or not. If the ranges of the table have changed, another tablet may have them, which the client
//! still knew or did not know yet.

use std::collections::{BTreeMap, BTreeSet};

use engine::error::{Error, ErrorKind, Result};
use engine::schema::row_ops::ClientCell;
use nyala_client::{Client, FlushMode, RowReceipt, Session, SessionConfig, Table};
use sim_plan::RandomStream;
use sim_plan::client_ops::WriteKind;
use sim_plan::tables::{ModelTable, Value};

use super::client_columns::has_columns;
use super::{ModelClient, View};
use crate::history::{CallOutcome, ClientRequest, HybridStamp, Nanos};
use crate::model::{RowAnswer, RowWrite};
use crate::model_oracle::{TableCall, WriteOutcome};
use crate::wire::client::TabletPlace;
use crate::wire::keys;
use crate::workload::{nanos, row_encoding};

/// Bytes of buffers: some begin a flush after every few rows.
const BUFFERS: [usize; 3] = [200, 4 << 10, 7 << 20];

/// Percentage of writes in the session of the write before.
const KEPT_PERCENT: u64 = 60;
/// Times at which rows are sent.
const MODES: [FlushMode; 3] = [FlushMode::AutoSync, FlushMode::AutoBackground, FlushMode::Manual];
/// Part of the message about a row in no range.
const NOT_COVERED: &str = "covers the row";
/// Beginning of the outcome of a row whose tablet is not known: the operation itself tells if it had a reply.
const MOVED: &str = "Tablet not found or another one: ";
/// Outcome of a row at other tablets than the one that told its receipt: an attempt may have reached them before.
const ELSEWHERE: &str = "Tablet not found: an earlier attempt may have reached it";

/// Part of the message about a value that may not change. Columns name themselves in capitals.
const OF_IMMUTABLE: &str = "for immutable column";

/// Rows that were given to a session.
struct Batch {
    rows: Vec<RowWrite>,
    /// The tablet of each row as masters told it before, by its index among the places.
    tablets: Vec<Option<usize>>,
    /// Rows that the client refused as those of no tablet.
    uncovered: Vec<usize>,
    receipts: Vec<RowReceipt>,
    /// The first error that is not a row's own.
    error: Option<Error>,
}

impl ModelClient {
    /// Returns true if rows may be written through the client.
    pub(super) fn writes_by_client(&self) -> bool {
        self.client.is_some() && !self.workload.is_determined()
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
        let has_gaps = !self.has_first_ranges(view);
        let mut batch = Batch::new(&self.version_of(view, places), places, rows, has_gaps);
        let mut number = view.number;
        match opened {
            Ok(Some((table, version))) => {
                number = version;
                self.count_inserts(view, &batch.rows);
                let session = self.session(&client, mode, random);
                self.send(&session, &table, view, &mut batch).await;
                self.session = batch.error.is_none().then_some(session);
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
        let view = View { number, ..view.clone() };
        let is_known = self.relearn_tablets(&view, &batch).await;
        self.record_batch(began, &view, places, &batch, is_known);
        self.check_uncovered(&view, places, &batch, began.0);
        self.met.extend(batch.receipts.iter().map(|receipt| receipt.tablet.clone()));
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

    /// Returns the session of the last write, or a new one.
    fn session(&mut self, client: &Client, mode: FlushMode, random: &mut RandomStream) -> Session {
        let mut config = SessionConfig::new(mode);
        config.timeout = self.workload.plan().cluster.op_timeout;
        config.receipts = true;
        let buffer = random.pick(&BUFFERS);
        config.buffer_bytes = if mode == FlushMode::Manual { BUFFERS[2] } else { buffer };
        let kept = self.session.take().filter(|_| random.percent(KEPT_PERCENT));
        kept.unwrap_or_else(|| client.session(config))
    }

    async fn send(&self, session: &Session, table: &Table, view: &View, batch: &mut Batch) {
        let before = (session.written(), session.ignored());
        for tag in 0..batch.rows.len() {
            let applied = apply(session, table, &view.spec, &batch.rows[tag], tag as u64).await;
            batch.receipts.extend(session.take_receipts());
            let is_uncovered = applied.as_ref().is_err_and(is_not_covered);
            batch.uncovered.extend(is_uncovered.then_some(tag));
            if let Err(error) = applied
                && !is_uncovered
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
        let is_told = |tag: &usize| failures.iter().any(|failure| failure.tag == *tag as u64);
        let is_silent = |tag: &usize| !is_told(tag) && batch.error.is_none();
        if let Some(tag) = batch.without_receipt().into_iter().find(is_silent) {
            self.report(format!("the client tells nothing of {}", batch.rows[tag]));
        }
        let uncovered = failures.iter().filter(|failure| is_not_covered(&failure.error));
        batch.uncovered.extend(uncovered.map(|failure| failure.tag as usize));
        let has_receipt = |tag: u64| batch.receipts.iter().any(|receipt| receipt.tag == tag);
        let without = failures
            .into_iter()
            .find(|failure| !has_receipt(failure.tag) && !batch.uncovered.contains(&(failure.tag as usize)));
        batch.error = batch.error.take().or(without.map(|failure| failure.error));
        let done = (session.written() - before.0, session.ignored() - before.1);
        self.check_sums(done, batch);
    }

    /// Reports numbers of written and ignored rows that do not fit the receipts.
    fn check_sums(&self, (written, ignored): (u64, u64), batch: &Batch) {
        let ok = batch.receipts.iter().filter(|receipt| receipt.refused.is_none()).count() as u64;
        let fits = match batch.rows.first().map(|row| row.kind) {
            None | Some(WriteKind::UpsertIgnore | WriteKind::UpdateIgnore) => true,
            Some(WriteKind::InsertIgnore | WriteKind::DeleteIgnore) => written + ignored == ok,
            Some(_) => written == ok && ignored == 0,
        };
        if !fits {
            self.report(format!("the client tells {written} written and {ignored} ignored rows of {ok}"));
        }
    }

    /// Asks masters for tablets once more, if rows without a receipt may be in new ones. Returns true if all are known.
    async fn relearn_tablets(&mut self, view: &View, batch: &Batch) -> bool {
        if self.has_first_ranges(view) || batch.without_receipt().is_empty() {
            return true;
        }
        let deadline = self.plain.deadline(self.workload.plan().cluster.rpc_timeout);
        let places = self.plain.locate(&view.id, deadline).await;
        self.learn_tablets(view, places.as_deref().unwrap_or_default());
        places.is_ok()
    }

    fn record_batch(
        &self,
        began: (Nanos, HybridStamp),
        view: &View,
        places: &[TabletPlace],
        batch: &Batch,
        is_known: bool,
    ) {
        for ((tablet, at), tags) in batch.by_time() {
            let outcome = WriteOutcome::Applied { at, answers: batch.answers(&tags) };
            let bounds = self.bounds(view, &tablet);
            let astray = |tag: &&usize| {
                bounds.as_ref().is_some_and(|of| !self.holds(view, of, &batch.rows[**tag].cells))
            };
            if let Some(tag) = tags.iter().find(astray) {
                self.report(format!("tablet {tablet} has a row that it does not hold: {}", batch.rows[*tag]));
            }
            // A tablet that was dropped has columns of some version before.
            let since = match bounds.is_some_and(|bounds| self.stays(view, &bounds, began.0)) {
                true => began.0,
                false => 0,
            };
            self.record_rows((since, began.1), view, &tablet, (&tags, outcome), batch);
            self.record_elsewhere((0, began.1), view, &tablet, &tags, batch);
        }
        for tag in batch.without_receipt() {
            let place = batch.tablets[tag].map(|at| &places[at]);
            let (since, tablets) = match place {
                Some(place) if self.has_first_ranges(view) => (began.0, vec![place.id.clone()]),
                _ if is_known => (0, self.possible_tablets(view, &batch.rows[tag].cells, began.0)),
                _ => (0, vec![String::new()]),
            };
            let moved = if self.has_first_ranges(view) { "" } else { MOVED };
            for tablet in tablets {
                let outcome = WriteOutcome::Unknown(format!("{moved}{}", batch.why()));
                self.record_rows((since, began.1), view, &tablet, (&[tag], outcome), batch);
            }
        }
        if batch.tablets_written() > 1 {
            let many = "write of several tablets by the client".to_string();
            *self.workload.state().model.steps.entry(many).or_default() += 1;
        }
    }

    fn record_rows(
        &self,
        began: (Nanos, HybridStamp),
        view: &View,
        tablet: &str,
        (tags, outcome): (&[usize], WriteOutcome),
        batch: &Batch,
    ) {
        let rows: Vec<RowWrite> = tags.iter().map(|tag| batch.rows[*tag].clone()).collect();
        let written = matches!(outcome, WriteOutcome::Applied { .. });
        self.workload.count(|counts| {
            counts.answered += u64::from(written);
            counts.unanswered += u64::from(!written);
            counts.rows_written += if written { rows.len() as u64 } else { 0 };
        });
        *self.workload.state().model.steps.entry("write by the client".to_string()).or_default() += 1;
        self.record(began, view, tablet, TableCall::Write { rows, outcome });
    }

    /// Records that rows may be in other tablets with the same bounds as well: in one that was dropped before the
    /// attempt that was answered.
    fn record_elsewhere(
        &self,
        began: (Nanos, HybridStamp),
        view: &View,
        tablet: &str,
        tags: &[usize],
        batch: &Batch,
    ) {
        if self.has_first_ranges(view) {
            return;
        }
        let bounds = self.bounds(view, tablet);
        for (other, of) in self.tablets_ever(view) {
            let is_like_it = other != tablet && bounds.as_ref() == Some(&of);
            for tag in tags.iter().filter(|_| is_like_it) {
                let (rows, why) = (vec![batch.rows[*tag].clone()], ELSEWHERE.to_string());
                let call = TableCall::Write { rows, outcome: WriteOutcome::Unknown(why) };
                self.record(began, view, &other, call);
            }
        }
    }

    /// Reports rows that the client refused as those of no tablet, though it must find theirs.
    fn check_uncovered(&self, view: &View, places: &[TabletPlace], batch: &Batch, since: Nanos) {
        for tag in &batch.uncovered {
            let Some(place) = batch.tablets[*tag].map(|at| &places[at]) else { continue };
            if self.must_find(view, place, since) {
                let (row, number) = (&batch.rows[*tag], view.spec.spec.number);
                let id = &place.id;
                self.report(format!("table {number}: the client finds no tablet of {row}, which {id} holds"));
            }
        }
    }
}

fn is_not_covered(error: &Error) -> bool {
    error.kind == ErrorKind::NotFound && error.message.contains(NOT_COVERED)
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

/// Returns true if a version has all columns of another, under the same names.
fn has_all(spec: &ModelTable, view: &ModelTable) -> bool {
    view.columns.iter().all(|column| spec.column(column.number).is_some_and(|own| own.name == column.name))
}

impl Batch {
    /// `has_gaps`: rows in no range are given to the client, too.
    fn new(newest: &ModelTable, places: &[TabletPlace], rows: Vec<RowWrite>, has_gaps: bool) -> Batch {
        let tablet = |row: &RowWrite| {
            let cell = |number: u8| row.cells.get(&number).cloned().unwrap_or(Value::Null);
            let key = keys::partition_key(newest, &cell)?;
            places.iter().position(|place| keys::holds(&place.bounds, &key))
        };
        let (rows, tablets): (Vec<RowWrite>, Vec<Option<usize>>) = rows
            .into_iter()
            .map(|row| (tablet(&row), row))
            .filter(|(at, _)| has_gaps || at.is_some())
            .map(|(at, row)| (row, at))
            .unzip();
        Batch { rows, tablets, uncovered: Vec::new(), receipts: Vec::new(), error: None }
    }

    fn receipt(&self, tag: usize) -> Option<&RowReceipt> {
        self.receipts.iter().find(|receipt| receipt.tag == tag as u64)
    }

    /// Returns the rows that have a receipt by tablet and timestamp.
    fn by_time(&self) -> BTreeMap<(String, HybridStamp), Vec<usize>> {
        let mut found: BTreeMap<(String, HybridStamp), Vec<usize>> = BTreeMap::new();
        for (tag, receipt) in (0..self.rows.len()).filter_map(|tag| Some((tag, self.receipt(tag)?))) {
            found.entry((receipt.tablet.clone(), receipt.timestamp)).or_default().push(tag);
        }
        found
    }

    /// Returns the rows that may have been written; those in no range were not sent.
    fn without_receipt(&self) -> Vec<usize> {
        let is_open = |tag: &usize| self.receipt(*tag).is_none() && !self.uncovered.contains(tag);
        (0..self.rows.len()).filter(is_open).collect()
    }

    fn answers(&self, tags: &[usize]) -> Vec<RowAnswer> {
        tags.iter().filter_map(|tag| Some(answer(self.rows[*tag].kind, self.receipt(*tag)?))).collect()
    }

    fn tablets_written(&self) -> usize {
        self.receipts.iter().map(|receipt| &receipt.tablet).collect::<BTreeSet<_>>().len()
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
            tablet: format!("t{}", tag % 2),
            timestamp: *timestamp,
            refused: refused.clone(),
        };
        let receipts = receipts.iter().map(receipt).collect();
        let tablets = vec![Some(0), Some(1), Some(0), Some(1)];
        Batch { rows: vec![row; 4], tablets, uncovered: Vec::new(), receipts, error: None }
    }

    #[test]
    fn rows_of_one_tablet_and_timestamp_are_one_call() {
        let mut written = batch(WriteKind::Insert, &[(0, 7, None), (1, 7, None), (2, 7, None)]);
        let calls: Vec<_> = written.by_time().into_iter().collect();
        assert_eq!(calls, [(("t0".to_string(), 7), vec![0, 2]), (("t1".to_string(), 7), vec![1])]);
        assert_eq!((written.tablets_written(), written.without_receipt()), (2, vec![3]));
        written.uncovered.push(3);
        assert!(written.without_receipt().is_empty(), "it was not sent");
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
