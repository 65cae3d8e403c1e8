//! Draws of rows, conditions and alterations that fit a version of a table.

use sim_plan::RandomStream;
use sim_plan::client_ops::{TableStep, WriteKind};
use sim_plan::tables::spec::{CompressionWord, EncodingWord};
use sim_plan::tables::{ColumnSpec, ModelTable, RangeSpec, Value, draw};

use super::{ColNo, Condition, RowCells, RowWrite, range_draws};
use crate::wire::bloom::BloomFilter;

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
/// Percentage of added ranges of which one side alone is added.
const CUT_PERCENT: u64 = 30;

/// A step of an alteration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AlterStep {
    Add(ColumnSpec),
    Drop(String),
    Rename(String, String),
    /// Sets or removes a write default.
    Default(ColumnSpec, Option<Value>),
    Layout(String, EncodingWord, CompressionWord),
    AddRange(RangeSpec),
    DropRange(RangeSpec),
    NameTable(String),
}

/// Steps, and the table after them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Alteration {
    pub steps: Vec<AlterStep>,
    pub name: String,
    pub table: ModelTable,
}

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
        let value = if null { Value::Null } else { draw::value(random, column.kind) };
        cells.insert(column.number, value);
    }
    // An update without a value is no update.
    if updates
        && cells.len() == table.key_columns().len()
        && let Some(column) = values.iter().find(|column| Some(column.number) != origin).or(values.first())
    {
        cells.insert(column.number, draw::value(random, column.kind));
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
        draw::value(random, column.kind)
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
        4 => Condition::In((0..random.between(1, 5)).map(|_| value(random)).collect()),
        5 if column.nullable => Condition::Null,
        6 => Condition::NotNull,
        _ => {
            let values = (0..random.between(1, 4)).map(|_| value(random));
            let cells: Vec<Vec<u8>> = values.filter_map(|value| column.kind.cell(&value)).collect();
            Condition::Bloom(BloomFilter::of(&cells, random.between(5, 8) as u32, random.pick(&[0, 42])))
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

/// Draws an alteration of a table with this name. `next` is the first unused number of a column, `gone` has ranges that
/// the table had. `None` if nothing of the kind is possible.
pub fn alteration(
    random: &mut RandomStream,
    step: TableStep,
    (name, table): (&str, &ModelTable),
    next: ColNo,
    gone: &[RangeSpec],
) -> Option<Alteration> {
    let steps = match step {
        TableStep::AddColumn => vec![added(random, table, next)],
        TableStep::Several => {
            let mut steps = vec![added(random, table, next)];
            steps.extend(changed(random, TableStep::RenameColumn, table));
            // Steps are made one after the other: the layout is that of a column under its new name.
            let renamed = after(name, table, &steps).1;
            steps.extend(changed(random, TableStep::ChangeLayout, &renamed));
            steps
        }
        TableStep::DropColumn
        | TableStep::RenameColumn
        | TableStep::ChangeDefault
        | TableStep::ChangeLayout => vec![changed(random, step, table)?],
        TableStep::RenameTable => {
            let number = table.spec.number;
            vec![AlterStep::NameTable(format!("model{number}-{}", random.below(1_000)))]
        }
        TableStep::AddRange => {
            let apart = |range: &&RangeSpec| table.ranges.iter().all(|other| disjoint(table, range, other));
            let free: Vec<&RangeSpec> = gone.iter().filter(apart).collect();
            let range = free.get(random.below(free.len() as u64) as usize)?;
            vec![AlterStep::AddRange(cut(random, table, range))]
        }
        TableStep::DropRange if table.ranges.len() > 1 => {
            let at = random.below(table.ranges.len() as u64) as usize;
            vec![AlterStep::DropRange(table.ranges[at].clone())]
        }
        TableStep::AddRanges => {
            let added = range_draws::added(random, table, gone)?;
            added.into_iter().map(AlterStep::AddRange).collect()
        }
        TableStep::ReplaceRanges => {
            let (dropped, added) = range_draws::replaced(random, table, gone)?;
            let dropped = dropped.into_iter().map(AlterStep::DropRange);
            dropped.chain(added.into_iter().map(AlterStep::AddRange)).collect()
        }
        TableStep::DropRange | TableStep::Refused | TableStep::HideAndRecall | TableStep::Recreate => {
            return None;
        }
    };
    let (name, table) = after(name, table, &steps);
    Some(Alteration { steps, name, table })
}

/// Returns a range or one side of it: what a client remembers of the whole then overlaps with what there is.
fn cut(random: &mut RandomStream, table: &ModelTable, range: &RangeSpec) -> RangeSpec {
    use crate::wire::keys::range_key;
    let mut range = range.clone();
    let first = table.spec.range.first().and_then(|number| table.column(*number));
    let Some(first) = first.filter(|_| random.percent(CUT_PERCENT)) else { return range };
    let at = vec![draw::value(random, first.kind)];
    let key = range_key(table, &at);
    let above = range.low.is_empty() || range_key(table, &range.low) < key;
    let below = range.high.is_empty() || key < range_key(table, &range.high);
    // The encoded key of the empty text is that of no bound.
    if above && below && at[0] != Value::bytes(b"") {
        let side = if random.percent(50) { &mut range.low } else { &mut range.high };
        *side = at;
    }
    range
}

fn disjoint(table: &ModelTable, one: &RangeSpec, other: &RangeSpec) -> bool {
    use crate::wire::keys::range_key;
    let below = |high: &[Value], low: &[Value]| {
        !high.is_empty() && !low.is_empty() && range_key(table, high) <= range_key(table, low)
    };
    below(&one.high, &other.low) || below(&other.high, &one.low)
}

pub(super) fn added(random: &mut RandomStream, table: &ModelTable, next: ColNo) -> AlterStep {
    // A name that the table had before now and then: its old cells must not come back.
    let reused = format!("c{}", random.below(u64::from(next) + 1));
    let free = table.columns.iter().all(|column| column.name != reused);
    let name = if free && random.percent(60) { reused } else { format!("c{next}n") };
    let mut column = draw::value_column(random, table.spec.number, next, name);
    if !column.nullable && column.read.is_none() {
        let default = draw::value(random, column.kind);
        (column.read, column.write) = (Some(default.clone()), Some(default));
    }
    AlterStep::Add(column)
}

/// Draws a step that changes one of the value columns.
pub(super) fn changed(random: &mut RandomStream, step: TableStep, table: &ModelTable) -> Option<AlterStep> {
    let values = table.columns[usize::from(table.spec.keys)..].iter();
    let values: Vec<&ColumnSpec> = values.filter(|column| Some(column.number) != table.origin()).collect();
    if values.is_empty() {
        return None;
    }
    let column = *values.get(random.below(values.len() as u64) as usize)?;
    let name = column.name.clone();
    match step {
        TableStep::DropColumn => (values.len() > 1).then_some(AlterStep::Drop(name)),
        TableStep::RenameColumn => {
            let new = format!("r{}x{}", column.number, random.below(4));
            let free = table.columns.iter().all(|column| column.name != new);
            free.then_some(AlterStep::Rename(name, new))
        }
        TableStep::ChangeDefault => {
            let default = random.percent(70).then(|| draw::value(random, column.kind));
            Some(AlterStep::Default(column.clone(), default))
        }
        _ => {
            let encoding = draw::encoding(random, column.kind);
            Some(AlterStep::Layout(name, encoding, random.pick(CompressionWord::ALL)))
        }
    }
}

/// Returns a table after steps.
pub(super) fn after(name: &str, table: &ModelTable, steps: &[AlterStep]) -> (String, ModelTable) {
    let (mut name, mut table) = (name.to_string(), table.clone());
    for step in steps {
        let find = |table: &mut ModelTable, name: &str, change: &dyn Fn(&mut ColumnSpec)| {
            table.columns.iter_mut().filter(|column| column.name == name).for_each(change);
        };
        match step {
            AlterStep::Add(column) => table.columns.push(column.clone()),
            AlterStep::Drop(name) => table.columns.retain(|column| column.name != *name),
            AlterStep::Rename(old, new) => find(&mut table, old, &|column| column.name.clone_from(new)),
            AlterStep::Default(of, value) => {
                find(&mut table, &of.name, &|column| column.write.clone_from(value));
            }
            AlterStep::Layout(name, encoding, compression) => find(&mut table, name, &|column| {
                (column.encoding, column.compression) = (*encoding, *compression);
            }),
            AlterStep::AddRange(range) => table.ranges.push(range.clone()),
            AlterStep::DropRange(range) => table.ranges.retain(|other| other != range),
            AlterStep::NameTable(new) => name.clone_from(new),
        }
    }
    (name, table)
}
