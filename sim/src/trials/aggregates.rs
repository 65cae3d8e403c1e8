//! Aggregations of the rows of a scan by the engine, as a server makes them, compared with those of the rows
//! that the same scan returned.
//!
//! ```text
//!   blocks of a scan ──┬──► rows ──► the model's?  [`super::scans`]
//!                      │     └──► groups and values by the rules of SQL ──┐ equal?
//!                      └──► engine: Aggregator ──► groups, values ────────┘
//! ```
//!
//! The rows are compared with the model's, so the aggregates are too, in whatever order the scan returns its
//! rows and whatever its conditions leave open.

use std::collections::BTreeMap;
use std::sync::Arc;

use engine::error::{Error, ErrorKind, Result};
use engine::schema::aggregation::{Aggregate, AggregateFunction, Aggregation, Aggregator};
use engine::schema::row_block::{ColumnBlock, ProjectedColumn, RowBlock};
use engine::schema::{DataType, PhysicalType};
use sim_plan::RandomStream;
use sim_plan::tables::{ColumnKind, ColumnSpec, TypeWord, Value};

use crate::wire::scan::ScanRow;

/// Most aggregates of a scan.
const AGGREGATES: u64 = 5;
/// Percentage of aggregations with parts that the engine may have to refuse, and of aggregates of all rows.
const CARELESS_PERCENT: u64 = 10;
const ALL_ROWS_PERCENT: u64 = 15;

/// A group with its values, both in the order of the aggregation.
type Group = (Vec<Value>, Vec<Value>);

/// An aggregation of the rows of a scan, in progress.
pub(super) struct Totals<'a> {
    columns: &'a [&'a ColumnSpec],
    projection: &'a [ProjectedColumn],
    aggregation: Arc<Aggregation>,
    /// The columns of the result, or the refusal.
    output: Result<Vec<ProjectedColumn>>,
    aggregator: Option<Aggregator>,
    /// True if each block of the scan is added by itself.
    pub by_block: bool,
}

