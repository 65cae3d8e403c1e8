//! Directories of a tablet on its server's disks.

use std::io;

use crate::disk::{self, Disk};
use crate::error::{Error, Result};
use crate::ids::TabletId;

/// The directory of all logs.
pub(super) const WAL_DIR: &str = "wals";

/// The directory of a tablet's log.
pub fn wal_dir(tablet: TabletId) -> String {
    format!("{WAL_DIR}/{tablet}")
}

/// Removes a directory and the files in it, durably; succeeds if it is missing.
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
    // Order: durable before the superblock may be removed, as nothing refers to the directory then.
    disk.sync_dir(disk::parent(dir)).map_err(|e| failed(&e))
}
