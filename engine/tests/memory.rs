//! What the engine says it holds in memory is what it has allocated, and never more than it may.

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use engine::config::TabletConfig;
use engine::memory::{MemTracker, Memory, Promise};
use engine::replica::{JobKind, Op, WriteOp};
use engine::schema::ops::{RowOpKind, WireColumn};
use engine::schema::{ColumnSchema, DataType, Schema};
use engine::tablet::Counting;
use support::{Rows, Value, World, plain_schema, wire_columns};

/// Counts what the test's own thread has allocated and not freed.
struct CountingAllocator;

thread_local! {
    static ALLOCATED: Cell<i64> = const { Cell::new(0) };
}

fn count(bytes: i64) {
    // A thread that ends may free what its counter, gone already, does not count.
    let _ending = ALLOCATED.try_with(|allocated| allocated.set(allocated.get() + bytes));
}

// SAFETY: every call goes to the system's allocator unchanged; counting neither allocates nor panics.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: the caller keeps the contract of `alloc`, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(-(layout.size() as i64));
        // SAFETY: `at` came from `alloc` above, with this layout, so it came from the system's allocator.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

fn allocated() -> i64 {
    ALLOCATED.with(Cell::get)
}

/// A configuration of servers whose memory is limited to what is stored in the number.
fn limited(bytes: u64) -> (TabletConfig, Arc<MemTracker>, Arc<AtomicU64>) {
    let limit = Arc::new(AtomicU64::new(bytes));
    let asked = limit.clone();
    let root = MemTracker::root("server", Some(Arc::new(move || asked.load(Ordering::Relaxed))));
    let memory = Memory::of(&root.child("tablets"));
    (TabletConfig { memory, ..TabletConfig::default() }, root, limit)
}

fn text(len: usize, seed: i32) -> Vec<u8> {
    (0..len).map(|i| b'a' + (i as i32).wrapping_mul(7).wrapping_add(seed).rem_euclid(26) as u8).collect()
}

fn row(key: i32, len: usize) -> Vec<Value> {
    vec![
        Value::Bytes(key.to_le_bytes().to_vec()),
        Value::Bytes(text(len, key)),
        Value::Bytes(key.to_le_bytes().to_vec()),
    ]
}

/// Keys in no order, each once.
fn shuffled(count: i32) -> impl Iterator<Item = i32> {
    (0..count).map(|i| i.wrapping_mul(-1_640_531_527))
}

fn write(world: &mut World, kind: RowOpKind, batch: usize, rows: impl Iterator<Item = Vec<Value>>) {
    let rows: Vec<_> = rows.map(|cells| (kind, cells)).collect();
    rows.chunks(batch).for_each(|rows| drop(world.write(rows).expect("the tablet takes it")));
}

/// Compares what a tablet counts with what closing it frees.
fn compare(what: &str, cache_bytes: usize, fill: impl Fn(&mut World)) {
    let (config, root, _) = limited(u64::MAX);
    let mut world = World::new(1, config);
    world.cache_bytes = cache_bytes;
    world.create(plain_schema()).unwrap();
    fill(&mut world);
    let (counted, before) = (root.bytes(), allocated());
    world.open = None;
    let freed = before - allocated();
    let apart = (counted as f64 / freed as f64 - 1.0) * 100.0;
    assert!(apart.abs() <= 10.0, "{what}: {counted} bytes counted, {freed} allocated, {apart:+.1} %");
    assert_eq!((root.bytes(), root.spoken_for()), (0, 0), "{what}: what is gone is not counted");
}

#[test]
fn rows_are_counted_as_they_are_allocated() {
    for (batch, len, rows) in [(1, 1000, 3_000), (100, 10, 30_000), (1000, 100, 30_000), (7, 0, 20_000)] {
        compare(&format!("{rows} rows of {len} bytes, {batch} at once"), 1 << 20, |world| {
            write(world, RowOpKind::Insert, batch, shuffled(rows).map(|key| row(key, len)));
        });
    }
}

#[test]
fn changes_are_counted_as_they_are_allocated() {
    compare("changes of rows in memory", 1 << 20, |world| {
        write(world, RowOpKind::Insert, 100, shuffled(5_000).map(|key| row(key, 20)));
        for _ in 0..5 {
            write(world, RowOpKind::Update, 100, shuffled(5_000).map(|key| row(key, 50)));
        }
    });
    compare("changes of flushed rows", 1 << 20, |world| {
        write(world, RowOpKind::Insert, 100, shuffled(10_000).map(|key| row(key, 20)));
        assert!(world.job(JobKind::FlushRows, &mut |_| {}).unwrap());
        for _ in 0..3 {
            write(world, RowOpKind::Upsert, 100, shuffled(10_000).map(|key| row(key, 50)));
        }
    });
}

/// What no store accounts for itself: a copy of each operation is in the core's log until its group has it.
fn promise(world: &World, op: &WriteOp, root: &Arc<MemTracker>) -> Option<Promise> {
    let grows = |counting| world.replica().tablet().growth_max(&op.columns, &op.rows, &op.indirect, counting);
    let (quick, exact) = (grows(Counting::Quick), grows(Counting::Exact));
    assert!(exact <= quick, "the quick answer is never too low: {quick}, {exact}");
    root.promise(quick).or_else(|| root.promise(exact))
}

