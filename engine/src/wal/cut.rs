//! A log cut by an operator: its entries after an index are removed, outcomes included.
//!
//! ```text
//!   wals/t/*      ── read ──▶ operations up to the index, and their outcomes ──▶ wals/t.new/0000000001.wal …
//!   log-cut: "old wals/t"     the new log is whole
//!   wals/t/*      ── renamed ──▶ wals/t.bak/*
//!   log-cut: "new wals/t"     the old log is moved
//!   wals/t.new/*  ── renamed ──▶ wals/t/*,  log-cut removed
//! ```
//!
//! [`Wal::truncate_after`] is for operations without an outcome only: it leaves outcomes, and a log with an outcome
//! that has no operation is corrupt. After a crash, [`finish_cut`] does the rest of what `log-cut` says; without that
//! file the old log is whole.

use std::io;
use std::sync::Arc;

use super::{LogEntry, Wal, WalConfig};
use crate::disk::overlay::OverlayDisk;
use crate::disk::{self, Disk};
use crate::error::{Error, Result};
use crate::ids::OpId;

/// File that says what is left to do of a cut.
const MARK: &str = "log-cut";
/// Entries that are written as one batch.
const BATCH_ENTRIES: usize = 256;

/// Returns the directory in which a cut leaves the old log.
pub fn backup_dir(dir: &str) -> String {
    format!("{dir}.bak")
}

/// Replaces the log in `dir` by its operations up to `index` with their outcomes, durably. Returns its last operation.
///
/// `AlreadyPresent` if an earlier cut left its old log; `Invalid` if the log does not hold the operation at `index`.
pub fn cut_after(disk: &Arc<dyn Disk>, dir: &str, config: WalConfig, index: u64) -> Result<OpId> {
    finish_cut(disk)?;
    check_free(&**disk, &backup_dir(dir))?;
    let view = || -> Arc<dyn Disk> { Arc::new(OverlayDisk::new(disk.clone())) };
    let (log, _) = Wal::open(view(), dir, config, &mut |_| Ok(()))?;
    // Nothing is moved unless the log can be cut there.
    let (base, last) = (log.base(), log.op_at(index)?);
    drop(log);
    let new_dir = new_dir(dir);
    remove_dir(&**disk, &new_dir)?;
    let mut new = CutLog { log: Wal::create_after(disk.clone(), &new_dir, config, base)?, batch: Vec::new() };
    Wal::open(view(), dir, config, &mut |entry| match &entry {
        LogEntry::Replicate(replicate) if replicate.op.index > index => Ok(()),
        LogEntry::Commit(commit) if commit.op.index > index => Ok(()),
        _ => new.push(entry),
    })?;
    new.finish()?;
    put_mark(&**disk, "old", dir)?;
    finish_cut(disk)?;
    Ok(last)
}

/// Finishes the cut that a crash interrupted. Returns the directory of its log; `None` if there was no such cut.
pub fn finish_cut(disk: &Arc<dyn Disk>) -> Result<Option<String>> {
    let mark = match disk::read_file(&**disk, MARK) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        mark => mark.map_err(|error| Error::io(format_args!("read {MARK}"), &error))?,
    };
    let bad = || Error::corrupt(format!("{MARK}: not the state of a cut; move the file away"));
    let text = std::str::from_utf8(&mark).map_err(|_| bad())?;
    let (phase, dir) = text.split_once(' ').ok_or_else(bad)?;
    if phase == "old" {
        move_files(&**disk, dir, &backup_dir(dir))?;
        put_mark(&**disk, "new", dir)?;
    }
    let new_dir = new_dir(dir);
    move_files(&**disk, &new_dir, dir)?;
    let removed = disk.remove(MARK).and_then(|()| disk.sync_dir(""));
    removed.map_err(|error| Error::io(format_args!("remove {MARK}"), &error))?;
    // It is empty now; a later cut removes what a crash leaves of it.
    let _ = disk.remove(&new_dir);
    Ok(Some(dir.to_string()))
}

fn new_dir(dir: &str) -> String {
    format!("{dir}.new")
}

fn put_mark(disk: &dyn Disk, phase: &str, dir: &str) -> Result<()> {
    let stored = disk::replace_file(disk, MARK, format!("{phase} {dir}").as_bytes());
    stored.map_err(|error| Error::io(format_args!("write {MARK}"), &error))
}

/// Removes a directory with its files, if it is there.
fn remove_dir(disk: &dyn Disk, dir: &str) -> Result<()> {
    let remove = || {
        for name in disk.list(dir)? {
            disk.remove(&format!("{dir}/{name}"))?;
        }
        disk.remove(dir)
    };
    match remove() {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Error::io(format_args!("remove {dir}"), &error))
        }
        _ => Ok(()),
    }
}

struct CutLog {
    log: Wal,
    batch: Vec<LogEntry>,
}

impl CutLog {
    fn push(&mut self, entry: LogEntry) -> Result<()> {
        self.batch.push(entry);
        match self.batch.len() {
            BATCH_ENTRIES => self.append(),
            _ => Ok(()),
        }
    }

    fn append(&mut self) -> Result<()> {
        self.log.append(&std::mem::take(&mut self.batch))
    }

    fn finish(mut self) -> Result<()> {
        self.append()?;
        self.log.sync()
    }
}

fn check_free(disk: &dyn Disk, old: &str) -> Result<()> {
    match disk.list(old) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(Error::io(format_args!("list {old}"), &error)),
        Ok(_) => Err(Error::already_present(format!("{old} has the log before an earlier cut; remove it"))),
    }
}

