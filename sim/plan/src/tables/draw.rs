//! Draws of values and of the shapes of tables.
//!
//! Half of all values come from a small pool per type, so that equalities, dictionaries and runs happen. The pools have
//! what encodings get wrong: extremes, zeros of both signs, NaN, empty text, NUL bytes, prefixes, lengths near 64.

use super::spec::{
    AUTO_INCREMENT, ColumnSpec, CompressionWord, EncodingWord, HashLevel, ModelTable, ORIGIN, RangeSpec,
    TableSpec,
};
use super::value::{CellForm, ColumnKind, TypeWord, Value};
use crate::random_stream::RandomStream;

/// Most key columns, value columns and ranges of a table.
const KEYS_MAX: u64 = 3;
const VALUES_MAX: u64 = 6;
const RANGES_MAX: u64 = 3;
/// Digits of decimals by their storage.
const DIGITS: [(TypeWord, u64, u64); 3] =
    [(TypeWord::Decimal32, 1, 9), (TypeWord::Decimal64, 10, 18), (TypeWord::Decimal128, 19, 38)];

/// Draws a type; `key`: one that key columns may have.
pub fn kind(random: &mut RandomStream, key: bool) -> ColumnKind {
    loop {
        let mut kind = ColumnKind::plain(random.pick(TypeWord::ALL));
        if let Some((_, least, most)) = DIGITS.iter().find(|(word, ..)| *word == kind.word) {
            kind.precision = random.between(*least, *most) as u8;
            kind.scale = random.below(u64::from(kind.precision) + 1) as u8;
        }
        if kind.word == TypeWord::Varchar {
            kind.length = random.pick(&[1, 4, 70]);
        }
        if !key || kind.may_be_key() {
            return kind;
        }
    }
}

/// Draws a value that is not NULL.
pub fn value(random: &mut RandomStream, kind: ColumnKind) -> Value {
    match kind.form() {
        CellForm::Int(..) => int(random, kind),
        CellForm::Float(4) => {
            let pool = [
                0.0,
                -0.0,
                1.5,
                -1.5,
                f32::MAX,
                f32::MIN,
                f32::MIN_POSITIVE,
                f32::INFINITY,
                f32::NEG_INFINITY,
                f32::NAN,
            ];
            Value::Bits(u64::from(random.pick(&pool).to_bits()))
        }
        CellForm::Float(_) => {
            let pool = [
                0.0,
                -0.0,
                1.5,
                -1.5,
                f64::MAX,
                f64::MIN,
                5e-324,
                f64::INFINITY,
                f64::NEG_INFINITY,
                f64::NAN,
            ];
            Value::Bits(random.pick(&pool).to_bits())
        }
        CellForm::Bytes => bytes(random, kind),
    }
}

/// Draws a value next to another one: the one before or after it in the order of the type, or a text that it begins or
/// that begins with it. Returns the value itself if there is none.
pub fn near(random: &mut RandomStream, kind: ColumnKind, value: &Value) -> Value {
    let up = random.percent(50);
    match (kind.form(), value) {
        (CellForm::Int(..), Value::Int(number)) => {
            let (least, most) = kind.int_range();
            Value::Int(if up {
                number + i128::from(*number < most)
            } else {
                number - i128::from(*number > least)
            })
        }
        (CellForm::Float(4), Value::Bits(bits)) => {
            let number = f32::from_bits(*bits as u32);
            let near = if up { number.next_up() } else { number.next_down() };
            Value::Bits(u64::from(near.to_bits()))
        }
        (CellForm::Float(_), Value::Bits(bits)) => {
            let number = f64::from_bits(*bits);
            Value::Bits(if up { number.next_up() } else { number.next_down() }.to_bits())
        }
        (CellForm::Bytes, Value::Bytes(bytes)) => near_bytes(kind, bytes, up),
        _ => value.clone(),
    }
}

