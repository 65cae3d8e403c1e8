//! TPC-H's lineitem: a scan of Q1's six columns and the bytes on disk, beside Parquet files with the same rows.
//!
//! Run with `cargo bench -p benches --bench lineitem`; it prints the sizes first. Both sides read from memory on one
//! core and produce columns in memory: Arrow arrays there, column blocks of Arrow's layout here. Caches do not help:
//! every page is read, checked and decoded again, as in the `parquet` crate.

use benches::lineitem::{Q1, batch};
use benches::sample_tables;
use bytes::Bytes;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use engine::config::TabletConfig;
use engine::disk::Disk;
use engine::replica::JobKind;
use engine::schema::Compression;
use engine::schema::row_block::ColumnBlock;
use engine::schema::row_ops::RowOpKind;
use engine_testkit::world::{Rows, Value, World, wire_columns};
use node::cli::lineitem::{TablePart, schema};
use nyala_client::arrow::arrow_schema;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::arrow::{ArrowWriter, ProjectionMask};
use parquet::basic::{Compression as ParquetCompression, ZstdLevel};
use parquet::file::properties::WriterProperties;

/// TPC-H scale factor; 1 is six million rows.
const SCALE: f64 = 0.05;
const BATCH: usize = 1_000;

/// Returns the table's rows in blocks of columns.
fn rows() -> Vec<Vec<ColumnBlock>> {
    let mut part = TablePart::new(SCALE, 1, 1).expect("the schema is sound");
    let mut blocks = Vec::new();
    while let Some(block) = part.next(BATCH) {
        blocks.push(block.into_iter().flatten().collect());
    }
    blocks
}

fn parquet_file(blocks: &[Vec<ColumnBlock>], compression: ParquetCompression) -> Bytes {
    let schema = schema().expect("the schema is sound");
    let arrow = arrow_schema(schema.columns());
    let properties = WriterProperties::builder().set_compression(compression).build();
    let mut file = Vec::new();
    let mut writer = ArrowWriter::try_new(&mut file, arrow, Some(properties)).expect("memory takes it");
    for block in blocks {
        writer.write(&batch(block)).expect("memory takes it");
    }
    writer.close().expect("memory takes it");
    file.into()
}

fn read_parquet(file: &Bytes) -> usize {
    let builder = ParquetRecordBatchReaderBuilder::try_new(file.clone()).expect("a sound file");
    let mask = ProjectionMask::columns(builder.parquet_schema(), Q1);
    let reader = builder.with_projection(mask).with_batch_size(8192).build().expect("a sound file");
    reader.map(|batch| std::hint::black_box(batch.expect("a sound file")).num_rows()).sum()
}

fn tablet(blocks: &[Vec<ColumnBlock>], compression: Compression) -> World {
    let schema = schema().expect("the schema is sound");
    let mut config = TabletConfig::default();
    config.columns.compression = compression;
    let mut world = World::new(1, config);
    world.cache_bytes = 0;
    world.create(schema.clone()).expect("the disk does not fail");
    let columns = wire_columns(&schema);
    for block in blocks {
        let mut rows = Rows::default();
        for row in 0..block[0].len() {
            let cells: Vec<Value> = block.iter().map(|c| Value::Bytes(c.raw(row).to_vec())).collect();
            rows.add(&columns, RowOpKind::Insert, &cells);
        }
        sample_tables::run(&mut world, rows.op(&columns));
    }
    sample_tables::job(&mut world, JobKind::FlushRows);
    world
}

fn disk_bytes(world: &World) -> u64 {
    let files = world.replica().meta().rowsets.iter().flat_map(|rowset| rowset.files().collect::<Vec<_>>());
    files.map(|file| world.disk.open(file).expect("it is there").len().expect("it is there")).sum()
}

fn read_tablet(world: &World) -> usize {
    sample_tables::scan(world, &Q1, &[])
}

fn lineitem(c: &mut Criterion) {
    let blocks = rows();
    let count: usize = blocks.iter().map(|block| block[0].len()).sum();
    let zstd = ZstdLevel::try_new(3).expect("a legal level");
    let kinds = [
        ("plain", Compression::None, ParquetCompression::UNCOMPRESSED),
        ("snappy", Compression::Snappy, ParquetCompression::SNAPPY),
        ("lz4", Compression::Lz4, ParquetCompression::LZ4_RAW),
        ("zstd", Compression::Zstd, ParquetCompression::ZSTD(zstd)),
    ];
    let mut group = c.benchmark_group("lineitem");
    group.sample_size(10);
    group.throughput(Throughput::Elements(count as u64));
    for (name, ours, theirs) in kinds {
        let (world, file) = (tablet(&blocks, ours), parquet_file(&blocks, theirs));
        let (mine, other) = (disk_bytes(&world), file.len() as u64);
        let per_row = |bytes: u64| bytes as f64 / count as f64;
        println!(
            "{name}: {:.1} bytes a row on disk, Parquet {:.1}: ratio {:.2}",
            per_row(mine),
            per_row(other),
            mine as f64 / other as f64
        );
        group.bench_function(format!("nyala {name}"), |b| {
            b.iter(|| assert_eq!(read_tablet(&world), count));
        });
        group.bench_function(format!("parquet {name}"), |b| {
            b.iter(|| assert_eq!(read_parquet(&file), count));
        });
    }
    group.finish();
}

criterion_group!(benches, lineitem);
criterion_main!(benches);
