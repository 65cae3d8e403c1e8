//! How a table is cut into tablets: hash buckets times ranges.
//!
//! ```text
//! partition key = u32 big-endian bucket per hash dimension, then the range key
//! ```
//!
//! A tablet holds the partition keys of `start..end`; an empty bound is none. The range key is the key encoding of the
//! range columns. A custom range has hash dimensions of its own, as many as the table's.

use serde::{Deserialize, Serialize};

use super::hash::murmur2_64a;
use super::key::encode_cell;
use super::{Physical, Schema};
use crate::error::{Error, Result};
use crate::ids::ColumnId;

/// Rows are spread over `buckets` by a hash of `columns`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HashDimension {
    /// In order of their ids.
    pub columns: Vec<ColumnId>,
    pub buckets: u32,
    pub seed: u32,
}

/// A range whose rows hash otherwise than the table's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RangeHash {
    /// Encoded range keys, `lower` inclusive and `upper` exclusive; empty is unbounded.
    pub lower: Vec<u8>,
    pub upper: Vec<u8>,
    pub hash: Vec<HashDimension>,
}

/// How the rows of a table find their tablet.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PartitionSchema {
    pub hash: Vec<HashDimension>,
    pub range_columns: Vec<ColumnId>,
    /// Ordered by `lower`, not overlapping; only ranges that differ from the table's own hash.
    pub custom: Vec<RangeHash>,
}

/// The rows of one tablet.
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

struct Columns {
    /// Index in the schema's columns, and physical type.
    columns: Vec<(usize, Physical)>,
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

/// Computes partition keys of rows: a [`PartitionSchema`] with its columns looked up once.
pub struct Partitioner {
    hash: Vec<Dimension>,
    range: Columns,
    custom: Vec<(Vec<u8>, Vec<u8>, Vec<Dimension>)>,
    range_key: Vec<u8>,
    scratch: Vec<u8>,
}

impl Partitioner {
    /// `Invalid` if the partition schema names a column that is not in the schema's key.
    pub fn new(partition: &PartitionSchema, schema: &Schema) -> Result<Partitioner> {
        let resolve = |hash: &[HashDimension]| {
            hash.iter().map(|dimension| Dimension::resolve(dimension, schema)).collect::<Result<Vec<_>>>()
        };
        let custom =
            |range: &RangeHash| Ok((range.lower.clone(), range.upper.clone(), resolve(&range.hash)?));
        Ok(Partitioner {
            hash: resolve(&partition.hash)?,
            range: Columns::resolve(&partition.range_columns, schema)?,
            custom: partition.custom.iter().map(custom).collect::<Result<_>>()?,
            range_key: Vec::new(),
            scratch: Vec::new(),
        })
    }

    /// The partition key of the row whose key cells `cell` gives by column index.
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
