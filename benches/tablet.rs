//! A tablet through its replica, without the wire: inserts, updates and lookups of one row.
//!
//! Run with `cargo bench -p benches --bench tablet`. Disk and log are in memory, so the result is CPU time. A write is
//! decoded, checked, logged and applied, and its outcome is logged, in operations of 1,000 rows.

use benches::sample_tables::{self, OP_ROWS, narrow, narrow_row, narrow_update, op, run, world, ycsb_row};
use benches::{mix, ycsb};
use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use engine::replica::{JobKind, Op};
use engine::schema::key::encode_cell;
use engine::schema::row_block::ProjectedColumn;
use engine::schema::row_ops::RowOpKind;
use engine::schema::{PhysicalType, Schema};
use engine::tablet::scan::ScanSpec;
use engine_testkit::world::{Value, World};

/// Name, columns, rows by number, and number of rows of a table.
type Table = (&'static str, Schema, fn(u64) -> Vec<Value>, u64);

/// Inserts rows into an empty tablet.
fn insert(c: &mut Criterion) {
    let mut group = c.benchmark_group("insert");
    group.sample_size(10);
    let kinds: [Table; 2] =
        [("ycsb 1 KB", ycsb::schema(), ycsb_row, 50_000), ("narrow", narrow(), narrow_row, 200_000)];
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
    sample_tables::insert(&mut world, &schema, narrow_row, 0..KNOWN);
    if flushed {
        sample_tables::job(&mut world, JobKind::FlushRows);
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
            let changed = |i: u64| narrow_update(mix(i) % KNOWN, i as i32);
            next += OP_ROWS;
            op(&schema, RowOpKind::Update, (next..next + OP_ROWS).map(changed))
        };
        group.bench_function(name, |b| {
            b.iter_batched(&mut batch, |op| run(&mut world, op), BatchSize::PerIteration);
        });
    }
    group.finish();
}

/// Reads all columns of one row by its key, from cached pages and from memory.
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
            encode_cell(PhysicalType::Int64, &number.to_le_bytes(), true, &mut key);
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
