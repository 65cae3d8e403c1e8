//! Golden files of a tablet, from when the formats were fixed: they can still be read, and are still written the same.
//!
//! ```text
//!   tests/golden/tablet.bin    every file of a tablet's disk: superblock, rowsets, deltas, columns, log, votes
//!   tests/golden/tablet-0.1.bin  the same of version 0.1, whose indexes of deltas do not name the columns changed
//!   tests/golden/rows.txt      results of scans, at each snapshot timestamp
//! ```
//!
//! A failure means that servers with old data would find files they cannot read. A new format gets a new version
//! number and files of its own; these stay. `REWRITE=1` rewrites them when only bytes change, for example because a
//! compressor compresses better.

#![allow(clippy::disallowed_methods, reason = "golden files are in the source tree")]

use std::fmt::Write;

use engine::codec;
use engine::config::TabletConfig;
use engine::disk::{self, Disk};
use engine::replica::JobKind;
use engine::schema::format_cell;
use engine::schema::row_block::ProjectedColumn;
use engine::schema::row_ops::RowOpKind;
use engine::schema::{ColumnSchema, Compression, DataType, Encoding, Schema};
use engine::tablet::scan::{ScanSpec, SnapshotChoice};
use engine_testkit::world::{self, Value, World};

const FILES: &str = "tests/golden/tablet.bin";
/// Written by version 0.1; never rewritten.
const FILES_0_1: &str = "tests/golden/tablet-0.1.bin";
const ROWS: &str = "tests/golden/rows.txt";
const TIMESTAMPS: u64 = 9;

/// Returns a schema with every physical type, encoding and codec.
fn schema() -> Schema {
    use Compression::{Lz4, None as Plain, Snappy, Zlib, Zstd};
    let kinds = [
        ("k1", DataType::Int32, Encoding::Auto, Plain),
        ("k2", DataType::String, Encoding::Auto, Plain),
        ("bool", DataType::Bool, Encoding::Rle, Plain),
        ("i8", DataType::Int8, Encoding::Rle, Plain),
        ("i16", DataType::Int16, Encoding::BitShuffle, Lz4),
        ("i64", DataType::Int64, Encoding::Plain, Snappy),
        ("i128", DataType::Int128, Encoding::BitShuffle, Zlib),
        ("f32", DataType::Float, Encoding::BitShuffle, Zstd),
        ("f64", DataType::Double, Encoding::Plain, Lz4),
        ("dict", DataType::String, Encoding::Dict, Plain),
        ("plain", DataType::Binary, Encoding::Plain, Zstd),
        ("prefix", DataType::String, Encoding::Prefix, Plain),
    ];
    let column =
        |(id, (name, ty, encoding, compression)): (usize, &(&str, DataType, Encoding, Compression))| {
            let mut column = ColumnSchema::new(id as u32, name, *ty);
            (column.encoding, column.compression) = (*encoding, *compression);
            if id > 1 && id % 2 == 1 { column.nullable() } else { column }
        };
    Schema::new(kinds.iter().enumerate().map(column).collect(), 2).expect("it is a good schema")
}

fn cells(n: i32) -> Vec<Value> {
    let bytes = |bytes: &[u8]| Value::Bytes(bytes.to_vec());
    let null_or = |value: Value| if n % 5 == 0 { Value::Null } else { value };
    vec![
        Value::int(n / 3),
        Value::text(&format!("key {n:03}")),
        bytes(&[u8::from(n % 16 < 8)]),
        null_or(bytes(&[(n / 10) as u8])),
        bytes(&(n as i16 * -7).to_le_bytes()),
        null_or(bytes(&(i64::from(n) << 33).to_le_bytes())),
        bytes(&(i128::from(n) << 70).to_le_bytes()),
        null_or(bytes(&(n as f32 / 4.0).to_le_bytes())),
        bytes(&(f64::from(n) / 8.0).to_le_bytes()),
        null_or(Value::text(["red", "green", "blue"][n as usize % 3])),
        bytes(&[n as u8, 0, 0xff, 7].repeat(n as usize % 4)),
        null_or(Value::text(&format!("https://example.org/{}/{n}", n / 8))),
    ]
}

