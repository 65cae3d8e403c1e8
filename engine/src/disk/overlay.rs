//! [`OverlayDisk`]: a disk that is only read; changes stay in memory.
//!
//! ```text
//!   reads ──► changed in memory, or else the disk below     changes ──► memory; a changed file is copied there first
//! ```
//!
//! With it, tools open the replicas of a stopped server as the server does, and leave its directories as they are.

use crate::sync::{Mutex, MutexGuard};
use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use rustix::io::Errno;

use super::mem::MemDisk;
use super::{Disk, DiskFile, DiskSpace, EntryKind, parent};

/// Bytes copied at once.
const CHUNK: usize = 1 << 20;

/// A view of a disk whose changes are kept in memory. Clones share them.
#[derive(Clone)]
pub struct OverlayDisk {
    layers: Arc<Layers>,
}

struct Layers {
    below: Arc<dyn Disk>,
    changed: MemDisk,
    /// Names of the disk below that are removed or replaced.
    hidden: Mutex<BTreeSet<String>>,
}

impl OverlayDisk {
    pub fn new(below: Arc<dyn Disk>) -> OverlayDisk {
        let layers = Layers { below, changed: MemDisk::new(0), hidden: Mutex::default() };
        OverlayDisk { layers: Arc::new(layers) }
    }
}

impl Layers {
    fn hidden(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.hidden.lock()
    }

    fn open_below(&self, path: &str) -> io::Result<Arc<dyn DiskFile>> {
        if self.hidden().contains(path) { Err(Errno::NOENT.into()) } else { self.below.open_read(path) }
    }

    /// Returns the file in memory, which is copied there if it is not yet.
    fn copy_up(&self, path: &str) -> io::Result<Arc<dyn DiskFile>> {
        match self.changed.open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            opened => return opened,
        }
        let from = self.open_below(path)?;
        self.changed.create_dir(parent(path))?;
        let to = self.changed.create(path)?;
        let (len, mut at) = (from.len()?, 0);
        while at < len {
            let mut bytes = vec![0; CHUNK.min((len - at) as usize)];
            from.read_at(at, &mut bytes)?;
            to.append(&bytes)?;
            at += bytes.len() as u64;
        }
        Ok(to)
    }
}

fn is_missing<T>(result: &io::Result<T>) -> bool {
    result.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

impl Disk for OverlayDisk {
    fn create(&self, path: &str) -> io::Result<Arc<dyn DiskFile>> {
        if !is_missing(&self.layers.open_below(path)) {
            return Err(Errno::EXIST.into());
        }
        self.layers.changed.create_dir(parent(path))?;
        self.layers.changed.create(path)
    }

    fn open(&self, path: &str) -> io::Result<Arc<dyn DiskFile>> {
        let changed = self.layers.changed.open(path);
        if !is_missing(&changed) {
            return changed;
        }
        let below = self.layers.open_below(path)?;
        let layers = self.layers.clone();
        Ok(Arc::new(OverlayFile { layers, path: path.to_string(), file: Mutex::new(below) }))
    }

    fn open_read(&self, path: &str) -> io::Result<Arc<dyn DiskFile>> {
        let changed = self.layers.changed.open_read(path);
        if is_missing(&changed) { self.layers.open_below(path) } else { changed }
    }

    fn entry_kind(&self, path: &str) -> io::Result<Option<EntryKind>> {
        match self.layers.changed.entry_kind(path)? {
            None if self.layers.hidden().contains(path) => Ok(None),
            None => self.layers.below.entry_kind(path),
            changed => Ok(changed),
        }
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.layers.copy_up(from)?;
        self.layers.changed.create_dir(parent(to))?;
        self.layers.changed.rename(from, to)?;
        self.layers.hidden().extend([from.to_string(), to.to_string()]);
        Ok(())
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        let below = self.layers.open_below(path).is_ok() || self.layers.below.list(path).is_ok();
        let changed = self.layers.changed.remove(path);
        if is_missing(&changed) && below {
            self.layers.hidden().insert(path.to_string());
            return Ok(());
        }
        changed?;
        self.layers.hidden().insert(path.to_string());
        Ok(())
    }

    fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        let changed = self.layers.changed.list(dir);
        let hidden = self.layers.hidden();
        let below = if hidden.contains(dir) { Err(Errno::NOENT.into()) } else { self.layers.below.list(dir) };
        if is_missing(&below) && !is_missing(&changed) {
            return changed;
        }
        let path = |name: &String| if dir.is_empty() { name.clone() } else { format!("{dir}/{name}") };
        let mut names: BTreeSet<String> =
            below?.into_iter().filter(|name| !hidden.contains(&path(name))).collect();
        names.extend(changed.unwrap_or_default());
        Ok(names.into_iter().collect())
    }

    fn create_dir(&self, dir: &str) -> io::Result<()> {
        self.layers.changed.create_dir(dir)
    }

    fn sync_dir(&self, _dir: &str) -> io::Result<()> {
        Ok(())
    }

    fn space(&self) -> io::Result<DiskSpace> {
        self.layers.below.space()
    }

    fn lock(&self, path: &str) -> io::Result<Box<dyn Send + Sync>> {
        self.layers.changed.lock(path)
    }
}

