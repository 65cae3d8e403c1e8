//! Backups that Kudu's Spark job wrote: its metadata and Parquet files, without a manifest.
//!
//! A file has rows of several tablets, and no checksum of it is kept. A row's tablet follows from its key.

use std::collections::BTreeSet;

use arrow_array::{BooleanArray, RecordBatch};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use engine::error::{Error, Result};
use engine::ids::ColumnId;
use engine::schema::key::encode_key;
use engine::schema::partition::{HashDimension, Partition, PartitionSchema, Partitioner};
use engine::schema::partition_range::PartitionRange;
use engine::schema::row_block::ColumnBlock;
use engine::schema::{ColumnSchema, Compression, DataType, Encoding, Schema, TypeAttributes};
use nyala_client::arrow::column_block;
use nyala_client::cell_text::parse_cell;

use super::kudu_metadata::{
    BoundsMetadata, ColumnMetadata, HashMetadata, TableMetadata, VERSION, ValueMetadata, compression_name,
};
use super::manifest::{KuduTablets, Manifest};

fn bad(what: impl std::fmt::Display) -> Error {
    Error::corrupt(format!("not Kudu's metadata: {what}"))
}

/// Decodes Kudu's metadata to a manifest without parts.
pub(crate) fn decode(bytes: &[u8]) -> Result<Manifest> {
    let metadata: TableMetadata = serde_json::from_slice(bytes).map_err(bad)?;
    if metadata.version > VERSION {
        let found = metadata.version;
        return Err(Error::unsupported(format!("version {found} of the layout is newer than {VERSION}")));
    }
    if metadata.data_format != "parquet" {
        return Err(Error::unsupported(format!(
            "data format {:?}; parquet can be read",
            metadata.data_format
        )));
    }
    let time = |text: &str| text.parse::<u64>().map_err(|_| bad(format!("the time {text:?}")));
    let from_ms = metadata.from_ms.as_deref().map_or(Ok(0), time)?;
    let to_ms = time(&metadata.to_ms)?;
    let schema = schema(&metadata)?;
    let (partition, mut ranges) = partition(&metadata, &schema)?;
    ranges.sort();
    let mut tablets = Vec::new();
    for (id, tablet) in &metadata.tablets {
        let key = |text: &str| STANDARD.decode(text).map_err(|_| bad(format!("tablet {id}")));
        let (start, end) = (key(&tablet.partition_key_start)?, key(&tablet.partition_key_end)?);
        tablets.push((id.clone(), Partition { hash_buckets: tablet.hash_buckets.clone(), start, end }));
    }
    let mut manifest = Manifest::of_schemas((&metadata.table_id, &metadata.table_name), &schema, &partition);
    (manifest.owner, manifest.comment) = (metadata.table_owner, metadata.table_comment);
    (manifest.replicas, manifest.from_ms, manifest.to_ms) = (metadata.num_replicas, from_ms, to_ms);
    manifest.set_ranges(&ranges);
    manifest.tablets = tablets.iter().map(|(id, _)| id.clone()).collect();
    manifest.kudu = Some(KuduTablets(tablets));
    Ok(manifest)
}

fn schema(metadata: &TableMetadata) -> Result<Schema> {
    let column = |column: &ColumnMetadata| {
        let id = metadata.column_ids.get(&column.name);
        column_schema(*id.ok_or_else(|| bad(format!("column {} has no id", column.name)))?, column)
    };
    let columns = metadata.columns.iter().map(column).collect::<Result<Vec<_>>>()?;
    Schema::new(columns, metadata.columns.iter().take_while(|column| column.is_key).count())
}

fn column_schema(id: u32, from: &ColumnMetadata) -> Result<ColumnSchema> {
    let unknown = |what: &str, name: &str| bad(format!("column {}: {what} {name:?}", from.name));
    let attributes = from.type_attributes.as_ref();
    let attributes = attributes.map_or_else(TypeAttributes::default, |found| TypeAttributes {
        precision: found.precision,
        scale: found.scale,
        length: found.length,
    });
    let ty = match (&*from.ty, attributes.precision) {
        ("DECIMAL", ..=9) => Some(DataType::Decimal32),
        ("DECIMAL", ..=18) => Some(DataType::Decimal64),
        ("DECIMAL", _) => Some(DataType::Decimal128),
        (name, _) => DataType::ALL.into_iter().find(|ty| ty.name() == name),
    };
    let encoding = Encoding::ALL.into_iter().find(|encoding| encoding.name() == from.encoding);
    let kinds = [Compression::Default, Compression::None].into_iter().chain(Compression::CODECS);
    let compression = kinds.into_iter().find(|kind| compression_name(*kind) == from.compression);
    let mut column = ColumnSchema::new(id, &from.name, ty.ok_or_else(|| unknown("the type", &from.ty))?);
    column.attributes = attributes;
    column.nullable = from.is_nullable;
    column.encoding = encoding.ok_or_else(|| unknown("the encoding", &from.encoding))?;
    column.compression = compression.ok_or_else(|| unknown("the compression", &from.compression))?;
    column.block_bytes = from.block_size;
    column.comment = from.comment.clone();
    column.auto_incrementing = from.is_auto_incrementing;
    if let Some(text) = &from.default_value {
        let cell = cell(&column, text)?;
        (column.read_default, column.write_default) = (Some(cell.clone()), Some(cell));
    }
    Ok(column)
}