/// Returns an update: the key's cells, and one more at the column's place.
fn update(n: i32, column: usize, value: Value) -> (RowOpKind, Vec<Value>) {
    let mut row = vec![Value::Unset; column + 1];
    row[..2].clone_from_slice(&cells(n)[..2]);
    row[column] = value;
    (RowOpKind::Update, row)
}

fn insert(n: i32) -> (RowOpKind, Vec<Value>) {
    (RowOpKind::Insert, cells(n))
}

fn delete(n: i32) -> (RowOpKind, Vec<Value>) {
    (RowOpKind::Delete, cells(n)[..2].to_vec())
}

/// Builds a tablet with everything that is stored on disk: ghost rows, several rowsets, delta files, a column file, a
/// log to replay.
fn tablet() -> World {
    let config = TabletConfig { rowset_roll_bytes: 1 << 20, ..TabletConfig::tiny() };
    let mut world = World::new(1, config);
    world.create(schema()).unwrap();
    let write = |world: &mut World, ops: &[_]| drop(world.write(ops).unwrap());
    let job = |world: &mut World, kind| assert!(world.job(kind, &mut |_| {}).unwrap());
    write(&mut world, &(0..60).map(insert).collect::<Vec<_>>());
    write(&mut world, &[update(3, 9, Value::text("violet")), delete(4), delete(5)]);
    job(&mut world, JobKind::FlushRows);
    write(&mut world, &[update(7, 8, Value::Bytes(1.5f64.to_le_bytes().to_vec())), delete(8), insert(5)]);
    job(&mut world, JobKind::FlushDeltas(1));
    write(&mut world, &[update(7, 9, Value::Null), update(11, 9, Value::text("white"))]);
    job(&mut world, JobKind::FlushDeltas(1));
    job(&mut world, JobKind::MajorDeltaCompaction(1));
    write(&mut world, &[update(12, 3, Value::Bytes(vec![1])), insert(8)]);
    job(&mut world, JobKind::FlushDeltas(1));
    write(&mut world, &(60..70).map(insert).collect::<Vec<_>>());
    job(&mut world, JobKind::FlushRows);
    write(&mut world, &[insert(90), update(61, 9, Value::text("black")), delete(62)]);
    world
}

/// Collects all files with their paths.
fn files_in(disk: &dyn Disk, dir: &str, into: &mut Vec<(String, Vec<u8>)>) {
    for name in disk.list(dir).unwrap() {
        let path = if dir.is_empty() { name } else { format!("{dir}/{name}") };
        match disk::read_file(disk, &path) {
            Ok(bytes) => into.push((path, bytes)),
            Err(_) => files_in(disk, &path, into),
        }
    }
}

fn pack(world: &World) -> Vec<u8> {
    let mut files = Vec::new();
    files_in(&world.disk, "", &mut files);
    postcard::to_stdvec(&files).unwrap()
}

/// Returns true for files of rows. Log and votes are other modules' files, which must only remain readable.
fn is_of_rows(path: &str) -> bool {
    path.starts_with("data/") || path.starts_with("tablet-meta/")
}

fn unpack(bytes: &[u8]) -> World {
    let files: Vec<(String, Vec<u8>)> = postcard::from_bytes(bytes).unwrap();
    let world = World::new(2, TabletConfig::tiny());
    for (path, bytes) in files {
        world.disk.create_dir(disk::parent(&path)).unwrap();
        let file = world.disk.create(&path).unwrap();
        file.append(&bytes).unwrap();
    }
    world
}

