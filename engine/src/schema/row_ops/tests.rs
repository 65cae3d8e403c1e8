use proptest::prelude::*;

use super::super::TypeAttributes;
use super::*;
use crate::error::ErrorKind;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// (key INT32 key, v INT32, s STRING nullable)
fn s1() -> Schema {
    let columns = vec![
        ColumnSchema::new(0, "key", DataType::Int32),
        ColumnSchema::new(1, "v", DataType::Int32),
        ColumnSchema::new(2, "s", DataType::String).nullable(),
    ];
    Schema::new(columns, 1).expect("a legal schema")
}

fn int(value: &[u8; 4]) -> ClientCell<'_> {
    ClientCell::Value(value)
}

fn written(schema: &Schema, kind: RowOpKind, cells: &[ClientCell<'_>]) -> (String, String) {
    let mut writer = RowOpsWriter::new(schema);
    writer.push(kind, cells);
    let (rows, indirect) = writer.finish();
    (hex(&rows), hex(&indirect))
}

/// Bytes encoded by the Java client.
#[test]
fn bytes_are_those_of_other_clients() {
    use ClientCell::{Null, Unset, Value};
    use RowOpKind::*;
    let [one, two, seven, eight, minus, big] = [1i32, 2, 7, 8, -1, 258].map(i32::to_le_bytes);
    let cases: [(RowOpKind, [ClientCell<'_>; 3], &str, &str); 9] = [
        (Insert, [int(&one), int(&two), Value(b"abc")], "0107000100000002000000", "616263"),
        (Insert, [int(&minus), int(&two), Null], "010704ffffffff02000000", ""),
        (Insert, [int(&seven), int(&eight), Unset], "0103000700000008000000", ""),
        (Upsert, [int(&one), Unset, Value(b"xy")], "05050001000000", "7879"),
        (Update, [int(&one), int(&big), Unset], "0203000100000002010000", ""),
        (Update, [int(&one), Unset, Null], "02050401000000", ""),
        (Delete, [int(&one), Unset, Unset], "03010001000000", ""),
        (InsertIgnore, [int(&one), int(&two), Unset], "0a03000100000002000000", ""),
        (DeleteIgnore, [int(&one), Unset, Unset], "0c010001000000", ""),
    ];
    for (kind, cells, rows, indirect) in cases {
        let slot = match indirect.len() / 2 {
            0 => String::new(),
            len => format!("0000000000000000{len:02x}00000000000000"),
        };
        assert_eq!(written(&s1(), kind, &cells), (format!("{rows}{slot}"), indirect.to_string()), "{kind:?}");
    }
    let columns =
        vec![ColumnSchema::new(0, "key", DataType::Int64), ColumnSchema::new(1, "v", DataType::String)];
    let s2 = Schema::new(columns, 1).expect("a legal schema");
    let five = 5i64.to_le_bytes();
    let want = "0103050000000000000000000000000000000200000000000000".to_string();
    assert_eq!(written(&s2, Insert, &[Value(&five), Value(b"hi")]), (want, "6869".to_string()));
}

fn every_type() -> Schema {
    let types = [
        DataType::Int8,
        DataType::Int16,
        DataType::Int32,
        DataType::Int64,
        DataType::Bool,
        DataType::Float,
        DataType::Double,
        DataType::String,
        DataType::Binary,
        DataType::UnixtimeMicros,
        DataType::Decimal32,
        DataType::Decimal64,
        DataType::Decimal128,
        DataType::Varchar,
        DataType::Date,
    ];
    let column = |(i, ty): (usize, &DataType)| ColumnSchema::new(i as u32, &format!("c{i}"), *ty);
    Schema::new(types.iter().enumerate().map(column).collect(), 1).expect("a legal schema")
}

#[test]
fn every_type_is_written_as_other_clients_write_it() {
    let d128 = 12345678901234567890123456789012345678i128.to_le_bytes();
    let cells: [&[u8]; 15] = [
        &(-128i8).to_le_bytes(),
        &(-2i16).to_le_bytes(),
        &0x01020304i32.to_le_bytes(),
        &0x0102030405060708i64.to_le_bytes(),
        &[1],
        &1.5f32.to_le_bytes(),
        &(-2.25f64).to_le_bytes(),
        "é".as_bytes(),
        &[0, 1, 255],
        &1_000_000i64.to_le_bytes(),
        &123_456_789i32.to_le_bytes(),
        &(-10_001i64).to_le_bytes(),
        &d128,
        b"abc",
        &18262i32.to_le_bytes(),
    ];
    let values = cells.map(ClientCell::Value);
    let (rows, indirect) = written(&every_type(), RowOpKind::Insert, &values);
    let want = "01ff7f80feff0403020108070605040302010\
                10000c03f00000000000002c000000000000000000200000000000000020000000000000003000000000000\
                0040420f000000000015cd5b07efd8ffffffffffff4ef338de509049c4133302f0f6b0490905000000000000\
                00030000000000000056470000";
    assert_eq!((rows.as_str(), indirect.as_str()), (want, "c3a90001ff616263"));
}

#[test]
fn rows_with_any_set_columns_are_counted() {
    let (schema, cell) = (s1(), [1, 2, 3, 4]);
    let (full, null) =
        ([int(&cell), int(&cell), ClientCell::Value(b"abc")], [int(&cell), int(&cell), ClientCell::Null]);
    let key = [int(&cell), ClientCell::Unset, ClientCell::Unset];
    let (mut writer, kinds) = (RowOpsWriter::new(&schema), [RowOpKind::Insert, RowOpKind::Upsert]);
    for (kind, cells) in
        [&full, &full, &null, &null, &full, &full].iter().zip(0..).map(|(c, i)| (kinds[i % 2], c))
    {
        writer.push(kind, &cells[..]);
    }
    writer.push(RowOpKind::Delete, &key);
    writer.push(RowOpKind::Delete, &key);
    let (wire, (rows, indirect)) = (bound(&schema), writer.finish());
    let count = |rows| {
        RowOpsReader::new(&wire, &schema, rows, &indirect, RowOpLimits::default())
            .and_then(RowOpsReader::count_rows)
    };
    assert_eq!(count(&rows), Ok(8));
    assert!(count(&rows[..rows.len() - 1]).is_err(), "the last row is cut");
    assert_eq!(count(&[]), Ok(0));
}

fn bound(schema: &Schema) -> Vec<ClientColumn> {
    bind_columns(schema.columns(), schema).expect("its own columns")
}

fn read(schema: &Schema, rows: &[u8], indirect: &[u8]) -> Vec<String> {
    let wire = bound(schema);
    let limits = RowOpLimits { cell_bytes_max: 8, key_bytes_max: 12 };
    let mut reader = RowOpsReader::new(&wire, schema, rows, indirect, limits).expect("bound");
    let mut lines = Vec::new();
    loop {
        match reader.next() {
            Ok(Some(RowOp { error: Some(error), .. })) => lines.push(error.message),
            Ok(Some(op)) => {
                let show = |cell: &ClientCell<'_>| match cell {
                    ClientCell::Unset => "-".to_string(),
                    ClientCell::Null => "NULL".to_string(),
                    ClientCell::Value(value) => hex(value),
                };
                let cells: Vec<String> = op.cells.iter().map(show).collect();
                let inserts: Vec<String> = op.insert_cells.iter().map(show).collect();
                lines.push(format!("{:?} {} | {}", op.kind, cells.join(" "), inserts.join(" ")));
            }
            Ok(None) => return lines,
            Err(error) => {
                lines.push(format!("{:?}: {error}", error.kind));
                return lines;
            }
        }
    }
}

#[test]
fn operations_are_checked_row_by_row() {
    let mut columns = s1().columns().to_vec();
    columns[1].write_default = Some(vec![9, 0, 0, 0]);
    columns.push(ColumnSchema::new(3, "b", DataType::Bool));
    let schema = Schema::new(columns, 1).expect("a legal schema");
    let one = 1i32.to_le_bytes();
    let key = ClientCell::Value(&one);
    let (unset, yes) = (ClientCell::Unset, ClientCell::Value(&[7]));
    let mut writer = RowOpsWriter::new(&schema);
    writer.push(RowOpKind::Insert, &[key, unset, unset, yes]);
    writer.push(RowOpKind::Upsert, &[key, unset, unset, yes]);
    writer.push(RowOpKind::Insert, &[key, key, ClientCell::Value(b"123456789"), yes]);
    writer.push(RowOpKind::Insert, &[key, ClientCell::Null, unset, yes]);
    writer.push(RowOpKind::Insert, &[key, key, unset, unset]);
    writer.push(RowOpKind::Upsert, &[unset, key, unset, yes]);
    writer.push(RowOpKind::Update, &[key, unset, unset, unset]);
    writer.push(RowOpKind::Update, &[unset, key, unset, unset]);
    writer.push(RowOpKind::UpdateIgnore, &[key, unset, ClientCell::Null, unset]);
    writer.push(RowOpKind::Delete, &[key, key, unset, unset]);
    writer.push(RowOpKind::Delete, &[key, unset, unset, unset]);
    let (mut rows, indirect) = writer.finish();
    rows.push(4);
    insta::assert_snapshot!(read(&schema, &rows, &indirect).join("\n"), @r"
    Insert 01000000 09000000 NULL 01 | 01000000 09000000 NULL 01
    Upsert 01000000 - - 01 | 01000000 09000000 NULL 01
    value too large for column 's' (9 bytes, maximum is 8 bytes)
    NULL values not allowed for column: v INT32 NOT NULL
    No value provided for required column: b BOOL NOT NULL
    No value provided for required column: key INT32 NOT NULL
    No fields updated, key is: (int32 key=<redacted>)
    No value provided for key column: key INT32 NOT NULL
    UpdateIgnore 01000000 - NULL - | 
    DELETE should not have a value for column: v INT32 NOT NULL
    Delete 01000000 - - - | 
    Unsupported: row operation type 4 is not a write
    ");
}

#[test]
fn an_unset_key_is_its_default() {
    let mut columns = s1().columns().to_vec();
    columns[0].write_default = Some(vec![3, 0, 0, 0]);
    let schema = Schema::new(columns, 1).expect("a legal schema");
    let one = 1i32.to_le_bytes();
    let mut writer = RowOpsWriter::new(&schema);
    for kind in [RowOpKind::Insert, RowOpKind::Upsert, RowOpKind::Update] {
        writer.push(kind, &[ClientCell::Unset, ClientCell::Value(&one), ClientCell::Unset]);
    }
    let (rows, indirect) = writer.finish();
    insta::assert_snapshot!(read(&schema, &rows, &indirect).join("\n"), @r"
    Insert 03000000 01000000 NULL | 03000000 01000000 NULL
    Upsert 03000000 01000000 - | 03000000 01000000 NULL
    No value provided for key column: key INT32 NOT NULL
    ");
}

/// The update sets none of the columns that may change, so it has nothing to do.
#[test]
fn an_update_that_skips_all_its_columns_updates_none() {
    let mut columns = s1().columns().to_vec();
    columns[1].immutable = true;
    let schema = Schema::new(columns, 1).expect("a legal schema");
    let one = 1i32.to_le_bytes();
    let key = ClientCell::Value(&one);
    let mut writer = RowOpsWriter::new(&schema);
    writer.push(RowOpKind::UpdateIgnore, &[key, key, ClientCell::Unset]);
    writer.push(RowOpKind::UpdateIgnore, &[key, key, ClientCell::Null]);
    writer.push(RowOpKind::Update, &[key, key, ClientCell::Unset]);
    let (rows, indirect) = writer.finish();
    insta::assert_snapshot!(read(&schema, &rows, &indirect).join("\n"), @r"
    No fields updated, key is: (int32 key=<redacted>)
    UpdateIgnore 01000000 01000000 NULL | 
    Update 01000000 01000000 - | 
    ");
}

#[test]
fn keys_may_be_too_long_only_when_inserted() {
    let columns =
        vec![ColumnSchema::new(0, "a", DataType::String), ColumnSchema::new(1, "b", DataType::String)];
    let schema = Schema::new(columns, 2).expect("a legal schema");
    let mut writer = RowOpsWriter::new(&schema);
    writer.push(RowOpKind::Insert, &[ClientCell::Value(b"\0\0\0"), ClientCell::Value(b"1234")]);
    writer.push(RowOpKind::Insert, &[ClientCell::Value(b"\0\0\0"), ClientCell::Value(b"12345")]);
    writer.push(RowOpKind::Delete, &[ClientCell::Value(b"\0\0\0"), ClientCell::Value(b"12345")]);
    let (rows, indirect) = writer.finish();
    insta::assert_snapshot!(read(&schema, &rows, &indirect).join("\n"), @r"
    Insert 000000 31323334 | 000000 31323334
    encoded primary key too large (13 bytes, maximum is 12 bytes)
    Delete 000000 3132333435 | 
    ");
}

#[test]
fn clients_may_not_set_auto_incrementing_columns() {
    let mut auto = ColumnSchema::new(1, "auto_incrementing_id", DataType::Int64);
    auto.auto_incrementing = true;
    let value = ColumnSchema::new(2, "v", DataType::String).nullable();
    let schema =
        Schema::new(vec![ColumnSchema::new(0, "k", DataType::Int32), auto, value], 2).expect("legal");
    let (k, id) = (7i32.to_le_bytes(), 1i64.to_le_bytes());
    let mut writer = RowOpsWriter::new(&schema);
    writer.push(RowOpKind::Insert, &[int(&k), ClientCell::Unset, ClientCell::Value(b"x0")]);
    let (rows, indirect) = writer.clone().finish();
    assert_eq!(hex(&rows), "0105000700000000000000000000000200000000000000");
    assert_eq!(hex(&indirect), "7830");
    writer.push(RowOpKind::Insert, &[int(&k), ClientCell::Value(&id), ClientCell::Unset]);
    writer.push(RowOpKind::Upsert, &[int(&k), ClientCell::Unset, ClientCell::Unset]);
    writer.push(RowOpKind::Upsert, &[int(&k), ClientCell::Value(&id), ClientCell::Unset]);
    let (rows, indirect) = writer.finish();
    insta::assert_snapshot!(read(&schema, &rows, &indirect).join("\n"), @r"
    Insert 07000000 - 7830 | 07000000 - 7830
    auto-incrementing column is set: auto_incrementing_id INT64 NOT NULL AUTO_INCREMENTING
    No value provided for required column: auto_incrementing_id INT64 NOT NULL AUTO_INCREMENTING
    Upsert 07000000 0100000000000000 - | 07000000 0100000000000000 NULL
    ");
}

#[test]
fn columns_bind_by_name() {
    let tablet = s1();
    let bind = |columns: &[ColumnSchema]| bind_columns(columns, &tablet).map_err(|error| error.message);
    let [key, v, s] = tablet.columns() else { panic!("three columns") };
    let bound = bind(&[v.clone(), key.clone()]).expect("s may be left out");
    assert_eq!(bound.iter().map(|c| c.id.0).collect::<Vec<_>>(), [1, 0]);
    let mut long = v.clone();
    long.ty = DataType::Int64;
    let mut not_null = s.clone();
    not_null.nullable = false;
    let mut unknown = v.clone();
    unknown.name = "w".to_string();
    let mut decimal = v.clone();
    decimal.ty = DataType::Decimal32;
    decimal.attributes = TypeAttributes { precision: 9, scale: 2, length: 0 };
    let errors = [
        bind(&[key.clone(), long]),
        bind(&[key.clone(), v.clone(), not_null]),
        bind(&[key.clone(), v.clone(), unknown]),
        bind(&[key.clone(), key.clone(), v.clone()]),
        bind(std::slice::from_ref(key)),
        bind(&[key.clone(), decimal]),
    ];
    let errors: Vec<String> = errors.into_iter().map(|bound| bound.expect_err("rejected")).collect();
    insta::assert_snapshot!(errors.join("\n"), @r"
    The column 'v' must have type INT32 NOT NULL found INT64 NOT NULL
    The column 's' must have type STRING NULLABLE found STRING NOT NULL
    Client provided column w INT32 NOT NULL not present in tablet
    duplicate column name: key
    Client missing required column: v INT32 NOT NULL
    The column 'v' must have type INT32 NOT NULL found DECIMAL(9, 2) NOT NULL
    ");
}

#[test]
fn a_column_dropped_after_binding_is_a_mismatch() {
    let wire = bound(&s1());
    let left = Schema::new(s1().columns()[..2].to_vec(), 1).expect("a legal schema");
    let error = RowOpsReader::new(&wire, &left, &[], &[], RowOpLimits::default()).err().expect("rejected");
    assert_eq!(
        (error.kind, &error.message[..]),
        (ErrorKind::Invalid, "the table has no column with id 2 any more")
    );
}

fn op() -> impl Strategy<Value = (i32, Option<i32>, Option<Option<Vec<u8>>>)> {
    (any::<i32>(), any::<Option<i32>>(), any::<Option<Option<Vec<u8>>>>())
}

proptest! {
    #[test]
    fn written_operations_round_trip(ops in prop::collection::vec(op(), 0..20)) {
        let schema = s1();
        let mut writer = RowOpsWriter::new(&schema);
        let bytes: Vec<_> = ops.iter().map(|(k, v, _)| (k.to_le_bytes(), v.map(i32::to_le_bytes))).collect();
        let cells = |i: usize| {
            let (k, v) = &bytes[i];
            let s = ops[i].2.as_ref().map_or(ClientCell::Unset, |s| ClientCell::from(s.as_deref()));
            [ClientCell::Value(k), v.as_ref().map_or(ClientCell::Unset, |v| ClientCell::Value(v)), s]
        };
        (0..ops.len()).for_each(|i| writer.push(RowOpKind::Upsert, &cells(i)));
        let (rows, indirect) = writer.finish();
        let wire = bound(&schema);
        let limits = RowOpLimits::default();
        let mut reader = RowOpsReader::new(&wire, &schema, &rows, &indirect, limits).expect("bound");
        for (i, (_, v, _)) in ops.iter().enumerate() {
            let op = reader.next().expect("well formed").expect("as many as were written");
            prop_assert_eq!(op.cells, &cells(i)[..]);
            prop_assert_eq!(op.error.is_some(), v.is_none());
        }
        prop_assert!(reader.next().expect("well formed").is_none());
    }

    #[test]
    fn arbitrary_bytes_are_read_or_rejected(rows in prop::collection::vec(0u8..16, 0..80), indirect: Vec<u8>) {
        read(&s1(), &rows, &indirect);
        read(&every_type(), &rows, &indirect);
    }
}
