//! The value columns of the table, and the cells of its rows.

use std::collections::BTreeMap;
use std::iter;

use engine::error::Result;
use engine::schema::row_ops::ClientCell;
use engine::schema::{ColumnSchema, Compression, DataType, Encoding};
use nyala_client::{RowOpKind, Session, Table};
use sim_plan::RandomStream;

/// Percentage of operations on present rows that delete them.
const DELETE_PERCENT: u64 = 30;

/// A column of numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ValueColumn {
    /// A number that no other column of the table ever has.
    pub number: u32,
    pub name: String,
    pub nullable: bool,
    /// Cell of rows that were written before the column was added.
    pub first: Option<i64>,
    /// Cell of rows that are written without it.
    pub default: Option<i64>,
}

/// Cells of a row by the numbers of columns, without those of columns that are newer than the row.
pub(super) type Row = BTreeMap<u32, Option<i64>>;
pub(super) type Rows = BTreeMap<i64, Row>;
/// Rows as a scan returns them, with the cells in the order of the columns.
pub(super) type ReadRows = BTreeMap<i64, Vec<Option<i64>>>;

impl ValueColumn {
    /// Returns the column that the table is created with, and never loses.
    pub(super) fn initial() -> ValueColumn {
        let name = "v".to_string();
        ValueColumn { number: 1, name, nullable: true, first: None, default: None }
    }

    /// Returns the column for a request to create or to add it; its layout and comment are drawn.
    pub(super) fn schema(&self, random: &mut RandomStream) -> ColumnSchema {
        let comment = if random.percent(50) { format!("comment {}", self.number) } else { String::new() };
        ColumnSchema {
            nullable: self.nullable,
            read_default: self.first.map(|cell| cell.to_le_bytes().to_vec()),
            encoding: random.pick(&[Encoding::Auto, Encoding::Plain, Encoding::BitShuffle, Encoding::Rle]),
            compression: random.pick(&[Compression::Default, Compression::None, Compression::Lz4]),
            comment,
            ..ColumnSchema::new(self.number, &self.name, DataType::Int64)
        }
    }

    /// Draws a cell of a written row; `None` if the row is written without it.
    fn draw(&self, random: &mut RandomStream) -> Option<Option<i64>> {
        let is_needed = !self.nullable && self.default.is_none();
        if !is_needed && self.number != 1 && random.percent(50) {
            return None;
        }
        let is_null = self.nullable && random.percent(20);
        Some((!is_null).then(|| random.below(1 << 20) as i64))
    }
}

/// Draws an operation on a row that the table has or not: a deletion, or cells.
pub(super) fn draw_op(
    random: &mut RandomStream,
    columns: &[ValueColumn],
    is_present: bool,
) -> (RowOpKind, Row) {
    match is_present && random.percent(DELETE_PERCENT) {
        true => (RowOpKind::Delete, Row::new()),
        false => (RowOpKind::Upsert, draw_row(random, columns)),
    }
}

fn draw_row(random: &mut RandomStream, columns: &[ValueColumn]) -> Row {
    columns.iter().filter_map(|column| Some((column.number, column.draw(random)?))).collect()
}

/// Writes cells of a row into the model: in place of those that it has, or of the defaults.
pub(super) fn upsert(rows: &mut Rows, columns: &[ValueColumn], key: i64, cells: &Row) {
    let new = || columns.iter().map(|column| (column.number, column.default)).collect();
    rows.entry(key).or_insert_with(new).extend(cells.clone());
}

/// Returns rows as a scan of these columns returns them.
pub(super) fn read_rows(rows: &Rows, columns: &[ValueColumn]) -> ReadRows {
    let cells = |row: &Row| {
        columns.iter().map(|column| row.get(&column.number).copied().unwrap_or(column.first)).collect()
    };
    rows.iter().map(|(key, row)| (*key, cells(row))).collect()
}

/// Applies an operation on a row of a table with these columns to a session.
pub(super) async fn apply(
    session: &Session,
    (table, columns): (&Table, &[ValueColumn]),
    kind: RowOpKind,
    (key, cells): (i64, &Row),
) -> Result<()> {
    let key = key.to_le_bytes();
    let bytes: Vec<Option<Option<[u8; 8]>>> = columns
        .iter()
        .map(|column| cells.get(&column.number).map(|cell| cell.map(i64::to_le_bytes)))
        .collect();
    let row: Vec<ClientCell<'_>> =
        iter::once(ClientCell::Value(&key)).chain(bytes.iter().map(client_cell)).collect();
    session.apply(table, kind, &row, 0).await
}

/// Returns a cell for the client; `None` is a column that is not written, `Some(None)` a NULL.
fn client_cell(cell: &Option<Option<[u8; 8]>>) -> ClientCell<'_> {
    match cell {
        None => ClientCell::Unset,
        Some(None) => ClientCell::Null,
        Some(Some(bytes)) => ClientCell::Value(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_the_defaults_of_their_time() {
        let (initial, mut added) = (ValueColumn::initial(), ValueColumn::initial());
        (added.number, added.first, added.default) = (2, Some(5), Some(5));
        let mut rows = Rows::new();
        upsert(&mut rows, std::slice::from_ref(&initial), 10, &Row::from([(1, Some(7))]));
        let mut columns = [initial, added];
        upsert(&mut rows, &columns, 11, &Row::from([(1, None)]));
        columns[1].default = None;
        upsert(&mut rows, &columns, 12, &Row::new());
        upsert(&mut rows, &columns, 11, &Row::from([(1, Some(8))]));
        let wanted = [(10, vec![Some(7), Some(5)]), (11, vec![Some(8), Some(5)]), (12, vec![None, None])];
        assert_eq!(read_rows(&rows, &columns), ReadRows::from(wanted));
    }

    #[test]
    fn a_row_has_a_cell_where_it_needs_one() {
        let random = &mut RandomStream::new(1, "test");
        let mut column = ValueColumn { number: 2, nullable: false, ..ValueColumn::initial() };
        assert!((0..50).all(|_| matches!(column.draw(random), Some(Some(_)))));
        column.default = Some(1);
        assert!((0..50).any(|_| column.draw(random).is_none()));
    }
}
