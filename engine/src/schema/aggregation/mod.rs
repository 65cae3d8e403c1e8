//! Aggregation of rows by column: groups, and a few values of each group.
//!
//! ```text
//!   RowBlock ─▶ groups.rs   a group number for each row    ─┐
//!            └▶ states.rs   its cells folded into the group ─┴▶ finish: a RowBlock, one row for each group
//! ```
//!
//! The result is partial: a reader that adds the rows of several aggregators has a group several times, and merges
//! counts and sums by adding them, minima and maxima by comparing them.
//!
//! - NULL is a group of its own, and is skipped by all functions but `COUNT(*)`.
//! - Sums of integers and decimals are exact. One that its type cannot hold comes in parts: the group has more rows,
//!   whose counts are 0 and whose other values are NULL. Parts of several sums share these rows, so that a result has
//!   no more rows than were added.
//! - A group column or an aggregate is named once. Each copies cells, so repeats would multiply the memory of a block.
//! - Floating-point columns have no groups, minima or maxima: SQL engines order NaN and the zeros differently.
//! - Invariant: groups are returned in the order of their first rows, and parts of sums after them, so that equal rows
//!   give equal bytes.

mod function;
mod groups;
mod states;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub use self::function::AggregateFunction;
use self::function::is_ordered;
use self::groups::{CELL_BYTES, GroupTable};
use self::states::AggregateState;
use super::row_block::{ProjectedColumn, RowBlock};
use crate::error::{Error, Result};

/// A function of a column, by its position in the projection. `COUNT(*)` has no column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Aggregate {
    pub function: AggregateFunction,
    pub column: Option<usize>,
}

/// Description of an aggregation of the rows of a projection.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Aggregation {
    /// Columns whose cells make a group, by their positions in the projection; none for one group of all rows.
    pub group_by: Vec<usize>,
    pub aggregates: Vec<Aggregate>,
}

impl Aggregation {
    /// Returns the columns of the result: those of the groups, then one for each aggregate. Fails with `Invalid` for
    /// a position outside the projection, and with `Unsupported` for a function that a column's type does not have, and
    /// for a group column or an aggregate that is named twice.
    pub fn output(&self, projection: &[ProjectedColumn]) -> Result<Vec<ProjectedColumn>> {
        let column = |at: usize| {
            let outside = || Error::invalid(format!("aggregation: there is no projected column {at}"));
            projection.get(at).ok_or_else(outside)
        };
        let mut output = Vec::with_capacity(self.group_by.len() + self.aggregates.len());
        for (number, at) in self.group_by.iter().enumerate() {
            let group = column(*at)?;
            check_group(group)?;
            check_first(&self.group_by, number, &group.name)?;
            output.push(group.clone());
        }
        for (number, aggregate) in self.aggregates.iter().enumerate() {
            let of = aggregate.column.map(column).transpose()?;
            let result = aggregate_column(aggregate.function, of)?;
            check_first(&self.aggregates, number, &result.name)?;
            output.push(result);
        }
        Ok(output)
    }
}

fn check_group(column: &ProjectedColumn) -> Result<()> {
    if is_ordered(column.ty) {
        return Ok(());
    }
    let (name, ty) = (&column.name, column.ty.name());
    Err(Error::unsupported(format!("aggregation: groups of column {name:?} of type {ty} are not supported")))
}

/// Returns an error if the part at this position equals an earlier one. After `Unsupported` an older reader, which may
/// repeat a part, reads the rows instead.
fn check_first<T: PartialEq>(parts: &[T], at: usize, name: &str) -> Result<()> {
    if !parts[..at].contains(&parts[at]) {
        return Ok(());
    }
    Err(Error::unsupported(format!("aggregation: {name} is named twice; name it once")))
}

/// Returns the result column of a function.
fn aggregate_column(function: AggregateFunction, of: Option<&ProjectedColumn>) -> Result<ProjectedColumn> {
    let argument = of.map_or("*", |column| column.name.as_str());
    let name = format!("{}({argument})", function.name());
    let Some((ty, nullable)) = function.result(of.map(|column| column.ty)) else {
        let ty = of.map_or("no column", |column| column.ty.name());
        return Err(Error::unsupported(format!("aggregation: {name} of type {ty} is not supported")));
    };
    Ok(ProjectedColumn { id: None, name, ty, nullable, read_default: None })
}

