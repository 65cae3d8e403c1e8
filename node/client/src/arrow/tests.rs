use arrow_array::{Float64Array, NullArray, TimestampNanosecondArray};
use engine::schema::{DataType, TypeAttributes, format_cell};

use super::*;
use nyala_proto::kudu::columnar_row_block_pb::Column;

fn hex(text: &str) -> Bytes {
    let text: String = text.split_whitespace().collect();
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).expect("hex")).collect()
}

/// A response captured from a real Kudu server, shifted by one byte so that nothing is aligned.
#[test]
fn a_captured_response_is_converted() {
    let mut decimal = ColumnSchema::new(5, "d", DataType::Decimal128).nullable();
    decimal.attributes = TypeAttributes { precision: 38, scale: 2, length: 0 };
    let columns = [
        ColumnSchema::new(0, "key", DataType::Int32),
        ColumnSchema::new(1, "i8", DataType::Int8),
        ColumnSchema::new(2, "s", DataType::String).nullable(),
        ColumnSchema::new(3, "b", DataType::Bool).nullable(),
        ColumnSchema::new(4, "ts", DataType::UnixtimeMicros).nullable(),
        decimal,
    ];
    let value = "6affffffffffffffffffffffffffffff";
    let parts = [
        "010000000200000003000000".to_string(),
        "0a141e".to_string(),
        "00000000040000000400000008000000".to_string(),
        "7374723173747233".to_string(),
        "05".to_string(),
        "010001".to_string(),
        "05".to_string(),
        "e8030000000000000000000000000000b80b000000000000".to_string(),
        "05".to_string(),
        format!("{value}{}{value}", "0".repeat(32)),
        "05".to_string(),
    ];
    let sidecars: Vec<Bytes> = parts.iter().map(|part| hex(&format!("00{part}")).slice(1..)).collect();
    let of = |data, varlen, valid| Column {
        data_sidecar: Some(data),
        varlen_data_sidecar: varlen,
        non_null_bitmap_sidecar: valid,
    };
    let block = ColumnarRowBlockPb {
        columns: vec![
            of(0, None, None),
            of(1, None, None),
            of(2, Some(3), Some(4)),
            of(5, None, Some(6)),
            of(7, None, Some(8)),
            of(9, None, Some(10)),
        ],
        num_rows: Some(3),
    };
    let batch = batch_from_pb(&block, &sidecars, &columns, &arrow_schema(&columns)).expect("well formed");
    let text = |row| {
        let show = |column: &ArrayRef| {
            arrow_cast::display::array_value_to_string(column, row).expect("a printable type")
        };
        batch.columns().iter().map(show).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(text(0), "1 10 str1 true 1970-01-01T00:00:00.001Z -1.50");
    assert_eq!(text(1), "2 20    ");
    for (column, array) in columns.iter().zip(batch.columns()) {
        let block = column_to_block(array, column).expect("its own type");
        assert_eq!(block.len(), 3);
        assert_eq!(block.is_null(1), column.nullable);
        if column.ty == DataType::String {
            assert_eq!((block.raw(0), block.raw(2)), (&b"str1"[..], &b"str3"[..]));
        }
    }
    let cut = |i: usize| {
        let mut sidecars = sidecars.clone();
        sidecars[i] = sidecars[i].slice(..sidecars[i].len() - 1);
        batch_from_pb(&block, &sidecars, &columns, &arrow_schema(&columns))
    };
    for (i, part) in parts.iter().enumerate() {
        assert!(cut(i).is_err(), "sidecar {i} cut short: {part}");
    }
    assert!(batch_from_pb(&block, &sidecars[..3], &columns, &arrow_schema(&columns)).is_err());
}

#[test]
fn a_response_that_claims_too_many_rows_is_rejected() {
    for ty in DataType::ALL {
        let columns = [ColumnSchema::new(0, "c", ty)];
        let parts =
            Column { data_sidecar: Some(0), varlen_data_sidecar: Some(0), non_null_bitmap_sidecar: None };
        for rows in [65, i64::MAX / 16 + 1, i64::MAX, -1] {
            let block = ColumnarRowBlockPb { columns: vec![parts], num_rows: Some(rows) };
            let sidecars = [Bytes::from_static(&[0; 64])];
            let read = batch_from_pb(&block, &sidecars, &columns, &arrow_schema(&columns));
            assert!(read.is_err(), "{rows} rows of {ty:?}");
        }
    }
}

#[test]
fn arrays_are_cast_to_the_columns_type() {
    let array: ArrayRef = Arc::new(arrow_array::Int64Array::from(vec![Some(1), None, Some(300)]));
    let nullable = ColumnSchema::new(0, "c", DataType::Int16).nullable();
    let block = column_to_block(&array, &nullable).expect("in range");
    assert_eq!(
        (block.cell(0), block.cell(1), block.cell(2)),
        (Some(&[1u8, 0][..]), None, Some(&[44, 1][..]))
    );
    assert!(column_to_block(&array, &ColumnSchema::new(0, "c", DataType::Int16)).is_err(), "NULL");
    assert!(column_to_block(&array, &ColumnSchema::new(0, "c", DataType::Int8).nullable()).is_err(), "300");
    let sliced = array.slice(2, 1);
    assert_eq!(column_to_block(&sliced, &nullable).expect("in range").cell(0), Some(&[44u8, 1][..]));
    let mut decimal = ColumnSchema::new(0, "d", DataType::Decimal32);
    decimal.attributes = TypeAttributes { precision: 9, scale: 2, length: 0 };
    let whole: ArrayRef = Arc::new(arrow_array::Int64Array::from(vec![7]));
    let block = column_to_block(&whole, &decimal).expect("in range");
    assert_eq!(block.cell(0), Some(&700i32.to_le_bytes()[..]));
}

fn column(ty: DataType) -> ColumnSchema {
    let mut column = ColumnSchema::new(0, "c", ty).nullable();
    if ty == DataType::Decimal64 {
        column.attributes = TypeAttributes { precision: 15, scale: 2, length: 0 };
    }
    column
}

fn written(array: impl Array + 'static, ty: DataType) -> String {
    let array: ArrayRef = Arc::new(array);
    let column = column(ty);
    match written_block(&array, &column) {
        Ok(block) => (0..block.len())
            .map(|row| {
                block.cell(row).map_or("NULL".to_string(), |cell| format_cell(ty, column.attributes, cell))
            })
            .collect::<Vec<_>>()
            .join(" "),
        Err(reason) => reason,
    }
}

#[test]
fn a_value_that_the_cast_would_change_is_not_written() {
    let utc = |nanos: Vec<i64>| TimestampNanosecondArray::from(nanos).with_timezone("UTC");
    let cases = [
        written(Float64Array::from(vec![Some(2.0), None]), DataType::Int64),
        written(Float64Array::from(vec![Some(2.0), None, Some(2.5)]), DataType::Int64),
        written(Float64Array::from(vec![1e300]), DataType::Int64),
        written(Float64Array::from(vec![0.5, f64::NAN]), DataType::Float),
        written(Float64Array::from(vec![0.1, 1e300]), DataType::Float),
        written(Float64Array::from(vec![0.25, 0.1]), DataType::Decimal64),
        written(Float64Array::from(vec![0.125]), DataType::Decimal64),
        written(PrimitiveArray::<Int64Type>::from(vec![(1 << 53) + 1]), DataType::Double),
        written(PrimitiveArray::<Int64Type>::from(vec![1, 2]), DataType::Bool),
        written(PrimitiveArray::<Int64Type>::from(vec![1000]), DataType::UnixtimeMicros),
        written(utc(vec![1000, 2000]), DataType::UnixtimeMicros),
        written(utc(vec![1000, 2001]), DataType::UnixtimeMicros),
        written(TimestampNanosecondArray::from(vec![0]), DataType::Date),
        written(TimestampNanosecondArray::from(vec![1_000_000_000]), DataType::Date),
        written(TimestampNanosecondArray::from(vec![1000]), DataType::UnixtimeMicros),
        written(NullArray::new(2), DataType::Int64),
    ];
    insta::assert_snapshot!(cases.join("\n"), @r"
    2 NULL
    2.5 does not fit INT64
    Cast error: Can't cast value 1e300 to type Int64
    0.5 NaN
    1e300 does not fit FLOAT
    0.25 0.10
    0.125 does not fit DECIMAL(15, 2)
    9007199254740993 does not fit DOUBLE
    2 does not fit BOOL
    1970-01-01T00:00:00.001000Z
    1970-01-01T00:00:00.000001Z 1970-01-01T00:00:00.000002Z
    1970-01-01T00:00:00.000002001Z does not fit UNIXTIME_MICROS
    1970-01-01
    1970-01-01T00:00:01 does not fit DATE
    1970-01-01T00:00:00.000001Z
    NULL NULL
    ");
}

#[test]
fn a_date_outside_the_years_1_to_9999_is_not_written() {
    let days = |days: Vec<Option<i32>>| PrimitiveArray::<Date32Type>::from(days);
    let cases = [
        written(days(vec![Some(-719_162), None, Some(2_932_896)]), DataType::Date),
        written(days(vec![Some(0), Some(2_932_897)]), DataType::Date),
        written(days(vec![Some(-719_163)]), DataType::Date),
        written(days(vec![Some(i32::MIN)]), DataType::Date),
        written(PrimitiveArray::<Int32Type>::from(vec![i32::MAX]), DataType::Int32),
    ];
    insta::assert_snapshot!(cases.join("\n"), @r"
    0001-01-01 NULL 9999-12-31
    10000-01-01 does not fit DATE (0001-01-01 to 9999-12-31)
    0000-12-31 does not fit DATE (0001-01-01 to 9999-12-31)
    -5877641-06-23 does not fit DATE (0001-01-01 to 9999-12-31)
    2147483647
    ");
    // A constant that no cell has is left to the evaluation of a filter.
    let beyond: ArrayRef = Arc::new(days(vec![Some(2_932_897)]));
    assert!(column_to_block(&beyond, &column(DataType::Date)).is_err());
    // A table may have it from another client, so a restore writes it.
    let block = column_block(&beyond, &column(DataType::Date)).expect("a DATE of a table");
    assert_eq!(block.cell(0), Some(&2_932_897_i32.to_le_bytes()[..]));
}

#[test]
fn a_double_that_would_be_infinite_is_out_of_range() {
    let block = |double: f64| {
        let array: ArrayRef = Arc::new(Float64Array::from(vec![0.1, double]));
        column_to_block(&array, &column(DataType::Float)).map_err(|error| error.message)
    };
    assert_eq!(block(1e300).expect_err("too large"), "column \"c\": 1e300 does not fit FLOAT");
    let infinite = block(f64::INFINITY).expect("infinity is a FLOAT");
    assert_eq!(infinite.cell(1), Some(&f32::INFINITY.to_le_bytes()[..]));
}

#[test]
fn text_and_dictionaries_are_written_as_their_values() {
    let days = StringArray::from(vec![Some("2020-02-29"), None]);
    let words: arrow_array::DictionaryArray<Int8Type> =
        vec![Some("a"), None, Some("a")].into_iter().collect();
    let numbers: arrow_array::DictionaryArray<Int8Type> = vec!["1.5", "2"].into_iter().collect();
    let cases = [
        written(days, DataType::Date),
        written(words, DataType::String),
        written(numbers, DataType::Decimal64),
        written(StringArray::from(vec!["1.255"]), DataType::Decimal64),
        written(StringArray::from(vec!["2026-01-01 00:00:00"]), DataType::UnixtimeMicros),
        written(BinaryArray::from(vec![&b"\xff"[..]]), DataType::Binary),
    ];
    insta::assert_snapshot!(cases.join("\n"), @r#"
    2020-02-29 NULL
    "a" NULL "a"
    1.50 2.00
    "1.255" is not a DECIMAL(15, 2)
    2026-01-01T00:00:00.000000Z
    "\xff"
    "#);
}

#[test]
fn rows_of_the_engine_become_the_same_arrays() {
    let mut decimal = ColumnSchema::new(1, "d", DataType::Decimal64).nullable();
    decimal.attributes = TypeAttributes { precision: 15, scale: 2, length: 0 };
    let columns = [
        ColumnSchema::new(0, "k", DataType::Int64),
        decimal,
        ColumnSchema::new(2, "b", DataType::Bool),
        ColumnSchema::new(3, "s", DataType::String).nullable(),
        ColumnSchema::new(4, "day", DataType::Date),
    ];
    let decimals = PrimitiveArray::<Decimal128Type>::from(vec![Some(150), None, Some(-7)]);
    let arrays: Vec<ArrayRef> = vec![
        Arc::new(PrimitiveArray::<Int64Type>::from(vec![1, 2, 3])),
        Arc::new(decimals.with_precision_and_scale(15, 2).expect("a decimal")),
        Arc::new(BooleanArray::from(vec![true, false, true])),
        Arc::new(StringArray::from(vec![Some("one"), None, Some("")])),
        Arc::new(PrimitiveArray::<Date32Type>::from(vec![0, -1, 20_000])),
    ];
    let blocks = columns.iter().zip(&arrays);
    let blocks = blocks.map(|(column, array)| column_to_block(array, column).expect("its own type"));
    let block = RowBlock { rows: 3, columns: blocks.collect() };
    let batch = batch_from_block(block, &columns, &arrow_schema(&columns)).expect("a batch");
    assert_eq!((batch.num_rows(), batch.columns()), (3, &arrays[..]));

    let none = batch_from_block(RowBlock { rows: 4, columns: Vec::new() }, &[], &arrow_schema(&[]));
    assert_eq!(none.expect("a count").num_rows(), 4);
}
