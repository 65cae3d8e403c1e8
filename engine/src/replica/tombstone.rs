//! Deletion of a replica: permanently, or to a tombstone, which keeps its vote and last operation.
//!
//! ```text
//!   READY ──► TOMBSTONED   superblock; then log and rows are removed    term, vote and last operation stay
//!   READY ──► DELETED      superblock renamed; then log, rows, consensus metadata are removed, the superblock last
//!   COPYING ─► TOMBSTONED  found at start, or when a copy is aborted: with the last operation stored before it
//! ```
//!
//! Order: the superblock is stored or renamed first, so [`recover`] can complete an interrupted deletion. A READY one
//! names rows and a log: after a crash that has removed some of them, the replica would only fail. COPYING names
//! neither, so they are removed first.
//!
//! On a full device:
//!
//! - A deletion needs no block. Its rename is one change of a directory, so a crash leaves the old name and all files,
//!   or the new one, which [`recover`] takes for DELETED. The new name is removed last, so it is there until nothing
//!   else is.
//! - A tombstone needs a block for the last operation. Until there is one, the replica stays as it is.
//! - An aborted copy frees its files first. If there is no block even so, the COPYING superblock stays: it has the same
//!   last operation as the tombstone.
//!
//! A tombstone that knows its last operation may vote; one that does not must not (design of tombstoned voting).

use std::io;

use super::consensus_meta_store;
use super::dirs::{WAL_DIR, remove_dir, wal_dir};
use crate::disk::Disk;
use crate::error::{Error, ErrorKind, Result};
use crate::ids::{OpId, TabletId};
use crate::raft::ConfigPosition;
use crate::tablet::flush::{DATA_DIR, data_dir};
use crate::tablet::superblock::{DataState, Superblock};
use crate::wal::Wal;

/// Turns a replica, an incomplete tombstone or an aborted copy into a tombstone. No task may be using it. `last_op`:
/// the last operation in its log, if known.
///
/// An unreadable superblock is replaced by one without data. `NotFound` if there is none: what a creation or a copy
/// left that never got one is removed, and the log of a replica whose superblock was lost. A repetition after a failure
/// completes it. Returns the last operation that the tombstone knows: its superblock may have it though the caller does
/// not.
pub fn tombstone(
    wal: &dyn Disk,
    data: &dyn Disk,
    tablet: TabletId,
    last_op: Option<OpId>,
) -> Result<Option<OpId>> {
    let mut meta = match Superblock::load(data, tablet) {
        Err(error) if matches!(error.kind, ErrorKind::Corrupt | ErrorKind::Unsupported) => {
            Superblock::unreadable(tablet)
        }
        Err(error) if error.kind == ErrorKind::NotFound => {
            remove_leftovers(wal, data, tablet)?;
            return Err(error);
        }
        Ok(meta) if meta.data_state == DataState::Copying => {
            Superblock::sync_names(data)?;
            remove_data(wal, data, tablet)?;
            meta
        }
        loaded => loaded?,
    };
    // A repeated call may not know the last operation, which is stored by now.
    let incomplete = meta.data_state != DataState::Ready;
    meta.tombstone_last_op = last_op.or(meta.tombstone_last_op.filter(|_| incomplete));
    meta.data_state = DataState::Tombstoned;
    meta.rowsets.clear();
    meta.store(data)?;
    remove_data(wal, data, tablet)?;
    Ok(meta.tombstone_last_op)
}

/// Returns true if a replica may be deleted by an order based on the committed configuration `cas`, if it names one. A
/// replica with a newer configuration may be needed in it. Uncommitted configurations count: a learner that has
/// acknowledged one is promoted on that.
///
/// A configuration of an older term than a committed one before it will never be committed: terms only rise in a log,
/// and all later leaders have the committed one (Raft §5.4). A deposed leader may have appended it.
///
/// Spec: TabletCopy.tla Tombstone.
pub fn may_delete(known: ConfigPosition, cas: Option<ConfigPosition>) -> bool {
    let is_void = |cas: ConfigPosition| known.term.zip(cas.term).is_some_and(|(known, cas)| known < cas);
    cas.is_none_or(|cas| known.index <= cas.index || is_void(cas))
}

/// Removes all data of a replica or a tombstone. No task may be using it. `NotFound` if there is none: what a creation
/// or a copy left that never got a superblock is removed. A repetition after a failure completes it. Needs no space.
pub fn delete(wal: &dyn Disk, data: &dyn Disk, tablet: TabletId) -> Result<()> {
    match Superblock::load(data, tablet) {
        Err(error) if error.kind == ErrorKind::NotFound => {
            remove_leftovers(wal, data, tablet)?;
            return Err(error);
        }
        // The mark is in its name.
        Err(error) if matches!(error.kind, ErrorKind::Corrupt | ErrorKind::Unsupported) => {}
        loaded => drop(loaded?),
    }
    Superblock::mark_deleted(data, tablet)?;
    remove_leftovers(wal, data, tablet)?;
    Superblock::remove(data, tablet)
}

