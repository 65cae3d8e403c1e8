//! Deleting a replica: for good, or to a tombstone, which keeps what the server must never forget.
//!
//! ```text
//!   READY ──► TOMBSTONED   superblock; then log and rows go       term, vote and last operation stay, for ever
//!   READY ──► DELETED      superblock; then log, rows, consensus metadata go, the superblock last
//!   COPYING ─► TOMBSTONED  found at start, or when a copy is given up: with the operation remembered before it
//! ```
//!
//! The superblock comes first, so a crash in between leaves what [`recover`] completes. A tombstone that knows its
//! last operation may vote by it; one that does not must not vote (design of tombstoned voting).

use std::io;

use super::bootstrap::{WAL_DIR, wal_dir};
use super::cmeta;
use crate::disk::{self, Disk};
use crate::error::{Error, ErrorKind, Result};
use crate::ids::{OpId, TabletId};
use crate::tablet::flush::{DATA_DIR, data_dir};
use crate::tablet::meta::{DataState, TabletMeta};
use crate::wal::Wal;

/// Makes a tombstone of a replica, of a tombstone that was begun, or of a copy that is given up. Nobody may be
/// using it. `last_op`: the last operation in its log, if that is known.
///
/// A superblock that cannot be read is replaced by one that says no more than that. `NotFound` if there is none.
/// Doing it again after a failure completes it.
pub fn tombstone(wal: &dyn Disk, data: &dyn Disk, tablet: TabletId, last_op: Option<OpId>) -> Result<()> {
    let mut meta = match TabletMeta::load(data, tablet) {
        Err(error) if matches!(error.kind, ErrorKind::Corrupt | ErrorKind::Unsupported) => {
            TabletMeta::unreadable(tablet)
        }
        loaded => loaded?,
    };
    // Whoever does it again may not know any more what is stored by now.
    let begun = meta.data_state != DataState::Ready;
    meta.tombstone_last_op = last_op.or(meta.tombstone_last_op.filter(|_| begun));
    meta.data_state = DataState::Tombstoned;
    meta.rowsets.clear();
    meta.store(data)?;
    remove_data(wal, data, tablet)
}

/// Whether a replica may be deleted by an order that was decided on knowing the configuration with index `cas`, if it
/// names one: a replica whose newest configuration is newer may be needed in it. One that was not committed yet counts:
/// a learner that has told its leader that it has it is made a voter on that. Indexes as Kudu writes them, -1 for the
/// first configuration.
///
/// Spec: TabletCopy.tla Tombstone.
pub fn may_delete(known: i64, cas: Option<i64>) -> bool {
    cas.is_none_or(|newest| known <= newest)
}

/// Removes every trace of a replica, or of a tombstone. Nobody may be using it. `NotFound` if there is none; doing it
/// again after a failure completes it.
pub fn delete(wal: &dyn Disk, data: &dyn Disk, tablet: TabletId) -> Result<()> {
    match TabletMeta::load(data, tablet) {
        Ok(mut meta) => {
            meta.data_state = DataState::Deleted;
            meta.store(data)?;
        }
        // It stays unreadable, so a crash leaves what may be deleted again.
        Err(error) if matches!(error.kind, ErrorKind::Corrupt | ErrorKind::Unsupported) => {}
        Err(error) => return Err(error),
    }
    remove_data(wal, data, tablet)?;
    cmeta::remove(data, tablet)?;
    TabletMeta::remove(data, tablet)
}

/// Completes what a crash interrupted, and gives the superblock as it is then; `None` if the replica was deleted. To be
/// called for every superblock before anything is made of it.
pub fn recover(wal: &dyn Disk, data: &dyn Disk, tablet: TabletId) -> Result<Option<TabletMeta>> {
    let meta = TabletMeta::load(data, tablet)?;
    match meta.data_state {
        DataState::Ready => Ok(Some(meta)),
        DataState::Deleted => delete(wal, data, tablet).map(|()| None),
        DataState::Tombstoned => {
            remove_data(wal, data, tablet)?;
            Ok(Some(meta))
        }
        DataState::Copying => {
            tombstone(wal, data, tablet, meta.tombstone_last_op)?;
            TabletMeta::load(data, tablet).map(Some)
        }
    }
}

/// Removes a tablet's log and rows, durably; fine if they are gone.
pub(super) fn remove_data(wal: &dyn Disk, data: &dyn Disk, tablet: TabletId) -> Result<()> {
    remove_dir(wal, &wal_dir(tablet))?;
    remove_dir(data, &data_dir(tablet))
}

/// Removes rows of tablets that are not in `known`, which have a superblock on this disk: an interrupted creation left
/// them. How many tablets had some.
pub fn remove_strays(data: &dyn Disk, known: &[TabletId]) -> Result<usize> {
    let strays = strays(data, DATA_DIR, known)?;
    strays.iter().try_for_each(|tablet| remove_dir(data, &data_dir(*tablet)))?;
    Ok(strays.len())
}

/// What [`remove_stray_logs`] found of tablets that have no superblock.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct StrayLogs {
    /// An interrupted creation or deletion left these; they are gone.
    pub removed: usize,
    /// These have operations. Deleting a replica never leaves such a log, so its superblock got lost.
    pub kept: Vec<TabletId>,
}

/// Removes empty logs of tablets that are not in `known`, which have a superblock on any of the server's disks.
pub fn remove_stray_logs(wal: &dyn Disk, known: &[TabletId]) -> Result<StrayLogs> {
    let mut found = StrayLogs::default();
    for tablet in strays(wal, WAL_DIR, known)? {
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

/// The tablets that have a directory in `dir` and are not in `known`.
fn strays(disk: &dyn Disk, dir: &str, known: &[TabletId]) -> Result<Vec<TabletId>> {
    let names = match disk.list(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        names => names.map_err(|error| Error::io(format_args!("list {dir}"), &error))?,
    };
    let tablets = names.iter().filter_map(|name| name.parse().ok());
    Ok(tablets.filter(|tablet| !known.contains(tablet)).collect())
}

/// Removes a directory and the files in it, durably; fine if it is not there.
pub(super) fn remove_dir(disk: &dyn Disk, dir: &str) -> Result<()> {
    let failed = |e: &io::Error| Error::io(format_args!("remove {dir}"), e);
    let names = match disk.list(dir) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        names => names.map_err(|e| failed(&e))?,
    };
    for name in names {
        disk.remove(&format!("{dir}/{name}")).map_err(|e| failed(&e))?;
    }
    disk.sync_dir(dir).map_err(|e| failed(&e))?;
    disk.remove(dir).map_err(|e| failed(&e))?;
    // The superblock may go next, and then nobody would look for the directory.
    disk.sync_dir(disk::parent(dir)).map_err(|e| failed(&e))
}
