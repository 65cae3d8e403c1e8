//! Draws from streams of their own, so that they change no other draw of a plan: long and empty lists, Bloom filters in
//! several parts, long bytes whose bounds carry, dates and decimals beyond their type.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::sync::Arc;

use sim_plan::RandomStream;
use sim_plan::tables::value::CellForm;
use sim_plan::tables::{ColumnKind, ColumnSpec, ModelTable, TypeWord, Value, draw};

use super::{Condition, RowCells, RowWrite};
use crate::wire::bloom::BloomFilter;

/// Percentage of Bloom filters with a second one, and of those with bounds.
const SECOND_FILTER_PERCENT: u64 = 40;
const BOUNDS_PERCENT: u64 = 40;
/// Percentage of lists without values, and of lists of keys with very many.
const EMPTY_LIST_PERCENT: u64 = 2;
const LONG_LIST_PERCENT: u64 = 5;
/// Numbers of values of long lists: servers look up the hash buckets of 4,096 values at most.
const LONG_LISTS: [usize; 4] = [2_000, 4_096, 4_097, 5_000];
/// Percentage of BINARY values of more than `PLAIN_BYTES` bytes that have bytes of 0xff about there.
const FULL_BYTES_PERCENT: u64 = 60;
const PLAIN_BYTES: usize = 63;
/// Percentage of the greatest and the least dates and decimals that are written as the numbers beyond them.
const BEYOND_PERCENT: u64 = 30;

/// Returns a condition that keeps what a Bloom filter of these values holds, `size` being the logarithm of its bytes.
/// Some conditions have a second filter, of one more value, or bounds.
pub(super) fn bloom(
    random: &RandomStream,
    column: &ColumnSpec,
    known: &[RowCells],
    (values, size, seed): (&[Value], u32, u32),
) -> Condition {
    let random = &mut random.fork("bloom parts");
    let mut cells: Vec<Vec<u8>> = values.iter().filter_map(|value| column.kind.cell(value)).collect();
    let mut filters = vec![BloomFilter::of(&cells, size, seed)];
    if random.percent(SECOND_FILTER_PERCENT) {
        let of_row = value_of_row(random, column, known);
        let more = of_row.unwrap_or_else(|| draw::value(random, column.kind));
        cells.extend(column.kind.cell(&more));
        filters.push(BloomFilter::of(&cells, random.between(5, 8) as u32, random.pick(&[0, 42])));
        // The one that holds more is the first or the last.
        if random.percent(50) {
            filters.reverse();
        }
    }
    let (low, high) =
        if random.percent(BOUNDS_PERCENT) { bounds(random, column, known, values) } else { (None, None) };
    Condition::Bloom { filters, low, high }
}

/// Draws one or two bounds in their order, which are values of rows or of a list.
fn bounds(
    random: &mut RandomStream,
    column: &ColumnSpec,
    known: &[RowCells],
    values: &[Value],
) -> (Option<Value>, Option<Value>) {
    let bound = |random: &mut RandomStream| {
        let of_row = if random.percent(50) { value_of_row(random, column, known) } else { None };
        of_row.or_else(|| values.get(random.below(values.len() as u64) as usize).cloned())
    };
    let (one, other) = (bound(random), bound(random));
    let order = one.as_ref().zip(other.as_ref()).and_then(|(one, other)| column.kind.compare(one, other));
    let (low, high) = if order.is_none_or(Ordering::is_lt) { (one, other) } else { (other, one) };
    match random.below(3) {
        0 => (low, None),
        1 => (None, high),
        _ => (low, high),
    }
}

/// Draws the value of a column in one of the rows; none if that row has none.
fn value_of_row(random: &mut RandomStream, column: &ColumnSpec, known: &[RowCells]) -> Option<Value> {
    let row = known.get(random.below(known.len() as u64) as usize)?;
    row.get(&column.number).filter(|value| !value.is_null()).cloned()
}

/// Returns a list of these values. A few lists are empty; a few on key columns have thousands of values more.
pub(super) fn in_list(random: &RandomStream, kind: ColumnKind, key: bool, values: Vec<Value>) -> Condition {
    let random = &mut random.fork("lists");
    if random.percent(EMPTY_LIST_PERCENT) {
        return Condition::In(Vec::new());
    }
    if !key || !random.percent(LONG_LIST_PERCENT) {
        return Condition::In(values);
    }
    let count = random.pick(&LONG_LISTS);
    let mut set: BTreeSet<Value> = values.into_iter().collect();
    for value in many(kind) {
        if set.len() >= count {
            break;
        }
        set.insert(value);
    }
    Condition::InSet(Arc::new(set))
}

