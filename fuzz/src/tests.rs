//! Tests of the corpora, as they are and damaged, of seeds and of dictionaries.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use super::*;

/// Largest number of damaged inputs of a target; fewer of slow ones.
const DAMAGED_MAX: [usize; 2] = [2_000, 20];

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn corpus(target: &Target) -> Vec<(PathBuf, Vec<u8>)> {
    let mut files: Vec<PathBuf> = fs::read_dir(folder("corpus").join(target.name))
        .expect("each target has a corpus")
        .map(|entry| entry.expect("a readable folder").path())
        .collect();
    files.sort();
    assert!(!files.is_empty(), "{} has an empty corpus", target.name);
    files.into_iter().map(|file| (file.clone(), fs::read(file).expect("a readable input"))).collect()
}

/// Runs all targets, also after a failure; panics with the names of those that failed.
fn every_target(test: impl Fn(&Target)) {
    let failed = |target: &&Target| catch_unwind(AssertUnwindSafe(|| test(target))).is_err();
    let failed: Vec<&str> = TARGETS.iter().filter(failed).map(|target| target.name).collect();
    assert!(failed.is_empty(), "found in {failed:?}, see above");
}

#[test]
fn corpora_are_replayed() {
    every_target(|target| {
        for (file, input) in corpus(target) {
            println!("{}", file.display());
            replay(target, &input);
        }
    });
}

/// Replays prefixes and single-byte changes of every input, which torn writes and bit rot resemble.
#[test]
fn damaged_corpora_do_not_break_targets() {
    every_target(|target| {
        let inputs = corpus(target);
        let total: usize = inputs.iter().map(|(_, input)| 6 * input.len()).sum();
        // Long inputs are damaged in some places only, the same in every run.
        let step = total.div_ceil(DAMAGED_MAX[usize::from(target.slow)]).max(1);
        for (file, input) in inputs {
            println!("{}", file.display());
            for (i, at) in (0..input.len()).step_by(step).enumerate() {
                replay(target, &input[..at]);
                for byte in [0, 1, 0x7f, 0x80, 0xff] {
                    let mut damaged = input.clone();
                    damaged[(at + i % step).min(input.len() - 1)] = byte;
                    replay(target, &damaged);
                }
            }
        }
    });
}

#[test]
fn seeds_match_the_encoders() {
    let corpora = folder("corpus");
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        seeds::write(&corpora).expect("a writable folder");
    }
    let stale = seeds::stale(&corpora);
    assert!(stale.is_empty(), "stale: {stale:?}; `cargo run -p fuzz -- seeds` makes them again");
}

#[test]
fn corpora_and_dictionaries_belong_to_targets() {
    for entry in fs::read_dir(folder("corpus")).expect("a folder") {
        let name = entry.expect("readable").file_name().into_string().expect("a plain name");
        assert!(target(&name).is_some(), "corpus/{name} belongs to no target");
    }
    for entry in fs::read_dir(folder("dictionaries")).expect("a folder") {
        let path = entry.expect("readable").path();
        let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
        assert!(target(&name).is_some(), "{} belongs to no target", path.display());
        for line in fs::read_to_string(&path).expect("text").lines() {
            let word = line.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
            let sound = line.starts_with('#') || word.is_some_and(|word| !word.is_empty());
            assert!(sound, "{}: {line}", path.display());
        }
    }
}

/// Request messages with a separate target, part of another, or without any field.
const ELSEWHERE: [&str; 5] = [
    "CreateTableRequestPb",
    "AlterTableRequestPb",
    "NewScanRequestPb",
    "ContinueChecksumRequestPb",
    "PingRequestPb",
];

#[test]
fn every_request_of_the_services_is_listed() {
    let mut missing = Vec::new();
    for service in ["consensus", "master", "server", "tserver"] {
        let file = folder("../node/proto/src/generated").join(format!("kudu.{service}.rs"));
        let source = fs::read_to_string(file).expect("generated sources");
        let names = source.lines().filter_map(|line| line.strip_prefix("pub struct "));
        let requests = names.filter_map(|rest| rest.split_whitespace().next());
        let requests: Vec<&str> = requests.filter(|name| name.ends_with("RequestPb")).collect();
        assert!(!requests.is_empty(), "{service} has requests");
        let listed = |name: &str| targets::messages::MESSAGES.iter().any(|(known, _)| *known == name);
        let left_out = requests.iter().filter(|name| !listed(name) && !ELSEWHERE.contains(name));
        missing.extend(left_out.map(|name| format!("{service}::{name}")));
    }
    assert!(missing.is_empty(), "fuzz/src/targets/messages.rs leaves out {missing:?}");
}
