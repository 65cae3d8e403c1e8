//! Users of this machine, and whose files are whose.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Bytes for the entry of one user; the longest known ones have a few hundred.
const USER_ENTRY_BYTES: usize = 16 << 10;
/// Number of the user who may do everything.
const ROOT: u32 = 0;

/// Returns the number of the process's effective user.
pub(super) fn process_user() -> u32 {
    // SAFETY: it has no preconditions.
    unsafe { libc::geteuid() }
}

/// Returns the name of a user, or its number if it has no name (in a container, for example).
pub(super) fn name_of(uid: u32) -> io::Result<String> {
    let mut buffer = [0; USER_ENTRY_BYTES];
    let mut found = std::ptr::null_mut();
    // SAFETY: passwd is a plain structure for which zeros are valid, and the call fills it.
    let mut entry: libc::passwd = unsafe { std::mem::zeroed() };
    // SAFETY: all pointers are those of live, writable values, and the length is that of the buffer.
    let status = unsafe { libc::getpwuid_r(uid, &mut entry, buffer.as_mut_ptr(), buffer.len(), &mut found) };
    if status != 0 {
        return Err(io::Error::from_raw_os_error(status));
    }
    if found.is_null() {
        return Ok(uid.to_string());
    }
    // SAFETY: the call found an entry, so the name is a C string in the buffer, which is alive.
    let name = unsafe { std::ffi::CStr::from_ptr(entry.pw_name) };
    Ok(name.to_string_lossy().into_owned())
}

/// Returns the name of the owner of `path`, or of the nearest directory above it that exists, if this is root's process
/// and the directory is not root's. Only root can leave files there that the owner cannot open.
pub(super) fn other_owner(path: &Path) -> io::Result<Option<String>> {
    if process_user() != ROOT {
        return Ok(None);
    }
    let existing = path.ancestors().find_map(|place| std::fs::metadata(place).ok());
    existing.map(|place| place.uid()).filter(|uid| *uid != ROOT).map(name_of).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_told_whose_directory_it_writes_in() {
        let dir = tempfile::tempdir().expect("a directory");
        let missing = dir.path().join("wal/files");
        assert_eq!(other_owner(&missing).expect("an owner"), None, "it is this user's");
        // Without root's rights no directory can be given away, nor is there anything to find.
        if std::os::unix::fs::chown(dir.path(), Some(65_533), None).is_ok() && process_user() == ROOT {
            assert_eq!(other_owner(&missing).expect("an owner"), Some("65533".to_string()));
        }
    }
}
