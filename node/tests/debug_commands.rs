//! `nyala debug …` on the directories of a stopped tablet server, as an operator runs it.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the test observes the program from outside"
)]

mod common;

use std::path::{Path, PathBuf};
use std::process::Output;

use common::{nyala, stop, up};

const ROWS: [&str; 3] = ["1,\"one\"", "2,", "k,v"];

/// Runs a command; returns its exit code, and what it printed with ids and paths left out.
fn run(args: &[&str]) -> (Option<i32>, String) {
    let Output { status, stdout, stderr } = nyala(args).output().expect("it starts");
    (status.code(), String::from_utf8_lossy(&[stdout, stderr].concat()).into_owned())
}

fn debug(dir: &Path, args: &[&str]) -> (Option<i32>, String) {
    let wal = dir.to_str().expect("UTF-8");
    run(&[&["debug"], args, &["--fs-wal-dir", wal]].concat())
}

/// The lines of a dump, sorted: rows come in the order of their files.
fn rows(dir: &Path, tablet: &str) -> Vec<String> {
    let (code, out) = debug(dir, &["replica", "dump", tablet]);
    assert_eq!(code, Some(0), "{out}");
    let mut rows: Vec<String> = out.lines().map(str::to_string).collect();
    rows.sort();
    rows
}

fn only_entry(dir: PathBuf) -> PathBuf {
    let mut entries =
        std::fs::read_dir(dir).expect("a directory").map(|entry| entry.expect("an entry").path());
    let only = entries.next().expect("one entry");
    assert_eq!(entries.next(), None);
    only
}

fn flip(path: &Path, at: usize) {
    let mut bytes = std::fs::read(path).expect("a file");
    bytes[at] ^= 1;
    std::fs::write(path, bytes).expect("written");
}

#[test]
fn a_stopped_server_is_checked_read_and_repaired() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let settings = ["--tablet-servers=1", "--flush-threshold-secs=0", "--webserver-enabled=false"];
    let (cluster, printed) = up(&dir.path().join("cluster"), &settings);
    let masters =
        printed.split("nyala table list --masters ").nth(1).and_then(|rest| rest.split_whitespace().next());
    let masters = masters.expect("it is printed").to_string();
    let table = |args: &[&str]| {
        let (code, out) = run(&[&["table"], args, &["--masters", &masters]].concat());
        assert_eq!(code, Some(0), "{out}");
    };
    table(&["create", "t", "--column", "k int32", "--column", "v string null"]);
    table(&["insert", "t", "k=1", "v=one"]);
    table(&["insert", "t", "k=2"]);
    let server = dir.path().join("cluster/tserver-1");
    let (wal, data) = (server.join("wal"), server.join("data"));
    let (code, out) = debug(&wal, &["fs", "check"]);
    assert_eq!(code, Some(4), "the server runs: {out}");
    stop(cluster);

    let tablet = only_entry(data.join("tablet-meta"));
    let tablet = tablet.file_name().and_then(|name| name.to_str()).expect("an id").to_string();
    let (code, out) = debug(&wal, &["fs", "check", "--deep"]);
    assert_eq!(code, Some(0), "{out}");
    assert!(out.starts_with("1 replicas, 0 tombstones"), "{out}");
    assert_eq!(rows(&wal, &tablet), ROWS);
    let (code, out) = debug(&wal, &["replica", "list"]);
    assert!(code == Some(0) && out.contains(&tablet) && out.contains("READY"), "{out}");
    let (code, out) = debug(&wal, &["wal", "dump", &tablet]);
    assert!(code == Some(0) && out.contains(" write at ") && out.contains("1 segments"), "{out}");
    let (code, out) = debug(&wal, &["fs", "dump", &tablet]);
    assert!(code == Some(0) && out.contains("table_name: \"t\""), "{out}");

    let orphan = data.join(format!("data/{tablet}/00000099.rows"));
    std::fs::write(&orphan, b"left by a crash").expect("written");
    let (code, out) = debug(&wal, &["fs", "check", "--repair"]);
    assert!(code == Some(0) && out.contains("00000099.rows: nothing refers to it"), "{out}");
    assert!(!orphan.exists());

    let other = dir.path().join("other");
    let settings = ["--tablet-servers=1", "--webserver-enabled=false"];
    stop(up(&other, &settings).0);
    let other = other.join("tserver-1/wal");
    let (code, out) = debug(&wal, &["replica", "copy", &tablet, "--to", other.to_str().expect("UTF-8")]);
    assert_eq!(code, Some(0), "{out}");
    assert_eq!(rows(&other, &tablet), ROWS);
    assert_eq!(debug(&other, &["replica", "delete", &tablet]).0, Some(1), "without --yes");
    assert_eq!(debug(&other, &["replica", "delete", &tablet, "--yes"]).0, Some(0));
    let (code, out) = debug(&other, &["fs", "check"]);
    assert!(code == Some(0) && out.starts_with("0 replicas, 1 tombstones"), "{out}");

    let (code, before) = debug(&wal, &["cmeta", "print", &tablet]);
    assert_eq!(code, Some(0), "{before}");
    let id =
        before.split(" voter").next().and_then(|text| text.rsplit('[').next()).expect("a voter").to_string();
    flip(&data.join(format!("consensus-meta/{tablet}")), 20);
    let (code, out) = debug(&wal, &["fs", "check"]);
    assert!(code == Some(1) && out.contains("consensus-meta"), "{out}");
    let voters = format!("{id}:127.0.0.1:7050");
    let rewrite = ["cmeta", "rewrite", &tablet, "--voters", &voters];
    let (_, out) = debug(&wal, &rewrite);
    assert!(out.contains("nothing was changed"), "{out}");
    assert_eq!(debug(&wal, &[&rewrite[..], &["--yes"]].concat()).0, Some(0));
    assert_eq!(debug(&wal, &["fs", "check"]).0, Some(0));
    assert_eq!(rows(&wal, &tablet), ROWS);
}
