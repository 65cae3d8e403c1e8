//! Tracked memory of the engine equals its allocations, and never exceeds the limit.

use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use engine::config::{ColumnFileConfig, TabletConfig};
use engine::memory::{MemTracker, MemUsage, MemoryHandle, Reservation};
use engine::replica::{JobKind, JobStep, Op, ReplicaEffects, WriteOp};
use engine::schema::row_ops::{ClientColumn, RowOpKind};
use engine::schema::{ColumnSchema, DataType, Schema};
use engine::tablet::GrowthEstimate;
use engine::tablet::scan::ScanSpec;
use engine_testkit::allocations::{CountingAllocator, allocated};
use engine_testkit::world::{Rows, Value, World, plain_schema, wire_columns};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Returns the configuration of a server whose memory limit in bytes is the atomic's value.
fn limited(bytes: u64) -> (TabletConfig, Arc<MemTracker>, Arc<AtomicU64>) {
    let limit = Arc::new(AtomicU64::new(bytes));
    let current = limit.clone();
    let root = MemTracker::root("server", Some(Arc::new(move || current.load(Ordering::Relaxed))));
    let memory = MemoryHandle::of(&root.child("tablets"));
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

/// Returns keys in random order, each once.
fn shuffled(count: i32) -> impl Iterator<Item = i32> {
    (0..count).map(|i| i.wrapping_mul(-1_640_531_527))
}

fn write(world: &mut World, kind: RowOpKind, batch: usize, rows: impl Iterator<Item = Vec<Value>>) {
    let rows: Vec<_> = rows.map(|cells| (kind, cells)).collect();
    rows.chunks(batch).for_each(|rows| drop(world.write(rows).expect("the tablet takes it")));
}

/// Compares the tracked memory of a tablet with the bytes that closing it frees.
fn compare(name: &str, cache_bytes: usize, fill: impl Fn(&mut World)) {
    compare_with(TabletConfig::default(), name, cache_bytes, fill);
}

fn compare_with(config: TabletConfig, name: &str, cache_bytes: usize, fill: impl Fn(&mut World)) {
    let (limited, root, _) = limited(u64::MAX);
    let config = TabletConfig { memory: limited.memory, ..config };
    let mut world = World::new(1, config);
    world.cache_bytes = cache_bytes;
    world.create(plain_schema()).unwrap();
    fill(&mut world);
    let (counted, before) = (root.bytes(), allocated());
    world.open = None;
    let freed = before - allocated();
    let apart = (counted as f64 / freed as f64 - 1.0) * 100.0;
    assert!(apart.abs() <= 10.0, "{name}: {counted} bytes counted, {freed} allocated, {apart:+.1} %");
    assert_eq!((root.bytes(), root.reserved_bytes()), (0, 0), "{name}: freed memory is not tracked");
}

#[test]
fn rows_are_tracked_as_they_are_allocated() {
    for (batch, len, rows) in [(1, 1000, 3_000), (100, 10, 30_000), (1000, 100, 30_000), (7, 0, 20_000)] {
        compare(&format!("{rows} rows of {len} bytes, {batch} at once"), 1 << 20, |world| {
            write(world, RowOpKind::Insert, batch, shuffled(rows).map(|key| row(key, len)));
        });
    }
}

#[test]
fn deltas_are_tracked_as_they_are_allocated() {
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

#[test]
fn resident_parts_of_open_files_are_tracked() {
    let config = TabletConfig {
        rowset_roll_bytes: 64 << 10,
        columns: ColumnFileConfig { key_page_bytes: 256, page_bytes: 256, ..ColumnFileConfig::default() },
        ..TabletConfig::default()
    };
    compare_with(config, "indexes of open files", 0, |world| {
        write(world, RowOpKind::Insert, 1000, (0..40_000).map(|key| row(key, 20)));
        assert!(world.job(JobKind::FlushRows, &mut |_| {}).unwrap());
        write(world, RowOpKind::InsertIgnore, 1000, (0..40_000).step_by(100).map(|key| row(key, 20)));
        let files = bytes_of(&world.config.memory.usage(), "open-files");
        assert!(files > 100_000, "most of the tracked bytes: {files}");
    });
}

#[test]
fn operations_in_flight_are_tracked() {
    compare("operations that are not durable", 1 << 20, |world| {
        let columns = wire_columns(&world.replica().tablet().schema());
        let mut out = ReplicaEffects::default();
        for round in 0..200 {
            let rows: Vec<_> = (0..50).map(|i| (RowOpKind::Insert, row(50 * round + i, 40))).collect();
            world.propose(Op::Write(op(&columns, &rows)), None, &mut out);
        }
        let usage = world.config.memory.usage();
        assert!(bytes_of(&usage, "log-entries") > 500_000 && bytes_of(&usage, "operations") > 500_000);
    });
}

/// Stops jobs in the middle: their tracked memory equals the bytes freed then, except for what a step allocates and
/// frees.
#[test]
fn memory_of_jobs_is_tracked() {
    let columns = ColumnFileConfig { page_bytes: 64 << 10, ..ColumnFileConfig::default() };
    let config = |root: &Arc<MemTracker>| TabletConfig {
        memory: MemoryHandle::of(&root.child("tablets")),
        columns: columns.clone(),
        job_step_bytes: 1,
        ..TabletConfig::default()
    };
    for kind in ["flush", "merge"] {
        let root = MemTracker::root("server", None);
        let mut world = World::new(1, config(&root));
        world.cache_bytes = 0;
        world.create(plain_schema()).unwrap();
        write(&mut world, RowOpKind::Insert, 1000, shuffled(40_000).map(|key| row(key, 30)));
        if kind == "merge" {
            assert!(world.job(JobKind::FlushRows, &mut |_| {}).unwrap());
            write(&mut world, RowOpKind::Upsert, 1000, shuffled(40_000).step_by(9).map(|key| row(key, 31)));
        }
        let rowsets = world.replica().tablet().state().disk.iter().map(|rowset| rowset.meta().id).collect();
        let job = if kind == "merge" { JobKind::Compact(rowsets) } else { JobKind::FlushRows };
        let (replica, _) = world.open.as_mut().unwrap();
        let mut job = replica.start_job(job).unwrap().unwrap();
        (0..400).for_each(|_| assert_eq!(job.step().unwrap(), JobStep::More));
        let (counted, before) = (bytes_of(&root.usage(), "maintenance"), allocated());
        drop(job);
        let freed = before - allocated();
        let apart = (counted as f64 / freed as f64 - 1.0) * 100.0;
        assert!(
            counted > 300_000 && apart.abs() <= 10.0,
            "{kind}: {counted} counted, {freed} freed, {apart:+.1} %"
        );
        assert_eq!(bytes_of(&root.usage(), "maintenance"), 0);
    }
}

/// Returns the bytes of all consumers of this name.
fn bytes_of(usage: &MemUsage, name: &str) -> u64 {
    let own = if usage.id == name { usage.bytes } else { 0 };
    own + usage.children.iter().map(|child| bytes_of(child, name)).sum::<u64>()
}

fn reserve(world: &World, op: &WriteOp, root: &Arc<MemTracker>) -> Option<Reservation> {
    let grows = |counting| world.replica().tablet().growth_max(&op.columns, &op.rows, &op.indirect, counting);
    let (quick, exact) = (grows(GrowthEstimate::Quick), grows(GrowthEstimate::Exact));
    assert!(exact <= quick, "the quick estimate is never too low: {quick}, {exact}");
    root.try_reserve(quick).or_else(|| root.try_reserve(exact))
}

fn op(columns: &[ClientColumn], rows: &[(RowOpKind, Vec<Value>)]) -> WriteOp {
    let mut written = Rows::default();
    rows.iter().for_each(|(kind, cells)| written.add(columns, *kind, cells));
    let Op::Write(op) = written.op(columns) else { unreachable!("rows make a write") };
    op
}

/// Returns a wide schema of which clients set few columns: defaults are stored for the rest.
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
    // Zeros in keys are escaped, unless the key has only one column.
    let key = Value::Bytes([&[0; 9][..], &key.to_be_bytes()].concat());
    let cell = |i: usize| if i < set { Value::Bytes(7i64.to_le_bytes().to_vec()) } else { Value::Unset };
    std::iter::once(key).chain((1..61).map(|i| if i == 60 { Value::Unset } else { cell(i) })).collect()
}

/// Writes of all kinds and shapes: none takes more than its reservation, whichever lists just had to grow.
#[test]
fn no_write_takes_more_than_its_reservation() {
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
            let before = root.reserved_bytes();
            let reservation = reserve(&world, &op, &root).expect("there is no limit");
            let exact = world.replica().tablet().growth_max(
                &op.columns,
                &op.rows,
                &op.indirect,
                GrowthEstimate::Exact,
            );
            world.run(Op::Write(op)).result.unwrap();
            assert!(root.bytes() <= before + exact, "round {round}: {} > {before} + {exact}", root.bytes());
            drop(reservation);
            if round % 25 == 24 {
                world.job(JobKind::FlushRows, &mut |_| {}).unwrap();
            }
        }
        world.open = None;
        assert_eq!(root.bytes(), 0);
    }
}

