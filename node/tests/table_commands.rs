//! `nyala table …` against an embedded cluster: exported rows equal imported rows, and bad rows are reported.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the test observes the program from outside"
)]

#[path = "common/embedded.rs"]
mod embedded;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::time::Duration;

use embedded::{EmbeddedCluster, run_until};
use node::cli::ExitError;
use nyala_common::env::BoxFuture;

struct World(EmbeddedCluster);

impl World {
    async fn new() -> World {
        World(EmbeddedCluster::start().await)
    }

    fn path(&self, name: &str) -> String {
        self.0.path(name)
    }

    async fn run(&self, args: &[&str]) -> Result<(), ExitError> {
        self.run_until(args, Box::pin(std::future::pending())).await
    }

    /// Runs a command that is interrupted once `stop` is ready.
    async fn run_until(&self, args: &[&str], stop: BoxFuture<'static, ()>) -> Result<(), ExitError> {
        let masters = self.0.masters();
        let args = [&["table"], args, &["--masters", &masters]].concat();
        run_until(&self.0.env, &args, stop).await
    }
}

const COLUMNS: [&str; 14] = [
    "--column",
    "id int64",
    "--column",
    "name varchar(20) null",
    "--column",
    "price decimal(9,2) null",
    "--column",
    "day date null",
    "--column",
    "at timestamp null",
    "--column",
    "raw binary null",
    "--column",
    "ok bool null",
];

