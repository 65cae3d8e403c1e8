//! Columns and ranges of shared tables that one client alone alters, so that it knows their contents. Other clients
//! write rows of the same tables meanwhile.
//!
//! ```text
//! add a column ─► write it, or leave it to its default ─► rename it ─► read it ─► drop it
//! add a range ─► write rows ─► read them ─► drop it with its rows ─► add it again: empty
//! ```
//!
//! An unknown outcome ends the expectations: a cell, a column or a range of unknown state is not used again. All the
//! rest must be as acknowledged, also at the end.

use std::collections::BTreeMap;

use arrow_array::Array;
use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use engine::error::{Error, ErrorKind};
use engine::schema::row_ops::ClientCell;
use engine::schema::{ColumnSchema, DataType};
use nyala_client::tables::AlterStep;
use nyala_client::{FlushMode, ReadMode, ScanSpec, SessionConfig, Table};

use super::client_actor::{ClientActor, answer_of};
use super::own_columns::{OwnColumn, OwnRange, OwnedSchema};
use super::{Workload, row_encoding, tables};
use crate::history::{
    CallOutcome, ClientNo, ClientRequest, HybridStamp, RowOpKind, ScanMode, ScanRequest, TableNo,
};
use crate::oracle::Violation;
use crate::projection::WHOLE;

const NAME: &str = "own columns and ranges";

/// Keys of the rows that belong to one client in each table.
const KEYS_FROM: i64 = 8_000;
const KEYS_EACH: i64 = 8;
/// Columns that a client has in a table at a time.
const COLUMNS_MAX: usize = 3;
/// Numbers of the clients' own ranges, beyond the shared ones.
const RANGES_FROM: u8 = 8;
const RANGES_EACH: u8 = 2;

/// Returns a row that is not as it was left; rows with an unknown value may be there or not.
fn wrong_row(held: &BTreeMap<i64, Option<i64>>, seen: &BTreeMap<i64, Option<i64>>) -> Option<i64> {
    let wrong = |key: &&i64| match held.get(*key) {
        Some(None) => false,
        expected => seen.get(*key) != expected,
    };
    held.keys().chain(seen.keys()).find(wrong).copied()
}

impl ClientActor {
    /// Executes one step with this client's columns of a table.
    pub(super) async fn own_column(&mut self, number: TableNo, step: u8) {
        let mut own = self.workload.take_owned(self.number, number);
        match step % 10 {
            0 | 1 if own.columns.len() < COLUMNS_MAX => self.add_column(number, &mut own).await,
            2 if !own.columns.is_empty() => self.rename_column(number, &mut own).await,
            3 if own.columns.len() == COLUMNS_MAX => self.drop_column(number, &mut own).await,
            4..=6 => self.write_own(number, &mut own, step).await,
            _ => {
                let table = self.table(number).await;
                // A missing reply says nothing here.
                let _read = self.workload.check_columns(&table, self.number, &own, self.after() + 1).await;
            }
        }
        self.workload.restore_owned(self.number, number, own);
    }

    async fn alter_own(&mut self, number: TableNo, step: AlterStep) -> bool {
        let table = self.table(number).await;
        let call = self.invoke(ClientRequest::Other(format!("alter table {number}: {step:?}")));
        let altered = self.client.alter_table(&table, &[step], None).await;
        let outcome = match &altered {
            Ok(_) => CallOutcome::Done,
            Err(error) => CallOutcome::Unknown(error.into()),
        };
        self.answer(call, outcome);
        let done = altered.is_ok();
        self.workload.count(|counts| counts.changes += u64::from(done));
        match altered {
            Ok(table) => self.replace_table(number, table),
            Err(_) => self.forget_table(number),
        }
        done
    }