impl<'a> Totals<'a> {
    /// Draws an aggregation of these columns, which the projection begins with. The draws have a stream of
    /// their own: an aggregation changes no draw of its trial.
    pub(super) fn draw(
        seed: u64,
        columns: &'a [&'a ColumnSpec],
        projection: &'a [ProjectedColumn],
    ) -> Totals<'a> {
        let random = &mut RandomStream::new(seed ^ columns.len() as u64, "aggregation");
        let mut aggregation = drawn(random, columns.len() as u64);
        if !random.percent(CARELESS_PERCENT) {
            make_valid(&mut aggregation, columns);
        }
        let aggregation = Arc::new(aggregation);
        let output = aggregation.output(projection);
        let aggregator = output.is_ok().then(|| Aggregator::new(&aggregation, projection));
        Totals { columns, projection, aggregation, output, aggregator, by_block: random.percent(50) }
    }

    /// Adds rows of the scan.
    pub(super) fn add(&mut self, block: &RowBlock) {
        self.aggregator.iter_mut().for_each(|aggregator| aggregator.add(block));
    }

    /// Returns the first difference of the engine's aggregates from those of the rows.
    pub(super) fn difference(self, rows: &[ScanRow]) -> Option<String> {
        let valid = is_valid(&self.aggregation, self.columns);
        let what = match (&self.output, valid) {
            (Ok(output), true) => self.wrong_columns(output),
            (Ok(_), false) => Some("it is not refused".to_string()),
            (Err(Error { kind: ErrorKind::Unsupported, .. }), false) => return None,
            (Err(error), _) => Some(format!("it is refused: {error}")),
        };
        let told = format!("{:?}", self.aggregation);
        what.or_else(|| self.wrong_groups(rows)).map(|what| format!("aggregation {told}: {what}"))
    }

    /// Returns what is wrong with the types of the result.
    fn wrong_columns(&self, output: &[ProjectedColumn]) -> Option<String> {
        let keys = self.aggregation.group_by.iter().map(|at| {
            let column = &self.projection[*at];
            (column.ty, column.nullable)
        });
        let values = self.aggregation.aggregates.iter().map(|aggregate| self.type_of(*aggregate));
        let wanted: Vec<(DataType, bool)> = keys.chain(values).collect();
        let found: Vec<(DataType, bool)> = output.iter().map(|column| (column.ty, column.nullable)).collect();
        (found != wanted).then(|| format!("its columns are {found:?} instead of {wanted:?}"))
    }

    /// Returns the type of an aggregate, and true if it may be NULL.
    fn type_of(&self, aggregate: Aggregate) -> (DataType, bool) {
        let number = match result(aggregate.function, self.kind_of(aggregate)) {
            Some(ResultKind::Count) => return (DataType::Int64, false),
            Some(ResultKind::Sum) => DataType::Int64,
            Some(ResultKind::DecimalSum) => DataType::Decimal128,
            Some(ResultKind::DoubleSum) => DataType::Double,
            Some(ResultKind::Extreme) | None => {
                let column = aggregate.column.map(|at| self.projection[at].ty);
                column.unwrap_or(DataType::Int64)
            }
        };
        (number, true)
    }

    fn kind_of(&self, aggregate: Aggregate) -> Option<ColumnKind> {
        aggregate.column.map(|at| self.columns[at].kind)
    }

    /// Returns the first difference of the engine's groups from those of the rows.
    fn wrong_groups(self, rows: &[ScanRow]) -> Option<String> {
        let (wanted, kinds, keys) = (self.groups_of(rows), self.kinds(), self.aggregation.group_by.len());
        let wanted_parts = self.part_rows(rows);
        let results: Vec<Option<ResultKind>> = self.results();
        let (aggregator, output) = (self.aggregator?, self.output.ok()?);
        let (added, counted) = (aggregator.rows(), aggregator.byte_size());
        let block = aggregator.finish();
        if added != rows.len() as u64 {
            return Some(format!("{added} rows are counted instead of {}", rows.len()));
        }
        // A reply is full by this size.
        let bytes = block.byte_size();
        if block.rows > 0 && counted < bytes {
            return Some(format!("{counted} bytes are counted of a result of {bytes}"));
        }
        let other = block.columns.iter().zip(&output).find(|(cells, column)| !is_of(cells, column));
        if let Some((cells, column)) = other {
            return Some(format!("column {column:?} is {:?}", cells.empty_like()));
        }
        let Some(found) = groups(&block, &kinds, keys) else {
            return Some("a cell has no value".to_string());
        };
        let Some((found, part_rows)) = with_whole_sums(found, &results) else {
            return Some("a group comes twice, or after parts of sums".to_string());
        };
        let same = found.len() == wanted.len()
            && found.iter().zip(&wanted).all(|(one, other)| is_same_group(one, other));
        if !same {
            return Some(format!("the groups are {found:?} instead of {wanted:?}"));
        }
        (part_rows != wanted_parts)
            .then(|| format!("{part_rows:?} rows are parts of sums instead of {wanted_parts:?}"))
    }

    fn results(&self) -> Vec<Option<ResultKind>> {
        let aggregates = self.aggregation.aggregates.iter();
        aggregates.map(|aggregate| result(aggregate.function, self.kind_of(*aggregate))).collect()
    }

    /// Returns the types of the result's cells.
    fn kinds(&self) -> Vec<ColumnKind> {
        let keys = self.aggregation.group_by.iter().map(|at| self.columns[*at].kind);
        let value = |aggregate: &Aggregate| {
            let of = self.kind_of(*aggregate);
            match result(aggregate.function, of) {
                Some(ResultKind::Extreme) => of.unwrap_or(ColumnKind::plain(TypeWord::Int64)),
                Some(ResultKind::DecimalSum) => ColumnKind::plain(TypeWord::Decimal128),
                Some(ResultKind::DoubleSum) => ColumnKind::plain(TypeWord::Double),
                Some(ResultKind::Count | ResultKind::Sum) | None => ColumnKind::plain(TypeWord::Int64),
            }
        };
        keys.chain(self.aggregation.aggregates.iter().map(value)).collect()
    }

    /// Returns the groups of rows in the order of their first rows.
    fn groups_of(&self, rows: &[ScanRow]) -> Vec<Group> {
        let values = |rows: &[&ScanRow]| {
            self.aggregation.aggregates.iter().map(|aggregate| self.value(*aggregate, rows)).collect()
        };
        self.members_of(rows).into_iter().map(|(key, rows)| (key, values(&rows))).collect()
    }

    /// Returns the rows of parts of sums for each group: as many as the sum that comes in most parts.
    fn part_rows(&self, rows: &[ScanRow]) -> Vec<usize> {
        let parts = |rows: &[&ScanRow]| {
            let aggregates = self.aggregation.aggregates.iter();
            aggregates.map(|aggregate| self.sum_parts(*aggregate, rows)).max().unwrap_or_default()
        };
        self.members_of(rows).into_iter().map(|(_, rows)| parts(&rows)).collect()
    }

    /// Returns how often the next cell of a sum does not fit its type.
    fn sum_parts(&self, aggregate: Aggregate, rows: &[&ScanRow]) -> usize {
        let fits: fn(i128) -> bool =
            match (result(aggregate.function, self.kind_of(aggregate)), aggregate.column) {
                (Some(ResultKind::Sum), Some(_)) => |sum| i64::try_from(sum).is_ok(),
                (Some(ResultKind::DecimalSum), Some(_)) => |_| true,
                _ => return 0,
            };
        let cells = rows.iter().filter_map(|row| row.values[aggregate.column?].number());
        let (mut sum, mut parts) = (0i128, 0);
        for cell in cells {
            sum = match sum.checked_add(cell).filter(|sum| fits(*sum)) {
                Some(sum) => sum,
                None => {
                    parts += 1;
                    cell
                }
            };
        }
        parts
    }

    /// Returns the rows of each group, in the order of their first rows.
    fn members_of<'r>(&self, rows: &'r [ScanRow]) -> Vec<(Vec<Value>, Vec<&'r ScanRow>)> {
        let mut places: BTreeMap<Vec<Value>, usize> = BTreeMap::new();
        let mut members: Vec<(Vec<Value>, Vec<&ScanRow>)> = Vec::new();
        for row in rows {
            let key: Vec<Value> =
                self.aggregation.group_by.iter().map(|at| row.values[*at].clone()).collect();
            let at = *places.entry(key.clone()).or_insert_with(|| {
                members.push((key, Vec::new()));
                members.len() - 1
            });
            members[at].1.push(row);
        }
        members
    }

    fn value(&self, aggregate: Aggregate, rows: &[&ScanRow]) -> Value {
        let Some(at) = aggregate.column else { return Value::Int(rows.len() as i128) };
        let cells = rows.iter().map(|row| &row.values[at]).filter(|cell| !cell.is_null());
        let cells: Vec<&Value> = cells.collect();
        match result(aggregate.function, self.kind_of(aggregate)) {
            Some(ResultKind::Count) => Value::Int(cells.len() as i128),
            _ if cells.is_empty() => Value::Null,
            Some(ResultKind::Sum | ResultKind::DecimalSum) => Value::Int(sum(&cells)),
            Some(ResultKind::DoubleSum) => double_sum(self.columns[at].kind, &cells),
            Some(ResultKind::Extreme) => extreme(self.columns[at].kind, aggregate.function, &cells),
            None => Value::Null,
        }
    }
}