/// A file of the disk below, until it is changed.
struct OverlayFile {
    layers: Arc<Layers>,
    path: String,
    file: Mutex<Arc<dyn DiskFile>>,
}

impl OverlayFile {
    fn file(&self) -> Arc<dyn DiskFile> {
        self.file.lock().clone()
    }

    fn changed(&self) -> io::Result<Arc<dyn DiskFile>> {
        let changed = self.layers.copy_up(&self.path)?;
        *self.file.lock() = changed.clone();
        Ok(changed)
    }
}

impl DiskFile for OverlayFile {
    fn append(&self, bytes: &[u8]) -> io::Result<()> {
        self.changed()?.append(bytes)
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file().read_at(offset, out)
    }

    fn len(&self) -> io::Result<u64> {
        self.file().len()
    }

    fn truncate(&self, len: u64) -> io::Result<()> {
        self.changed()?.truncate(len)
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn reserve(&self, _bytes: u64) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::{read_file, replace_file};

    #[test]
    fn changes_are_seen_and_the_disk_below_is_unchanged() {
        let below: Arc<dyn Disk> = Arc::new(MemDisk::new(1));
        below.create_dir("d").unwrap();
        for name in ["d/a", "d/b", "d/c"] {
            replace_file(&*below, name, name.as_bytes()).unwrap();
        }
        let disk = OverlayDisk::new(below.clone());
        let open = disk.open("d/a").unwrap();
        open.append(b"+").unwrap();
        replace_file(&disk, "d/b", b"other").unwrap();
        disk.remove("d/c").unwrap();
        assert_eq!(disk.create("d/a").err().unwrap().kind(), io::ErrorKind::AlreadyExists);
        disk.create("d/new").unwrap();
        assert_eq!(disk.list("d").unwrap(), ["a", "b", "new"]);
        assert_eq!(open.len().unwrap(), 4, "the handle sees its change");
        assert_eq!(read_file(&disk, "d/a").unwrap(), b"d/a+");
        assert_eq!(read_file(&disk, "d/b").unwrap(), b"other");
        for (name, len) in [("d/a", 4), ("d/b", 5)] {
            assert_eq!(disk.open_read(name).unwrap().len().unwrap(), len, "{name}");
        }
        assert!(disk.open_read("d/c").is_err());
        let kinds = ["d", "d/a", "d/b", "d/c", "d/new"].map(|name| disk.entry_kind(name).unwrap());
        let file = Some(EntryKind::File);
        assert_eq!(kinds, [Some(EntryKind::Dir), file, file, None, file]);
        assert!(disk.open("d/c").is_err());
        assert_eq!(below.list("d").unwrap(), ["a", "b", "c"]);
        for name in ["d/a", "d/b", "d/c"] {
            assert_eq!(read_file(&*below, name).unwrap(), name.as_bytes());
        }
        for name in ["a", "b", "new"] {
            disk.remove(&format!("d/{name}")).unwrap();
        }
        disk.remove("d").unwrap();
        assert!(disk.list("d").is_err(), "a removed directory");
    }
}
