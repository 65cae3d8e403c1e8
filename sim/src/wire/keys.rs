//! Encoded keys: of rows, of ranges, of hash levels; and the bounds of tablets.

use sim_plan::tables::value::CellForm;
use sim_plan::tables::{ColumnKind, ColumnSpec, HashLevel, ModelTable, RangeSpec, TypeWord, Value};

/// Least day of a DATE column, which unset range columns of that type have.
const DATE_MIN: i128 = -719_162;

/// Encodes cells so that their bytes have the order of the values. NULL and cells of another form are left out.
pub fn encode(cells: &[(ColumnKind, &Value)]) -> Vec<u8> {
    let mut key = Vec::new();
    for (at, (kind, value)) in cells.iter().enumerate() {
        let last = at + 1 == cells.len();
        match (kind.form(), value) {
            (CellForm::Int(bytes, signed), Value::Int(number)) => {
                let mut cell = number.to_be_bytes()[16 - bytes..].to_vec();
                cell[0] ^= if signed { 0x80 } else { 0 };
                key.extend(cell);
            }
            (CellForm::Bytes, Value::Bytes(bytes)) if last => key.extend(bytes.iter()),
            (CellForm::Bytes, Value::Bytes(bytes)) => {
                for byte in bytes.iter() {
                    key.push(*byte);
                    key.extend((*byte == 0).then_some(1));
                }
                key.extend([0, 0]);
            }
            _ => {}
        }
    }
    key
}

/// Returns the encoded key of one column of 64 bits.
pub fn int64_key(key: i64) -> Vec<u8> {
    encode(&[(ColumnKind::plain(TypeWord::Int64), &Value::Int(key.into()))])
}

/// Returns MurmurHash2, variant 64A, of some bytes.
pub fn murmur(bytes: &[u8], seed: u64) -> u64 {
    const M: u64 = 0xc6a4_a793_5bd1_e995;
    const R: u32 = 47;
    let mut hash = seed ^ (bytes.len() as u64).wrapping_mul(M);
    let mut blocks = bytes.chunks_exact(8);
    for block in &mut blocks {
        let mut word = little_endian(block).wrapping_mul(M);
        word ^= word >> R;
        hash = (hash ^ word.wrapping_mul(M)).wrapping_mul(M);
    }
    if !blocks.remainder().is_empty() {
        hash = (hash ^ little_endian(blocks.remainder())).wrapping_mul(M);
    }
    hash = (hash ^ (hash >> R)).wrapping_mul(M);
    hash ^ (hash >> R)
}

pub(super) fn little_endian(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |word, byte| (word << 8) | u64::from(*byte))
}

/// The key cells of a row by number of column.
pub type KeyCells<'a> = &'a dyn Fn(u8) -> Value;

/// Returns the bucket of a row at a hash level.
pub fn bucket(columns: &[ColumnSpec], level: &HashLevel, cell: KeyCells) -> u32 {
    let values: Vec<Value> = level.columns.iter().map(|number| cell(*number)).collect();
    let cells: Vec<(ColumnKind, &Value)> =
        level.columns.iter().zip(&values).map(|(number, value)| (kind_of(columns, *number), value)).collect();
    (murmur(&encode(&cells), u64::from(level.seed)) % u64::from(level.buckets)) as u32
}

fn kind_of(columns: &[ColumnSpec], number: u8) -> ColumnKind {
    let column = columns.iter().find(|column| column.number == number);
    column.map(|column| column.kind).unwrap_or(ColumnKind::plain(TypeWord::Int64))
}

/// Returns the range key of a bound; columns that it leaves unset have the least value of their type.
pub fn range_key(table: &ModelTable, bound: &[Value]) -> Vec<u8> {
    let kinds: Vec<ColumnKind> =
        table.spec.range.iter().map(|number| kind_of(&table.columns, *number)).collect();
    let least = |kind: &ColumnKind| match kind.form() {
        CellForm::Bytes => Value::bytes(b""),
        _ if kind.word == TypeWord::Date => Value::Int(DATE_MIN),
        form => Value::Int(form.int_range().0),
    };
    let values: Vec<Value> = kinds
        .iter()
        .enumerate()
        .map(|(at, kind)| bound.get(at).cloned().unwrap_or_else(|| least(kind)))
        .collect();
    encode(&kinds.iter().copied().zip(&values).collect::<Vec<_>>())
}

