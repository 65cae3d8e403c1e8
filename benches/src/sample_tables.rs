//! Tables of Kudu's studies, their rows by number, and a tablet in memory to write them to.

use engine::config::TabletConfig;
use engine::replica::{JobKind, Op, OpResult};
use engine::schema::predicate::Predicate;
use engine::schema::row_ops::RowOpKind;
use engine::schema::{ColumnSchema, DataType, Schema};
use engine::tablet::scan::ScanSpec;

use crate::{mix, ycsb};
use engine_testkit::world::{Rows, Value, World, wire_columns};

/// Rows of one write.
pub const OP_ROWS: u64 = 1_000;

pub fn ycsb_row(number: u64) -> Vec<Value> {
    let fields = ycsb::fields(number);
    let fields = fields.chunks(ycsb::FIELD_BYTES).map(|field| Value::Bytes(field.to_vec()));
    std::iter::once(Value::text(&ycsb::key(number))).chain(fields).collect()
}

/// Returns the table of the background-flush study: two numbers, two strings, a number.
pub fn narrow() -> Schema {
    let columns = vec![
        ColumnSchema::new(0, "k", DataType::Int64),
        ColumnSchema::new(1, "a", DataType::Int32),
        ColumnSchema::new(2, "b", DataType::String),
        ColumnSchema::new(3, "c", DataType::String),
        ColumnSchema::new(4, "d", DataType::Int32),
    ];
    Schema::new(columns, 1).expect("the schema is sound")
}

pub fn narrow_row(number: u64) -> Vec<Value> {
    let int = |n: u64| Value::int((n % 1_000_000) as i32);
    let text = |n: u64| Value::text(&format!("value {}", n % 10_000));
    let drawn = mix(number);
    let key = Value::Bytes(number.to_le_bytes().to_vec());
    vec![key, int(drawn), text(drawn >> 8), text(drawn >> 16), int(drawn >> 24)]
}

/// Returns an update of every cell of a narrow row but the first text; `to` is for the first number.
pub fn narrow_update(number: u64, to: i32) -> Vec<Value> {
    let mut row = narrow_row(number);
    (row[1], row[2]) = (Value::int(to), Value::Unset);
    row
}

pub fn op(schema: &Schema, kind: RowOpKind, rows: impl Iterator<Item = Vec<Value>>) -> Op {
    let columns = wire_columns(schema);
    let mut encoded = Rows::default();
    rows.for_each(|row| encoded.add(&columns, kind, &row));
    encoded.op(&columns)
}

/// Returns an empty tablet.
pub fn world(schema: &Schema) -> World {
    let mut world = World::new(1, TabletConfig::default());
    world.cache_bytes = 256 << 20;
    world.create(schema.clone()).expect("the disk does not fail");
    world
}

/// Runs a write, every row of which must succeed.
pub fn run(world: &mut World, op: Op) {
    match world.run(op).result {
        Ok(OpResult::Write { errors, .. }) if errors.is_empty() => {}
        other => panic!("every row is taken, not {other:?}"),
    }
}

/// Runs a job, which must have work to do.
pub fn job(world: &mut World, kind: JobKind) {
    assert!(world.job(kind, &mut |_| {}).expect("the disk does not fail"));
}

/// Inserts the rows of these numbers, a thousand per operation.
pub fn insert(
    world: &mut World,
    schema: &Schema,
    row: fn(u64) -> Vec<Value>,
    numbers: impl Iterator<Item = u64>,
) {
    let numbers: Vec<u64> = numbers.collect();
    for some in numbers.chunks(OP_ROWS as usize) {
        run(world, op(schema, RowOpKind::Insert, some.iter().copied().map(row)));
    }
}

/// Reads the named columns of all rows that match; returns their number.
pub fn scan(world: &World, columns: &[&str], predicates: &[Predicate]) -> usize {
    let tablet = world.replica().tablet();
    let schema = tablet.schema();
    let wanted = schema.columns().iter().filter(|column| columns.contains(&column.name.as_str()));
    let spec =
        ScanSpec { predicates: predicates.to_vec(), ..ScanSpec::latest(wanted.map(Into::into).collect()) };
    let mut scan = tablet.scan(&spec).expect("the tablet is sound");
    let mut rows = 0;
    while let Some(block) = scan.next_block().expect("the tablet is sound") {
        rows += std::hint::black_box(block).rows;
    }
    rows
}
