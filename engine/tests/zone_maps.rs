//! Pages that zone maps exclude are not read, and the result of a scan is the same as if they were.
//!
//! There is no cache, so that every page read is a read of the disk.

use engine::config::TabletConfig;
use engine::disk::mem::DiskOpKind;
use engine::ids::ColumnId;
use engine::replica::JobKind;
use engine::schema::predicate::{Predicate, PredicateKind};
use engine::schema::row_block::ProjectedColumn;
use engine::schema::row_ops::RowOpKind;
use engine::schema::{ColumnSchema, DataType, Encoding, PhysicalType, Schema};
use engine::tablet::scan::{ScanSpec, SnapshotChoice};
use engine::time::Timestamp;
use engine_testkit::world::{Value, World};

const ROWS: i32 = 400;
/// Rows whose cells are all NULL, in addition to every seventh.
const NULLS: std::ops::Range<i32> = 200..260;
const TYPES: [DataType; 13] = [
    DataType::Int16,
    DataType::Int32,
    DataType::Int64,
    DataType::Uint16,
    DataType::Uint32,
    DataType::Uint64,
    DataType::Float,
    DataType::Double,
    DataType::String,
    DataType::Binary,
    DataType::UnixtimeMicros,
    DataType::Date,
    DataType::Int128,
];

/// Returns the cell of a number from 0 on: in the number's order, and negative at first if the type has negative
/// values.
fn cell(ty: DataType, number: i32) -> Vec<u8> {
    let signed = number - 150;
    match ty.physical() {
        PhysicalType::Int16 => (signed as i16).to_le_bytes().to_vec(),
        PhysicalType::Int32 => signed.to_le_bytes().to_vec(),
        PhysicalType::Int64 => (i64::from(signed) << 33).to_le_bytes().to_vec(),
        PhysicalType::Int128 => (i128::from(signed) << 70).to_le_bytes().to_vec(),
        PhysicalType::Uint16 => (number as u16).to_le_bytes().to_vec(),
        PhysicalType::Uint32 => (number as u32).to_le_bytes().to_vec(),
        PhysicalType::Uint64 => (number as u64).to_le_bytes().to_vec(),
        PhysicalType::Float => (signed as f32 / 3.0).to_le_bytes().to_vec(),
        PhysicalType::Double => (f64::from(signed) / 3.0).to_le_bytes().to_vec(),
        // The first bytes are equal. The bounds of longer cells would be shortened, and pages read in vain.
        PhysicalType::Binary => {
            format!("common prefix {number:05}{}", "x".repeat(number as usize % 40)).into_bytes()
        }
        other => panic!("{other:?} has too few values"),
    }
}

fn number(key: i32) -> Option<i32> {
    (key % 7 != 3 && !NULLS.contains(&key)).then_some(key)
}

/// A table `k INT32`, `c` of the type, `other INT32`; all rows on disk in one rowset, in the order of `c`.
struct Table {
    world: World,
    ty: DataType,
    /// Cells of `c`, by key; `None` is NULL.
    cells: Vec<Option<i32>>,
}

impl Table {
    fn new(ty: DataType) -> Table {
        // Scans read row by row: a batch of several rows may extend into a page that need not be read.
        let config = TabletConfig {
            rowset_roll_bytes: 1 << 20,
            job_step_rows: 100,
            scan_block_rows: 1,
            ..TabletConfig::tiny()
        };
        let mut world = World::new(1, config);
        world.cache_bytes = 0;
        let mut column = ColumnSchema::new(1, "c", ty).nullable();
        column.block_bytes = 64;
        if ty.physical() == PhysicalType::Binary {
            // A dictionary would be read too.
            column.encoding = Encoding::Plain;
        }
        let key = ColumnSchema::new(0, "k", DataType::Int32);
        let other = ColumnSchema::new(2, "other", DataType::Int32);
        world.create(Schema::new(vec![key, column, other], 1).unwrap()).unwrap();
        let cells: Vec<Option<i32>> = (0..ROWS).map(number).collect();
        let mut table = Table { world, ty, cells: cells.clone() };
        let rows: Vec<_> = (0..ROWS).zip(cells).map(|(key, cell)| table.row(key, cell)).collect();
        table.world.write(&rows).unwrap();
        table.job(JobKind::FlushRows);
        table
    }

