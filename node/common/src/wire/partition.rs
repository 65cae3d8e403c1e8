//! Partition schemas and partitions: protobuf ↔ the engine's types.

use bytes::Bytes;
use engine::error::{Error, Result};
use engine::ids::ColumnId;
use engine::schema::partition::{HashDimension, Partition, PartitionSchema, RangeHashSchema};
use engine::schema::partition_range::RangeOpLimits;
use engine::schema::row_ops::ClientColumn;
use engine::schema::{Schema, key, partition_range};

use nyala_proto::kudu::partition_schema_pb::column_identifier_pb::Identifier;
use nyala_proto::kudu::partition_schema_pb::{
    ColumnIdentifierPb, HashBucketSchemaPb, RangeSchemaPb, RangeWithHashSchemaPb,
};
use nyala_proto::kudu::row_operations_pb::Type as OpType;
use nyala_proto::kudu::{PartitionPb, PartitionSchemaPb, RowOperationsPb};

/// Converts a partition schema as servers send it: columns by id, bounds of custom ranges as row operations.
pub fn schema_to_pb(partition: &PartitionSchema, schema: &Schema) -> PartitionSchemaPb {
    let columns = partition.range_columns.iter().map(identifier).collect();
    let custom = |range: &RangeHashSchema| RangeWithHashSchemaPb {
        range_bounds: Some(range_bounds_to_pb(partition, schema, &range.lower, &range.upper)),
        hash_schema: range.hash.iter().map(hash_to_pb).collect(),
    };
    PartitionSchemaPb {
        hash_schema: partition.hash.iter().map(hash_to_pb).collect(),
        range_schema: Some(RangeSchemaPb { columns }),
        custom_hash_schema_ranges: partition.custom.iter().map(custom).collect(),
    }
}

fn identifier(id: &ColumnId) -> ColumnIdentifierPb {
    ColumnIdentifierPb { identifier: Some(Identifier::Id(id.0 as i32)) }
}

fn hash_to_pb(dimension: &HashDimension) -> HashBucketSchemaPb {
    HashBucketSchemaPb {
        columns: dimension.columns.iter().map(identifier).collect(),
        num_buckets: dimension.buckets as i32,
        seed: Some(dimension.seed),
        hash_algorithm: None,
    }
}

/// Encodes a range as RANGE_LOWER_BOUND and RANGE_UPPER_BOUND operations over all columns of the schema. An empty key
/// is unbounded and becomes an operation without set columns.
pub fn range_bounds_to_pb(
    partition: &PartitionSchema,
    schema: &Schema,
    lower: &[u8],
    upper: &[u8],
) -> RowOperationsPb {
    all_range_bounds_to_pb(partition, schema, [(lower, upper)])
}

/// Encodes several ranges in one list, each as [`range_bounds_to_pb`] does.
pub fn all_range_bounds_to_pb<'a>(
    partition: &PartitionSchema,
    schema: &Schema,
    ranges: impl IntoIterator<Item = (&'a [u8], &'a [u8])>,
) -> RowOperationsPb {
    let (mut rows, mut indirect) = (Vec::new(), Vec::new());
    for (lower, upper) in ranges {
        for (op, range_key) in [(OpType::RangeLowerBound, lower), (OpType::RangeUpperBound, upper)] {
            put_bound(partition, schema, op, range_key, &mut rows, &mut indirect);
        }
    }
    RowOperationsPb {
        rows: Some(Bytes::from(rows)),
        indirect_data: (!indirect.is_empty()).then(|| Bytes::from(indirect)),
    }
}

fn put_bound(
    partition: &PartitionSchema,
    schema: &Schema,
    op: OpType,
    range_key: &[u8],
    rows: &mut Vec<u8>,
    indirect: &mut Vec<u8>,
) {
    let bitmap_bytes = schema.columns().len().div_ceil(8);
    rows.push(op as u8);
    let set = rows.len();
    rows.resize(set + bitmap_bytes * (1 + usize::from(schema.has_nullable())), 0);
    if range_key.is_empty() {
        return;
    }
    let columns: Vec<_> =
        partition.range_columns.iter().filter_map(|id| schema.by_id(*id)).cloned().collect();
    let (cells, _) = key::decode_key_prefix(&columns, range_key).unwrap_or_default();
    let of_column = |id: ColumnId| columns.iter().position(|column| column.id == id);
    for (i, column) in schema.columns().iter().enumerate() {
        let Some(cell) = of_column(column.id).and_then(|at| cells.get(at)) else { continue };
        rows[set + i / 8] |= 1 << (i % 8);
        if column.ty.width().is_some() {
            rows.extend_from_slice(cell);
        } else {
            rows.extend_from_slice(&(indirect.len() as u64).to_le_bytes());
            rows.extend_from_slice(&(cell.len() as u64).to_le_bytes());
            indirect.extend_from_slice(cell);
        }
    }
}

