//! Scans of model tables by `nyala-client`: the model, which shares no code with it, checks how the client prunes,
//! converts and routes.
//!
//! A scan is recorded as one call for each tablet: the rows whose keys the tablet holds. A tablet that the client does
//! not ask has no rows. Tokens are scanned one by one, as another process would.

use arrow_array::RecordBatch;
use engine::error::{Error, Result};
use engine::schema::partition_range::PartitionRange;
use engine::schema::predicate::Predicate;
use nyala_client::predicate::{Comparison, SimplifiedPredicate, compare};
use nyala_client::{Client, ReadMode, ScanSpec, Scanner, Table};
use nyala_common::wire::predicates;
use sim_plan::client_ops::{ReplicaChoice, ScanPause};
use sim_plan::tables::{ColumnSpec, Value};

use super::arrow_values::{is_set, values};
use super::reading::{PAUSES_MAX, Reading};
use super::{ModelClient, View};
use crate::history::{CallOutcome, ClientRequest, HybridStamp};
use crate::model::Condition;
use crate::model_oracle::{ReadOutcome, TableCall};
use crate::wire::client::TabletPlace;
use crate::wire::scan::{ScanRow, ScanTime};
use crate::wire::{keys, schema};
use crate::workload::nanos;

/// Rows of a whole scan, or of one token.
#[derive(Default)]
pub(super) struct ScanPart {
    /// The tablet of a token.
    pub tablet: Option<String>,
    pub at: Option<HybridStamp>,
    pub rows: Vec<ScanRow>,
    pub count: u64,
    /// True if a batch has other types than the client's view, as columns have changed since.
    pub is_foreign: bool,
}

impl ModelClient {
    /// Returns true if the rows of a scan through the client must be those of the table: it remembers for a while where
    /// a table has no range, so of a table whose ranges have changed it may miss some. It must get an answer all the
    /// same.
    pub(super) fn sees_all_ranges(&self, view: &View) -> bool {
        let state = self.workload.state();
        let versions = &state.model.incarnations[view.table].versions;
        versions.iter().all(|version| version.table.ranges == versions[0].table.ranges)
    }

    /// Scans a table through the client, as an operation of the history, and records its rows by tablet.
    pub(super) async fn scan_by_client(&mut self, view: &View, places: &[TabletPlace], reading: &Reading) {
        let Some(client) = self.client.clone() else { return };
        let began = (nanos(&self.env), self.plain.seen);
        client.observe_timestamp(self.plain.seen);
        let request = ClientRequest::Other("read a model table".to_string());
        let call = self.workload.history().invoke(self.number, began.0, began.1, request);
        let parts = self.read_by_client(&client, view, reading).await;
        let outcome = match &parts {
            Ok(_) => CallOutcome::Done,
            Err(error) => CallOutcome::Failed(error.into()),
        };
        self.workload.history().answer(call, nanos(&self.env), outcome);
        self.plain.observe(client.observed_timestamp().unwrap_or_default());
        let Ok(parts) = parts else { return };
        self.check_totals(&client, view, reading, &parts).await;
        if !self.sees_all_ranges(view) || self.is_altered_meanwhile(view, &parts) {
            return;
        }
        let way = if reading.by_token { "scan by tokens" } else { "scan by the client" };
        *self.workload.state().model.steps.entry(way.to_string()).or_default() += 1;
        for place in places {
            if let Some(outcome) = self.rows_of(view, place, reading, &parts) {
                let call = TableCall::Read { call: reading.call(), outcome };
                self.record(began, view, &place.id, call);
            }
        }
        self.check_strays(view, places, reading, &parts);
    }

    /// Returns the name that a table has now.
    pub(super) fn newest_name(&self, view: &View) -> String {
        let state = self.workload.state();
        let found = &state.model.incarnations[view.table];
        found.versions[found.newest()].name.clone()
    }

