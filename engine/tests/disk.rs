//! Both disks conform to the contract, and a series of operations has the same results on both.

use std::sync::Arc;

use engine::disk::mem::MemDisk;
use engine::disk::os::OsDisk;
use engine::disk::{Disk, DiskFile, conformance};
use proptest::prelude::*;

#[test]
fn the_real_disk_conforms() {
    let dir = tempfile::tempdir().unwrap();
    conformance::check(&OsDisk::open(dir.path()).unwrap()).unwrap();
}

#[test]
fn the_disk_in_memory_conforms() {
    let disk = MemDisk::new(3);
    conformance::check(&disk).unwrap();
    disk.crash();
    for name in disk.list("").unwrap() {
        remove_all(&disk, &name);
    }
    disk.sync_dir("").unwrap();
    conformance::check(&disk).unwrap();
}

fn remove_all(disk: &dyn Disk, path: &str) {
    for name in disk.list(path).unwrap_or_default() {
        remove_all(disk, &format!("{path}/{name}"));
    }
    disk.remove(path).unwrap();
}

#[derive(Debug, Clone)]
enum Op {
    Create(String),
    Open(String),
    OpenRead(String),
    EntryKind(String),
    Rename(String, String),
    Remove(String),
    List(String),
    CreateDir(String),
    SyncDir(String),
    Append(usize, usize),
    Read(usize, u64, usize),
    Truncate(usize, u64),
    Sync(usize),
}

/// Generates paths of few names, so that they collide.
fn path() -> impl Strategy<Value = String> {
    prop::collection::vec(prop::sample::select(vec!["a", "b", "c"]), 1..4).prop_map(|parts| parts.join("/"))
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        path().prop_map(Op::Create),
        path().prop_map(Op::Open),
        path().prop_map(Op::OpenRead),
        path().prop_map(Op::EntryKind),
        (path(), path()).prop_map(|(from, to)| Op::Rename(from, to)),
        path().prop_map(Op::Remove),
        path().prop_map(Op::List),
        path().prop_map(Op::CreateDir),
        path().prop_map(Op::SyncDir),
        (0..9usize, 0..2000usize).prop_map(|(handle, len)| Op::Append(handle, len)),
        (0..9usize, 0..3000u64, 0..900usize).prop_map(|(handle, offset, len)| Op::Read(handle, offset, len)),
        (0..9usize, 0..3000u64).prop_map(|(handle, len)| Op::Truncate(handle, len)),
        (0..9usize).prop_map(Op::Sync),
    ]
}

/// A disk with the handles opened so far.
struct Driver<'a> {
    disk: &'a dyn Disk,
    handles: Vec<Arc<dyn DiskFile>>,
}

impl Driver<'_> {
    /// Returns the result of an operation, errors by errno or kind.
    fn run(&mut self, op: &Op) -> Result<String, String> {
        let result = self.try_run(op);
        result.map_err(|error| match error.raw_os_error() {
            Some(errno) => format!("errno {errno}"),
            None => format!("{:?}", error.kind()),
        })
    }

    fn try_run(&mut self, op: &Op) -> std::io::Result<String> {
        match op {
            Op::Create(path) => self.handles.push(self.disk.create(path)?),
            Op::Open(path) => self.handles.push(self.disk.open(path)?),
            Op::OpenRead(path) => self.handles.push(self.disk.open_read(path)?),
            Op::EntryKind(path) => return Ok(format!("{:?}", self.disk.entry_kind(path)?)),
            Op::Rename(from, to) => self.disk.rename(from, to)?,
            Op::Remove(path) => self.disk.remove(path)?,
            Op::List(path) => return Ok(format!("{:?}", self.disk.list(path)?)),
            Op::CreateDir(path) => self.disk.create_dir(path)?,
            Op::SyncDir(path) => self.disk.sync_dir(path)?,
            Op::Append(handle, len) => self.handle(*handle, |file| file.append(&pattern(*len)))?,
            Op::Read(handle, offset, len) => {
                let mut out = vec![0; *len];
                self.handle(*handle, |file| file.read_at(*offset, &mut out))?;
                return Ok(format!("{out:?}"));
            }
            Op::Truncate(handle, len) => self.handle(*handle, |file| file.truncate(*len))?,
            Op::Sync(handle) => self.handle(*handle, |file| file.sync())?,
        }
        let lens: Vec<u64> = self.handles.iter().map(|file| file.len().unwrap()).collect();
        Ok(format!("{lens:?}"))
    }

    fn handle(
        &self,
        at: usize,
        work: impl FnOnce(&dyn DiskFile) -> std::io::Result<()>,
    ) -> std::io::Result<()> {
        if self.handles.is_empty() { Ok(()) } else { work(&*self.handles[at % self.handles.len()]) }
    }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + len) as u8).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    #[test]
    fn both_disks_give_the_same_results(ops in prop::collection::vec(op(), 1..60)) {
        let dir = tempfile::tempdir().unwrap();
        let real = OsDisk::open(dir.path()).unwrap();
        let memory = MemDisk::new(0);
        let mut real = Driver { disk: &real, handles: Vec::new() };
        let mut memory = Driver { disk: &memory, handles: Vec::new() };
        for op in &ops {
            prop_assert_eq!(memory.run(op), real.run(op), "{:?}", op);
        }
    }
}
