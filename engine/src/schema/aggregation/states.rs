//! Values of the groups so far, one vector for each aggregate.

use super::function::{AggregateFunction, is_decimal, is_float, is_integer};
use super::groups::RowGroups;
use crate::schema::row_block::{ColumnBlock, ColumnValues};
use crate::schema::{DataType, PhysicalType};

/// One aggregate of every group.
pub(super) struct AggregateState {
    /// Type of the aggregated column; of COUNT(*) it does not matter.
    physical: PhysicalType,
    values: Values,
}

/// Values by group. `None`: the group has no cell that is not NULL.
enum Values {
    Count(Vec<i64>),
    Sum(ExactSums<i64>),
    SumDecimal(ExactSums<i128>),
    SumDouble(Vec<Option<f64>>),
    /// Minima or maxima; the flag is true for maxima.
    Number(bool, Vec<Option<i128>>),
    Bytes(bool, Vec<Option<Box<[u8]>>>),
}

/// Sums by group. A sum that the type cannot hold has parts, so that nothing of it is lost.
struct ExactSums<T> {
    of_groups: Vec<Option<T>>,
    /// Groups and parts of their sums to which the next cell could not be added.
    parts: Vec<(usize, T)>,
}

impl<T> Default for ExactSums<T> {
    fn default() -> ExactSums<T> {
        ExactSums { of_groups: Vec::new(), parts: Vec::new() }
    }
}

impl<T: Addend> ExactSums<T> {
    #[inline]
    fn add(&mut self, group: usize, value: T) {
        let before = self.of_groups[group].unwrap_or_default();
        let sum = before.checked_sum(value).unwrap_or_else(|| {
            self.parts.push((group, before));
            value
        });
        self.of_groups[group] = Some(sum);
    }

    fn parts(&self, bytes: impl Fn(T) -> Vec<u8>) -> Vec<Vec<u8>> {
        self.parts.iter().map(|(_, part)| bytes(*part)).collect()
    }

    fn byte_size(&self) -> usize {
        size_of_val(self.of_groups.as_slice()) + size_of_val(self.parts.as_slice())
    }
}

impl AggregateState {
    pub(super) fn new(function: AggregateFunction, of: Option<DataType>) -> AggregateState {
        let ty = of.unwrap_or(DataType::Int64);
        let is_max = function == AggregateFunction::Max;
        let values = match function {
            AggregateFunction::Count => Values::Count(Vec::new()),
            AggregateFunction::SumAsDouble => Values::SumDouble(Vec::new()),
            AggregateFunction::Sum if is_decimal(ty) => Values::SumDecimal(ExactSums::default()),
            AggregateFunction::Sum if is_float(ty) => Values::SumDouble(Vec::new()),
            AggregateFunction::Sum => Values::Sum(ExactSums::default()),
            _ if is_integer(ty.physical()) => Values::Number(is_max, Vec::new()),
            _ => Values::Bytes(is_max, Vec::new()),
        };
        AggregateState { physical: ty.physical(), values }
    }

    /// Adds the cells of the column, or the rows if there is none.
    pub(super) fn add(&mut self, column: Option<&ColumnBlock>, groups: &RowGroups<'_>) {
        let (count, physical) = (groups.count(), self.physical);
        match (&mut self.values, column) {
            (Values::Count(counts), column) => {
                counts.resize(count, 0);
                count_cells(counts, column, groups);
            }
            (_, None) => {}
            (Values::Sum(sums), Some(column)) => {
                sums.of_groups.resize(count, None);
                each_integer(column, physical, |row, value: i64| sums.add(group_of(groups, row), value));
            }
            (Values::SumDecimal(sums), Some(column)) => {
                sums.of_groups.resize(count, None);
                each_integer(column, physical, |row, value: i128| sums.add(group_of(groups, row), value));
            }
            (Values::SumDouble(sums), Some(column)) => {
                sums.resize(count, None);
                each_double(column, physical, |row, value| {
                    let sum = slot(sums, groups, row);
                    *sum = Some(sum.unwrap_or(0.0) + value);
                });
            }
            (Values::Number(is_max, best), Some(column)) => {
                best.resize(count, None);
                let is_max = *is_max;
                each_integer(column, physical, |row, value: i128| {
                    let best = slot(best, groups, row);
                    if best.is_none_or(|best| if is_max { value > best } else { value < best }) {
                        *best = Some(value);
                    }
                });
            }
            (Values::Bytes(is_max, best), Some(column)) => {
                best.resize(count, None);
                compare_bytes(*is_max, best, column, groups);
            }
        }
    }