/// Returns the cell of a value as Kudu's job writes it: binary is in Base64.
fn cell(column: &ColumnSchema, text: &str) -> Result<Vec<u8>> {
    match column.ty {
        DataType::Binary => {
            STANDARD.decode(text).map_err(|_| bad(format!("column {}: {text:?}", column.name)))
        }
        _ => parse_cell(column, text),
    }
}

fn ids(schema: &Schema, names: &[String]) -> Result<Vec<ColumnId>> {
    let id = |name: &String| {
        let column = schema.columns().iter().find(|column| column.name == *name);
        column.map(|column| column.id).ok_or_else(|| bad(format!("no column {name}")))
    };
    names.iter().map(id).collect()
}

fn hashes(schema: &Schema, from: &[HashMetadata]) -> Result<Vec<HashDimension>> {
    let one = |hash: &HashMetadata| {
        Ok(HashDimension {
            columns: ids(schema, &hash.column_names)?,
            buckets: hash.num_buckets,
            seed: hash.seed,
        })
    };
    from.iter().map(one).collect()
}

fn partition(metadata: &TableMetadata, schema: &Schema) -> Result<(PartitionSchema, Vec<PartitionRange>)> {
    let from = &metadata.partitions;
    let range_columns = ids(schema, &from.range_partitions.column_names)?;
    let columns: Vec<ColumnSchema> =
        range_columns.iter().filter_map(|id| schema.by_id(*id).cloned()).collect();
    let mut partition =
        PartitionSchema { hash: hashes(schema, &from.hash_partitions)?, range_columns, custom: Vec::new() };
    let mut ranges = Vec::new();
    for bounds in &from.range_partitions.bounds {
        ranges.push(range(&columns, bounds)?);
    }
    for custom in &from.range_and_hash_partitions {
        let range = range(&columns, &custom.bounds)?;
        partition.set_custom(&range, hashes(schema, &custom.hash_partitions)?);
        if !ranges.contains(&range) {
            ranges.push(range);
        }
    }
    partition.check(schema)?;
    Ok((partition, ranges))
}

fn range(columns: &[ColumnSchema], bounds: &BoundsMetadata) -> Result<PartitionRange> {
    let key = |values: &[ValueMetadata]| -> Result<Vec<u8>> {
        if values.is_empty() {
            return Ok(Vec::new());
        }
        let value = |column: &ColumnSchema| {
            let value = values.iter().find(|value| value.column_name == column.name);
            cell(column, &value.ok_or_else(|| bad(format!("a bound without {}", column.name)))?.value)
        };
        let cells = columns.iter().map(value).collect::<Result<Vec<_>>>()?;
        let mut key = Vec::new();
        encode_key(columns, |at| &cells[at], &mut key);
        Ok(key)
    };
    PartitionRange::new(key(&bounds.lower_bounds)?, key(&bounds.upper_bounds)?)
}

/// Filter of the rows whose tablet the last backup of a chain still has.
pub(crate) struct KeptRows<'a> {
    schema: Schema,
    partitioner: Partitioner,
    tablets: &'a KuduTablets,
    kept: BTreeSet<&'a str>,
}