    fn row(&self, key: i32, number: Option<i32>) -> (RowOpKind, Vec<Value>) {
        let cell = number.map_or(Value::Null, |number| Value::Bytes(cell(self.ty, number)));
        (RowOpKind::Upsert, vec![Value::int(key), cell, Value::int(-key)])
    }

    fn set(&mut self, key: i32, number: Option<i32>) {
        let row = self.row(key, number);
        self.world.write(&[row]).unwrap();
        self.cells[key as usize] = number;
    }

    fn job(&mut self, kind: JobKind) {
        assert!(self.world.job(kind, &mut |_| {}).unwrap());
    }

    fn rowset(&self) -> u64 {
        self.world.replica().tablet().state().disk[0].meta().id
    }

    /// Returns the keys of the matching rows, and the number of disk reads.
    fn scan(&self, kind: &PredicateKind, at: SnapshotChoice) -> (Vec<i32>, u64) {
        let tablet = self.world.replica().tablet();
        let predicates = vec![Predicate::new(ColumnId(1), kind.clone())];
        let projection = tablet.schema().columns()[1..2].iter().map(Into::into).collect();
        let keys: Vec<ProjectedColumn> = tablet.schema().columns()[..1].iter().map(Into::into).collect();
        let spec = ScanSpec { predicates, snapshot: at, ..ScanSpec::latest(projection) };
        let before = self.world.disk.op_count_of(DiskOpKind::Read);
        read(tablet.scan(&spec).unwrap());
        let reads = self.world.disk.op_count_of(DiskOpKind::Read) - before;
        let found = read(tablet.scan(&ScanSpec { projection: keys.into(), ..spec }).unwrap());
        (found.iter().map(|cell| i32::from_le_bytes(cell[..].try_into().unwrap())).collect(), reads)
    }

    /// Returns the number of pages of `c` that match, by the cells flushed to them.
    fn pages(&self, passes: impl Fn(&[Option<i32>]) -> bool) -> u64 {
        let layout = self.world.replica().tablet().state().disk[0].layout().unwrap();
        let stream = layout.iter().find(|stream| stream.meta.stream == 1).unwrap();
        let cells =
            |first: u32, rows: u32| (first as i32..(first + rows) as i32).map(number).collect::<Vec<_>>();
        stream.pages.iter().filter(|page| passes(&cells(page.first_row, page.rows))).count() as u64
    }

    /// Returns the number of pages whose bounds overlap the range.
    fn pages_with(&self, from: i32, to: i32) -> u64 {
        self.pages(|cells| {
            let known = || cells.iter().copied().flatten();
            known().min().is_some_and(|low| low < to) && known().max().is_some_and(|high| high >= from)
        })
    }

    fn expected(&self, passes: impl Fn(Option<i32>) -> bool) -> Vec<i32> {
        (0..ROWS).filter(|key| passes(self.cells[*key as usize])).collect()
    }

    /// Returns the reads of a scan without pages of columns: indexes, and deltas.
    fn reads_without_pages(&self) -> u64 {
        let (found, reads) = self.scan(&range(self.ty, 900, 1000), SnapshotChoice::Latest);
        assert_eq!(found, [], "{:?}: nothing is so large", self.ty);
        reads
    }
}

fn read(mut scan: engine::tablet::scan::Scan) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    while let Some(block) = scan.next_block().unwrap() {
        found.extend((0..block.rows).map(|row| block.columns[0].raw(row).to_vec()));
    }
    found
}

fn range(ty: DataType, from: i32, to: i32) -> PredicateKind {
    PredicateKind::Range { lower: Some(cell(ty, from)), upper: Some(cell(ty, to)) }
}

