//! Storage of consensus metadata: beside the superblock, replaced as a whole, and kept as long as the superblock.
//!
//! ```text
//!   consensus-meta/<tablet>       ConsensusMeta, see `raft/consensus_meta.rs`
//!   consensus-meta/<tablet>.tmp   a replacement that a crash interrupted; overwritten by the next
//! ```

use std::io;

use crate::disk::{self, Disk};
use crate::error::{Error, ErrorKind, Result};
use crate::ids::TabletId;
use crate::raft::ConsensusMeta;

const DIR: &str = "consensus-meta";

/// Reads a tablet's consensus metadata; `NotFound` if there is none, `Corrupt` or `Unsupported` if it cannot be read.
pub fn load(disk: &dyn Disk, tablet: TabletId) -> Result<ConsensusMeta> {
    let path = path(tablet);
    let bytes = disk::read_file(disk, &path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Error::not_found(format!("there is no {path}")),
        _ => Error::io(format_args!("read {path}"), &error),
    })?;
    let meta = ConsensusMeta::decode(&bytes).map_err(|error| error.context(&path))?;
    if meta.tablet != tablet {
        return Err(Error::corrupt(format!("{path} is the consensus metadata of tablet {}", meta.tablet)));
    }
    Ok(meta)
}

/// Reads a tablet's metadata; `None` if it is missing or corrupt. A failing disk or a newer format is an error: the
/// term and vote stored there still hold.
pub fn load_known(disk: &dyn Disk, tablet: TabletId) -> Result<Option<ConsensusMeta>> {
    match load(disk, tablet) {
        Ok(meta) => Ok(Some(meta)),
        Err(error) if matches!(error.kind, ErrorKind::NotFound | ErrorKind::Corrupt) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Replaces the stored metadata by `meta`. It is durable when this returns. When this fails, the old or the new one may
/// be stored, and the replica must not act on `meta`.
pub fn store(disk: &dyn Disk, meta: &ConsensusMeta) -> Result<()> {
    let path = path(meta.tablet);
    let stored =
        disk::create_dir_durably(disk, DIR).and_then(|()| disk::replace_file(disk, &path, &meta.encode()));
    stored.map_err(|error| Error::io(format_args!("replace {path}"), &error))
}

/// Makes the stored metadata durable. A start may find it in the cache alone, after a store whose last step failed.
pub fn sync(disk: &dyn Disk, tablet: TabletId) -> Result<()> {
    let path = path(tablet);
    let synced = disk.open(&path).and_then(|file| file.sync()).and_then(|()| disk.sync_dir(DIR));
    synced.map_err(|error| Error::io(format_args!("sync {path}"), &error))
}

/// Removes a tablet's metadata permanently. Allowed only when no candidate will ask this server for a vote in it again.
/// Succeeds if there is none.
pub fn remove(disk: &dyn Disk, tablet: TabletId) -> Result<()> {
    let path = path(tablet);
    match disk.remove(&path).and_then(|()| disk.sync_dir(DIR)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Error::io(format_args!("remove {path}"), &error))
        }
        _ => Ok(()),
    }
}

/// Removes the metadata of all tablets for which `is_stray` returns true, and interrupted replacements of it. Returns
/// the number of files.
pub(super) fn remove_strays(disk: &dyn Disk, is_stray: impl Fn(TabletId) -> Result<bool>) -> Result<usize> {
    let names = match disk.list(DIR) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        names => names.map_err(|error| Error::io(format_args!("list {DIR}"), &error))?,
    };
    let mut removed = 0;
    for name in names {
        let Ok(tablet) = name.strip_suffix(disk::TMP).unwrap_or(&name).parse::<TabletId>() else { continue };
        if !is_stray(tablet)? {
            continue;
        }
        let path = format!("{DIR}/{name}");
        disk.remove(&path).map_err(|error| Error::io(format_args!("remove {path}"), &error))?;
        removed += 1;
    }
    if removed > 0 {
        disk.sync_dir(DIR).map_err(|error| Error::io(format_args!("sync {DIR}"), &error))?;
    }
    Ok(removed)
}

/// Returns the path of a tablet's metadata in its data directory.
pub(super) fn path(tablet: TabletId) -> String {
    format!("{DIR}/{tablet}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::mem::MemDisk;
    use crate::error::ErrorKind;
    use crate::ids::Uuid;
    use crate::raft::{Peer, RaftConfig};

    #[test]
    fn stored_metadata_survives_a_crash() {
        let (disk, tablet) = (MemDisk::new(1), Uuid([5; 16]));
        assert_eq!(load(&disk, tablet).unwrap_err().kind, ErrorKind::NotFound);
        let config = RaftConfig::initial(vec![Peer::voter(Uuid([1; 16]), "a", 1)]);
        let mut meta = ConsensusMeta::new(tablet, config);
        store(&disk, &meta).unwrap();
        meta.see_term(9);
        store(&disk, &meta).unwrap();
        disk.crash();
        assert_eq!(load(&disk, tablet).unwrap(), meta);
        remove(&disk, tablet).unwrap();
        remove(&disk, tablet).unwrap();
        assert_eq!(load(&disk, tablet).unwrap_err().kind, ErrorKind::NotFound);
    }
}