/// Returns the encoded primary key of a row.
pub fn primary_key(table: &ModelTable, cell: KeyCells) -> Vec<u8> {
    let columns = table.key_columns();
    let values: Vec<Value> = columns.iter().map(|column| cell(column.number)).collect();
    encode(&columns.iter().map(|column| column.kind).zip(&values).collect::<Vec<_>>())
}

/// Returns the partition key of a row; `None` if it is in no range.
pub fn partition_key(table: &ModelTable, cell: KeyCells) -> Option<Vec<u8>> {
    let values: Vec<Value> = table.spec.range.iter().map(|number| cell(*number)).collect();
    let in_range = range_key(table, &values);
    let holds = |range: &&RangeSpec| {
        let (low, high) = (range_key(table, &range.low), range_key(table, &range.high));
        (range.low.is_empty() || low <= in_range) && (range.high.is_empty() || in_range < high)
    };
    let range = table.ranges.iter().find(holds);
    if range.is_none() && !table.spec.range.is_empty() {
        return None;
    }
    let mut key: Vec<u8> = Vec::new();
    for level in table.levels(range) {
        key.extend(bucket(&table.columns, level, cell).to_be_bytes());
    }
    if !table.spec.range.is_empty() {
        key.extend(in_range);
    }
    Some(key)
}

/// First partition key of a tablet and the one after its last; empty for unbounded.
pub type Bounds = (Vec<u8>, Vec<u8>);

/// Returns the bounds of all tablets of a table, in order.
pub fn tablet_bounds(table: &ModelTable) -> Vec<Bounds> {
    let mut bounds = Vec::new();
    let whole = [None];
    let ranges: Vec<Option<&RangeSpec>> = table.ranges.iter().map(Some).collect();
    let ranges: &[Option<&RangeSpec>] = if table.spec.range.is_empty() { &whole } else { &ranges };
    for range in ranges {
        let levels = table.levels(*range);
        let mut combinations: Vec<Vec<u32>> = vec![Vec::new()];
        for level in levels {
            let longer = |buckets: &Vec<u32>| -> Vec<Vec<u32>> {
                (0..u32::from(level.buckets)).map(|bucket| [buckets.as_slice(), &[bucket]].concat()).collect()
            };
            combinations = combinations.iter().flat_map(longer).collect();
        }
        bounds.extend(combinations.iter().map(|buckets| bounds_of(table, buckets, *range)));
    }
    bounds.sort();
    bounds
}

fn bounds_of(table: &ModelTable, buckets: &[u32], range: Option<&RangeSpec>) -> Bounds {
    let encoded =
        |buckets: &[u32]| -> Vec<u8> { buckets.iter().flat_map(|bucket| bucket.to_be_bytes()).collect() };
    let (mut start, mut end) = (encoded(buckets), encoded(buckets));
    let bound = |of: fn(&RangeSpec) -> &Vec<Value>| range.map(of).filter(|bound| !bound.is_empty());
    if let Some(low) = bound(|range| &range.low) {
        start.extend(range_key(table, low));
    }
    match bound(|range| &range.high) {
        Some(high) => end.extend(range_key(table, high)),
        None if !buckets.is_empty() => {
            let mut next = buckets.to_vec();
            next[buckets.len() - 1] += 1;
            end = encoded(&next);
        }
        None => {}
    }
    (start, end)
}

/// Returns true if a partition key is within bounds.
pub fn holds(bounds: &Bounds, key: &[u8]) -> bool {
    bounds.0.as_slice() <= key && (bounds.1.is_empty() || key < bounds.1.as_slice())
}

/// Returns the next greater value of a type; `None` if there is none.
pub fn successor(kind: ColumnKind, value: &Value) -> Option<Value> {
    match (kind.form(), value) {
        (CellForm::Int(..), Value::Int(number)) => {
            (*number < greatest_cell(kind)).then(|| Value::Int(number + 1))
        }
        (CellForm::Float(bytes), Value::Bits(bits)) => next_bits(*bits, bytes).map(Value::Bits),
        (CellForm::Bytes, Value::Bytes(bytes)) => Some(Value::bytes(&[bytes, &[0][..]].concat())),
        _ => None,
    }
}

/// Returns the greatest number that a cell of an integer type may have. Servers take dates and decimals beyond those
/// that clients may write.
fn greatest_cell(kind: ColumnKind) -> i128 {
    match kind.word {
        TypeWord::Date | TypeWord::Decimal32 | TypeWord::Decimal64 | TypeWord::Decimal128 => {
            kind.form().int_range().1
        }
        _ => kind.int_range().1,
    }
}