/// Moves all files of `dir` to `old`, durably.
fn move_files(disk: &dyn Disk, dir: &str, old: &str) -> Result<()> {
    let moved = || {
        disk::create_dir_durably(disk, old)?;
        let names = match disk.list(dir) {
            // An earlier attempt moved them all, and removed it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            names => names?,
        };
        for name in names {
            disk.rename(&format!("{dir}/{name}"), &format!("{old}/{name}"))?;
        }
        disk.sync_dir(old)?;
        disk.sync_dir(dir)
    };
    moved().map_err(|error: io::Error| Error::io(format_args!("move {dir} to {old}"), &error))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::super::{CommitEntry, ReplicateEntry};
    use super::*;
    use crate::disk::mem::MemDisk;
    use crate::time::Timestamp;

    const DIR: &str = "wals/t";
    const CONFIG: WalConfig = WalConfig { segment_bytes_max: 300, preallocate: false, compress: false };

    fn op(index: u64) -> OpId {
        OpId { term: 1, index }
    }

    fn replicate(index: u64) -> LogEntry {
        let payload = Bytes::from(vec![index as u8; 30]);
        LogEntry::Replicate(ReplicateEntry { op: op(index), timestamp: Timestamp(index), kind: 1, payload })
    }

    fn commit(index: u64) -> LogEntry {
        LogEntry::Commit(CommitEntry { op: op(index), payload: Bytes::from_static(b"done") })
    }

    fn entries(disk: &Arc<dyn Disk>, dir: &str) -> Vec<LogEntry> {
        let mut found = Vec::new();
        let mut keep = |entry| {
            found.push(entry);
            Ok(())
        };
        Wal::open(disk.clone(), dir, CONFIG, &mut keep).expect("a whole log");
        found
    }

    /// A log of 20 operations; the first 15 have outcomes, and its first segments are removed by log GC.
    fn log() -> (Arc<dyn Disk>, Vec<LogEntry>) {
        let disk: Arc<dyn Disk> = Arc::new(MemDisk::new(1 << 20));
        fill(&disk);
        let all = entries(&disk, DIR);
        (disk, all)
    }

    fn fill(disk: &Arc<dyn Disk>) {
        let mut log = Wal::create(disk.clone(), DIR, CONFIG).expect("a fresh disk");
        for index in 1..=20 {
            log.append(&[replicate(index)]).expect("written");
            if index > 5 {
                log.append(&[commit(index - 5)]).expect("written");
            }
        }
        log.sync().expect("durable");
        log.gc(6).expect("removed");
    }

    #[test]
    fn operations_after_the_cut_and_their_outcomes_are_gone() {
        for index in 6..20 {
            let (disk, before) = log();
            assert_eq!(cut_after(&disk, DIR, CONFIG, index), Ok(op(index)));
            let kept = |entry: &&LogEntry| match entry {
                LogEntry::Replicate(replicate) => replicate.op.index <= index,
                LogEntry::Commit(commit) => commit.op.index <= index,
            };
            assert_eq!(entries(&disk, DIR), before.iter().filter(kept).cloned().collect::<Vec<_>>());
            assert_eq!(entries(&disk, &backup_dir(DIR)), before, "the old log stays");
            let (mut log, _) = Wal::open(disk.clone(), DIR, CONFIG, &mut |_| Ok(())).expect("a whole log");
            log.append(&[replicate(index + 1)]).expect("it goes on after the cut");
            let again = cut_after(&disk, DIR, CONFIG, index).expect_err("the old log is in the way");
            assert!(again.message.contains("has the log before an earlier cut"), "{again}");
        }
    }

    #[test]
    fn a_cut_that_power_interrupts_is_finished_or_has_not_happened() {
        let (mut undone, mut finished) = (0, 0);
        for cut in 1.. {
            let disk = MemDisk::new(cut);
            let shared: Arc<dyn Disk> = Arc::new(disk.clone());
            fill(&shared);
            let before = entries(&shared, DIR);
            disk.cut_power_at(cut);
            let done = cut_after(&shared, DIR, CONFIG, 10);
            if done.is_ok() {
                assert!(undone > 10 && finished > 10, "{undone} undone, {finished} finished");
                return;
            }
            disk.crash();
            let resumed = finish_cut(&shared).expect("a disk with power");
            assert_eq!(finish_cut(&shared), Ok(None));
            let found = entries(&shared, DIR);
            match resumed {
                None if found == before => undone += 1,
                _ => {
                    finished += 1;
                    let is_kept = |entry: &LogEntry| match entry {
                        LogEntry::Replicate(replicate) => replicate.op.index <= 10,
                        LogEntry::Commit(commit) => commit.op.index <= 10,
                    };
                    assert!(found.iter().all(is_kept) && found.contains(&replicate(10)), "cut {cut}");
                    assert_eq!(entries(&shared, &backup_dir(DIR)), before, "cut {cut}");
                }
            }
            if found == before {
                assert_eq!(cut_after(&shared, DIR, CONFIG, 10), Ok(op(10)), "cut {cut}");
            }
        }
    }

    #[test]
    fn a_cut_outside_the_log_changes_nothing() {
        for index in [1, 21] {
            let (disk, before) = log();
            let error = cut_after(&disk, DIR, CONFIG, index).expect_err("refused");
            assert!(error.message.contains("cannot be truncated after"), "{error}");
            assert_eq!(entries(&disk, DIR), before);
            assert!(disk.list(&backup_dir(DIR)).is_err());
        }
    }
}
