//! Parts of a world for tests of the node: directories that are disks in memory, to crash and to fail.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};

use engine::disk::Disk;
use engine::disk::mem::MemDisk;

use super::Disks;

/// Every directory is a disk in memory.
#[derive(Clone, Default)]
pub(crate) struct MemDisks(Arc<Mutex<BTreeMap<String, MemDisk>>>);

impl MemDisks {
    pub(crate) fn disk(&self, dir: &str) -> MemDisk {
        let mut disks = self.0.lock().expect("no panic");
        let seed = disks.len() as u64;
        disks.entry(dir.to_string()).or_insert_with(|| MemDisk::new(seed)).clone()
    }
}

impl Disks for MemDisks {
    fn open(&self, dir: &str) -> io::Result<Arc<dyn Disk>> {
        Ok(Arc::new(self.disk(dir)))
    }

    fn read_file(&self, _: &str) -> io::Result<Vec<u8>> {
        Err(io::ErrorKind::NotFound.into())
    }
}
