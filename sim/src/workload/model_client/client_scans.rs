//! Scans of model tables by `nyala-client`: the model, which shares no code with it, checks how the client prunes,
//! converts and routes.
//!
//! A scan is recorded as one call for each tablet: the rows that the client says it gave. A tablet that the client does
//! not ask has no rows; if it may not know of the tablet yet, rows that are absent say nothing. Tokens are scanned one
//! by one, as another process would.

use std::collections::{BTreeMap, BTreeSet};

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
use super::client_columns::has_types;
use super::reading::{PAUSES_MAX, Reading};
use super::{ModelClient, View};
use crate::history::{CallOutcome, ClientRequest, HybridStamp, Nanos};
use crate::model::{Condition, RowCells};
use crate::model_oracle::{ReadCall, ReadOutcome, TableCall};
use crate::wire::client::TabletPlace;
use crate::wire::scan::{ScanRow, ScanTime};
use crate::wire::schema;
use crate::workload::nanos;

/// Rows of one tablet, and their number.
#[derive(Debug, Default, Clone)]
pub(super) struct TabletRows {
    pub rows: Vec<ScanRow>,
    pub count: u64,
}

/// Rows of a whole scan, or of one token.
#[derive(Default)]
pub(super) struct ScanPart {
    /// The tablet of a token.
    pub tablet: Option<String>,
    pub at: Option<HybridStamp>,
    /// By the id of the tablet that gave them.
    pub tablets: BTreeMap<String, TabletRows>,
    /// True if columns have other types than those of the client's view, as they have changed since.
    pub is_foreign: bool,
}

