//! Start and stop of the program `nyala` in tests.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};

pub(crate) fn nyala(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nyala"));
    command.args(args);
    command
}

/// Starts a cluster in `dir` on free ports, without waiting for it.
pub(crate) fn begin_up(dir: &Path, settings: &[&str]) -> Child {
    begin_up_command(dir, settings).spawn().unwrap()
}

/// Returns the command that starts a cluster in `dir` on free ports.
pub(crate) fn begin_up_command(dir: &Path, settings: &[&str]) -> Command {
    let args = ["up", "--free-ports", "--log-level=warn", "--dir", dir.to_str().unwrap()];
    let mut command = nyala(&args);
    command.args(settings).stdout(Stdio::piped());
    command
}

/// Starts a cluster in `dir` and waits until it is up. Returns the process and its output.
pub(crate) fn up(dir: &Path, settings: &[&str]) -> (Child, String) {
    until_up(begin_up(dir, settings))
}

/// Waits until a starting cluster is up. Returns the process and its output.
pub(crate) fn until_up(mut child: Child) -> (Child, String) {
    let mut printed = String::new();
    let mut lines = BufReader::new(child.stdout.as_mut().unwrap());
    while !printed.contains("Stop with Ctrl-C") {
        assert!(lines.read_line(&mut printed).unwrap() > 0, "it ended early: {printed}");
    }
    (child, printed)
}

/// Sends SIGTERM and waits for an orderly exit.
pub(crate) fn stop(mut child: Child) {
    let killed = Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap();
    assert!(killed.success());
    let mut rest = String::new();
    child.stdout.take().unwrap().read_to_string(&mut rest).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0), "{rest}");
}
