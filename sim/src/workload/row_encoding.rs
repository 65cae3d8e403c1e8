//! The encoding of the workload's rows: one number in three columns.
//!
//! ```text
//! k INT64 key | v INT64 null | s STRING null: the number, then padding that follows from it | d INT32 null
//! ```
//!
//! Text that does not follow from its number was corrupted, and decoding it fails.

use arrow_array::cast::AsArray;
use arrow_array::types::{Int32Type, Int64Type};
use arrow_array::{Array, RecordBatch};
use engine::ids::ColumnId;
use engine::schema::partition_range::PartitionRange;
use engine::schema::predicate::{Predicate, PredicateKind};
use engine::schema::row_ops::{ClientCell, RowOpKind};
use engine::schema::{ColumnSchema, Compression, DataType, Encoding, Schema, key};

use crate::history::{Row, RowOp, ScannedRow};
use crate::projection::{BEGINNING, CellPredicate, Projection, RowFilter, text};
use sim_plan::RandomStream;
use sim_plan::client_ops::WriteKind;

/// Names of the initial columns of every table.
pub const COLUMNS: [&str; 4] = ["k", "v", "s", "d"];

/// Encodings that numbers and text have in common, and those of each alone.
const OF_NUMBERS: [Encoding; 4] = [Encoding::Auto, Encoding::Plain, Encoding::BitShuffle, Encoding::Rle];
/// Small numbers repeat: their column often has run-length encoding.
const OF_SMALL: [Encoding; 4] = [Encoding::Auto, Encoding::Rle, Encoding::BitShuffle, Encoding::Rle];
const OF_TEXT: [Encoding; 4] = [Encoding::Auto, Encoding::Plain, Encoding::Prefix, Encoding::Dict];
const COMPRESSIONS: [Compression; 5] =
    [Compression::Default, Compression::None, Compression::Snappy, Compression::Lz4, Compression::Zlib];

/// A second key column of some tables, which follows from the first: rows are still identified by their number.
pub const PAIR: &str = "h";

/// Returns the cell of the second key column, where there is one.
pub fn pair_of(key: i64) -> [u8; 4] {
    (key.rem_euclid(7) as i32 - 3).to_le_bytes()
}

pub fn has_pair(schema: &Schema) -> bool {
    schema.key_columns().iter().any(|column| column.name == PAIR)
}

/// Returns the columns of a table with the encodings of [`sim_plan::DataSpec`]. `pair`: true if its key may have a
/// second column.
pub fn laid_out(encodings: u32, table: &str, pair: bool) -> Schema {
    let mut columns = schema().columns().to_vec();
    if encodings == 0 {
        return schema();
    }
    let pair = pair && encodings % 3 == 1;
    if pair {
        columns.insert(1, ColumnSchema::new(1, PAIR, DataType::Int32));
        columns.iter_mut().zip(0..).for_each(|(column, id)| column.id = ColumnId(id));
    }
    let mut draw = RandomStream::new(u64::from(encodings), table);
    for column in &mut columns {
        column.encoding = draw.pick(match column.name.as_str() {
            "s" => &OF_TEXT,
            "d" => &OF_SMALL,
            _ => &OF_NUMBERS,
        });
        column.compression = draw.pick(&COMPRESSIONS);
    }
    Schema::new(columns, 1 + usize::from(pair)).expect("a legal schema")
}

pub fn schema() -> Schema {
    let columns = vec![
        ColumnSchema::new(0, "k", DataType::Int64),
        ColumnSchema::new(1, "v", DataType::Int64).nullable(),
        ColumnSchema::new(2, "s", DataType::String).nullable(),
        ColumnSchema::new(3, "d", DataType::Int32).nullable(),
    ];
    Schema::new(columns, 1).expect("a legal schema")
}

pub fn kind(kind: WriteKind) -> RowOpKind {
    match kind {
        WriteKind::Insert => RowOpKind::Insert,
        WriteKind::InsertIgnore => RowOpKind::InsertIgnore,
        WriteKind::Upsert => RowOpKind::Upsert,
        WriteKind::UpsertIgnore => RowOpKind::UpsertIgnore,
        WriteKind::Update => RowOpKind::Update,
        WriteKind::UpdateIgnore => RowOpKind::UpdateIgnore,
        WriteKind::Delete => RowOpKind::Delete,
        WriteKind::DeleteIgnore => RowOpKind::DeleteIgnore,
    }
}