impl ModelClient {
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
        if self.is_altered_meanwhile(view, &parts) {
            return;
        }
        let way = if reading.by_token { "scan by tokens" } else { "scan by the client" };
        *self.workload.state().model.steps.entry(way.to_string()).or_default() += 1;
        self.record_parts(began, view, places, reading, &parts);
        self.check_strays(view, places, reading, &parts);
        let gave_rows = parts.iter().flat_map(|part| part.tablets.keys());
        self.met.extend(gave_rows.cloned());
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
        let used: Vec<&ColumnSpec> = reading.used_columns().collect();
        if !has_types(&table, &used) {
            return Ok(vec![ScanPart { is_foreign: true, ..ScanPart::default() }]);
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
            let of_tablet = part.tablets.entry(scanner.tablet().unwrap_or_default().to_string()).or_default();
            of_tablet.count += batch.num_rows() as u64;
            match rows(&batch, reading) {
                Some(rows) => of_tablet.rows.extend(rows),
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

    /// Returns true if the types of columns are those of others with the same names. Reports them if no alteration
    /// explains them.
    fn is_altered_meanwhile(&self, view: &View, parts: &[ScanPart]) -> bool {
        let is_foreign = parts.iter().any(|part| part.is_foreign);
        let altered = self.workload.state().model.incarnations[view.table].versions.len() > 1;
        if is_foreign && !altered {
            self.report(format!("table {}: its columns have other types", view.spec.spec.number));
        }
        is_foreign
    }

    /// Records what a scan says of each tablet that there is, and of others that gave rows.
    fn record_parts(
        &self,
        began: (Nanos, HybridStamp),
        view: &View,
        places: &[TabletPlace],
        reading: &Reading,
        parts: &[ScanPart],
    ) {
        let known: Vec<&str> = places.iter().map(|place| place.id.as_str()).collect();
        for place in places {
            let partial = !self.must_find(view, place, began.0);
            if let Some(outcome) = rows_of(&place.id, reading, parts) {
                let (partial, says) = (partial || is_cut(&place.id, parts, reading), says_rows(&outcome));
                let call = TableCall::Read { call: ReadCall { partial, ..reading.call() }, outcome };
                (!partial || says).then(|| self.record(began, view, &place.id, call));
                self.count_partial(partial && says);
            }
        }
        let tablets: BTreeSet<&String> = parts.iter().flat_map(|part| part.tablets.keys()).collect();
        for tablet in tablets.into_iter().filter(|tablet| !known.contains(&tablet.as_str())) {
            if let Some(outcome) = rows_of(tablet, reading, parts) {
                let call = TableCall::Read { call: ReadCall { partial: true, ..reading.call() }, outcome };
                self.record(began, view, tablet, call);
                self.count_partial(true);
            }
        }
    }

    fn count_partial(&self, partial: bool) {
        let name = "scan by the client of a new or old tablet".to_string();
        *self.workload.state().model.steps.entry(name).or_default() += u64::from(partial);
    }

    /// Reports rows that their tablet does not hold, and tablets of tokens that masters do not know.
    fn check_strays(&self, view: &View, places: &[TabletPlace], reading: &Reading, parts: &[ScanPart]) {
        let number = view.spec.spec.number;
        for part in parts {
            let is_known =
                |tablet: &String| self.bounds(view, tablet).is_some() || !self.has_first_ranges(view);
            if let Some(tablet) = part.tablet.iter().chain(part.tablets.keys()).find(|id| !is_known(id)) {
                self.report(format!(
                    "table {number}: the client reads tablet {tablet:?}, which there is not"
                ));
            }
            let is_of_token =
                |tablet: &String| part.tablet.as_ref().is_none_or(|of_token| of_token == tablet);
            let moved = part.tablets.keys().find(|tablet| !is_of_token(tablet));
            if moved.is_some() && self.has_first_ranges(view) {
                self.report(format!(
                    "table {number}: a token of tablet {:?} gives rows of {moved:?}",
                    part.tablet
                ));
            }
            for (tablet, found) in part.tablets.iter().filter(|_| !reading.columns.is_empty()) {
                let Some(bounds) = self.bounds(view, tablet) else { continue };
                let stray = found.rows.iter().find(|row| !self.holds(view, &bounds, &cells_of(reading, row)));
                if let Some(row) = stray {
                    let of = places.iter().map(|place| &place.id).collect::<Vec<_>>();
                    self.report(format!(
                        "table {number}: the client gives {row:?} for a row of tablet {tablet} ({of:?})"
                    ));
                }
            }
        }
    }
}

/// Returns what a scan says of a tablet; `None` if it says nothing of a known snapshot.
fn rows_of(tablet: &str, reading: &Reading, parts: &[ScanPart]) -> Option<ReadOutcome> {
    let named = match reading.scan.time {
        ScanTime::Named(stamp) => Some(stamp),
        ScanTime::Latest | ScanTime::Chosen | ScanTime::YourWrites => None,
    };
    let of_token = |part: &&ScanPart| part.tablet.as_ref().is_none_or(|of| of == tablet);
    let with_rows = || parts.iter().find(|part| part.tablets.contains_key(tablet));
    let part = parts.iter().find(of_token).or_else(with_rows);
    let at = part.and_then(|part| part.at).or(named);
    if at.is_none() && (part.is_none() || reading.scan.time != ScanTime::Latest) {
        return None;
    }
    let found = part.and_then(|part| part.tablets.get(tablet)).cloned().unwrap_or_default();
    Some(ReadOutcome::Rows { at, rows: found.rows, count: found.count })
}

fn says_rows(outcome: &ReadOutcome) -> bool {
    matches!(outcome, ReadOutcome::Rows { count, .. } if *count > 0)
}

/// Returns true if a limit or a token was for other tablets as well, so that it may have cut this one.
fn is_cut(tablet: &str, parts: &[ScanPart], reading: &Reading) -> bool {
    let of_others = |part: &ScanPart| part.tablets.keys().chain(&part.tablet).any(|other| other != tablet);
    let with_it = |part: &&ScanPart| part.tablets.contains_key(tablet);
    (reading.scan.limit.is_some() || reading.by_token) && parts.iter().filter(with_it).any(of_others)
}

/// Returns the cells of a row.
fn cells_of(reading: &Reading, row: &ScanRow) -> RowCells {
    reading.columns.iter().copied().zip(row.values.iter().cloned()).collect()
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
