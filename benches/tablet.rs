//! A tablet through its replica, without the wire: inserting, updating, looking up one row.
//!
//! Run with `cargo bench -p benches --bench tablet`. Disk and log are in memory, so what is measured is CPU: a
//! write is decoded, checked, logged, applied and its outcome logged, in operations of 1,000 rows.

#[path = "../engine/tests/support/mod.rs"]
mod support;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use engine::config::TabletConfig;
use engine::replica::{JobKind, Op, OpResult};
use engine::schema::block::ProjectedColumn;
use engine::schema::key::encode_cell;
use engine::schema::ops::RowOpKind;
use engine::schema::{ColumnSchema, DataType, Physical, Schema};
use engine::tablet::scan::ScanSpec;
use support::{Rows, Value, World, wire_columns};

const OP_ROWS: u64 = 1_000;

fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// YCSB's table: a string key and ten strings of 100 bytes.
fn ycsb() -> Schema {
    let field = |id: u32| match id {
        0 => ColumnSchema::new(0, "key", DataType::String),
        id => ColumnSchema::new(id, &format!("field{}", id - 1), DataType::String).nullable(),
    };
    Schema::new((0..11).map(field).collect(), 1).expect("the schema is sound")
}

fn ycsb_row(number: u64) -> Vec<Value> {
    let field = |i: u64| (0..100).map(|at| b' ' + (mix(number * 1_000 + i * 100 + at) % 94) as u8).collect();
    let key = Value::text(&format!("user{:020}", mix(number)));
    std::iter::once(key).chain((0..10).map(|i| Value::Bytes(field(i)))).collect()
}

/// The table of the background-flush study: two numbers, two strings, a number.
fn narrow() -> Schema {
    let columns = vec![
        ColumnSchema::new(0, "k", DataType::Int64),
        ColumnSchema::new(1, "a", DataType::Int32),
        ColumnSchema::new(2, "b", DataType::String),
        ColumnSchema::new(3, "c", DataType::String),
        ColumnSchema::new(4, "d", DataType::Int32),
    ];
    Schema::new(columns, 1).expect("the schema is sound")
}

fn narrow_row(number: u64) -> Vec<Value> {
    let int = |n: u64| Value::int((n % 1_000_000) as i32);
    let text = |n: u64| Value::text(&format!("value {}", n % 10_000));
    let drawn = mix(number);
    let key = Value::Bytes(number.to_le_bytes().to_vec());
    vec![key, int(drawn), text(drawn >> 8), text(drawn >> 16), int(drawn >> 24)]
}

fn op(schema: &Schema, kind: RowOpKind, rows: impl Iterator<Item = Vec<Value>>) -> Op {
    let columns = wire_columns(schema);
    let mut encoded = Rows::default();
    rows.for_each(|row| encoded.add(&columns, kind, &row));
    encoded.op(&columns)
}

fn world(schema: &Schema) -> World {
    let mut world = World::new(1, TabletConfig::default());
    world.cache_bytes = 256 << 20;
    world.create(schema.clone()).expect("the disk does not fail");
    world
}

fn run(world: &mut World, op: Op) {
    match world.run(op).result {
        Ok(OpResult::Write { errors, .. }) if errors.is_empty() => {}
        other => panic!("every row is taken, not {other:?}"),
    }
}

fn flush(world: &mut World) {
    assert!(world.job(JobKind::FlushRows, &mut |_| {}).expect("the disk does not fail"));
}

/// A table's name, columns, rows by number, and how many of them.
type Table = (&'static str, Schema, fn(u64) -> Vec<Value>, u64);

/// Inserts rows into an empty tablet.
fn insert(c: &mut Criterion) {
    let mut group = c.benchmark_group("insert");
    group.sample_size(10);
    let kinds: [Table; 2] =
        [("ycsb 1 KB", ycsb(), ycsb_row, 50_000), ("narrow", narrow(), narrow_row, 200_000)];
    for (name, schema, row, rows) in kinds {
        let batch = |first: u64| op(&schema, RowOpKind::Insert, (first..first + OP_ROWS).map(row));
        let ops: Vec<Op> = (0..rows).step_by(OP_ROWS as usize).map(batch).collect();
        group.throughput(Throughput::Elements(rows));
        group.bench_function(name, |b| {
            let fresh = || (world(&schema), ops.clone());
            let write = |(mut world, ops): (World, Vec<Op>)| {
                ops.into_iter().for_each(|op| run(&mut world, op));
                world
            };
            b.iter_batched(fresh, write, BatchSize::PerIteration);
        });
    }
    group.finish();
}

const KNOWN: u64 = 200_000;

fn filled(flushed: bool) -> World {
    let schema = narrow();
    let mut world = world(&schema);
    for first in (0..KNOWN).step_by(OP_ROWS as usize) {
        run(&mut world, op(&schema, RowOpKind::Insert, (first..first + OP_ROWS).map(narrow_row)));
    }
    if flushed {
        flush(&mut world);
    }
    world
}

/// Updates random rows of a table that is in memory, and of one that is on disk.
fn update(c: &mut Criterion) {
    let mut group = c.benchmark_group("update");
    group.sample_size(10);
    group.throughput(Throughput::Elements(OP_ROWS));
    let schema = narrow();
    for (name, flushed) in [("in memory", false), ("flushed", true)] {
        let mut world = filled(flushed);
        let mut next = 0;
        let mut batch = || {
            let changed = |i: u64| {
                let mut row = narrow_row(mix(i) % KNOWN);
                row[2] = Value::Unset;
                row[1] = Value::int(i as i32);
                row
            };
            next += OP_ROWS;
            op(&schema, RowOpKind::Update, (next..next + OP_ROWS).map(changed))
        };
        group.bench_function(name, |b| {
            b.iter_batched(&mut batch, |op| run(&mut world, op), BatchSize::PerIteration);
        });
    }
    group.finish();
}

/// Reads one row by its key, all columns, from pages that are cached and from memory.
fn lookup(c: &mut Criterion) {
    let mut group = c.benchmark_group("lookup");
    group.throughput(Throughput::Elements(1));
    for (name, flushed) in [("in memory", false), ("flushed", true)] {
        let world = filled(flushed);
        let tablet = world.replica().tablet().clone();
        let projection: Vec<ProjectedColumn> =
            tablet.schema().columns().iter().map(ProjectedColumn::from).collect();
        let encoded = |number: u64| {
            let mut key = Vec::new();
            encode_cell(Physical::Int64, &number.to_le_bytes(), true, &mut key);
            key
        };
        let mut next = 0;
        group.bench_function(name, |b| {
            b.iter(|| {
                next += 1;
                let number = mix(next) % KNOWN;
                let spec = ScanSpec {
                    lower_key: Some(encoded(number)),
                    upper_key: Some(encoded(number + 1)),
                    ..ScanSpec::latest(projection.clone())
                };
                let mut scan = tablet.scan(&spec).expect("the tablet is sound");
                let block = scan.next_block().expect("the tablet is sound").expect("the row is there");
                assert_eq!(block.rows, 1);
                block
            });
        });
    }
    group.finish();
}

criterion_group!(benches, insert, update, lookup);
criterion_main!(benches);
