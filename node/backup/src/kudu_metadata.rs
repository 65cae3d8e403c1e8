//! Kudu's own metadata of a backup, `.kudu-metadata.json`: what its Spark job writes, for the programs that read it.
//!
//! The form is JSON of a proto3 message: names in camel case, 64-bit numbers as text, zero values left out.

use std::borrow::Cow;
use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use engine::error::{Error, Result};
use engine::ids::ColumnId;
use engine::schema::key::decode_key;
use engine::schema::partition::{HashDimension, Partition};
use engine::schema::{ColumnSchema, Compression, DataType, Schema, TypeAttributes, format_cell};
use serde::{Deserialize, Serialize};

use super::manifest::Manifest;

/// File name of the metadata. Kudu's programs pass over a directory without it.
pub(crate) const KUDU_METADATA: &str = ".kudu-metadata.json";
/// Version of the layout.
pub(crate) const VERSION: i32 = 1;

/// Returns true for a value that proto3 leaves out.
fn is_zero<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct TableMetadata {
    pub(crate) version: i32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) from_ms: Option<String>,
    pub(crate) to_ms: String,
    pub(crate) data_format: Cow<'static, str>,
    pub(crate) table_name: String,
    pub(crate) table_id: String,
    pub(crate) num_replicas: i32,
    pub(crate) columns: Vec<ColumnMetadata>,
    pub(crate) column_ids: BTreeMap<String, u32>,
    pub(crate) partitions: PartitionsMetadata,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) tablets: BTreeMap<String, TabletMetadata>,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) table_owner: String,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) table_comment: String,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ColumnMetadata {
    pub(crate) name: String,
    #[serde(rename = "type")]
    pub(crate) ty: Cow<'static, str>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) type_attributes: Option<AttributesMetadata>,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) is_key: bool,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) is_nullable: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) default_value: Option<String>,
    pub(crate) encoding: Cow<'static, str>,
    pub(crate) compression: Cow<'static, str>,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) block_size: i32,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) comment: String,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) is_auto_incrementing: bool,
}

#[derive(Serialize, Deserialize)]
pub(crate) struct AttributesMetadata {
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) precision: u8,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) scale: u8,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) length: u16,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PartitionsMetadata {
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) hash_partitions: Vec<HashMetadata>,
    #[serde(default)]
    pub(crate) range_partitions: RangesMetadata,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) range_and_hash_partitions: Vec<RangeHashMetadata>,
}

#[derive(Serialize, Deserialize, PartialEq)]
#[serde(rename_all = "camelCase")]
pub(crate) struct HashMetadata {
    pub(crate) column_names: Vec<String>,
    pub(crate) num_buckets: u32,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) seed: u32,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RangesMetadata {
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) column_names: Vec<String>,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) bounds: Vec<BoundsMetadata>,
}

#[derive(Serialize, Deserialize, PartialEq)]
#[serde(rename_all = "camelCase")]
pub(crate) struct BoundsMetadata {
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) lower_bounds: Vec<ValueMetadata>,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) upper_bounds: Vec<ValueMetadata>,
}

#[derive(Serialize, Deserialize, PartialEq)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ValueMetadata {
    pub(crate) column_name: String,
    pub(crate) value: String,
}

#[derive(Serialize, Deserialize, PartialEq)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RangeHashMetadata {
    pub(crate) bounds: BoundsMetadata,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) hash_partitions: Vec<HashMetadata>,
}

#[derive(Serialize, Deserialize, PartialEq)]
#[serde(rename_all = "camelCase")]
pub(crate) struct TabletMetadata {
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) partition_key_start: String,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) partition_key_end: String,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) hash_buckets: Vec<u32>,
}

/// Encodes Kudu's metadata of a backup of these tablets.
pub(crate) fn encode(manifest: &Manifest, tablets: &[(String, Partition)]) -> Result<Vec<u8>> {
    let schema = manifest.schema()?;
    let ids = schema.columns().iter().map(|column| (column.name.clone(), column.id.0));
    let keys = schema.num_key_columns();
    let columns = schema.columns().iter().enumerate();
    let metadata = TableMetadata {
        version: VERSION,
        from_ms: (manifest.from_ms > 0).then(|| manifest.from_ms.to_string()),
        to_ms: manifest.to_ms.to_string(),
        data_format: Cow::Borrowed("parquet"),
        table_name: manifest.table_name.clone(),
        table_id: manifest.table_id.clone(),
        num_replicas: manifest.replicas,
        columns: columns.map(|(at, column)| column_metadata(column, at < keys)).collect(),
        column_ids: ids.collect(),
        partitions: partitions(manifest, &schema)?,
        tablets: tablets.iter().map(|(id, partition)| (id.clone(), tablet(partition))).collect(),
        table_owner: manifest.owner.clone(),
        table_comment: manifest.comment.clone(),
    };
    serde_json::to_vec(&metadata).map_err(|error| Error::invalid(format!("{KUDU_METADATA}: {error}")))
}