    pub(super) fn byte_size(&self) -> usize {
        match &self.values {
            Values::Count(values) => size_of_val(values.as_slice()),
            Values::Sum(sums) => sums.byte_size(),
            Values::SumDecimal(sums) => sums.byte_size(),
            Values::Number(_, values) => size_of_val(values.as_slice()),
            Values::SumDouble(values) => size_of_val(values.as_slice()),
            Values::Bytes(_, values) => {
                let cells = values.iter().flatten().map(|cell| cell.len()).sum::<usize>();
                cells + size_of_val(values.as_slice())
            }
        }
    }

    /// Returns the groups of [`AggregateState::parts`], in their order.
    pub(super) fn part_groups(&self) -> impl Iterator<Item = usize> + '_ {
        let (narrow, wide) = match &self.values {
            Values::Sum(sums) => (sums.parts.as_slice(), [].as_slice()),
            Values::SumDecimal(sums) => ([].as_slice(), sums.parts.as_slice()),
            _ => ([].as_slice(), [].as_slice()),
        };
        narrow.iter().map(|part| part.0).chain(wide.iter().map(|part| part.0))
    }

    /// Returns the parts of sums that the column of the result does not have.
    pub(super) fn parts(&self) -> Vec<Vec<u8>> {
        match &self.values {
            Values::Sum(sums) => sums.parts(|part| part.to_le_bytes().to_vec()),
            Values::SumDecimal(sums) => sums.parts(|part| part.to_le_bytes().to_vec()),
            _ => Vec::new(),
        }
    }

    /// Returns the values as a column of the result.
    pub(super) fn into_column(self) -> ColumnBlock {
        match self.values {
            Values::Count(values) => {
                let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
                ColumnBlock { values: ColumnValues::Fixed { width: 8, bytes }, validity: None }
            }
            Values::Sum(sums) => column(PhysicalType::Int64, sums.of_groups, |value| value.to_le_bytes()),
            Values::SumDecimal(sums) => {
                column(PhysicalType::Int128, sums.of_groups, |value| value.to_le_bytes())
            }
            Values::SumDouble(values) => column(PhysicalType::Double, values, |value| value.to_le_bytes()),
            Values::Number(_, values) => {
                let width = self.physical.width().unwrap_or(size_of::<i128>());
                let cell = |value: i128| Vec::from(&value.to_le_bytes()[..width]);
                column(self.physical, values, cell)
            }
            Values::Bytes(_, values) => column(self.physical, values, |value| value),
        }
    }
}

fn column<T, B: AsRef<[u8]>>(
    physical: PhysicalType,
    values: Vec<Option<T>>,
    cell: impl Fn(T) -> B,
) -> ColumnBlock {
    let mut column = ColumnBlock::new(physical, true);
    for value in values {
        let bytes = value.map(&cell);
        column.push(bytes.as_ref().map(AsRef::as_ref));
    }
    column
}

/// Returns the value of the row's group.
#[inline]
fn slot<'a, T>(values: &'a mut [T], groups: &RowGroups<'_>, row: usize) -> &'a mut T {
    &mut values[group_of(groups, row)]
}

#[inline]
fn group_of(groups: &RowGroups<'_>, row: usize) -> usize {
    match groups {
        RowGroups::One(_) => 0,
        RowGroups::Many(of_rows, _) => of_rows[row] as usize,
    }
}