/// Overload with a limit that varies: a rejected write causes a flush, and the limit is kept whatever is in flight.
#[test]
fn the_limit_is_never_exceeded() {
    let (config, root, limit) = limited(2 << 20);
    let mut world = World::new(3, config);
    world.cache_bytes = 0;
    world.create(plain_schema()).unwrap();
    let columns = wire_columns(&world.replica().tablet().schema());
    let (mut rejected, mut written, mut keys) = (0, 0, shuffled(i32::MAX));
    for round in 0..450 {
        if round == 250 {
            limit.store(1 << 20, Ordering::Relaxed);
        }
        let rows: Vec<_> =
            keys.by_ref().take(50).map(|key| (RowOpKind::Insert, row(key, 1 + round % 300))).collect();
        let op = op(&columns, &rows);
        let Some(reservation) = reserve(&world, &op, &root) else {
            rejected += 1;
            // A limit that fell below the tracked bytes forbids new ones; a flush frees memory.
            assert!(world.job(JobKind::FlushRows, &mut |_| {}).unwrap(), "there is something to flush");
            assert!(root.bytes() <= limit.load(Ordering::Relaxed), "the flush freed memory");
            continue;
        };
        world.run(Op::Write(op)).result.unwrap();
        drop(reservation);
        written += 1;
        let (held, most) = (root.bytes(), limit.load(Ordering::Relaxed));
        assert!(held <= most, "round {round}: {held} of {most}");
    }
    assert!(rejected > 3 && written > 400, "{rejected} rejected, {written} written");
    assert_eq!(world.replica().tablet().stats().live_rows, 50 * written);
}