/// Kind of an aggregate's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ResultKind {
    Count,
    /// A sum of integers.
    Sum,
    DecimalSum,
    DoubleSum,
    /// One of the cells.
    Extreme,
}

/// Returns the kind of a function's value; `None` if the function has none for the type.
fn result(function: AggregateFunction, of: Option<ColumnKind>) -> Option<ResultKind> {
    use TypeWord::{Decimal32, Decimal64, Decimal128, Double, Float, Int8, Int16, Int32, Int64};
    let Some(kind) = of else {
        return (function == AggregateFunction::Count).then_some(ResultKind::Count);
    };
    let is_integer = matches!(kind.word, Int8 | Int16 | Int32 | Int64);
    let is_float = matches!(kind.word, Float | Double);
    match function {
        AggregateFunction::Count => Some(ResultKind::Count),
        AggregateFunction::Sum if is_integer => Some(ResultKind::Sum),
        AggregateFunction::Sum if is_float => Some(ResultKind::DoubleSum),
        AggregateFunction::Sum => {
            matches!(kind.word, Decimal32 | Decimal64 | Decimal128).then_some(ResultKind::DecimalSum)
        }
        AggregateFunction::SumAsDouble => (is_integer || is_float).then_some(ResultKind::DoubleSum),
        AggregateFunction::Min | AggregateFunction::Max => has_groups(kind).then_some(ResultKind::Extreme),
    }
}