fn op(columns: &[WireColumn], rows: &[(RowOpKind, Vec<Value>)]) -> WriteOp {
    let mut written = Rows::default();
    rows.iter().for_each(|(kind, cells)| written.add(columns, *kind, cells));
    let Op::Write(op) = written.op(columns) else { unreachable!("rows make a write") };
    op
}

/// A wide table of which clients set little: defaults are what is kept then.
fn wide_schema() -> Schema {
    let mut columns = vec![ColumnSchema::new(0, "k", DataType::String)];
    for id in 1..60 {
        let column = ColumnSchema::new(id, &format!("c{id}"), DataType::Int64).nullable();
        columns.push(column);
    }
    let mut column = ColumnSchema::new(60, "d", DataType::String);
    column.write_default = Some(vec![b'x'; 300]);
    columns.push(column);
    Schema::new(columns, 1).expect("it is a good schema")
}

fn wide_row(key: i32, set: usize) -> Vec<Value> {
    // Zeros in keys are escaped, unless the key has but one column.
    let key = Value::Bytes([&[0; 9][..], &key.to_be_bytes()].concat());
    let cell = |i: usize| if i < set { Value::Bytes(7i64.to_le_bytes().to_vec()) } else { Value::Unset };
    std::iter::once(key).chain((1..61).map(|i| if i == 60 { Value::Unset } else { cell(i) })).collect()
}

/// Writes of all kinds and shapes: none takes more than it was promised, whatever lists just had to grow.
#[test]
fn no_write_takes_more_than_it_is_promised() {
    for wide in [false, true] {
        let (config, root, _) = limited(u64::MAX);
        let mut world = World::new(2, config);
        world.create(if wide { wide_schema() } else { plain_schema() }).unwrap();
        let columns = wire_columns(&world.replica().tablet().schema());
        let mut keys = shuffled(i32::MAX);
        for round in 0..100 {
            let kind =
                [RowOpKind::Insert, RowOpKind::Upsert, RowOpKind::Insert, RowOpKind::Delete][round % 4];
            let count = [1, 3, 40, 200, 900][round % 5];
            let rows: Vec<_> = (0..count)
                .map(|i| {
                    let known = (i as i32 % 50).wrapping_mul(-1_640_531_527);
                    let key = if i % 3 == 0 { known } else { keys.next().expect("there are many") };
                    let mut cells = if wide { wide_row(key, i % 59) } else { row(key, i * 13 % 90) };
                    if kind == RowOpKind::Delete {
                        cells[1..].fill(Value::Unset);
                    }
                    (kind, cells)
                })
                .collect();
            let op = op(&columns, &rows);
            let before = root.spoken_for();
            let promise = promise(&world, &op, &root).expect("there is no limit");
            let exact =
                world.replica().tablet().growth_max(&op.columns, &op.rows, &op.indirect, Counting::Exact);
            world.run(Op::Write(op)).result.unwrap();
            assert!(root.bytes() <= before + exact, "round {round}: {} > {before} + {exact}", root.bytes());
            drop(promise);
            if round % 25 == 24 {
                world.job(JobKind::FlushRows, &mut |_| {}).unwrap();
            }
        }
        world.open = None;
        assert_eq!(root.bytes(), 0);
    }
}

/// Overload with a limit that comes and goes: what is refused is flushed for, and the limit holds whatever is in flight.
#[test]
fn the_limit_is_never_exceeded() {
    let (config, root, limit) = limited(2 << 20);
    let mut world = World::new(3, config);
    world.cache_bytes = 0;
    world.create(plain_schema()).unwrap();
    let columns = wire_columns(&world.replica().tablet().schema());
    let (mut refused, mut written, mut keys) = (0, 0, shuffled(i32::MAX));
    for round in 0..450 {
        if round == 250 {
            limit.store(1 << 20, Ordering::Relaxed);
        }
        let rows: Vec<_> =
            keys.by_ref().take(50).map(|key| (RowOpKind::Insert, row(key, 1 + round % 300))).collect();
        let op = op(&columns, &rows);
        let Some(promise) = promise(&world, &op, &root) else {
            refused += 1;
            // The limit that shrank below what is held forbids more; a flush makes room.
            assert!(world.job(JobKind::FlushRows, &mut |_| {}).unwrap(), "there is something to flush");
            assert!(root.bytes() <= limit.load(Ordering::Relaxed), "the flush made room");
            continue;
        };
        world.run(Op::Write(op)).result.unwrap();
        drop(promise);
        written += 1;
        let (held, most) = (root.bytes(), limit.load(Ordering::Relaxed));
        assert!(held <= most, "round {round}: {held} of {most}");
    }
    assert!(refused > 3 && written > 400, "{refused} refused, {written} written");
    assert_eq!(world.replica().tablet().stats().live_rows, 50 * written);
}