/// Writes as much as memory allows, including upserts of rows that are being flushed and compacted, while jobs run one
/// after the other and some of them meet a failing disk. The limit is kept between all of their steps, and in the end
/// every acknowledged row is there.
#[test]
fn the_limit_is_kept_during_flushes_and_compactions() {
    let (limited, root, limit) = limited(8 << 20);
    let config = TabletConfig {
        rowset_roll_bytes: 128 << 10,
        compaction_budget_bytes: 512 << 10,
        job_step_bytes: 32 << 10,
        columns: ColumnFileConfig {
            page_bytes: 4 << 10,
            key_page_bytes: 2 << 10,
            ..ColumnFileConfig::default()
        },
        ..limited
    };
    let mut world = World::new(4, config);
    world.cache_bytes = 0;
    world.create(plain_schema()).unwrap();
    let mut writer = Writer { root: MemoryHandle::of(&root), ..Writer::default() };
    let mut jobs = BTreeMap::new();
    for round in 0..12u64 {
        if round == 6 {
            // Tracked memory exceeds the limit for a while; new writes do not increase the excess.
            limit.store(7 << 20, Ordering::Relaxed);
        }
        while writer.write(&mut world) {}
        if round % 5 == 4 {
            world.disk.fail_op(3 + 7 * round, 5);
        }
        let kind = job_of(&world, round);
        let most = Cell::new(root.bytes().max(limit.load(Ordering::Relaxed)));
        let done = world.job(kind.clone(), &mut |world| {
            writer.write(world);
            assert!(root.bytes() <= most.get(), "round {round}, {kind:?}: {} bytes", root.bytes());
        });
        world.disk.end_faults();
        assert!(root.bytes() <= most.get(), "round {round}, after {kind:?}: {} bytes", root.bytes());
        *jobs.entry((round % 3, done.is_ok())).or_insert(0) += 1;
        if world.replica().failure().is_some() {
            world.open = None;
            world.disk.crash();
            world.reopen().unwrap();
        }
    }
    assert!(jobs.len() >= 4, "flushes and merges, and some that failed: {jobs:?}");
    assert!(
        writer.rejected > 12 && writer.next > 10_000,
        "{} rejected, {} rows",
        writer.rejected,
        writer.next
    );
    world.open = None;
    world.disk.crash();
    world.reopen().unwrap();
    let columns = world.replica().tablet().schema().columns()[..2].iter().map(Into::into).collect();
    let mut scan = world.replica().tablet().scan(&ScanSpec::latest(columns)).unwrap();
    let mut found = BTreeMap::new();
    while let Some(block) = scan.next_block().unwrap() {
        for row in 0..block.rows {
            let key = i32::from_le_bytes(block.columns[0].raw(row).try_into().unwrap());
            found.insert(key, block.columns[1].raw(row).len());
        }
    }
    for keys in [&mut found, &mut writer.acknowledged] {
        keys.retain(|key, _| !writer.unsure.contains(key));
    }
    assert!(found == writer.acknowledged, "{} rows of {}", found.len(), writer.acknowledged.len());
}