/// Formats all rows at each timestamp, and those that match a predicate.
fn show(world: &World, timestamps: &[engine::time::Timestamp]) -> String {
    let tablet = world.replica().tablet();
    let schema = tablet.schema();
    let projection: Vec<ProjectedColumn> = schema.columns().iter().map(Into::into).collect();
    let mut text = String::new();
    for (n, at) in timestamps.iter().enumerate() {
        writeln!(text, "at {}", n + 1).unwrap();
        let spec = ScanSpec {
            snapshot: SnapshotChoice::At(*at),
            ordered: true,
            ..ScanSpec::latest(projection.clone())
        };
        let mut scan = tablet.scan(&spec).unwrap();
        while let Some(block) = scan.next_block().unwrap() {
            for row in 0..block.rows {
                let cell = |(column, cells): (&ColumnSchema, &engine::schema::row_block::ColumnBlock)| {
                    let shown = cells.cell(row).map(|cell| format_cell(column.ty, column.attributes, cell));
                    shown.unwrap_or("NULL".to_string())
                };
                let shown: Vec<String> = schema.columns().iter().zip(&block.columns).map(cell).collect();
                writeln!(text, "{}", shown.join(" ")).unwrap();
            }
        }
    }
    text
}

fn timestamps(world: &World) -> Vec<engine::time::Timestamp> {
    (1..=TIMESTAMPS).map(|n| world.timestamp_of(n)).collect()
}

/// Reads a golden file, after rewriting it if requested.
fn golden(path: &str, now: &[u8]) -> Vec<u8> {
    if std::env::var_os("REWRITE").is_some() {
        std::fs::write(path, now).unwrap();
    }
    std::fs::read(path).unwrap()
}

#[test]
fn files_are_written_as_they_were() {
    let world = tablet();
    let (now, then) = (pack(&world), golden(FILES, &pack(&world)));
    let files = |bytes: &[u8]| -> Vec<(String, Vec<u8>)> { postcard::from_bytes(bytes).unwrap() };
    for (path, old) in files(&then).into_iter().filter(|(path, _)| is_of_rows(path)) {
        let new = files(&now).into_iter().find(|(name, _)| *name == path);
        let same = new.is_some_and(|(_, new)| new == old);
        assert!(same, "{path} is written differently: it needs a format version of its own");
    }
    let rows = show(&world, &timestamps(&world));
    assert_eq!(rows.as_bytes(), golden(ROWS, rows.as_bytes()));
}

#[test]
fn files_are_read_as_they_were() {
    for files in [FILES, FILES_0_1] {
        let mut world = unpack(&std::fs::read(files).unwrap());
        world.reopen().unwrap();
        let rows = show(&world, &timestamps(&tablet()));
        assert_eq!(rows.as_bytes(), std::fs::read(ROWS).unwrap(), "{files}");
    }
}

/// Format 2 of the superblock had no column files, format 1 no ancient history mark either.
#[test]
fn superblocks_of_older_formats_are_read() {
    let mut world = World::new(1, TabletConfig::tiny());
    world.create(schema()).unwrap();
    world.write(&(0..9).map(insert).collect::<Vec<_>>()).unwrap();
    assert!(world.job(JobKind::FlushRows, &mut |_| {}).unwrap());
    let now = world.timestamp_of(1).next();
    let rows = show(&world, &[now]);
    let path = format!("tablet-meta/{}", world::TABLET);
    let stored = disk::read_file(&world.disk, &path).unwrap();
    let (version, payload) = codec::unseal(*b"NYTM", 3, &stored).unwrap();
    assert_eq!(version, 3);
    for (version, less) in [(2, &[0][..]), (1, &[0, 0])] {
        let payload = payload.strip_suffix(less).expect("no column file, and no mark");
        disk::replace_file(&world.disk, &path, &codec::seal(*b"NYTM", version, payload)).unwrap();
        world.reopen().unwrap();
        assert_eq!(show(&world, &[now]), rows, "format {version}");
    }
}
