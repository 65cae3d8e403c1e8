//! Columns, tables and conditions as messages.

use bytes::Bytes;
use nyala_proto::kudu::column_predicate_pb::{
    Equality, InBloomFilter, InList, IsNotNull, IsNull, Predicate, Range,
};
use nyala_proto::kudu::master::CreateTableRequestPb;
use nyala_proto::kudu::partition_schema_pb::column_identifier_pb::Identifier;
use nyala_proto::kudu::partition_schema_pb::{
    ColumnIdentifierPb, HashBucketSchemaPb, RangeSchemaPb, RangeWithHashSchemaPb,
};
use nyala_proto::kudu::{
    BlockBloomFilterPb, ColumnPredicatePb, ColumnSchemaPb, ColumnTypeAttributesPb, PartitionSchemaPb,
    RowOperationsPb, SchemaPb,
};
use sim_plan::tables::spec::{AUTO_INCREMENT, CompressionWord, EncodingWord};
use sim_plan::tables::value::CellForm;
use sim_plan::tables::{ColumnKind, ColumnSpec, HashLevel, ModelTable, RangeSpec, TypeWord, Value};

use super::bloom::BloomFilter;
use super::keys;
use super::rows::{EXCLUSIVE_LOWER_BOUND, INCLUSIVE_UPPER_BOUND, LOWER_BOUND, RowEncoder, Slot, UPPER_BOUND};
use crate::model::{Condition, TableSettings};

/// Number of the virtual column of diff scans.
pub const IS_DELETED: i32 = 18;

/// Features of masters that a table needs.
const RANGE_BOUNDS: u32 = 1;
const OWN_HASH: u32 = 8;
const IMMUTABLE: u32 = 10;
const AUTO_INCREMENTING: u32 = 11;

/// Returns the number of a type.
pub fn type_number(word: TypeWord) -> i32 {
    match word {
        TypeWord::Uint8 => 0,
        TypeWord::Int8 => 1,
        TypeWord::Uint16 => 2,
        TypeWord::Int16 => 3,
        TypeWord::Uint32 => 4,
        TypeWord::Int32 => 5,
        TypeWord::Uint64 => 6,
        TypeWord::Int64 => 7,
        TypeWord::String => 8,
        TypeWord::Bool => 9,
        TypeWord::Float => 10,
        TypeWord::Double => 11,
        TypeWord::Binary => 12,
        TypeWord::Time => 13,
        TypeWord::Int128 => 14,
        TypeWord::Decimal32 => 15,
        TypeWord::Decimal64 => 16,
        TypeWord::Decimal128 => 17,
        TypeWord::Varchar => 19,
        TypeWord::Date => 20,
    }
}

/// Returns the number of an encoding.
pub fn encoding_number(word: EncodingWord) -> i32 {
    match word {
        EncodingWord::Auto => 0,
        EncodingWord::Plain => 1,
        EncodingWord::Prefix => 2,
        EncodingWord::Rle => 4,
        EncodingWord::Dict => 5,
        EncodingWord::BitShuffle => 6,
    }
}

/// Returns the number of a compression.
pub fn compression_number(word: CompressionWord) -> i32 {
    match word {
        CompressionWord::Default => 0,
        CompressionWord::No => 1,
        CompressionWord::Snappy => 2,
        CompressionWord::Lz4 => 3,
        CompressionWord::Zlib => 4,
    }
}

/// Returns the size of the pages of a column with this layout in bytes; 0 for the server's own. A change of the layout
/// changes it, too.
pub fn block_size(encoding: EncodingWord, compression: CompressionWord) -> i32 {
    match (encoding_number(encoding) + compression_number(compression)) % 8 {
        6 => 200,
        7 => 5_000,
        _ => 0,
    }
}

/// Returns the comment of the column of this number, which changes with its write default: a removed default removes
/// it. `None` for a column that never has one.
pub fn comment(number: u8, has_default: bool) -> Option<String> {
    let text = || if has_default { format!("column {number} has a default") } else { String::new() };
    (number % 3 == 1).then(text)
}

