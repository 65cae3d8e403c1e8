//! Program of the machine that is run for its output, within a time limit.

#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "this file is the real world")]

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, Output, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// Longest time that a program may take: a request or the start of a server waits for it.
const LIMIT: Duration = Duration::from_secs(10);

/// Runs a program and returns its standard output. An error if it does not end with status 0 in time: then it is killed
/// with all programs that it started.
pub(super) fn output(program: &str, arguments: &[String]) -> io::Result<Vec<u8>> {
    output_within(program, arguments, LIMIT)
}

fn output_within(program: &str, arguments: &[String], limit: Duration) -> io::Result<Vec<u8>> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // A group of its own, so that all of it can be killed.
    let child = command.process_group(0).spawn()?;
    let group = child.id().cast_signed();
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || sender.send(child.wait_with_output()));
    match receiver.recv_timeout(limit) {
        Ok(ended) => succeeded(program, ended?),
        Err(_) => {
            // SAFETY: it takes numbers only. The group is the child's, which is not reaped before its pipes close.
            unsafe { libc::kill(-group, libc::SIGKILL) };
            Err(io::Error::new(
                io::ErrorKind::TimedOut,
                format!("{program} did not end within {} s and was killed", limit.as_secs_f32()),
            ))
        }
    }
}

fn succeeded(program: &str, output: Output) -> io::Result<Vec<u8>> {
    if output.status.success() {
        return Ok(output.stdout);
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(format!("{program} ended with {}: {}", output.status, stderr.trim())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, limit: Duration) -> io::Result<Vec<u8>> {
        output_within("sh", &["-c".to_string(), script.to_string()], limit)
    }

    #[test]
    fn a_program_that_does_not_end_is_killed() {
        assert_eq!(shell("printf /rack", LIMIT).expect("it ends"), b"/rack");
        let failed = shell("echo no rack >&2; exit 3", LIMIT).expect_err("it fails");
        assert_eq!(failed.to_string(), "sh ended with exit status: 3: no rack");
        let killed = shell("sleep 1000; printf /rack", Duration::from_millis(20)).expect_err("it sleeps");
        assert_eq!(killed.kind(), io::ErrorKind::TimedOut);
    }
}