#[test]
fn only_pages_that_may_match_are_read() {
    for ty in TYPES {
        let table = Table::new(ty);
        let (nothing, all) = (table.reads_without_pages(), table.pages(|_| true));
        assert!(all >= 5, "{ty:?}: {all} pages");
        for (from, to) in [(0, 1), (20, 21), (100, 140), (190, 270), (205, 255), (399, 400), (0, 400)] {
            let (found, reads) = table.scan(&range(ty, from, to), SnapshotChoice::Latest);
            assert_eq!(
                found,
                table.expected(|n| n.is_some_and(|n| n >= from && n < to)),
                "{ty:?} {from} to {to}"
            );
            assert_eq!(reads - nothing, table.pages_with(from, to), "{ty:?} {from} to {to} of {all} pages");
        }
        let equal = PredicateKind::Equal(cell(ty, 50));
        assert_eq!(
            table.scan(&equal, SnapshotChoice::Latest),
            (vec![50], nothing + table.pages_with(50, 51))
        );
        let list = PredicateKind::InList(vec![cell(ty, 5), cell(ty, 350)]);
        let pages = table.pages_with(5, 6) + table.pages_with(350, 351);
        assert_eq!(table.scan(&list, SnapshotChoice::Latest), (vec![5, 350], nothing + pages), "{ty:?}");
    }
}

#[test]
fn pages_are_skipped_by_their_nulls() {
    for ty in TYPES {
        let table = Table::new(ty);
        let (nothing, all) = (table.reads_without_pages(), table.pages(|_| true));
        let (found, reads) = table.scan(&PredicateKind::IsNotNull, SnapshotChoice::Latest);
        assert_eq!(found, table.expected(|n| n.is_some()), "{ty:?}");
        assert_eq!(reads - nothing, table.pages_with(0, ROWS), "{ty:?}: not those of {all} with NULLs alone");
        let (found, reads) = table.scan(&PredicateKind::IsNull, SnapshotChoice::Latest);
        assert_eq!(found, table.expected(|n| n.is_none()), "{ty:?}");
        let with_nulls = table.pages(|cells| cells.contains(&None));
        assert_eq!(reads - nothing, with_nulls, "{ty:?}: not those of {all} without NULLs");
    }
}

/// A delta may move a cell into a range that its page's bounds exclude: only then the page is read.
#[test]
fn pages_with_deltas_of_the_column_are_read() {
    for ty in TYPES {
        let mut table = Table::new(ty);
        let nothing = table.reads_without_pages();
        let wanted = range(ty, 300, 310);
        let in_range = |n: Option<i32>| n.is_some_and(|n| (300..310).contains(&n));
        let (before, pages) = (table.expected(in_range), table.pages_with(300, 310));
        let then = Timestamp(table.world.clock + 1);
        // Another column and a deletion: neither can make a row match.
        let other = (RowOpKind::Update, vec![Value::int(4), Value::Unset, Value::int(7)]);
        let death = (RowOpKind::Delete, vec![Value::int(60)]);
        table.world.write(&[other, death]).unwrap();
        assert_eq!(table.scan(&wanted, SnapshotChoice::Latest), (before.clone(), nothing + pages), "{ty:?}");
        // Into the range: from another value, from NULL, from a page of NULLs; and out of it.
        for (key, number) in [(10, 305), (17, 301), (230, 309), (304, 5)] {
            table.set(key, Some(number));
        }
        let after = table.expected(in_range);
        let (found, reads) = table.scan(&wanted, SnapshotChoice::Latest);
        assert_eq!(found, after, "{ty:?}");
        assert!((1..=3).contains(&(reads - nothing - pages)), "{ty:?}: {reads} reads");
        for job in ["in memory", "in a file", "in the column", "in the base"] {
            match job {
                "in a file" => table.job(JobKind::FlushDeltas(table.rowset())),
                "in the column" => table.job(JobKind::MajorDeltaCompaction(table.rowset())),
                "in the base" => table.job(JobKind::Compact(vec![table.rowset()])),
                _ => {}
            }
            let now = Timestamp(table.world.clock + 1);
            assert_eq!(table.scan(&wanted, SnapshotChoice::Latest).0, after, "{ty:?}, changes {job}");
            assert_eq!(table.scan(&wanted, SnapshotChoice::At(now)).0, after, "{ty:?}, changes {job}");
            assert_eq!(
                table.scan(&wanted, SnapshotChoice::At(then)).0,
                before,
                "{ty:?} as it was, changes {job}"
            );
            table.world.reopen().unwrap();
        }
    }
}
