//! Aggregations of model tables by `nyala-client`, compared with the rows that it has just read at the same snapshot.
//!
//! The rows themselves are checked by the model. An aggregation of a table that was altered says nothing: between the
//! two scans a column may have come to be another one, or a range may be gone.

use std::cmp::Ordering;

use nyala_client::{AggregationSpec, Client, ColumnAggregate, Error, ErrorKind, ReadMode, Result, ScanSpec};
use sim_plan::tables::{ColumnKind, ColumnSpec, TypeWord, Value};

use super::arrow_values::values;
use super::client_scans::{ScanPart, spec_of};
use super::reading::Reading;
use super::{ModelClient, View};
use crate::history::{CallOutcome, ClientRequest, Nanos};
use crate::oracle::answers::FROM_THE_FUTURE;
use crate::oracle::history_gc::HISTORY_GONE;
use crate::workload::nanos;

/// Rows of a scan, and the values, the smallest and the largest of each column.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Totals {
    rows: i128,
    columns: Vec<(i128, Value, Value)>,
}

impl Totals {
    fn new(columns: usize) -> Totals {
        Totals { rows: 0, columns: vec![(0, Value::Null, Value::Null); columns] }
    }

    fn add(&mut self, rows: i128, columns: &[ColumnSpec], totals: Vec<(i128, Value, Value)>) {
        self.rows += rows;
        for ((mine, column), (count, least, most)) in self.columns.iter_mut().zip(columns).zip(totals) {
            mine.0 += count;
            prefer(column.kind, &mut mine.1, least, Ordering::Less);
            prefer(column.kind, &mut mine.2, most, Ordering::Greater);
        }
    }
}

/// Replaces a value by another that is on the wanted side of it. NULL is no value.
fn prefer(kind: ColumnKind, best: &mut Value, other: Value, wanted: Ordering) {
    if !other.is_null() && (best.is_null() || kind.compare(&other, best) == Some(wanted)) {
        *best = other;
    }
}

/// Returns true if servers have a smallest and a largest value of the type.
fn has_extremes(column: &ColumnSpec) -> bool {
    use TypeWord::*;
    !matches!(column.kind.word, Float | Double | Int128 | Uint8 | Uint16 | Uint32 | Uint64)
}

impl ModelClient {
    fn is_unaltered(&self, view: &View) -> bool {
        self.workload.state().model.incarnations[view.table].versions.len() == 1
    }

    /// Asks the servers for the totals of the rows of a scan, and reports others than those of the rows.
    pub(super) async fn check_totals(
        &self,
        client: &Client,
        view: &View,
        reading: &Reading,
        parts: &[ScanPart],
    ) {
        let [ScanPart { tablet: None, at: Some(at), is_foreign: false, tablets }] = parts else { return };
        if reading.scan.limit.is_some() || reading.scan.since.is_some() || !self.is_unaltered(view) {
            return;
        }
        let positions: Vec<usize> =
            (0..reading.scan.columns.len()).filter(|at| has_extremes(&reading.scan.columns[*at])).collect();
        let columns: Vec<ColumnSpec> = positions.iter().map(|at| reading.scan.columns[*at].clone()).collect();
        let began = nanos(&self.env);
        let found = self.totals(client, view, reading, &columns, *at).await;
        if !self.is_unaltered(view) {
            return;
        }
        let mut expected = Totals::new(columns.len());
        for row in tablets.values().flat_map(|of_tablet| &of_tablet.rows) {
            let values = positions.iter().map(|at| row.values[*at].clone());
            let of_row = values.map(|value| (i128::from(!value.is_null()), value.clone(), value)).collect();
            expected.add(0, &columns, of_row);
        }
        expected.rows = tablets.values().map(|of_tablet| i128::from(of_tablet.count)).sum();
        let number = view.spec.spec.number;
        match found {
            Ok(Some(found)) if found == expected => {
                let mut state = self.workload.state();
                *state.model.steps.entry("aggregation by the client".to_string()).or_default() += 1;
            }
            Ok(Some(found)) => self.report(format!(
                "table {number} at {at}: the servers aggregate {found:?}, the rows are {expected:?}"
            )),
            Ok(None) => {
                self.report(format!("table {number}: an aggregation has other types than its columns"))
            }
            Err(error) if error.kind == ErrorKind::Unsupported => {
                self.report(format!("table {number}: an aggregation is refused: {error}"));
            }
            Err(error) => self.record_failed_totals(view, began, error),
        }
    }