/// Returns bytes with one more or one less at their end. Text stays text of its greatest length.
fn near_bytes(kind: ColumnKind, bytes: &[u8], longer: bool) -> Value {
    let mut near = bytes.to_vec();
    match std::str::from_utf8(bytes) {
        Ok(text) if longer => {
            let is_full = kind.word == TypeWord::Varchar && text.chars().count() >= usize::from(kind.length);
            near.extend((!is_full).then_some(0));
        }
        Ok(text) => near.truncate(text.char_indices().next_back().map_or(0, |(at, _)| at)),
        Err(_) if longer => near.push(0),
        Err(_) => drop(near.pop()),
    }
    Value::bytes(&near)
}

fn int(random: &mut RandomStream, kind: ColumnKind) -> Value {
    let (least, most) = kind.int_range();
    let near = i128::from(random.between(0, 12)) - 3;
    let number = match random.below(8) {
        0 => least,
        1 => most,
        2 => most - 1,
        3 => i128::from(random.next_u64() as i64),
        _ => near,
    };
    Value::Int(number.clamp(least, most))
}

fn bytes(random: &mut RandomStream, kind: ColumnKind) -> Value {
    const POOL: [&str; 12] = ["", "\0", "a", "a\0", "a\0b", "ab", "b", "é", "zzz", "\u{1}", "m", "mm"];
    let text = match random.below(8) {
        0 => "x".repeat(random.pick(&[63, 64, 65])),
        1 => format!("t{}", random.below(50)),
        _ => random.pick(&POOL).to_string(),
    };
    match kind.word {
        TypeWord::Varchar => {
            let cut: String = text.chars().take(usize::from(kind.length)).collect();
            Value::bytes(cut.as_bytes())
        }
        TypeWord::Binary if random.percent(20) => {
            Value::bytes(random.pick(&[&[0_u8, 0, 1], &[0xff, 0, 0xff]]))
        }
        _ => Value::bytes(text.as_bytes()),
    }
}

/// Draws a column's encoding among those that its type has.
pub fn encoding(random: &mut RandomStream, kind: ColumnKind) -> EncodingWord {
    use EncodingWord::*;
    let of: &[EncodingWord] = match (kind.word, kind.form()) {
        (TypeWord::Bool, _) => &[Auto, Plain, Rle],
        (_, CellForm::Int(16, _)) | (_, CellForm::Float(_)) => &[Auto, Plain, BitShuffle],
        (_, CellForm::Int(..)) => &[Auto, Plain, BitShuffle, Rle],
        (_, CellForm::Bytes) => &[Auto, Plain, Prefix, Dict],
    };
    random.pick(of)
}

/// Draws a value column. A column of a table with rows must be nullable or have a default.
pub fn value_column(random: &mut RandomStream, table: u8, number: u8, name: String) -> ColumnSpec {
    let kind = kind(random, false);
    let nullable = random.percent(60);
    let default = random.percent(50) || !nullable && random.percent(50);
    let default = default.then(|| value(random, kind));
    ColumnSpec {
        table,
        number,
        name,
        kind,
        nullable,
        immutable: random.percent(15),
        read: default.clone(),
        write: default,
        encoding: encoding(random, kind),
        compression: random.pick(CompressionWord::ALL),
    }
}

/// Draws a table.
pub fn table(random: &mut RandomStream, number: u8) -> ModelTable {
    let keys = random.between(1, KEYS_MAX) as u8;
    // Now and then all columns are in the key.
    let values = if random.percent(8) { 0 } else { random.between(1, VALUES_MAX) as u8 };
    let key = |random: &mut RandomStream, at: u8| {
        let kind = kind(random, true);
        ColumnSpec {
            table: number,
            number: at,
            name: format!("k{at}"),
            kind,
            nullable: false,
            immutable: false,
            read: None,
            write: None,
            encoding: encoding(random, kind),
            compression: random.pick(CompressionWord::ALL),
        }
    };
    let mut columns: Vec<ColumnSpec> = (0..keys).map(|at| key(random, at)).collect();
    columns.extend((keys..keys + values).map(|at| value_column(random, number, at, format!("c{at}"))));
    let hash = hash_levels(random, keys);
    let range = range_columns(random, keys);
    let spec = TableSpec { number, keys, hash, range };
    let mut table = ModelTable { spec, columns, ranges: Vec::new() };
    table.ranges = ranges(random, &table);
    table
}