    async fn add_column(&mut self, number: TableNo, own: &mut OwnedSchema) {
        let name = format!("own_{}_{}", self.number, own.added);
        own.added += 1;
        let default = (!own.added.is_multiple_of(3)).then(|| 1_000 + i64::from(own.added));
        let mut column = ColumnSchema::new(0, &name, DataType::Int64);
        column.nullable = own.added.is_multiple_of(3) || own.added.is_multiple_of(2);
        column.read_default = default.map(|default| default.to_le_bytes().to_vec());
        if self.alter_own(number, AlterStep::AddColumn(column)).await {
            own.columns.push(OwnColumn { name, default, cells: BTreeMap::new() });
        }
    }

    async fn rename_column(&mut self, number: TableNo, own: &mut OwnedSchema) {
        let mut column = own.columns.remove(0);
        let to = format!("{}r", column.name);
        let step = AlterStep::RenameColumn { from: column.name.clone(), to: to.clone() };
        if self.alter_own(number, step).await {
            column.name = to;
            own.columns.push(column);
        }
    }

    async fn drop_column(&mut self, number: TableNo, own: &mut OwnedSchema) {
        let column = own.columns.remove(0);
        self.alter_own(number, AlterStep::DropColumn(column.name)).await;
    }

    /// Upserts one of this client's whole rows, with some of its columns set and others unset.
    async fn write_own(&mut self, number: TableNo, own: &mut OwnedSchema, step: u8) {
        let table = self.table(number).await;
        let value = self.number();
        let key = KEYS_FROM + i64::from(self.number) * KEYS_EACH + value / 64 % KEYS_EACH;
        if own.rows.get(&key) == Some(&false) {
            // A write of unknown outcome may take effect at any time.
            return;
        }
        let op = row_encoding::op(RowOpKind::Upsert, key, value, 4, false);
        let encoded = row_encoding::EncodedCells::new(&op);
        let mut cells = encoded.cells_of(table.schema());
        let bytes = value.to_le_bytes();
        let mut set = Vec::new();
        for (at, column) in
            own.columns.iter().enumerate().filter(|(at, _)| !(at + usize::from(step)).is_multiple_of(3))
        {
            let Some(index) = table.schema().index_of_name(&column.name) else { continue };
            cells[index] = ClientCell::Value(&bytes);
            set.push(at);
        }
        let call = self.invoke(ClientRequest::Write { table: number, rows: vec![op] });
        let session = self.client.session(self.sync_session());
        let applied = session.apply(&table, RowOpKind::Upsert, &cells, 0).await;
        let receipt = session.take_receipts().into_iter().next();
        let known = receipt.as_ref().is_some_and(|receipt| receipt.refused.is_none());
        own.rows.insert(key, known);
        for (at, column) in own.columns.iter_mut().enumerate() {
            if set.contains(&at) {
                column.cells.insert(key, Some(value));
            }
        }
        match receipt {
            Some(receipt) => self.answer(call, CallOutcome::Written(vec![answer_of(&receipt)])),
            None => self.answer(call, CallOutcome::Unknown(applied.err().into())),
        }
        if !known {
            // Other clients may have altered it since it was opened.
            self.forget_table(number);
        }
    }

    fn sync_session(&self) -> SessionConfig {
        let mut config = SessionConfig::new(FlushMode::AutoSync);
        config.timeout = self.workload.plan().cluster.op_timeout;
        config.receipts = true;
        config
    }