/// Converts a partition schema from another server. Bounds of its custom ranges are over all columns of `schema`.
pub fn schema_from_pb(pb: &PartitionSchemaPb, schema: &Schema) -> Result<PartitionSchema> {
    let mut partition = table_wide_from_pb(pb, schema)?;
    let wire: Vec<ClientColumn> = schema
        .columns()
        .iter()
        .map(|column| ClientColumn { id: column.id, ty: column.ty, nullable: column.nullable })
        .collect();
    for custom in &pb.custom_hash_schema_ranges {
        let bounds = custom.range_bounds.clone().unwrap_or_default();
        let (rows, indirect) = (bounds.rows(), bounds.indirect_data());
        let ops = partition_range::decode_range_ops(&wire, rows, indirect, RangeOpLimits::ONE_RANGE)?;
        let (_, ranges) = partition_range::ranges_of_ops(schema, &partition.range_columns, &ops)?;
        let [range] = ranges.as_slice() else {
            return Err(Error::invalid("a custom hash schema needs the two bounds of one range"));
        };
        let hash = hash_from_pb(&custom.hash_schema, schema)?;
        partition.set_custom(range, hash);
    }
    partition.check(schema)?;
    Ok(partition)
}

/// Converts the table-wide part of a partition schema, with columns by id or by name. Without a range schema the range
/// columns are all key columns except an auto-incrementing one. Custom ranges are ignored.
pub fn table_wide_from_pb(pb: &PartitionSchemaPb, schema: &Schema) -> Result<PartitionSchema> {
    let range_columns = match &pb.range_schema {
        Some(range) => columns_from_pb(&range.columns, schema)?,
        None => {
            let key = schema.key_columns().iter();
            key.filter(|column| !column.auto_incrementing).map(|column| column.id).collect()
        }
    };
    let hash = hash_from_pb(&pb.hash_schema, schema)?;
    Ok(PartitionSchema { hash, range_columns, custom: Vec::new() })
}

/// Converts hash dimensions. The columns of each are sorted by id, independent of the order in the message.
pub fn hash_from_pb(pbs: &[HashBucketSchemaPb], schema: &Schema) -> Result<Vec<HashDimension>> {
    let dimension = |pb: &HashBucketSchemaPb| {
        let mut columns = columns_from_pb(&pb.columns, schema)?;
        columns.sort();
        let buckets = u32::try_from(pb.num_buckets)
            .map_err(|_| Error::invalid(format!("invalid number of hash buckets ({})", pb.num_buckets)))?;
        Ok(HashDimension { columns, buckets, seed: pb.seed() })
    };
    pbs.iter().map(dimension).collect()
}

fn columns_from_pb(pbs: &[ColumnIdentifierPb], schema: &Schema) -> Result<Vec<ColumnId>> {
    let column = |pb: &ColumnIdentifierPb| match &pb.identifier {
        Some(Identifier::Id(id)) => {
            let known = u32::try_from(*id).ok().and_then(|id| schema.by_id(ColumnId(id)));
            let column = known.ok_or_else(|| Error::invalid(format!("unknown partition column id {id}")))?;
            Ok(column.id)
        }
        Some(Identifier::Name(name)) => {
            let known = schema.index_of_name(name).map(|i| schema.columns()[i].id);
            known.ok_or_else(|| Error::invalid(format!("unknown partition column {name:?}")))
        }
        None => Err(Error::invalid("a partition column is named neither by id nor by name")),
    };
    pbs.iter().map(column).collect()
}

pub fn to_pb(partition: &Partition) -> PartitionPb {
    PartitionPb {
        hash_buckets: partition.hash_buckets.iter().map(|bucket| *bucket as i32).collect(),
        partition_key_start: Some(Bytes::copy_from_slice(&partition.start)),
        partition_key_end: Some(Bytes::copy_from_slice(&partition.end)),
    }
}

