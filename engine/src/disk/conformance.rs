//! Conformance tests of the [`Disk`] contract between crashes; each case runs in its own directory.
//!
//! *Not here:* the state after a crash; only [`super::mem::MemDisk`] can simulate one.

use std::io;
use std::sync::Arc;

use rustix::io::Errno;

use super::{Disk, DiskFile, EntryKind, create_dir_durably, read_file, replace_file};

/// A breach of the contract by a disk.
#[derive(Debug)]
pub struct ContractViolation(pub String);

type Check = Result<(), ContractViolation>;

impl From<io::Error> for ContractViolation {
    fn from(error: io::Error) -> ContractViolation {
        ContractViolation(format!("unexpected error: {error}"))
    }
}

/// A test that runs on a disk, in a directory of its own.
pub type ConformanceCase = fn(&dyn Disk, &str) -> Check;

/// The cases, by name.
pub const CASES: &[(&str, ConformanceCase)] = &[
    ("append_and_read", append_and_read),
    ("read_past_the_end", read_past_the_end),
    ("truncate", truncate),
    ("reserve", reserve),
    ("create_and_open", create_and_open),
    ("open_read", open_read),
    ("entry_kind", entry_kind),
    ("two_handles", two_handles),
    ("handles_outlive_names", handles_outlive_names),
    ("rename", rename),
    ("remove", remove),
    ("list", list),
    ("directories", directories),
    ("paths", paths),
    ("lock", lock),
    ("space", space),
    ("replace", replace),
];

/// Runs every case on a disk that has none of their directories yet.
pub fn check(disk: &dyn Disk) -> Check {
    for (name, case) in CASES {
        disk.create_dir(name)?;
        case(disk, name).map_err(|violation| ContractViolation(format!("{name}: {}", violation.0)))?;
    }
    Ok(())
}

fn expect<T: PartialEq + std::fmt::Debug>(name: &str, found: T, wanted: T) -> Check {
    if found == wanted {
        Ok(())
    } else {
        Err(ContractViolation(format!("{name}: {found:?} instead of {wanted:?}")))
    }
}

fn expect_errno<T>(name: &str, result: io::Result<T>, wanted: Errno) -> Check {
    let Err(error) = result else {
        return Err(ContractViolation(format!("{name} succeeded instead of {wanted}")));
    };
    expect(name, error.raw_os_error(), Some(wanted.raw_os_error()))
}

fn contents(file: &Arc<dyn DiskFile>) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; file.len()? as usize];
    file.read_at(0, &mut bytes)?;
    Ok(bytes)
}

fn append_and_read(disk: &dyn Disk, dir: &str) -> Check {
    let file = disk.create(&format!("{dir}/f"))?;
    expect("a new file is empty", file.is_empty()?, true)?;
    file.append(b"hello")?;
    file.append(b"")?;
    file.append(b" world")?;
    let mut middle = [0; 4];
    file.read_at(3, &mut middle)?;
    expect("a read in the middle", &middle, b"lo w")?;
    file.sync()?;
    expect("all of it", contents(&file)?, b"hello world".to_vec())?;
    let large = vec![7; 3 << 20];
    file.append(&large)?;
    expect("the length of it", file.len()?, 11 + large.len() as u64)
}

fn read_past_the_end(disk: &dyn Disk, dir: &str) -> Check {
    let file = disk.create(&format!("{dir}/f"))?;
    file.append(b"abc")?;
    file.read_at(3, &mut [])?;
    for offset in [1, 3, 9] {
        let result = file.read_at(offset, &mut [0; 3]).map_err(|error| error.kind());
        expect("a read past the end", result, Err(io::ErrorKind::UnexpectedEof))?;
    }
    Ok(())
}

fn truncate(disk: &dyn Disk, dir: &str) -> Check {
    let file = disk.create(&format!("{dir}/f"))?;
    file.append(b"hello world")?;
    file.truncate(5)?;
    file.append(b"!")?;
    expect("an append after a cut", contents(&file)?, b"hello!".to_vec())?;
    file.truncate(6)?;
    expect_errno("a cut beyond the end", file.truncate(7), Errno::INVAL)?;
    file.truncate(0)?;
    expect("cut to nothing", file.is_empty()?, true)
}

fn reserve(disk: &dyn Disk, dir: &str) -> Check {
    let file = disk.create(&format!("{dir}/f"))?;
    file.append(b"abc")?;
    file.reserve(1 << 16)?;
    file.reserve(0)?;
    expect("reserving leaves the length", file.len()?, 3)?;
    file.append(b"def")?;
    expect("an append after reserving", contents(&file)?, b"abcdef".to_vec())
}

