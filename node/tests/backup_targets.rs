//! Restores that are resumed, restores into a table that exists, and restores of backups that Kudu wrote.
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
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::RecordBatch;
use backup_world::World;
use nyala_backup::manifest::Manifest;
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

async fn create(world: &World, name: &str, columns: &[&str]) {
    let columns = columns.iter().flat_map(|column| ["--column", column]);
    world
        .run(&["table", "create", name, "--hash", "k:2"].into_iter().chain(columns).collect::<Vec<_>>())
        .await;
}

async fn import(world: &World, name: &str, rows: &str) {
    let input = world.path("in.csv");
    fs::write(&input, rows).expect("the test owns the directory");
    world.run(&["table", "import", name, &input, "--mode", "upsert"]).await;
}

fn numbers(keys: Range<i32>, value: &str) -> String {
    let rows: String = keys.map(|k| format!("{k},{value}\n")).collect();
    format!("k,v\n{rows}")
}

const COLUMNS: [&str; 2] = ["k int32", "v string null"];

/// Changes the number of rows of a part in a manifest; returns the bytes from before.
fn forge(file: &Path, part: usize) -> Vec<u8> {
    let bytes = fs::read(file).expect("a file");
    let mut manifest = Manifest::decode(&bytes).expect("a manifest");
    manifest.parts[part].rows += 1;
    fs::write(file, manifest.encode().expect("a manifest")).expect("the test owns the directory");
    bytes
}

