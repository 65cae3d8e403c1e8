//! Rows like those of `kudu perf loadgen` with ten columns, as a disk rowset in memory.

use std::sync::Arc;

use engine::cfile::cache::PageCache;
use engine::cfile::page_file::PageOwner;
use engine::disk::Disk;
use engine::disk::mem::MemDisk;
use engine::ids::{ColumnId, Uuid};
use engine::schema::predicate::{Predicate, PredicateKind};
use engine::schema::row_block::{ProjectedColumn, RowBlock};
use engine::schema::{ColumnSchema, DataType, Schema};
use engine::tablet::diskrowset::{
    ColumnFileConfig, DiskRowSet, DiskRowSetWriter, RowSetMeta, RowSetTrackers,
};
use engine::tablet::rowset::RowSetScanSpec;
use engine::time::Timestamp;

use crate::mix;

const TABLET: Uuid = Uuid([1; 16]);
const BATCH: u64 = 1000;
const STATUS: u32 = 4;

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

/// Returns the encoded key of a row.
pub fn key(row: u64) -> [u8; 8] {
    (row ^ 1 << 63).to_be_bytes()
}

/// Generated rows in memory.
pub struct Loadgen {
    schema: Schema,
    blocks: Vec<RowBlock>,
    keys: Vec<[u8; 8]>,
}

impl Loadgen {
    /// Generates `rows` rows, a multiple of a thousand.
    pub fn new(rows: u64) -> Loadgen {
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
        let blocks = (0..rows).step_by(BATCH as usize).map(block).collect();
        Loadgen { schema, blocks, keys: (0..rows).map(key).collect() }
    }

    /// Writes the rows as a rowset, each with the UNDO delta of its insert.
    pub fn write(&self, disk: &MemDisk) -> RowSetMeta {
        let (data, identity) = (Arc::new(disk.clone()), PageOwner { tablet: TABLET, rowset: 1 });
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

    /// Opens the written rowset with an empty page cache.
    pub fn open(&self, disk: &MemDisk, meta: &RowSetMeta) -> DiskRowSet {
        let (data, cache) = (Arc::new(disk.clone()), PageCache::new(1 << 30));
        DiskRowSet::open(data, TABLET, meta.clone(), &self.schema, cache, RowSetTrackers::default())
            .expect("the rowset is sound")
    }

    /// Returns a scan of every column of every row.
    pub fn all(&self) -> RowSetScanSpec {
        RowSetScanSpec::latest(self.schema.columns().iter().map(ProjectedColumn::from).collect(), 1024)
    }

    /// Returns a scan of every column of one row in fifty.
    pub fn some(&self) -> RowSetScanSpec {
        let status = Predicate::new(ColumnId(STATUS), PredicateKind::Equal(b"status-7".to_vec()));
        RowSetScanSpec { predicates: Arc::new([status]), ..self.all() }
    }
}

/// Returns an empty disk for a rowset.
pub fn disk() -> MemDisk {
    let disk = MemDisk::new(1);
    disk.create_dir("d").expect("the disk is empty");
    disk
}

/// Runs a scan; returns the number of rows.
pub fn count(set: &DiskRowSet, spec: &RowSetScanSpec) -> usize {
    let mut scan = set.scan(spec).expect("the rowset is sound");
    let mut rows = 0;
    while let Some(scanned) = scan.next().expect("the rowset is sound") {
        rows += std::hint::black_box(scanned.block).rows;
    }
    rows
}