/// Aggregation in progress. Its memory grows with the number of groups: see [`Aggregator::byte_size`].
pub struct Aggregator {
    aggregation: Arc<Aggregation>,
    groups: GroupTable,
    states: Vec<AggregateState>,
    rows: u64,
}

impl Aggregator {
    /// Creates an aggregator of rows of a projection for which [`Aggregation::output`] succeeds.
    pub fn new(aggregation: &Arc<Aggregation>, projection: &[ProjectedColumn]) -> Aggregator {
        let groups: Vec<ProjectedColumn> =
            aggregation.group_by.iter().map(|at| projection[*at].clone()).collect();
        let state = |aggregate: &Aggregate| {
            AggregateState::new(aggregate.function, aggregate.column.map(|at| projection[at].ty))
        };
        Aggregator {
            groups: GroupTable::new(&groups),
            states: aggregation.aggregates.iter().map(state).collect(),
            aggregation: aggregation.clone(),
            rows: 0,
        }
    }

    /// Adds rows.
    pub fn add(&mut self, block: &RowBlock) {
        if block.rows == 0 {
            return;
        }
        let columns: Vec<_> = self.aggregation.group_by.iter().map(|at| &block.columns[*at]).collect();
        let groups = self.groups.assign(&columns, block.rows);
        for (state, aggregate) in self.states.iter_mut().zip(&self.aggregation.aggregates) {
            state.add(aggregate.column.map(|at| &block.columns[at]), &groups);
        }
        self.rows += block.rows as u64;
    }

    /// Rows added.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Bytes of memory for the groups so far, about.
    pub fn byte_size(&self) -> usize {
        let rows: BTreeSet<PartPlace> =
            self.states.iter().flat_map(|state| places(state.part_groups())).collect();
        let of_row = |place: &PartPlace| self.groups.key_bytes(place.group) + self.states.len() * CELL_BYTES;
        let of_states = self.states.iter().map(AggregateState::byte_size);
        self.groups.byte_size() + of_states.chain(rows.iter().map(of_row)).sum::<usize>()
    }

    /// Returns one row for each group, and more for the parts of sums that their types cannot hold; none if no row was
    /// added.
    pub fn finish(self) -> RowBlock {
        let part_rows = self.part_rows();
        let rows = self.groups.len();
        let mut columns = self.groups.into_keys();
        columns.extend(self.states.into_iter().map(AggregateState::into_column));
        let mut block = RowBlock { rows, columns };
        for (place, parts) in &part_rows {
            add_parts(&mut block, &self.aggregation, place.group, parts);
        }
        block
    }

    /// Returns the rows of parts: for each the positions of its sums, and the parts.
    fn part_rows(&self) -> BTreeMap<PartPlace, Vec<(usize, Vec<u8>)>> {
        let mut rows: BTreeMap<PartPlace, Vec<(usize, Vec<u8>)>> = BTreeMap::new();
        for (at, state) in self.states.iter().enumerate() {
            for (place, part) in places(state.part_groups()).zip(state.parts()) {
                rows.entry(place).or_default().push((at, part));
            }
        }
        rows
    }
}

/// Row of parts of sums.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct PartPlace {
    group: usize,
    /// Number of the part among those of the group in one sum.
    number: usize,
}

/// Returns the rows of the parts of one sum, whose groups these are.
fn places(groups: impl Iterator<Item = usize>) -> impl Iterator<Item = PartPlace> {
    let mut numbers: BTreeMap<usize, usize> = BTreeMap::new();
    groups.map(move |group| {
        let number = numbers.entry(group).or_default();
        *number += 1;
        PartPlace { group, number: *number }
    })
}

/// Adds a row to a result that adds nothing to a group but parts of the sums at their positions.
fn add_parts(block: &mut RowBlock, aggregation: &Aggregation, group: usize, parts: &[(usize, Vec<u8>)]) {
    let (keys, values) = block.columns.split_at_mut(aggregation.group_by.len());
    for key in keys {
        let cell = key.cell(group).map(<[u8]>::to_vec);
        key.push(cell.as_deref());
    }
    let none = 0i64.to_le_bytes();
    for (number, value) in values.iter_mut().enumerate() {
        let is_count = aggregation.aggregates[number].function == AggregateFunction::Count;
        let part = parts.iter().find(|(at, _)| *at == number).map(|(_, part)| part.as_slice());
        value.push(part.or(is_count.then_some(&none[..])));
    }
    block.rows += 1;
}
