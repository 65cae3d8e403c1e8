//! Draws of rows and conditions that fit a version of a table.

use sim_plan::RandomStream;
use sim_plan::client_ops::WriteKind;
use sim_plan::tables::{ColumnKind, ColumnSpec, ModelTable, Value, draw};

use super::{ColNo, Condition, RowCells, RowWrite, extra_draws};

/// Different keys per column that half of all rows are drawn from.
const KEY_POOL: u64 = 6;
/// Percentage of keys and of conditions on them that have the values of a bound of a range.
const EDGE_PERCENT: u64 = 15;
/// Percentage of values of conditions that rows have, and of these those next to them instead.
const KNOWN_PERCENT: u64 = 50;
const NEAR_PERCENT: u64 = 25;
/// Largest number of a row in bounds and conditions, and one that no row has.
const AUTO_INCREMENT_MAX: u64 = 40;
pub const NO_AUTO_INCREMENT: i128 = 1 << 40;
/// Percentage of changes of numbered rows that are of a row which was seen.
const SEEN_PERCENT: u64 = 85;

/// Draws the cells of a row's key. Keys repeat, so that rows are changed.
fn key_cells(random: &mut RandomStream, table: &ModelTable) -> RowCells {
    let auto = table.auto_increment();
    let cell = |column: &ColumnSpec| {
        if Some(column.number) == auto {
            return (column.number, Value::Int(random.between(1, AUTO_INCREMENT_MAX).into()));
        }
        let pool = format!("key {}", random.below(KEY_POOL));
        let value = if random.percent(70) {
            draw::value(&mut RandomStream::new(u64::from(column.number), &pool), column.kind)
        } else {
            draw::value(random, column.kind)
        };
        (column.number, value)
    };
    let mut cells: RowCells = table.key_columns().iter().map(cell).collect();
    if random.percent(EDGE_PERCENT) {
        cells.extend(edge(random, table));
    }
    cells
}

/// Draws the values of a bound of one of the table's ranges, by column; none if no range has a bound.
fn edge(random: &mut RandomStream, table: &ModelTable) -> RowCells {
    let bounds = table.ranges.iter().flat_map(|range| [&range.low, &range.high]);
    let bounds: Vec<&Vec<Value>> = bounds.filter(|bound| !bound.is_empty()).collect();
    if bounds.is_empty() {
        return RowCells::new();
    }
    let bound = bounds[random.below(bounds.len() as u64) as usize];
    table.spec.range.iter().copied().zip(bound.iter().cloned()).collect()
}

/// Draws the key of a numbered row that a client has seen; none if it has seen none, or rows are not numbered.
fn seen_key(random: &mut RandomStream, table: &ModelTable, known: &[RowCells]) -> Option<RowCells> {
    let auto = table.auto_increment()?;
    let has_number =
        |row: &&RowCells| row.get(&auto).is_some_and(|number| *number != Value::Int(NO_AUTO_INCREMENT));
    let seen: Vec<&RowCells> = known.iter().filter(has_number).collect();
    let row = *seen.get(random.below(seen.len() as u64) as usize)?;
    let keys = table.key_columns().iter();
    let cells: RowCells =
        keys.filter_map(|column| Some((column.number, row.get(&column.number)?.clone()))).collect();
    Some(cells).filter(|_| random.percent(SEEN_PERCENT))
}

/// Draws a value of a column beside the key.
fn value_beside_key(random: &mut RandomStream, kind: ColumnKind) -> Value {
    let value = draw::value(random, kind);
    extra_draws::with_full_bytes(random, kind, value)
}

/// Draws a row operation.
pub fn row(random: &mut RandomStream, table: &ModelTable, kind: WriteKind) -> RowWrite {
    row_among(random, table, kind, &[])
}

/// Draws a row operation. Of a table whose rows are numbered, changes are of `known` rows, or of none that there is.
pub fn row_among(
    random: &mut RandomStream,
    table: &ModelTable,
    kind: WriteKind,
    known: &[RowCells],
) -> RowWrite {
    use WriteKind::{Insert, InsertIgnore, Upsert, UpsertIgnore};
    let (auto, origin) = (table.auto_increment(), table.origin());
    let seen = seen_key(random, table, known);
    // A table without value columns has nothing to update.
    let kind = match kind {
        WriteKind::Update if table.columns.len() == usize::from(table.spec.keys) => WriteKind::Upsert,
        WriteKind::UpdateIgnore if table.columns.len() == usize::from(table.spec.keys) => {
            WriteKind::UpsertIgnore
        }
        // An upsert must name the number of its row.
        Upsert if auto.is_some() && seen.is_none() => Insert,
        UpsertIgnore if auto.is_some() && seen.is_none() => InsertIgnore,
        kind => kind,
    };
    let mut cells = key_cells(random, table);
    cells.extend(auto.map(|auto| (auto, Value::Int(NO_AUTO_INCREMENT))));
    cells.extend(seen.unwrap_or_default());
    if let Some((auto, origin)) = auto.zip(origin).filter(|_| matches!(kind, Insert | InsertIgnore)) {
        cells.remove(&auto);
        cells.insert(origin, Value::Int(i128::from(random.next_u64() >> 2)));
    }
    if matches!(kind, WriteKind::Delete | WriteKind::DeleteIgnore) {
        return RowWrite { kind, cells };
    }
    let updates = matches!(kind, WriteKind::Update | WriteKind::UpdateIgnore);
    let values = &table.columns[usize::from(table.spec.keys)..];
    // Now and then a row lacks a value that it must have.
    let careless = random.percent(3);
    for column in values.iter().filter(|column| Some(column.number) != origin) {
        let needed = !updates && !careless && !column.nullable && column.write.is_none();
        if !needed && random.percent(30) {
            continue;
        }
        let null = column.nullable && random.percent(20);
        let value = if null { Value::Null } else { value_beside_key(random, column.kind) };
        cells.insert(column.number, value);
    }
    // An update without a value is no update.
    if updates
        && cells.len() == table.key_columns().len()
        && let Some(column) = values.iter().find(|column| Some(column.number) != origin).or(values.first())
    {
        cells.insert(column.number, value_beside_key(random, column.kind));
    }
    RowWrite { kind, cells }
}