    /// Returns true if a table exists, and no alteration of it is in flight or of unknown outcome.
    fn is_at_rest(&self, view: &View) -> bool {
        let state = self.workload.state();
        let mut tables = state.model.tables.iter().filter(|table| table.current == view.table);
        tables.any(|table| !(table.busy || table.frozen || table.dropped))
    }

    /// Records an aggregation that failed as a read: its error needs a cause. The columns of a table that was never
    /// altered are none.
    fn record_failed_totals(&self, view: &View, began: Nanos, error: Error) {
        let may_be_invalid = [HISTORY_GONE, FROM_THE_FUTURE].iter().any(|why| error.message.contains(why));
        if error.kind == ErrorKind::Invalid && !may_be_invalid && self.is_at_rest(view) {
            let number = view.spec.spec.number;
            self.report(format!("table {number}: a valid aggregation is refused: {error}"));
        }
        let request = ClientRequest::Other("read totals of a model table".to_string());
        let call = self.workload.history().invoke(self.number, began, self.plain.seen, request);
        self.workload.history().answer(call, nanos(&self.env), CallOutcome::Failed(error.into()));
    }

    /// Returns the totals that the servers compute; `None` if their types are wrong.
    async fn totals(
        &self,
        client: &Client,
        view: &View,
        reading: &Reading,
        columns: &[ColumnSpec],
        at: u64,
    ) -> Result<Option<Totals>> {
        let table = client.open_table(&self.newest_name(view)).await?;
        if table.id() != view.id {
            return Err(Error::not_found("another table has its name"));
        }
        let of_column = |column: &ColumnSpec| {
            let name = column.name.as_str();
            [ColumnAggregate::count(name), ColumnAggregate::min(name), ColumnAggregate::max(name)]
        };
        let aggregates =
            [ColumnAggregate::count_rows()].into_iter().chain(columns.iter().flat_map(of_column));
        let aggregation = AggregationSpec { group_by: Vec::new(), aggregates: aggregates.collect() };
        let spec = ScanSpec {
            columns: None,
            aggregation: Some(aggregation),
            read_mode: ReadMode::AtSnapshot(Some(at)),
            ..spec_of(&table, reading)?
        };
        let (mut scanner, mut totals) = (table.scan(spec)?, Totals::new(columns.len()));
        while let Some(batch) = scanner.next_batch().await? {
            let int = ColumnKind::plain(TypeWord::Int64);
            let kinds = columns.iter().flat_map(|column| [int, column.kind, column.kind]);
            let kinds = [int].into_iter().chain(kinds);
            let arrays = batch.columns().iter().zip(kinds).map(|(array, kind)| values(array, kind));
            let Some(arrays) = arrays.collect::<Option<Vec<Vec<Value>>>>() else { return Ok(None) };
            let mut arrays: Vec<_> = arrays.into_iter().map(Vec::into_iter).collect();
            for _ in 0..batch.num_rows() {
                // A row: the count of rows, then count, minimum and maximum of each column.
                let mut row = arrays.iter_mut().filter_map(Iterator::next);
                let mut next = || row.next().unwrap_or(Value::Null);
                let count = number(next());
                let of_column = |_: &ColumnSpec| (number(next()), next(), next());
                totals.add(count, columns, columns.iter().map(of_column).collect());
            }
        }
        Ok(Some(totals))
    }
}

/// Returns a count that a server told; it is never NULL.
fn number(value: Value) -> i128 {
    match value {
        Value::Int(number) => number,
        _ => 0,
    }
}
