//! Rows and changes on their way into a tablet, and rowsets merged.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::Arc;

use engine::ids::ColumnId;
use engine::memory::MemTracker;
use engine::replica::{JobKind, Op};
use engine::schema::Physical;
use engine::schema::block::ColumnBlock;
use engine::schema::change::ChangeBuilder;
use engine::schema::ops::RowOpKind;
use engine::tablet::delta_tracker::{DeltaState, apply_overrides};
use engine::tablet::deltamemstore::DeltaMemStore;
use engine::tablet::memrowset::MemRowSet;
use engine::tablet::meta::TabletSchema;
use engine::time::Timestamp;

use super::{Amount, Run};
use crate::mix;
use crate::tables::{self, OP_ROWS, narrow, narrow_row};

const COUNT: u64 = 5_000;
pub const ROWS: Amount = Amount::Rows(COUNT);
const KEY_BYTES: u32 = 8;
/// Cells of a row, as far as a MemRowSet is concerned: bytes that it keeps.
const ROW_BYTES: u32 = 48;
/// Of a rowset whose rows change.
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

/// Keys in no order, each followed by its cells.
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

pub fn insert() -> Run {
    let (set, mut waiting) = (empty(), batches());
    Box::new(move || fill(&set, std::mem::take(&mut waiting)))
}

/// Every row by its key.
pub fn lookup() -> Run {
    let set = empty();
    fill(&set, batches());
    Box::new(move || {
        let found = (0..COUNT).filter(|number| set.contains(&key(*number))).count();
        assert_eq!(found as u64, COUNT);
    })
}

/// Every column of every row that is in memory, loaded in no order.
pub fn scan() -> Run {
    let schema = narrow();
    let mut world = tables::world(&schema);
    for first in (0..COUNT).step_by(OP_ROWS as usize) {
        let rows = (first..first + OP_ROWS).map(|number| narrow_row(mix(number)));
        tables::run(&mut world, tables::op(&schema, RowOpKind::Insert, rows));
    }
    Box::new(move || {
        assert_eq!(tables::scan(&world, &["k", "a", "b", "c", "d"], &[]) as u64, COUNT);
    })
}

fn update(to: u64) -> Vec<u8> {
    let mut change = Vec::new();
    ChangeBuilder::update(&mut change).set(CHANGED, Some(&to.to_le_bytes()));
    change
}

/// A change of every third row and a later one of every ninth, in no order.
fn change(store: &DeltaMemStore) {
    for (number, ts) in (0..COUNT).zip(1..) {
        let row = (mix(number) % COUNT / 3 * 3) as u32;
        store.insert(row, Timestamp(ts), &update(number)).expect("the change is sound");
    }
}

pub fn add_changes() -> Run {
    let store = DeltaMemStore::new(&tracker());
    Box::new(move || change(&store))
}

/// Collects the changes of rows, a block at a time, and puts them into a column.
pub fn apply_changes() -> Run {
    const BLOCK: u32 = 1000;
    let recent = Arc::new(DeltaMemStore::new(&tracker()));
    change(&recent);
    let state = DeltaState { undo: Vec::new(), redo: Vec::new(), frozen: None, recent };
    let mut column = ColumnBlock::new(Physical::Int64, false);
    column.push_many(Some(&0u64.to_le_bytes()), BLOCK as usize);
    Box::new(move || {
        for first in (0..COUNT as u32).step_by(BLOCK as usize) {
            let changes = state.collect(first..first + BLOCK, Timestamp::MAX, None).expect("it is in memory");
            black_box(changes.alive().expect("every change is sound"));
            let cells = changes.overrides(CHANGED, false, None).expect("every change is sound");
            apply_overrides(&mut column, &cells).expect("every cell fits");
        }
    })
}

/// Writes of a thousand rows: decoded, checked, logged, applied, their outcome logged.
pub fn write() -> Run {
    let schema = narrow();
    let mut world = tables::world(&schema);
    let batch = |first: u64| {
        tables::op(&schema, RowOpKind::Insert, (first..first + OP_ROWS).map(|number| narrow_row(mix(number))))
    };
    let mut ops: Vec<Op> = (0..COUNT).step_by(OP_ROWS as usize).map(batch).collect();
    Box::new(move || ops.drain(..).for_each(|op| tables::run(&mut world, op)))
}

/// Three rowsets over the same range of keys become one.
pub fn compact() -> Run {
    const INPUTS: u64 = 3;
    let schema = narrow();
    let mut world = tables::world(&schema);
    for set in 0..INPUTS {
        tables::insert(&mut world, &schema, narrow_row, (set..COUNT).step_by(INPUTS as usize));
        tables::job(&mut world, JobKind::FlushRows);
    }
    let ids: Vec<u64> = world.replica().tablet().state().disk.iter().map(|set| set.meta().id).collect();
    assert_eq!(ids.len() as u64, INPUTS);
    Box::new(move || tables::job(&mut world, JobKind::Compact(ids.clone())))
}