/// Draws conditions. Some columns may have several. Many compare with the values that `known` rows have.
pub fn conditions(
    random: &mut RandomStream,
    table: &ModelTable,
    count: u8,
    known: &[RowCells],
) -> Vec<(ColNo, Condition)> {
    let one = |random: &mut RandomStream| {
        let column = &table.columns[random.below(table.columns.len() as u64) as usize];
        (column.number, condition(random, table, column, known))
    };
    (0..count).map(|_| one(random)).collect()
}

/// Draws the value of a column in one of the rows, or one next to it; none if that row has none.
fn known_value(random: &mut RandomStream, column: &ColumnSpec, known: &[RowCells]) -> Option<Value> {
    if known.is_empty() || !random.percent(KNOWN_PERCENT) {
        return None;
    }
    let row = &known[random.below(known.len() as u64) as usize];
    let value = row.get(&column.number).filter(|value| !value.is_null())?;
    Some(if random.percent(NEAR_PERCENT) { draw::near(random, column.kind, value) } else { value.clone() })
}

fn condition(
    random: &mut RandomStream,
    table: &ModelTable,
    column: &ColumnSpec,
    known: &[RowCells],
) -> Condition {
    let key = column.name.starts_with('k');
    let value = |random: &mut RandomStream| {
        if let Some(value) = known_value(random, column, known) {
            return value;
        }
        if key
            && random.percent(EDGE_PERCENT)
            && let Some(value) = edge(random, table).remove(&column.number)
        {
            return value;
        }
        if key && random.percent(50) {
            let pool = format!("key {}", random.below(KEY_POOL));
            return draw::value(&mut RandomStream::new(u64::from(column.number), &pool), column.kind);
        }
        if key { draw::value(random, column.kind) } else { value_beside_key(random, column.kind) }
    };
    match random.below(8) {
        0 | 1 => Condition::Equal(value(random)),
        2 | 3 => {
            let (one, other) = (value(random), value(random));
            let ordered = column.kind.compare(&one, &other).is_none_or(std::cmp::Ordering::is_lt);
            let (low, high) = if ordered { (one, other) } else { (other, one) };
            match random.below(6) {
                // Which numbers are at most NaN is not documented.
                3 | 4 if column.kind.compare(&high, &high).is_some() => Condition::AtMost(high),
                5 if column.kind.compare(&low, &low).is_some() => Condition::Above(low),
                0 => Condition::Range(Some(low), None),
                1 => Condition::Range(None, Some(high)),
                _ => Condition::Range(Some(low), Some(high)),
            }
        }
        4 => {
            let values = (0..random.between(1, 5)).map(|_| value(random)).collect();
            extra_draws::in_list(random, column.kind, key, values)
        }
        5 if column.nullable => Condition::Null,
        6 => Condition::NotNull,
        _ => {
            let values: Vec<Value> = (0..random.between(1, 4)).map(|_| value(random)).collect();
            let (size, seed) = (random.between(5, 8) as u32, random.pick(&[0, 42]));
            extra_draws::bloom(random, column, known, (values.as_slice(), size, seed))
        }
    }
}

/// Draws the columns of a scan: the key, and some of the others, in any order.
pub fn projection(random: &mut RandomStream, table: &ModelTable) -> Vec<ColNo> {
    let keys = usize::from(table.spec.keys);
    let all = random.percent(40);
    let mut columns: Vec<ColNo> = table.columns[..keys].iter().map(|column| column.number).collect();
    for column in &table.columns[keys..] {
        if all || random.percent(50) {
            columns.push(column.number);
        }
    }
    // Rows are recognised by it.
    columns.extend(table.origin().filter(|origin| !columns.contains(origin)));
    if random.percent(30) {
        columns.reverse();
    }
    columns
}

/// Draws two primary keys, the smaller one first.
pub fn key_bounds(random: &mut RandomStream, table: &ModelTable) -> (RowCells, RowCells) {
    (key_cells(random, table), key_cells(random, table))
}
