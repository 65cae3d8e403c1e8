//! A read of a scan examines a bounded number of rows, also if none of them passes; the scan still finds all rows. And
//! an ordered scan opens a rowset only when it comes to its keys.

use engine::config::TabletConfig;
use engine::ids::ColumnId;
use engine::replica::JobKind;
use engine::schema::predicate::{Predicate, PredicateKind};
use engine::schema::row_block::{ProjectedColumn, RowBlock};
use engine::schema::row_ops::RowOpKind;
use engine::schema::{ColumnSchema, DataType, Schema};
use engine::tablet::scan::{ScanSpec, SnapshotChoice};
use engine::time::Timestamp;
use engine_testkit::world::{Value, World};

const ROWS: i32 = 5_000;
/// Rows of a block. Each block counts for 1024 rows of the 65536 that a read may examine.
const BLOCK_ROWS: usize = 16;
const READ_ROWS_MAX: usize = 64 * BLOCK_ROWS;

fn world() -> World {
    let mut world = World::new(1, TabletConfig::default());
    let columns =
        vec![ColumnSchema::new(0, "k", DataType::Int32), ColumnSchema::new(1, "number", DataType::Int32)];
    world.create(Schema::new(columns, 1).unwrap()).unwrap();
    world
}

/// Returns a row whose number says nothing about its page.
fn row(key: i32) -> (RowOpKind, Vec<Value>) {
    (RowOpKind::Insert, vec![Value::int(key), Value::int(number(key))])
}

fn number(key: i32) -> i32 {
    key * 7919 % ROWS
}

fn spec(world: &World, predicates: Vec<Predicate>) -> ScanSpec {
    let tablet = world.replica().tablet();
    let projection: Vec<ProjectedColumn> = tablet.schema().columns()[..1].iter().map(Into::into).collect();
    ScanSpec { predicates, block_rows_max: Some(BLOCK_ROWS), ..ScanSpec::latest(projection) }
}

/// Checks that a scan finds the row of the last key alone, after reads without a row.
fn check(world: &World, spec: &ScanSpec) {
    let tablet = world.replica().tablet();
    let (mut scan, mut reads, mut found) = (tablet.scan(spec).unwrap(), 0, RowBlock::new(&spec.projection));
    while let Some(block) = scan.read_block().unwrap() {
        reads += 1;
        found.append(block);
    }
    assert!(reads >= ROWS as usize / READ_ROWS_MAX, "a read ends without a row: {reads} reads");
    assert_eq!((found.rows, found.columns[0].cell(0)), (1, Some(&(ROWS - 1).to_le_bytes()[..])));
    let (mut scan, mut appended) = (tablet.scan(spec).unwrap(), RowBlock::new(&spec.projection));
    assert!(scan.append_block(&mut appended).unwrap(), "the scan is not at its end");
    assert_eq!(appended.rows, 0, "the row is behind what one read examines");
    while scan.append_block(&mut appended).unwrap() {}
    assert_eq!(appended, found);
    let mut scan = tablet.scan(spec).unwrap();
    assert_eq!(scan.next_block().unwrap(), Some(found));
    assert_eq!(scan.last_key().is_some(), spec.ordered);
    assert_eq!(scan.next_block().unwrap(), None);
}

fn check_all(world: &World) {
    let last = PredicateKind::Equal(number(ROWS - 1).to_le_bytes().to_vec());
    let unordered = spec(world, vec![Predicate::new(ColumnId(1), last)]);
    check(world, &unordered);
    check(world, &ScanSpec { ordered: true, ..unordered.clone() });
    check(world, &ScanSpec { limit: Some(1_000), ..unordered });
}

#[test]
fn a_read_ends_before_it_finds_a_row() {
    let mut world = world();
    for part in 0..3 {
        let keys = (0..ROWS).filter(|key| key % 3 == part);
        world.write(&keys.map(row).collect::<Vec<_>>()).unwrap();
        if part == 2 {
            check_all(&world);
        }
        assert!(world.job(JobKind::FlushRows, &mut |_| {}).unwrap());
    }
    check_all(&world);
}

#[test]
fn deleted_and_unchanged_rows_are_examined_in_several_reads() {
    let mut world = world();
    world.write(&(0..ROWS).map(row).collect::<Vec<_>>()).unwrap();
    let deletions: Vec<_> = (0..ROWS - 1).map(|key| (RowOpKind::Delete, vec![Value::int(key)])).collect();
    for is_flushed in [false, true] {
        if is_flushed {
            assert!(world.job(JobKind::FlushRows, &mut |_| {}).unwrap());
        } else {
            world.write(&deletions).unwrap();
        }
        check(&world, &spec(&world, Vec::new()));
    }
    let from = Timestamp(world.clock + 1);
    let change = (RowOpKind::Update, vec![Value::int(ROWS - 1), Value::int(-1)]);
    world.write(&[change]).unwrap();
    let snapshot = SnapshotChoice::At(Timestamp(world.clock + 1));
    check(&world, &ScanSpec { diff_from: Some(from), ordered: true, snapshot, ..spec(&world, Vec::new()) });
}

#[test]
fn an_ordered_scan_reads_rowsets_as_it_comes_to_them() {
    const ROWSETS: i32 = 50;
    let mut world = world();
    world.cache_bytes = 0;
    world.reopen().unwrap();
    for first in (0..ROWSETS).map(|number| number * 10) {
        world.write(&(first..first + 10).map(row).collect::<Vec<_>>()).unwrap();
        assert!(world.job(JobKind::FlushRows, &mut |_| {}).unwrap());
    }
    let tablet = world.replica().tablet();
    assert_eq!(tablet.state().disk.len() as i32, ROWSETS);
    for lower_key in [None, Some(vec![0x80, 0, 0, 25])] {
        let spec = ScanSpec { ordered: true, lower_key: lower_key.clone(), ..spec(&world, Vec::new()) };
        let mut scan = tablet.scan(&spec).unwrap();
        let mut found = scan.next_block().unwrap().unwrap();
        let first = scan.take_page_bytes().read;
        while let Some(block) = scan.next_block().unwrap() {
            found.append(block);
        }
        let rest = scan.take_page_bytes().read;
        assert!(0 < first && first * 10 < rest, "{first} bytes for the first block, {rest} for the others");
        let keys: Vec<i32> = (lower_key.map_or(0, |_| 25)..10 * ROWSETS).collect();
        let cell = |row| i32::from_le_bytes(found.columns[0].raw(row).try_into().unwrap());
        assert_eq!((0..found.rows).map(cell).collect::<Vec<_>>(), keys);
    }
}
