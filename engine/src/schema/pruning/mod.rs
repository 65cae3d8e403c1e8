//! Partition pruning: limits that a scan's predicates put on keys, and so on tablets.
//!
//! Predicates on the first columns of a key become bounds of encoded keys. A column that is fixed from below (or
//! above) lets the next one count too. Hash dimensions whose columns are all fixed to a few values leave a few
//! buckets.
//!
//! A partition schema is as of a time: a range that was added since may have more buckets, or hash by other columns.
//! Keys that nothing narrows have no bounds, so that they include such a range. For narrowed keys the caller needs a
//! partition schema that is not older than its tablets.

use super::key::{decode_key_prefix, encode_cell, prefix_successor};
use super::partition::{HashDimension, PartitionSchema, prefix, prefix_end};
use super::partition_range::PartitionRange;
use super::predicate::{Predicate, PredicateKind, compare_cells};
use super::wire_hash::murmur2_64a;
use super::{ColumnSchema, Schema};
use crate::ids::ColumnId;

/// Most combinations of values that are hashed one by one.
const COMBINATIONS_MAX: usize = 4096;

/// Values of one column that its predicates allow.
#[derive(Default)]
struct ColumnBounds<'a> {
    /// Inclusive lower bound.
    lower: Option<&'a [u8]>,
    upper: Option<&'a [u8]>,
    upper_inclusive: bool,
}

fn pinned<'a>(column: &ColumnSchema, predicates: &'a [Predicate]) -> ColumnBounds<'a> {
    let physical = column.ty.physical();
    let mut pinned = ColumnBounds::default();
    for predicate in predicates.iter().filter(|predicate| predicate.column == column.id) {
        let (lower, upper, inclusive): (Option<&[u8]>, Option<&[u8]>, bool) = match &predicate.kind {
            PredicateKind::Range { lower, upper } | PredicateKind::InBloom { lower, upper, .. } => {
                (lower.as_deref(), upper.as_deref(), false)
            }
            PredicateKind::Equal(value) => (Some(value), Some(value), true),
            PredicateKind::InList(values) => {
                (values.first().map(Vec::as_slice), values.last().map(Vec::as_slice), true)
            }
            PredicateKind::IsNotNull | PredicateKind::IsNull => (None, None, false),
        };
        if let Some(lower) = lower
            && pinned.lower.is_none_or(|before| compare_cells(physical, lower, before).is_gt())
        {
            pinned.lower = Some(lower);
        }
        if let Some(upper) = upper
            && pinned.upper.is_none_or(|before| {
                let order = compare_cells(physical, upper, before);
                order.is_lt() || (order.is_eq() && pinned.upper_inclusive && !inclusive)
            })
        {
            pinned.upper = Some(upper);
            pinned.upper_inclusive = inclusive;
        }
    }
    pinned
}

/// Returns the encoded keys of `columns` that the predicates allow; `None` if there are none.
pub fn key_bounds(columns: &[ColumnSchema], predicates: &[Predicate]) -> Option<PartitionRange> {
    let impossible = |predicate: &Predicate| {
        let never = match &predicate.kind {
            PredicateKind::InList(values) => values.is_empty(),
            PredicateKind::IsNull => true,
            _ => false,
        };
        never && columns.iter().any(|column| column.id == predicate.column)
    };
    if predicates.iter().any(impossible) {
        return None;
    }
    let mut lower = Vec::new();
    for (i, column) in columns.iter().enumerate() {
        let Some(cell) = pinned(column, predicates).lower else { break };
        encode_cell(column.ty.physical(), cell, i + 1 == columns.len(), &mut lower);
    }
    let upper = upper_bound(columns, predicates);
    if upper.as_ref().is_some_and(|upper| lower >= *upper) {
        return None;
    }
    Some(PartitionRange { lower, upper: upper.unwrap_or_default() })
}

