//! Deltas whose cells do not fit their column, under sound checksums: as a bug of a writer would leave them. Scans and
//! compactions fail with `Corrupt`, and the replica keeps running.

use engine::config::TabletConfig;
use engine::error::{Error, ErrorKind};
use engine::ids::ColumnId;
use engine::replica::JobKind;
use engine::schema::row_change::RowChangeBuilder;
use engine::schema::row_ops::RowOpKind;
use engine::schema::{ColumnSchema, DataType, Schema};
use engine::tablet::rowset::RowSetId;
use engine::tablet::scan::ScanSpec;
use engine_testkit::world::{Value, World, misplaced_files};

/// Creates a table `k`, `n`, both INT32 NOT NULL, with three rows in one rowset and a delta file. One delta sets `n` of
/// the second row to `cell`.
fn world(cell: Option<&[u8]>) -> (World, RowSetId) {
    let mut world = World::new(1, TabletConfig::default());
    let column = |(id, name)| ColumnSchema::new(id, name, DataType::Int32);
    world.create(Schema::new([(0, "k"), (1, "n")].map(column).to_vec(), 1).unwrap()).unwrap();
    let row = |kind, key| (kind, vec![Value::int(key), Value::int(10 * key)]);
    world.write(&[0, 1, 2].map(|key| row(RowOpKind::Insert, key))).unwrap();
    assert!(world.job(JobKind::FlushRows, &mut |_| {}).unwrap());
    world.write(&[row(RowOpKind::Update, 0)]).unwrap();
    let rowset = world.replica().tablet().state().disk[0].clone();
    let mut change = Vec::new();
    RowChangeBuilder::update(&mut change).set(ColumnId(1), cell);
    rowset.mutate(1, world.timestamp_of(2), &change).unwrap();
    let id = rowset.meta().id;
    assert!(world.job(JobKind::FlushDeltas(id), &mut |_| {}).unwrap());
    (world, id)
}

/// Returns the error of a scan of `n`.
fn scan_error(world: &World) -> Error {
    let tablet = world.replica().tablet();
    let mut scan = tablet.scan(&ScanSpec::latest(vec![(&tablet.schema().columns()[1]).into()])).unwrap();
    scan.next_block().expect_err("the scan reads the cell")
}

#[test]
fn a_cell_that_does_not_fit_its_column_fails_scans_and_compactions() {
    for cell in [None, Some(&b"12345"[..])] {
        let (mut world, rowset) = world(cell);
        assert_eq!(scan_error(&world).kind, ErrorKind::Corrupt);
        for job in [JobKind::MajorDeltaCompaction(rowset), JobKind::Compact(vec![rowset])] {
            let error = world.job(job.clone(), &mut |_| {}).unwrap_err();
            assert_eq!(error.kind, ErrorKind::Corrupt, "{job:?}: {error}");
            assert!(error.message.contains("row change: "), "{job:?}: {error}");
        }
        assert_eq!(world.replica().failure(), None);
        assert_eq!(misplaced_files(&world.disk), Vec::<String>::new());
    }
}
