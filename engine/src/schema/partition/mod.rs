//! The partition schema, which divides a table into tablets: hash buckets times ranges.
//!
//! ```text
//! partition key = u32 big-endian bucket per hash dimension, then the range key
//! ```
//!
//! A tablet holds the partition keys of `start..end`; an empty bound is unbounded. The range key is the key
//! encoding of the range columns. A custom range has hash dimensions of its own, as many as the table's.

use serde::{Deserialize, Serialize};

use super::key::encode_cell;
use super::partition_range::PartitionRange;
use super::wire_hash::murmur2_64a;
use super::{PhysicalType, Schema};
use crate::error::{Error, Result};
use crate::ids::ColumnId;

/// A hash dimension: rows are spread over `buckets` by a hash of `columns`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HashDimension {
    /// Columns in order of their ids.
    pub columns: Vec<ColumnId>,
    pub buckets: u32,
    pub seed: u32,
}

/// A range with hash dimensions of its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RangeHashSchema {
    /// Encoded range keys, `lower` inclusive and `upper` exclusive; empty is unbounded.
    pub lower: Vec<u8>,
    pub upper: Vec<u8>,
    pub hash: Vec<HashDimension>,
}

/// The partitioning of a table, which maps each row to its tablet.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PartitionSchema {
    pub hash: Vec<HashDimension>,
    pub range_columns: Vec<ColumnId>,
    /// Ranges that differ from the table's own hash, ordered by `lower`, not overlapping.
    pub custom: Vec<RangeHashSchema>,
}

/// Partition of one tablet.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Partition {
    pub hash_buckets: Vec<u32>,
    /// Partition keys, `start` inclusive and `end` exclusive; empty is unbounded.
    pub start: Vec<u8>,
    pub end: Vec<u8>,
}

impl Partition {
    pub fn contains(&self, partition_key: &[u8]) -> bool {
        self.start.as_slice() <= partition_key && (self.end.is_empty() || partition_key < self.end.as_slice())
    }
}

impl Partition {
    /// Returns the range part of the bounds. A bound that ends inside the hash buckets is unbounded.
    pub fn range(&self) -> PartitionRange {
        let prefix = 4 * self.hash_buckets.len();
        let part = |key: &[u8]| key.get(prefix..).unwrap_or_default().to_vec();
        PartitionRange { lower: part(&self.start), upper: part(&self.end) }
    }
}

impl PartitionSchema {
    /// Validates the partition schema. Returns `Invalid` unless hash and range columns are key columns, no column
    /// hashes twice, every dimension has at least two buckets, and custom ranges don't overlap. Returns `Unsupported`
    /// if they differ in the number of dimensions.
    pub fn check(&self, schema: &Schema) -> Result<()> {
        check_hash(&self.hash, schema)?;
        Columns::resolve(&self.range_columns, schema)?;
        for (i, id) in self.range_columns.iter().enumerate() {
            if self.range_columns[..i].contains(id) {
                return Err(Error::invalid("duplicate column in the range partition"));
            }
        }
        for custom in &self.custom {
            check_hash(&custom.hash, schema)?;
            if custom.hash.len() != self.hash.len() {
                return Err(Error::unsupported(
                    "varying number of hash dimensions per range is not yet supported",
                ));
            }
        }
        if !self.custom.is_sorted_by(|a, b| !a.upper.is_empty() && a.upper <= b.lower) {
            return Err(Error::invalid("overlapping range partitions with custom hash schemas"));
        }
        Ok(())
    }

    /// Returns true if a row's value of this column decides about its tablet.
    pub fn has_column(&self, column: ColumnId) -> bool {
        let custom = self.custom.iter().flat_map(|custom| &custom.hash);
        let is_hashed = self.hash.iter().chain(custom).any(|dimension| dimension.columns.contains(&column));
        is_hashed || self.range_columns.contains(&column)
    }

    /// Returns the hash dimensions of the rows with this range key.
    pub fn hash_of(&self, range_key: &[u8]) -> &[HashDimension] {
        let after = self.custom.partition_point(|custom| custom.lower.as_slice() <= range_key);
        let below = self.custom[..after].last();
        let custom = below.filter(|custom| custom.upper.is_empty() || range_key < custom.upper.as_slice());
        custom.map_or(&self.hash, |custom| &custom.hash)
    }

