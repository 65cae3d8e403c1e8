//! The engine's only interface to the outside: files that are appended, synced, renamed and removed, never
//! overwritten.
//!
//! The durability contract, of which [`mem::MemDisk`] provides the minimum:
//!
//! - After a crash a file holds everything that was in it when its last successful [`DiskFile::sync`] began, and
//!   perhaps some of the bytes appended later: a prefix, whose last bytes may be torn.
//! - Creating, renaming and removing a name is durable only after [`Disk::sync_dir`] of its directory.
//! - A [`DiskFile::sync`] that failed is final: the bytes it should have kept may be gone even if a later sync
//!   succeeds. The caller must abandon the file.
//!
//! Paths are relative to the disk's root, `/`-separated, without `.` or `..` (`EINVAL`); the root itself is `""`.

use std::io;
use std::sync::Arc;

pub mod conformance;
pub mod mem;
pub mod os;
pub mod overlay;

/// Bytes on the device behind a [`Disk`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskSpace {
    pub total: u64,
    pub free: u64,
    /// Number of the device, if devices have numbers.
    pub device: Option<u64>,
}

/// Kind of what has a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKind {
    File,
    Dir,
    /// A symbolic link, which may lead nowhere.
    Link,
    /// A device, a pipe or a socket.
    Special,
}

/// One directory tree. Errors carry the operating system's errno (`raw_os_error`).
pub trait Disk: Send + Sync {
    /// Creates a new empty file; `EEXIST` if the name is taken.
    fn create(&self, path: &str) -> io::Result<Arc<dyn DiskFile>>;
    /// Opens a file for reading and appending; `ENOENT` if there is none.
    fn open(&self, path: &str) -> io::Result<Arc<dyn DiskFile>>;
    /// Opens a regular file for reading alone, also one that this process may not write to; `ENOENT` if there is none,
    /// `ESPIPE` for a pipe, a socket or a device. Appends through the handle fail with `EBADF`, truncations with
    /// `EINVAL`.
    fn open_read(&self, path: &str) -> io::Result<Arc<dyn DiskFile>>;
    /// Returns the kind of what has a name, also if it may not be opened; `None` if the name is free. Links are not
    /// followed.
    fn entry_kind(&self, path: &str) -> io::Result<Option<EntryKind>>;
    /// Renames a file atomically, replacing the file that had the name. Fails with `EISDIR` for a directory,
    /// `ENOTEMPTY` for one that contains the file.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file, or an empty directory.
    fn remove(&self, path: &str) -> io::Result<()>;
    /// Returns the names in a directory (files and directories), sorted.
    fn list(&self, dir: &str) -> io::Result<Vec<String>>;
    /// Creates a directory and its missing parents; succeeds if it exists.
    fn create_dir(&self, dir: &str) -> io::Result<()>;
    /// Makes the names in a directory durable.
    fn sync_dir(&self, dir: &str) -> io::Result<()>;
    fn space(&self) -> io::Result<DiskSpace>;
    /// Takes the exclusive lock on a file until the guard is dropped; `EWOULDBLOCK` if another process has it.
    fn lock(&self, path: &str) -> io::Result<Box<dyn Send + Sync>>;
}

/// An open file. A handle stays valid when the file is renamed or removed.
pub trait DiskFile: Send + Sync {
    /// Writes all of `bytes` at the end, or fails with some prefix of them written.
    fn append(&self, bytes: &[u8]) -> io::Result<()>;
    /// Fills `out` from `offset`; `UnexpectedEof` if the file ends earlier.
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()>;
    fn len(&self) -> io::Result<u64>;
    /// Truncates the file to `len` bytes, where the next append goes; `EINVAL` if it is shorter already.
    fn truncate(&self, len: u64) -> io::Result<()>;
    /// Makes the appended bytes durable.
    fn sync(&self) -> io::Result<()>;
    /// Reserves space on the device beyond the end without changing the length; only a hint.
    fn reserve(&self, bytes: u64) -> io::Result<()>;
    /// Announces a read of these bytes, so that the device may fetch them meanwhile; only a hint.
    fn will_read(&self, _offset: u64, _len: u64) {}
    /// Announces reads that verify the file, so that they come from the device and not from a cache; only a hint. It is
    /// for the whole file, because a cache keeps pages that a part covers only partly.
    fn will_verify(&self) {}
    /// Starts writing these bytes to the device, so that a later [`DiskFile::sync`] has less left to wait for. Only a
    /// hint, which makes nothing durable.
    fn begin_writing(&self, _offset: u64, _len: u64) {}

    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }
}

/// Creates a directory and its missing parents, and makes their names durable.
pub fn create_dir_durably(disk: &dyn Disk, dir: &str) -> io::Result<()> {
    disk.create_dir(dir)?;
    let mut rest = dir;
    while !rest.is_empty() {
        rest = parent(rest);
        disk.sync_dir(rest)?;
    }
    Ok(())
}

/// End of the name of an interrupted replacement; see [`replace_file`].
pub(crate) const TMP: &str = ".tmp";

/// Replaces the file `path` atomically by one that holds `bytes`, durably when this returns.
///
/// A crash or a failure may leave a file `path` with `.tmp` appended; the next call overwrites it.
pub fn replace_file(disk: &dyn Disk, path: &str, bytes: &[u8]) -> io::Result<()> {
    let tmp = format!("{path}{TMP}");
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

/// Returns the contents of a file.
pub fn read_file(disk: &dyn Disk, path: &str) -> io::Result<Vec<u8>> {
    let file = disk.open(path)?;
    let len = usize::try_from(file.len()?).map_err(|_| io::ErrorKind::FileTooLarge)?;
    let mut bytes = vec![0; len];
    file.read_at(0, &mut bytes)?;
    Ok(bytes)
}

/// Returns the directory of a path; the root is `""`.
pub fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(parent, _)| parent)
}

/// Returns `EINVAL` unless `path` is relative, without empty, `.` or `..` components. The root is `""`.
pub(crate) fn check_path(path: &str) -> io::Result<()> {
    let bad = |part: &str| part.is_empty() || part == "." || part == ".." || part.contains('\0');
    if !path.is_empty() && path.split('/').any(bad) {
        return Err(rustix::io::Errno::INVAL.into());
    }
    Ok(())
}
