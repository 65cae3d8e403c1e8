//! Searches: rows that satisfy a predicate, some of their columns, their count, the first few.

use std::time::Duration;

use engine::error::Error;
use nyala_client::{ReadMode, ScanSpec, Table};

use super::client_actor::ClientActor;
use super::nanos;
use super::row_encoding;
use super::scans::spec;
use super::tables::KEYS_END;
use crate::history::{CallOutcome, ClientRequest, HybridStamp, Nanos, ScanMode, ScanRequest, TableNo};
use crate::oracle::query_consistency;
use crate::projection::{CellPredicate, ColumnNo, KEY, Projection, RowFilter, SMALL, TEXT};
use sim_plan::ClientOp;
use sim_plan::client_ops::{PredicateKind, ReadMode as PlanReadMode, ReplicaChoice, SearchOutput};

/// Largest age of a number that a predicate uses, in numbers.
const RECENT: u32 = 24;

impl ClientActor {
    pub(super) async fn find(&mut self, op: &ClientOp) {
        let ClientOp::Find { table, column, test, value, at, back, columns, wanted, from } = op else {
            return;
        };
        let number = TableNo::from(*table);
        let table = self.table(number).await;
        let test = self.test(*column, *test, *value);
        let filter = test.map(|test| RowFilter { column: *column, test });
        let view = Projection { filter, columns: *columns };
        let (mode, read_mode) = match wanted {
            SearchOutput::Rows => self.read_modes(*at, *back, *from),
            // Run twice, at one snapshot.
            _ => (ScanMode::Snapshot, ReadMode::AtSnapshot(Some(self.snapshot_at(*back)))),
        };
        let scan =
            ScanRequest { table: number, keys: (0, KEYS_END), mode, diff_from: None, ordered: false, view };
        let spec = ScanSpec {
            columns: Some(row_encoding::names(&view)),
            keys: row_encoding::keys_of(table.schema(), 0, KEYS_END),
            predicates: filter
                .and_then(|filter| row_encoding::predicate(&filter, table.schema()))
                .into_iter()
                .collect(),
            read_mode,
            any_replica: *from == ReplicaChoice::Any,
            ..spec()
        };
        match wanted {
            SearchOutput::Rows => drop(self.read(&table, scan, spec).await),
            SearchOutput::Count => self.count(&table, scan, spec).await,
            SearchOutput::Few => self.few(&table, scan, spec, u64::from(value % 5 + 1)).await,
        }
    }

    /// Returns the read modes for the op's words.
    fn read_modes(&self, at: PlanReadMode, back: Duration, from: ReplicaChoice) -> (ScanMode, ReadMode) {
        match at {
            PlanReadMode::Snapshot if !back.is_zero() => {
                (ScanMode::Snapshot, ReadMode::AtSnapshot(Some(self.ago(back))))
            }
            PlanReadMode::Latest if from == ReplicaChoice::Leader => {
                (self.workload.mode_of_latest(), ReadMode::Latest)
            }
            PlanReadMode::Latest => (ScanMode::Stale, ReadMode::Latest),
            PlanReadMode::YourWrites => (ScanMode::Stale, ReadMode::YourWrites),
            PlanReadMode::Snapshot => (ScanMode::Stale, ReadMode::AtSnapshot(None)),
        }
    }

    /// Returns a timestamp some time ago, or now and above every timestamp that this client has seen.
    fn snapshot_at(&self, back: Duration) -> HybridStamp {
        let ago = self.ago(back);
        if back.is_zero() { ago.max(self.after() + 1) } else { ago }
    }

    /// Returns the predicate with its values, if there is one: near numbers that this client wrote, or among the few
    /// values of a column.
    fn test(&self, column: ColumnNo, test: PredicateKind, value: u32) -> Option<CellPredicate> {
        let few = self.workload.plan().data.few && !value.is_multiple_of(4);
        let low = match column {
            KEY => i64::from(value),
            TEXT if few => i64::from(value) % row_encoding::FEW_TEXTS,
            SMALL if few => i64::from(value) % row_encoding::FEW_SMALL,
            _ => self.number_before(value % RECENT),
        };
        let width = i64::from(value % 4 * 64 + 1);
        Some(match test {
            PredicateKind::Any => return None,
            PredicateKind::Equal => CellPredicate::Equal(low),
            PredicateKind::Between => CellPredicate::Between(low, low + width),
            PredicateKind::Below => CellPredicate::Below(low),
            PredicateKind::AtLeast => CellPredicate::AtLeast(low),
            // Adjacent keys are likely to exist, and each may be in another tablet.
            PredicateKind::OneOf if column == KEY => {
                CellPredicate::OneOf([low, low + 1, low + 2 + i64::from(value % 4)])
            }
            PredicateKind::OneOf => CellPredicate::OneOf([low, low + 1, low + width]),
            PredicateKind::Null => CellPredicate::Null,
            PredicateKind::NotNull => CellPredicate::NotNull,
        })
    }

    async fn count(&mut self, table: &Table, scan: ScanRequest, spec: ScanSpec) {
        let none = ScanSpec { columns: Some(Vec::new()), ..spec.clone() };
        let began = (nanos(&self.env), self.after());
        let count = match count(table, none).await {
            Ok(count) => count,
            Err(error) => return self.record_failed(scan, began, error),
        };
        let Some(read) = self.read(table, scan, spec).await else { return };
        let found = query_consistency::check_count(&scan, count, &read.rows);
        found.into_iter().for_each(|violation| self.workload.report_violation(violation));
    }

    /// Records a scan that failed and whose rows would not be part of the history: its error needs a cause, too.
    fn record_failed(&self, scan: ScanRequest, (began, after): (Nanos, HybridStamp), error: Error) {
        let request = ClientRequest::Scan(scan);
        let call = self.workload.history().invoke(self.number, began, after, request);
        self.workload.history().answer(call, nanos(&self.env), CallOutcome::Failed(error.into()));
    }

    async fn few(&mut self, table: &Table, scan: ScanRequest, spec: ScanSpec, limit: u64) {
        let limited = ScanSpec { limit: Some(limit), ..spec.clone() };
        let began = (nanos(&self.env), self.after());
        let few = match self.workload.read(table, scan, limited, None).await {
            Ok(few) => few,
            Err(error) => return self.record_failed(scan, began, error),
        };
        let Some(all) = self.read(table, scan, spec).await else { return };
        let found = query_consistency::check_few(&scan, &few.rows, &all.rows, limit);
        found.into_iter().for_each(|violation| self.workload.report_violation(violation));
    }
}

async fn count(table: &Table, spec: ScanSpec) -> Result<u64, Error> {
    let mut scanner = table.scan(spec)?;
    let mut rows = 0;
    while let Some(batch) = scanner.next_batch().await? {
        rows += batch.num_rows() as u64;
    }
    Ok(rows)
}
