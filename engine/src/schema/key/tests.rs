use proptest::prelude::*;

use super::*;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn one(physical: PhysicalType, cell: &[u8]) -> String {
    let mut key = Vec::new();
    encode_cell(physical, cell, true, &mut key);
    hex(&key)
}

fn columns(types: &[DataType]) -> Vec<ColumnSchema> {
    types.iter().zip(0..).map(|(ty, i)| ColumnSchema::new(i, &format!("c{i}"), *ty)).collect()
}

fn key(types: &[DataType], cells: &[&[u8]]) -> Vec<u8> {
    let mut key = Vec::new();
    encode_key(&columns(types), |i| cells[i], &mut key);
    assert_eq!(decode_key(&columns(types), &key).expect("a whole key"), cells);
    key
}

/// Keys encoded by the Java client.
#[test]
fn keys_are_encoded_as_by_other_clients() {
    let int32 = |n: i32| one(PhysicalType::Int32, &n.to_le_bytes());
    assert_eq!([5i8, -1, -128].map(|n| one(PhysicalType::Int8, &n.to_le_bytes())), ["85", "7f", "00"]);
    assert_eq!([1i16, -1].map(|n| one(PhysicalType::Int16, &n.to_le_bytes())), ["8001", "7fff"]);
    assert_eq!([1, -1, i32::MIN, i32::MAX].map(int32), ["80000001", "7fffffff", "00000000", "ffffffff"]);
    assert_eq!(one(PhysicalType::Int64, &(-1i64).to_le_bytes()), "7fffffffffffffff");
    assert_eq!(one(PhysicalType::Int64, &1_000_000i64.to_le_bytes()), "80000000000f4240");
    assert_eq!(one(PhysicalType::Int128, &(-123i128).to_le_bytes()), "7fffffffffffffffffffffffffffff85");
    assert_eq!(one(PhysicalType::Binary, &[0, 0, 1]), "000001");
    let strings = [DataType::String; 2];
    assert_eq!(hex(&key(&strings, &[b"foo", b"bar"])), "666f6f0000626172");
    assert_eq!(hex(&key(&strings, &[b"a\0b", b"c\0d"])), "6100016200006300 64".replace(' ', ""));
    assert_eq!(hex(&key(&strings, &[b"", b""])), "0000");
    let mixed = [DataType::Int32, DataType::String, DataType::Int64];
    let cells: [&[u8]; 3] = [&(-5i32).to_le_bytes(), b"x\0", &9i64.to_le_bytes()];
    assert_eq!(hex(&key(&mixed, &cells)), "7ffffffb7800010000".to_string() + "8000000000000009");
}

#[test]
fn malformed_keys_are_rejected() {
    let columns = columns(&[DataType::String, DataType::Int8]);
    for bytes in [&b"a"[..], b"a\0", b"a\0\x02", b"a\0\0", b"a\0\0\x01\x02", b""] {
        assert!(decode_key(&columns, bytes).is_err(), "{bytes:?}");
    }
}

#[test]
fn the_greatest_values_cannot_be_incremented() {
    let plain = TypeAttributes::default();
    let decimal = TypeAttributes { precision: 4, scale: 2, length: 0 };
    let grow = |ty, attributes, cell: &[u8]| {
        let mut cell = cell.to_vec();
        increment_cell(ty, attributes, &mut cell).then(|| hex(&cell))
    };
    assert_eq!(grow(DataType::Int8, plain, &[0xff]), Some("00".to_string()));
    assert_eq!(grow(DataType::Int8, plain, &[0x7f]), None);
    assert_eq!(grow(DataType::Decimal32, decimal, &9999i32.to_le_bytes()), None);
    assert_eq!(grow(DataType::Decimal32, decimal, &9998i32.to_le_bytes()), Some("0f270000".to_string()));
    assert_eq!(grow(DataType::Date, plain, &DATE_MAX.to_le_bytes()), None);
    assert_eq!(grow(DataType::String, plain, b"a"), Some("6100".to_string()));
    assert_eq!(grow(DataType::Float, plain, &1.5f32.to_le_bytes()), Some("0100c03f".to_string()));
    assert_eq!(prefix_successor(&[1, 0xff]), Some(vec![2]));
    assert_eq!(prefix_successor(&[0xff, 0xff]), None);
}

/// Generates types of a fixed width, with the attributes that bound them.
fn fixed() -> impl Strategy<Value = (DataType, TypeAttributes)> {
    let fixed: Vec<DataType> = DataType::ALL.into_iter().filter(|ty| ty.width().is_some()).collect();
    (prop::sample::select(fixed), 1u8..=38, any::<bool>()).prop_map(|(ty, precision, bounded)| {
        let precision = match ty {
            DataType::Decimal32 => precision.min(9),
            DataType::Decimal64 => precision.min(18),
            DataType::Decimal128 => precision,
            _ => 0,
        };
        (ty, TypeAttributes { precision: if bounded { precision } else { 0 }, ..TypeAttributes::default() })
    })
}