    /// Stores the hash dimensions of a range if they differ from the table's.
    pub fn set_custom(&mut self, range: &PartitionRange, hash: Vec<HashDimension>) {
        self.forget_custom(range);
        if hash != self.hash {
            let at = self.custom.partition_point(|custom| custom.lower < range.lower);
            let custom = RangeHashSchema { lower: range.lower.clone(), upper: range.upper.clone(), hash };
            self.custom.insert(at, custom);
        }
    }

    /// Removes the hash dimensions that [`PartitionSchema::set_custom`] stored.
    pub fn forget_custom(&mut self, range: &PartitionRange) {
        let at = self.custom.partition_point(|custom| custom.lower < range.lower);
        let is_same = |custom: &RangeHashSchema| custom.lower == range.lower && custom.upper == range.upper;
        if self.custom.get(at).is_some_and(is_same) {
            self.custom.remove(at);
        }
    }

    /// Returns the number of tablets of one range, `u64::MAX` if there are more.
    pub fn partition_count(&self, range: &PartitionRange) -> u64 {
        let buckets = self.hash_of(&range.lower).iter().map(|dimension| u64::from(dimension.buckets));
        buckets.fold(1, u64::saturating_mul)
    }

    /// Returns the tablets of one range: one per combination of hash buckets, in order. A caller that takes the
    /// buckets from a request limits [`PartitionSchema::partition_count`] first.
    pub fn partitions_of(&self, range: &PartitionRange) -> Vec<Partition> {
        let mut prefixes: Vec<Vec<u32>> = vec![Vec::new()];
        for dimension in self.hash_of(&range.lower) {
            let grow = |prefix: &Vec<u32>| {
                let prefix = prefix.clone();
                (0..dimension.buckets).map(move |bucket| [prefix.as_slice(), &[bucket]].concat())
            };
            prefixes = prefixes.iter().flat_map(grow).collect();
        }
        prefixes.into_iter().map(|buckets| partition(buckets, range)).collect()
    }

    /// Returns the tablets of a new table, ordered by start: the given ranges (all keys if there are none), divided at
    /// the splits.
    ///
    /// Returns `Invalid` for ranges that overlap and for splits that are repeated or not inside of a range.
    pub fn create_partitions(&self, splits: &[Vec<u8>], ranges: &[PartitionRange]) -> Result<Vec<Partition>> {
        let mut ranges = if ranges.is_empty() { vec![PartitionRange::default()] } else { ranges.to_vec() };
        ranges.sort();
        if ranges.windows(2).any(|pair| pair[0].overlaps(&pair[1])) {
            return Err(Error::invalid("overlapping range partitions"));
        }
        if self.range_columns.is_empty() && (ranges != [PartitionRange::default()] || !splits.is_empty()) {
            return Err(Error::invalid("range bounds are given for a table without range columns"));
        }
        // In order: each is then inserted behind nearly all ranges, not before them.
        let mut splits: Vec<&Vec<u8>> = splits.iter().collect();
        splits.sort();
        for split in splits {
            let at = ranges.partition_point(|range| range.lower <= *split).checked_sub(1);
            let at = at.filter(|at| ranges[*at].contains(split));
            let at = at.ok_or_else(|| Error::invalid("split out of bounds"))?;
            if ranges[at].lower == *split {
                return Err(Error::invalid("split matches lower or upper bound, or is duplicate"));
            }
            let upper = std::mem::replace(&mut ranges[at].upper, split.clone());
            ranges.insert(at + 1, PartitionRange { lower: split.clone(), upper });
        }
        let mut partitions: Vec<Partition> =
            ranges.iter().flat_map(|range| self.partitions_of(range)).collect();
        partitions.sort_by(|a, b| a.start.cmp(&b.start));
        Ok(partitions)
    }
}

fn check_hash(hash: &[HashDimension], schema: &Schema) -> Result<()> {
    let mut seen: Vec<ColumnId> = Vec::new();
    for dimension in hash {
        if dimension.columns.is_empty() {
            return Err(Error::invalid("must have at least one hash column"));
        }
        if dimension.buckets < 2 {
            return Err(Error::invalid("must have at least two hash buckets"));
        }
        Columns::resolve(&dimension.columns, schema)?;
        for id in &dimension.columns {
            if seen.contains(id) {
                let name = schema.by_id(*id).map_or("?", |column| column.name.as_str());
                return Err(Error::invalid(format!(
                    "hash bucket schema components must not contain columns in common: {name}"
                )));
            }
            seen.push(*id);
        }
    }
    Ok(())
}