/// Returns true if the cells of a type make groups, and have a smallest and a largest one: SQL has the type,
/// and its engines agree about order and equality.
fn has_groups(kind: ColumnKind) -> bool {
    use TypeWord::{Double, Float, Int128, Uint8, Uint16, Uint32, Uint64};
    !matches!(kind.word, Float | Double | Int128 | Uint8 | Uint16 | Uint32 | Uint64)
}

/// Adds the parts of sums that their types cannot hold: rows after those of the groups. Returns the groups, and the
/// number of rows of parts of each; `None` for a row that is neither.
fn with_whole_sums(found: Vec<Group>, results: &[Option<ResultKind>]) -> Option<(Vec<Group>, Vec<usize>)> {
    let mut places: BTreeMap<Vec<Value>, usize> = BTreeMap::new();
    let (mut whole, mut part_rows): (Vec<Group>, Vec<usize>) = (Vec::new(), Vec::new());
    for (key, values) in found {
        let Some(place) = places.get(&key) else {
            if part_rows.iter().any(|rows| *rows > 0) {
                return None;
            }
            places.insert(key.clone(), whole.len());
            whole.push((key, values));
            part_rows.push(0);
            continue;
        };
        for (at, part) in parts_of_sums(&values, results)? {
            let sum = &mut whole[*place].1[at];
            *sum = Value::Int(sum.number().unwrap_or_default().wrapping_add(part));
        }
        part_rows[*place] += 1;
    }
    Some((whole, part_rows))
}

/// Returns the parts in a row that adds to a group, with their positions; `None` for another row.
fn parts_of_sums(values: &[Value], results: &[Option<ResultKind>]) -> Option<Vec<(usize, i128)>> {
    let mut parts = Vec::new();
    for (at, (value, result)) in values.iter().zip(results).enumerate() {
        match result {
            Some(ResultKind::Count) if *value == Value::Int(0) => {}
            Some(ResultKind::Sum | ResultKind::DecimalSum) if !value.is_null() => {
                parts.push((at, value.number()?))
            }
            Some(ResultKind::Count) => return None,
            _ if value.is_null() => {}
            _ => return None,
        }
    }
    (!parts.is_empty()).then_some(parts)
}

/// Draws an aggregation, parts of which may have no result or come twice.
fn drawn(random: &mut RandomStream, columns: u64) -> Aggregation {
    let keys = random.pick(&[0, 0, 1, 1, 2]);
    let group_by = (0..keys).map(|_| random.below(columns) as usize).collect();
    let count = random.between(1, AGGREGATES);
    let mut aggregate = || {
        let of_all = random.percent(ALL_ROWS_PERCENT);
        let (function, at) = (random.pick(&AggregateFunction::ALL), random.below(columns) as usize);
        match of_all {
            true => Aggregate { function: AggregateFunction::Count, column: None },
            false => Aggregate { function, column: Some(at) },
        }
    };
    let aggregates = (0..count).map(|_| aggregate()).collect();
    Aggregation { group_by, aggregates }
}