/// Number of different values of columns with few values, and number of adjacent keys with the same value.
pub const FEW_TEXTS: i64 = 7;
pub const FEW_SMALL: i64 = 5;
const RUN_KEYS: i64 = 16;

/// Returns an operation that writes `number`; `choice` selects the columns to set and to set to NULL. Where cells take
/// few values, only `v`, and sometimes the text, identifies the number; half of the others follow from the key, so that
/// neighbours are equal.
pub fn op(kind: RowOpKind, key: i64, number: i64, choice: u32, few: bool) -> RowOp {
    let set = |number| Some(Some(number));
    let of_few = if choice % 7 < 4 { key / RUN_KEYS } else { number };
    let v = set(number);
    let s = set(if few && choice / 6 % 2 == 1 { of_few % FEW_TEXTS } else { number });
    let d = set(if few { of_few % FEW_SMALL } else { number });
    // NULLs among equal neighbours.
    let null_in_runs = few && choice % 8 == 7;
    let cells = match (kind.base(), choice % 6) {
        (RowOpKind::Delete, _) => vec![None; 3],
        _ if null_in_runs => vec![v, s, Some(None)],
        (_, 0) => vec![v, None, None],
        (_, 1) => vec![v, s, None],
        (_, 2) => vec![None, s, d],
        (_, 3) => vec![v, Some(None), d],
        _ => vec![v, s, d],
    };
    RowOp { kind, key, cells }
}

/// A row operation's cells as bytes.
pub struct EncodedCells {
    cells: Vec<Option<Option<Vec<u8>>>>,
    pair: [u8; 4],
}

impl EncodedCells {
    pub fn new(op: &RowOp) -> EncodedCells {
        let cell = |(column, cell): (usize, &Option<Option<i64>>)| {
            cell.map(|cell| cell.map(|number| bytes(column + 1, number)))
        };
        let mut cells = vec![Some(Some(op.key.to_le_bytes().to_vec()))];
        cells.extend(op.cells.iter().enumerate().map(cell));
        EncodedCells { cells, pair: pair_of(op.key) }
    }

    /// Returns the cells by column of a table; columns added later are unset.
    pub fn cells_of(&self, schema: &Schema) -> Vec<ClientCell<'_>> {
        let pair = has_pair(schema);
        let mut cells = self.cells(schema.columns().len() - usize::from(pair));
        if pair {
            cells.insert(1, ClientCell::Value(&self.pair));
        }
        cells
    }

    /// Returns the cells by column of a table that has `columns` of them; columns added later are unset.
    pub fn cells(&self, columns: usize) -> Vec<ClientCell<'_>> {
        let mut cells: Vec<ClientCell<'_>> = self.cells.iter().map(cell).collect();
        cells.resize(columns.max(cells.len()), ClientCell::Unset);
        cells
    }
}

/// Encodes a number for a column.
fn bytes(column: usize, number: i64) -> Vec<u8> {
    match column {
        0 | 1 => number.to_le_bytes().to_vec(),
        2 => text(number).into_bytes(),
        _ => (number as i32).to_le_bytes().to_vec(),
    }
}

/// Returns the names of a projection's columns, the key first.
pub fn names(view: &Projection) -> Vec<String> {
    let shown = COLUMNS[1..].iter().enumerate().filter(|(at, _)| view.shows_column(*at));
    COLUMNS[..1].iter().chain(shown.map(|(_, name)| name)).map(ToString::to_string).collect()
}

/// Returns a scan's predicate; `None` if the table has lost the column.
pub fn predicate(filter: &RowFilter, schema: &Schema) -> Option<Predicate> {
    let column = usize::from(filter.column);
    let of = &schema.columns()[schema.index_of_name(COLUMNS[column])?];
    let cell = |number| bytes(column, number);
    let range = |lower: Option<i64>, upper: Option<i64>| PredicateKind::Range {
        lower: lower.map(cell),
        upper: upper.map(cell),
    };
    let kind = match filter.test {
        CellPredicate::Equal(value) => PredicateKind::Equal(cell(value)),
        CellPredicate::Between(from, to) => range(Some(from), Some(to)),
        CellPredicate::Below(to) => range(None, Some(to)),
        CellPredicate::AtLeast(from) => range(Some(from), None),
        CellPredicate::OneOf(values) => PredicateKind::in_list(of.ty, values.map(cell).to_vec()),
        CellPredicate::Null => PredicateKind::IsNull,
        CellPredicate::NotNull => PredicateKind::IsNotNull,
    };
    Some(Predicate::new(of.id, kind))
}

