//! `nyala backup …` and `nyala restore` against an embedded cluster: a restored table equals the one backed up.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the test observes the program from outside"
)]

#[path = "common/backup_world.rs"]
mod backup_world;
#[path = "common/embedded.rs"]
mod embedded;

use std::fs;
use std::path::{Path, PathBuf};

use backup_world::World;
use engine::schema::partition_range::PartitionRange;
use engine::schema::row_ops::{ClientCell, RowOpKind};
use engine::schema::{ColumnSchema, DataType, Schema};
use nyala_client::{CreateTable, Table};

/// Returns all of a table that a restore keeps, but its rows.
async fn definition(world: &World, name: &str) -> String {
    let table = world.client.open_table(name).await.expect("a table");
    let mut text = String::new();
    for column in table.schema().columns() {
        let (read, write) = (&column.read_default, &column.write_default);
        let (encoding, compression) = (column.encoding, column.compression);
        text += &format!("{column} {read:?} {write:?} {encoding:?} {compression:?} {}", column.comment);
        text += &format!(" {}\n", column.block_bytes);
    }
    text += &format!("{:?}\n", table.partition_schema().show(table.schema()));
    for token in table.scan_tokens(&Default::default()).await.expect("tablets") {
        let range = token.tablet().partition.range();
        text += &format!("{}\n", table.partition_schema().show_range(table.schema(), &range));
    }
    let settings = (table.owner(), table.comment(), table.num_replicas(), table.extra_config());
    text + &format!("{settings:?}\n")
}

/// Types that a column can have.
const TYPES: [DataType; 20] = [
    DataType::Int8,
    DataType::Int16,
    DataType::Int32,
    DataType::Int64,
    DataType::Uint8,
    DataType::Uint16,
    DataType::Uint32,
    DataType::Uint64,
    DataType::Int128,
    DataType::Bool,
    DataType::Float,
    DataType::Double,
    DataType::String,
    DataType::Varchar,
    DataType::Binary,
    DataType::UnixtimeMicros,
    DataType::Date,
    DataType::Decimal32,
    DataType::Decimal64,
    DataType::Decimal128,
];

/// Returns a cell of a type; `i` selects among values that include the extremes.
fn cell(ty: DataType, i: i64) -> Vec<u8> {
    match ty {
        DataType::String => ["", "a, \"b\"", "ü\n"][i as usize % 3].into(),
        DataType::Varchar => ["", "ééé", "x"][i as usize % 3].into(),
        DataType::Binary => [&b""[..], b"\x00\xff", b"'"][i as usize % 3].into(),
        DataType::Bool => vec![(i % 2) as u8],
        DataType::Float => [f32::NAN, -0.0, f32::MAX][i as usize % 3].to_le_bytes().into(),
        DataType::Double => [f64::NAN, f64::MIN, 5e-324][i as usize % 3].to_le_bytes().into(),
        DataType::UnixtimeMicros => [-1i64, 0, 1_600_000_000_123_456][i as usize % 3].to_le_bytes().into(),
        DataType::Date => [-719_162i32, 0, 2_932_896][i as usize % 3].to_le_bytes().into(),
        DataType::Decimal32 => [-999_999_999i32, 105, 999_999_999][i as usize % 3].to_le_bytes().into(),
        DataType::Decimal64 => {
            [-(10i64.pow(18) - 1), 7, 10i64.pow(18) - 1][i as usize % 3].to_le_bytes().into()
        }
        DataType::Decimal128 => {
            [-(10i128.pow(38) - 1), 7, 10i128.pow(38) - 1][i as usize % 3].to_le_bytes().into()
        }
        _ => {
            let width = ty.width().expect("an integer");
            [vec![0; width], vec![0xff; width], vec![0x7f; width]][i as usize % 3].clone()
        }
    }
}

