//! Partition schemas and ranges: from a client's request to the partitions of tablets.

use std::collections::BTreeMap;

use super::commands::{ColumnRef, RangeOps, RequestedColumn, RequestedHash, RequestedPartitioning};
use super::error::{CatalogError, CatalogErrorCode, CatalogResult};
use super::tablet_budget::TabletBudget;
use crate::error::Error;
use crate::ids::ColumnId;
use crate::schema::partition::{HashDimension, Partition, PartitionSchema};
use crate::schema::partition_range::{PartitionRange, RangeOpLimits, decode_range_ops, ranges_of_ops};
use crate::schema::row_ops::ClientColumn;
use crate::schema::{ColumnSchema, Schema};

/// Creates the partition schema of a new table and its first partitions, in the order of their keys. `label` is the
/// dimension label of each of them.
pub(super) fn of_new_table(
    schema: &Schema,
    requested: &RequestedPartitioning,
    label: Option<&str>,
) -> CatalogResult<(PartitionSchema, Vec<Partition>)> {
    let hash = hash_dimensions(schema, &requested.hash)?;
    let range_columns = range_columns(schema, requested.range.as_deref())?;
    let partition_schema = PartitionSchema { hash, range_columns, custom: Vec::new() };
    if !requested.custom.is_empty() {
        return with_custom_ranges(schema, partition_schema, requested, label);
    }
    let ops = &requested.splits_and_bounds;
    let allow_empty = requested.allow_empty && !partition_schema.range_columns.is_empty();
    let partitions = match ops.rows.is_empty() && allow_empty {
        true => Vec::new(),
        false => {
            let columns = bind_columns(schema, &[]);
            let ops = decode_range_ops(&columns, &ops.rows, &ops.indirect, TabletBudget::OP_LIMITS)?;
            let (splits, ranges) = ranges_of_ops(schema, &partition_schema.range_columns, &ops)?;
            let mut budget = TabletBudget::default();
            match ranges.as_slice() {
                [] => budget.add(&partition_schema, &PartitionRange::default(), label)?,
                ranges => ranges.iter().try_for_each(|range| budget.add(&partition_schema, range, label))?,
            }
            budget.add_splits(&partition_schema, &splits, label)?;
            partition_schema.create_partitions(&splits, &ranges)?
        }
    };
    Ok((partition_schema, partitions))
}

fn hash_dimensions(schema: &Schema, requested: &[RequestedHash]) -> CatalogResult<Vec<HashDimension>> {
    let mut used: Vec<ColumnId> = Vec::new();
    let mut dimensions = Vec::with_capacity(requested.len());
    for request in requested {
        let mut columns = key_columns(schema, &request.columns, "hash")?;
        if columns.is_empty() {
            return Err(CatalogError::schema("a hash dimension needs at least one column"));
        }
        for column in &columns {
            if used.contains(column) {
                let message = "hash bucket schema components must not contain columns in common";
                return Err(CatalogError::schema(message));
            }
            used.push(*column);
        }
        if request.buckets < 2 {
            return Err(CatalogError::schema("must have at least two hash buckets"));
        }
        columns.sort();
        dimensions.push(HashDimension { columns, buckets: request.buckets as u32, seed: request.seed });
    }
    Ok(dimensions)
}

fn range_columns(schema: &Schema, requested: Option<&[ColumnRef]>) -> CatalogResult<Vec<ColumnId>> {
    match requested {
        Some(columns) => key_columns(schema, columns, "range"),
        None => {
            let keys = schema.key_columns().iter().filter(|column| !column.auto_incrementing);
            Ok(keys.map(|column| column.id).collect())
        }
    }
}

/// The ids of these columns, each of which must be in the primary key and named once.
fn key_columns(schema: &Schema, requested: &[ColumnRef], what: &str) -> CatalogResult<Vec<ColumnId>> {
    let mut ids = Vec::with_capacity(requested.len());
    for column in requested {
        let (index, shown) = match column {
            ColumnRef::Name(name) => (schema.index_of_name(name), format!("{name:?}")),
            ColumnRef::Id(id) => (schema.index_of_id(ColumnId(*id)), format!("with id {id}")),
        };
        let index = index.ok_or_else(|| CatalogError::schema(format!("unknown {what} column {shown}")))?;
        if index >= schema.num_key_columns() {
            // Kudu's words, with the column after them.
            let components =
                if what == "hash" { "hash bucket partition components" } else { "range partition component" };
            let message = format!("must specify only primary key columns for {components}: column {shown}");
            return Err(CatalogError::schema(message));
        }
        let column = &schema.columns()[index];
        // Upstream's clients make tables with a range on it, whose rows belong to the one range without bounds.
        if column.auto_incrementing && what == "hash" {
            return Err(CatalogError::schema(format!(
                "the auto-incrementing column {shown} cannot be hashed"
            )));
        }
        if ids.contains(&column.id) {
            return Err(CatalogError::schema(format!("{what} column {shown} is named twice")));
        }
        ids.push(column.id);
    }
    Ok(ids)
}