fn cell(cell: &Option<Option<Vec<u8>>>) -> ClientCell<'_> {
    match cell {
        None => ClientCell::Unset,
        Some(None) => ClientCell::Null,
        Some(Some(bytes)) => ClientCell::Value(bytes),
    }
}

/// Decodes a batch's rows with a projection's columns, and IS_DELETED after them if it is a diff scan's.
pub fn decode(batch: &RecordBatch, view: &Projection, diff: bool) -> Result<Vec<ScannedRow>, String> {
    let shown: Vec<usize> = (1..COLUMNS.len()).filter(|column| view.shows_column(column - 1)).collect();
    let wanted = 1 + shown.len() + usize::from(diff);
    if batch.num_columns() != wanted {
        return Err(format!("{} columns were read instead of {wanted}", batch.num_columns()));
    }
    let keys = batch.column(0).as_primitive::<Int64Type>();
    let mut rows = Vec::with_capacity(batch.num_rows());
    for i in 0..batch.num_rows() {
        let deleted = diff && batch.column(wanted - 1).as_boolean().value(i);
        let cells = shown.iter().enumerate();
        let row: Row =
            cells.map(|(at, column)| number(batch, at + 1, *column, i)).collect::<Result<_, _>>()?;
        rows.push(ScannedRow { key: keys.value(i), row: (!deleted).then_some(row) });
    }
    Ok(rows)
}

/// Decodes the number in a cell of the batch's column at `at`, which is the workload's `column`.
fn number(batch: &RecordBatch, at: usize, column: usize, row: usize) -> Result<Option<i64>, String> {
    let array = batch.column(at);
    if array.is_null(row) {
        return Ok(None);
    }
    Ok(Some(match column {
        1 => array.as_primitive::<Int64Type>().value(row),
        2 => number_of(array.as_string::<i32>().value(row))?,
        _ => i64::from(array.as_primitive::<Int32Type>().value(row)),
    }))
}

fn number_of(read: &str) -> Result<i64, String> {
    let number = read
        .strip_prefix(BEGINNING)
        .unwrap_or(read)
        .split_once(':')
        .and_then(|(digits, _)| digits.parse().ok());
    match number {
        Some(number) if text(number) == read => Ok(number),
        _ => Err(format!("a row holds the text {read:?}, which was never written")),
    }
}

/// Returns the range of encoded primary keys from `low` up to but not `high`.
pub fn key_range(low: i64, high: i64) -> PartitionRange {
    PartitionRange::new(encode(low), encode(high)).unwrap_or_default()
}

/// Returns the range of a table's encoded primary keys from `low` up to but not `high`.
pub fn keys_of(schema: &Schema, low: i64, high: i64) -> PartitionRange {
    // The least value of the second key column is encoded as zeros.
    let rest: &[u8] = if has_pair(schema) { &[0; 4] } else { &[] };
    let bound = |number| [&encode(number), rest].concat();
    PartitionRange::new(bound(low), bound(high)).unwrap_or_default()
}

fn encode(number: i64) -> Vec<u8> {
    let mut bytes = Vec::new();
    key::encode_cell(DataType::Int64.physical(), &number.to_le_bytes(), true, &mut bytes);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_tells_its_number_or_is_refused() {
        for number in [0, 1, 60, 61, 123_456, -5] {
            assert_eq!(number_of(&text(number)), Ok(number));
        }
        for damaged in ["", "5", "5:xxxx", "5:xxxxy", "x:"] {
            assert!(number_of(damaged).is_err(), "{damaged:?}");
        }
    }

    #[test]
    fn a_key_of_two_columns_has_both() {
        let op = op(RowOpKind::Upsert, 9, 7, 5, false);
        let (one, two) = (laid_out(3, "t", true), laid_out(4, "t", true));
        assert_eq!((one.num_key_columns(), two.num_key_columns()), (1, 2));
        let encoded = EncodedCells::new(&op);
        assert_eq!(encoded.cells_of(&one).len(), 4);
        assert_eq!(encoded.cells_of(&two)[1], ClientCell::Value(&pair_of(9)));
        assert_eq!(laid_out(4, "t", false).num_key_columns(), 1);
    }

    #[test]
    fn every_choice_sets_something() {
        for choice in 0..6 {
            let op = op(RowOpKind::Update, 1, 7, choice, false);
            assert!(op.cells.iter().any(|cell| cell.is_some()));
            assert_eq!(EncodedCells::new(&op).cells(6).len(), 6);
        }
    }
}