/// Returns a table whose rows have an auto-increment column at the end of their key, and one that tells inserts apart.
/// Ranges and hash levels are those of the columns before.
pub fn numbered(random: &mut RandomStream, mut table: ModelTable) -> ModelTable {
    let (keys, of) = (table.spec.keys, table.spec.number);
    let kind = ColumnKind::plain(TypeWord::Int64);
    let column = |random: &mut RandomStream, number: u8, name: &str, value: bool| ColumnSpec {
        table: of,
        number,
        name: name.to_string(),
        kind,
        nullable: value,
        immutable: value,
        read: None,
        write: None,
        encoding: encoding(random, kind),
        compression: random.pick(CompressionWord::ALL),
    };
    for (at, other) in table.columns.iter_mut().enumerate().skip(usize::from(keys)) {
        other.number = at as u8 + 2;
        other.name = format!("c{}", other.number);
    }
    let added = [column(random, keys, AUTO_INCREMENT, false), column(random, keys + 1, ORIGIN, true)];
    table.columns.splice(usize::from(keys)..usize::from(keys), added);
    table.spec.keys += 1;
    table
}

fn hash_levels(random: &mut RandomStream, keys: u8) -> Vec<HashLevel> {
    let mut left: Vec<u8> = (0..keys).collect();
    let mut levels = Vec::new();
    for _ in 0..random.pick(&[0, 1, 1, 2]) {
        if left.is_empty() {
            break;
        }
        let count = random.between(1, left.len() as u64);
        let mut columns: Vec<u8> =
            (0..count).map(|_| left.remove(random.below(left.len() as u64) as usize)).collect();
        // Servers hash the columns in the order of the table.
        columns.sort_unstable();
        let seed = random.pick(&[0, 0, 42, u32::MAX]);
        levels.push(HashLevel { columns, buckets: random.between(2, 3) as u8, seed });
    }
    levels
}

fn range_columns(random: &mut RandomStream, keys: u8) -> Vec<u8> {
    if random.percent(50) {
        return Vec::new();
    }
    let mut columns: Vec<u8> = (0..keys).collect();
    while columns.len() > 1 && random.percent(60) {
        columns.remove(random.below(columns.len() as u64) as usize);
    }
    columns
}

/// Returns hash levels of a range's own: other buckets and seeds than those of the table. In half of the tables with
/// two levels each one hashes the columns of the other.
pub fn own_levels(table: &ModelTable) -> Vec<HashLevel> {
    let level = |level: &HashLevel| HashLevel {
        columns: level.columns.clone(),
        buckets: 5 - level.buckets,
        seed: level.seed ^ 3,
    };
    let mut levels: Vec<HashLevel> = table.spec.hash.iter().map(level).collect();
    let buckets: u8 = levels.iter().map(|level| level.buckets).sum();
    if let [one, other] = levels.as_mut_slice()
        && (buckets + table.spec.number) % 2 == 1
    {
        std::mem::swap(&mut one.columns, &mut other.columns);
    }
    levels
}

