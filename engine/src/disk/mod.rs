//! The engine's only door to the world: files that are appended, synced, renamed and removed, never overwritten.
//!
//! The durability contract, which [`mem::MemDisk`] takes at its word:
//!
//! - After a crash a file holds everything that was in it when its last successful [`File::sync`] began, and
//!   perhaps some of what was appended later: a prefix, whose last bytes may be torn.
//! - Creating, renaming and removing a name is certain only after [`Disk::sync_dir`] of its directory.
//! - A [`File::sync`] that failed is final: the bytes it should have kept may be gone even if a later sync
//!   succeeds. The caller must give the file up.
//!
//! Paths are relative to the disk's root, `/`-separated, without `.` or `..` (`EINVAL`); the root itself is `""`.

use std::io;
use std::sync::Arc;

pub mod conformance;
pub mod mem;
pub mod os;

/// Bytes on the device behind a [`Disk`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    pub total: u64,
    pub free: u64,
}

/// One directory tree. Errors carry the operating system's errno (`raw_os_error`).
pub trait Disk: Send + Sync {
    /// Makes a new empty file; `EEXIST` if the name is taken.
    fn create(&self, path: &str) -> io::Result<Arc<dyn File>>;
    /// Opens a file for reading and appending; `ENOENT` if there is none.
    fn open(&self, path: &str) -> io::Result<Arc<dyn File>>;
    /// Gives a file another name, replacing the file that had it, at once or not at all; `EISDIR` for a directory,
    /// `ENOTEMPTY` for one that the file lies in.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file, or an empty directory.
    fn remove(&self, path: &str) -> io::Result<()>;
    /// Names in a directory (files and directories), sorted.
    fn list(&self, dir: &str) -> io::Result<Vec<String>>;
    /// Makes a directory and its missing parents; fine if it is there.
    fn create_dir(&self, dir: &str) -> io::Result<()>;
    /// Makes the names in a directory durable.
    fn sync_dir(&self, dir: &str) -> io::Result<()>;
    fn space(&self) -> io::Result<Space>;
    /// Takes the exclusive lock on a file for as long as the guard lives; `EWOULDBLOCK` if another process has it.
    fn lock(&self, path: &str) -> io::Result<Box<dyn Send + Sync>>;
}

/// An open file. A handle stays good when the file is renamed or removed.
pub trait File: Send + Sync {
    /// Writes all of `bytes` at the end, or fails with some prefix of them written.
    fn append(&self, bytes: &[u8]) -> io::Result<()>;
    /// Fills `out` from `offset`; `UnexpectedEof` if the file ends before.
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()>;
    fn len(&self) -> io::Result<u64>;
    /// Cuts the file to `len` bytes, where the next append goes; `EINVAL` if it is shorter already.
    fn truncate(&self, len: u64) -> io::Result<()>;
    /// Makes what was appended durable.
    fn sync(&self) -> io::Result<()>;
    /// Reserves space on the device beyond the end without changing the length; only a hint.
    fn reserve(&self, bytes: u64) -> io::Result<()>;
    /// Says that these bytes will be read soon, so that the device may fetch them meanwhile; only a hint.
    fn will_read(&self, _offset: u64, _len: u64) {}
    /// Says that these bytes may go to the device from now on, so that a later [`File::sync`] has less left to wait
    /// for; only a hint, which makes nothing durable.
    fn begin_writing(&self, _offset: u64, _len: u64) {}

    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }
}

/// Makes a directory and its missing parents, and their names durable.
pub fn create_dir_durably(disk: &dyn Disk, dir: &str) -> io::Result<()> {
    disk.create_dir(dir)?;
    let mut rest = dir;
    while !rest.is_empty() {
        rest = parent(rest);
        disk.sync_dir(rest)?;
    }
    Ok(())
}

/// Replaces the file `path` by one that holds `bytes`: at once or not at all, and durably when this returns.
///
/// A crash may leave `path` with `.tmp` behind it; the next call overwrites that.
pub fn replace_file(disk: &dyn Disk, path: &str, bytes: &[u8]) -> io::Result<()> {
    let tmp = format!("{path}.tmp");
    match disk.remove(&tmp) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let file = disk.create(&tmp)?;
    file.append(bytes)?;
    file.sync()?;
    disk.rename(&tmp, path)?;
    disk.sync_dir(parent(path))
}

/// The whole contents of a file.
pub fn read_file(disk: &dyn Disk, path: &str) -> io::Result<Vec<u8>> {
    let file = disk.open(path)?;
    let len = usize::try_from(file.len()?).map_err(|_| io::ErrorKind::FileTooLarge)?;
    let mut bytes = vec![0; len];
    file.read_at(0, &mut bytes)?;
    Ok(bytes)
}

/// The directory a path lies in; the root is `""`.
pub fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(parent, _)| parent)
}

/// `EINVAL` unless `path` is relative, without empty, `.` or `..` components. The root is `""`.
pub(crate) fn check_path(path: &str) -> io::Result<()> {
    let bad = |part: &str| part.is_empty() || part == "." || part == ".." || part.contains('\0');
    if !path.is_empty() && path.split('/').any(bad) {
        return Err(rustix::io::Errno::INVAL.into());
    }
    Ok(())
}