fn column_metadata(column: &ColumnSchema, is_key: bool) -> ColumnMetadata {
    let TypeAttributes { precision, scale, length } = column.attributes;
    let has_attributes = precision > 0 || length > 0;
    ColumnMetadata {
        name: column.name.clone(),
        ty: Cow::Borrowed(type_name(column.ty)),
        type_attributes: has_attributes.then_some(AttributesMetadata { precision, scale, length }),
        is_key,
        is_nullable: column.nullable,
        default_value: column.write_default.as_ref().map(|cell| value_text(column, cell)),
        encoding: Cow::Borrowed(column.encoding.name()),
        compression: Cow::Borrowed(compression_name(column.compression)),
        block_size: column.block_bytes,
        comment: column.comment.clone(),
        is_auto_incrementing: column.auto_incrementing,
    }
}

/// Returns the name in Kudu's Java client, which has one DECIMAL.
fn type_name(ty: DataType) -> &'static str {
    match ty {
        DataType::Decimal32 | DataType::Decimal64 | DataType::Decimal128 => "DECIMAL",
        other => other.name(),
    }
}

pub(crate) fn compression_name(compression: Compression) -> &'static str {
    match compression {
        Compression::Default | Compression::Zstd => "DEFAULT_COMPRESSION",
        Compression::None => "NO_COMPRESSION",
        Compression::Snappy => "SNAPPY",
        Compression::Lz4 => "LZ4",
        Compression::Zlib => "ZLIB",
    }
}

/// Returns a cell as Kudu's Spark job writes it: text as it is, binary in Base64, timestamps in microseconds.
fn value_text(column: &ColumnSchema, cell: &[u8]) -> String {
    match column.ty {
        DataType::String | DataType::Varchar => String::from_utf8_lossy(cell).into_owned(),
        DataType::Binary => STANDARD.encode(cell),
        DataType::UnixtimeMicros => format_cell(DataType::Int64, TypeAttributes::default(), cell),
        ty => format_cell(ty, column.attributes, cell),
    }
}

fn names(schema: &Schema, ids: &[ColumnId]) -> Vec<String> {
    ids.iter().filter_map(|id| Some(schema.by_id(*id)?.name.clone())).collect()
}

fn hashes(schema: &Schema, dimensions: &[HashDimension]) -> Vec<HashMetadata> {
    let one = |dimension: &HashDimension| HashMetadata {
        column_names: names(schema, &dimension.columns),
        num_buckets: dimension.buckets,
        seed: dimension.seed,
    };
    dimensions.iter().map(one).collect()
}

fn partitions(manifest: &Manifest, schema: &Schema) -> Result<PartitionsMetadata> {
    let partition = manifest.partition_schema(schema)?;
    let by_id = |id: &ColumnId| schema.by_id(*id).cloned();
    let columns: Vec<ColumnSchema> = partition.range_columns.iter().filter_map(by_id).collect();
    let ranges = if columns.is_empty() { Vec::new() } else { manifest.ranges()? };
    let mut bounds = Vec::new();
    let mut own_hash = Vec::new();
    for range in &ranges {
        bounds.push(bounds_metadata(&columns, &range.lower, &range.upper)?);
        let hash_partitions = hashes(schema, partition.hash_of(&range.lower));
        let bounds = bounds_metadata(&columns, &range.lower, &range.upper)?;
        own_hash.push(RangeHashMetadata { bounds, hash_partitions });
    }
    // Kudu lists ranges with their hash schemas only if the table has such ranges.
    let range_and_hash_partitions = if partition.custom.is_empty() { Vec::new() } else { own_hash };
    Ok(PartitionsMetadata {
        hash_partitions: hashes(schema, &partition.hash),
        range_partitions: RangesMetadata { column_names: names(schema, &partition.range_columns), bounds },
        range_and_hash_partitions,
    })
}

fn bounds_metadata(columns: &[ColumnSchema], lower: &[u8], upper: &[u8]) -> Result<BoundsMetadata> {
    let values = |key: &[u8]| -> Result<Vec<ValueMetadata>> {
        if key.is_empty() {
            return Ok(Vec::new());
        }
        let cells = decode_key(columns, key)?;
        let value = |(column, cell): (&ColumnSchema, &Vec<u8>)| ValueMetadata {
            column_name: column.name.clone(),
            value: value_text(column, cell),
        };
        Ok(columns.iter().zip(&cells).map(value).collect())
    };
    Ok(BoundsMetadata { lower_bounds: values(lower)?, upper_bounds: values(upper)? })
}

fn tablet(partition: &Partition) -> TabletMetadata {
    TabletMetadata {
        partition_key_start: STANDARD.encode(&partition.start),
        partition_key_end: STANDARD.encode(&partition.end),
        hash_buckets: partition.hash_buckets.clone(),
    }
}
