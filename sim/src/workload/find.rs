//! Searches: rows whose cells pass a test, some of their columns, how many there are, the first few.

use std::time::Duration;

use engine::error::Error;
use node::client::{ReadMode, ScanSpec, Table};

use super::actor::Actor;
use super::rows;
use super::scans::spec;
use super::tables::KEYS_END;
use crate::history::{Mode, Scan, Stamp, TableNo};
use crate::oracle::searches;
use crate::plan::Op;
use crate::plan::ops::{ReadAt, Replicas, TestKind, Wanted};
use crate::view::{Column, Filter, KEY, SMALL, TEXT, Test, View};

/// How far back the numbers lie that a test asks for, at most.
const RECENT: u32 = 24;

impl Actor {
    pub async fn find(&mut self, op: &Op) {
        let Op::Find { table, column, test, value, at, back, columns, wanted, from } = op else { return };
        let number = TableNo::from(*table);
        let table = self.table(number).await;
        let test = self.test(*column, *test, *value);
        let filter = test.map(|test| Filter { column: *column, test });
        let view = View { filter, columns: *columns };
        let (mode, read_mode) = match wanted {
            Wanted::Rows => self.how(*at, *back, *from),
            // Asked twice, at one snapshot.
            _ => (Mode::Snapshot, ReadMode::AtSnapshot(Some(self.moment(*back)))),
        };
        let scan = Scan { table: number, keys: (0, KEYS_END), mode, diff_from: None, ordered: false, view };
        let spec = ScanSpec {
            columns: Some(rows::names(&view)),
            keys: rows::keys_of(table.schema(), 0, KEYS_END),
            predicates: filter
                .and_then(|filter| rows::predicate(&filter, table.schema()))
                .into_iter()
                .collect(),
            read_mode,
            any_replica: *from == Replicas::Any,
            ..spec()
        };
        match wanted {
            Wanted::Rows => drop(self.read(&table, scan, spec).await),
            Wanted::Count => self.count(&table, scan, spec).await,
            Wanted::Few => self.few(&table, scan, spec, u64::from(value % 5 + 1)).await,
        }
    }

    /// How the op's words are meant.
    fn how(&self, at: ReadAt, back: Duration, from: Replicas) -> (Mode, ReadMode) {
        match at {
            ReadAt::Snapshot if !back.is_zero() => {
                (Mode::Snapshot, ReadMode::AtSnapshot(Some(self.ago(back))))
            }
            ReadAt::Latest if from == Replicas::Leader => (self.workload.mode_of_latest(), ReadMode::Latest),
            ReadAt::Latest => (Mode::Stale, ReadMode::Latest),
            ReadAt::YourWrites => (Mode::Stale, ReadMode::YourWrites),
            ReadAt::Snapshot => (Mode::Stale, ReadMode::AtSnapshot(None)),
        }
    }

    /// Some time ago, or now and after all that this client has seen.
    fn moment(&self, back: Duration) -> Stamp {
        let ago = self.ago(back);
        if back.is_zero() { ago.max(self.after() + 1) } else { ago }
    }

    /// The test with its values, if there is one: near numbers that this client wrote, or any of the few that a column
    /// takes.
    fn test(&self, column: Column, test: TestKind, value: u32) -> Option<Test> {
        let few = self.workload.plan().data.few && !value.is_multiple_of(4);
        let low = match column {
            KEY => i64::from(value),
            TEXT if few => i64::from(value) % rows::FEW_TEXTS,
            SMALL if few => i64::from(value) % rows::FEW_SMALL,
            _ => self.number_before(value % RECENT),
        };
        let width = i64::from(value % 4 * 64 + 1);
        Some(match test {
            TestKind::Any => return None,
            TestKind::Equal => Test::Equal(low),
            TestKind::Between => Test::Between(low, low + width),
            TestKind::Below => Test::Below(low),
            TestKind::AtLeast => Test::AtLeast(low),
            // Keys near one another are likely to be there, and each may be in another tablet.
            TestKind::OneOf if column == KEY => Test::OneOf([low, low + 1, low + 2 + i64::from(value % 4)]),
            TestKind::OneOf => Test::OneOf([low, low + 1, low + width]),
            TestKind::Null => Test::Null,
            TestKind::NotNull => Test::NotNull,
        })
    }

    async fn count(&mut self, table: &Table, scan: Scan, spec: ScanSpec) {
        let none = ScanSpec { columns: Some(Vec::new()), ..spec.clone() };
        let Ok(count) = count(table, none).await else { return };
        let Some(read) = self.read(table, scan, spec).await else { return };
        let found = searches::check_count(&scan, count, &read.rows);
        found.into_iter().for_each(|finding| self.workload.object(finding));
    }

    async fn few(&mut self, table: &Table, scan: Scan, spec: ScanSpec, limit: u64) {
        let limited = ScanSpec { limit: Some(limit), ..spec.clone() };
        let Ok(few) = self.workload.read(table, scan, limited, None).await else { return };
        let Some(all) = self.read(table, scan, spec).await else { return };
        let found = searches::check_few(&scan, &few.rows, &all.rows, limit);
        found.into_iter().for_each(|finding| self.workload.object(finding));
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
