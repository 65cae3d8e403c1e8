//! The program itself: exit codes, and commands that run plans in turmoil's world.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Runs the program. Its exit code is there unless it was killed.
fn sim(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_sim")).args(words).output().expect("the program starts")
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Writes a plan of one server and one client with a pause, whose clients must end within `limit`.
fn plan(dir: &Path, limit: &str) -> PathBuf {
    let path = dir.join("small.plan");
    let writes: String =
        (0..40).map(|key| format!("  write kind=upsert table=0 key={key} value={key}\n")).collect();
    let plan = format!(
        "seed 1\n\
         cluster masters=1 tservers=1 replicas=1 tables=1 tablets=2 limits=normal log_sync=true \
         memory=1073741824 raft_heartbeat=500ms heartbeat=100ms follower_failed=3s maintenance=250ms \
         rpc_timeout=500ms op_timeout=5s\n\
         disk op=10us kib=300ns sync=60us\n\
         net latency=1ms jitter=1ms bytes_per_ms=125000 window=65536 loss_per_mille=0 cut_one_in=64\n\
         limit {limit}\n\
         quiet 60s\n\
         client number=0 flush=sync waits=no pace=40ms propagate_every=0\n\
         {writes}\
         at 500ms t0 pause span=300ms\n\
         at 900ms t0 kill down=50ms\n"
    );
    std::fs::write(&path, plan).expect("a writable folder");
    path
}

#[test]
fn arguments_that_parse_and_are_wrong_have_exit_code_2() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let small = plan(dir.path(), "30s").display().to_string();
    let empty = dir.path().display().to_string();
    let merged = dir.path().join("all.db").display().to_string();
    std::fs::write(dir.path().join("broken.txt"), "seed x\n").expect("written");
    let broken = dir.path().join("broken.txt").display().to_string();
    for (words, names) in [
        (vec!["replay", "none.plan"], "neither a seed nor a file"),
        (vec!["replay", &broken], "line 1"),
        (vec!["run", "--seeds", "1..2", "--shard", "0/2"], "no seed"),
        (vec!["run", "--seeds", "10..5"], "FROM below TO"),
        (vec!["run", "--profile", "nope"], "swarm"),
        (vec!["run", "--size", "nope"], "bench"),
        (vec!["plans", "none"], "no such folder"),
        (vec!["plans", "src"], "no plan"),
        (vec!["mutants", "--dir", "mutants", "--only", "01-,no-such-patch"], "no-such-patch"),
        (vec!["mutants", "--dir", "src"], "no patch"),
        (vec!["merge", &merged, "none.db"], "no such file"),
        (vec!["coverage", "none.db"], "no such file"),
        (vec!["without", &small, "--world", "turmoil"], "2  at 900ms t0 kill down=50ms"),
        (vec!["without", &small, "--fault", "3", "--world", "turmoil"], "1  at 500ms t0 pause"),
        (vec!["fated", &empty], "neither a seed nor a file"),
    ] {
        let output = sim(&words);
        assert_eq!(output.status.code(), Some(2), "{words:?}: {}", text(&output));
        assert!(text(&output).contains(names), "{words:?}: {}", text(&output));
    }
}

#[test]
fn a_run_without_a_fault_is_compared_with_the_run_that_has_it() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let small = plan(dir.path(), "30s").display().to_string();
    let output = sim(&["without", &small, "--fault", "2", "--world", "turmoil"]);
    let text = text(&output);
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(text.contains("fault 2 of 2: at 900ms t0 kill down=50ms"), "{text}");
    assert!(text.contains("first event that differs"), "{text}");
    let killed = text.lines().find(|line| line.starts_with("fault kill"));
    let counts: Vec<&str> = killed.expect("it fired once").split_whitespace().skip(2).collect();
    assert_eq!(counts, ["1", "0"]);
    assert!(text.contains("verdict with     clean") && text.contains("verdict without  clean"), "{text}");
    assert!(text.contains("draws come from streams"), "{text}");
}

#[test]
fn a_failing_plan_is_decided_by_its_ops_or_its_faults() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    // Forty ops at a pace of 40 ms do not end within one second, whatever the faults are.
    let small = plan(dir.path(), "1s").display().to_string();
    let output = sim(&["fated", &small, "--world", "turmoil"]);
    let found = text(&output);
    assert_eq!(output.status.code(), Some(0), "{found}");
    assert!(found.starts_with("liveness: "), "{found}");
    assert!(found.contains("faults  none of 2 is needed"), "{found}");
    assert!(found.contains("ops     of 40 of each client the first"), "{found}");
    let clean = plan(dir.path(), "30s").display().to_string();
    let output = sim(&["fated", &clean, "--world", "turmoil"]);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output));
    assert!(text(&output).contains("does not fail"), "{}", text(&output));
}

#[test]
fn late_faults_are_applied_and_counted_in_turmoils_world_too() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = plan(dir.path(), "30s");
    let faults = "at 1000ms t0 cut-call peer=c0 part=answer nth=2 span=2s\n\
                  at 1300ms t0 rolling-restart down=20ms every=200ms\n\
                  at 1500ms t0 power-cut-pages down=20ms\n";
    let with_late = std::fs::read_to_string(&path).expect("written before") + faults;
    std::fs::write(&path, with_late).expect("a writable folder");
    let output = sim(&["plans", &dir.path().display().to_string(), "--world", "turmoil"]);
    let text = text(&output);
    assert_eq!(output.status.code(), Some(0), "{text}");
    for name in ["cut-call", "net: calls cut", "rolling-restart", "power-cut-pages"] {
        let is_counted = |line: &str| line.trim_start_matches("faults").trim_start().starts_with(name);
        assert!(text.lines().any(is_counted), "{name}: {text}");
    }
}

#[test]
fn equal_runs_have_equal_features_and_collecting_them_changes_no_run() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let small = plan(dir.path(), "30s").display().to_string();
    let run = |more: &[&str]| text(&sim(&[&["one", &small, "--world", "turmoil"], more].concat()));
    let line =
        |text: &str, mark: &str| text.lines().find_map(|line| line.strip_prefix(mark)).map(str::to_string);
    let [one, again, plain] = [run(&["--features"]), run(&["--features"]), run(&[])];
    let features = line(&one, "@features ").expect("they are printed");
    assert!(features.len() > 1_000, "{features}");
    assert_eq!(line(&again, "@features "), Some(features));
    assert_eq!(line(&plain, "@features "), None);
    let hash = |text: &str| {
        let outcome = line(text, "@outcome ").expect("every run ends with it");
        serde_json::from_str::<serde_json::Value>(&outcome).expect("JSON")["hash"].clone()
    };
    assert_eq!(hash(&one), hash(&plain));
}