/// Encodes `buckets`, big-endian.
pub(super) fn prefix(buckets: &[u32]) -> Vec<u8> {
    buckets.iter().flat_map(|bucket| bucket.to_be_bytes()).collect()
}

/// Returns the end of the partition keys that begin with these buckets; empty if there are none.
pub(super) fn prefix_end(buckets: &[u32]) -> Vec<u8> {
    match buckets.split_last() {
        Some((last, before)) => [prefix(before), (last + 1).to_be_bytes().to_vec()].concat(),
        None => Vec::new(),
    }
}

fn partition(hash_buckets: Vec<u32>, range: &PartitionRange) -> Partition {
    let start = [prefix(&hash_buckets), range.lower.clone()].concat();
    let end = match range.upper.as_slice() {
        [] => prefix_end(&hash_buckets),
        upper => [prefix(&hash_buckets), upper.to_vec()].concat(),
    };
    Partition { hash_buckets, start, end }
}

struct Columns {
    /// Index among the schema's columns, and physical type.
    columns: Vec<(usize, PhysicalType)>,
}

impl Columns {
    fn resolve(ids: &[ColumnId], schema: &Schema) -> Result<Columns> {
        let column = |id: &ColumnId| {
            let index = schema.index_of_id(*id).filter(|index| *index < schema.num_key_columns());
            let index = index
                .ok_or_else(|| Error::invalid(format!("partition column {} is not a key column", id.0)))?;
            Ok((index, schema.columns()[index].ty.physical()))
        };
        Ok(Columns { columns: ids.iter().map(column).collect::<Result<_>>()? })
    }

    #[inline]
    fn encode<'c>(&self, cell: &impl Fn(usize) -> &'c [u8], out: &mut Vec<u8>) {
        let last = self.columns.len().wrapping_sub(1);
        for (i, (index, physical)) in self.columns.iter().enumerate() {
            encode_cell(*physical, cell(*index), i == last, out);
        }
    }
}

struct Dimension {
    columns: Columns,
    buckets: u32,
    seed: u32,
}

impl Dimension {
    fn resolve(dimension: &HashDimension, schema: &Schema) -> Result<Dimension> {
        let columns = Columns::resolve(&dimension.columns, schema)?;
        Ok(Dimension { columns, buckets: dimension.buckets.max(1), seed: dimension.seed })
    }
}

/// Function from rows to partition keys: a [`PartitionSchema`] with its columns looked up once.
pub struct Partitioner {
    hash: Vec<Dimension>,
    range: Columns,
    custom: Vec<(Vec<u8>, Vec<u8>, Vec<Dimension>)>,
    range_key: Vec<u8>,
    scratch: Vec<u8>,
}

impl Partitioner {
    /// Creates a partitioner. Returns `Invalid` if the partition schema names a column that is not in the schema's key.
    pub fn new(partition: &PartitionSchema, schema: &Schema) -> Result<Partitioner> {
        let resolve = |hash: &[HashDimension]| {
            hash.iter().map(|dimension| Dimension::resolve(dimension, schema)).collect::<Result<Vec<_>>>()
        };
        let custom =
            |range: &RangeHashSchema| Ok((range.lower.clone(), range.upper.clone(), resolve(&range.hash)?));
        Ok(Partitioner {
            hash: resolve(&partition.hash)?,
            range: Columns::resolve(&partition.range_columns, schema)?,
            custom: partition.custom.iter().map(custom).collect::<Result<_>>()?,
            range_key: Vec::new(),
            scratch: Vec::new(),
        })
    }

    /// Computes the partition key of a row. `cell` returns key cells by column index.
    #[inline]
    pub fn partition_key<'c>(&mut self, cell: impl Fn(usize) -> &'c [u8], out: &mut Vec<u8>) {
        self.range_key.clear();
        self.range.encode(&cell, &mut self.range_key);
        let key = self.range_key.as_slice();
        let custom = self.custom.iter().find(|(lower, upper, _)| {
            lower.as_slice() <= key && (upper.is_empty() || key < upper.as_slice())
        });
        for dimension in custom.map_or(&self.hash, |(_, _, hash)| hash) {
            self.scratch.clear();
            dimension.columns.encode(&cell, &mut self.scratch);
            let hash = murmur2_64a(&self.scratch, dimension.seed as u64);
            out.extend_from_slice(&((hash % dimension.buckets as u64) as u32).to_be_bytes());
        }
        out.extend_from_slice(&self.range_key);
    }
}

#[cfg(test)]
mod tests;
