//! The longer rows are, the fewer of them a scan reads at a time: a batch is bounded by bytes, not by rows. It does not
//! matter whether all rows are long or some in one place, or what makes them long: inserts, updates or a read default.

use engine::config::TabletConfig;
use engine::replica::{JobKind, OpResult};
use engine::schema::row_block::ProjectedColumn;
use engine::schema::row_ops::RowOpKind;
use engine::schema::{ColumnSchema, DataType, Schema};
use engine::tablet::scan::ScanSpec;
use engine_testkit::world::{Value, World};

const ROWS: i32 = 100;
const TEXT_BYTES: usize = 4 << 10;
/// Number of rows in a block.
const FITTING: usize = 16;

fn world() -> World {
    let config = TabletConfig { scan_block_bytes: FITTING * TEXT_BYTES, ..TabletConfig::default() };
    let mut world = World::new(1, config);
    let columns =
        vec![ColumnSchema::new(0, "k", DataType::Int32), ColumnSchema::new(1, "text", DataType::String)];
    world.create(Schema::new(columns, 1).unwrap()).unwrap();
    world
}

/// Returns rows whose texts do not compress, so that they are as long in memory and on disk as here.
fn rows() -> Vec<(RowOpKind, Vec<Value>)> {
    let text = |key: i32| (0..TEXT_BYTES).map(|at| b'a' + (at * (key as usize + 7) % 23) as u8).collect();
    let row = |key| (RowOpKind::Insert, vec![Value::int(key), Value::Bytes(text(key))]);
    (0..ROWS).map(row).collect()
}

/// Returns the rows of each block of a scan of `columns` columns.
fn blocks(world: &World, columns: usize) -> Vec<usize> {
    let tablet = world.replica().tablet();
    let projection: Vec<ProjectedColumn> =
        tablet.schema().columns()[..columns].iter().map(Into::into).collect();
    let mut scan = tablet.scan(&ScanSpec::latest(projection)).unwrap();
    std::iter::from_fn(|| scan.next_block().unwrap()).map(|block| block.rows).collect()
}

fn check(world: &World) {
    let rows = blocks(world, 2);
    assert_eq!(rows.iter().sum::<usize>(), ROWS as usize);
    assert!(rows.iter().all(|rows| *rows <= FITTING), "{rows:?}");
    assert!(rows.len() <= ROWS as usize / 8 + 1, "nor one by one: {rows:?}");
    assert_eq!(blocks(world, 0), [ROWS as usize], "counting reads no texts");
}

#[test]
fn blocks_of_long_rows_have_few_rows_in_memory_and_on_disk() {
    let mut world = world();
    world.write(&rows()).unwrap();
    check(&world);
    assert!(world.job(JobKind::FlushRows, &mut |_| {}).unwrap());
    check(&world);
}

/// Most bytes of a cell.
const LONG: usize = 64 << 10;
/// Twice the bytes that a block should have.
const BLOCK_BYTES_MAX: usize = 2 << 20;

/// Creates a table `k`, `text` with the limits of servers.
fn plain_world() -> World {
    let mut world = World::new(1, TabletConfig::default());
    let text = ColumnSchema::new(1, "text", DataType::String).nullable();
    world.create(Schema::new(vec![ColumnSchema::new(0, "k", DataType::Int32), text], 1).unwrap()).unwrap();
    world
}

/// Writes a row for each key with a text of a length, or with NULL.
fn write(world: &mut World, kind: RowOpKind, keys: impl Iterator<Item = i32>, len: Option<usize>) {
    let letter = |key: i32, at: usize| b'a' + (at * (key as usize + 7) % 23) as u8;
    let text = |key| len.map(|len| (0..len).map(|at| letter(key, at)).collect());
    let row = |key| (kind, vec![Value::int(key), text(key).map_or(Value::Null, Value::Bytes)]);
    let rows: Vec<_> = keys.map(row).collect();
    for rows in rows.chunks(20) {
        let result = world.write(rows).unwrap();
        assert!(matches!(result, OpResult::Write { errors, .. } if errors.is_empty()));
    }
}

fn flush(world: &mut World) {
    assert!(world.job(JobKind::FlushRows, &mut |_| {}).unwrap());
}

/// Checks that scans return `rows` rows in blocks of few bytes. There are at most `blocks` of them.
fn check_bytes(world: &World, rows: usize, blocks: usize) {
    let tablet = world.replica().tablet();
    let projection: Vec<ProjectedColumn> = tablet.schema().columns().iter().map(Into::into).collect();
    for ordered in [false, true] {
        let mut scan = tablet.scan(&ScanSpec { ordered, ..ScanSpec::latest(projection.clone()) }).unwrap();
        let read: Vec<_> = std::iter::from_fn(|| scan.next_block().unwrap()).collect();
        let bytes = read.iter().map(|block| block.byte_size()).max().unwrap();
        assert!(bytes <= BLOCK_BYTES_MAX, "a block of {bytes} bytes, ordered: {ordered}");
        assert_eq!(read.iter().map(|block| block.rows).sum::<usize>(), rows);
        assert!(read.len() <= blocks, "{} blocks, ordered: {ordered}", read.len());
    }
}

#[test]
fn a_long_default_of_an_added_column_shortens_blocks() {
    for is_flushed in [false, true] {
        let mut world = plain_world();
        write(&mut world, RowOpKind::Insert, 0..400, Some(10));
        if is_flushed {
            flush(&mut world);
        }
        world.add_text_column(vec![b'd'; LONG]);
        check_bytes(&world, 400, 400 / 8);
    }
}

#[test]
fn updates_to_long_cells_shorten_blocks() {
    let mut world = plain_world();
    write(&mut world, RowOpKind::Insert, 0..300, None);
    flush(&mut world);
    let rowset = world.replica().tablet().state().disk[0].meta().id;
    check_bytes(&world, 300, 1);
    write(&mut world, RowOpKind::Update, 0..300, Some(LONG));
    check_bytes(&world, 300, 300 / 7);
    assert!(world.job(JobKind::FlushDeltas(rowset), &mut |_| {}).unwrap());
    check_bytes(&world, 300, 300 / 7);
    assert!(world.job(JobKind::MajorDeltaCompaction(rowset), &mut |_| {}).unwrap());
    check_bytes(&world, 300, 300 / 7);
}

#[test]
fn long_rows_in_one_place_shorten_blocks() {
    let mut world = plain_world();
    write(&mut world, RowOpKind::Insert, (0..2000).chain(2100..4000), Some(10));
    write(&mut world, RowOpKind::Insert, 2000..2100, Some(LONG));
    check_bytes(&world, 4000, 60);
    flush(&mut world);
    check_bytes(&world, 4000, 60);
}

#[test]
fn blocks_combined_of_several_rowsets_are_short() {
    let mut world = plain_world();
    for part in 0..3 {
        write(&mut world, RowOpKind::Insert, (part..300).step_by(3), Some(LONG));
        flush(&mut world);
    }
    check_bytes(&world, 300, 300 / 7);
}