/// Returns different values of a key column's type: small numbers and short texts, which rows have, come first.
fn many(kind: ColumnKind) -> Box<dyn Iterator<Item = Value>> {
    match kind.form() {
        CellForm::Bytes if kind.word == TypeWord::Varchar && kind.length < 5 => {
            Box::new(('\u{4e00}'..='\u{9fff}').map(|sign| Value::bytes(sign.to_string().as_bytes())))
        }
        CellForm::Bytes => Box::new((0..20_000_u32).map(|at| Value::bytes(format!("t{at}").as_bytes()))),
        CellForm::Int(..) | CellForm::Float(_) => {
            let (least, most) = kind.int_range();
            Box::new((least.max(-3)..=most).map(Value::Int))
        }
    }
}

/// Returns a value of a column beside the key. Many long BINARY values get bytes of 0xff: an upper bound that servers
/// cut there and raise carries, or cannot be raised.
pub(super) fn with_full_bytes(random: &RandomStream, kind: ColumnKind, value: Value) -> Value {
    let Value::Bytes(bytes) = value.clone() else { return value };
    if kind.word != TypeWord::Binary || bytes.len() <= PLAIN_BYTES {
        return value;
    }
    let random = &mut random.fork("full bytes");
    if !random.percent(FULL_BYTES_PERCENT) {
        return value;
    }
    let (from, to) = (random.pick(&[0, 60, 61, 62]), random.pick(&[63, 64, bytes.len()]));
    let mut bytes = bytes.to_vec();
    bytes[from..to].fill(0xff);
    Value::bytes(&bytes)
}