fn create_and_open(disk: &dyn Disk, dir: &str) -> Check {
    let path = format!("{dir}/f");
    expect_errno("opening nothing", disk.open(&path), Errno::NOENT)?;
    disk.create(&path)?.append(b"kept")?;
    expect_errno("creating it twice", disk.create(&path), Errno::EXIST)?;
    expect_errno("creating a directory's name", disk.create(dir), Errno::EXIST)?;
    expect_errno("creating in a missing directory", disk.create(&format!("{dir}/none/f")), Errno::NOENT)?;
    expect_errno("creating in a file", disk.create(&format!("{path}/f")), Errno::NOTDIR)?;
    expect_errno("opening in a file", disk.open(&format!("{path}/f")), Errno::NOTDIR)?;
    expect_errno("opening a directory", disk.open(dir), Errno::ISDIR)?;
    expect("what was there", read_file(disk, &path)?, b"kept".to_vec())
}

fn open_read(disk: &dyn Disk, dir: &str) -> Check {
    let path = format!("{dir}/f");
    expect_errno("reading nothing", disk.open_read(&path), Errno::NOENT)?;
    let file = disk.create(&path)?;
    file.append(b"kept")?;
    let reader = disk.open_read(&path)?;
    expect("what was there", contents(&reader)?, b"kept".to_vec())?;
    expect_errno("appending through it", reader.append(b"+"), Errno::BADF)?;
    expect_errno("truncating through it", reader.truncate(0), Errno::INVAL)?;
    file.append(b" on")?;
    expect("what is appended later", contents(&reader)?, b"kept on".to_vec())?;
    expect_errno("reading a directory", disk.open_read(dir), Errno::ISDIR)?;
    expect_errno("reading in a file", disk.open_read(&format!("{path}/f")), Errno::NOTDIR)?;
    expect_errno("reading the root", disk.open_read(""), Errno::INVAL)?;
    expect_errno("reading above the root", disk.open_read("../f"), Errno::INVAL)
}

fn entry_kind(disk: &dyn Disk, dir: &str) -> Check {
    let path = format!("{dir}/f");
    expect("a free name", disk.entry_kind(&path)?, None)?;
    expect("a name in nowhere", disk.entry_kind(&format!("{dir}/none/f"))?, None)?;
    disk.create(&path)?;
    expect("a file", disk.entry_kind(&path)?, Some(EntryKind::File))?;
    expect("a directory", disk.entry_kind(dir)?, Some(EntryKind::Dir))?;
    expect("the root", disk.entry_kind("")?, Some(EntryKind::Dir))?;
    expect_errno("a name in a file", disk.entry_kind(&format!("{path}/f")), Errno::NOTDIR)?;
    expect_errno("a name above the root", disk.entry_kind("../f"), Errno::INVAL)
}

fn two_handles(disk: &dyn Disk, dir: &str) -> Check {
    let path = format!("{dir}/f");
    let first = disk.create(&path)?;
    let second = disk.open(&path)?;
    first.append(b"a")?;
    second.append(b"b")?;
    first.append(b"c")?;
    expect("appends through both", contents(&second)?, b"abc".to_vec())
}

fn handles_outlive_names(disk: &dyn Disk, dir: &str) -> Check {
    let (path, other) = (format!("{dir}/f"), format!("{dir}/g"));
    let file = disk.create(&path)?;
    file.append(b"a")?;
    disk.rename(&path, &other)?;
    file.append(b"b")?;
    expect("after a rename", read_file(disk, &other)?, b"ab".to_vec())?;
    disk.remove(&other)?;
    file.append(b"c")?;
    file.sync()?;
    expect("after a removal", contents(&file)?, b"abc".to_vec())?;
    disk.create(&other)?;
    expect("a new file of the name is another", contents(&file)?, b"abc".to_vec())
}

fn rename(disk: &dyn Disk, dir: &str) -> Check {
    let (from, to) = (format!("{dir}/from"), format!("{dir}/to"));
    disk.create(&from)?.append(b"new")?;
    disk.create(&to)?.append(b"old")?;
    disk.rename(&from, &to)?;
    disk.sync_dir(dir)?;
    expect("the replaced file", read_file(disk, &to)?, b"new".to_vec())?;
    expect("the names", disk.list(dir)?, vec!["to".to_string()])?;
    expect_errno("renaming nothing", disk.rename(&from, &to), Errno::NOENT)?;
    disk.rename(&to, &to)?;
    disk.create_dir(&format!("{dir}/sub"))?;
    expect_errno("renaming a directory", disk.rename(&format!("{dir}/sub"), &from), Errno::ISDIR)?;
    expect_errno("renaming onto a directory", disk.rename(&to, &format!("{dir}/sub")), Errno::ISDIR)?;
    expect_errno("renaming into nowhere", disk.rename(&to, &format!("{dir}/none/f")), Errno::NOENT)?;
    disk.rename(&to, &format!("{dir}/sub/f"))?;
    disk.sync_dir(&format!("{dir}/sub"))?;
    disk.sync_dir(dir)?;
    expect("moved", read_file(disk, &format!("{dir}/sub/f"))?, b"new".to_vec())
}