    /// Executes one step with a range of this client's.
    pub(super) async fn own_range(&mut self, number: TableNo, step: u8) {
        let mut own = self.workload.take_owned(self.number, number);
        let range = RANGES_FROM + self.number as u8 * RANGES_EACH + step % RANGES_EACH;
        let state = own.ranges.remove(&range).unwrap_or(OwnRange::Absent);
        let next = match (state, step / RANGES_EACH % 5) {
            (OwnRange::Lost, _) => OwnRange::Lost,
            (OwnRange::Absent, _) => {
                match self.alter_own(number, AlterStep::AddRange(tables::extra_range(range))).await {
                    true => OwnRange::Present(BTreeMap::new()),
                    false => OwnRange::Lost,
                }
            }
            (OwnRange::Present(_), 0) => {
                match self.alter_own(number, AlterStep::DropRange(tables::extra_range(range))).await {
                    true => OwnRange::Absent,
                    false => OwnRange::Lost,
                }
            }
            (OwnRange::Present(rows), 1..=3) => self.fill(number, range, rows).await,
            (state, _) => {
                let table = self.table(number).await;
                let at = self.after() + 1;
                let _read = self.workload.check_range(&table, self.number, range, &state, at).await;
                state
            }
        };
        own.ranges.insert(range, next);
        self.workload.restore_owned(self.number, number, own);
    }

    /// Upserts a row into an existing range.
    async fn fill(&mut self, number: TableNo, range: u8, mut held: BTreeMap<i64, Option<i64>>) -> OwnRange {
        let table = self.table(number).await;
        let value = self.number();
        let (low, high) = tables::range_keys(range);
        let op = row_encoding::op(RowOpKind::Upsert, low + value / 64 % (high - low), value, 4, false);
        if held.get(&op.key) == Some(&None) {
            return OwnRange::Present(held);
        }
        let encoded = row_encoding::EncodedCells::new(&op);
        let session = self.client.session(self.sync_session());
        let cells = encoded.cells_of(table.schema());
        let applied = session.apply(&table, op.kind, &cells, 0).await;
        let done = session.take_receipts().first().is_some_and(|receipt| receipt.refused.is_none());
        match applied.err() {
            Some(error) if error.kind == ErrorKind::NotFound => {
                let what = format!("table {number}: a row of range {range}, which was added: {error}");
                self.workload.report_violation(Violation::new(NAME, what));
            }
            _ => drop(held.insert(op.key, done.then_some(value))),
        }
        if !done {
            self.forget_table(number);
        }
        OwnRange::Present(held)
    }
}

impl Workload {
    fn take_owned(&self, client: ClientNo, table: TableNo) -> OwnedSchema {
        self.state().own.remove(&(client, table)).unwrap_or_default()
    }

    fn restore_owned(&self, client: ClientNo, table: TableNo, own: OwnedSchema) {
        self.state().own.insert((client, table), own);
    }

    /// Checks that the owned columns and ranges of all clients in a table are as they left them.
    pub(super) async fn check_owned(
        &self,
        table: &Table,
        number: TableNo,
        at: HybridStamp,
    ) -> Result<(), Error> {
        let owned = self.state().own.clone();
        for ((client, _), own) in owned.iter().filter(|((_, of), _)| *of == number) {
            self.check_columns(table, *client, own, at).await?;
            for (range, state) in &own.ranges {
                self.check_range(table, *client, *range, state, at).await?;
            }
        }
        Ok(())
    }

    /// Compares this client's columns in its rows with what it wrote there.
    async fn check_columns(
        &self,
        table: &Table,
        client: ClientNo,
        own: &OwnedSchema,
        at: HybridStamp,
    ) -> Result<(), Error> {
        let columns: Vec<&OwnColumn> = own
            .columns
            .iter()
            .filter(|column| table.schema().index_of_name(&column.name).is_some())
            .collect();
        let low = KEYS_FROM + i64::from(client) * KEYS_EACH;
        let names = ["k"].into_iter().chain(columns.iter().map(|column| column.name.as_str()));
        let spec = ScanSpec {
            columns: Some(names.map(str::to_string).collect()),
            keys: row_encoding::keys_of(table.schema(), low, low + KEYS_EACH),
            read_mode: ReadMode::AtSnapshot(Some(at)),
            ..self.whole_spec()
        };
        let mut seen: BTreeMap<i64, Vec<Option<i64>>> = BTreeMap::new();
        let mut scanner = table.scan(spec)?;
        while let Some(batch) = scanner.next_batch().await? {
            let columns: Vec<_> =
                (0..batch.num_columns()).map(|at| batch.column(at).as_primitive::<Int64Type>()).collect();
            for row in 0..batch.num_rows() {
                let cell = |column: &&arrow_array::PrimitiveArray<Int64Type>| {
                    (!column.is_null(row)).then(|| column.value(row))
                };
                seen.insert(columns[0].value(row), columns[1..].iter().map(cell).collect());
            }
        }
        for what in own.contradictions(&columns, &seen) {
            self.report_violation(Violation::new(NAME, format!("table {} at {at}: {what}", table.name())));
        }
        Ok(())
    }

