//! Jobs bound the memory of a step and the page indexes of their files, however long keys and histories are.

use std::sync::Arc;

use engine::config::TabletConfig;
use engine::memory::{MemTracker, MemUsage, MemoryHandle};
use engine::replica::JobKind;
use engine::schema::row_block::ProjectedColumn;
use engine::schema::row_ops::RowOpKind;
use engine::schema::{ColumnSchema, DataType, Schema};
use engine::tablet::rowset::RowSetId;
use engine::tablet::scan::{ScanSpec, SnapshotChoice};
use engine::time::Timestamp;
use engine_testkit::world::{Value, World};

/// Bytes of histories of one step.
const STEP_BYTES: usize = 64 << 10;

fn rowsets(world: &World) -> Vec<RowSetId> {
    world.replica().tablet().state().disk.iter().map(|rowset| rowset.meta().id).collect()
}

/// Returns the cells of all rows after the first `ops` operations, or after all of them.
fn contents(world: &World, ops: Option<u64>) -> Vec<Vec<u8>> {
    let tablet = world.replica().tablet();
    let columns: Vec<ProjectedColumn> = tablet.schema().columns().iter().map(Into::into).collect();
    let snapshot = ops.map_or(SnapshotChoice::Latest, |ops| SnapshotChoice::At(world.timestamp_of(ops)));
    let mut scan = tablet.scan(&ScanSpec { snapshot, ordered: true, ..ScanSpec::latest(columns) }).unwrap();
    let mut rows = Vec::new();
    while let Some(block) = scan.next_block().unwrap() {
        for row in 0..block.rows {
            rows.push(
                block
                    .columns
                    .iter()
                    .flat_map(|column| column.cell(row).unwrap_or(b"NULL"))
                    .copied()
                    .collect(),
            );
        }
    }
    rows
}

/// Rows of a table whose keys are long and differ only at the end, so that pages of them are short and their index is
/// long.
fn long_keys(world: &mut World, key_columns: usize) {
    let column = |id| ColumnSchema::new(id, &format!("c{id}"), DataType::String);
    world.create(Schema::new((0..3).map(column).collect(), key_columns).unwrap()).unwrap();
    for batch in 0..8 {
        let row = |number| {
            let key = format!("{}{number:06}", "k".repeat(8_000));
            (RowOpKind::Insert, vec![Value::text(&key), Value::text("b"), Value::text("c")])
        };
        let rows: Vec<_> = (0..32).map(|number| row(batch * 32 + number)).collect();
        world.write(&rows).unwrap();
    }
}

#[test]
fn rowsets_with_long_keys_are_split_by_the_size_of_their_index() {
    for key_columns in [1, 2] {
        let config = TabletConfig {
            rowset_roll_bytes: 256 << 10,
            job_step_bytes: STEP_BYTES,
            ..TabletConfig::default()
        };
        let mut world = World::new(1, config);
        long_keys(&mut world, key_columns);
        let before = contents(&world, None);
        assert!(world.job(JobKind::FlushRows, &mut |_| {}).unwrap());
        let flushed = rowsets(&world);
        // 256 keys of 8 KB are 2 MB of index.
        assert!((4..=16).contains(&flushed.len()), "{} rowsets", flushed.len());
        assert!(world.job(JobKind::Compact(flushed), &mut |_| {}).unwrap());
        let compacted = rowsets(&world);
        assert!((4..=16).contains(&compacted.len()), "{} rowsets", compacted.len());
        assert_eq!(contents(&world, None), before);
    }
}

const ROWS: i32 = 96;
const ROUNDS: i32 = 24;

