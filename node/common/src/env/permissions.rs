//! Permissions of files on this machine.

use std::io;
use std::os::unix::fs::PermissionsExt;

/// Sets the permissions that new files and directories of this process do not get.
pub fn set_umask(mask: u32) {
    // SAFETY: it takes a number, always succeeds, and changes nothing but the modes of files created later.
    unsafe { libc::umask(mask) };
}

/// Returns the permissions of a file, as `chmod` takes them.
pub(super) fn file_mode(path: &str) -> io::Result<u32> {
    Ok(std::fs::metadata(path)?.permissions().mode() & 0o7777)
}
