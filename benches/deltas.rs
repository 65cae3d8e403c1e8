//! Cost of scans of flushed rows by number of delta files and after each kind of compaction, and cost of scans that
//! need few rows or few pages.
//!
//! Run with `cargo bench -p benches --bench deltas`. Everything is in memory, on one core; pages are cached.

use benches::mix;
use benches::sample_tables::{self, OP_ROWS, job, op, run, scan, world};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use engine::ids::ColumnId;
use engine::replica::JobKind;
use engine::schema::predicate::{Predicate, PredicateKind};
use engine::schema::row_ops::RowOpKind;
use engine::schema::{ColumnSchema, DataType, Encoding, Schema};
use engine_testkit::world::{Value, World};

const ROWS: u64 = 200_000;
/// Number of delta files; each changes a tenth of the rows.
const FILES: u64 = 10;

/// Columns: a clustered number, a scattered one, one of few words, a flag in runs, a text.
fn schema() -> Schema {
    let mut flag = ColumnSchema::new(4, "flag", DataType::Int32);
    flag.encoding = Encoding::Rle;
    let columns = vec![
        ColumnSchema::new(0, "k", DataType::Int64),
        ColumnSchema::new(1, "at", DataType::Int64),
        ColumnSchema::new(2, "n", DataType::Int64),
        ColumnSchema::new(3, "word", DataType::String),
        flag,
        ColumnSchema::new(5, "text", DataType::String),
    ];
    Schema::new(columns, 1).expect("the schema is sound")
}

fn row(key: u64) -> Vec<Value> {
    let number = |n: u64| Value::Bytes(n.to_le_bytes().to_vec());
    let word = ["north", "east", "south", "west"][mix(key) as usize % 4];
    vec![
        number(key),
        number(1_000_000 + key * 3),
        number(mix(key) % 100_000),
        Value::text(word),
        Value::int((key / 5_000 % 7) as i32),
        Value::text(&format!("text number {} of many", mix(key + 1) % 1_000_000)),
    ]
}

fn only_rowset(world: &World) -> u64 {
    world.replica().tablet().state().disk[0].meta().id
}

fn flushed() -> World {
    let schema = schema();
    let mut world = world(&schema);
    sample_tables::insert(&mut world, &schema, row, 0..ROWS);
    job(&mut world, JobKind::FlushRows);
    world
}

/// Sets `n` of a tenth of the rows, and flushes the deltas to a file.
fn change_some(world: &mut World, round: u64) {
    let update = |key: u64| {
        let mut row = row(key);
        row[1] = Value::Unset;
        row[2] = Value::Bytes(round.to_le_bytes().to_vec());
        row.truncate(3);
        row
    };
    for first in (0..ROWS).step_by(10 * OP_ROWS as usize) {
        let keys = (first..first + 10 * OP_ROWS).filter(|key| (mix(*key) + round).is_multiple_of(10));
        run(world, op(&schema(), RowOpKind::Update, keys.map(update)));
    }
    let rowset = only_rowset(world);
    job(world, JobKind::FlushDeltas(rowset));
}

/// Scans all columns of a rowset with more and more delta files, and after their compaction.
fn piling_up(c: &mut Criterion) {
    let mut group = c.benchmark_group("changes");
    group.sample_size(10);
    group.throughput(Throughput::Elements(ROWS));
    let mut world = flushed();
    let mut measure = |name: &str, world: &World, column: &str| {
        group.bench_function(format!("{name}, {column}"), |b| {
            b.iter(|| assert_eq!(scan(world, &["at", column], &[]), ROWS as usize));
        });
    };
    let mut both = |name: &str, world: &World| {
        measure(name, world, "n");
        measure(name, world, "text");
    };
    both("none", &world);
    for round in 1..=FILES {
        change_some(&mut world, round);
        if [1, 3, FILES].contains(&round) {
            both(&format!("{round} files"), &world);
        }
    }
    let rowset = only_rowset(&world);
    job(&mut world, JobKind::MinorDeltaCompaction(rowset));
    both("files merged", &world);
    job(&mut world, JobKind::MajorDeltaCompaction(rowset));
    both("taken into the column", &world);
    job(&mut world, JobKind::Compact(vec![rowset]));
    both("rowset written anew", &world);
    group.finish();
}

/// Measures scans that need few rows.
fn selective(c: &mut Criterion) {
    let mut group = c.benchmark_group("selective");
    group.sample_size(10);
    group.throughput(Throughput::Elements(ROWS));
    let world = flushed();
    let number = |n: u64| n.to_le_bytes().to_vec();
    let range =
        |low: u64, high: u64| PredicateKind::Range { lower: Some(number(low)), upper: Some(number(high)) };
    let kinds = [
        ("all rows", 1, range(0, u64::MAX >> 1)),
        ("clustered number, 1 %: pages are passed by", 1, range(1_060_000, 1_066_000)),
        ("scattered number, 1 %", 2, range(0, 1_000)),
        ("word, a quarter: asked of the dictionary", 3, PredicateKind::Equal(b"west".to_vec())),
        ("word that is nowhere", 3, PredicateKind::Equal(b"down".to_vec())),
        ("flag, a seventh: asked of runs", 4, PredicateKind::Equal(3i32.to_le_bytes().to_vec())),
    ];
    for (name, column, kind) in kinds {
        let predicate = [Predicate::new(ColumnId(column), kind)];
        group.bench_function(name, |b| b.iter(|| scan(&world, &["n", "text"], &predicate)));
    }
    group.bench_function("count", |b| b.iter(|| assert_eq!(scan(&world, &[], &[]), ROWS as usize)));
    group.finish();
}

criterion_group!(benches, piling_up, selective);
criterion_main!(benches);