/// Returns in turn a MemRowSet flush, a flush of the largest DeltaMemStore, and a compaction of three rowsets with one.
fn job_of(world: &World, round: u64) -> JobKind {
    let state = world.replica().tablet().state();
    let mut rowsets: Vec<_> = state.disk.iter().collect();
    rowsets.sort_by_key(|rowset| Reverse(rowset.dms_bytes()));
    let ids = |most| rowsets.iter().take(most).map(|rowset| rowset.meta().id).collect::<Vec<_>>();
    match (round % 3, &ids(1)[..]) {
        (1, [most]) => JobKind::FlushDeltas(*most),
        (2, [_]) => JobKind::Compact(ids(3)),
        _ => JobKind::FlushRows,
    }
}

/// A client that writes new rows and overwrites old ones.
#[derive(Default)]
struct Writer {
    root: MemoryHandle,
    /// Length of each row's text.
    acknowledged: BTreeMap<i32, usize>,
    /// Rows of writes whose reply was an error.
    unsure: BTreeSet<i32>,
    rejected: u64,
    next: i32,
}

impl Writer {
    /// Does one write if memory can be reserved for it. Returns true if it could.
    fn write(&mut self, world: &mut World) -> bool {
        let columns = wire_columns(&world.replica().tablet().schema());
        let old =
            (0..20).map(|i| self.next.wrapping_mul(7).wrapping_add(i * 131).rem_euclid(self.next.max(1)));
        let keys: Vec<i32> = (self.next..self.next + 30).chain(old).collect();
        let len = |key: i32| 100 + (key as usize + self.next as usize) % 300;
        let rows: Vec<_> = keys.iter().map(|key| (RowOpKind::Upsert, row(*key, len(*key)))).collect();
        let op = op(&columns, &rows);
        let Some(reservation) = reserve(world, &op, &self.root) else {
            self.rejected += 1;
            return false;
        };
        let done = world.run(Op::Write(op)).result;
        drop(reservation);
        match &done {
            Ok(_) => self.acknowledged.extend(keys.iter().map(|key| (*key, len(*key)))),
            Err(_) => self.unsure.extend(&keys),
        }
        self.next += 30;
        done.is_ok()
    }
}
