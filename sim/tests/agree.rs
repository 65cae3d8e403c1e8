//! Determined plans on turmoil and on this machine, in processes of the program itself.

use std::process::{Command, Output};

/// Runs the program. Its exit code is there unless it was killed.
fn sim(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_sim")).args(words).output().expect("the program starts")
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn turmoil_and_the_machine_agree() {
    let output = sim(&["agree", "--plans", "2", "--worlds", "turmoil,machine"]);
    let text = text(&output);
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(text.contains("2 plans in turmoil, machine: 2 agree, 0 differ"), "{text}");
}

#[test]
fn a_plan_whose_end_depends_on_time_is_refused() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("swarm.plan");
    let swarm = sim(&["plan", "1", "--profile", "network"]).stdout;
    std::fs::write(&path, swarm).expect("a writable folder");
    let output = sim(&["agree", &path.display().to_string()]);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output));
    assert!(text(&output).contains("its end is not determined"), "{}", text(&output));
}
