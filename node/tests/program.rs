//! The program as a person meets it: what it prints, how it ends, with which exit code.
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "it is looked at from outside")]

use std::net::TcpListener;
use std::process::Output;

use common::{nyala, stop, up};
use engine::codec;

mod common;

/// Runs to the end; the exit code and what was said on standard error.
fn fails(args: &[&str]) -> (i32, String) {
    let Output { status, stderr, .. } = nyala(args).output().unwrap();
    (status.code().unwrap(), String::from_utf8(stderr).unwrap())
}

#[test]
fn a_cluster_comes_up_stops_and_comes_up_again() {
    let dir = tempfile::tempdir().unwrap();
    for _ in 0..2 {
        let (child, printed) = up(&dir.path().join("data"), &["--tablet-servers=2"]);
        let servers = printed.lines().filter(|line| line.contains("/metrics")).count();
        assert_eq!(servers, 3, "{printed}");
        stop(child);
    }
}

#[test]
fn a_directory_of_another_server_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    stop(up(&dir.path().join("data"), &["--tablet-servers=2"]).0);
    let wal = dir.path().join("data/tserver-1/wal");
    let wal = wal.to_str().unwrap();
    let data = dir.path().join("data/tserver-2/data");
    let data = data.to_str().unwrap();
    let bind = "--rpc_bind_addresses=127.0.0.1:0";

    let (code, said) = fails(&["master", bind, "--fs_wal_dir", wal]);
    assert_eq!(code, 4);
    assert!(said.contains("belongs to a tablet server, not to a master"), "{said}");

    let (code, said) = fails(&["tablet-server", bind, "--fs_wal_dir", wal, "--fs_data_dirs", data]);
    assert_eq!(code, 4);
    assert!(said.contains("give each server its own directories"), "{said}");

    let instance = format!("{wal}/instance");
    let bytes = std::fs::read(&instance).unwrap();
    let magic = bytes[..4].try_into().unwrap();
    let (version, payload) = codec::unseal(magic, u16::MAX, &bytes).unwrap();
    std::fs::write(&instance, codec::seal(magic, version + 1, payload)).unwrap();
    let (code, said) = fails(&["tablet-server", bind, "--fs_wal_dir", wal]);
    assert_eq!(code, 4);
    assert!(said.contains("newer than the newest this build reads"), "{said}");
}

#[test]
fn an_address_in_use_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let bind = format!("--rpc_bind_addresses={taken}");
    let listening = TcpListener::bind(taken).unwrap();
    let (code, said) = fails(&["master", &bind, "--fs_wal_dir", dir.path().join("m").to_str().unwrap()]);
    drop(listening);
    assert_eq!(code, 3);
    assert!(said.contains("another program has it"), "{said}");
}

#[test]
fn wrong_settings_are_told_before_anything_starts() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("nyala.toml");
    std::fs::write(&file, "fs_wal_dir = \"/x\"\nlog_sink = true\n").unwrap();
    let (code, said) = fails(&["master", "--config", file.to_str().unwrap()]);
    assert_eq!(code, 2);
    assert!(said.contains("line 2: there is no setting \"log_sink\"; did you mean \"log_sync\"?"), "{said}");

    let cases: [(&[&str], &str); 6] = [
        (&["master"], "name one with --fs-wal-dir"),
        (&["master", "--fs_wall_dir=/x"], "a similar argument exists: '--fs-wal-dir'"),
        (&["tserver", "--fs_wal_dir=/x", "--scanner_ttl_ms=soon"], "is not a whole number"),
        (&["master", "--fs_wal_dir=/x", "--log_level=a=b=c"], "log_level"),
        (&["master", "--config=/nonexistent"], "read the settings in /nonexistent"),
        (&["up", "--masters=2", "--free-ports"], "an odd number of masters"),
    ];
    for (args, wanted) in cases {
        let (code, said) = fails(args);
        assert_eq!(code, 2, "{args:?}: {said}");
        assert!(said.contains(wanted), "{args:?}: {said}");
    }
}