/// Returns a column of each type beside a key of an identifier and a day.
fn columns() -> Vec<ColumnSchema> {
    let mut columns =
        vec![ColumnSchema::new(0, "id", DataType::Int64), ColumnSchema::new(1, "day", DataType::Int32)];
    for (ty, id) in TYPES.into_iter().zip(2..) {
        let mut column = ColumnSchema::new(id, &format!("c_{}", ty.name().to_lowercase()), ty).nullable();
        match ty {
            DataType::Varchar => column.attributes.length = 5,
            DataType::Decimal32 => (column.attributes.precision, column.attributes.scale) = (9, 2),
            DataType::Decimal64 => (column.attributes.precision, column.attributes.scale) = (18, 0),
            DataType::Decimal128 => (column.attributes.precision, column.attributes.scale) = (38, 10),
            _ => {}
        }
        columns.push(column);
    }
    columns
}

async fn create_table(world: &World) -> Table {
    let schema = Schema::new(columns(), 2).expect("a schema");
    let create = CreateTable::new("sales €", schema).hash(&["id"], 2).expect("a key column");
    let mut create = create.range(&["day"]).expect("a key column");
    let key = |day: i32| ((day as u32) ^ 0x8000_0000).to_be_bytes().to_vec();
    create.ranges =
        [(0, 10), (10, 20)].map(|(a, b)| PartitionRange::new(key(a), key(b)).expect("a range")).into();
    create.comment = Some("of \"all\" types".to_string());
    create.owner = Some("ann".to_string());
    create.extra_config = [("kudu.table.history_max_age_sec".to_string(), "86400".to_string())].into();
    world.client.create_table(&create).await.expect("a new table")
}

/// Returns the cell at this place of a row; the first two are the key.
fn given(kind: RowOpKind, number: i64, at: usize, cell: &[u8]) -> ClientCell<'_> {
    match kind {
        _ if at < 2 => ClientCell::Value(cell),
        RowOpKind::Delete => ClientCell::Unset,
        _ if number % 4 == 3 => ClientCell::Null,
        _ => ClientCell::Value(cell),
    }
}

/// Writes rows whose cells depend on their key and `round`; each fourth has NULLs only.
async fn write(table: &Table, kind: RowOpKind, ids: std::ops::Range<i64>, round: i64) {
    let mut writer = table.writer();
    for id in ids {
        let mut cells: Vec<Vec<u8>> = vec![id.to_le_bytes().into(), ((id % 20) as i32).to_le_bytes().into()];
        cells.extend(TYPES.iter().map(|ty| cell(*ty, id + round)));
        let row: Vec<ClientCell<'_>> =
            cells.iter().enumerate().map(|(at, cell)| given(kind, id + round, at, cell)).collect();
        writer.apply_cells(kind, &row).await.expect("a legal row");
    }
    writer.finish().await.expect("accepted rows");
}

/// Changes rows, columns and range partitions between two backups.
async fn change(world: &World, table: &Table) {
    write(table, RowOpKind::Upsert, 10..50, 1).await;
    write(table, RowOpKind::Delete, 0..5, 0).await;
    let alter = |change: &'static [&'static str]| [&["table", "alter", TABLE][..], change].concat();
    world
        .run(&alter(&[
            "--drop-range",
            "10..20",
            "--drop-column",
            "c_bool",
            "--rename-column",
            "c_int8=tiny",
            "--yes",
        ]))
        .await;
    // The new column of an old name has other values; rows written before have its first default.
    world.run(&alter(&["--add-range", "10..20", "--add-column", "c_bool string default=first"])).await;
    world.run(&alter(&["--set-default", "c_bool=second", "--set-default", "c_int32=7"])).await;
    world.run(&["table", "insert", TABLE, "id=110", "day=10", "tiny=5"]).await;
}

const TABLE: &str = "sales €";