/// Leaves out the parts that have no result or come twice.
fn make_valid(aggregation: &mut Aggregation, columns: &[&ColumnSpec]) {
    let group_by = std::mem::take(&mut aggregation.group_by);
    aggregation.group_by = once(group_by.into_iter().filter(|at| has_groups(columns[*at].kind)));
    let aggregates = std::mem::take(&mut aggregation.aggregates);
    let has_result = |aggregate: &Aggregate| {
        result(aggregate.function, aggregate.column.map(|at| columns[at].kind)).is_some()
    };
    aggregation.aggregates = once(aggregates.into_iter().filter(has_result));
}

fn is_valid(aggregation: &Aggregation, columns: &[&ColumnSpec]) -> bool {
    let mut valid = aggregation.clone();
    make_valid(&mut valid, columns);
    valid == *aggregation
}

/// Returns the parts without repeats.
fn once<T: PartialEq>(parts: impl Iterator<Item = T>) -> Vec<T> {
    parts.fold(Vec::new(), |mut kept, part| {
        if !kept.contains(&part) {
            kept.push(part);
        }
        kept
    })
}

fn sum(cells: &[&Value]) -> i128 {
    cells.iter().filter_map(|cell| cell.number()).fold(0, i128::wrapping_add)
}

fn double_sum(kind: ColumnKind, cells: &[&Value]) -> Value {
    let double = |cell: &Value| match (cell, kind.word) {
        (Value::Bits(bits), TypeWord::Float) => f64::from(f32::from_bits(*bits as u32)),
        (Value::Bits(bits), _) => f64::from_bits(*bits),
        (cell, _) => cell.number().unwrap_or_default() as f64,
    };
    Value::Bits(cells.iter().fold(0.0, |sum, cell| sum + double(cell)).to_bits())
}

fn extreme(kind: ColumnKind, function: AggregateFunction, cells: &[&Value]) -> Value {
    let mut best: Option<&Value> = None;
    for cell in cells {
        let is_better = best.is_none_or(|best| match function {
            AggregateFunction::Max => kind.compare(cell, best).is_some_and(std::cmp::Ordering::is_gt),
            _ => kind.compare(cell, best).is_some_and(std::cmp::Ordering::is_lt),
        });
        if is_better {
            best = Some(cell);
        }
    }
    best.cloned().unwrap_or(Value::Null)
}

/// Returns true if cells have the form of a column.
fn is_of(cells: &ColumnBlock, column: &ProjectedColumn) -> bool {
    let physical: PhysicalType = column.ty.physical();
    cells.empty_like() == ColumnBlock::new(physical, column.nullable)
}

/// Returns the groups of a result, `keys` columns of which are those of the groups; `None` if a cell is of
/// another width than its type has.
fn groups(block: &RowBlock, kinds: &[ColumnKind], keys: usize) -> Option<Vec<Group>> {
    let value = |row: usize, (cells, kind): (&ColumnBlock, &ColumnKind)| match cells.cell(row) {
        Some(cell) => kind.value(cell),
        None => Some(Value::Null),
    };
    let group = |row: usize| {
        let cells = block.columns.iter().zip(kinds).map(|cell| value(row, cell));
        let mut key: Vec<Value> = cells.collect::<Option<_>>()?;
        let values = key.split_off(keys);
        Some((key, values))
    };
    (0..block.rows).map(group).collect()
}

/// Returns true if two groups are equal. A sum that is NaN equals another one: their bits have no meaning.
fn is_same_group(one: &Group, other: &Group) -> bool {
    let same = |(one, other): (&Value, &Value)| match (one, other) {
        (Value::Bits(one), Value::Bits(other)) => {
            one == other || f64::from_bits(*one).is_nan() && f64::from_bits(*other).is_nan()
        }
        _ => one == other,
    };
    one.0 == other.0 && one.1.len() == other.1.len() && one.1.iter().zip(&other.1).all(same)
}