fn count_cells(counts: &mut [i64], column: Option<&ColumnBlock>, groups: &RowGroups<'_>) {
    let validity = column.and_then(|column| column.validity.as_ref());
    match (groups, validity) {
        (RowGroups::One(rows), None) => counts[0] += *rows as i64,
        (RowGroups::One(_), Some(valid)) => counts[0] += valid.count() as i64,
        (RowGroups::Many(of_rows, _), None) => of_rows.iter().for_each(|group| counts[*group as usize] += 1),
        (RowGroups::Many(of_rows, _), Some(valid)) => {
            valid.ones().for_each(|row| counts[of_rows[row] as usize] += 1);
        }
    }
}

fn compare_bytes(is_max: bool, best: &mut [Option<Box<[u8]>>], column: &ColumnBlock, groups: &RowGroups<'_>) {
    for row in 0..column.len() {
        let Some(cell) = column.cell(row) else { continue };
        let best = slot(best, groups, row);
        if best.as_ref().is_none_or(|best| if is_max { cell > &best[..] } else { cell < &best[..] }) {
            *best = Some(cell.into());
        }
    }
}

/// Passes the number of every cell that is not NULL to `each`.
fn each_integer<T: From<i8> + From<i16> + From<i32> + From<i64> + Addend>(
    column: &ColumnBlock,
    physical: PhysicalType,
    each: impl FnMut(usize, T),
) {
    match physical {
        PhysicalType::Bool => each_fixed(column, |[cell]: [u8; 1]| T::from(i8::from(cell != 0)), each),
        PhysicalType::Int8 => each_fixed(column, |cell| T::from(i8::from_le_bytes(cell)), each),
        PhysicalType::Int16 => each_fixed(column, |cell| T::from(i16::from_le_bytes(cell)), each),
        PhysicalType::Int32 => each_fixed(column, |cell| T::from(i32::from_le_bytes(cell)), each),
        PhysicalType::Int64 => each_fixed(column, |cell| T::from(i64::from_le_bytes(cell)), each),
        PhysicalType::Int128 => each_fixed(column, |cell| T::from_wide(i128::from_le_bytes(cell)), each),
        other => unreachable!("cells of {other:?} are no integers of a table"),
    }
}

/// Integer of a sum.
trait Addend: Copy + Default {
    fn from_wide(wide: i128) -> Self;
    /// Returns the sum; `None` if the type cannot hold it.
    fn checked_sum(self, other: Self) -> Option<Self>;
}

impl Addend for i128 {
    fn from_wide(wide: i128) -> i128 {
        wide
    }

    fn checked_sum(self, other: i128) -> Option<i128> {
        self.checked_add(other)
    }
}

impl Addend for i64 {
    /// Columns of tables that are summed as INT64 are not wider.
    fn from_wide(wide: i128) -> i64 {
        wide as i64
    }

    fn checked_sum(self, other: i64) -> Option<i64> {
        self.checked_add(other)
    }
}

/// Passes the number of every cell that is not NULL to `each`, as a floating-point number.
fn each_double(column: &ColumnBlock, physical: PhysicalType, mut each: impl FnMut(usize, f64)) {
    match physical {
        PhysicalType::Float => each_fixed(column, |cell| f64::from(f32::from_le_bytes(cell)), each),
        PhysicalType::Double => each_fixed(column, f64::from_le_bytes, each),
        _ => each_integer(column, physical, |row, value: i64| each(row, value as f64)),
    }
}

/// Passes every cell of a width that is not NULL to `each`.
fn each_fixed<const WIDTH: usize, T>(
    column: &ColumnBlock,
    read: impl Fn([u8; WIDTH]) -> T,
    mut each: impl FnMut(usize, T),
) {
    let ColumnValues::Fixed { bytes, .. } = &column.values else { return };
    let (cells, _) = bytes.as_chunks::<WIDTH>();
    match &column.validity {
        None => cells.iter().enumerate().for_each(|(row, cell)| each(row, read(*cell))),
        Some(valid) => valid.ones().for_each(|row| each(row, read(cells[row]))),
    }
}