/// Returns a column of a schema as data, with this number; `None` if its type is unknown.
pub fn spec_of(pb: &ColumnSchemaPb, number: u8) -> Option<ColumnSpec> {
    let word = TypeWord::ALL.iter().find(|word| type_number(**word) == pb.r#type)?;
    let attributes = pb.type_attributes.unwrap_or_default();
    let kind = ColumnKind {
        word: *word,
        precision: attributes.precision() as u8,
        scale: attributes.scale() as u8,
        length: attributes.length() as u16,
    };
    Some(ColumnSpec {
        table: 0,
        number,
        name: pb.name.clone(),
        kind,
        nullable: pb.is_nullable(),
        immutable: pb.immutable(),
        read: None,
        write: None,
        encoding: EncodingWord::Auto,
        compression: CompressionWord::Default,
    })
}

/// Returns a column's type and nullability.
pub fn slot(column: &ColumnSpec) -> Slot {
    (column.kind, column.nullable)
}

fn default_bytes(column: &ColumnSpec, value: Option<&Value>) -> Option<Bytes> {
    value.and_then(|value| column.kind.cell(value)).map(Bytes::from)
}

/// Returns a column of a write or a projection.
pub fn column(column: &ColumnSpec, key: bool) -> ColumnSchemaPb {
    let kind = column.kind;
    let attributes = ColumnTypeAttributesPb {
        precision: (kind.precision > 0).then_some(i32::from(kind.precision)),
        scale: (kind.precision > 0).then_some(i32::from(kind.scale)),
        length: (kind.length > 0).then_some(i32::from(kind.length)),
    };
    ColumnSchemaPb {
        name: column.name.clone(),
        r#type: type_number(kind.word),
        is_key: Some(key),
        is_nullable: Some(column.nullable),
        is_auto_incrementing: (column.name == AUTO_INCREMENT).then_some(true),
        type_attributes: (kind.precision > 0 || kind.length > 0).then_some(attributes),
        ..Default::default()
    }
}

/// Returns a column of a new table, or one that is added: with its default, layout, attributes and comment.
pub fn new_column(spec: &ColumnSpec, key: bool) -> ColumnSchemaPb {
    ColumnSchemaPb {
        read_default_value: default_bytes(spec, spec.read.as_ref()),
        encoding: Some(encoding_number(spec.encoding)),
        compression: Some(compression_number(spec.compression)),
        cfile_block_size: Some(block_size(spec.encoding, spec.compression)),
        comment: comment(spec.number, spec.write.is_some()),
        immutable: Some(spec.immutable),
        ..column(spec, key)
    }
}

/// Returns the columns of writes; `keys` of them are key columns.
pub fn columns(specs: &[ColumnSpec], keys: usize) -> SchemaPb {
    SchemaPb { columns: specs.iter().enumerate().map(|(at, spec)| column(spec, at < keys)).collect() }
}

/// Returns the differences between a column as a server reports it and as it should be.
pub fn differences(spec: &ColumnSpec, pb: &ColumnSchemaPb, key: bool) -> Vec<&'static str> {
    let want = new_column(spec, key);
    let attributes = |pb: &ColumnSchemaPb| pb.type_attributes.unwrap_or_default();
    // Attributes of other types may be reported as 0.
    let same_attributes = match spec.kind.word {
        TypeWord::Varchar => attributes(&want).length == attributes(pb).length,
        _ if spec.kind.precision > 0 => {
            (attributes(&want).precision, attributes(&want).scale)
                == (attributes(pb).precision, attributes(pb).scale)
        }
        _ => true,
    };
    let facts = [
        ("name", want.name == pb.name),
        ("type", want.r#type == pb.r#type && same_attributes),
        ("key", want.is_key() == pb.is_key()),
        ("nullability", want.is_nullable() == pb.is_nullable()),
        ("read default", want.read_default_value == pb.read_default_value),
        ("write default", default_bytes(spec, spec.write.as_ref()) == pb.write_default_value),
        ("encoding", want.encoding() == pb.encoding()),
        ("compression", want.compression() == pb.compression()),
        ("block size", want.cfile_block_size() == pb.cfile_block_size()),
        ("comment", want.comment() == pb.comment()),
        ("auto-increment", want.is_auto_incrementing() == pb.is_auto_incrementing()),
        ("immutability", want.immutable() == pb.immutable()),
    ];
    facts.into_iter().filter(|(_, same)| !same).map(|(what, _)| what).collect()
}

fn named(table: &ModelTable, number: u8) -> ColumnIdentifierPb {
    let name = table.column(number).map(|column| column.name.clone()).unwrap_or_default();
    ColumnIdentifierPb { identifier: Some(Identifier::Name(name)) }
}

/// Returns hash levels.
pub fn levels(table: &ModelTable, levels: &[HashLevel]) -> Vec<HashBucketSchemaPb> {
    let level = |level: &HashLevel| HashBucketSchemaPb {
        columns: level.columns.iter().map(|number| named(table, *number)).collect(),
        num_buckets: i32::from(level.buckets),
        seed: Some(level.seed),
        hash_algorithm: None,
    };
    levels.iter().map(level).collect()
}

/// Returns the bounds of ranges: a lower and an upper one for each. Half of those that have a key before them are told
/// by that key.
pub fn range_bounds(table: &ModelTable, ranges: &[&RangeSpec]) -> RowOperationsPb {
    let slots: Vec<Slot> = table.columns.iter().map(slot).collect();
    let mut encoder = RowEncoder::default();
    for range in ranges {
        let bounds = [
            (LOWER_BOUND, EXCLUSIVE_LOWER_BOUND, &range.low),
            (UPPER_BOUND, INCLUSIVE_UPPER_BOUND, &range.high),
        ];
        for (op, op_before, bound) in bounds {
            let before = key_before(table, bound);
            let (op, bound) = before.as_ref().map_or((op, bound), |before| (op_before, before));
            let cell = |column: &ColumnSpec| {
                let at = table.spec.range.iter().position(|number| *number == column.number);
                at.and_then(|at| bound.get(at)).cloned()
            };
            encoder.push(op, &slots, &table.columns.iter().map(cell).collect::<Vec<_>>());
        }
    }
    encoder.finish()
}

/// Returns the range key before a bound, for half of the bounds of integers.
fn key_before(table: &ModelTable, bound: &[Value]) -> Option<Vec<Value>> {
    let columns = table.spec.range.iter().map(|number| table.column(*number));
    let kinds =
        columns.map(|column| Some(column?.kind).filter(|kind| matches!(kind.form(), CellForm::Int(..))));
    let limits: Vec<(i128, i128)> = kinds.map(|kind| Some(kind?.int_range())).collect::<Option<_>>()?;
    // Columns without a value have the least one.
    let value = |(at, (least, _)): (usize, &(i128, i128))| match bound.get(at) {
        Some(value) => value.number(),
        None => Some(*least),
    };
    let mut key: Vec<i128> = limits.iter().enumerate().map(value).collect::<Option<_>>()?;
    let is_told =
        !bound.is_empty() && key.iter().fold(0_i128, |sum, value| sum.wrapping_add(*value)) % 2 == 0;
    let at = (0..key.len()).rev().find(|at| key[*at] > limits[*at].0).filter(|_| is_told)?;
    // The least key of a carry has no later value. For a type whose cells go below its values it is another one.
    let has_lesser_cells = |later: usize| {
        let column = table.spec.range.get(later).and_then(|number| table.column(*number));
        column.is_some_and(|column| column.kind.form().int_range().0 < limits[later].0)
    };
    if (at + 1..bound.len()).any(has_lesser_cells) {
        return None;
    }
    key[at] -= 1;
    for later in at + 1..key.len() {
        key[later] = limits[later].1;
    }
    Some(key.into_iter().map(Value::Int).collect())
}

/// Returns the request that creates a table, and the features that it needs.
pub fn create(
    table: &ModelTable,
    name: &str,
    settings: &TableSettings,
    replicas: i32,
) -> (CreateTableRequestPb, Vec<u32>) {
    let own = table.ranges.iter().any(|range| !range.hash.is_empty());
    let ranges: Vec<&RangeSpec> = table.ranges.iter().collect();
    let with_hash = |range: &&RangeSpec| RangeWithHashSchemaPb {
        range_bounds: Some(range_bounds(table, &[range])),
        hash_schema: levels(table, table.levels(Some(range))),
    };
    let partition_schema = PartitionSchemaPb {
        hash_schema: levels(table, &table.spec.hash),
        range_schema: Some(RangeSchemaPb {
            columns: table.spec.range.iter().map(|number| named(table, *number)).collect(),
        }),
        custom_hash_schema_ranges: if own { ranges.iter().map(with_hash).collect() } else { Vec::new() },
    };
    let keys = usize::from(table.spec.keys);
    let request = CreateTableRequestPb {
        name: name.to_string(),
        schema: SchemaPb {
            columns: table.columns.iter().enumerate().map(|(at, spec)| new_column(spec, at < keys)).collect(),
        },
        split_rows_range_bounds: (!own && !ranges.is_empty()).then(|| range_bounds(table, &ranges)),
        partition_schema: Some(partition_schema),
        num_replicas: Some(replicas),
        owner: Some(settings.owner.clone()),
        comment: Some(settings.comment.clone()),
        extra_configs: settings.extra.clone(),
        ..Default::default()
    };
    let mut features = Vec::new();
    features.extend((!ranges.is_empty()).then_some(RANGE_BOUNDS));
    features.extend(own.then_some(OWN_HASH));
    features.extend(table.columns.iter().any(|column| column.immutable).then_some(IMMUTABLE));
    features.extend(table.auto_increment().map(|_| AUTO_INCREMENTING));
    (request, features)
}

/// Returns a condition on a column.
pub fn predicate(column: &ColumnSpec, condition: &Condition) -> ColumnPredicatePb {
    let cell = |value: &Value| column.kind.cell(value).map(Bytes::from);
    let predicate = match condition {
        Condition::Equal(value) => Predicate::Equality(Equality { value: cell(value) }),
        Condition::Range(low, high) => Predicate::Range(Range {
            lower: low.as_ref().and_then(cell),
            upper: high.as_ref().and_then(cell),
        }),
        Condition::AtMost(value) => match keys::successor(column.kind, value) {
            Some(next) => Predicate::Range(Range { lower: None, upper: cell(&next) }),
            None => Predicate::IsNotNull(IsNotNull {}),
        },
        // Nothing is above the greatest value.
        Condition::Above(value) => match keys::successor(column.kind, value) {
            Some(next) => Predicate::Range(Range { lower: cell(&next), upper: None }),
            None => Predicate::InList(InList { values: Vec::new() }),
        },
        Condition::In(values) => {
            Predicate::InList(InList { values: values.iter().filter_map(cell).collect() })
        }
        Condition::InSet(values) => {
            Predicate::InList(InList { values: values.iter().filter_map(cell).collect() })
        }
        Condition::Null => Predicate::IsNull(IsNull {}),
        Condition::NotNull => Predicate::IsNotNull(IsNotNull {}),
        Condition::Bloom { filters, low, high } => Predicate::InBloomFilter(InBloomFilter {
            bloom_filters: filters.iter().map(bloom_filter).collect(),
            lower: low.as_ref().and_then(cell),
            upper: high.as_ref().and_then(cell),
        }),
    };
    ColumnPredicatePb { column: Some(column.name.clone()), predicate: Some(predicate) }
}

fn bloom_filter(filter: &BloomFilter) -> BlockBloomFilterPb {
    BlockBloomFilterPb {
        log_space_bytes: Some(filter.log_space()),
        bloom_data: Some(filter.bytes().into()),
        always_false: Some(false),
        hash_algorithm: None,
        hash_seed: Some(filter.seed()),
    }
}

#[cfg(test)]
mod tests {
    use sim_plan::line_format::LineRecord;
    use sim_plan::tables::{ColumnSpec, TableSpec};

    use super::*;

    fn table() -> ModelTable {
        let column = |number: u8, kind: &str| {
            let rest = "nullable=false immutable=false read=- write=- encoding=plain compression=no";
            let line = format!("column table=0 number={number} name=k{number} kind={kind} {rest}");
            ColumnSpec::parse_line(&line).expect("a column")
        };
        ModelTable {
            spec: TableSpec::parse_line("table number=0 keys=2 hash=- range=0,1").expect("a table"),
            columns: vec![column(0, "uint8"), column(1, "decimal32:2:0")],
            ranges: Vec::new(),
        }
    }

    #[test]
    fn a_column_with_another_comment_or_block_size_differs() {
        let rest = "nullable=true immutable=false read=i1 write=i1 encoding=rle compression=lz4";
        let line = format!("column table=0 number=4 name=c kind=int8 {rest}");
        let spec = ColumnSpec::parse_line(&line).expect("a column");
        let write_default_value = default_bytes(&spec, spec.write.as_ref());
        let told = ColumnSchemaPb { write_default_value, ..new_column(&spec, false) };
        assert_eq!((told.comment(), told.cfile_block_size()), ("column 4 has a default", 5_000));
        assert_eq!(differences(&spec, &told, false), Vec::<&str>::new());
        let lost = ColumnSchemaPb { comment: None, cfile_block_size: Some(0), ..told };
        assert_eq!(differences(&spec, &lost, false), ["block size", "comment"]);
        assert_eq!(comment(4, false), Some(String::new()), "it is removed with the default");
    }

    fn before(bound: &[i128]) -> Option<Vec<i128>> {
        let bound: Vec<Value> = bound.iter().map(|number| Value::Int(*number)).collect();
        let before = key_before(&table(), &bound)?;
        Some(before.iter().filter_map(Value::number).collect())
    }

    #[test]
    fn half_of_the_bounds_are_told_by_the_key_before() {
        assert_eq!(before(&[4, 8]), Some(vec![4, 7]));
        assert_eq!(before(&[4, 9]), None, "the other half");
        assert_eq!(before(&[5]), Some(vec![4, 99]), "a carry leaves the second column without a value");
        assert_eq!(before(&[5, -99]), None, "whose key is less than that of the least value");
        assert_eq!(before(&[]), None, "a range without a bound");
    }
}