/// Replaces some of the greatest and the least dates and decimals beside the key by the numbers beyond them: servers
/// take every number that fits the bytes of its cell.
pub fn exceed_types(random: &RandomStream, table: &ModelTable, rows: &mut [RowWrite]) {
    use TypeWord::{Date, Decimal32, Decimal64, Decimal128};
    let random = &mut random.fork("beyond types");
    let values = &table.columns[table.key_columns().len()..];
    let has_limits =
        |column: &&ColumnSpec| matches!(column.kind.word, Date | Decimal32 | Decimal64 | Decimal128);
    for column in values.iter().filter(has_limits) {
        let (least, most) = column.kind.int_range();
        for cell in rows.iter_mut().filter_map(|row| row.cells.get_mut(&column.number)) {
            let beyond = match cell.number() {
                Some(number) if number == most => most + 1,
                Some(number) if number == least => least - 1,
                _ => continue,
            };
            if random.percent(BEYOND_PERCENT) {
                *cell = Value::Int(beyond);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Truth;
    use crate::model::tests::column;

    fn streams() -> impl Iterator<Item = RandomStream> {
        (0..400).map(|seed| RandomStream::new(seed, "test"))
    }

    fn ints(numbers: &[i128]) -> Vec<Value> {
        numbers.iter().copied().map(Value::Int).collect()
    }

    #[test]
    fn a_bloom_condition_keeps_what_all_filters_hold_within_its_bounds() {
        let of = column(1, "int32", true, false, "-");
        let (values, known) = (ints(&[3, 5, 9]), [RowCells::from([(1, Value::Int(7))])]);
        let (mut second, mut bounded, mut rejected) = (0, 0, 0);
        for random in streams() {
            let condition = bloom(&random, &of, &known, (values.as_slice(), 8, 0));
            let Condition::Bloom { filters, low, high } = &condition else { panic!("{condition:?}") };
            second += usize::from(filters.len() == 2);
            bounded += usize::from(low.is_some() || high.is_some());
            for value in &values {
                let is_below = low.as_ref().is_some_and(|low| value < low);
                let is_beyond = high.as_ref().is_some_and(|high| value >= high);
                let wanted = if is_below || is_beyond { Truth::No } else { Truth::Yes };
                assert_eq!(condition.keeps(of.kind, value), wanted, "{condition:?}");
            }
            // Only the second filter holds the value of the row.
            let cell = 7_i32.to_le_bytes();
            let is_in = |filter: &BloomFilter| filter.may_hold(&cell);
            if filters.iter().any(is_in) && !filters.iter().all(is_in) {
                rejected += 1;
                assert_eq!(condition.keeps(of.kind, &Value::Int(7)), Truth::No);
            }
            assert_eq!(condition.keeps(of.kind, &Value::Null), Truth::No);
        }
        assert!(second > 100 && bounded > 100 && rejected > 50, "{second} {bounded} {rejected}");
    }

    #[test]
    fn lists_are_empty_or_long_now_and_then_and_keep_their_values() {
        let drawn = ints(&[100, 5]);
        for (text, key) in [("int32", true), ("int32", false), ("int8", true)] {
            let kind = column(0, text, false, false, "-").kind;
            let (mut empty, mut lengths) = (0, BTreeSet::new());
            for random in streams() {
                match in_list(&random, kind, key, drawn.clone()) {
                    Condition::In(values) if values.is_empty() => empty += 1,
                    Condition::InSet(values) => {
                        assert!(drawn.iter().all(|value| values.contains(value)));
                        assert!(values.iter().all(|value| kind.cell(value).is_some()));
                        lengths.insert(values.len());
                    }
                    other => assert_eq!(other, Condition::In(drawn.clone())),
                }
            }
            assert!(empty > 1, "{empty}");
            assert_eq!(lengths.is_empty(), !key);
            // -3 to 127.
            let is_known = |length: &usize| LONG_LISTS.contains(length) || *length == 131;
            assert!(lengths.iter().all(is_known), "{lengths:?}");
        }
    }

    #[test]
    fn long_lists_have_values_of_every_type_of_keys() {
        for word in TypeWord::ALL.iter().filter(|word| ColumnKind::plain(**word).may_be_key()) {
            let kind = ColumnKind { length: 1, precision: 9, ..ColumnKind::plain(*word) };
            let values: BTreeSet<Value> = many(kind).take(5_000).collect();
            let is_small = matches!(kind.form(), CellForm::Int(1, _));
            assert!(values.len() == 5_000 || is_small, "{word:?}: {}", values.len());
            assert!(values.iter().all(|value| kind.cell(value).is_some()), "{word:?}");
        }
    }

    #[test]
    fn long_bytes_are_full_where_bounds_are_cut() {
        let (binary, text) = (ColumnKind::plain(TypeWord::Binary), ColumnKind::plain(TypeWord::String));
        let long = Value::bytes(&[b'x'; 65]);
        let (mut carries, mut has_no_bound) = (0, 0);
        for random in streams() {
            let Value::Bytes(bytes) = with_full_bytes(&random, binary, long.clone()) else {
                panic!("no bytes")
            };
            assert_eq!(bytes.len(), 65);
            carries += usize::from(bytes[63] == 0xff);
            has_no_bound += usize::from(bytes[..64].iter().all(|byte| *byte == 0xff));
            assert_eq!(with_full_bytes(&random, text, long.clone()), long);
            let short = Value::bytes(&[b'x'; 63]);
            assert_eq!(with_full_bytes(&random, binary, short.clone()), short);
        }
        assert!(carries > 50 && has_no_bound > 10, "{carries} {has_no_bound}");
    }

    #[test]
    fn only_the_last_dates_and_decimals_beside_the_key_exceed_their_types() {
        let mut table = crate::model::tests::incarnation().versions[0].table.clone();
        table.columns = vec![
            column(0, "date", false, false, "-"),
            column(1, "date", false, false, "-"),
            column(2, "decimal64:18:2", true, false, "-"),
            column(3, "int32", true, false, "-"),
        ];
        let limits: Vec<(i128, i128)> = table.columns.iter().map(|column| column.kind.int_range()).collect();
        let mut found = BTreeSet::new();
        for random in streams() {
            let most = (0..4_u8).map(|at| (at, Value::Int(limits[usize::from(at)].1))).collect();
            let least = (0..4_u8).map(|at| (at, Value::Int(limits[usize::from(at)].0))).collect();
            let kind = sim_plan::client_ops::WriteKind::Upsert;
            let mut rows = [RowWrite { kind, cells: most }, RowWrite { kind, cells: least }];
            exceed_types(&random, &table, &mut rows);
            for (at, (least, most)) in (0_u8..).zip(&limits) {
                let numbers = rows.iter().filter_map(|row| row.cells[&at].number());
                let beyond = numbers.filter(|number| number < least || number > most);
                found.extend(beyond.map(|number| (at, number)));
            }
        }
        let ends = |at: u8| {
            let (least, most) = limits[usize::from(at)];
            [(at, least - 1), (at, most + 1)]
        };
        assert_eq!(found, BTreeSet::from_iter([1, 2].into_iter().flat_map(ends)));
    }
}
