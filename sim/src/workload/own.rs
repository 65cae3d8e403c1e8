//! What one client alone alters: columns and ranges of shared tables that no other client touches, so that it knows
//! what is in them. Others write rows of the same tables all the while.
//!
//! ```text
//! add a column ─► write it, or leave it to its default ─► rename it ─► read it ─► drop it
//! add a range ─► write rows ─► read them ─► drop it, rows and all ─► add it again: empty
//! ```
//!
//! What an answer leaves open is not expected any more: a cell, a column or a range of unknown fate is left alone. All
//! the rest must be as it was said, in the end too.

use std::collections::BTreeMap;

use arrow_array::Array;
use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use engine::error::{Error, ErrorKind};
use engine::schema::ops::Cell;
use engine::schema::{ColumnSchema, DataType};
use node::client::ddl::AlterStep;
use node::client::{FlushMode, ReadMode, ScanSpec, SessionConfig, Table};

use super::actor::{Actor, answer_of};
use super::scans::spec;
use super::{Workload, rows, tables};
use crate::history::{ClientNo, Mode, Outcome, Request, RowOpKind, Scan, Stamp, TableNo};
use crate::oracle::Finding;
use crate::view::WHOLE;

const NAME: &str = "own columns and ranges";

/// Keys of the rows that a client has for itself in each table.
const KEYS_FROM: i64 = 8_000;
const KEYS_EACH: i64 = 8;
/// Columns that a client has in a table at a time.
const COLUMNS_MAX: usize = 3;
/// Numbers of the ranges of all clients, beyond those that they share.
const RANGES_FROM: u8 = 8;
const RANGES_EACH: u8 = 2;

/// What one client has in one table.
#[derive(Debug, Clone, Default)]
pub(super) struct Own {
    columns: Vec<OwnColumn>,
    /// Columns added so far: no name is used twice.
    added: u32,
    /// By key, of those that were tried: whether every write was answered. Others may show anything.
    rows: BTreeMap<i64, bool>,
    ranges: BTreeMap<u8, OwnRange>,
}

#[derive(Debug, Clone)]
struct OwnColumn {
    name: String,
    default: Option<i64>,
    /// By key: what was written.
    cells: BTreeMap<i64, Option<i64>>,
}

/// A range that is there, or not; a range of unknown fate is `Lost`.
#[derive(Debug, Clone, PartialEq, Eq)]
enum OwnRange {
    Absent,
    /// With these rows: `None` for a value that is not known.
    Present(BTreeMap<i64, Option<i64>>),
    Lost,
}

impl OwnColumn {
    /// What a row must show.
    fn expected(&self, key: i64) -> Option<i64> {
        self.cells.get(&key).copied().unwrap_or(self.default)
    }
}

impl Own {
    /// What rows show in these columns, by key, and should not.
    fn contradictions(&self, columns: &[&OwnColumn], seen: &BTreeMap<i64, Vec<Option<i64>>>) -> Vec<String> {
        let mut wrong = Vec::new();
        for key in self.rows.iter().filter(|(_, known)| **known).map(|(key, _)| key) {
            let Some(cells) = seen.get(key) else {
                wrong.push(format!("row {key} is gone"));
                continue;
            };
            for (column, cell) in
                columns.iter().zip(cells).filter(|(column, cell)| column.expected(*key) != **cell)
            {
                let (name, expected) = (&column.name, column.expected(*key));
                wrong.push(format!("row {key} has {cell:?} in {name}, not {expected:?}"));
            }
        }
        wrong
    }
}

/// A row that is not as it was left; rows whose value is not known may be there or not.
fn wrong_row(held: &BTreeMap<i64, Option<i64>>, seen: &BTreeMap<i64, Option<i64>>) -> Option<i64> {
    let wrong = |key: &&i64| match held.get(*key) {
        Some(None) => false,
        expected => seen.get(*key) != expected,
    };
    held.keys().chain(seen.keys()).find(wrong).copied()
}