/// Writes rows of few bytes, flushes them, and updates each many times with long values: long histories of short rows.
fn long_histories(world: &mut World) {
    let columns = vec![
        ColumnSchema::new(0, "k", DataType::Int32),
        ColumnSchema { nullable: true, ..ColumnSchema::new(1, "v", DataType::String) },
    ];
    world.create(Schema::new(columns, 1).unwrap()).unwrap();
    let rows = |kind, text: &dyn Fn(i32) -> String| -> Vec<_> {
        (0..ROWS).map(|key| (kind, vec![Value::int(key), Value::text(&text(key))])).collect()
    };
    world.write(&rows(RowOpKind::Insert, &|key| key.to_string())).unwrap();
    assert!(world.job(JobKind::FlushRows, &mut |_| {}).unwrap());
    let rowset = rowsets(world)[0];
    for round in 0..ROUNDS {
        world.write(&rows(RowOpKind::Update, &|key| format!("{key} {round}").repeat(400))).unwrap();
        if round % 8 == 7 {
            world.write(&[(RowOpKind::Delete, vec![Value::int(round), Value::Unset])]).unwrap();
            world.write(&[(RowOpKind::Insert, vec![Value::int(round), Value::text("again")])]).unwrap();
            assert!(world.job(JobKind::FlushDeltas(rowset), &mut |_| {}).unwrap());
        }
    }
}

fn bytes_of(usage: &MemUsage, name: &str) -> u64 {
    let own = if usage.id == name { usage.bytes } else { 0 };
    own + usage.children.iter().map(|child| bytes_of(child, name)).sum::<u64>()
}

/// Runs a job. Returns the most bytes of memory that it tracked after a step.
fn peak(world: &mut World, root: &Arc<MemTracker>, job: JobKind) -> u64 {
    let mut most = 0;
    assert!(world.job(job, &mut |_| most = most.max(bytes_of(&root.usage(), "maintenance"))).unwrap());
    most
}

#[test]
fn steps_over_long_histories_are_short() {
    type MakeJob = fn(RowSetId) -> JobKind;
    let jobs: [&[MakeJob]; 3] = [
        &[JobKind::MinorDeltaCompaction, JobKind::MajorDeltaCompaction],
        &[JobKind::MajorDeltaCompaction, |rowset| JobKind::Compact(vec![rowset])],
        &[|rowset| JobKind::Compact(vec![rowset]), |rowset| JobKind::Compact(vec![rowset])],
    ];
    for jobs in jobs {
        let root = MemTracker::root("server", None);
        let memory = MemoryHandle::of(&root.child("tablets"));
        let mut world =
            World::new(1, TabletConfig { memory, job_step_bytes: STEP_BYTES, ..TabletConfig::default() });
        long_histories(&mut world);
        let snapshots = [None, Some(1), Some(2), Some(10), Some(20)];
        let before = snapshots.map(|ops| contents(&world, ops));
        for job in jobs {
            let kind = job(rowsets(&world)[0]);
            let most = peak(&mut world, &root, kind.clone());
            // The histories have 5 MB in total. A step also has its pages, its output, and at least one whole row.
            assert!(most < 1 << 20, "{kind:?}: {most} bytes");
            assert_eq!(snapshots.map(|ops| contents(&world, ops)), before, "after {kind:?}");
        }
    }
}

#[test]
fn a_flush_of_long_histories_has_short_steps() {
    let root = MemTracker::root("server", None);
    let memory = MemoryHandle::of(&root.child("tablets"));
    let mut world =
        World::new(1, TabletConfig { memory, job_step_bytes: STEP_BYTES, ..TabletConfig::default() });
    let columns =
        vec![ColumnSchema::new(0, "k", DataType::Int32), ColumnSchema::new(1, "v", DataType::String)];
    world.create(Schema::new(columns, 1).unwrap()).unwrap();
    for round in 0..ROUNDS {
        let row = |key| {
            (RowOpKind::Upsert, vec![Value::int(key), Value::text(&format!("{key} {round}").repeat(400))])
        };
        world.write(&(0..ROWS).map(row).collect::<Vec<_>>()).unwrap();
    }
    let before = [None, Some(1), Some(9)].map(|ops| contents(&world, ops));
    let mut steps = 0;
    assert!(world.job(JobKind::FlushRows, &mut |_| steps += 1).unwrap());
    assert!(steps > 48, "{steps} steps");
    assert_eq!([None, Some(1), Some(9)].map(|ops| contents(&world, ops)), before);
}

/// Bytes of a long cell.
const LONG: usize = 64 << 10;
/// Upper bound of a job's memory: pages that are not full, buffers of files, and few rows.
const JOB_BYTES_MAX: u64 = 3 << 20;

