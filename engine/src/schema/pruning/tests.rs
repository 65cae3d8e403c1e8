//! Pruning compared with an evaluation of every row.

use proptest::prelude::*;

use super::super::partition::Partitioner;
use super::super::{DataType, key};
use super::*;

const STRINGS: [&str; 6] = ["", "a", "a\0", "ab", "b", "c"];

fn schema() -> Schema {
    let column = |id, name, ty| ColumnSchema::new(id, name, ty);
    let columns = vec![
        column(0, "a", DataType::Int8),
        column(1, "b", DataType::String),
        column(2, "c", DataType::Int8),
    ];
    Schema::new(columns, 3).expect("a legal schema")
}

fn rows() -> Vec<[Vec<u8>; 3]> {
    let mut rows = Vec::new();
    for a in -2i8..4 {
        for b in STRINGS {
            for c in -1i8..3 {
                rows.push([vec![a as u8], b.as_bytes().to_vec(), vec![c as u8]]);
            }
        }
    }
    rows
}

fn cell(column: u32) -> BoxedStrategy<Vec<u8>> {
    match column {
        1 => prop::sample::select(STRINGS.to_vec()).prop_map(|s| s.as_bytes().to_vec()).boxed(),
        _ => (-2i8..4).prop_map(|n| vec![n as u8]).boxed(),
    }
}

fn predicate() -> impl Strategy<Value = Predicate> {
    (0u32..3).prop_flat_map(|column| {
        let ty = schema().columns()[column as usize].ty;
        let kind = prop_oneof![
            cell(column).prop_map(PredicateKind::Equal),
            (prop::option::of(cell(column)), prop::option::of(cell(column)))
                .prop_map(|(lower, upper)| PredicateKind::Range { lower, upper }),
            prop::collection::vec(cell(column), 0..4)
                .prop_map(move |values| PredicateKind::in_list(ty, values)),
            Just(PredicateKind::IsNotNull),
        ];
        kind.prop_map(move |kind| Predicate { column: ColumnId(column), kind })
    })
}

fn partition_schema() -> impl Strategy<Value = PartitionSchema> {
    let dimension = |columns: &[u32], buckets, seed| HashDimension {
        columns: columns.iter().map(|id| ColumnId(*id)).collect(),
        buckets,
        seed,
    };
    let hash = prop::sample::select(vec![
        vec![],
        vec![dimension(&[0], 3, 0)],
        vec![dimension(&[0, 1], 4, 7)],
        vec![dimension(&[1], 2, 0), dimension(&[2], 3, 1)],
    ]);
    let range =
        prop::sample::select(vec![vec![], vec![0u32], vec![0, 1], vec![1], vec![2, 0], vec![0, 1, 2]]);
    (hash, range, any::<bool>()).prop_map(move |(hash, range, custom)| {
        let mut schema = PartitionSchema {
            range_columns: range.iter().map(|id| ColumnId(*id)).collect(),
            hash: hash.clone(),
            custom: vec![],
        };
        if custom && range.first() == Some(&0) && hash.len() == 1 {
            let range = PartitionRange { lower: vec![0x80], upper: vec![0x82] };
            schema.set_custom(&range, vec![dimension(&[2], 5, 3)]);
        }
        schema
    })
}

proptest! {
    #[test]
    fn no_row_is_pruned_away(
        partition in partition_schema(),
        predicates in prop::collection::vec(predicate(), 0..4),
        bounds in (prop::option::of(0usize..144), prop::option::of(0usize..144)),
    ) {
        let (schema, rows) = (schema(), rows());
        let key = |row: &[Vec<u8>; 3]| {
            let mut out = Vec::new();
            key::encode_key(schema.key_columns(), |i| &row[i], &mut out);
            out
        };
        let bound = |at: Option<usize>| at.map(|at| key(&rows[at])).unwrap_or_default();
        let keys = PartitionRange { lower: bound(bounds.0), upper: bound(bounds.1) };
        let ranges = partition.prune(&schema, &predicates, &keys);
        prop_assert!(ranges.is_sorted_by(|a, b| !a.upper.is_empty() && a.upper <= b.lower), "{ranges:?}");
        let mut partitioner = Partitioner::new(&partition, &schema).expect("its columns exist");
        let of_predicates = key_bounds(schema.key_columns(), &predicates);
        for row in &rows {
            let matches = predicates.iter().all(|predicate| {
                let column = predicate.column.0 as usize;
                predicate.matches_cell(schema.columns()[column].ty, Some(&row[column]))
            });
            let row_key = key(row);
            if matches {
                prop_assert!(of_predicates.as_ref().is_some_and(|range| range.contains(&row_key)));
            }
            let mut partition_key = Vec::new();
            partitioner.partition_key(|i| &row[i], &mut partition_key);
            if matches && keys.contains(&row_key) {
                let is_kept = ranges.iter().any(|range| range.contains(&partition_key));
                prop_assert!(is_kept, "{row:?} has {partition_key:?}, kept are {ranges:?}");
            }
        }
    }
}

#[test]
fn equality_leaves_one_bucket() {
    let partition = PartitionSchema {
        hash: vec![HashDimension { columns: vec![ColumnId(0)], buckets: 100, seed: 0 }],
        range_columns: vec![ColumnId(1)],
        custom: vec![],
    };
    let pin = |column, cell: &[u8]| Predicate::new(ColumnId(column), PredicateKind::Equal(cell.to_vec()));
    let count =
        |predicates: &[Predicate]| partition.prune(&schema(), predicates, &PartitionRange::default()).len();
    assert_eq!(count(&[]), 1, "buckets side by side merge into one range");
    assert_eq!(count(&[pin(0, &[1])]), 1);
    assert_eq!(count(&[pin(1, b"x")]), 100, "one range in each bucket");
    assert_eq!(count(&[pin(0, &[1]), pin(0, &[2])]), 0);
}

#[test]
fn keys_that_nothing_narrows_include_ranges_of_more_buckets() {
    let hash = |column, buckets| HashDimension { columns: vec![ColumnId(column)], buckets, seed: 0 };
    let mut partition = PartitionSchema {
        hash: vec![hash(0, 2), hash(1, 3)],
        range_columns: vec![ColumnId(2)],
        custom: vec![],
    };
    let pin = |column, cell: &[u8]| Predicate::new(ColumnId(column), PredicateKind::Equal(cell.to_vec()));
    let prune = |partition: &PartitionSchema, predicates: &[Predicate]| {
        partition.prune(&schema(), predicates, &PartitionRange::default())
    };
    let (a, b, c) = (pin(0, &[1]), pin(1, b"x"), pin(2, &[1]));
    assert_eq!(prune(&partition, &[]), [PartitionRange::default()]);
    // The buckets of the second dimension bound nothing.
    let bucket = buckets(&partition.hash[0], &schema(), std::slice::from_ref(&a));
    let of_bucket = PartitionRange { lower: prefix(&bucket), upper: prefix_end(&bucket) };
    assert_eq!(prune(&partition, std::slice::from_ref(&a)), [of_bucket]);
    let counts = [&[b.clone()][..], &[a, b], &[c]].map(|predicates| prune(&partition, predicates).len());
    assert_eq!(counts, [2, 1, 6]);
    let range = PartitionRange { lower: vec![0x80], upper: vec![0x82] };
    partition.set_custom(&range, vec![hash(0, 8), hash(1, 3)]);
    assert_eq!(prune(&partition, &[]), [PartitionRange::default()]);
}