/// Backs a table up with the rows `first`, then incrementally after the rows `second` were written and row 0 deleted.
async fn back_up_twice(world: &World, backups: &str, first: Range<i32>, second: Range<i32>) {
    create(world, "t", &COLUMNS).await;
    import(world, "t", &numbers(first, "first")).await;
    world.run(&["backup", "create", backups, "t"]).await;
    import(world, "t", &numbers(second, "second")).await;
    world.run(&["table", "delete", "t", "k=0"]).await;
    world.run(&["backup", "create", backups, "t", "--incremental"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restore_that_failed_is_resumed() {
    let mut world = World::new().await;
    let backups = world.path("backups");
    back_up_twice(&world, &backups, 0..50, 25..75).await;
    let rows = world.rows("t").await;

    let restore = ["restore", &backups, "t", "--as", "u"];
    let resume = [&restore[..], &["--resume"]].concat();
    let message = world.refused(&resume).await;
    assert!(message.contains("there is no restore to resume"), "{message}");
    // The restore fails in each file in turn, and continues from there.
    let manifests = world.files(&backups, ".nyala-manifest.json");
    let mut command = restore.to_vec();
    for (done, (manifest, part)) in
        [(&manifests[0], 0), (&manifests[0], 1), (&manifests[1], 0), (&manifests[1], 1)]
            .into_iter()
            .enumerate()
    {
        let bytes = forge(manifest, part);
        let message = world.refused(&command).await;
        assert!(message.contains("which you can complete with --resume or drop"), "{message}");
        fs::write(manifest, bytes).expect("the test owns the directory");
        assert_eq!(marks(&backups), done, "{message}");
        command = resume.clone();
    }
    // A lost mark: all files from that one on are restored again, newer ones after older ones.
    fs::remove_file(&mark_files(&backups)[0]).expect("the test owns the directory");
    let message = world.refused(&restore).await;
    assert!(message.contains("an earlier restore did not end"), "{message}");
    let until =
        manifests[0].parent().and_then(Path::file_name).expect("a directory").to_str().expect("UTF-8");
    let message = world.refused(&[&resume[..], &["--until", &format!("{until}000")]].concat()).await;
    assert!(message.contains("resumes another one"), "{message}");
    world.run(&resume).await;
    assert_eq!(world.rows("u").await, rows);
    assert_eq!(marks(&backups), 0);
    let message = world.refused(&resume).await;
    assert!(message.contains("table u exists"), "{message}");
    world.embedded.shutdown().await;
}

/// Returns the number of files that restores have marked as done.
fn marks(backups: &str) -> usize {
    mark_files(backups).len()
}

/// Returns the marks of restores, oldest backup first.
fn mark_files(backups: &str) -> Vec<PathBuf> {
    let dirs = fs::read_dir(backups).expect("a directory").map(|entry| entry.expect("a name").path());
    let of_restore = |dir: &PathBuf| dir.to_string_lossy().contains(".nyala-restore-");
    let files = dirs.filter(of_restore).flat_map(|dir| fs::read_dir(dir).expect("a directory"));
    let files = files.map(|file| file.expect("a name").path());
    let mut marks: Vec<PathBuf> = files.filter(|file| file.to_string_lossy().contains("part-")).collect();
    marks.sort();
    marks
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restore_into_a_table_replaces_rows_and_keeps_others() {
    let mut world = World::new().await;
    let backups = world.path("backups");
    back_up_twice(&world, &backups, 0..4, 3..6).await;

    let into = |name: &'static str| ["restore", &backups, "t", "--into-existing", "--as", name];
    let message = world.refused(&into("missing")).await;
    assert!(message.contains("no table missing to restore into"), "{message}");
    let refusals = [
        (&["k int32", "w string null"][..], "it has no column v"),
        (&["k int32", "v int32 null"], "column v is INT32, and STRING in the backup"),
        (&["k int64", "v string null"], "column k is INT64, and INT32 in the backup"),
        (&["k int32", "v string"], "column v is NOT NULL, unlike in the backup"),
        (
            &["k int32", "v string null", "w int32"],
            "column w is not in the backup, NOT NULL and without a default",
        ),
    ];
    for (columns, want) in refusals {
        create(&world, "other", columns).await;
        let message = world.refused(&into("other")).await;
        assert!(message.contains("table other: ") && message.contains(want), "{message}");
        world.run(&["table", "drop", "other", "--yes", "--now"]).await;
    }
    // Values of immutable columns are replaced, too.
    create(&world, "u", &["k int32", "v string null immutable", "w int32 null default=7"]).await;
    import(&world, "u", "k,v,w\n0,mine,1\n1,mine,1\n9,mine,1\n").await;
    world.run(&into("u")).await;
    let mut rows: Vec<String> = world.rows("u").await.lines().map(str::to_string).collect();
    rows.sort();
    assert_eq!(
        rows,
        ["1,first,7", "2,first,7", "3,second,7", "4,second,7", "5,second,7", "9,mine,1", "k,v,w"]
    );
    // Once more: nothing changes.
    world.run(&into("u")).await;
    let mut again: Vec<String> = world.rows("u").await.lines().map(str::to_string).collect();
    again.sort();
    assert_eq!(again, rows);
    world.embedded.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restore_into_a_table_resets_columns_that_were_added_later() {
    let mut world = World::new().await;
    let backups = world.path("backups");
    create(&world, "t", &COLUMNS).await;
    let alter = async |column: &str| world.run(&["table", "alter", "t", "--add-column", column]).await;
    let back_up = async |kind: &str| world.run(&["backup", "create", &backups, "t", kind]).await;
    import(&world, "t", "k,v\n1,a\n").await;
    back_up("--full").await;
    alter("c int32 null").await;
    import(&world, "t", "k,v,c\n2,b,3\n").await;
    back_up("--incremental").await;
    alter("d string null default=none").await;
    alter("e decimal(9,2) default=1.50").await;
    back_up("--incremental").await;
    // A column that no backup has stays as it is.
    alter("f int32 null").await;
    import(&world, "t", "k,v,c,d,e,f\n1,bad,5,x,9,6\n2,bad,5,x,9,6\n3,new,5,x,9,6\n").await;

    world.run(&["restore", &backups, "t", "--into-existing"]).await;
    let mut rows: Vec<String> = world.rows("t").await.lines().map(str::to_string).collect();
    rows.sort();
    assert_eq!(rows, ["1,a,,none,1.50,6", "2,b,3,none,1.50,6", "3,new,5,x,9.00,6", "k,v,c,d,e,f"]);
    world.embedded.shutdown().await;
}

/// Returns a batch as Spark's schema has it: all columns can be NULL.
fn all_nullable(batch: &RecordBatch) -> RecordBatch {
    let schema = batch.schema();
    let fields = schema.fields().iter().map(|field| field.as_ref().clone().with_nullable(true));
    let schema = arrow_schema::Schema::new(fields.collect::<Vec<_>>());
    RecordBatch::try_new(Arc::new(schema), batch.columns().to_vec()).expect("the same columns")
}

/// Turns a backup into one as Kudu's Spark job lays it out: one file with rows of all tablets, checksums and marks of
/// Hadoop, no manifest.
fn as_kudu_writes(dir: &Path) {
    let names = fs::read_dir(dir).expect("a directory").map(|entry| entry.expect("a name").path());
    let (parts, others): (Vec<PathBuf>, Vec<PathBuf>) =
        names.partition(|path| path.extension().is_some_and(|ending| ending == "parquet"));
    let mut batches = Vec::new();
    for part in &parts {
        let file = fs::File::open(part).expect("a file");
        let reader =
            ParquetRecordBatchReaderBuilder::try_new(file).expect("Parquet").build().expect("Parquet");
        batches.extend(reader.map(|batch| all_nullable(&batch.expect("rows"))));
        fs::remove_file(part).expect("the test owns the directory");
    }
    for other in others.iter().filter(|path| !path.ends_with(".kudu-metadata.json")) {
        fs::remove_file(other).expect("the test owns the directory");
    }
    for name in ["_SUCCESS", "._SUCCESS.crc", ".part-00000-0a1b-c000.snappy.parquet.crc"] {
        fs::write(dir.join(name), "").expect("the test owns the directory");
    }
    let file = fs::File::create(dir.join("part-00000-0a1b-c000.snappy.parquet")).expect("a new file");
    let mut writer = ArrowWriter::try_new(file, batches[0].schema(), None).expect("a schema");
    // Rows are in no order.
    batches.iter().rev().for_each(|batch| writer.write(batch).expect("space"));
    writer.close().expect("space");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn backups_that_kudu_wrote_are_restored() {
    let mut world = World::new().await;
    let backups = world.path("backups");
    let columns = ["k int32", "v string null default=none", "at timestamp null", "d decimal(9,2) null"];
    let options = ["--range", "k", "--bounds", "0..10", "--bounds", "10..20", "--comment", "all"];
    let words = columns.iter().flat_map(|column| ["--column", column]).chain(options);
    world.run(&["table", "create", "t"].into_iter().chain(words).collect::<Vec<_>>()).await;
    let row = |k: i32| format!("{k},first,2026-01-31T12:00:00.000001Z,{k}.25\n");
    let rows: String = (0..20).map(row).collect();
    import(&world, "t", &format!("k,v,at,d\n{rows}")).await;
    world.run(&["backup", "create", &backups, "t"]).await;
    let first = world.rows("t").await;
    // The range is dropped with its rows and added again: they must not come back.
    world.run(&["table", "alter", "t", "--drop-range", "10..20", "--yes"]).await;
    world.run(&["table", "alter", "t", "--add-range", "10..20", "--rename-column", "v=name"]).await;
    import(&world, "t", "k,name,at,d\n3,second,,\n15,new,,\n").await;
    world.run(&["table", "delete", "t", "k=4"]).await;
    world.run(&["backup", "create", &backups, "t", "--incremental"]).await;
    let second = world.rows("t").await;

    let dirs: Vec<PathBuf> = world.files(&backups, ".kudu-metadata.json");
    let dirs: Vec<&Path> = dirs.iter().filter_map(|file| file.parent()).collect();
    // Without its manifest alone, a backup of nyala is damaged.
    let manifest = dirs[1].join(".nyala-manifest.json");
    let bytes = fs::read(&manifest).expect("a file");
    fs::remove_file(&manifest).expect("the test owns the directory");
    let message = world.refused(&["restore", &backups, "t", "--as", "u"]).await;
    assert!(message.contains("no .nyala-manifest.json; the file was lost"), "{message}");
    fs::write(&manifest, bytes).expect("the test owns the directory");

    dirs.iter().for_each(|dir| as_kudu_writes(dir));
    world.run(&["backup", "list", &backups]).await;
    world.run(&["backup", "verify", &backups, "--deep"]).await;
    world.run(&["restore", &backups, "t", "--as", "u"]).await;
    assert_eq!(world.rows("u").await, second);
    let restored = world.client.open_table("u").await.expect("a table");
    assert_eq!(restored.comment(), "all");
    let until = dirs[0].file_name().expect("a time").to_str().expect("UTF-8");
    world.run(&["restore", &backups, "t", "--as", "old", "--until", &format!("{until}000")]).await;
    assert_eq!(world.rows("old").await, first);

    // A file that is no Parquet refuses the restore before a table is created.
    let file = dirs[1].join("part-00000-0a1b-c000.snappy.parquet");
    fs::write(&file, "no Parquet").expect("the test owns the directory");
    let message = world.refused(&["restore", &backups, "t", "--as", "x"]).await;
    assert!(message.contains("part-00000-0a1b-c000.snappy.parquet"), "{message}");
    world.embedded.shutdown().await;
}