/// Creates an empty table `k`, `v`.
fn empty_table() -> (World, Arc<MemTracker>) {
    let root = MemTracker::root("server", None);
    let memory = MemoryHandle::of(&root.child("tablets"));
    let mut world =
        World::new(1, TabletConfig { memory, job_step_bytes: STEP_BYTES, ..TabletConfig::default() });
    let text = ColumnSchema::new(1, "v", DataType::String).nullable();
    world.create(Schema::new(vec![ColumnSchema::new(0, "k", DataType::Int32), text], 1).unwrap()).unwrap();
    (world, root)
}

/// Writes rows, in which `v` is NULL, to two rowsets, every other row to each.
fn write_short(world: &mut World, rows: i32) {
    for first in [0, 1] {
        let keys = (first..rows).step_by(2);
        world.write(&keys.map(|key| (RowOpKind::Insert, vec![Value::int(key)])).collect::<Vec<_>>()).unwrap();
        assert!(world.job(JobKind::FlushRows, &mut |_| {}).unwrap());
    }
}

/// Writes a long text to each of these rows.
fn write_long(world: &mut World, kind: RowOpKind, keys: std::ops::Range<i32>) {
    for key in keys {
        let text = format!("{key:08}").repeat(LONG / 8);
        world.write(&[(kind, vec![Value::int(key), Value::text(&text)])]).unwrap();
    }
}

#[test]
fn compactions_of_short_rows_with_long_defaults_or_deltas_have_short_steps() {
    for is_default in [false, true] {
        let (mut world, root) = empty_table();
        write_short(&mut world, 300);
        if is_default {
            world.add_text_column(vec![b'd'; LONG]);
        } else {
            write_long(&mut world, RowOpKind::Update, 0..300);
        }
        let before = contents(&world, None);
        let job = JobKind::Compact(rowsets(&world));
        let most = peak(&mut world, &root, job);
        assert!(most < JOB_BYTES_MAX, "{most} bytes, defaults: {is_default}");
        assert_eq!(contents(&world, None), before);
    }
}

#[test]
fn a_flush_of_long_rows_in_one_place_has_short_steps() {
    let (mut world, root) = empty_table();
    let short = |key| (RowOpKind::Insert, vec![Value::int(key), Value::text("short")]);
    world.write(&(0..20_000).map(short).collect::<Vec<_>>()).unwrap();
    write_long(&mut world, RowOpKind::Insert, 20_000..20_300);
    let before = contents(&world, None);
    let most = peak(&mut world, &root, JobKind::FlushRows);
    assert!(most < JOB_BYTES_MAX, "{most} bytes");
    assert_eq!(contents(&world, None), before);
}

#[test]
fn a_compaction_passes_over_dropped_rows_in_steps() {
    const STEP_ROWS: usize = 100;
    let mut world = World::new(1, TabletConfig { job_step_rows: STEP_ROWS, ..TabletConfig::default() });
    let columns =
        vec![ColumnSchema::new(0, "k", DataType::Int32), ColumnSchema::new(1, "v", DataType::Int32)];
    world.create(Schema::new(columns, 1).unwrap()).unwrap();
    let rows =
        |kind| (0..2_000).map(|key| (kind, vec![Value::int(key), Value::int(key)])).collect::<Vec<_>>();
    world.write(&rows(RowOpKind::Insert)).unwrap();
    assert!(world.job(JobKind::FlushRows, &mut |_| {}).unwrap());
    let deletes = (0..2_000).map(|key| (RowOpKind::Delete, vec![Value::int(key)])).collect::<Vec<_>>();
    world.write(&deletes).unwrap();
    world.replica().tablet().raise_history_mark(Timestamp::MAX);
    let (job, mut steps) = (JobKind::Compact(rowsets(&world)), 0);
    assert!(world.job(job, &mut |_| steps += 1).unwrap());
    assert!(steps >= 2_000 / STEP_ROWS, "{steps} steps");
    assert_eq!((rowsets(&world), contents(&world, None)), (Vec::new(), Vec::new()));
}