/// Returns the value of a cell, as numbers compare.
fn number(ty: DataType, cell: &[u8]) -> Number {
    match ty.physical() {
        PhysicalType::Float => Number::Float(f32::from_le_bytes(array(cell)).into()),
        PhysicalType::Double => Number::Float(f64::from_le_bytes(array(cell))),
        physical => Number::Integer(cell_to_i128(physical, cell).expect("an integer of its width")),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
enum Number {
    Integer(i128),
    Float(f64),
}

#[test]
fn every_type_has_its_range() {
    let range = |ty, precision| integer_range(ty, TypeAttributes { precision, ..TypeAttributes::default() });
    let signed = |bits: u32| Some((-(1i128 << (bits - 1)), (1i128 << (bits - 1)) - 1));
    assert_eq!(range(DataType::Bool, 0), Some((0, 1)));
    assert_eq!(range(DataType::Int8, 0), signed(8));
    assert_eq!(range(DataType::Int16, 0), signed(16));
    assert_eq!(range(DataType::Int32, 0), signed(32));
    assert_eq!(range(DataType::Int64, 0), signed(64));
    assert_eq!(range(DataType::Uint8, 0), Some((0, 255)));
    assert_eq!(range(DataType::Uint64, 0), Some((0, u64::MAX.into())));
    assert_eq!(range(DataType::Decimal128, 0), Some((i128::MIN, i128::MAX)));
    assert_eq!(range(DataType::Decimal64, 2), Some((-99, 99)));
    assert_eq!(range(DataType::Date, 0), Some((-719_162, 2_932_896)));
    assert_eq!(range(DataType::String, 0), None);
    assert_eq!(range(DataType::Double, 0), None);
    assert_eq!(cell_to_i128(PhysicalType::Int32, &[1, 2]), None, "of another width");
    assert_eq!(cell_to_i128(PhysicalType::Binary, b"1"), None);
    assert_eq!(decimal_max(38), 10i128.pow(38) - 1);
    assert_eq!(min_cell(DataType::String), Vec::<u8>::new());
}

#[test]
fn floats_increment_up_to_infinity() {
    let plain = TypeAttributes::default();
    let grow = |cell: f64| {
        let mut bytes = cell.to_le_bytes().to_vec();
        let grew = increment_cell(DataType::Double, plain, &mut bytes);
        (grew, f64::from_le_bytes(array(&bytes)))
    };
    assert_eq!(grow(1.0), (true, 1.0 + f64::EPSILON));
    assert_eq!(grow(-0.0), (true, f64::from_bits(1)));
    assert_eq!(grow(f64::MAX), (true, f64::INFINITY));
    assert_eq!(grow(f64::INFINITY), (false, f64::INFINITY));
    assert!(!grow(f64::NAN).0);
    let single = |cell: f32| increment_cell(DataType::Float, plain, &mut cell.to_le_bytes().to_vec());
    assert_eq!([f32::MAX, f32::INFINITY, f32::NAN].map(single), [true, false, false]);
}

type Row = (i8, Vec<u8>, i64, u16, i128, Vec<u8>);

fn row() -> impl Strategy<Value = Row> {
    let bytes = || prop::collection::vec(prop::sample::select(vec![0u8, 1, 2, 255]), 0..4);
    let small = || prop_oneof![-2i64..3, any::<i64>()];
    (any::<i8>(), bytes(), small(), any::<u16>(), small().prop_map(i128::from), bytes())
}

proptest! {
    #[test]
    fn keys_order_as_rows_do(a in row(), b in row(), from in 0usize..6) {
        let types = [
            DataType::Int8,
            DataType::Binary,
            DataType::Int64,
            DataType::Uint16,
            DataType::Decimal128,
            DataType::String,
        ];
        let encode = |row: &Row| {
            let cells: [&[u8]; 6] = [
                &row.0.to_le_bytes(),
                &row.1,
                &row.2.to_le_bytes(),
                &row.3.to_le_bytes(),
                &row.4.to_le_bytes(),
                &row.5,
            ];
            (key(&types[from..], &cells[from..]), key(&types[..=from], &cells[..=from]))
        };
        let tails = |row: &Row| {
            let row = row.clone();
            let at = |i: usize| i >= from;
            (
                at(0).then_some(row.0),
                at(1).then_some(row.1),
                at(2).then_some(row.2),
                at(3).then_some(row.3),
                at(4).then_some(row.4),
                at(5).then_some(row.5),
            )
        };
        prop_assert_eq!(encode(&a).0.cmp(&encode(&b).0), tails(&a).cmp(&tails(&b)));
        if from == 5 {
            prop_assert_eq!(encode(&a).1.cmp(&encode(&b).1), a.cmp(&b));
        }
    }

    /// No value is between a cell and the next one, and a cell that cannot be incremented is the greatest.
    #[test]
    fn increments_are_the_least_step((ty, attributes) in fixed(), bytes in any::<[u8; 16]>()) {
        let cell = bytes[..ty.width().expect("a fixed width")].to_vec();
        let value = number(ty, &cell);
        let within = match (value, integer_range(ty, attributes)) {
            (Number::Integer(value), Some((least, greatest))) => (least..=greatest).contains(&value),
            (value, _) => value.partial_cmp(&value).is_some(),
        };
        prop_assume!(within);
        let mut next = cell.clone();
        if increment_cell(ty, attributes, &mut next) {
            match (value, number(ty, &next)) {
                (Number::Integer(value), Number::Integer(next)) => prop_assert_eq!(next, value + 1),
                (value, next) => prop_assert!(next > value),
            }
        } else {
            let greatest = integer_range(ty, attributes).map_or(Number::Float(f64::INFINITY), |(_, greatest)| {
                Number::Integer(greatest)
            });
            prop_assert_eq!(value, greatest);
            prop_assert_eq!(&next, &cell, "nothing changed");
        }
        if !matches!(ty.physical(), PhysicalType::Float | PhysicalType::Double) {
            prop_assert!(one(ty.physical(), &min_cell(ty)) <= one(ty.physical(), &cell), "the least comes first");
        }
    }

    #[test]
    fn arbitrary_bytes_decode_or_are_rejected(bytes in prop::collection::vec(0u8..3, 0..20)) {
        let columns = columns(&[DataType::String, DataType::Int16, DataType::Binary]);
        if let Ok(cells) = decode_key(&columns, &bytes) {
            let mut again = Vec::new();
            encode_key(&columns, |i| &cells[i], &mut again);
            prop_assert_eq!(again, bytes);
        }
    }
}
