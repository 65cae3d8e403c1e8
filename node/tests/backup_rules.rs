//! Failure rules of backups (`node/backup/README.md`): failures fail the run by name, and rows are never left out.
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
use std::sync::Arc;
use std::time::Duration;

use backup_world::World;
use engine::schema::partition_range::PartitionRange;
use engine::schema::row_ops::{ClientCell, RowOpKind};
use engine::schema::{ColumnSchema, DataType, Schema};
use engine::time::{ClockReading, Instant, Timestamp};
use nyala_backup::create::{BackupKind, Snapshot, create, hybrid_timestamp, take_snapshot};
use nyala_backup::hold::HistoryHold;
use nyala_backup::manifest::Manifest;
use nyala_backup::store::BackupStore;
use nyala_client::{Client, CreateTable, Result, Table};
use nyala_common::env::{BoxFuture, Clock, Env};

/// Returns the tablets of a table on the only server.
fn tablets(world: &World, table: &Table) -> Vec<Arc<engine::tablet::Tablet>> {
    let server = &world.embedded.tablet_server(0).server;
    let entries = server.tablets.all();
    let of_table = entries.iter().filter(|entry| entry.meta.table.to_string() == table.id());
    of_table.filter_map(|entry| entry.tablet()).collect()
}

/// Waits until a condition of the running cluster holds.
async fn wait_until(world: &World, condition: impl Fn() -> bool) {
    while !condition() {
        world.env.sleep(Duration::from_millis(1)).await;
    }
}

/// Backs up the only table of a snapshot.
async fn back_up(world: &World, backups: &str, snapshot: &Snapshot, kind: BackupKind) -> Result<Manifest> {
    let store = BackupStore::create(&world.env, backups)?;
    let listing = store.list()?;
    let table = snapshot.tables[0].1.as_ref().expect("an open table");
    Ok(create(&store, table, snapshot.to_ms, &listing, kind, 1).await?.manifest)
}

/// Creates a table `k int32, v int32 null` with a row of each key.
async fn numbers(world: &World, name: &str, keys: std::ops::Range<i32>, options: &[&str]) -> Table {
    let columns = ["table", "create", name, "--column", "k int32", "--column", "v int32 null"];
    world.run(&[&columns[..], options].concat()).await;
    let table = world.client.open_table(name).await.expect("a table");
    upsert(&table, keys, 0).await;
    table
}

async fn upsert(table: &Table, keys: std::ops::Range<i32>, value: i32) {
    let mut writer = table.writer();
    for key in keys {
        let (key, value) = (key.to_le_bytes(), value.to_le_bytes());
        let row = [ClientCell::Value(&key), ClientCell::Value(&value)];
        writer.apply_cells(RowOpKind::Upsert, &row).await.expect("a legal row");
    }
    writer.finish().await.expect("accepted rows");
}

