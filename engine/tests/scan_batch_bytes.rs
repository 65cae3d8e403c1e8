//! The longer rows are, the fewer of them a scan reads at a time: a batch is bounded by bytes, not by rows.

use engine::config::TabletConfig;
use engine::replica::JobKind;
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