/// Completes an interrupted deletion, and returns the resulting superblock; `None` if the replica was deleted. An
/// aborted copy on a full device returns the superblock of its tombstone and leaves the COPYING one. Order: called for
/// every superblock before its replica is opened.
pub fn recover(wal: &dyn Disk, data: &dyn Disk, tablet: TabletId) -> Result<Option<Superblock>> {
    let meta = Superblock::load(data, tablet)?;
    match meta.data_state {
        DataState::Ready => Ok(Some(meta)),
        DataState::Deleted => delete(wal, data, tablet).map(|()| None),
        DataState::Tombstoned => {
            Superblock::sync_names(data)?;
            remove_data(wal, data, tablet)?;
            Ok(Some(meta))
        }
        DataState::Copying => match tombstone(wal, data, tablet, meta.tombstone_last_op) {
            Err(error) if error.is_no_space() => {
                Ok(Some(Superblock { data_state: DataState::Tombstoned, ..meta }))
            }
            stored => stored.and_then(|_| Superblock::load(data, tablet).map(Some)),
        },
    }
}

/// Removes all that a tablet has besides its superblock.
fn remove_leftovers(wal: &dyn Disk, data: &dyn Disk, tablet: TabletId) -> Result<()> {
    remove_data(wal, data, tablet)?;
    consensus_meta_store::remove(data, tablet)
}

/// Removes a tablet's log and rows, durably; succeeds if they are missing.
pub(super) fn remove_data(wal: &dyn Disk, data: &dyn Disk, tablet: TabletId) -> Result<()> {
    remove_dir(wal, &wal_dir(tablet))?;
    remove_dir(data, &data_dir(tablet))
}

/// Removes rows of tablets that are not in `known` (those with a superblock on this disk): leftovers of an interrupted
/// creation. Returns the number of such tablets.
pub fn remove_strays(data: &dyn Disk, known: &[TabletId]) -> Result<usize> {
    let orphans = orphan_dirs(data, DATA_DIR, known)?;
    orphans.iter().try_for_each(|tablet| remove_dir(data, &data_dir(*tablet)))?;
    Ok(orphans.len())
}

/// Orphan logs: those of tablets without a superblock.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct OrphanLogs {
    /// Number of logs that an interrupted creation or deletion left; they are removed.
    pub removed: usize,
    /// Tablets whose log has operations. Deletion never leaves such a log, so the superblock was lost.
    pub kept: Vec<TabletId>,
}

/// Removes empty logs of tablets that are not in `known` (those with a superblock on any of the server's disks).
pub fn remove_stray_logs(wal: &dyn Disk, known: &[TabletId]) -> Result<OrphanLogs> {
    let mut found = OrphanLogs::default();
    for tablet in orphan_dirs(wal, WAL_DIR, known)? {
        let dir = wal_dir(tablet);
        if Wal::is_unused(wal, &dir)? {
            remove_dir(wal, &dir)?;
            found.removed += 1;
        } else {
            found.kept.push(tablet);
        }
    }
    Ok(found)
}

/// Removes interrupted replacements of superblocks, and consensus metadata of tablets that are not in `known`
/// (those with a superblock on any of the server's disks): leftovers of an interrupted creation. A log with
/// operations proves that the superblock was lost; then the consensus metadata stays. Returns the number of files.
pub fn remove_stray_metadata(wal: &dyn Disk, data: &dyn Disk, known: &[TabletId]) -> Result<usize> {
    let interrupted = Superblock::remove_interrupted(data)?;
    let strays = consensus_meta_store::remove_strays(data, |tablet| {
        Ok(!known.contains(&tablet) && Wal::is_unused(wal, &wal_dir(tablet))?)
    })?;
    Ok(interrupted + strays)
}

/// The tablets that have a directory in `dir` and are not in `known`.
fn orphan_dirs(disk: &dyn Disk, dir: &str, known: &[TabletId]) -> Result<Vec<TabletId>> {
    let names = match disk.list(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        names => names.map_err(|error| Error::io(format_args!("list {dir}"), &error))?,
    };
    let tablets = names.iter().filter_map(|name| name.parse().ok());
    Ok(tablets.filter(|tablet| !known.contains(tablet)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_deletes_what_knows_nothing_newer() {
        let at = |index, term| ConfigPosition { index, term: Some(term) };
        let order = Some(at(37, 2));
        assert!(may_delete(at(37, 2), order) && may_delete(at(-1, 0), order) && may_delete(at(39, 2), None));
        assert!(!may_delete(at(39, 2), order), "it may be committed");
        assert!(may_delete(at(39, 1), order), "the leader of term 1 was deposed before");
        assert!(!may_delete(at(39, 1), Some(ConfigPosition::at(37))), "the term is not known");
        assert!(!may_delete(ConfigPosition::at(39), order));
    }
}
