//! `nyala debug …` on the directories of a stopped tablet server, as an operator runs it.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the test observes the program from outside"
)]

mod common;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Output;

use common::{nyala, stop, up};

const ROWS: [&str; 3] = ["1,one", "2,", "k,v"];

/// Runs a command; returns its exit code, and what it printed with ids and paths left out.
fn run(args: &[&str]) -> (Option<i32>, String) {
    let Output { status, stdout, stderr } = nyala(args).output().expect("it starts");
    (status.code(), String::from_utf8_lossy(&[stdout, stderr].concat()).into_owned())
}

/// Returns the masters' addresses in what `nyala up` printed.
fn masters(printed: &str) -> &str {
    let after = printed.split("nyala table list --masters ").nth(1);
    after.and_then(|rest| rest.split_whitespace().next()).expect("they are printed")
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

fn output_that_cannot_be_written_is_an_error(wal: &Path, tablet: &str) {
    let dir = ["--fs-wal-dir", wal.to_str().expect("UTF-8")];
    for words in [&["replica", "dump", tablet][..], &["replica", "list"], &["wal", "dump", tablet]] {
        let full =
            std::fs::OpenOptions::new().write(true).open("/dev/full").expect("the device of full disks");
        let mut command = nyala(&[&["debug"], words, &dir].concat());
        let Output { status, stderr, .. } = command.stdout(full).output().expect("it starts");
        let error = String::from_utf8_lossy(&stderr);
        assert!(status.code() == Some(1) && error.contains("write standard output"), "{error}");
    }
}

fn a_tablet_that_is_not_there_is_an_error(wal: &Path) {
    let absent = "000000000000000000000000000000ab";
    for command in [["fs", "dump"], ["cmeta", "print"]] {
        let (code, out) = debug(wal, &[&command[..], &[absent]].concat());
        let named = out.contains(&format!("tablet {absent}: no superblock in these directories"));
        assert!(code == Some(1) && named, "{out}");
    }
}

fn a_damaged_vote_is_rewritten(wal: &Path, data: &Path, tablet: &str) {
    let (code, before) = debug(wal, &["cmeta", "print", tablet]);
    assert_eq!(code, Some(0), "{before}");
    let id =
        before.split(" voter").next().and_then(|text| text.rsplit('[').next()).expect("a voter").to_string();
    flip(&data.join(format!("consensus-meta/{tablet}")), 20);
    let (code, out) = debug(wal, &["fs", "check"]);
    assert!(code == Some(1) && out.contains("consensus-meta"), "{out}");
    let voters = format!("{id}:127.0.0.1:7050");
    let rewrite = ["cmeta", "rewrite", tablet, "--voters", &voters];
    let (_, out) = debug(wal, &rewrite);
    assert!(out.contains("nothing was changed"), "{out}");
    assert_eq!(debug(wal, &[&rewrite[..], &["--yes"]].concat()).0, Some(0));
    assert_eq!(debug(wal, &["fs", "check"]).0, Some(0));
}

#[test]
fn a_stopped_server_is_checked_read_and_repaired() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let settings = ["--tablet-servers=1", "--flush-threshold-secs=0", "--webserver-enabled=false"];
    let (cluster, printed) = up(&dir.path().join("cluster"), &settings);
    let masters = masters(&printed);
    let table = |args: &[&str]| {
        let (code, out) = run(&[&["table"], args, &["--masters", masters]].concat());
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

    let tablet = tablet_in(&server);
    let named = ["fs", "check", "--repair", "--fs-data-dirs", wal.to_str().expect("UTF-8")];
    let (code, out) = debug(&wal, &named);
    assert!(
        code == Some(4) && out.contains("--repair: the data directory"),
        "the tablet is elsewhere: {out}"
    );
    // The stop may have interrupted a flush, whose file is left.
    let (code, out) = debug(&wal, &["fs", "check", "--repair"]);
    assert_eq!(code, Some(0), "{out}");
    let (code, out) = debug(&wal, &["fs", "check", "--deep"]);
    assert_eq!(code, Some(0), "{out}");
    assert!(out.starts_with("1 replicas, 0 tombstones"), "{out}");
    assert_eq!(rows(&wal, &tablet), ROWS);
    output_that_cannot_be_written_is_an_error(&wal, &tablet);
    let (code, out) = debug(&wal, &["replica", "list"]);
    assert!(code == Some(0) && out.contains(&tablet) && out.contains("READY"), "{out}");
    let (code, out) = debug(&wal, &["wal", "dump", &tablet]);
    assert!(code == Some(0) && out.contains(" write at ") && out.contains("1 segments"), "{out}");
    let (code, out) = debug(&wal, &["fs", "dump", &tablet]);
    assert!(code == Some(0) && out.contains("table_name: \"t\""), "{out}");
    a_tablet_that_is_not_there_is_an_error(&wal);

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

    a_damaged_vote_is_rewritten(&wal, &data, &tablet);
    assert_eq!(rows(&wal, &tablet), ROWS);
}

/// Returns the id of the only tablet of a server.
fn tablet_in(server: &Path) -> String {
    let tablet = only_entry(server.join("data/tablet-meta"));
    tablet.file_name().and_then(|name| name.to_str()).expect("an id").to_string()
}

/// Cuts the log of the only replica of a table in steps; rows that were cut are gone, others stay.
#[test]
fn the_end_of_a_log_is_cut() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let settings = ["--tablet-servers=1", "--webserver-enabled=false"];
    let (cluster, printed) = up(&dir.path().join("cluster"), &settings);
    for args in [
        &["create", "t", "--column", "k int32", "--column", "v string null"][..],
        &["insert", "t", "k=1", "v=one"],
        &["insert", "t", "k=2"],
        &["insert", "t", "k=3"],
    ] {
        let (code, out) = run(&[&["table"], args, &["--masters", masters(&printed)]].concat());
        assert_eq!(code, Some(0), "{out}");
    }
    let server = dir.path().join("cluster/tserver-1");
    let wal = server.join("wal");
    let tablet = tablet_in(&server);
    let cut = |args: &[&str]| {
        let (code, out) = debug(&wal, &[&["wal", "cut", &tablet], args].concat());
        let out = out.replace(&tablet, "TABLET").replace(wal.to_str().expect("UTF-8"), "WAL");
        format!("cut {}\n{out}code {}\n", args.join(" "), code.expect("it ended"))
    };
    let running = cut(&["--after", "3"]);
    assert!(running.contains("is in use by another process") && running.ends_with("code 4\n"), "{running}");
    stop(cluster);
    let steps = ["9", "0", "3", "3 --force", "3 --force --yes", "2 --force --yes", "3"];
    let transcript: Vec<String> =
        steps.iter().map(|step| cut(&format!("--after {step}").split(' ').collect::<Vec<_>>())).collect();
    expect_test::expect![[r#"
        cut --after 9
        nyala: tablet TABLET, cut after 9: the log ends with operation 1.4, so that nothing would be cut
        code 1

        cut --after 0
        nyala: tablet TABLET, cut after 0: the operations up to 4 are committed, and may be acknowledged to clients; --force cuts them
        code 1

        cut --after 3
        nyala: tablet TABLET, cut after 3: the operations up to 4 are committed, and may be acknowledged to clients; --force cuts them
        code 1

        cut --after 3 --force
        tablet TABLET: operations 1 to 4, committed up to 4
        to be cut: 1 operations after 3, 1 of them committed
        nothing was changed; --yes does it
        code 0

        cut --after 3 --force --yes
        tablet TABLET: operations 1 to 4, committed up to 4
        to be cut: 1 operations after 3, 1 of them committed
        the log ends with operation 1.3; the old one is in WAL/wals/TABLET.bak
        code 0

        cut --after 2 --force --yes
        nyala: wals/TABLET.bak has the log before an earlier cut; remove it
        code 1

        cut --after 3
        nyala: tablet TABLET, cut after 3: the log ends with operation 1.3, so that nothing would be cut
        code 1
    "#]].assert_eq(&transcript.join("\n"));
    assert_eq!(rows(&wal, &tablet), ROWS);
    let (code, out) = debug(&wal, &["fs", "check", "--deep"]);
    assert_eq!(code, Some(0), "{out}");
    // A server that starts with it continues after the cut.
    let (cluster, printed) = up(&dir.path().join("cluster"), &settings);
    let (code, out) = run(&["table", "insert", "t", "k=4", "--masters", masters(&printed)]);
    assert_eq!(code, Some(0), "{out}");
    stop(cluster);
    assert_eq!(rows(&wal, &tablet), ["1,one", "2,", "4,", "k,v"]);
}

/// Returns the files of an archive by path.
fn archive(path: &Path) -> BTreeMap<String, Vec<u8>> {
    let file = std::fs::File::open(path).expect("the bundle");
    let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(file));
    let mut files = BTreeMap::new();
    for entry in archive.entries().expect("an archive") {
        let mut entry = entry.expect("an entry");
        let (path, mut bytes) = (entry.path().expect("a path").display().to_string(), Vec::new());
        std::io::Read::read_to_end(&mut entry, &mut bytes).expect("it is whole");
        files.insert(path, bytes);
    }
    files
}

fn has(bytes: &[u8], wanted: &[u8]) -> bool {
    bytes.windows(wanted.len()).any(|window| window == wanted)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the content of all files below `dir`.
fn stored(dir: &Path) -> Vec<Vec<u8>> {
    let paths = std::fs::read_dir(dir).expect("a directory").map(|entry| entry.expect("an entry").path());
    paths
        .flat_map(
            |path| if path.is_dir() { stored(&path) } else { vec![std::fs::read(path).expect("a file")] },
        )
        .collect()
}

/// Returns the private key of the cluster's CA from a master's log: length, key, two bytes of length, certificate.
fn authority_secret(log: &[u8]) -> Option<&[u8]> {
    let is_record = |at: &&[u8]| at[0] == 32 && at[35..37] == [0x30, 0x82] && has(&at[37..], b"ipki-ca");
    log.windows(200).find(is_record).map(|record| &record[1..33])
}

/// A cell of the table, which is a key.
const CELL: &str = "cell-of-a-customer";

/// Fails if a file has the private key or a cell.
fn assert_no_secrets(files: &BTreeMap<String, Vec<u8>>, key: &[u8]) {
    let listed: String = CELL.bytes().map(|byte| format!("{byte},")).collect();
    for (path, bytes) in files {
        let dense: Vec<u8> = bytes.iter().copied().filter(|byte| !byte.is_ascii_whitespace()).collect();
        assert!(!has(&dense, listed.as_bytes()), "{path}: a cell as a list of bytes");
        for secret in [key, hex(key).as_bytes(), b"PRIVATE KEY", CELL.as_bytes()] {
            assert!(!has(bytes, secret), "{path}: {}", String::from_utf8_lossy(secret));
        }
    }
}

fn text<'a>(files: &'a BTreeMap<String, Vec<u8>>, name: &str) -> std::borrow::Cow<'a, str> {
    let found = files.iter().find(|(path, _)| path.ends_with(name));
    String::from_utf8_lossy(found.unwrap_or_else(|| panic!("there is no {name}")).1)
}