fn remove(disk: &dyn Disk, dir: &str) -> Check {
    let path = format!("{dir}/sub/f");
    disk.create_dir(&format!("{dir}/sub"))?;
    disk.create(&path)?;
    expect_errno("removing a full directory", disk.remove(&format!("{dir}/sub")), Errno::NOTEMPTY)?;
    disk.remove(&path)?;
    expect_errno("removing twice", disk.remove(&path), Errno::NOENT)?;
    disk.remove(&format!("{dir}/sub"))?;
    disk.sync_dir(dir)?;
    expect("the names", disk.list(dir)?, Vec::new())
}

fn list(disk: &dyn Disk, dir: &str) -> Check {
    for name in ["b", "a.c", "a", "B", "10", "9"] {
        disk.create(&format!("{dir}/{name}"))?;
    }
    disk.create_dir(&format!("{dir}/a-dir/below"))?;
    let wanted = ["10", "9", "B", "a", "a-dir", "a.c", "b"].map(str::to_string).to_vec();
    expect("sorted by bytes", disk.list(dir)?, wanted)?;
    expect_errno("listing nothing", disk.list(&format!("{dir}/none")), Errno::NOENT)?;
    expect_errno("listing a file", disk.list(&format!("{dir}/a")), Errno::NOTDIR)
}

fn directories(disk: &dyn Disk, dir: &str) -> Check {
    let deep = format!("{dir}/a/b/c");
    disk.create_dir(&deep)?;
    disk.create_dir(&deep)?;
    create_dir_durably(disk, &deep)?;
    disk.create_dir("")?;
    disk.sync_dir("")?;
    let file = format!("{dir}/f");
    disk.create(&file)?;
    expect_errno("a directory of a file's name", disk.create_dir(&file), Errno::EXIST)?;
    expect_errno("a directory in a file", disk.create_dir(&format!("{file}/d")), Errno::NOTDIR)?;
    expect_errno("syncing a file as directory", disk.sync_dir(&file), Errno::NOTDIR)?;
    expect_errno("syncing nothing", disk.sync_dir(&format!("{dir}/none")), Errno::NOENT)
}

fn paths(disk: &dyn Disk, dir: &str) -> Check {
    for bad in ["/etc/passwd", "..", ".", "a//b", "a/../b", "a/", "/", "a\0b"] {
        expect_errno(bad, disk.create(bad), Errno::INVAL)?;
        expect_errno(bad, disk.open(bad), Errno::INVAL)?;
        expect_errno(bad, disk.list(bad), Errno::INVAL)?;
        expect_errno(bad, disk.create_dir(bad), Errno::INVAL)?;
        expect_errno(bad, disk.remove(bad), Errno::INVAL)?;
        expect_errno(bad, disk.rename(dir, bad), Errno::INVAL)?;
        expect_errno(bad, disk.sync_dir(bad), Errno::INVAL)?;
    }
    expect_errno("removing the root", disk.remove(""), Errno::INVAL)?;
    expect_errno("creating the root", disk.create(""), Errno::INVAL)?;
    expect_errno("opening the root", disk.open(""), Errno::INVAL)
}

fn lock(disk: &dyn Disk, dir: &str) -> Check {
    let path = format!("{dir}/lock");
    let guard = disk.lock(&path)?;
    expect_errno("locking twice", disk.lock(&path), Errno::WOULDBLOCK)?;
    drop(guard);
    drop(disk.lock(&path)?);
    expect_errno("locking in nowhere", disk.lock(&format!("{dir}/none/lock")), Errno::NOENT)
}

fn space(disk: &dyn Disk, _dir: &str) -> Check {
    let space = disk.space()?;
    expect("no more is free than there is", space.free <= space.total, true)
}

fn replace(disk: &dyn Disk, dir: &str) -> Check {
    let path = format!("{dir}/f");
    disk.create(&format!("{path}.tmp"))?.append(b"left behind")?;
    replace_file(disk, &path, b"one")?;
    replace_file(disk, &path, b"two")?;
    expect("the new contents", read_file(disk, &path)?, b"two".to_vec())?;
    expect("the names", disk.list(dir)?, vec!["f".to_string()])
}
