//! Rows and row changes on their way into a tablet, and rowset compaction.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::Arc;

use engine::ids::ColumnId;
use engine::memory::MemTracker;
use engine::replica::{JobKind, Op};
use engine::schema::PhysicalType;
use engine::schema::row_block::ColumnBlock;
use engine::schema::row_change::RowChangeBuilder;
use engine::schema::row_ops::RowOpKind;
use engine::tablet::delta_tracker::RowsetDeltas;
use engine::tablet::deltamemstore::DeltaMemStore;
use engine::tablet::memrowset::MemRowSet;
use engine::tablet::superblock::TabletSchema;
use engine::time::Timestamp;

use super::hot_path::{Run, WorkloadSize};
use crate::mix;
use crate::sample_tables::{self, OP_ROWS, narrow, narrow_row};

const COUNT: u64 = 5_000;
pub(super) const ROWS: WorkloadSize = WorkloadSize::Rows(COUNT);
const KEY_BYTES: u32 = 8;
/// Bytes of a row's cells, which a MemRowSet treats as opaque.
const ROW_BYTES: u32 = 48;
/// Column that is updated.
const CHANGED: ColumnId = ColumnId(1);

fn tracker() -> Arc<MemTracker> {
    MemTracker::root("bench", None)
}

fn empty() -> MemRowSet {
    let schema = TabletSchema::new(narrow(), 0, "t".to_string(), BTreeMap::new());
    MemRowSet::new(Arc::new(schema), &tracker())
}

fn key(number: u64) -> [u8; KEY_BYTES as usize] {
    mix(number).to_be_bytes()
}

/// Returns keys in random order, each followed by its cells.
fn batches() -> Vec<Vec<u8>> {
    let row = |number: u64| [&key(number)[..], &[7; ROW_BYTES as usize]].concat();
    (0..COUNT)
        .step_by(OP_ROWS as usize)
        .map(|first| (first..first + OP_ROWS).flat_map(row).collect())
        .collect()
}

fn fill(set: &MemRowSet, batches: Vec<Vec<u8>>) {
    for (bytes, ts) in batches.into_iter().zip(1..) {
        let mut writer = set.write();
        for row in bytes.chunks_exact((KEY_BYTES + ROW_BYTES) as usize) {
            let slot = writer.find(&row[..KEY_BYTES as usize]).expect_err("every key is new");
            writer.insert(slot, Timestamp(ts), row, KEY_BYTES);
        }
    }
}

pub(super) fn insert() -> Run {
    let (set, mut waiting) = (empty(), batches());
    Box::new(move || fill(&set, std::mem::take(&mut waiting)))
}

/// Looks up every row by its key.
pub(super) fn lookup() -> Run {
    let set = empty();
    fill(&set, batches());
    Box::new(move || {
        let found = (0..COUNT).filter(|number| set.contains(&key(*number))).count();
        assert_eq!(found as u64, COUNT);
    })
}

/// Scans every column of every row of a MemRowSet that was loaded in random order.
pub(super) fn scan() -> Run {
    let schema = narrow();
    let mut world = sample_tables::world(&schema);
    for first in (0..COUNT).step_by(OP_ROWS as usize) {
        let rows = (first..first + OP_ROWS).map(|number| narrow_row(mix(number)));
        sample_tables::run(&mut world, sample_tables::op(&schema, RowOpKind::Insert, rows));
    }
    Box::new(move || {
        assert_eq!(sample_tables::scan(&world, &["k", "a", "b", "c", "d"], &[]) as u64, COUNT);
    })
}

fn update(to: u64) -> Vec<u8> {
    let mut change = Vec::new();
    RowChangeBuilder::update(&mut change).set(CHANGED, Some(&to.to_le_bytes()));
    change
}

/// Updates every third row, and every ninth once more, in random order.
fn change(store: &DeltaMemStore) {
    for (number, ts) in (0..COUNT).zip(1..) {
        let row = (mix(number) % COUNT / 3 * 3) as u32;
        store.insert(row, Timestamp(ts), &update(number)).expect("the change is sound");
    }
}

pub(super) fn add_changes() -> Run {
    let store = DeltaMemStore::new(&tracker());
    Box::new(move || change(&store))
}

/// Collects the deltas of rows, a block at a time, and applies them to a column.
pub(super) fn apply_changes() -> Run {
    const BLOCK: u32 = 1000;
    let recent = Arc::new(DeltaMemStore::new(&tracker()));
    change(&recent);
    let state = RowsetDeltas { undo: Vec::new(), redo: Vec::new(), frozen: None, recent };
    let mut column = ColumnBlock::new(PhysicalType::Int64, false);
    column.push_many(Some(&0u64.to_le_bytes()), BLOCK as usize);
    Box::new(move || {
        for first in (0..COUNT as u32).step_by(BLOCK as usize) {
            let rows = first..first + BLOCK;
            let changes = state.for_scan(rows, Timestamp::MAX, None, &[CHANGED]).expect("it is in memory");
            black_box(changes.alive());
            changes.apply(CHANGED, None, &mut column).expect("every cell fits");
        }
    })
}

/// Writes operations of a thousand rows: decodes, checks, logs and applies them, and logs their outcome.
pub(super) fn write() -> Run {
    let schema = narrow();
    let mut world = sample_tables::world(&schema);
    let batch = |first: u64| {
        sample_tables::op(
            &schema,
            RowOpKind::Insert,
            (first..first + OP_ROWS).map(|number| narrow_row(mix(number))),
        )
    };
    let mut ops: Vec<Op> = (0..COUNT).step_by(OP_ROWS as usize).map(batch).collect();
    Box::new(move || ops.drain(..).for_each(|op| sample_tables::run(&mut world, op)))
}

/// Compacts three rowsets with the same range of keys into one.
pub(super) fn compact() -> Run {
    const INPUTS: u64 = 3;
    let schema = narrow();
    let mut world = sample_tables::world(&schema);
    for set in 0..INPUTS {
        sample_tables::insert(&mut world, &schema, narrow_row, (set..COUNT).step_by(INPUTS as usize));
        sample_tables::job(&mut world, JobKind::FlushRows);
    }
    let ids: Vec<u64> = world.replica().tablet().state().disk.iter().map(|set| set.meta().id).collect();
    assert_eq!(ids.len() as u64, INPUTS);
    Box::new(move || sample_tables::job(&mut world, JobKind::Compact(ids.clone())))
}