    /// Compares a range with what its client wrote there.
    async fn check_range(
        &self,
        table: &Table,
        client: ClientNo,
        range: u8,
        state: &OwnRange,
        at: HybridStamp,
    ) -> Result<(), Error> {
        let none = BTreeMap::new();
        let held = match state {
            OwnRange::Lost => return Ok(()),
            OwnRange::Absent => &none,
            OwnRange::Present(held) => held,
        };
        let keys = tables::range_keys(range);
        let scan = ScanRequest {
            table: 0,
            keys,
            mode: ScanMode::Snapshot,
            diff_from: None,
            ordered: false,
            view: WHOLE,
        };
        let read_mode = ReadMode::AtSnapshot(Some(at));
        let keys = row_encoding::keys_of(table.schema(), keys.0, keys.1);
        let spec = ScanSpec { keys, read_mode, ..self.whole_spec() };
        let read = self.read(table, scan, spec, None).await?;
        let value =
            |row: &Option<Vec<Option<i64>>>| row.as_ref().and_then(|row| row.first().copied().flatten());
        let seen: BTreeMap<i64, Option<i64>> =
            read.rows.iter().map(|seen| (seen.key, value(&seen.row))).collect();
        if let Some(key) = wrong_row(held, &seen) {
            let (table, got, expected) = (table.name(), seen.get(&key), held.get(&key));
            let what = format!(
                "{table}, client {client}, range {range}, row {key} at {at}: {got:?}, not {expected:?}"
            );
            self.report_violation(Violation::new(NAME, what));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_what_was_written_or_the_default() {
        let column =
            OwnColumn { name: "c".to_string(), default: Some(7), cells: BTreeMap::from([(1, Some(5))]) };
        // Row 3 had a write of unknown outcome.
        let own = OwnedSchema {
            rows: BTreeMap::from([(1, true), (2, true), (3, false)]),
            ..OwnedSchema::default()
        };
        let wrong = |seen: &[(i64, Option<i64>)]| {
            let seen = seen.iter().map(|(key, cell)| (*key, vec![*cell])).collect();
            own.contradictions(&[&column], &seen)
        };
        assert!(wrong(&[(1, Some(5)), (2, Some(7))]).is_empty());
        assert!(wrong(&[(1, Some(5)), (2, Some(7)), (3, None)]).is_empty());
        assert_eq!(wrong(&[(1, Some(5)), (2, None)]), ["row 2 has None in c, not Some(7)"]);
        assert_eq!(wrong(&[(2, Some(7))]), ["row 1 is missing"]);
    }

    #[test]
    fn a_range_holds_the_rows_written_there() {
        let held = BTreeMap::from([(1, Some(5)), (2, None)]);
        let wrong = |seen: &[(i64, Option<i64>)]| wrong_row(&held, &seen.iter().copied().collect());
        assert_eq!(wrong(&[(1, Some(5))]), None);
        assert_eq!(wrong(&[(1, Some(5)), (2, Some(9))]), None);
        assert_eq!(wrong(&[(1, Some(6))]), Some(1));
        assert_eq!(wrong(&[]), Some(1));
        assert_eq!(wrong(&[(1, Some(5)), (3, Some(1))]), Some(3));
    }
}
