use std::sync::Arc;

use arrow_array::{Date32Array, Int64Array, StringArray};
use engine::schema::{DataType, TypeAttributes};

use super::*;

#[derive(Debug, Clone, PartialEq, ToRow, FromRow)]
struct Person {
    id: i64,
    #[nyala(rename = "full_name")]
    name: Option<String>,
    #[nyala(skip)]
    visits: u32,
    born: i32,
}

/// A row with borrowed text can be written, not read.
#[derive(ToRow)]
struct Renamed<'a> {
    id: i64,
    full_name: &'a str,
}

fn columns() -> Vec<ColumnSchema> {
    vec![
        ColumnSchema::new(0, "id", DataType::Int64),
        ColumnSchema::new(1, "full_name", DataType::String).nullable(),
        ColumnSchema::new(2, "born", DataType::Date),
    ]
}

/// Returns the cells that a row gives to these columns.
fn written<T: ToRow>(row: &T, schema: &[ColumnSchema]) -> ClientResult<Vec<Option<Vec<u8>>>> {
    let index = |name: &&str| schema.iter().position(|column| column.name == **name).expect("a known column");
    let targets: Vec<usize> = T::COLUMNS.iter().map(index).collect();
    let (mut bytes, mut cells) = (Vec::new(), vec![CellState::Unset; schema.len()]);
    row.to_row(&mut RowWriter { schema, targets: &targets, bytes: &mut bytes, cells: &mut cells })?;
    Ok(client_cells(&cells, &bytes).iter().map(|cell| cell.value().map(<[u8]>::to_vec)).collect())
}

#[test]
fn derived_rows_set_their_columns() {
    assert_eq!(<Person as ToRow>::COLUMNS, ["id", "full_name", "born"]);
    let person = Person { id: 7, name: Some("Ann".to_string()), visits: 3, born: -1 };
    let cells = written(&person, &columns()).expect("it fits");
    assert_eq!(
        cells,
        [Some(7i64.to_le_bytes().to_vec()), Some(b"Ann".to_vec()), Some((-1i32).to_le_bytes().to_vec())]
    );
    let renamed = written(&Renamed { id: 1, full_name: "Bo" }, &columns()).expect("it fits");
    assert_eq!(renamed, [Some(1i64.to_le_bytes().to_vec()), Some(b"Bo".to_vec()), None]);
}

#[test]
fn values_that_do_not_fit_name_their_column() {
    let person = Person { id: 7, name: None, visits: 0, born: 0 };
    let mut schema = columns();
    schema[1].nullable = false;
    let fault = |schema: &[ColumnSchema]| written(&person, schema).expect_err("it does not fit").to_string();
    assert_eq!(fault(&schema), r#"table , column "full_name": NULL in a column that is NOT NULL"#);
    schema[0].ty = DataType::Int32;
    assert_eq!(
        fault(&schema),
        r#"table , column "id": i64 does not fit INT32; it fits INT64, UNIXTIME_MICROS"#
    );
}

#[test]
fn decimals_and_varchars_are_checked_for_length() {
    let mut amount = ColumnSchema::new(0, "amount", DataType::Decimal32);
    amount.attributes = TypeAttributes { precision: 4, scale: 2, ..TypeAttributes::default() };
    let mut out = Vec::new();
    assert_eq!(1234i128.to_cell(&amount, &mut out), Ok(true));
    assert_eq!(out, 1234i32.to_le_bytes());
    let error = 12345i128.to_cell(&amount, &mut out).expect_err("five digits");
    assert_eq!(error.reason, "12345 has too many digits for DECIMAL(4, 2)");
    let mut code = ColumnSchema::new(1, "code", DataType::Varchar);
    code.attributes = TypeAttributes { length: 2, ..TypeAttributes::default() };
    assert_eq!("äö".to_cell(&code, &mut out), Ok(true), "characters count, not bytes");
    assert_eq!(
        "abc".to_cell(&code, &mut out).expect_err("too long").reason,
        "a string of 3 characters does not fit VARCHAR(2)"
    );
}

fn batch(names: Vec<Option<&str>>) -> RecordBatch {
    let rows = names.len() as i64;
    let columns: [(&str, ArrayRef, bool); 3] = [
        ("born", Arc::new(Date32Array::from_iter_values(0..rows as i32)), false),
        ("id", Arc::new(Int64Array::from_iter_values(0..rows)), false),
        ("full_name", Arc::new(StringArray::from(names)), true),
    ];
    RecordBatch::try_from_iter_with_nullable(columns).expect("columns of one length")
}

#[test]
fn batches_are_read_by_name() {
    let people = rows_of_batch::<Person>(&batch(vec![Some("Ann"), None])).expect("the types agree");
    let person =
        |id, name: Option<&str>| Person { id, name: name.map(str::to_string), visits: 0, born: id as i32 };
    assert_eq!(people, [person(0, Some("Ann")), person(1, None)]);
}

#[derive(Debug, FromRow)]
struct Strict {
    #[expect(dead_code, reason = "only its reading is tested")]
    full_name: String,
}

#[derive(Debug, FromRow)]
struct Wrong {
    #[expect(dead_code, reason = "only its reading is tested")]
    id: f64,
}

#[derive(Debug, FromRow)]
struct Missing {
    #[expect(dead_code, reason = "only its reading is tested")]
    age: i32,
}

#[test]
fn cells_that_cannot_be_read_name_their_column() {
    let batch = batch(vec![Some("Ann"), None]);
    let faults = [
        rows_of_batch::<Strict>(&batch).expect_err("a NULL").to_string(),
        rows_of_batch::<Wrong>(&batch).expect_err("integers").to_string(),
        rows_of_batch::<Missing>(&batch).expect_err("no age").to_string(),
    ];
    expect_test::expect![[r#"
        table of a record batch, row 1, column "full_name": NULL cannot be read as String; use Option<String>
        table of a record batch, row 0, column "id": Int64 cannot be read as f64
        table , column "age": the batch has no such column
    "#]]
    .assert_eq(&(faults.join("\n") + "\n"));
}
