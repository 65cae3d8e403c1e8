use std::collections::BTreeSet;

use proptest::prelude::*;

use super::super::partition_range::{RangeOpLimits, decode_range_ops, ranges_of_ops};
use super::super::row_ops::ClientColumn;
use super::super::{ColumnSchema, DataType};
use super::*;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn column(id: u32, ty: DataType) -> ColumnSchema {
    ColumnSchema::new(id, ["a", "b", "c"][id as usize], ty)
}

fn dimension(columns: &[u32], buckets: u32, seed: u32) -> HashDimension {
    HashDimension { columns: columns.iter().map(|id| ColumnId(*id)).collect(), buckets, seed }
}

fn ids(ids: &[u32]) -> Vec<ColumnId> {
    ids.iter().map(|id| ColumnId(*id)).collect()
}

fn show(partitions: &[Partition]) -> String {
    let line = |p: &Partition| format!("{:?} {} -> {}\n", p.hash_buckets, hex(&p.start), hex(&p.end));
    partitions.iter().map(line).collect()
}

#[test]
fn rows_hash_as_in_other_clients() {
    let schema = Schema::new(
        vec![column(0, DataType::Int32), column(1, DataType::String), column(2, DataType::String)],
        3,
    )
    .expect("a legal schema");
    let partition = PartitionSchema {
        hash: vec![dimension(&[0, 1], 32, 0), dimension(&[2], 32, 42)],
        range_columns: ids(&[0, 1, 2]),
        custom: vec![],
    };
    partition.check(&schema).expect("legal");
    let mut partitioner = Partitioner::new(&partition, &schema).expect("its columns exist");
    let rows: [(i32, &str, &str, &str); 5] = [
        (0, "", "", "0000000000000014800000000000"),
        (1, "", "", "0000000500000014800000010000"),
        (0, "b", "c", "0000001a0000001d8000000062000063"),
        (1, "b", "c", "000000000000001d8000000162000063"),
        (-1, "x\0y", "z", "0000001f0000000c7fffffff7800017900007a"),
    ];
    for (a, b, c, want) in rows {
        let a = a.to_le_bytes();
        let cells: [&[u8]; 3] = [&a, b.as_bytes(), c.as_bytes()];
        let mut key = Vec::new();
        partitioner.partition_key(|i| cells[i], &mut key);
        assert_eq!(hex(&key), want);
    }
}

#[test]
fn buckets_of_numbers_are_those_of_other_clients() {
    let schema = Schema::new(vec![column(0, DataType::Int64)], 1).expect("a legal schema");
    let rows = [0i64, 1, 2, 3, 100, -1];
    for (buckets, seed, want) in
        [(2, 0, [0, 1, 0, 0, 0, 1]), (4, 0, [2, 1, 0, 0, 0, 1]), (16, 7, [6, 15, 10, 14, 2, 9])]
    {
        let partition = PartitionSchema { hash: vec![dimension(&[0], buckets, seed)], ..Default::default() };
        let mut partitioner = Partitioner::new(&partition, &schema).expect("its columns exist");
        for (row, want) in rows.iter().zip(want) {
            let cell = row.to_le_bytes();
            let mut key = Vec::new();
            partitioner.partition_key(|_| &cell, &mut key);
            assert_eq!(key, u32::to_be_bytes(want), "{row} of {buckets} buckets, seed {seed}");
        }
    }
}

fn int_and_string() -> Schema {
    Schema::new(vec![column(0, DataType::Int32), column(1, DataType::String)], 2).expect("a legal schema")
}

