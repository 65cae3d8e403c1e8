//! Typed rows: structs as rows of a table, by derive or by hand.
//!
//! ```text
//!   struct ─ ToRow ──► RowWriter ──► TableWriter ──► session                       writer.rs
//!   struct ◄ FromRow ─ RowReader ◄── record batch ◄─ ScanBuilder                   scan.rs
//!   value  ─ ToCell, FromCell ─► checked against the type of its column            to_cell.rs, from_cell.rs
//! ```
//!
//! A Rust type belongs to one type of column, or to two with the same bytes; nothing is converted silently:
//!
//! | Rust | column |
//! |---|---|
//! | `i8`, `i16` | INT8, INT16 |
//! | `i32` | INT32, DATE (days since 1970) |
//! | `i64` | INT64, UNIXTIME_MICROS (microseconds since 1970) |
//! | `f32`, `f64`, `bool` | FLOAT, DOUBLE, BOOL |
//! | `i128` | DECIMAL, unscaled |
//! | `String`, `&str` | STRING, VARCHAR |
//! | `Vec<u8>`, `&[u8]` | BINARY |
//! | `Option<T>` | a nullable column of `T` |

mod from_cell;
mod scan;
mod to_cell;
mod writer;

use arrow_array::{ArrayRef, RecordBatch};
use engine::schema::ColumnSchema;
use engine::schema::row_ops::ClientCell;

use super::error::{ClientError, ClientResult, SchemaMismatch};
pub use from_cell::FromCell;
pub use nyala_client_derive::{FromRow, ToRow};
pub use scan::{BatchStream, RowStream, ScanBuilder};
pub use to_cell::ToCell;
pub use writer::{TableWriter, WriteSummary};

/// Struct that can be written as a row. Derive it with `#[derive(ToRow)]`.
pub trait ToRow {
    /// Names of the columns that are set.
    const COLUMNS: &'static [&'static str];

    /// Sets the columns, by their positions in [`ToRow::COLUMNS`].
    fn to_row(&self, row: &mut RowWriter<'_>) -> ClientResult<()>;
}

/// Struct that can be read from a row. Derive it with `#[derive(FromRow)]`.
pub trait FromRow: Sized {
    /// Names of the columns that are read.
    const COLUMNS: &'static [&'static str];

    /// Reads the columns, by their positions in [`FromRow::COLUMNS`].
    fn from_row(row: &RowReader<'_>) -> ClientResult<Self>;
}

/// Destination of one row's values.
pub struct RowWriter<'a> {
    schema: &'a [ColumnSchema],
    /// Position in the table of each column of the struct.
    targets: &'a [usize],
    bytes: &'a mut Vec<u8>,
    /// One per column of the table.
    cells: &'a mut [CellState],
}

/// State of one cell of a row to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CellState {
    Unset,
    Null,
    /// Position in the buffer of the row's bytes.
    Set(usize, usize),
}

impl RowWriter<'_> {
    /// Sets the column at this position of [`ToRow::COLUMNS`]. Fails if the value does not fit the column.
    pub fn set<T: ToCell + ?Sized>(&mut self, index: usize, value: &T) -> ClientResult<()> {
        let target = self.targets[index];
        let column = &self.schema[target];
        let start = self.bytes.len();
        let is_set = value.to_cell(column, self.bytes)?;
        if !is_set && !column.nullable {
            return Err(SchemaMismatch::of_column(&column.name, "NULL in a column that is NOT NULL").into());
        }
        self.cells[target] = if is_set { CellState::Set(start, self.bytes.len()) } else { CellState::Null };
        Ok(())
    }
}

/// Returns the cells of a written row.
fn client_cells<'a>(cells: &[CellState], bytes: &'a [u8]) -> Vec<ClientCell<'a>> {
    let cell = |cell: &CellState| match cell {
        CellState::Unset => ClientCell::Unset,
        CellState::Null => ClientCell::Null,
        CellState::Set(start, end) => ClientCell::Value(&bytes[*start..*end]),
    };
    cells.iter().map(cell).collect()
}

/// One row of a record batch.
pub struct RowReader<'a> {
    names: &'a [&'static str],
    arrays: &'a [ArrayRef],
    row: usize,
}

impl RowReader<'_> {
    /// Reads the column at this position of [`FromRow::COLUMNS`]. Fails if the column has another type, or is NULL
    /// where `T` is no `Option`.
    pub fn get<T: FromCell>(&self, index: usize) -> ClientResult<T> {
        let value = T::from_cell(&*self.arrays[index], self.row);
        value.map_err(|reason| SchemaMismatch::of_column(self.names[index], reason).into())
    }
}

/// Reads all rows of a record batch; columns are found by name.
pub fn rows_of_batch<T: FromRow>(batch: &RecordBatch) -> ClientResult<Vec<T>> {
    let column = |name: &&str| {
        let missing = || SchemaMismatch::of_column(name, "the batch has no such column");
        Ok(batch.column_by_name(name).ok_or_else(missing)?.clone())
    };
    let arrays = T::COLUMNS.iter().map(column).collect::<Result<Vec<_>, ClientError>>()?;
    let rows = 0..batch.num_rows();
    let read = |row| T::from_row(&RowReader { names: T::COLUMNS, arrays: &arrays, row });
    rows.map(|row| read(row).map_err(|error| error.in_table("of a record batch", Some(row as u64)))).collect()
}

/// Returns the position of a column in a table.
fn column_index(table: &super::Table, name: &str) -> ClientResult<usize> {
    let missing =
        || SchemaMismatch::of_column(name, "the table has no such column").in_table(table.name(), None);
    Ok(table.schema().index_of_name(name).ok_or_else(missing)?)
}

#[cfg(test)]
mod tests;