const GOOD: &str = "\
id,name,price,day,at,raw,ok
0,\"\",,,,,
1,\"a, b\",1.25,2020-01-01,2020-01-01T00:00:00.500Z,0x00ff,true
2,,,,,,
3,\"two
lines\",-0.05,0001-01-01,1969-12-31T23:59:59Z,0x,false
";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exported_rows_equal_imported_rows() {
    let mut world = World::new().await;
    let (input, output) = (world.path("in.csv"), world.path("out.csv"));
    fs::write(&input, GOOD).expect("the test owns the directory");
    // From table to table, through each form of file.
    let files = ["mid.parquet", "mid.jsonl.gz", "mid.csv.zst"].map(|name| world.path(name));
    let tables = ["one", "jsonl", "csv", "two"];
    for table in tables {
        let create = [&["create", table][..], &COLUMNS].concat();
        world.run(&create).await.expect("a new table");
    }
    world.run(&["import", "one", &input]).await.expect("good rows");
    for (from_to, file) in tables.windows(2).zip(&files) {
        world.run(&["export", from_to[0], file]).await.expect("a new file");
        world.run(&["import", from_to[1], file]).await.expect("what was exported");
    }
    world.run(&["export", "two", &output]).await.expect("a new file");
    let text = fs::read_to_string(&output).expect("just written");
    assert_eq!(text, GOOD);
    let taken = world.run(&["export", "two", &output]).await.expect_err("the file exists");
    assert!(taken.message.contains("--force"), "{taken}");
    world
        .run(&["export", "two", &output, "--force", "--where", "id >= 2", "--columns", "id"])
        .await
        .expect("forced");
    assert_eq!(fs::read_to_string(&output).expect("just written"), "id\n2\n3\n");
    // Conditions that no value of the column satisfies select no row.
    for none in ["id > 9223372036854775807", "name < ''"] {
        let export = ["export", "two", &output, "--force", "--columns", "id,name", "--where", none];
        world.run(&export).await.expect("a file without rows");
        assert_eq!(fs::read_to_string(&output).expect("just written"), "id,name\n", "{none}");
        let parquet = world.path("none.parquet");
        world
            .run(&["export", "two", &parquet, "--force", "--where", none])
            .await
            .expect("a file without rows");
        world
            .run(&["import", "two", &parquet])
            .await
            .expect("it has the columns, and no row to insert again");
    }
    world
        .run(&["import", "two", &input, "--mode", "insert-ignore"])
        .await
        .expect("duplicate keys are skipped");
    world.0.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_rows_are_reported() {
    let mut world = World::new().await;
    let (input, rejects, output) = (world.path("in.csv"), world.path("bad.csv"), world.path("out.csv"));
    let columns = ["--column", "k int32", "--column", "v string null", "--hash", "k:2"];
    world.run(&[&["create", "t"][..], &columns].concat()).await.expect("a new table");
    fs::write(&input, "v,k\na,1\nb,x\nc,1\nd,2,3\ne,4\n").expect("the test owns the directory");
    let stopped = world.run(&["import", "t", &input]).await.expect_err("bad rows");
    insta::assert_snapshot!(stopped.message, @r#"
    3 bad rows, 2 rows were imported
      line 3: column "k": "x" is not a INT32
      line 4: key already present
      line 5: 3 cells instead of 2
    Mend them, or give --rejects FILE to import the others and keep these apart.
    "#);
    let same = world.run(&["import", "t", &input, "--rejects", &input]).await.expect_err("it would be lost");
    assert!(same.code == 2 && same.message.contains("would replace the file"), "{same}");
    let import = ["import", "t", &input, "--mode", "upsert", "--rejects", &rejects];
    let rejected = world.run(&import).await.expect_err("not all rows were imported");
    assert_eq!(rejected.code, 7);
    insta::assert_snapshot!(
        rejected.message.replace(&rejects, "<rejects>"),
        @"2 rows were rejected and are in <rejects>, 3 rows were imported"
    );
    insta::assert_snapshot!(fs::read_to_string(&rejects).expect("just written"), @r#"
    line,error,v,k
    3,"column ""k"": ""x"" is not a INT32",b,x
    5,3 cells instead of 2,d,2,3
    "#);
    let kept = world.run(&import).await.expect_err("the file may be corrected already");
    assert!(kept.code == 1 && kept.message.ends_with("bad.csv exists; give --force to replace it"), "{kept}");
    let forced =
        world.run(&[&import[..], &["--force"]].concat()).await.expect_err("not all rows were imported");
    assert_eq!(forced.code, 7, "{forced}");
    world.run(&["export", "t", &output, "--where", "k = 1"]).await.expect("a new file");
    assert_eq!(fs::read_to_string(&output).expect("just written"), "k,v\n1,c\n");
    fs::write(&input, "v,key\n").expect("the test owns the directory");
    let unknown = world.run(&["import", "t", &input]).await.expect_err("there is no such column");
    insta::assert_snapshot!(
        unknown.message.replace(&input, "<in>"),
        @r#"<in>: table t has no column "key"; did you mean "k"?; 0 rows were imported"#
    );
    fs::write(&rejects, "line,error,v,k\n3,why,b,9\n").expect("the test owns the directory");
    world.run(&["import", "t", &rejects, "--skip", "line,error"]).await.expect("corrected rows");
    world.run(&["drop", "t", "--yes", "--now"]).await.expect("it exists");
    assert_eq!(world.run(&["describe", "t"]).await.expect_err("it is gone").code, 1);
    world.0.shutdown().await;
}

/// Removes the unfinished file of rejects once an import has created it.
async fn remove_unfinished(world: &World, rejects: &str) {
    let unfinished = || {
        let entries = fs::read_dir(world.path("")).expect("a directory");
        let mut paths = entries.map(|entry| entry.expect("a name").path());
        paths.find(|path| path.to_string_lossy().starts_with(&format!("{rejects}.")))
    };
    loop {
        if let Some(path) = unfinished() {
            return fs::remove_file(path).expect("the test owns the directory");
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_import_whose_rejects_are_not_written_says_what_it_did() {
    let mut world = World::new().await;
    world.run(&["create", "t", "--column", "k int32"]).await.expect("a new table");
    let (input, rejects, nowhere) = (world.path("in.csv"), world.path("bad.csv"), world.path("none/bad.csv"));
    fs::write(&input, "k\n1\nx\n").expect("the test owns the directory");
    let early =
        world.run(&["import", "t", &input, "--rejects", &nowhere]).await.expect_err("no such directory");
    let import = ["import", "t", &input, "--rejects", &rejects];
    let removal = world.0.env.timeout(Duration::from_secs(60), remove_unfinished(&world, &rejects));
    let (late, removed) = tokio::join!(world.run(&import), removal);
    assert_eq!(removed, Some(()), "the file is created before the first row is read");
    let late = late.expect_err("the file is gone");
    assert_eq!((early.code, late.code), (1, 1));
    let messages = format!("{}\n{}", early.message, late.message);
    insta::assert_snapshot!(messages.replace(&world.path(""), ""), @r#"
    write none/bad.csv: No such file or directory (os error 2)
    write bad.csv: No such file or directory (os error 2); 1 bad rows, 1 rows were imported
      line 3: column "k": "x" is not a INT32
    "#);
    assert!(fs::metadata(&rejects).is_err(), "nothing is there");
    world.0.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_import_says_what_it_did() {
    let mut world = World::new().await;
    let columns = ["--column", "k int32", "--column", "v varchar(3) null", "--hash", "k:3"];
    world.run(&[&["create", "t"][..], &columns].concat()).await.expect("a new table");
    let mut failures = String::new();
    for (name, text, options) in [
        ("long.csv", "k,v\n1,abc\n2,abcd\n", &[][..]),
        ("semicolons.csv", "k;v\n3;a\n", &[]),
        ("open.csv", "k,v\n4,a\n5,\"b\n6,c\n", &[]),
        ("array.jsonl", "{\"k\":7}\n{\"k\":8,\"v\":[]}\n", &[]),
        ("none.txt", "k\n", &[]),
        ("empty.csv", "", &[]),
    ] {
        let path = world.path(name);
        fs::write(&path, text).expect("the test owns the directory");
        let failed = world.run(&[&["import", "t", &path][..], options].concat()).await.expect_err(name);
        failures.push_str(&format!("{name}, exit code {}: {}\n", failed.code, failed.message));
    }
    let dir = world.path("");
    insta::assert_snapshot!(failures.replace(&dir, ""), @r#"
    long.csv, exit code 1: 1 bad rows, 1 rows were imported
      line 3: column "v": "abcd" is too long (4 characters, VARCHAR(3))
    Mend them, or give --rejects FILE to import the others and keep these apart.
    semicolons.csv, exit code 1: semicolons.csv: line 1: one column "k;v" (delimiter ','); give --delimiter ';'; 0 rows were imported
    open.csv, exit code 1: open.csv: line 3: a quote is not closed; add it; 0 rows were imported
    array.jsonl, exit code 1: 1 bad rows, 1 rows were imported
      line 2: column "v": an array; there are no nested columns; leave it out by --skip
    Mend them, or give --rejects FILE to import the others and keep these apart.
    none.txt, exit code 2: none.txt: unknown format (the name ends in none of .csv, .jsonl, .parquet); give --format
    empty.csv, exit code 1: empty.csv: the file is empty; its first line must name the columns; 0 rows were imported
    "#);
    let long = world.path("long.csv");
    world.run(&["import", "t", &long, "--mode", "upsert", "--truncate"]).await.expect("shortened on request");
    let (parts, all) = (world.path("part-?.csv"), world.path("all.csv"));
    for part in 0..3 {
        fs::write(world.path(&format!("part-{part}.csv")), format!("k,v\n{},\"\"\n", 10 + part))
            .expect("a file");
    }
    world.run(&["import", "t", &parts]).await.expect("all files that match");
    world.run(&["export", "t", &all, "--parallel", "3"]).await.expect("a new file");
    let text = fs::read_to_string(&all).expect("just written");
    let mut lines: Vec<&str> = text.lines().skip(1).collect();
    lines.sort_unstable();
    assert_eq!(lines, ["1,abc", "10,\"\"", "11,\"\"", "12,\"\"", "2,abc", "7,"]);
    world.0.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_export_reads_one_snapshot() {
    let mut world = World::new().await;
    let (first, second) = (world.path("first.csv"), world.path("second.csv"));
    let (before, after) = (world.path("before.csv"), world.path("after.csv"));
    world.run(&["create", "t", "--column", "k int32", "--hash", "k:2"]).await.expect("a new table");
    fs::write(&first, "k\n1\n2\n").expect("the test owns the directory");
    fs::write(&second, "k\n3\n").expect("the test owns the directory");
    world.run(&["import", "t", &first]).await.expect("good rows");
    // A new leader passes every time that the one before may have promised: it is ahead by the clock's error at most.
    let wall = world.0.env.now().wall;
    let between = wall.micros + wall.error_micros + 1;
    while let Some(left) = between.checked_sub(world.0.env.now().wall.micros) {
        world.0.env.sleep(Duration::from_micros(left + 1)).await;
    }
    let between = between.to_string();
    world.run(&["import", "t", &second]).await.expect("good rows");
    world.run(&["export", "t", &before, "--at", &between]).await.expect("a new file");
    world.run(&["export", "t", &after]).await.expect("a new file");
    let count = |path: &str| fs::read_to_string(path).expect("just written").lines().count() - 1;
    assert_eq!((count(&before), count(&after)), (2, 3));
    let future =
        world.run(&["export", "t", &after, "--force", "--at", "2100-01-01"]).await.expect_err("not yet");
    assert!(future.message.starts_with("--at: 2100-01-01 is in the future (now "), "{future}");
    world.0.shutdown().await;
}

/// Makes a pipe that nothing reads or writes.
fn make_pipe(path: &str) {
    let made = std::process::Command::new("mkfifo").arg(path).status().expect("a program of every machine");
    assert!(made.success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_export_replaces_no_file_unasked_and_nothing_but_files() {
    let mut world = World::new().await;
    world.run(&["create", "t", "--column", "k int32"]).await.expect("a new table");
    world.run(&["insert", "t", "k=1"]).await.expect("a new row");
    let paths = ["f.csv", "link.csv", "lost.csv", "pipe.csv", "d"].map(|name| world.path(name));
    let [file, link, lost, pipe, dir] = paths.each_ref().map(String::as_str);
    fs::write(file, "mine").expect("the test owns the directory");
    // No user but root may open it.
    fs::set_permissions(file, fs::Permissions::from_mode(0o0)).expect("the test owns the file");
    symlink("f.csv", link).expect("a new name");
    symlink("nowhere.csv", lost).expect("a new name");
    make_pipe(pipe);
    fs::create_dir(dir).expect("a new name");
    let mut failures = String::new();
    for line in [
        &[file][..],
        &[link, "--force"],
        &[lost],
        &[pipe, "--force"],
        &[dir, "--force", "--format", "csv"],
        &["/dev/null", "--force", "--format", "csv"],
    ] {
        let failed = world.run(&[&["export", "t"], line].concat()).await.expect_err(line[0]);
        failures.push_str(&format!("{}\n", failed.message));
    }
    insta::assert_snapshot!(failures.replace(&world.path(""), ""), @r"
    f.csv exists; give --force to replace it
    write link.csv: a symbolic link, which would be replaced; name a file, or - for standard output
    write lost.csv: a symbolic link, which would be replaced; name a file, or - for standard output
    write pipe.csv: a pipe or device, which would be replaced; name a file, or - for standard output
    write d: a directory; name a file, or - for standard output
    write /dev/null: a pipe or device, which would be replaced; name a file, or - for standard output
    ");
    fs::set_permissions(file, fs::Permissions::from_mode(0o600)).expect("the test owns the file");
    assert_eq!(fs::read_to_string(file).expect("it is still there"), "mine");
    assert!(fs::symlink_metadata(link).expect("it is still there").is_symlink());
    world.run(&["export", "t", file, "--force"]).await.expect("forced");
    assert_eq!(fs::read_to_string(file).expect("just written"), "k\n1\n");
    let names =
        fs::read_dir(world.path("")).expect("a directory").map(|entry| entry.expect("a name").file_name());
    let left = names.filter(|name| name.to_string_lossy().ends_with(".partial"));
    assert_eq!(left.count(), 0);
    world.0.shutdown().await;
}

/// A pipe has no length: its rows would be passed over in silence.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_import_refuses_what_is_no_file_and_reads_what_may_only_be_read() {
    let mut world = World::new().await;
    world.run(&["create", "t", "--column", "k int32"]).await.expect("a new table");
    let (pipe, file, dir) = (world.path("rows.jsonl"), world.path("rows.csv"), world.path("d"));
    make_pipe(&pipe);
    fs::create_dir(&dir).expect("a new name");
    let mut failures = String::new();
    for line in [
        &[pipe.as_str()][..],
        &[pipe.as_str(), "--format", "parquet"],
        &["/dev/null", "--format", "csv"],
        &[dir.as_str(), "--format", "csv"],
    ] {
        let failed = world.run(&[&["import", "t"], line].concat()).await.expect_err(line[0]);
        failures.push_str(&format!("{}\n", failed.message));
    }
    insta::assert_snapshot!(failures.replace(&world.path(""), ""), @r"
    read rows.jsonl: a pipe or device, which is read only once; name a file, or - for standard input
    read rows.jsonl: a pipe or device, which is read only once; name a file
    read /dev/null: a pipe or device, which is read only once; name a file, or - for standard input
    read d: Is a directory (os error 21)
    ");
    fs::write(&file, "k\n1\n").expect("the test owns the directory");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o444)).expect("the test owns the file");
    world.run(&["import", "t", &file]).await.expect("a file that may only be read");
    world.0.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tables_and_rows_are_changed() {
    let mut world = World::new().await;
    let create = [
        "create",
        "t",
        "--column",
        "k int32",
        "--column",
        "v string null",
        "--range",
        "k",
        "--bounds",
        "0..10",
    ];
    world.run(&create).await.expect("a new table");
    world.run(&["insert", "t", "k=1", "v=a"]).await.expect("a new row");
    let taken = world.run(&["insert", "t", "k=1", "v=b"]).await.expect_err("the key is taken");
    assert_eq!((taken.code, taken.message.as_str()), (1, "key already present"));
    world.run(&["upsert", "t", "k=2", "v="]).await.expect("a new row");
    world.run(&["update", "t", "k=1", "v"]).await.expect("a row with this key");
    world.run(&["update", "t", "k=3", "v=x"]).await.expect_err("there is no such row");
    let alter = [
        "alter",
        "t",
        "--add-column",
        "n int64 default=7",
        "--rename-column",
        "v=text",
        "--add-range",
        "10..20",
    ];
    world.run(&alter).await.expect("a lawful change");
    world.run(&["alter", "t", "--set-default", "n=8"]).await.expect("a lawful change");
    world.run(&["rename", "t", "renamed"]).await.expect("a free name");
    world.run(&["insert", "renamed", "k=15"]).await.expect("the new range");
    let output = world.path("out.csv");
    world.run(&["export", "renamed", &output, "--parallel", "1"]).await.expect("a new file");
    let rows = "k,text,n\n1,,7\n2,\"\",7\n15,,8\n";
    assert_eq!(fs::read_to_string(&output).expect("just written"), rows);
    let asked = world.run(&["drop", "renamed"]).await.expect_err("the test has no terminal");
    insta::assert_snapshot!(
        asked.message,
        @"table renamed: not dropped (standard input is no terminal; give --yes)"
    );
    world.run(&["drop", "renamed", "--yes"]).await.expect("it exists");
    world.run(&["recall", "renamed", "--as", "back"]).await.expect("it was dropped");
    let removal =
        ["alter", "back", "--drop-range", "10..20", "--drop-column", "n", "--add-column", "m int8 null"];
    let asked = world.run(&removal).await.expect_err("the test has no terminal");
    assert_eq!(asked.code, 1);
    insta::assert_snapshot!(
        asked.message,
        @"table back: not altered, column n, range 10..20 would be gone (standard input is no terminal; give --yes)"
    );
    world.run(&[&removal[..6], &["--yes"]].concat()).await.expect("a lawful change");
    world.run(&["delete", "back", "k=1"]).await.expect("a row with this key");
    world.run(&["export", "back", &output, "--force"]).await.expect("forced");
    assert_eq!(fs::read_to_string(&output).expect("just written"), "k,text\n2,\"\"\n");
    world.run(&["drop", "back", "--yes", "--now"]).await.expect("it exists");
    let gone = world.run(&["recall", "back"]).await.expect_err("nothing is kept");
    assert_eq!(gone.message, "table back: not among the dropped tables");
    world.0.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interrupted_export_closes_its_scanner() {
    let mut world = World::new().await;
    world.run(&["create", "t", "--column", "k int32", "--column", "v string"]).await.expect("a new table");
    let input = world.path("in.csv");
    let row = |k: i32| format!("{k},{}\n", "x".repeat(1000));
    let text: String = std::iter::once("k,v\n".to_string()).chain((0..20_000).map(row)).collect();
    fs::write(&input, text).expect("the test owns the directory");
    world.run(&["import", "t", &input]).await.expect("good rows");
    let server = world.0.tablet_server(0).server.clone();
    let scanning = server.clone();
    let stop = Box::pin(async move {
        while scanning.scanners().is_empty() {
            tokio::task::yield_now().await;
        }
    });
    let output = world.path("out.csv");
    let error = world.run_until(&["export", "t", &output], stop).await.expect_err("it has many batches left");
    assert_eq!((error.code, error.message.as_str()), (130, "interrupted"));
    // A call that was running when its scanner was closed drops it at its end.
    let closed = async {
        while !server.scanners().is_empty() {
            tokio::task::yield_now().await;
        }
    };
    let before_it_expires = Duration::from_secs(30);
    assert!(world.0.env.timeout(before_it_expires, closed).await.is_some(), "the server keeps the scanner");
    world.0.shutdown().await;
}

/// Returns name, id and parent of each span in a directory.
fn spans_in(dir: &str) -> Vec<(String, String, Option<String>)> {
    let files = fs::read_dir(dir).expect("a directory").map(|file| file.expect("a file").path());
    let lines: String = files.map(|file| fs::read_to_string(file).expect("text")).collect();
    let objects = lines.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).expect("JSON"));
    let spans = objects.flat_map(|line| {
        line["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array().expect("spans").clone()
    });
    let text = |value: &serde_json::Value| value.as_str().map(str::to_owned);
    spans
        .map(|span| {
            let parent = text(&span["parentSpanId"]);
            (text(&span["name"]).expect("a name"), text(&span["spanId"]).expect("an id"), parent)
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_traced_command_is_the_span_above_its_calls() {
    let world = World::new().await;
    let dir = world.path("trace");
    world.run(&["list", "--trace-dir", &dir]).await.expect("it lists");
    let spans = spans_in(&dir);
    let (_, command, parent) =
        spans.iter().find(|(name, ..)| name == "nyala table list").expect("the command");
    assert_eq!(*parent, None);
    for call in ["kudu.master.MasterService/ConnectToMaster", "kudu.master.MasterService/ListTables"] {
        let found = spans.iter().find(|(name, ..)| name == call);
        let (.., parent) = found.unwrap_or_else(|| panic!("{call}: {spans:?}"));
        assert_eq!(parent.as_ref(), Some(command), "{call}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_demo_on_a_running_cluster_drops_only_its_own_table() {
    let mut world = World::new().await;
    let masters = world.0.masters();
    let demo = ["demo", "--scale", "0.0001", "--masters", &masters];
    let create = ["create", "lineitem", "--column", "k int32", "--comment", "TPC-H, created by nyala demo"];
    world.run(&create).await.expect("a new table");
    let refused = run_until(&world.0.env, &demo, Box::pin(std::future::pending())).await;
    insta::assert_snapshot!(
        refused.expect_err("the table may be needed").message,
        @"table lineitem exists, and its rows may be needed; rename it (nyala table rename) or drop it (nyala table drop) first"
    );
    world.run(&["drop", "lineitem", "--yes", "--now"]).await.expect("it is still there");
    run_until(&world.0.env, &demo, Box::pin(std::future::pending())).await.expect("the name is free");
    world.run(&["describe", "lineitem"]).await.expect_err("the demo has dropped it");
    world.0.shutdown().await;
}
