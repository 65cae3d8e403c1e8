//! Column files and disk rowsets: writing a row, scanning one, finding one.
//!
//! Run with `cargo bench -p benches --bench cfile`. The rows are like those of `kudu perf loadgen` with ten
//! columns; the disk is in memory, so what is measured is CPU.

use std::sync::Arc;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use engine::cfile::cache::PageCache;
use engine::cfile::frame::Identity;
use engine::disk::Disk;
use engine::disk::mem::MemDisk;
use engine::ids::{ColumnId, Uuid};
use engine::schema::block::{ProjectedColumn, RowBlock};
use engine::schema::predicate::{Predicate, PredicateKind};
use engine::schema::{ColumnSchema, DataType, Schema};
use engine::tablet::diskrowset::{ColumnFileConfig, DiskRowSet, DiskRowSetWriter, RowSetMemory, RowSetMeta};
use engine::tablet::rowset::{ProbeStats, RowSetScanSpec, Snapshot};
use engine::time::Timestamp;

const TABLET: Uuid = Uuid([1; 16]);
const ROWS: u64 = 100_000;
const BATCH: u64 = 1000;
const STATUS: u32 = 4;

fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

fn schema() -> Schema {
    let column = |id: u32| match id {
        0 => ColumnSchema::new(id, "key", DataType::Int64),
        9 => ColumnSchema::new(id, "string_val", DataType::String),
        id => match id % 4 {
            1 => ColumnSchema::new(id, &format!("i{id}"), DataType::Int32),
            2 => ColumnSchema::new(id, &format!("l{id}"), DataType::Int64).nullable(),
            3 => ColumnSchema::new(id, &format!("d{id}"), DataType::Double),
            _ => ColumnSchema::new(id, &format!("s{id}"), DataType::String),
        },
    };
    Schema::new((0..10).map(column).collect(), 1).expect("the schema is sound")
}

fn cell(id: u32, ty: DataType, row: u64) -> Vec<u8> {
    let value = mix(row ^ u64::from(id) << 50);
    match (id, ty) {
        (0, _) => row.to_le_bytes().to_vec(),
        (9, _) => format!("{value}.{row}").into_bytes(),
        (_, DataType::Int32) => ((value % 100_000) as u32).to_le_bytes().to_vec(),
        (_, DataType::Int64) => (value % 1_000_000).to_le_bytes().to_vec(),
        (_, DataType::Double) => ((value % 10_000) as f64 / 100.0).to_le_bytes().to_vec(),
        _ => format!("status-{}", value % 50).into_bytes(),
    }
}

fn key(row: u64) -> [u8; 8] {
    (row ^ 1 << 63).to_be_bytes()
}

struct Fixture {
    schema: Schema,
    blocks: Vec<RowBlock>,
    keys: Vec<[u8; 8]>,
}

impl Fixture {
    fn new() -> Fixture {
        let schema = schema();
        let projection: Vec<ProjectedColumn> = schema.columns().iter().map(ProjectedColumn::from).collect();
        let block = |start: u64| {
            let mut block = RowBlock::new(&projection);
            for row in start..start + BATCH {
                let cells: Vec<Vec<u8>> = schema.columns().iter().map(|c| cell(c.id.0, c.ty, row)).collect();
                block.push_row(cells.iter().map(|cell| Some(&cell[..])));
            }
            block
        };
        let blocks = (0..ROWS).step_by(BATCH as usize).map(block).collect();
        Fixture { schema, blocks, keys: (0..ROWS).map(key).collect() }
    }

    fn write(&self, disk: &MemDisk) -> RowSetMeta {
        let (data, identity) = (Arc::new(disk.clone()), Identity { tablet: TABLET, rowset: 1 });
        let config = ColumnFileConfig::default();
        let mut writer =
            DiskRowSetWriter::new(data, "d/1", identity, &self.schema, &config).expect("it is new");
        for (block, keys) in self.blocks.iter().zip(self.keys.chunks(BATCH as usize)) {
            let first = writer.rows();
            let keys: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
            writer.append(block, &keys).expect("rows are in order");
            for row in first..writer.rows() {
                writer.undo(row, Timestamp(10 + u64::from(first)), &[1]).expect("rows are in order");
            }
        }
        writer.finish(Timestamp(1 << 40)).expect("the disk does not fail")
    }
}

fn disk() -> MemDisk {
    let disk = MemDisk::new(1);
    disk.create_dir("d").expect("the disk is empty");
    disk
}

fn count(set: &DiskRowSet, spec: &RowSetScanSpec) -> usize {
    let mut scan = set.scan(spec).expect("the rowset is sound");
    let mut rows = 0;
    while let Some(scanned) = scan.next().expect("the rowset is sound") {
        rows += std::hint::black_box(scanned.block).rows;
    }
    rows
}

fn rowset(c: &mut Criterion) {
    let fixture = Fixture::new();
    let mut group = c.benchmark_group("rowset");
    group.throughput(Throughput::Elements(ROWS));
    group.bench_function("write", |b| b.iter(|| fixture.write(&disk())));
    let disk = disk();
    let meta = fixture.write(&disk);
    let open = || {
        let (data, cache) = (Arc::new(disk.clone()), PageCache::new(1 << 30));
        DiskRowSet::open(data, TABLET, meta.clone(), &fixture.schema, cache, RowSetMemory::default())
            .expect("the rowset is sound")
    };
    let spec = RowSetScanSpec {
        columns: fixture.schema.columns().iter().map(ProjectedColumn::from).collect(),
        predicates: Arc::new([]),
        lower_key: None,
        upper_key: None,
        snapshot: Snapshot { before: Timestamp::MAX },
        diff_from: None,
        want_keys: false,
        block_rows: 1024,
    };
    group.bench_function("scan cold", |b| b.iter_with_setup(open, |set| count(&set, &spec)));
    let set = open();
    group.bench_function("scan cached", |b| b.iter(|| count(&set, &spec)));
    let old = RowSetScanSpec { snapshot: Snapshot { before: Timestamp(ROWS / 2) }, ..spec.clone() };
    group.bench_function("scan an old snapshot", |b| b.iter(|| count(&set, &old)));
    let status = Predicate::new(ColumnId(STATUS), PredicateKind::Equal(b"status-7".to_vec()));
    let some = RowSetScanSpec { predicates: Arc::new([status]), ..spec.clone() };
    group.bench_function("scan one row in fifty", |b| b.iter(|| count(&set, &some)));
    group.throughput(Throughput::Elements(1));
    let mut next = 0;
    group.bench_function("find", |b| {
        b.iter(|| {
            next = mix(next + 1) >> 1;
            set.find(&key(next % ROWS), &mut ProbeStats::default()).expect("the rowset is sound")
        });
    });
    group.finish();
}

criterion_group!(benches, rowset);
criterion_main!(benches);