#[test]
fn a_bundle_has_pages_of_each_server_and_files_of_a_stopped_one_without_secrets() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let settings =
        ["--tablet-servers=2", "--flush-threshold-secs=0", "--log-compression-codec=NO_COMPRESSION"];
    let (cluster, printed) = up(&dir.path().join("cluster"), &settings);
    let masters = masters(&printed);
    for args in [
        &["table", "create", "t", "--column", "k string"][..],
        &["table", "insert", "t", &format!("k={CELL}")],
        &["table", "scan", "t", "--where", &format!("k = '{CELL}'")],
    ] {
        let (code, said) = run(&[args, &["--masters", masters]].concat());
        assert_eq!(code, Some(0), "{said}");
    }
    let out = dir.path().join("bundle.tar.gz");
    let output = format!("--output={}", out.display());
    let online = ["debug", "bundle", &output, "--masters", masters];
    let (code, said) = run(&online);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains(" 0 failures"), "{said}");
    let (code, said) = run(&online);
    assert!(code == Some(1) && said.contains("give --force to replace it"), "{said}");
    let files = archive(&out);
    let count = |name: &str| files.keys().filter(|path| path.ends_with(name)).count();
    let counts =
        ["metrics.json", "log.txt", "scrub.txt", "tablets.txt", "tables.txt", "check.json"].map(count);
    assert_eq!(counts, [3, 3, 3, 2, 1, 1], "{:?}", files.keys());
    assert!(text(&files, "flags.txt").contains("--fs_wal_dir="));
    stop(cluster);

    let cluster = dir.path().join("cluster");
    let kept = stored(&cluster);
    let key = kept.iter().find_map(|file| authority_secret(file)).expect("the master has a key");
    assert!(kept.iter().any(|file| has(file, CELL.as_bytes())), "a tablet server has the row");
    assert_no_secrets(&files, key);
    for server in ["master-1", "tserver-1", "tserver-2"] {
        let (code, said) = debug(&cluster.join(server).join("wal"), &["bundle", "--force", &output]);
        assert_eq!(code, Some(0), "{said}");
        let files = archive(&out);
        assert_eq!(files.len(), 3, "{:?}", files.keys());
        assert!(text(&files, "files/check.txt").contains(", 0 errors"));
        assert!(text(&files, "files/dump.txt").contains("WAL "));
        assert_no_secrets(&files, key);
    }
}