impl Actor {
    /// One step with this client's columns of a table.
    pub async fn own_column(&mut self, number: TableNo, step: u8) {
        let mut own = self.workload.take_own(self.number, number);
        match step % 10 {
            0 | 1 if own.columns.len() < COLUMNS_MAX => self.add_column(number, &mut own).await,
            2 if !own.columns.is_empty() => self.rename_column(number, &mut own).await,
            3 if own.columns.len() == COLUMNS_MAX => self.drop_column(number, &mut own).await,
            4..=6 => self.write_own(number, &mut own, step).await,
            _ => {
                let table = self.table(number).await;
                // An answer that does not come says nothing here.
                let _read = self.workload.check_columns(&table, self.number, &own, self.after() + 1).await;
            }
        }
        self.workload.put_own(self.number, number, own);
    }

    async fn alter_own(&mut self, number: TableNo, step: AlterStep) -> bool {
        let table = self.table(number).await;
        let call = self.invoke(Request::Other(format!("alter table {number}: {step:?}")));
        let altered = self.client.alter_table(&table, &[step], None).await;
        let outcome = match &altered {
            Ok(_) => Outcome::Done,
            Err(error) => Outcome::Unknown(error.message.clone()),
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

    async fn add_column(&mut self, number: TableNo, own: &mut Own) {
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

    async fn rename_column(&mut self, number: TableNo, own: &mut Own) {
        let mut column = own.columns.remove(0);
        let to = format!("{}r", column.name);
        let step = AlterStep::RenameColumn { from: column.name.clone(), to: to.clone() };
        if self.alter_own(number, step).await {
            column.name = to;
            own.columns.push(column);
        }
    }

    async fn drop_column(&mut self, number: TableNo, own: &mut Own) {
        let column = own.columns.remove(0);
        self.alter_own(number, AlterStep::DropColumn(column.name)).await;
    }

    /// Upserts one of this client's rows, whole, with some of its columns set and others left as they are.
    async fn write_own(&mut self, number: TableNo, own: &mut Own, step: u8) {
        let table = self.table(number).await;
        let value = self.number();
        let key = KEYS_FROM + i64::from(self.number) * KEYS_EACH + value / 64 % KEYS_EACH;
        if own.rows.get(&key) == Some(&false) {
            // A write of unknown outcome may come at any time.
            return;
        }
        let op = rows::op(RowOpKind::Upsert, key, value, 4, false);
        let encoded = rows::Encoded::new(&op);
        let mut cells = encoded.cells_of(table.schema());
        let bytes = value.to_le_bytes();
        let mut set = Vec::new();
        for (at, column) in
            own.columns.iter().enumerate().filter(|(at, _)| !(at + usize::from(step)).is_multiple_of(3))
        {
            let Some(index) = table.schema().index_of_name(&column.name) else { continue };
            cells[index] = Cell::Value(&bytes);
            set.push(at);
        }
        let call = self.invoke(Request::Write { table: number, rows: vec![op] });
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
            Some(receipt) => self.answer(call, Outcome::Written(vec![answer_of(&receipt)])),
            None => self.answer(
                call,
                Outcome::Unknown(applied.err().map_or_else(String::new, |error| error.message)),
            ),
        }
        if !known {
            // Others may have altered it since it was opened.
            self.forget_table(number);
        }
    }

    fn sync_session(&self) -> SessionConfig {
        let mut config = SessionConfig::new(FlushMode::AutoSync);
        config.timeout = self.workload.plan().cluster.op_timeout;
        config.receipts = true;
        config
    }

    /// One step with a range of this client's.
    pub async fn own_range(&mut self, number: TableNo, step: u8) {
        let mut own = self.workload.take_own(self.number, number);
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
        self.workload.put_own(self.number, number, own);
    }

    /// Upserts a row into a range that is there.
    async fn fill(&mut self, number: TableNo, range: u8, mut held: BTreeMap<i64, Option<i64>>) -> OwnRange {
        let table = self.table(number).await;
        let value = self.number();
        let (low, high) = tables::range_keys(range);
        let op = rows::op(RowOpKind::Upsert, low + value / 64 % (high - low), value, 4, false);
        if held.get(&op.key) == Some(&None) {
            return OwnRange::Present(held);
        }
        let encoded = rows::Encoded::new(&op);
        let session = self.client.session(self.sync_session());
        let cells = encoded.cells_of(table.schema());
        let applied = session.apply(&table, op.kind, &cells, 0).await;
        let done = session.take_receipts().first().is_some_and(|receipt| receipt.refused.is_none());
        match applied.err() {
            Some(error) if error.kind == ErrorKind::NotFound => {
                let what = format!("table {number}: a row of range {range}, which was added: {error}");
                self.workload.object(Finding::new(NAME, what));
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
    fn take_own(&self, client: ClientNo, table: TableNo) -> Own {
        self.state().own.remove(&(client, table)).unwrap_or_default()
    }

    fn put_own(&self, client: ClientNo, table: TableNo, own: Own) {
        self.state().own.insert((client, table), own);
    }

    /// Whether everything of their own that clients have in a table is as they left it.
    pub(super) async fn check_owned(&self, table: &Table, number: TableNo, at: Stamp) -> Result<(), Error> {
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
        own: &Own,
        at: Stamp,
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
            keys: rows::keys_of(table.schema(), low, low + KEYS_EACH),
            read_mode: ReadMode::AtSnapshot(Some(at)),
            ..spec()
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
            self.object(Finding::new(NAME, format!("table {} at {at}: {what}", table.name())));
        }
        Ok(())
    }

    /// Compares a range with what its client put there.
    async fn check_range(
        &self,
        table: &Table,
        client: ClientNo,
        range: u8,
        state: &OwnRange,
        at: Stamp,
    ) -> Result<(), Error> {
        let none = BTreeMap::new();
        let held = match state {
            OwnRange::Lost => return Ok(()),
            OwnRange::Absent => &none,
            OwnRange::Present(held) => held,
        };
        let keys = tables::range_keys(range);
        let scan =
            Scan { table: 0, keys, mode: Mode::Snapshot, diff_from: None, ordered: false, view: WHOLE };
        let read_mode = ReadMode::AtSnapshot(Some(at));
        let spec = ScanSpec { keys: rows::keys_of(table.schema(), keys.0, keys.1), read_mode, ..spec() };
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
            self.object(Finding::new(NAME, what));
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
        let own = Own { rows: BTreeMap::from([(1, true), (2, true), (3, false)]), ..Own::default() };
        let wrong = |seen: &[(i64, Option<i64>)]| {
            let seen = seen.iter().map(|(key, cell)| (*key, vec![*cell])).collect();
            own.contradictions(&[&column], &seen)
        };
        assert!(wrong(&[(1, Some(5)), (2, Some(7))]).is_empty());
        assert!(wrong(&[(1, Some(5)), (2, Some(7)), (3, None)]).is_empty());
        assert_eq!(wrong(&[(1, Some(5)), (2, None)]), ["row 2 has None in c, not Some(7)"]);
        assert_eq!(wrong(&[(2, Some(7))]), ["row 1 is gone"]);
    }

    #[test]
    fn a_range_holds_what_was_put_there() {
        let held = BTreeMap::from([(1, Some(5)), (2, None)]);
        let wrong = |seen: &[(i64, Option<i64>)]| wrong_row(&held, &seen.iter().copied().collect());
        assert_eq!(wrong(&[(1, Some(5))]), None);
        assert_eq!(wrong(&[(1, Some(5)), (2, Some(9))]), None);
        assert_eq!(wrong(&[(1, Some(6))]), Some(1));
        assert_eq!(wrong(&[]), Some(1));
        assert_eq!(wrong(&[(1, Some(5)), (3, Some(1))]), Some(3));
    }
}