/// Settings by which history is dropped at once, and a hold ends soon after its holder.
const SHORT_HISTORY: [(&str, &str); 3] =
    [("tablet_history_max_age_sec", "0"), ("history_hold_lease_ms", "5000"), ("heartbeat_interval_ms", "20")];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn history_is_held_while_a_backup_runs() {
    let mut world = World::with(1, &SHORT_HISTORY).await;
    let backups = world.path("backups");
    let held = numbers(&world, "held", 0..10, &[]).await;
    let other = numbers(&world, "other", 0..10, &[]).await;
    let rows = world.rows("held").await;
    let snapshot = take_snapshot(&world.client, &["held".to_string()]).await;
    let at = hybrid_timestamp(snapshot.to_ms);
    let passed = |table: &Table| tablets(&world, table).iter().all(|tablet| tablet.history_mark().0 > at);

    let (hold, errors) = HistoryHold::acquire(&world.env, vec![(held.clone(), at)]).await;
    assert!(errors.is_empty(), "{errors:?}");
    let server = world.embedded.tablet_server(0).server.clone();
    let entry = server.tablets.all().into_iter().find(|entry| entry.meta.table.to_string() == held.id());
    let table = entry.expect("its tablet").meta.table;
    wait_until(&world, || server.held_history.oldest(table) == Some(Timestamp(at))).await;
    upsert(&held, 0..10, 1).await;
    upsert(&other, 0..10, 1).await;
    wait_until(&world, || passed(&other)).await;
    assert!(!passed(&held), "its history is held");
    back_up(&world, &backups, &snapshot, BackupKind::Full).await.expect("its history is held");

    // Released, the history goes, and the same scan is refused rather than answered without rows.
    hold.release().await;
    wait_until(&world, || server.held_history.oldest(table).is_none() && passed(&held)).await;
    let error =
        back_up(&world, &world.path("late"), &snapshot, BackupKind::Full).await.expect_err("too late");
    assert!(error.message.to_lowercase().contains("ancient history mark"), "{error}");
    world.run(&["restore", &backups, "held", "--as", "restored"]).await;
    assert_eq!(world.rows("restored").await, rows);
    world.embedded.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_whose_base_is_too_old_is_full_and_says_so() {
    let mut world = World::new().await;
    let backups = world.path("backups");
    let table = numbers(&world, "t", 0..10, &[]).await;
    let backup = ["backup", "create", &backups, "t"];
    world.run(&backup).await;
    upsert(&table, 5..15, 1).await;
    for tablet in tablets(&world, &table) {
        tablet.raise_history_mark(Timestamp::MAX);
    }
    let message = world.refused(&[&backup[..], &["--incremental"]].concat()).await;
    let base = world.files(&backups, ".nyala-manifest.json").remove(0);
    let base = Manifest::decode(&fs::read(base).expect("a file")).expect("a manifest").to_ms;
    let base = nyala_backup::manifest::time_text(base);
    let want = format!(
        "the history since the base, a backup of the state of {base}; take a full backup with --full"
    );
    assert!(message.contains(&want), "{message}");
    world.run(&backup).await;
    let manifests = world.files(&backups, ".nyala-manifest.json");
    let is_full =
        |file: &PathBuf| Manifest::decode(&fs::read(file).expect("a file")).expect("whole").is_full();
    assert_eq!(manifests.iter().map(is_full).collect::<Vec<_>>(), [true, true]);
    // The next one builds on it.
    upsert(&table, 0..1, 2).await;
    world.run(&[&backup[..], &["--incremental"]].concat()).await;
    world.run(&["backup", "verify", &backups, "--deep"]).await;
    world.run(&["restore", &backups, "t", "--as", "restored"]).await;
    assert_eq!(world.rows("restored").await, world.rows("t").await);
    world.embedded.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interrupted_run_leaves_no_backup() {
    let mut world = World::new().await;
    let backups = world.path("backups");
    world.run(&["table", "create", "t", "--column", "k int32", "--column", "v string"]).await;
    let input = world.path("in.csv");
    let row = |k: i32| format!("{k},{}\n", "x".repeat(1000));
    let text: String = std::iter::once("k,v\n".to_string()).chain((0..20_000).map(row)).collect();
    fs::write(&input, text).expect("the test owns the directory");
    world.run(&["table", "import", "t", &input]).await;
    let server = world.embedded.tablet_server(0).server.clone();
    let stop = Box::pin(async move {
        while server.scanners().is_empty() {
            tokio::task::yield_now().await;
        }
    });
    let error =
        world.run_until(&["backup", "create", &backups, "t"], stop).await.expect_err("it was stopped");
    assert_eq!((error.code, error.message.as_str()), (130, "interrupted"));
    assert_eq!(world.files(&backups, ".kudu-metadata.json"), Vec::<PathBuf>::new());
    assert_eq!(world.files(&backups, ".nyala-run").len(), 1, "it was stopped while it wrote");
    let message = world.refused(&["restore", &backups, "t", "--as", "u"]).await;
    assert!(message.contains("no backup of table"), "{message}");
    world.run(&["backup", "create", &backups, "t"]).await;
    world.run(&["backup", "verify", &backups]).await;
    world.embedded.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_that_fails_is_named_and_stops_no_other() {
    let mut world = World::new().await;
    let backups = world.path("backups");
    let (bad, _) = (numbers(&world, "bad", 0..10, &[]).await, numbers(&world, "good", 0..10, &[]).await);
    let both = ["backup", "create", &backups, "bad", "good"];
    world.run(&both).await;
    let before = world.files(&backups, ".kudu-metadata.json");
    let dir = Path::new(&backups).join(format!("{}-bad", bad.id()));
    let aside = Path::new(&backups).join("aside");
    fs::rename(&dir, &aside).expect("the test owns the directory");
    fs::write(&dir, "no directory").expect("the test owns the directory");
    let error = world.try_run(&both).await.expect_err("one table fails");
    assert_eq!(error.code, 1);
    assert!(error.message.starts_with("table bad: ") && !error.message.contains("good"), "{error}");
    assert!(error.message.contains(&format!("{}-bad", bad.id())), "the place is named: {error}");
    fs::remove_file(&dir).expect("the test owns the directory");
    fs::rename(&aside, &dir).expect("the test owns the directory");
    let after = world.files(&backups, ".kudu-metadata.json");
    assert_eq!(after.len(), before.len() + 1, "the old chains stand, and one table has a new backup");
    world.run(&both).await;
    world.run(&["backup", "verify", &backups, "--deep"]).await;
    world.embedded.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_range_that_was_dropped_meanwhile_fails_the_backup() {
    let mut world = World::new().await;
    let backups = world.path("backups");
    let v = ColumnSchema::new(1, "v", DataType::Int32).nullable();
    let schema = Schema::new(vec![ColumnSchema::new(0, "k", DataType::Int32), v], 1).expect("a schema");
    let mut create = CreateTable::new("t", schema).range(&["k"]).expect("a key column");
    let key = |key: i32| ((key as u32) ^ 0x8000_0000).to_be_bytes().to_vec();
    let range = |(a, b)| PartitionRange::new(key(a), key(b)).expect("a range");
    create.ranges = [(0, 10), (10, 20)].map(range).into();
    let table = world.client.create_table(&create).await.expect("a new table");
    upsert(&table, 0..20, 0).await;
    let snapshot = take_snapshot(&world.client, &["t".to_string()]).await;
    world.run(&["table", "alter", "t", "--drop-range", "10..20", "--yes"]).await;
    table.forget_locations();
    let error = back_up(&world, &backups, &snapshot, BackupKind::Full).await.expect_err("a range is missing");
    assert!(error.message.contains("a range partition was dropped meanwhile"), "{error}");
    assert_eq!(world.files(&backups, ".kudu-metadata.json"), Vec::<PathBuf>::new());
    world.embedded.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_server_leaves_no_gap() {
    let mut world = World::with(3, &[]).await;
    let backups = world.path("backups");
    numbers(&world, "t", 0..500, &["--hash", "k:3", "--replicas", "3"]).await;
    let snapshot = take_snapshot(&world.client, &["t".to_string()]).await;
    world.embedded.tablet_server(0).shutdown().await;
    let manifest =
        back_up(&world, &backups, &snapshot, BackupKind::Full).await.expect("two replicas of three");
    assert_eq!((manifest.parts.len(), manifest.rows()), (3, 500));
    world.run(&["backup", "verify", &backups, "--deep"]).await;
    world.embedded.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restore_that_fails_leaves_its_table_under_another_name() {
    let mut world = World::new().await;
    let backups = world.path("backups");
    numbers(&world, "t", 0..10, &[]).await;
    world.run(&["backup", "create", &backups, "t"]).await;
    let file = world.files(&backups, ".nyala-manifest.json").remove(0);
    let bytes = fs::read(&file).expect("a file");
    let mut manifest = Manifest::decode(&bytes).expect("a manifest");
    manifest.parts[0].rows += 1;
    fs::write(&file, manifest.encode().expect("a manifest")).expect("the test owns the directory");
    let message = world.refused(&["backup", "verify", &backups, "--deep"]).await;
    assert!(message.contains("10 rows instead of 11") && message.contains("part-00000"), "{message}");
    let partial = format!("u.restoring-{}", manifest.to_ms);
    let restore = ["restore", &backups, "t", "--as", "u"];
    let message = world.refused(&restore).await;
    let want =
        format!("table {partial}, the incomplete restore, which you can complete with --resume or drop");
    assert!(message.contains(&want) && message.contains("10 rows instead of 11"), "{message}");
    assert!(world.client.open_table("u").await.is_err(), "the final name stays free");
    // Repaired, it still does not write to the remains.
    fs::write(&file, bytes).expect("the test owns the directory");
    let message = world.refused(&restore).await;
    assert!(message.contains(&partial), "{message}");
    world.run(&["table", "drop", &partial, "--yes", "--now"]).await;
    world.run(&restore).await;
    assert_eq!(world.rows("u").await, world.rows("t").await);
    world.embedded.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restore_is_refused_while_a_dropped_table_keeps_its_name() {
    let mut world = World::new().await;
    let backups = world.path("backups");
    let id = numbers(&world, "t", 0..10, &[]).await.id().to_string();
    world.run(&["backup", "create", &backups, "t"]).await;
    world.run(&["table", "drop", "t", "--yes"]).await;
    let message = world.refused(&["restore", &backups, "t"]).await;
    let hint = format!("with --as, or rename it: nyala table recall {id} --as OTHER");
    assert!(
        message.starts_with("table t: a dropped table keeps this name") && message.contains(&hint),
        "{message}"
    );
    let tables = world.client.list_tables(None).await.expect("a running master");
    assert!(tables.is_empty(), "nothing was created: {tables:?}");
    world.run(&["restore", &backups, "t", "--as", "u"]).await;
    world.run(&["table", "recall", &id, "--as", "old"]).await;
    world.run(&["restore", &backups, "t"]).await;
    for restored in ["t", "u"] {
        assert_eq!(world.rows(restored).await, world.rows("old").await);
    }
    world.embedded.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tables_with_the_longest_names_are_restored() {
    let mut world = World::new().await;
    let backups = world.path("backups");
    numbers(&world, "t", 0..10, &[]).await;
    world.run(&["backup", "create", &backups, "t"]).await;
    for end in ["a", "b"] {
        let name = "n".repeat(255) + end;
        world.run(&["restore", &backups, "t", "--as", &name]).await;
        assert_eq!(world.rows(&name).await, world.rows("t").await);
    }
    // No file is read for a name that no table can have.
    for part in world.files(&backups, ".parquet") {
        fs::remove_file(part).expect("the test owns the directory");
    }
    for name in ["", "with\0NUL", &"n".repeat(257)] {
        let refused = world.try_run(&["restore", &backups, "t", "--as", name]).await.expect_err(name);
        assert!(refused.code == 2 && refused.message.starts_with("--as: "), "{refused}");
    }
    world.embedded.shutdown().await;
}

fn cells(values: &[i64]) -> Vec<[u8; 8]> {
    values.iter().map(|value| value.to_le_bytes()).collect()
}

/// Writes a row of INT64 columns; `None` leaves a cell unset.
async fn write_row(table: &Table, kind: RowOpKind, row: &[Option<i64>]) {
    let bytes = cells(&row.iter().map(|cell| cell.unwrap_or_default()).collect::<Vec<_>>());
    let cell = |(cell, bytes): (&Option<i64>, &'static [u8; 8])| match cell {
        Some(_) => ClientCell::Value(bytes.as_slice()),
        None => ClientCell::Unset,
    };
    let bytes: &'static [[u8; 8]] = bytes.leak();
    let row: Vec<ClientCell<'_>> = row.iter().zip(bytes).map(cell).collect();
    let mut writer = table.writer();
    writer.apply_cells(kind, &row).await.expect("a legal row");
    writer.finish().await.expect("an accepted row");
}

async fn create_int64s(client: &Client, name: &str, columns: Vec<ColumnSchema>, keys: usize) -> Table {
    let schema = Schema::new(columns, keys).expect("a schema");
    let create = CreateTable { replicas: Some(1), ..CreateTable::new(name, schema) };
    client.create_table(&create).await.expect("a new table")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn auto_increment_values_are_kept_and_continue_above() {
    let mut world = World::new().await;
    let backups = world.path("backups");
    let mut id = ColumnSchema::new(1, "auto_incrementing_id", DataType::Int64);
    id.auto_incrementing = true;
    let (k, v) = (ColumnSchema::new(0, "k", DataType::Int64), ColumnSchema::new(2, "v", DataType::Int64));
    let table = create_int64s(&world.client, "t", vec![k, id, v.nullable()], 2).await;
    for v in 0..5 {
        write_row(&table, RowOpKind::Insert, &[Some(7), None, Some(v)]).await;
    }
    world.run(&["backup", "create", &backups, "t"]).await;
    write_row(&table, RowOpKind::Delete, &[Some(7), Some(2), None]).await;
    write_row(&table, RowOpKind::Upsert, &[Some(7), Some(4), Some(40)]).await;
    write_row(&table, RowOpKind::Insert, &[Some(7), None, Some(5)]).await;
    world.run(&["backup", "create", &backups, "t", "--incremental"]).await;
    world.run(&["backup", "verify", &backups, "--deep"]).await;
    let rows = world.rows("t").await;
    assert_eq!(rows, "k,auto_incrementing_id,v\n7,1,0\n7,3,2\n7,4,40\n7,5,4\n7,6,5\n");
    world.run(&["restore", &backups, "t", "--as", "u"]).await;
    assert_eq!(world.rows("u").await, rows);
    let restored = world.client.open_table("u").await.expect("a table");
    write_row(&restored, RowOpKind::Insert, &[Some(7), None, Some(6)]).await;
    assert_eq!(world.rows("u").await, format!("{rows}7,7,6\n"));
    world.embedded.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dates_that_another_client_wrote_are_kept_whatever_their_year() {
    let mut world = World::new().await;
    let backups = world.path("backups");
    let columns =
        ["day", "seen"].iter().zip(0..).map(|(name, id)| ColumnSchema::new(id, name, DataType::Date));
    let schema = Schema::new(columns.collect(), 1).expect("a schema");
    let create = CreateTable { replicas: Some(1), ..CreateTable::new("t", schema) };
    let table = world.client.create_table(&create).await.expect("a new table");
    // The cells of a session are encoded already: only the servers could refuse them.
    let write = async |kind: RowOpKind, day: i32, seen: i32| {
        let (day, seen) = (day.to_le_bytes(), seen.to_le_bytes());
        let seen = if kind == RowOpKind::Delete { ClientCell::Unset } else { ClientCell::Value(&seen) };
        let mut writer = table.writer();
        writer.apply_cells(kind, &[ClientCell::Value(&day), seen]).await.expect("a legal row");
        writer.finish().await.expect("an accepted row");
    };
    let (before, after) = (-719_163, 2_932_897);
    write(RowOpKind::Insert, before, 0).await;
    write(RowOpKind::Insert, after, before).await;
    world.run(&["backup", "create", &backups, "t"]).await;
    write(RowOpKind::Delete, before, 0).await;
    write(RowOpKind::Upsert, after, after).await;
    world.run(&["backup", "create", &backups, "t", "--incremental"]).await;
    let rows = world.rows("t").await;
    assert_eq!(rows.matches("10000-01-01").count(), 2, "{rows}");
    world.run(&["restore", &backups, "t", "--as", "u"]).await;
    assert_eq!(world.rows("u").await, rows);
    let restored = world.client.open_table("u").await.expect("a table");
    assert_eq!(restored.count(Vec::new()).await.expect("a running cluster"), 1);
    world.embedded.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changed_rows_of_immutable_columns_are_replaced() {
    let mut world = World::new().await;
    let backups = world.path("backups");
    let mut v = ColumnSchema::new(1, "v", DataType::Int64).nullable();
    v.immutable = true;
    let (k, w) = (ColumnSchema::new(0, "k", DataType::Int64), ColumnSchema::new(2, "w", DataType::Int64));
    let table = create_int64s(&world.client, "t", vec![k, v, w.nullable()], 1).await;
    for k in 0..3 {
        write_row(&table, RowOpKind::Insert, &[Some(k), Some(k), Some(k)]).await;
    }
    world.run(&["backup", "create", &backups, "t"]).await;
    write_row(&table, RowOpKind::Delete, &[Some(1), None, None]).await;
    write_row(&table, RowOpKind::Insert, &[Some(1), Some(10), None]).await;
    write_row(&table, RowOpKind::Update, &[Some(2), None, Some(20)]).await;
    world.run(&["backup", "create", &backups, "t", "--incremental"]).await;
    let rows = world.rows("t").await;
    assert_eq!(rows, "k,v,w\n0,0,0\n1,10,\n2,2,20\n");
    world.run(&["restore", &backups, "t", "--as", "u"]).await;
    assert_eq!(world.rows("u").await, rows);
    world.embedded.shutdown().await;
}

/// A clock whose wall time is an hour behind.
struct BehindClock(Arc<dyn Clock>);

impl Clock for BehindClock {
    fn now(&self) -> ClockReading {
        let mut now = self.0.now();
        now.wall.micros -= 3_600_000_000;
        now
    }

    fn sleep_until(&self, until: Instant) -> BoxFuture<'static, ()> {
        self.0.sleep_until(until)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_clock_of_this_machine_leaves_out_no_rows() {
    let mut world = World::new().await;
    let backups = world.path("backups");
    numbers(&world, "t", 0..10, &[]).await;
    let env = world.env.clone();
    world.env = Env { clock: Arc::new(BehindClock(env.clock.clone())), ..env.clone() };
    world.run(&["backup", "create", &backups, "t"]).await;
    world.env = env;
    world.run(&["restore", &backups, "t", "--as", "u"]).await;
    assert_eq!(world.rows("u").await, world.rows("t").await);
    world.embedded.shutdown().await;
}
