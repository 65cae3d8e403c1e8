//! Another time for one process, by Debian's package faketime.

use std::path::Path;
use std::process::Command;

const LIBRARY: &str = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1";

/// Returns true if a process can be given another time.
pub(super) fn is_installed() -> bool {
    Path::new(LIBRARY).exists()
}

/// Sets the clock of a process that is about to start; 0 leaves it alone. Its monotonic clock stays right.
pub(super) fn set_ahead(command: &mut Command, seconds: u64) {
    if seconds > 0 {
        let ahead = format!("+{seconds}s");
        command.env("LD_PRELOAD", LIBRARY).env("FAKETIME", ahead).env("DONT_FAKE_MONOTONIC", "1");
    }
}
