//! A log cut by an operator: its entries after an index are removed, outcomes included.
//!
//! ```text
//!   wals/t/*       ── renamed ──▶ wals/t.bak/*
//!   wals/t.bak/*   ── read ──▶ operations up to the index, and their outcomes ──▶ wals/t/0000000001.wal …
//! ```
//!
//! [`Wal::truncate_after`] is for operations without an outcome only: it leaves outcomes, and a log with an outcome
//! that has no operation is corrupt. If a crash interrupts the cut, the old log is whole in `wals/t.bak`.

use std::io;
use std::sync::Arc;

use super::{LogEntry, Wal, WalConfig};
use crate::disk::overlay::OverlayDisk;
use crate::disk::{self, Disk};
use crate::error::{Error, Result};
use crate::ids::OpId;

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
    let old = backup_dir(dir);
    check_free(&**disk, &old)?;
    let view = || -> Arc<dyn Disk> { Arc::new(OverlayDisk::new(disk.clone())) };
    let (log, _) = Wal::open(view(), dir, config, &mut |_| Ok(()))?;
    // Nothing is moved unless the log can be cut there.
    let (base, last) = (log.base(), log.op_at(index)?);
    drop(log);
    move_files(&**disk, dir, &old)?;
    let mut new = CutLog { log: Wal::create_after(disk.clone(), dir, config, base)?, batch: Vec::new() };
    Wal::open(view(), &old, config, &mut |entry| match &entry {
        LogEntry::Replicate(replicate) if replicate.op.index > index => Ok(()),
        LogEntry::Commit(commit) if commit.op.index > index => Ok(()),
        _ => new.push(entry),
    })?;
    new.finish()?;
    Ok(last)
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
        Ok(_) => Err(Error::already_present(format!(
            "{old} has the log before an earlier cut; remove it, or move its files back if that cut was interrupted"
        ))),
    }
}

/// Moves all files of `dir` to `old`, durably.
fn move_files(disk: &dyn Disk, dir: &str, old: &str) -> Result<()> {
    let moved = || {
        disk::create_dir_durably(disk, old)?;
        for name in disk.list(dir)? {
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
        let mut log = Wal::create(disk.clone(), DIR, CONFIG).expect("a fresh disk");
        for index in 1..=20 {
            log.append(&[replicate(index)]).expect("written");
            if index > 5 {
                log.append(&[commit(index - 5)]).expect("written");
            }
        }
        log.sync().expect("durable");
        log.gc(6).expect("removed");
        drop(log);
        let all = entries(&disk, DIR);
        (disk, all)
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