#[test]
fn masters_learn_the_voters_that_a_stopped_server_was_given() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let cluster = dir.path().join("cluster");
    let (running, printed) = up(&cluster, &["--tablet-servers=3", "--webserver-enabled=false"]);
    let masters = masters(&printed);
    for args in [&["create", "t", "--column", "k int32"][..], &["insert", "t", "k=1"]] {
        let (code, said) = run(&[&["table"], args, &["--masters", masters]].concat());
        assert_eq!(code, Some(0), "{said}");
    }
    stop(running);

    let wal = cluster.join("tserver-1/wal");
    let tablet = only_entry(cluster.join("tserver-1/data/tablet-meta"));
    let tablet = tablet.file_name().and_then(|name| name.to_str()).expect("an id").to_string();
    let (code, out) = debug(&wal, &["fs", "dump", &tablet]);
    assert_eq!(code, Some(0), "{out}");
    let id = out.split(',').next().and_then(|head| head.rsplit(' ').next()).expect("the server's id");
    let voters = format!("{id}:127.0.0.1:7050");
    let (code, out) = debug(&wal, &["cmeta", "rewrite", &tablet, "--voters", &voters, "--yes"]);
    assert_eq!(code, Some(0), "{out}");

    // The two others are lost.
    let (running, printed) = up(&cluster, &["--tablet-servers=1", "--webserver-enabled=false"]);
    let masters = self::masters(&printed);
    let mut check = String::new();
    for _ in 0..300 {
        check = run(&["cluster", "check", "--masters", masters]).1;
        if check.contains("1 replicas run (wanted 3)") {
            break;
        }
    }
    assert!(check.contains("1 replicas run (wanted 3)"), "{check}");
    let (code, out) = run(&["table", "insert", "t", "k=2", "--masters", masters]);
    assert_eq!(code, Some(0), "{out}");
    stop(running);
}