/// Returns the bits of the next greater number: those of negative numbers go down.
fn next_bits(bits: u64, bytes: usize) -> Option<u64> {
    let sign = 1_u64 << (bytes * 8 - 1);
    let infinity = if bytes == 4 { u64::from(f32::INFINITY.to_bits()) } else { f64::INFINITY.to_bits() };
    match bits {
        _ if bits & !sign > infinity || bits == infinity => None,
        _ if bits & !sign == 0 => Some(1),
        _ if bits & sign != 0 => Some(bits - 1),
        _ => Some(bits + 1),
    }
}

#[cfg(test)]
mod tests {
    use sim_plan::line_format::{LineField, LineRecord};
    use sim_plan::tables::TableSpec;

    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn kind(text: &str) -> ColumnKind {
        ColumnKind::parse(text).expect("a kind")
    }

    #[test]
    fn keys_are_those_of_kudu() {
        let int = |number| Value::Int(number);
        let one = |text: &str, number: i128| hex(&encode(&[(kind(text), &int(number))]));
        for (text, number, want) in [
            ("int8", 5, "85"),
            ("int8", -128, "00"),
            ("int16", -1, "7fff"),
            ("int32", 1, "80000001"),
            ("int64", -1, "7fffffffffffffff"),
            ("uint32", 1, "00000001"),
            ("unixtime", 1_000_000, "80000000000f4240"),
            ("date", 18_262, "80004756"),
            ("decimal32:9:2", -123, "7fffff85"),
            ("decimal64:18:2", 123, "800000000000007b"),
            ("decimal128:38:2", -123, "7fffffffffffffffffffffffffffff85"),
        ] {
            assert_eq!(one(text, number), want, "{text} {number}");
        }
        let text = |bytes: &[u8]| Value::bytes(bytes);
        let pair = |left: &[u8], right: &[u8]| {
            hex(&encode(&[(kind("string"), &text(left)), (kind("string"), &text(right))]))
        };
        assert_eq!(pair(b"foo", b"bar"), "666f6f0000626172");
        assert_eq!(pair(b"a\0b", b"c\0d"), "610001620000630064");
        assert_eq!(pair(b"", b""), "0000");
        let mixed = [(kind("int32"), &int(-5)), (kind("string"), &text(b"x\0")), (kind("int64"), &int(9))];
        assert_eq!(hex(&encode(&mixed)), "7ffffffb7800010000 8000000000000009".replace(' ', ""));
    }

    #[test]
    fn hashes_are_those_of_kudu() {
        for (text, of_0, of_42) in [
            ("", 0, 0x9703_7e2d_1071_7c74),
            ("a", 0x0717_17d2_d36b_6b11, 0xf9da_c41c_2dc2_0c49),
            ("abc", 0x9cc9_c334_98a9_5efb, 0xbab4_971c_a0c4_5292),
            ("abcdefgh", 0xafdb_0257_ff41_aa98, 0x5383_a9b6_1814_2929),
            ("abcdefghi", 0xc9b9_d843_5614_6ac2, 0x8e88_39d3_e52c_9415),
            ("hello world", 0xd3ba_2368_a832_afce, 0x58ec_5901_27de_6711),
        ] {
            assert_eq!((murmur(text.as_bytes(), 0), murmur(text.as_bytes(), 42)), (of_0, of_42), "{text}");
        }
    }