/// Flips a bit in a file for the time of a check.
async fn with_damage(file: &Path, check: impl AsyncFnOnce()) {
    let bytes = fs::read(file).expect("a file");
    let mut damaged = bytes.clone();
    damaged[bytes.len() / 2] ^= 1;
    fs::write(file, damaged).expect("the test owns the directory");
    check().await;
    fs::write(file, bytes).expect("the test owns the directory");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_is_restored_from_full_and_incremental_backups() {
    let mut world = World::new().await;
    let backups = world.path("backups");
    check_no_table(&world, &backups).await;
    let table = create_table(&world).await;
    write(&table, RowOpKind::Insert, 0..40, 0).await;

    // A missing table does not stop the others.
    let message = world.refused(&["backup", "create", &backups, "missing", TABLE]).await;
    assert!(message.contains("missing") && !message.contains(TABLE), "{message}");
    let first = (world.rows(TABLE).await, definition(&world, TABLE).await);
    change(&world, &table).await;
    world.run(&["backup", "create", &backups, TABLE, "--incremental"]).await;
    let second = (world.rows(TABLE).await, definition(&world, TABLE).await);
    assert!(first.0 != second.0 && first.1 != second.1);
    check_kudu_metadata(&fs::read(&world.files(&backups, ".kudu-metadata.json")[1]).expect("metadata"));

    let taken = world.refused(&["restore", &backups, TABLE]).await;
    assert!(taken.contains("--as"), "{taken}");
    world.run(&["table", "drop", TABLE, "--yes", "--now"]).await;
    world.run(&["restore", &backups, TABLE]).await;
    assert_eq!(world.rows(TABLE).await, second.0);
    assert_eq!(definition(&world, TABLE).await, second.1);
    let until = until_first(&world, &backups);
    world.run(&["restore", &backups, TABLE, "--as", "old", "--until", &until]).await;
    assert_eq!(world.rows("old").await, first.0);
    assert_eq!(definition(&world, "old").await, first.1);

    check_damage(&world, &backups, &until).await;
    check_same_name(&world, &backups).await;
    check_other_directories(&world, &backups).await;
    world.embedded.shutdown().await;
}

/// A backup of all tables is refused while the user sees none, which may be for want of rights.
async fn check_no_table(world: &World, backups: &str) {
    let all = ["backup", "create", backups, "--all"];
    let refused = world.try_run(&all).await.expect_err("there is no table");
    assert!(refused.code == 1 && refused.message.contains("no table is visible to this user"), "{refused}");
    assert!(!Path::new(backups).exists(), "a directory was created for nothing");
}

/// Returns the time of the first backup, for `--until`.
fn until_first(world: &World, backups: &str) -> String {
    let first = &world.files(backups, ".nyala-manifest.json")[0];
    let to_ms = first.parent().and_then(Path::file_name).expect("a directory").to_str().expect("UTF-8");
    format!("{to_ms}000")
}

fn check_kudu_metadata(bytes: &[u8]) {
    let metadata: serde_json::Value = serde_json::from_slice(bytes).expect("JSON");
    let column = |name: &str| {
        let columns = metadata["columns"].as_array().expect("columns");
        columns.iter().find(|column| column["name"] == name).expect("a column").to_string()
    };
    let names = ["id", "tiny", "c_bool", "c_int32", "c_decimal128"];
    let tablets = metadata["tablets"].as_object().expect("tablets").len();
    let text = format!("{}\n{}\n{tablets} tablets", names.map(column).join("\n"), metadata["partitions"]);
    let automatic = r#""compression":"DEFAULT_COMPRESSION","#;
    assert_eq!(text.matches(automatic).count(), names.len(), "{text}");
    let broken = text.replace("},{", "},\n{").replace("\"bounds\"", "\n\"bounds\"");
    let broken = broken.replace("],\"columnNames\"", "],\n\"columnNames\"").replace(automatic, "");
    insta::assert_snapshot!(broken.replace(r#""encoding":"AUTO_ENCODING","#, ""), @r#"
    {"isKey":true,"name":"id","type":"INT64"}
    {"isNullable":true,"name":"tiny","type":"INT8"}
    {"defaultValue":"second","name":"c_bool","type":"STRING"}
    {"defaultValue":"7","isNullable":true,"name":"c_int32","type":"INT32"}
    {"isNullable":true,"name":"c_decimal128","type":"DECIMAL","typeAttributes":{"precision":38,"scale":10}}
    {"hashPartitions":[{"columnNames":["id"],"numBuckets":2}],"rangePartitions":{
    "bounds":[{"lowerBounds":[{"columnName":"day","value":"0"}],"upperBounds":[{"columnName":"day","value":"10"}]},
    {"lowerBounds":[{"columnName":"day","value":"10"}],"upperBounds":[{"columnName":"day","value":"20"}]}],
    "columnNames":["day"]}}
    4 tablets
    "#);
    let time = |name: &str| metadata[name].as_str().expect("text").parse::<u64>().expect("a number");
    assert!(0 < time("fromMs") && time("fromMs") < time("toMs"));
}

/// Damage is found and named, creates no table, and does not stop the restore of an earlier state.
async fn check_damage(world: &World, backups: &str, until: &str) {
    world.run(&["backup", "verify", backups, "--deep"]).await;
    world.run(&["backup", "list", backups]).await;
    world.run(&["backup", "show", backups, TABLE]).await;
    world.run(&["backup", "prune", backups, "--keep", "0d"]).await;
    let restore = ["restore", backups, TABLE, "--as", "copy"];
    let last = |ending: &str| world.files(backups, ending).pop().expect("a file");
    let second = last(".nyala-manifest.json").parent().expect("a directory").to_path_buf();
    for file in [last(".parquet"), last(".kudu-metadata.json"), last(".nyala-manifest.json")] {
        assert_eq!(file.parent(), Some(&*second), "both backups are needed, so prune keeps them");
        let name = file.file_name().expect("a file").to_str().expect("UTF-8").to_string();
        with_damage(&file, async || {
            for line in [&["backup", "verify", backups][..], &restore] {
                let message = world.refused(line).await;
                assert!(message.contains(&name), "{line:?}: {message}");
                assert!(line[0] == "backup" || message.contains("--until"), "{message}");
            }
            world.run(&[&restore[..], &["--until", until, "--dry-run"]].concat()).await;
        })
        .await;
    }
    assert!(world.client.open_table("copy").await.is_err(), "no table was created");
    // Without its base, the second backup is not passed over in silence.
    let base = &world.files(backups, ".kudu-metadata.json")[0];
    let hidden = base.with_extension("hidden");
    fs::rename(base, &hidden).expect("the test owns the directory");
    for line in [&["backup", "verify", backups][..], &restore] {
        let message = world.refused(line).await;
        assert!(message.contains("its base"), "{line:?}: {message}");
    }
    fs::rename(&hidden, base).expect("the test owns the directory");
    world.run(&["backup", "verify", backups]).await;
}

/// A damaged backup of a newer table refuses the restore of a dropped one of the same name.
async fn check_same_name(world: &World, backups: &str) {
    world.run(&["table", "drop", TABLE, "--yes", "--now"]).await;
    world.run(&["table", "create", TABLE, "--column", "k int32"]).await;
    world.run(&["table", "insert", TABLE, "k=1"]).await;
    let two = ["backup", "create", backups, TABLE, "old"];
    world.run(&two).await;
    let manifests = world.files(backups, ".nyala-manifest.json");
    let is_new =
        |file: &&PathBuf| !fs::read_to_string(file).expect("a manifest").contains("of \\\"all\\\" types");
    let manifest = manifests.iter().find(is_new).expect("the manifest of the new table");
    with_damage(manifest, async || {
        let message = world.refused(&["restore", backups, TABLE, "--as", "copy"]).await;
        assert!(message.contains(".nyala-manifest.json"), "{message}");
    })
    .await;
    world.run(&["restore", backups, TABLE, "--as", "copy"]).await;
    assert_eq!(world.rows("copy").await, "k\n1\n");
}

/// A mistyped directory is an error and is not created, and so is a store of another kind.
async fn check_other_directories(world: &World, backups: &str) {
    let mistyped = format!("{backups}-mistyped");
    for line in [
        &["backup", "verify", &mistyped][..],
        &["backup", "list", &mistyped],
        &["backup", "show", &mistyped, TABLE],
        &["backup", "prune", &mistyped, "--keep", "1d"],
        &["restore", &mistyped, TABLE],
    ] {
        let message = world.refused(line).await;
        assert!(message.contains(&mistyped), "{line:?}: {message}");
        assert!(!Path::new(&mistyped).exists(), "{line:?}");
    }
    fs::create_dir(&mistyped).expect("the test owns the directory");
    let message = world.refused(&["backup", "verify", &mistyped]).await;
    assert!(message.contains("no backups"), "{message}");
    let message = world.refused(&["backup", "create", "s3://bucket", TABLE]).await;
    assert!(message.contains("the program nyala-backup reads and writes s3://"), "{message}");
}