    /// Reads the whole table, or each of its tokens; nothing if another table has its name.
    async fn read_by_client(&self, client: &Client, view: &View, reading: &Reading) -> Result<Vec<ScanPart>> {
        let name = self.newest_name(view);
        let table = client.open_table(&name).await?;
        if table.id() != view.id {
            return Err(Error::not_found(format!("table {name} is another one now")));
        }
        let spec = spec_of(&table, reading)?;
        if !reading.by_token {
            return Ok(vec![self.read_part(table.scan(spec)?, reading).await?]);
        }
        let mut parts = Vec::new();
        for token in table.scan_tokens(&spec).await? {
            let scanner = client.scan_serialized_token(&token.serialize()).await?;
            let part = self.read_part(scanner, reading).await?;
            parts.push(ScanPart { tablet: Some(token.tablet().id.clone()), ..part });
        }
        Ok(parts)
    }

    async fn read_part(&self, mut scanner: Scanner, reading: &Reading) -> Result<ScanPart> {
        let (mut part, mut pauses) = (ScanPart::default(), 0);
        while let Some(batch) = scanner.next_batch().await? {
            part.count += batch.num_rows() as u64;
            match rows(&batch, reading) {
                Some(rows) => part.rows.extend(rows),
                None => part.is_foreign = true,
            }
            if pauses < PAUSES_MAX {
                self.pause_between_batches(&mut scanner, reading).await;
                pauses += 1;
            }
        }
        part.at = scanner.snapshot();
        Ok(part)
    }

    /// Pauses as a program does that works on each batch. If a keep-alive call fails, the next batch shows whether the
    /// scan continues.
    async fn pause_between_batches(&self, scanner: &mut Scanner, reading: &Reading) {
        let Some(pause) = reading.pause else { return };
        if pause.kind != ScanPause::KeepAlive {
            return self.env.sleep(pause.span).await;
        }
        let times = pause.keep_alive_calls();
        for _ in 0..times {
            self.env.sleep(pause.span / times).await;
            if scanner.keep_alive().await.is_err() {
                return;
            }
        }
    }

    /// Returns true if the types of a batch are those of other columns of the same names. Reports one that no
    /// alteration explains.
    fn is_altered_meanwhile(&self, view: &View, parts: &[ScanPart]) -> bool {
        let is_foreign = parts.iter().any(|part| part.is_foreign);
        let altered = self.workload.state().model.incarnations[view.table].versions.len() > 1;
        if is_foreign && !altered {
            self.report(format!("table {}: a batch has other types than its columns", view.spec.spec.number));
        }
        is_foreign
    }

    /// Returns what a scan says of a tablet; `None` if it says nothing of a known snapshot.
    fn rows_of(
        &self,
        view: &View,
        place: &TabletPlace,
        reading: &Reading,
        parts: &[ScanPart],
    ) -> Option<ReadOutcome> {
        let named = match reading.scan.time {
            ScanTime::Named(stamp) => Some(stamp),
            ScanTime::Latest | ScanTime::Chosen | ScanTime::YourWrites => None,
        };
        let part = parts.iter().find(|part| part.tablet.as_ref().is_none_or(|tablet| *tablet == place.id));
        let at = part.and_then(|part| part.at).or(named);
        if at.is_none() && (part.is_none() || reading.scan.time != ScanTime::Latest) {
            return None;
        }
        let Some(part) = part else { return Some(ReadOutcome::Rows { at, rows: Vec::new(), count: 0 }) };
        if part.tablet.is_some() {
            return Some(ReadOutcome::Rows { at, rows: part.rows.clone(), count: part.count });
        }
        let held = |row: &&ScanRow| is_held(view, place, reading, row);
        let rows: Vec<ScanRow> = part.rows.iter().filter(held).cloned().collect();
        Some(ReadOutcome::Rows { at, count: rows.len() as u64, rows })
    }

    /// Reports rows that are in no tablet, or in another than that of their token.
    fn check_strays(&self, view: &View, places: &[TabletPlace], reading: &Reading, parts: &[ScanPart]) {
        if reading.columns.is_empty() {
            return;
        }
        for part in parts {
            let mut of_part = places
                .iter()
                .filter(|place| part.tablet.as_ref().is_none_or(|tablet| *tablet == place.id))
                .peekable();
            if of_part.peek().is_none() {
                self.report(format!("a scan token of tablet {:?}, which nobody knows", part.tablet));
                continue;
            }
            let of_part: Vec<&TabletPlace> = of_part.collect();
            let stray = |row: &&ScanRow| !of_part.iter().any(|place| is_held(view, place, reading, row));
            if let Some(row) = part.rows.iter().find(stray) {
                let number = view.spec.spec.number;
                self.report(format!("table {number}: the client gives a row of no tablet: {row:?}"));
            }
        }
    }
}

