//! [`OsDisk`]: a directory of the real file system.
//!
//! The only file of the engine that may name `std::fs`. Every handle that writes appends with `O_APPEND`; `fdatasync`
//! makes the length durable too, and `fsync` of a directory its names.
#![allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "only this file of the engine may use the file system"
)]

use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::num::NonZeroU64;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{Advice, FallocateFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use super::{Disk, DiskFile, DiskSpace, EntryKind, check_path};

/// A directory of the real file system.
#[derive(Debug, Clone)]
pub struct OsDisk {
    root: PathBuf,
}

impl OsDisk {
    /// Opens `root`, creating it and its missing parents; created directories are durable when this returns.
    pub fn open(root: &Path) -> io::Result<OsDisk> {
        let mut missing = Vec::new();
        let mut dir = Some(root).filter(|root| !root.as_os_str().is_empty());
        while let Some(path) = dir.filter(|path| !path.is_dir()) {
            missing.push(path);
            dir = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        }
        for path in missing.into_iter().rev() {
            match fs::create_dir(path) {
                // Another process created it first.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => {}
                other => other?,
            }
            let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
            sync_directory(parent.unwrap_or(Path::new(".")))?;
        }
        fs::read_dir(root)?;
        Ok(OsDisk { root: root.to_path_buf() })
    }

    /// Returns the file system path of a path of this disk.
    fn locate(&self, path: &str) -> io::Result<PathBuf> {
        check_path(path)?;
        Ok(if path.is_empty() { self.root.clone() } else { self.root.join(path) })
    }

    /// Like `locate`, for names that may not be the root itself.
    fn locate_entry(&self, path: &str) -> io::Result<PathBuf> {
        if path.is_empty() { Err(Errno::INVAL.into()) } else { self.locate(path) }
    }
}

fn sync_directory(path: &Path) -> io::Result<()> {
    let dir = rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    Ok(rustix::fs::fsync(&dir)?)
}

fn utf8_name(name: OsString) -> io::Result<String> {
    let complain = |name: OsString| {
        let message = format!("{name:?} is not a name of ours: it is not UTF-8");
        io::Error::new(io::ErrorKind::InvalidData, message)
    };
    name.into_string().map_err(complain)
}

impl Disk for OsDisk {
    fn create(&self, path: &str) -> io::Result<Arc<dyn DiskFile>> {
        let path = self.locate_entry(path)?;
        let file = OpenOptions::new().read(true).append(true).create_new(true).open(path)?;
        Ok(Arc::new(OsFile { file }))
    }

    fn open(&self, path: &str) -> io::Result<Arc<dyn DiskFile>> {
        let path = self.locate_entry(path)?;
        Ok(Arc::new(OsFile { file: OpenOptions::new().read(true).append(true).open(path)? }))
    }

    fn open_read(&self, path: &str) -> io::Result<Arc<dyn DiskFile>> {
        let path = self.locate_entry(path)?;
        // Order: its kind is known before it is opened, because the open of a pipe waits for its writer.
        let kind = fs::metadata(&path)?.file_type();
        if kind.is_dir() {
            return Err(Errno::ISDIR.into());
        }
        if !kind.is_file() {
            return Err(Errno::SPIPE.into());
        }
        Ok(Arc::new(OsFile { file: OpenOptions::new().read(true).open(path)? }))
    }

    fn entry_kind(&self, path: &str) -> io::Result<Option<EntryKind>> {
        let kind = match fs::symlink_metadata(self.locate(path)?) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            metadata => metadata?.file_type(),
        };
        Ok(Some(match (kind.is_file(), kind.is_dir(), kind.is_symlink()) {
            (true, _, _) => EntryKind::File,
            (_, true, _) => EntryKind::Dir,
            (_, _, true) => EntryKind::Link,
            _ => EntryKind::Special,
        }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let from = self.locate_entry(from)?;
        let to = self.locate_entry(to)?;
        if fs::symlink_metadata(&from)?.is_dir() {
            return Err(Errno::ISDIR.into());
        }
        fs::rename(from, to)
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        let path = self.locate_entry(path)?;
        if fs::symlink_metadata(&path)?.is_dir() { fs::remove_dir(path) } else { fs::remove_file(path) }
    }

    fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(self.locate(dir)?)? {
            names.push(utf8_name(entry?.file_name())?);
        }
        names.sort_unstable();
        Ok(names)
    }

    fn create_dir(&self, dir: &str) -> io::Result<()> {
        fs::create_dir_all(self.locate(dir)?)
    }

    fn sync_dir(&self, dir: &str) -> io::Result<()> {
        sync_directory(&self.locate(dir)?)
    }

    fn space(&self) -> io::Result<DiskSpace> {
        let stat = rustix::fs::statvfs(&self.root)?;
        let bytes = |blocks: u64| blocks.saturating_mul(stat.f_frsize);
        let device = Some(fs::metadata(&self.root)?.dev());
        Ok(DiskSpace { total: bytes(stat.f_blocks), free: bytes(stat.f_bavail), device })
    }

    fn lock(&self, path: &str) -> io::Result<Box<dyn Send + Sync>> {
        let path = self.locate_entry(path)?;
        let file = OpenOptions::new().read(true).append(true).create(true).open(path)?;
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        Ok(Box::new(file))
    }
}

struct OsFile {
    file: fs::File,
}

impl DiskFile for OsFile {
    fn append(&self, bytes: &[u8]) -> io::Result<()> {
        (&self.file).write_all(bytes)
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(out, offset)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn truncate(&self, len: u64) -> io::Result<()> {
        if len > self.len()? {
            return Err(Errno::INVAL.into());
        }
        self.file.set_len(len)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn reserve(&self, bytes: u64) -> io::Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        match rustix::fs::fallocate(&self.file, FallocateFlags::KEEP_SIZE, self.len()?, bytes) {
            // The file system cannot reserve space; appends allocate it.
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
            other => Ok(other?),
        }
    }

    fn will_read(&self, offset: u64, len: u64) {
        // Bytes that cannot be prefetched are read on demand.
        let _ = rustix::fs::fadvise(&self.file, offset, NonZeroU64::new(len), Advice::WillNeed);
    }

    fn will_verify(&self) {
        // Drops clean pages from the page cache, where rot of the medium does not show.
        let _ = rustix::fs::fadvise(&self.file, 0, None, Advice::DontNeed);
    }

    fn begin_writing(&self, offset: u64, len: u64) {
        // Linux starts to write the dirty pages of a range advised as not needed, and does not wait. It drops only
        // those that were clean before, so freshly written bytes stay cached.
        let _ = rustix::fs::fadvise(&self.file, offset, NonZeroU64::new(len), Advice::DontNeed);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use rustix::fs::CWD;

    use super::*;

    #[test]
    fn a_file_that_may_only_be_read_is_opened_for_reading() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        fs::write(&path, b"rows").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o444)).unwrap();
        let file = OsDisk::open(dir.path()).unwrap().open_read("f").unwrap();
        let mut bytes = [0; 4];
        file.read_at(0, &mut bytes).unwrap();
        assert_eq!(&bytes, b"rows");
        // Permissions do not stop root, so the handle itself must not write.
        assert_eq!(file.append(b"+").unwrap_err().raw_os_error(), Some(Errno::BADF.raw_os_error()));
    }

    /// Nothing writes to the pipe, so that a test which waits for it does not end.
    #[test]
    fn a_pipe_or_device_is_refused_at_once() {
        let dir = tempfile::tempdir().unwrap();
        rustix::fs::mkfifoat(CWD, dir.path().join("pipe"), Mode::from_raw_mode(0o600)).unwrap();
        let disk = OsDisk::open(dir.path()).unwrap();
        let devices = OsDisk::open(Path::new("/dev")).unwrap();
        for refused in [disk.open_read("pipe"), devices.open_read("null")] {
            assert_eq!(refused.err().unwrap().kind(), io::ErrorKind::NotSeekable);
        }
    }

    #[test]
    fn links_are_entries_of_their_own() {
        let dir = tempfile::tempdir().unwrap();
        for (target, link) in [("f", "to-file"), ("none", "to-nowhere")] {
            std::os::unix::fs::symlink(target, dir.path().join(link)).unwrap();
        }
        rustix::fs::mkfifoat(CWD, dir.path().join("pipe"), Mode::from_raw_mode(0o600)).unwrap();
        let disk = OsDisk::open(dir.path()).unwrap();
        disk.create("f").unwrap();
        let kinds = ["f", "to-file", "to-nowhere", "pipe", ""].map(|name| disk.entry_kind(name).unwrap());
        let wanted =
            [EntryKind::File, EntryKind::Link, EntryKind::Link, EntryKind::Special, EntryKind::Dir].map(Some);
        assert_eq!(kinds, wanted);
    }

    #[test]
    fn a_lock_is_exclusive_and_ends_with_its_guard() {
        let dir = tempfile::tempdir().unwrap();
        let disk = OsDisk::open(dir.path()).unwrap();
        let held = disk.lock("lock").unwrap();
        let error = OsDisk::open(dir.path()).unwrap().lock("lock").err().unwrap();
        assert_eq!(error.raw_os_error(), Some(Errno::WOULDBLOCK.raw_os_error()));
        drop(held);
        disk.lock("lock").unwrap();
    }

    #[test]
    fn open_creates_the_root_and_its_parents() {
        let dir = tempfile::tempdir().unwrap();
        OsDisk::open(&dir.path().join("a/b")).unwrap().create("f").unwrap();
        assert!(dir.path().join("a/b/f").is_file());
    }
}
