//! The memory of a scan is bounded however much history its rows have: scans of the past, diff scans, reads by key, and
//! scans that pass over pages.
//!
//! There is no page cache, so that all memory of a scan is its own.

use engine::config::TabletConfig;
use engine::ids::ColumnId;
use engine::replica::{JobKind, OpResult};
use engine::schema::predicate::{Predicate, PredicateKind};
use engine::schema::row_ops::RowOpKind;
use engine::schema::{ColumnSchema, DataType, Schema};
use engine::tablet::scan::{ScanSpec, SnapshotChoice};
use engine_testkit::allocations::{CountingAllocator, peak};
use engine_testkit::world::{Value, World};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const ROWS: i32 = 40;
/// Operations that update every row. Each updates the row of key 0 this many times.
const ROUNDS: i32 = 150;
const HOT_UPDATES: i32 = 100;
/// Bytes of a block's cells or deltas, and upper bound of a scan's memory: a few blocks and pages.
const BLOCK_BYTES: usize = 64 << 10;
const SCAN_BYTES_MAX: i64 = 3 << 19;

/// Returns the text of a row after a number of rounds.
fn text(key: i32, round: i32) -> String {
    format!("{round:04} {key:04} ").repeat(20)
}

/// Creates a table `k`, `text`, `number` with all history in one rowset: more than 4 MB of UNDO deltas.
fn world() -> World {
    let mut world = redo_world();
    let rowset = world.replica().tablet().state().disk[0].meta().id;
    assert!(world.job(JobKind::MajorDeltaCompaction(rowset), &mut |_| {}).unwrap());
    world
}

/// Creates the same table, with all history in REDO deltas of one file.
fn redo_world() -> World {
    let mut world = World::new(1, TabletConfig { scan_block_bytes: BLOCK_BYTES, ..TabletConfig::default() });
    world.cache_bytes = 0;
    let columns = [(0, "k", DataType::Int32), (1, "text", DataType::String), (2, "number", DataType::Int32)];
    let columns = columns.map(|(id, name, ty)| ColumnSchema::new(id, name, ty)).to_vec();
    world.create(Schema::new(columns, 1).unwrap()).unwrap();
    let row = |key, round| vec![Value::int(key), Value::text(&text(key, round)), Value::int(key)];
    let write = |world: &mut World, rows: Vec<_>| {
        let result = world.write(&rows).unwrap();
        assert!(matches!(result, OpResult::Write { errors, .. } if errors.is_empty()));
    };
    write(&mut world, (0..ROWS).map(|key| (RowOpKind::Insert, row(key, 0))).collect());
    assert!(world.job(JobKind::FlushRows, &mut |_| {}).unwrap());
    let update = |key, round| (RowOpKind::Update, row(key, round)[..2].to_vec());
    for round in 1..=ROUNDS {
        let hot = (1..HOT_UPDATES).map(|_| update(0, round));
        write(&mut world, hot.chain((0..ROWS).map(|key| update(key, round))).collect());
    }
    let rowset = world.replica().tablet().state().disk[0].meta().id;
    assert!(world.job(JobKind::FlushDeltas(rowset), &mut |_| {}).unwrap());
    world
}

/// Returns the spec of a scan of `text`.
fn spec(world: &World) -> ScanSpec {
    let tablet = world.replica().tablet();
    ScanSpec::latest(vec![(&tablet.schema().columns()[1]).into()])
}

/// Returns a spec that reads the state after some rounds; the first operation inserts.
fn past(world: &World, round: i32) -> ScanSpec {
    ScanSpec { snapshot: SnapshotChoice::At(world.timestamp_of(round as u64 + 2)), ..spec(world) }
}

/// Checks that a scan returns the texts of these keys after some rounds, in little memory.
fn check(world: &World, spec: &ScanSpec, keys: std::ops::Range<i32>, round: i32) {
    let (texts, bytes) = peak(|| {
        let (mut scan, mut texts) = (world.replica().tablet().scan(spec).unwrap(), Vec::new());
        while let Some(block) = scan.next_block().unwrap() {
            texts.extend((0..block.rows).map(|row| block.columns[0].raw(row).to_vec()));
        }
        texts
    });
    assert!(bytes < SCAN_BYTES_MAX, "{bytes} bytes at round {round}");
    let expected: Vec<Vec<u8>> = keys.map(|key| text(key, round).into_bytes()).collect();
    assert!(texts == expected, "{} texts at round {round}", texts.len());
}

#[test]
fn scans_of_the_past_read_the_history_in_parts() {
    let world = world();
    for round in [0, 1, 77, ROUNDS] {
        check(&world, &past(&world, round), 0..ROWS, round);
        check(&world, &ScanSpec { ordered: true, ..past(&world, round) }, 0..ROWS, round);
    }
}

#[test]
fn diff_scans_read_the_history_in_parts() {
    let world = world();
    for (from, to) in [(0, ROUNDS), (0, 70), (70, 71), (120, ROUNDS)] {
        let diff_from = Some(world.timestamp_of(from as u64 + 2));
        check(&world, &ScanSpec { diff_from, ordered: true, ..past(&world, to) }, 0..ROWS, to);
    }
}

/// Checks reads by key of the row with the longest history and of another one.
fn check_reads_by_key(world: &World) {
    for key in [0_i32, 1] {
        let is_key = Predicate::new(ColumnId(0), PredicateKind::Equal(key.to_le_bytes().to_vec()));
        for round in [0, 99, ROUNDS] {
            let spec = ScanSpec { predicates: vec![is_key.clone()], ..past(world, round) };
            check(world, &spec, key..key + 1, round);
        }
        let latest = ScanSpec { predicates: vec![is_key], ..spec(world) };
        check(world, &latest, key..key + 1, ROUNDS);
    }
}

#[test]
fn reads_by_key_read_the_history_in_parts() {
    check_reads_by_key(&world());
}

#[test]
fn reads_by_key_read_redo_deltas_in_parts() {
    check_reads_by_key(&redo_world());
}

#[test]
fn pages_are_passed_over_without_their_history() {
    let world = world();
    let equal = |column, cell: &[u8]| Predicate::new(ColumnId(column), PredicateKind::Equal(cell.to_vec()));
    // No delta sets this column, so that its zone map counts.
    let absent = equal(2, &(-1i32).to_le_bytes());
    check(&world, &ScanSpec { predicates: vec![absent], ..past(&world, 0) }, 0..0, 0);
    // The text is none of the base's, but the history has it.
    let old = equal(1, text(7, 3).as_bytes());
    check(&world, &ScanSpec { predicates: vec![old], ..past(&world, 3) }, 7..8, 3);
}