#[cfg(test)]
mod tests {
    use engine::ids::ColumnId;

    use super::*;
    use crate::trials::{draw, shape};

    /// Returns drawn rows of a drawn table, as values and as a block.
    fn rows_of(seed: u64) -> (Vec<ColumnSpec>, Vec<ProjectedColumn>, Vec<ScanRow>, RowBlock) {
        let random = &mut RandomStream::new(seed, "test");
        let table = draw::table(random);
        let schema = shape::schema_of(&table).expect("a model table has a schema");
        let projection: Vec<ProjectedColumn> = schema.columns().iter().map(ProjectedColumn::from).collect();
        let (mut rows, mut block) = (Vec::new(), RowBlock::new(&projection));
        for _ in 0..random.below(30) {
            let value = |column: &ColumnSpec| {
                let is_null = column.nullable && random.percent(30);
                if is_null { Value::Null } else { sim_plan::tables::draw::value(random, column.kind) }
            };
            let values: Vec<Value> = table.columns.iter().map(value).collect();
            let cells: Vec<Option<Vec<u8>>> =
                table.columns.iter().zip(&values).map(|(column, value)| column.kind.cell(value)).collect();
            block.push_row(cells.iter().map(Option::as_deref));
            rows.push(ScanRow { values, deleted: false });
        }
        (table.columns, projection, rows, block)
    }

    #[test]
    fn aggregates_of_sound_blocks_are_those_of_their_rows() {
        let (mut refused, mut kinds) = (0, std::collections::BTreeSet::new());
        for seed in 0..600 {
            let (columns, projection, rows, block) = rows_of(seed);
            let columns: Vec<&ColumnSpec> = columns.iter().collect();
            let mut totals = Totals::draw(seed, &columns, &projection);
            refused += u64::from(totals.output.is_err());
            for aggregate in totals.aggregation.aggregates.iter().filter(|_| totals.output.is_ok()) {
                kinds.extend(totals.kind_of(*aggregate).map(|kind| (kind.word, aggregate.function.name())));
            }
            totals.add(&block);
            assert_eq!(totals.difference(&rows), None, "seed {seed}");
        }
        assert!(refused > 10, "{refused}");
        assert!(kinds.len() > 50, "{kinds:?}");
    }

    #[test]
    fn an_aggregate_of_another_row_is_reported() {
        let mut reported = 0;
        for seed in 0..200 {
            let (columns, projection, mut rows, block) = rows_of(seed);
            let columns: Vec<&ColumnSpec> = columns.iter().collect();
            let mut totals = Totals::draw(seed, &columns, &projection);
            totals.add(&block);
            let is_aggregated = totals.output.is_ok();
            if rows.pop().is_some() && is_aggregated {
                assert!(totals.difference(&rows).is_some(), "seed {seed}");
                reported += 1;
            }
        }
        assert!(reported > 100, "{reported}");
    }

    #[test]
    fn a_value_that_differs_is_reported_and_nan_equals_nan() {
        let group = |value: f64| (vec![Value::Int(1)], vec![Value::Bits(value.to_bits())]);
        assert!(is_same_group(&group(f64::NAN), &group(-f64::NAN)));
        assert!(is_same_group(&group(1.5), &group(1.5)));
        assert!(!is_same_group(&group(0.0), &group(-0.0)));
        let column = ProjectedColumn {
            id: Some(ColumnId(0)),
            name: "k".to_string(),
            ty: DataType::Int64,
            nullable: true,
            read_default: None,
        };
        assert!(is_of(&ColumnBlock::new(PhysicalType::Int64, true), &column));
        assert!(!is_of(&ColumnBlock::new(PhysicalType::Int64, false), &column));
        assert!(!is_of(&ColumnBlock::new(PhysicalType::Int32, true), &column));
    }
}