/// Returns true if a tablet holds the key of a row.
fn is_held(view: &View, place: &TabletPlace, reading: &Reading, row: &ScanRow) -> bool {
    let cell = |number: u8| {
        let at = reading.columns.iter().position(|column| *column == number);
        at.and_then(|at| row.values.get(at)).cloned().unwrap_or(Value::Null)
    };
    keys::partition_key(&view.spec, &cell).is_some_and(|key| keys::holds(&place.bounds, &key))
}

pub(super) fn spec_of(table: &Table, reading: &Reading) -> Result<ScanSpec> {
    let scan = &reading.scan;
    let predicate = |(column, of): &(ColumnSpec, Condition)| predicate_of(table, column, of);
    let read_mode = match scan.time {
        ScanTime::Latest => ReadMode::Latest,
        ScanTime::Chosen => ReadMode::AtSnapshot(None),
        ScanTime::YourWrites => ReadMode::YourWrites,
        ScanTime::Named(stamp) => ReadMode::AtSnapshot(Some(stamp)),
    };
    let bound = |bound: &Option<Vec<u8>>| bound.clone().unwrap_or_default();
    Ok(ScanSpec {
        columns: Some(scan.columns.iter().map(|column| column.name.clone()).collect()),
        aggregation: None,
        predicates: scan.conditions.iter().map(predicate).collect::<Result<_>>()?,
        keys: PartitionRange { lower: bound(&scan.lower), upper: bound(&scan.upper) },
        partitions: PartitionRange::default(),
        read_mode,
        diff_from: scan.since,
        fault_tolerant: scan.ordered,
        limit: scan.limit.map(u64::from),
        batch_bytes: reading.batch,
        any_replica: reading.from == ReplicaChoice::Any,
    })
}

/// Returns the comparison with one value that a condition is.
pub(crate) fn comparison(condition: &Condition) -> Option<(Comparison, &Value)> {
    Some(match condition {
        Condition::Equal(value) => (Comparison::Equal, value),
        Condition::AtMost(value) => (Comparison::LessEqual, value),
        Condition::Above(value) => (Comparison::Greater, value),
        Condition::Range(Some(low), None) => (Comparison::GreaterEqual, low),
        Condition::Range(None, Some(high)) => (Comparison::Less, high),
        _ => return None,
    })
}

/// Returns a condition as the client's own predicate: it finds the value after the greatest one itself.
fn predicate_of(table: &Table, column: &ColumnSpec, of: &Condition) -> Result<Predicate> {
    let found = table.schema().columns().iter().find(|own| own.name == column.name);
    if let (Some((comparison, value)), Some(own)) = (comparison(of), found)
        && let Some(cell) = column.kind.cell(value)
        && own.ty.width().is_none_or(|width| width == cell.len())
        && let SimplifiedPredicate::Predicate(predicate) = compare(own, comparison, cell)
    {
        return Ok(predicate);
    }
    predicates::from_pb(&schema::predicate(column, of), table.schema())
}

/// Returns the rows of a batch; `None` if its columns have other types than the client's view.
fn rows(batch: &RecordBatch, reading: &Reading) -> Option<Vec<ScanRow>> {
    if reading.columns.is_empty() {
        return Some(Vec::new());
    }
    let specs = &reading.scan.columns;
    let columns = specs.iter().zip(batch.columns()).map(|(spec, array)| values(array, spec.kind));
    let columns: Vec<Vec<Value>> = columns.collect::<Option<_>>()?;
    let gone = match reading.scan.since {
        Some(_) => is_set(batch.columns().get(specs.len())?)?,
        None => vec![false; batch.num_rows()],
    };
    let row = |at: usize| ScanRow {
        values: columns.iter().map(|column| column[at].clone()).collect(),
        deleted: gone[at],
    };
    Some((0..batch.num_rows()).map(row).collect())
}