#[test]
fn tablets_of_real_tables() {
    let int = |value: i32| {
        let mut key = Vec::new();
        encode_cell(PhysicalType::Int32, &value.to_le_bytes(), true, &mut key);
        key
    };
    let both =
        PartitionSchema { hash: vec![dimension(&[1], 2, 3)], range_columns: ids(&[0]), custom: vec![] };
    let ranges =
        [PartitionRange { lower: int(0), upper: int(10) }, PartitionRange { lower: int(10), upper: vec![] }];
    insta::assert_snapshot!(show(&both.create_partitions(&[], &ranges).expect("legal")), @r"
    [0] 0000000080000000 -> 000000008000000a
    [0] 000000008000000a -> 00000001
    [1] 0000000180000000 -> 000000018000000a
    [1] 000000018000000a -> 00000002
    ");
    let hashes =
        PartitionSchema { hash: vec![dimension(&[0], 2, 0), dimension(&[1], 2, 0)], ..Default::default() };
    insta::assert_snapshot!(show(&hashes.create_partitions(&[], &[]).expect("legal")), @r"
    [0, 0] 0000000000000000 -> 0000000000000001
    [0, 1] 0000000000000001 -> 0000000000000002
    [1, 0] 0000000100000000 -> 0000000100000001
    [1, 1] 0000000100000001 -> 0000000100000002
    ");
    let range = PartitionSchema { range_columns: ids(&[0, 1]), ..Default::default() };
    let split = [int(5), b"m".to_vec()].concat();
    insta::assert_snapshot!(show(&range.create_partitions(&[split], &[]).expect("legal")), @r"
    []  -> 800000056d
    [] 800000056d -> 
    ");
    let mut custom =
        PartitionSchema { hash: vec![dimension(&[0], 2, 0)], range_columns: ids(&[1]), custom: vec![] };
    let low = PartitionRange { lower: b"a".to_vec(), upper: b"m".to_vec() };
    let high = PartitionRange { lower: b"m".to_vec(), upper: vec![] };
    custom.set_custom(&low, vec![dimension(&[0], 3, 1)]);
    custom.set_custom(&high, custom.hash.clone());
    assert_eq!(custom.custom.len(), 1, "a range that hashes like the table is not remembered");
    custom.check(&int_and_string()).expect("legal");
    insta::assert_snapshot!(show(&custom.create_partitions(&[], &[high, low.clone()]).expect("legal")), @r"
    [0] 0000000061 -> 000000006d
    [0] 000000006d -> 00000001
    [1] 0000000161 -> 000000016d
    [1] 000000016d -> 00000002
    [2] 0000000261 -> 000000026d
    ");
    assert_eq!(custom.partitions_of(&low)[2].range(), low);
    assert_eq!(
        custom.show_range(&int_and_string(), &low),
        r#"PARTITION "a" <= VALUES < "m" HASH (a) PARTITIONS 3 SEED 1"#
    );
    assert_eq!(custom.show(&int_and_string()), ["HASH (a) PARTITIONS 2", "RANGE (b)"]);
}

#[test]
fn custom_ranges_are_found_among_many_and_forgotten_by_both_bounds() {
    let mut partition =
        PartitionSchema { hash: vec![dimension(&[0], 2, 0)], range_columns: ids(&[1]), custom: vec![] };
    let range = |lower: u8, upper: u8| PartitionRange { lower: vec![lower], upper: vec![upper] };
    for number in [30, 10, 20] {
        partition.set_custom(&range(number, number + 5), vec![dimension(&[0], u32::from(number), 0)]);
    }
    let buckets = |partition: &PartitionSchema, key: u8| partition.hash_of(&[key])[0].buckets;
    let found = [9, 10, 14, 15, 19, 20, 34, 35].map(|key| buckets(&partition, key));
    assert_eq!(found, [2, 10, 10, 2, 2, 20, 30, 2]);
    partition.forget_custom(&range(20, 24));
    assert_eq!(buckets(&partition, 20), 20, "that is another range");
    partition.forget_custom(&range(20, 25));
    assert_eq!([10, 20, 30].map(|key| buckets(&partition, key)), [10, 2, 30]);
    let unbounded = PartitionRange { lower: vec![40], upper: Vec::new() };
    partition.set_custom(&unbounded, vec![dimension(&[0], 40, 0)]);
    assert_eq!([39, 40, 255].map(|key| buckets(&partition, key)), [2, 40, 40]);
}

#[test]
fn invalid_partition_schemas_are_rejected() {
    let schema = int_and_string();
    let check = |hash: Vec<HashDimension>, range: &[u32]| {
        PartitionSchema { hash, range_columns: ids(range), custom: vec![] }.check(&schema)
    };
    assert!(check(vec![dimension(&[0], 1, 0)], &[]).is_err(), "one bucket");
    assert!(check(vec![dimension(&[], 2, 0)], &[]).is_err(), "no column");
    assert!(check(vec![dimension(&[0], 2, 0), dimension(&[0], 2, 1)], &[]).is_err(), "column twice");
    assert!(check(vec![dimension(&[2], 2, 0)], &[]).is_err(), "unknown column");
    assert!(check(vec![], &[0, 0]).is_err(), "range column twice");
    let range = PartitionSchema { range_columns: ids(&[0]), ..Default::default() };
    let one = PartitionRange { lower: vec![1], upper: vec![3] };
    let two = PartitionRange { lower: vec![2], upper: vec![4] };
    assert!(range.create_partitions(&[], &[two, one.clone()]).is_err(), "overlap");
    assert!(range.create_partitions(&[vec![3]], std::slice::from_ref(&one)).is_err(), "split outside");
    assert!(range.create_partitions(&[vec![1]], &[one]).is_err(), "split at a bound");
}

const ANY: RangeOpLimits = RangeOpLimits { count: usize::MAX, cell_bytes: usize::MAX };

#[test]
fn bounds_of_a_create_request() {
    let schema = int_and_string();
    let wire = [
        ClientColumn { id: ColumnId(0), ty: DataType::Int32, nullable: false },
        ClientColumn { id: ColumnId(1), ty: DataType::String, nullable: true },
    ];
    let rows: Vec<u8> = [
        &[4u8, 1, 0, 0x32, 0, 0, 0][..],
        &[6, 1, 0, 0, 0, 0, 0],
        &[7, 1, 0, 0x64, 0, 0, 0],
        &[8, 1, 0, 0x64, 0, 0, 0],
        &[9, 0, 0],
    ]
    .concat();
    let ops = decode_range_ops(&wire, &rows, &[], ANY).expect("well formed");
    let (splits, ranges) = ranges_of_ops(&schema, &ids(&[0]), &ops).expect("legal");
    assert_eq!(splits.iter().map(|key| hex(key)).collect::<Vec<_>>(), ["80000032"]);
    let ranges: Vec<String> =
        ranges.iter().map(|r| format!("{}..{}", hex(&r.lower), hex(&r.upper))).collect();
    assert_eq!(ranges, ["80000000..80000064", "80000065.."]);
    for cut in 1..rows.len() {
        let _ = decode_range_ops(&wire, &rows[..cut], &[], ANY);
    }
}

/// A cell is named by its place in the request: many operations may name the same bytes.
#[test]
fn operations_beyond_the_limits_are_refused_before_they_are_copied() {
    let wire = [ClientColumn { id: ColumnId(0), ty: DataType::String, nullable: false }];
    let named = |offset: u64, len: u64| [&[4, 1][..], &offset.to_le_bytes(), &len.to_le_bytes()].concat();
    let indirect = vec![b'x'; 1000];
    let rows = named(0, 1000).repeat(4);
    let decode = |count, cell_bytes| {
        decode_range_ops(&wire, &rows, &indirect, RangeOpLimits { count, cell_bytes }).map(|ops| ops.len())
    };
    assert_eq!(decode(4, 4000), Ok(4));
    let message = |refused: Result<usize, Error>| refused.expect_err("too much").message;
    assert_eq!(message(decode(3, 4000)), "more than 3 split rows and range bounds in one place");
    assert_eq!(message(decode(4, 3999)), "split rows and range bounds of more than 3999 bytes");
}

fn byte_key(value: i8) -> Vec<u8> {
    let mut key = Vec::new();
    encode_cell(PhysicalType::Int8, &value.to_le_bytes(), true, &mut key);
    key
}

/// Handling of the rows between two bounds.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Piece {
    LeftOut,
    HashedAsTheTable,
    HashedOtherwise,
}

fn pieces() -> impl Strategy<Value = Vec<Piece>> {
    let piece = prop::sample::select(vec![Piece::LeftOut, Piece::HashedAsTheTable, Piece::HashedOtherwise]);
    prop::collection::vec(piece, 7)
}

/// Returns the ranges into which `bounds` divide a column, the lowest and the highest one unbounded.
fn between(bounds: &BTreeSet<i8>) -> Vec<PartitionRange> {
    let ends = || std::iter::once(Vec::new());
    let keys = || bounds.iter().map(|bound| byte_key(*bound));
    let pairs = ends().chain(keys()).zip(keys().chain(ends()));
    pairs.map(|(lower, upper)| PartitionRange { lower, upper }).collect()
}

proptest! {
    #[test]
    fn a_row_has_one_tablet_if_its_range_has_any(
        bounds in prop::collection::btree_set(any::<i8>(), 0..6),
        pieces in pieces(),
        splits in prop::collection::btree_set(any::<i8>(), 0..4),
        rows in prop::collection::vec((any::<i8>(), "[a-c\0]{0,3}"), 1..20),
    ) {
        let columns = vec![column(0, DataType::Int8), column(1, DataType::String)];
        let schema = Schema::new(columns, 2).expect("a legal schema");
        let mut partition =
            PartitionSchema { hash: vec![dimension(&[1], 3, 0)], range_columns: ids(&[0]), custom: vec![] };
        let mut ranges = Vec::new();
        for (range, piece) in between(&bounds).into_iter().zip(pieces) {
            if piece == Piece::HashedOtherwise {
                partition.set_custom(&range, vec![dimension(&[0, 1], 5, 5)]);
            }
            if piece != Piece::LeftOut {
                ranges.push(range);
            }
        }
        prop_assume!(!ranges.is_empty());
        partition.check(&schema).expect("legal");
        let inside = |split: &Vec<u8>| ranges.iter().any(|r| r.contains(split) && r.lower != *split);
        let splits: Vec<_> = splits.into_iter().map(byte_key).filter(inside).collect();
        let tablets = partition.create_partitions(&splits, &ranges).expect("legal");
        prop_assert!(tablets.is_sorted_by(|a, b| !a.end.is_empty() && a.end <= b.start), "{tablets:?}");
        let mut partitioner = Partitioner::new(&partition, &schema).expect("its columns exist");
        for (a, b) in rows {
            let (cell, range_key) = (a.to_le_bytes(), byte_key(a));
            let mut key = Vec::new();
            partitioner.partition_key(|i| if i == 0 { &cell[..] } else { b.as_bytes() }, &mut key);
            let tablets_of_row: Vec<_> = tablets.iter().filter(|tablet| tablet.contains(&key)).collect();
            let wanted = usize::from(ranges.iter().any(|range| range.contains(&range_key)));
            prop_assert_eq!(tablets_of_row.len(), wanted, "({}, {:?}) is in {:?}", a, b, tablets_of_row);
            prop_assert!(tablets_of_row.iter().all(|home| home.range().contains(&range_key)));
        }
    }
}
