//! Pages of deltas that change no column of a scan are not read.
//!
//! There is no cache, so that every page read is a read of the disk.

use engine::config::TabletConfig;
use engine::disk::mem::DiskOpKind;
use engine::replica::JobKind;
use engine::schema::row_ops::RowOpKind;
use engine::schema::{ColumnSchema, DataType, Schema};
use engine::tablet::scan::{ScanSpec, SnapshotChoice};
use engine::time::Timestamp;
use engine_testkit::world::{Value, World};

const ROWS: i32 = 100;

/// A table `k`, `a`, `b`, all INT32, with all rows in one rowset on disk.
struct Table {
    world: World,
}

impl Table {
    fn new() -> Table {
        let mut world = World::new(1, TabletConfig { rowset_roll_bytes: 1 << 20, ..TabletConfig::tiny() });
        world.cache_bytes = 0;
        let column = |(id, name)| ColumnSchema::new(id, name, DataType::Int32);
        world.create(Schema::new([(0, "k"), (1, "a"), (2, "b")].map(column).to_vec(), 1).unwrap()).unwrap();
        let row = |key| (RowOpKind::Insert, [key, key, key].map(Value::int).to_vec());
        world.write(&(0..ROWS).map(row).collect::<Vec<_>>()).unwrap();
        assert!(world.job(JobKind::FlushRows, &mut |_| {}).unwrap());
        Table { world }
    }

    /// Writes operations and flushes their deltas to a file.
    fn change(&mut self, ops: &[(RowOpKind, Vec<Value>)]) {
        self.world.write(ops).unwrap();
        let rowset = self.world.replica().tablet().state().disk[0].meta().id;
        assert!(self.world.job(JobKind::FlushDeltas(rowset), &mut |_| {}).unwrap());
    }

    /// Sets `a` of every row.
    fn set_a(&mut self, value: i32) {
        let update = |key| (RowOpKind::Update, vec![Value::int(key), Value::int(value)]);
        self.change(&(0..ROWS).map(update).collect::<Vec<_>>());
    }

    /// Returns the cells of a column, by key, and the number of disk reads of a second scan. The first one has read
    /// the indexes.
    fn scan(&self, column: usize, at: SnapshotChoice) -> (Vec<i32>, u64) {
        let tablet = self.world.replica().tablet();
        let projection = tablet.schema().columns()[column..=column].iter().map(Into::into).collect();
        let spec = ScanSpec { snapshot: at, ordered: true, ..ScanSpec::latest(projection) };
        let mut cells = Vec::new();
        let mut reads = 0;
        for _ in 0..2 {
            cells.clear();
            let before = self.world.disk.op_count_of(DiskOpKind::Read);
            let mut scan = tablet.scan(&spec).unwrap();
            while let Some(block) = scan.next_block().unwrap() {
                let cell = |row| i32::from_le_bytes(block.columns[0].raw(row).try_into().unwrap());
                cells.extend((0..block.rows).map(cell));
            }
            reads = self.world.disk.op_count_of(DiskOpKind::Read) - before;
        }
        (cells, reads)
    }
}

#[test]
fn updates_of_other_columns_cost_no_read() {
    let mut table = Table::new();
    let (unchanged, reads) = table.scan(2, SnapshotChoice::Latest);
    let (_, reads_of_a) = table.scan(1, SnapshotChoice::Latest);
    for value in 1..4 {
        table.set_a(value);
    }
    let (still, with_deltas) = table.scan(2, SnapshotChoice::Latest);
    assert_eq!(still, unchanged);
    assert!(with_deltas <= reads, "{with_deltas} reads, {reads} without deltas");
    let (changed, with_deltas) = table.scan(1, SnapshotChoice::Latest);
    assert_eq!(changed, vec![3; ROWS as usize]);
    assert!(with_deltas >= reads_of_a + 3, "{with_deltas} reads, {reads_of_a} without deltas");
}

#[test]
fn deletes_and_inserts_of_deleted_rows_are_read_by_every_scan() {
    let mut table = Table::new();
    table.set_a(1);
    let (_, reads) = table.scan(2, SnapshotChoice::Latest);
    table.change(&[(RowOpKind::Delete, vec![Value::int(7)])]);
    let (without, with_delete) = table.scan(2, SnapshotChoice::Latest);
    assert_eq!(without, (0..ROWS).filter(|key| *key != 7).collect::<Vec<_>>());
    assert!(with_delete > reads);
    let deleted = Timestamp(table.world.clock + 1);
    table.change(&[(RowOpKind::Insert, [7, 70, 700].map(Value::int).to_vec())]);
    let (again, _) = table.scan(2, SnapshotChoice::Latest);
    assert_eq!(again, (0..ROWS).map(|key| if key == 7 { 700 } else { key }).collect::<Vec<_>>());
    assert_eq!(table.scan(2, SnapshotChoice::At(deleted)).0, without);
}

#[test]
fn an_old_snapshot_reads_the_undo_deltas_of_its_columns_only() {
    let mut table = Table::new();
    let then = Timestamp(table.world.clock + 1);
    table.set_a(5);
    let rowset = table.world.replica().tablet().state().disk[0].meta().id;
    assert!(table.world.job(JobKind::MajorDeltaCompaction(rowset), &mut |_| {}).unwrap());
    let (latest, reads) = table.scan(2, SnapshotChoice::Latest);
    assert_eq!(table.scan(2, SnapshotChoice::At(then)), (latest, reads));
    let (old, reads_of_a) = table.scan(1, SnapshotChoice::At(then));
    assert_eq!(old, (0..ROWS).collect::<Vec<_>>());
    assert!(reads_of_a > table.scan(1, SnapshotChoice::Latest).1);
}