pub fn from_pb(pb: &PartitionPb) -> Result<Partition> {
    let bucket = |number: &i32| {
        u32::try_from(*number).map_err(|_| Error::invalid(format!("invalid hash bucket ({number})")))
    };
    let key = |bytes: &Option<Bytes>| bytes.as_ref().map(|bytes| bytes.to_vec()).unwrap_or_default();
    Ok(Partition {
        hash_buckets: pb.hash_buckets.iter().map(bucket).collect::<Result<_>>()?,
        start: key(&pb.partition_key_start),
        end: key(&pb.partition_key_end),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::schema::{ColumnSchema, DataType};

    fn schema() -> Schema {
        let columns = vec![
            ColumnSchema::new(0, "a", DataType::Int64),
            ColumnSchema::new(1, "b", DataType::String),
            ColumnSchema::new(2, "v", DataType::Int32).nullable(),
        ];
        Schema::new(columns, 2).expect("a valid schema")
    }

    fn hash(columns: &[u32], buckets: u32, seed: u32) -> HashDimension {
        HashDimension { columns: columns.iter().copied().map(ColumnId).collect(), buckets, seed }
    }

    #[test]
    fn a_partition_schema_survives_the_wire() {
        let partition = PartitionSchema {
            hash: vec![hash(&[0], 2, 0), hash(&[1], 4, 42)],
            range_columns: vec![ColumnId(1)],
            custom: Vec::new(),
        };
        let pb = schema_to_pb(&partition, &schema());
        assert_eq!(table_wide_from_pb(&pb, &schema()).expect("just written"), partition);
    }

    #[test]
    fn columns_are_found_by_name_and_hashed_in_order_of_their_ids() {
        let named = |name: &str| ColumnIdentifierPb { identifier: Some(Identifier::Name(name.to_string())) };
        let of = |names: &[&str]| HashBucketSchemaPb {
            columns: names.iter().map(|name| named(name)).collect(),
            num_buckets: 3,
            seed: None,
            hash_algorithm: None,
        };
        let found = hash_from_pb(&[of(&["b", "a"])], &schema()).expect("known columns");
        assert_eq!(found, [hash(&[0, 1], 3, 0)]);
        assert!(hash_from_pb(&[of(&["c"])], &schema()).is_err());
    }

    #[test]
    fn range_columns_default_to_the_key() {
        let mut pb = PartitionSchemaPb::default();
        let of = |pb: &PartitionSchemaPb| table_wide_from_pb(pb, &schema()).expect("valid").range_columns;
        assert_eq!(of(&pb), [ColumnId(0), ColumnId(1)]);
        pb.range_schema = Some(RangeSchemaPb::default());
        assert_eq!(of(&pb), []);
    }

    /// The custom range of a table created by a Java client, from `rows.md`, with a nullable column added.
    #[test]
    fn custom_ranges_carry_their_bounds_as_operations() {
        let custom = vec![RangeHashSchema {
            lower: b"a".to_vec(),
            upper: b"m".to_vec(),
            hash: vec![hash(&[0], 3, 1)],
        }];
        let partition =
            PartitionSchema { hash: vec![hash(&[0], 2, 0)], range_columns: vec![ColumnId(1)], custom };
        let pb = schema_to_pb(&partition, &schema());
        let bounds = pb.custom_hash_schema_ranges[0].range_bounds.as_ref().expect("bounds");
        let op = |kind: u8, offset: u8| {
            let mut op = vec![kind, 2, 0, offset];
            op.extend([0; 7]);
            op.push(1);
            op.extend([0; 7]);
            op
        };
        assert_eq!(bounds.rows(), [op(6, 0), op(7, 1)].concat());
        assert_eq!(bounds.indirect_data(), b"am");
        assert_eq!(schema_from_pb(&pb, &schema()).expect("just written"), partition);
        let unbounded = range_bounds_to_pb(&partition, &schema(), b"", b"");
        assert_eq!(unbounded.rows(), [6, 0, 0, 7, 0, 0]);
    }

    #[test]
    fn a_partition_survives_the_wire() {
        let partition = Partition { hash_buckets: vec![0, 3], start: b"ab".to_vec(), end: Vec::new() };
        assert_eq!(from_pb(&to_pb(&partition)).expect("just written"), partition);
    }
}
