//! Encoded keys and partition keys.

use std::cmp::Ordering;

use arbitrary::{Arbitrary, Unstructured};
use engine::ids::ColumnId;
use engine::schema::key::{decode_key, encode_key, prefix_successor};
use engine::schema::partition::{HashDimension, PartitionSchema, Partitioner};
use engine::schema::predicate::compare_cells;
use engine::schema::{ColumnSchema, DataType, Schema};

/// Checks that a decoded key encodes to the same bytes.
pub(super) fn key(data: &[u8]) {
    let types = [
        &[DataType::Int64][..],
        &[DataType::String, DataType::Int8],
        &[DataType::Binary, DataType::String],
        &[DataType::Date, DataType::Decimal128, DataType::Varchar],
    ];
    for types in types {
        let columns = columns(types);
        if let Ok(cells) = decode_key(&columns, data) {
            assert_eq!(encoded(&columns, &cells), data, "a key decodes to one row only");
        }
    }
}

fn columns(types: &[DataType]) -> Vec<ColumnSchema> {
    let column = |(i, ty): (usize, &DataType)| ColumnSchema::new(i as u32, &format!("c{i}"), *ty);
    types.iter().enumerate().map(column).collect()
}

fn encoded(columns: &[ColumnSchema], cells: &[Vec<u8>]) -> Vec<u8> {
    let mut key = Vec::new();
    encode_key(columns, |i| &cells[i], &mut key);
    key
}

/// Returns the types of a key, at most four.
fn key_types(input: &mut Unstructured<'_>) -> arbitrary::Result<Vec<DataType>> {
    let allowed: Vec<DataType> = DataType::ALL.into_iter().filter(|ty| ty.allowed_in_key()).collect();
    (0..input.int_in_range(1..=4)?).map(|_| input.choose(&allowed).copied()).collect()
}

/// Returns a cell of a type; texts contain the bytes that the encoding of keys escapes.
fn cell(input: &mut Unstructured<'_>, ty: DataType) -> arbitrary::Result<Vec<u8>> {
    match ty.width() {
        Some(width) => Ok(input.bytes(width)?.to_vec()),
        None => (0..input.int_in_range(0..=6)?).map(|_| input.choose(&[0, 1, 2, 0xff]).copied()).collect(),
    }
}

fn row(input: &mut Unstructured<'_>, types: &[DataType]) -> arbitrary::Result<Vec<Vec<u8>>> {
    types.iter().map(|ty| cell(input, *ty)).collect()
}

/// Checks that two rows' keys are ordered as their cells are, and decode to them.
pub(super) fn order(data: &[u8]) {
    let mut input = Unstructured::new(data);
    let mut draw = || {
        let types = key_types(&mut input)?;
        Ok::<_, arbitrary::Error>((row(&mut input, &types)?, row(&mut input, &types)?, types))
    };
    let Ok((a, b, types)) = draw() else { return };
    let columns = columns(&types);
    let (a_key, b_key) = (encoded(&columns, &a), encoded(&columns, &b));
    let cells = a.iter().zip(&b).zip(&types);
    let order = cells.map(|((a, b), ty)| compare_cells(ty.physical(), a, b)).find(|order| order.is_ne());
    assert_eq!(a_key.cmp(&b_key), order.unwrap_or(Ordering::Equal), "{a:?} and {b:?} as {types:?}");
    assert_eq!(decode_key(&columns, &a_key).expect("it was just encoded"), a);
    if let Some(next) = prefix_successor(&a_key) {
        assert!(next > a_key && (b_key < next || b_key > a_key), "{a_key:?} is followed by {next:?}");
        assert_eq!(b_key.starts_with(&a_key), b_key >= a_key && b_key < next);
    }
}

/// Partitioning of a table, and a row of it.
#[derive(Debug, Arbitrary)]
struct Cut {
    /// Columns, buckets and seed of each dimension.
    hash: Vec<(u8, u8, u32)>,
    range: u8,
}

impl Cut {
    fn schema(&self, keys: usize) -> PartitionSchema {
        let ids = |mask: u8| (0..keys as u32).filter(move |i| mask >> i & 1 == 1).map(ColumnId).collect();
        let dimension = |&(mask, buckets, seed): &(u8, u8, u32)| HashDimension {
            columns: ids(mask),
            buckets: buckets.into(),
            seed,
        };
        let hash = self.hash.iter().take(3).map(dimension).collect();
        PartitionSchema { hash, range_columns: ids(self.range), custom: Vec::new() }
    }
}

/// Checks that a row has one tablet under any partitioning, the one of its partition key.
pub(super) fn partition(data: &[u8]) {
    let mut input = Unstructured::new(data);
    let mut draw = || {
        let (types, cut) = (key_types(&mut input)?, Cut::arbitrary(&mut input)?);
        Ok::<_, arbitrary::Error>((row(&mut input, &types)?, types, cut))
    };
    let Ok((row, types, cut)) = draw() else { return };
    let schema = Schema::new(columns(&types), types.len()).expect("a key of lawful types");
    let partition = cut.schema(types.len());
    if partition.check(&schema).is_err() {
        return;
    }
    let count: usize = partition.hash.iter().map(|dimension| dimension.buckets as usize).product();
    if count > 4096 {
        return;
    }
    let mut key = Vec::new();
    let mut partitioner = Partitioner::new(&partition, &schema).expect("its columns are the table's");
    partitioner.partition_key(|i| &row[i], &mut key);
    let tablets = partition.create_partitions(&[], &[]).expect("no range bounds");
    assert_eq!(tablets.len(), count);
    let home: Vec<_> = tablets.iter().filter(|tablet| tablet.contains(&key)).collect();
    let [home] = home[..] else { panic!("{key:?} is in {home:?}") };
    let buckets: Vec<u8> = home.hash_buckets.iter().flat_map(|bucket| bucket.to_be_bytes()).collect();
    assert!(key.starts_with(&buckets), "{key:?} is in {home:?}");
}