/// Draws disjoint ranges in order, by bounds on the first range column.
fn ranges(random: &mut RandomStream, table: &ModelTable) -> Vec<RangeSpec> {
    let Some(first) = table.spec.range.first().and_then(|number| table.column(*number)) else {
        return Vec::new();
    };
    let mut bounds: Vec<Value> = (0..6).map(|_| value(random, first.kind)).collect();
    // The encoded key of the empty text is that of no bound.
    bounds.retain(|bound| *bound != Value::bytes(b""));
    bounds.sort();
    bounds.dedup();
    bounds.truncate(random.between(1, RANGES_MAX) as usize + 1);
    let mut points: Vec<Vec<Value>> = bounds.into_iter().map(|bound| vec![bound]).collect();
    if points.len() < 2 || random.percent(60) {
        points.insert(0, Vec::new());
        points.push(Vec::new());
    }
    let own = |random: &mut RandomStream| {
        if random.percent(30) { own_levels(table) } else { Vec::new() }
    };
    let mut found = Vec::new();
    for pair in points.windows(2) {
        // A gap now and then: rows there belong to no tablet.
        if found.is_empty() || !random.percent(20) {
            let (low, high) = (pair[0].clone(), pair[1].clone());
            found.push(RangeSpec { table: table.spec.number, low, high, hash: own(random) });
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_type_is_drawn_and_its_values_fit_it() {
        let random = &mut RandomStream::new(1, "test");
        let mut seen = BTreeSet::new();
        for _ in 0..2_000 {
            let kind = kind(random, false);
            let value = value(random, kind);
            let cell = kind.cell(&value).expect("a value of its type");
            assert_eq!(kind.value(&cell), Some(value));
            seen.insert(kind.word);
        }
        assert_eq!(seen.len(), TypeWord::ALL.len());
    }

    #[test]
    fn a_value_near_another_is_of_its_type_and_next_to_it() {
        let random = &mut RandomStream::new(2, "test");
        for _ in 0..2_000 {
            let kind = kind(random, false);
            let value = value(random, kind);
            let near = near(random, kind, &value);
            assert!(kind.cell(&near).is_some(), "{near:?}");
            if let (Value::Int(one), Value::Int(other)) = (&value, &near) {
                let (least, most) = kind.int_range();
                assert!((least..=most).contains(other) && one.abs_diff(*other) <= 1, "{one} {other}");
            }
        }
        let bits = |number: f64| Value::Bits(number.to_bits());
        let double = ColumnKind::plain(TypeWord::Double);
        let found: BTreeSet<Value> = (0..20).map(|_| super::near(random, double, &bits(-1.5))).collect();
        assert_eq!(found, BTreeSet::from([bits((-1.5_f64).next_up()), bits((-1.5_f64).next_down())]));
    }

    #[test]
    fn a_numbered_table_has_its_own_columns_and_two_more() {
        let random = &mut RandomStream::new(3, "test");
        for _ in 0..100 {
            let before = table(random, 0);
            let after = numbered(random, before.clone());
            assert_eq!(before.auto_increment(), None);
            assert_eq!(after.auto_increment(), Some(before.spec.keys));
            assert_eq!(after.origin(), Some(before.spec.keys + 1));
            assert_eq!(after.columns.len(), before.columns.len() + 2);
            let numbers: Vec<u8> = after.columns.iter().map(|column| column.number).collect();
            assert_eq!(numbers, (0..after.columns.len() as u8).collect::<Vec<_>>());
            assert_eq!((after.spec.hash, after.spec.range), (before.spec.hash, before.spec.range));
        }
    }

    #[test]
    fn own_levels_hash_all_columns_of_the_table_some_of_them_at_the_other_level() {
        let (mut same, mut exchanged) = (0, 0);
        for seed in 0..300 {
            let table = table(&mut RandomStream::new(seed, "test"), (seed % 2) as u8);
            let columns = |levels: &[HashLevel]| -> Vec<Vec<u8>> {
                levels.iter().map(|level| level.columns.clone()).collect()
            };
            let (of_table, own) = (columns(&table.spec.hash), columns(&own_levels(&table)));
            let reversed: Vec<Vec<u8>> = of_table.iter().rev().cloned().collect();
            assert!(own == of_table || own == reversed, "{own:?} {of_table:?}");
            same += usize::from(own.len() == 2 && own == of_table);
            exchanged += usize::from(own != of_table);
        }
        assert!(same > 5 && exchanged > 5, "{same} {exchanged}");
    }

    #[test]
    fn ranges_are_disjoint_and_in_order() {
        for seed in 0..300 {
            let table = table(&mut RandomStream::new(seed, "test"), 0);
            for pair in table.ranges.windows(2) {
                assert!(!pair[0].high.is_empty() && pair[0].high <= pair[1].low, "{table:?}");
            }
            assert!(table.key_columns().iter().all(|column| column.kind.may_be_key()));
        }
    }
}
