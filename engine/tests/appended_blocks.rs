//! Blocks appended to one block have the rows that they have one by one: in memory, mutated there, flushed, and with
//! updates and predicates.

use engine::config::TabletConfig;
use engine::ids::ColumnId;
use engine::replica::JobKind;
use engine::schema::predicate::{Predicate, PredicateKind};
use engine::schema::row_block::{ProjectedColumn, RowBlock};
use engine::schema::row_ops::RowOpKind;
use engine::schema::{ColumnSchema, DataType, Schema};
use engine::tablet::scan::ScanSpec;
use engine_testkit::world::{Value, World};

/// Rows of some blocks.
const ROWS: i32 = 5_000;

fn world() -> World {
    let mut world = World::new(1, TabletConfig::default());
    let columns = vec![
        ColumnSchema::new(0, "k", DataType::Int32),
        ColumnSchema::new(1, "text", DataType::String).nullable(),
        ColumnSchema::new(2, "number", DataType::Int32),
    ];
    world.create(Schema::new(columns, 1).unwrap()).unwrap();
    world
}

fn row(kind: RowOpKind, key: i32, add: i32) -> (RowOpKind, Vec<Value>) {
    let text = if key % 7 == 0 { Value::Null } else { Value::text(&format!("text {}", (key + add) % 50)) };
    (kind, vec![Value::int(key), text, Value::int(key * 3 + add)])
}

fn check(world: &World) {
    let tablet = world.replica().tablet();
    let projection: Vec<ProjectedColumn> = tablet.schema().columns().iter().map(Into::into).collect();
    let above = PredicateKind::Range { lower: Some(600i32.to_le_bytes().to_vec()), upper: None };
    for predicates in [Vec::new(), vec![Predicate::new(ColumnId(2), above)]] {
        let spec = ScanSpec { predicates, ..ScanSpec::latest(projection.clone()) };
        let (mut one_by_one, mut appended) = (RowBlock::new(&projection), RowBlock::new(&projection));
        let mut scan = tablet.scan(&spec).unwrap();
        while let Some(block) = scan.next_block().unwrap() {
            one_by_one.append(block);
        }
        let (mut scan, mut blocks) = (tablet.scan(&spec).unwrap(), 0);
        while scan.append_block(&mut appended).unwrap() {
            blocks += 1;
        }
        assert!(blocks > 1 && one_by_one.rows > ROWS as usize / 2, "{blocks} blocks");
        assert_eq!(appended, one_by_one);
    }
}

#[test]
fn appended_blocks_have_the_rows_of_single_blocks() {
    let mut world = world();
    world.write(&(0..ROWS).map(|key| row(RowOpKind::Insert, key, 0)).collect::<Vec<_>>()).unwrap();
    check(&world);
    let updates: Vec<_> = (0..ROWS).step_by(11).map(|key| row(RowOpKind::Update, key, 5)).collect();
    world.write(&updates).unwrap();
    check(&world);
    assert!(world.job(JobKind::FlushRows, &mut |_| {}).unwrap());
    check(&world);
    let updates: Vec<_> = (0..ROWS).step_by(13).map(|key| row(RowOpKind::Update, key, 9)).collect();
    world.write(&updates).unwrap();
    check(&world);
}