/// Returns the exclusive upper bound; `None` if nothing bounds the first column from above.
fn upper_bound(columns: &[ColumnSchema], predicates: &[Predicate]) -> Option<Vec<u8>> {
    let mut upper = Vec::new();
    for (i, column) in columns.iter().enumerate() {
        let last = i + 1 == columns.len();
        let physical = column.ty.physical();
        let ColumnBounds { upper: Some(cell), upper_inclusive, .. } = pinned(column, predicates) else {
            return prefix_successor(&upper);
        };
        encode_cell(physical, cell, last, &mut upper);
        if !upper_inclusive {
            return Some(upper);
        }
        if last && physical.width().is_none() {
            upper.push(0);
            return Some(upper);
        }
    }
    prefix_successor(&upper)
}

impl PartitionSchema {
    /// Returns the ranges of partition keys, ascending and disjoint, that contain every row which satisfies all
    /// predicates and whose encoded primary key is in `keys`. One range without bounds if nothing narrows them.
    pub fn prune(
        &self,
        schema: &Schema,
        predicates: &[Predicate],
        keys: &PartitionRange,
    ) -> Vec<PartitionRange> {
        let column = |id: &ColumnId| schema.by_id(*id).cloned();
        let Some(columns) = self.range_columns.iter().map(column).collect::<Option<Vec<_>>>() else {
            return vec![PartitionRange::default()];
        };
        if !keys.upper.is_empty() && keys.lower >= keys.upper {
            return Vec::new();
        }
        if key_bounds(schema.key_columns(), predicates).is_none() {
            return Vec::new();
        }
        let Some(of_predicates) = key_bounds(&columns, predicates) else { return Vec::new() };
        let of_keys = range_keys_of(schema, &columns, keys);
        let Some(bounds) = of_predicates.intersection(&of_keys) else { return Vec::new() };
        let mut hashes = self.custom.iter().map(|custom| &custom.hash).chain([&self.hash]);
        let is_narrowed = |hash: &Vec<HashDimension>| narrowed_dimensions(hash, schema, predicates) > 0;
        if bounds == PartitionRange::default() && !hashes.any(is_narrowed) {
            return vec![PartitionRange::default()];
        }
        self.ranges_within(bounds, schema, predicates)
    }

    /// Returns the partition keys of rows that satisfy all predicates and whose range keys are within `bounds`.
    fn ranges_within(
        &self,
        bounds: PartitionRange,
        schema: &Schema,
        predicates: &[Predicate],
    ) -> Vec<PartitionRange> {
        let mut ranges = Vec::new();
        let mut from = bounds.lower.clone();
        for custom in &self.custom {
            let custom_range = PartitionRange { lower: custom.lower.clone(), upper: custom.upper.clone() };
            if !custom_range.overlaps(&bounds) {
                continue;
            }
            if from < custom_range.lower {
                let gap = PartitionRange { lower: from, upper: custom_range.lower.clone() };
                push_ranges(&self.hash, &gap, schema, predicates, &mut ranges);
            }
            if let Some(part) = custom_range.intersection(&bounds) {
                push_ranges(&custom.hash, &part, schema, predicates, &mut ranges);
            }
            if custom_range.upper.is_empty() {
                return merged(ranges);
            }
            from = custom_range.upper;
        }
        if bounds.upper.is_empty() || from < bounds.upper {
            let rest = PartitionRange { lower: from, upper: bounds.upper };
            push_ranges(&self.hash, &rest, schema, predicates, &mut ranges);
        }
        merged(ranges)
    }
}

/// Converts bounds of primary keys to bounds of range keys, if the range columns are the first key columns.
fn range_keys_of(schema: &Schema, columns: &[ColumnSchema], keys: &PartitionRange) -> PartitionRange {
    let key_columns = schema.key_columns();
    let is_prefix = columns.len() <= key_columns.len()
        && columns.iter().zip(key_columns).all(|(range, key)| range.id == key.id);
    if !is_prefix || columns.is_empty() {
        return PartitionRange::default();
    }
    if columns.len() == key_columns.len() {
        return keys.clone();
    }
    let cut = |bound: &[u8]| {
        let (cells, _) = decode_key_prefix(key_columns, bound).ok()?;
        let cells = cells.get(..columns.len())?;
        let mut key = Vec::new();
        for (i, (column, cell)) in columns.iter().zip(cells).enumerate() {
            encode_cell(column.ty.physical(), cell, i + 1 == columns.len(), &mut key);
        }
        Some(key)
    };
    let upper = cut(&keys.upper).map(|mut upper| {
        // The columns cut off may be below the bound while these are equal to it.
        upper.push(0);
        upper
    });
    PartitionRange { lower: cut(&keys.lower).unwrap_or_default(), upper: upper.unwrap_or_default() }
}