    /// Parses a table from its lines.
    fn table(text: &str) -> ModelTable {
        let mut table = None;
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
            match line.split(' ').next() {
                Some("table") => {
                    let spec = TableSpec::parse_line(line).expect("a table");
                    table = Some(ModelTable { spec, columns: Vec::new(), ranges: Vec::new() });
                }
                Some("range") => table
                    .as_mut()
                    .expect("a table")
                    .ranges
                    .push(RangeSpec::parse_line(line).expect("a range")),
                _ => {
                    let (name, kind) = line.split_once(' ').expect("a name and a kind");
                    let table = table.as_mut().expect("a table");
                    let line = format!(
                        "column table=0 number={} name={name} kind={kind} nullable=false immutable=false read=- \
                         write=- encoding=auto compression=default",
                        table.columns.len()
                    );
                    table.columns.push(ColumnSpec::parse_line(&line).expect("a column"));
                }
            }
        }
        table.expect("a table")
    }

    #[test]
    fn partition_keys_are_those_of_kudu() {
        let table = table(
            "table number=0 keys=3 hash=0.1:32:0,2:32:42 range=0,1,2
             a int32
             b string
             c string
             range table=0 low=- high=- hash=-",
        );
        for (a, b, c, want) in [
            (0, "", "", "0000000000000014800000000000"),
            (1, "", "", "0000000500000014800000010000"),
            (0, "b", "c", "0000001a0000001d8000000062000063"),
            (1, "b", "c", "000000000000001d8000000162000063"),
            (-1, "x\0y", "z", "0000001f0000000c7fffffff7800017900007a"),
        ] {
            let cell = |number| match number {
                0 => Value::Int(a),
                1 => Value::bytes(b.as_bytes()),
                _ => Value::bytes(c.as_bytes()),
            };
            assert_eq!(partition_key(&table, &cell).map(|key| hex(&key)).as_deref(), Some(want));
        }
    }

    #[test]
    fn bounds_of_tablets_are_those_of_kudu() {
        let bounds = |text: &str| -> Vec<(String, String)> {
            tablet_bounds(&table(text)).iter().map(|(start, end)| (hex(start), hex(end))).collect()
        };
        let of = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
            pairs.iter().map(|(start, end)| (start.to_string(), end.to_string())).collect()
        };
        let one_level = bounds(
            "table number=0 keys=2 hash=1:2:3 range=0
             a int32
             b string
             range table=0 low=i0 high=i10 hash=-
             range table=0 low=i10 high=- hash=-",
        );
        assert_eq!(
            one_level,
            of(&[
                ("0000000080000000", "000000008000000a"),
                ("000000008000000a", "00000001"),
                ("0000000180000000", "000000018000000a"),
                ("000000018000000a", "00000002"),
            ])
        );
        let two_levels = bounds(
            "table number=0 keys=2 hash=0:2:0,1:2:0 range=-
             a int32
             b string",
        );
        assert_eq!(
            two_levels[1..3],
            of(&[("0000000000000001", "0000000000000002"), ("0000000100000000", "0000000100000001")])
        );
        let own_hash = bounds(
            "table number=0 keys=2 hash=0:2:0 range=1
             a int32
             b string
             range table=0 low=b61 high=b6d hash=0:3:1
             range table=0 low=b6d high=- hash=-",
        );
        assert_eq!(
            own_hash,
            of(&[
                ("0000000061", "000000006d"),
                ("000000006d", "00000001"),
                ("0000000161", "000000016d"),
                ("000000016d", "00000002"),
                ("0000000261", "000000026d"),
            ])
        );
    }

    #[test]
    fn a_row_in_no_range_has_no_partition_key() {
        let table = table(
            "table number=0 keys=1 hash=- range=0
             a int32
             range table=0 low=i0 high=i10 hash=-",
        );
        let key = |number| partition_key(&table, &|_| Value::Int(number));
        assert_eq!(key(10), None);
        assert_eq!(key(9).map(|key| hex(&key)).as_deref(), Some("80000009"));
    }
    #[test]
    fn the_value_after_another_is_the_next_one_of_its_type() {
        let next = |word, value: Value| successor(ColumnKind::plain(word), &value);
        assert_eq!(next(TypeWord::Int8, Value::Int(-1)), Some(Value::Int(0)));
        assert_eq!(next(TypeWord::Int8, Value::Int(127)), None);
        assert_eq!(next(TypeWord::Bool, Value::Int(1)), None);
        assert_eq!(next(TypeWord::Date, Value::Int(2_932_896)), Some(Value::Int(2_932_897)));
        assert_eq!(next(TypeWord::Date, Value::Int(i32::MAX.into())), None);
        assert_eq!(next(TypeWord::String, Value::bytes(b"a")), Some(Value::bytes(b"a\0")));
        for number in [-1.5, -0.0, 0.0, 1.5, f64::MAX, f64::NEG_INFINITY] {
            let bits = |number: f64| Value::Bits(number.to_bits());
            assert_eq!(next(TypeWord::Double, bits(number)), Some(bits(number.next_up())), "{number}");
        }
        let bits = |number: f32| Value::Bits(u64::from(number.to_bits()));
        assert_eq!(next(TypeWord::Float, bits(-1.5)), Some(bits((-1.5_f32).next_up())));
        for number in [f32::INFINITY, f32::NAN] {
            assert_eq!(next(TypeWord::Float, bits(number)), None);
        }
    }
}