/// Creates the partitions of a table whose ranges all have custom hash dimensions.
fn with_custom_ranges(
    schema: &Schema,
    mut partition_schema: PartitionSchema,
    requested: &RequestedPartitioning,
    label: Option<&str>,
) -> CatalogResult<(PartitionSchema, Vec<Partition>)> {
    if !requested.splits_and_bounds.rows.is_empty() {
        let message = "ranges are given either by split_rows_range_bounds or by custom_hash_schema_ranges";
        return Err(CatalogError::invalid(format!("{message}, not by both")));
    }
    let mut ranges: Vec<PartitionRange> = Vec::new();
    let (mut partitions, mut budget) = (Vec::new(), TabletBudget::default());
    let columns = bind_columns(schema, &[]);
    for request in &requested.custom {
        let range = requested_range(schema, &partition_schema, &columns, &request.bounds)?;
        if let Some(other) = ranges.iter().find(|other| other.overlaps(&range)) {
            let mut pair = [&range, other];
            pair.sort_by(|a, b| a.lower.cmp(&b.lower));
            let [first, second] = pair.map(|range| partition_schema.show_bounds(schema, range));
            return Err(CatalogError::invalid(format!(
                "overlapping range partitions: first range partition: {first}, second range partition: {second}"
            )));
        }
        set_range_hash(schema, &mut partition_schema, &range, Some(&request.hash))?;
        budget.add(&partition_schema, &range, label)?;
        partitions.extend(partition_schema.partitions_of(&range));
        ranges.push(range);
    }
    partitions.sort_by(|a, b| a.start.cmp(&b.start));
    Ok((partition_schema, partitions))
}

/// Sets the hash dimensions of a new range: custom ones if `hash` is given.
pub(super) fn set_range_hash(
    schema: &Schema,
    partition_schema: &mut PartitionSchema,
    range: &PartitionRange,
    hash: Option<&[RequestedHash]>,
) -> CatalogResult<()> {
    let hash = match hash {
        Some(requested) => hash_dimensions(schema, requested)?,
        None => partition_schema.hash.clone(),
    };
    if hash.len() != partition_schema.hash.len() {
        let error = Error::unsupported("varying number of hash dimensions per range is not yet supported");
        return Err(CatalogError::new(CatalogErrorCode::InvalidSchema, error));
    }
    partition_schema.set_custom(range, hash);
    Ok(())
}

/// Returns the one range that these operations bound. `columns`: those that they are encoded with.
pub(super) fn requested_range(
    schema: &Schema,
    partition_schema: &PartitionSchema,
    columns: &[ClientColumn],
    ops: &RangeOps,
) -> CatalogResult<PartitionRange> {
    if partition_schema.range_columns.is_empty() {
        return Err(CatalogError::invalid("the table has no range partitions"));
    }
    let ops = decode_range_ops(columns, &ops.rows, &ops.indirect, RangeOpLimits::ONE_RANGE)?;
    let (splits, mut ranges) = ranges_of_ops(schema, &partition_schema.range_columns, &ops)?;
    match (splits.as_slice(), ranges.len()) {
        ([], 1) => Ok(ranges.remove(0)),
        _ => Err(CatalogError::invalid("a range partition is given by one lower and one upper bound")),
    }
}

/// Returns the columns that range operations are encoded with: the client's, or the table's without those.
pub(super) fn bind_columns(schema: &Schema, client: &[RequestedColumn]) -> Vec<ClientColumn> {
    let table_column =
        |column: &ColumnSchema| ClientColumn { id: column.id, ty: column.ty, nullable: column.nullable };
    if client.is_empty() {
        return schema.columns().iter().map(table_column).collect();
    }
    let ids = schema.columns().iter().map(|column| (column.name.as_str(), column.id));
    let ids: BTreeMap<&str, ColumnId> = ids.collect();
    let client_column = |request: &RequestedColumn| {
        let column = &request.column;
        // Columns that only the client knows may be in the encoding, but not in a bound.
        let id = ids.get(column.name.as_str()).copied().unwrap_or(UNKNOWN);
        ClientColumn { id, ty: column.ty, nullable: column.nullable }
    };
    client.iter().map(client_column).collect()
}

/// Id of a column that is in no table.
const UNKNOWN: ColumnId = ColumnId(u32::MAX);