impl<'a> KeptRows<'a> {
    /// Returns the filter for a backup's rows; `None` if all of its tablets are there.
    pub(crate) fn new(backup: &'a Manifest, last: &'a Manifest) -> Result<Option<KeptRows<'a>>> {
        let Some(tablets) = &backup.kudu else { return Ok(None) };
        let kept: BTreeSet<&str> = last.tablets.iter().map(String::as_str).collect();
        if backup.tablets.iter().all(|id| kept.contains(id.as_str())) {
            return Ok(None);
        }
        let schema = backup.schema()?;
        let partitioner = Partitioner::new(&backup.partition_schema(&schema)?, &schema)?;
        Ok(Some(KeptRows { schema, partitioner, tablets, kept }))
    }

    /// Returns which rows of a batch to keep.
    pub(crate) fn of(&mut self, batch: &RecordBatch) -> Result<BooleanArray> {
        let keys = self.schema.columns().iter().take(self.schema.num_key_columns());
        let block = |(column, array)| {
            column_block(array, column).map_err(|reason| Error::corrupt(format!("{}: {reason}", column.name)))
        };
        let blocks: Vec<ColumnBlock> = keys.zip(batch.columns()).map(block).collect::<Result<_>>()?;
        let mut key = Vec::new();
        let mut is_kept = |row: usize| {
            key.clear();
            self.partitioner.partition_key(|at| blocks[at].raw(row), &mut key);
            let tablet = self.tablets.0.iter().find(|(_, partition)| partition.contains(&key));
            let (id, _) = tablet.ok_or_else(|| Error::corrupt("a row of no tablet in Kudu's metadata"))?;
            Ok(self.kept.contains(id.as_str()))
        };
        (0..batch.num_rows()).map(|row| is_kept(row).map(Some)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Metadata as Kudu's job writes it.
    const METADATA: &str = r#"{"version":1,"toMs":"1700000000000","dataFormat":"parquet","tableName":"t","tableId":"0a",
        "columns":[
        {"name":"day","type":"INT32","isKey":true,"encoding":"AUTO_ENCODING","compression":"DEFAULT_COMPRESSION"},
        {"name":"p","type":"DECIMAL","typeAttributes":{"precision":18,"scale":2},"isNullable":true,
         "defaultValue":"1.50","encoding":"BIT_SHUFFLE","compression":"LZ4","blockSize":4096,"comment":"price"},
        {"name":"b","type":"BINARY","defaultValue":"AP8=","encoding":"AUTO_ENCODING",
         "compression":"DEFAULT_COMPRESSION"}],
        "partitions":{"hashPartitions":[],"rangePartitions":{"columnNames":["day"],"bounds":[
        {"upperBounds":[{"columnName":"day","value":"0"}]},
        {"lowerBounds":[{"columnName":"day","value":"0"}],"upperBounds":[{"columnName":"day","value":"10"}]}]}},
        "numReplicas":3,"columnIds":{"day":0,"p":4,"b":2},
        "tablets":{"a1":{"partitionKeyEnd":"gAAAAA=="},
        "a2":{"partitionKeyStart":"gAAAAA==","partitionKeyEnd":"gAAACg=="}},"tableOwner":"ann"}"#;

    #[test]
    fn metadata_that_kudu_wrote_is_read() {
        let manifest = decode(METADATA.as_bytes()).expect("Kudu's metadata");
        let schema = manifest.schema().expect("a schema");
        let partition = manifest.partition_schema(&schema).expect("a partition schema");
        let columns = schema.columns().iter().map(|column| {
            let (encoding, default) = (column.encoding, &column.write_default);
            format!("{column} #{} {encoding:?} {:?} {default:?}\n", column.id.0, column.compression)
        });
        let ranges = manifest.ranges().expect("ranges");
        let ranges: Vec<String> = ranges.iter().map(|range| partition.show_range(&schema, range)).collect();
        let text = format!("{}{}\n{:?}", columns.collect::<String>(), ranges.join("\n"), manifest.tablets);
        insta::assert_snapshot!(text, @r#"
        day INT32 NOT NULL #0 Auto Default None
        p DECIMAL(18, 2) NULLABLE #4 BitShuffle Lz4 Some([150, 0, 0, 0, 0, 0, 0, 0])
        b BINARY NOT NULL #2 Auto Default Some([0, 255])
        PARTITION VALUES < 0
        PARTITION 0 <= VALUES < 10
        ["a1", "a2"]
        "#);
        assert!(manifest.is_full() && manifest.replicas == 3 && manifest.owner == "ann");
    }

    #[test]
    fn other_layouts_are_refused() {
        let with =
            |from: &str, to: &str| decode(METADATA.replace(from, to).as_bytes()).expect_err(to).message;
        let found = [
            with("\"version\":1", "\"version\":2"),
            with("\"parquet\"", "\"orc\""),
            with("\"INT32\"", "\"INT33\""),
            with("\"p\":4", "\"q\":4"),
            with("\"toMs\":\"1700000000000\"", "\"toMs\":\"soon\""),
        ];
        insta::assert_snapshot!(found.join("\n"), @r#"
        version 2 of the layout is newer than 1
        data format "orc"; parquet can be read
        not Kudu's metadata: column day: the type "INT33"
        not Kudu's metadata: column p has no id
        not Kudu's metadata: the time "soon"
        "#);
    }

    #[test]
    fn rows_of_dropped_tablets_are_left_out() {
        let backup = decode(METADATA.as_bytes()).expect("Kudu's metadata");
        let mut last = backup.clone();
        assert!(KeptRows::new(&backup, &last).expect("a filter").is_none());
        last.tablets = vec!["a2".to_string(), "a3".to_string()];
        let mut filter = KeptRows::new(&backup, &last).expect("a filter").expect("a tablet is gone");
        let days: arrow_array::ArrayRef = std::sync::Arc::new(arrow_array::Int32Array::from(vec![-1, 0, 9]));
        let batch = RecordBatch::try_from_iter([("day", days)]).expect("a batch");
        assert_eq!(filter.of(&batch).expect("rows of tablets"), BooleanArray::from(vec![false, true, true]));
        let days: arrow_array::ArrayRef = std::sync::Arc::new(arrow_array::Int32Array::from(vec![10]));
        let batch = RecordBatch::try_from_iter([("day", days)]).expect("a batch");
        assert!(filter.of(&batch).is_err());
    }
}