fn push_ranges(
    hash: &[HashDimension],
    range: &PartitionRange,
    schema: &Schema,
    predicates: &[Predicate],
    out: &mut Vec<PartitionRange>,
) {
    // The range key follows the buckets. Without bounds of it, dimensions after the last narrowed one bound nothing.
    let is_unbounded = *range == PartitionRange::default();
    let count = if is_unbounded { narrowed_dimensions(hash, schema, predicates) } else { hash.len() };
    let mut prefixes: Vec<Vec<u32>> = vec![Vec::new()];
    for dimension in &hash[..count] {
        let buckets = buckets(dimension, schema, predicates);
        let grow = |before: &Vec<u32>| {
            let before = before.clone();
            buckets.iter().map(move |bucket| [before.as_slice(), &[*bucket]].concat()).collect::<Vec<_>>()
        };
        prefixes = prefixes.iter().flat_map(grow).collect();
    }
    for buckets in prefixes {
        let lower = [prefix(&buckets), range.lower.clone()].concat();
        let upper = match range.upper.as_slice() {
            [] => prefix_end(&buckets),
            upper => [prefix(&buckets), upper.to_vec()].concat(),
        };
        out.push(PartitionRange { lower, upper });
    }
}

fn merged(mut ranges: Vec<PartitionRange>) -> Vec<PartitionRange> {
    ranges.sort();
    let mut merged: Vec<PartitionRange> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match merged.last_mut() {
            Some(last) if !last.upper.is_empty() && last.upper == range.lower => last.upper = range.upper,
            _ => merged.push(range),
        }
    }
    merged
}

/// Returns the number of dimensions up to the last one of whose buckets the predicates leave only some.
fn narrowed_dimensions(hash: &[HashDimension], schema: &Schema, predicates: &[Predicate]) -> usize {
    let is_narrowed =
        |dimension: &HashDimension| buckets(dimension, schema, predicates).len() < dimension.buckets as usize;
    hash.iter().rposition(is_narrowed).map_or(0, |last| last + 1)
}

/// Returns the buckets of rows that satisfy the predicates, ascending.
fn buckets(dimension: &HashDimension, schema: &Schema, predicates: &[Predicate]) -> Vec<u32> {
    let all = || (0..dimension.buckets).collect();
    let mut inputs: Vec<Vec<u8>> = vec![Vec::new()];
    for (i, id) in dimension.columns.iter().enumerate() {
        let values = predicates.iter().filter(|predicate| predicate.column == *id).find_map(values_of);
        let (Some(values), Some(column)) = (values, schema.by_id(*id)) else { return all() };
        if inputs.len().saturating_mul(values.len()) > COMBINATIONS_MAX {
            return all();
        }
        let last = i + 1 == dimension.columns.len();
        let grow = |input: &Vec<u8>| {
            let input = input.clone();
            values.iter().map(move |value| {
                let mut input = input.clone();
                encode_cell(column.ty.physical(), value, last, &mut input);
                input
            })
        };
        inputs = inputs.iter().flat_map(grow).collect();
    }
    let bucket = |input: &Vec<u8>| {
        (murmur2_64a(input, dimension.seed as u64) % dimension.buckets.max(1) as u64) as u32
    };
    let mut buckets: Vec<u32> = inputs.iter().map(bucket).collect();
    buckets.sort_unstable();
    buckets.dedup();
    buckets
}

fn values_of(predicate: &Predicate) -> Option<&[Vec<u8>]> {
    match &predicate.kind {
        PredicateKind::Equal(value) => Some(std::slice::from_ref(value)),
        PredicateKind::InList(values) => Some(values),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
