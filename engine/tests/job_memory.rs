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
