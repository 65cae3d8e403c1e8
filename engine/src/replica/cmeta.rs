//! Where consensus metadata lives: beside the superblock, replaced as a whole, and kept as long as there is one.
//!
//! ```text
//!   consensus-meta/<tablet>       ConsensusMeta, see `raft/cmeta.rs`
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

/// A tablet's metadata; none if there is none, or none that anybody could ever read. A disk that does not answer is
/// an error, as is a newer format: what they would have said still holds.
pub fn load_known(disk: &dyn Disk, tablet: TabletId) -> Result<Option<ConsensusMeta>> {
    match load(disk, tablet) {
        Ok(meta) => Ok(Some(meta)),
        Err(error) if matches!(error.kind, ErrorKind::NotFound | ErrorKind::Corrupt) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Puts `meta` in place of what was stored before. When it returns, it will be found after a crash; when it fails,
/// either may be, and the replica must not act on `meta`.
pub fn store(disk: &dyn Disk, meta: &ConsensusMeta) -> Result<()> {
    let path = path(meta.tablet);
    let stored =
        disk::create_dir_durably(disk, DIR).and_then(|()| disk::replace_file(disk, &path, &meta.encode()));
    stored.map_err(|error| Error::io(format_args!("replace {path}"), &error))
}

/// Forgets a tablet for good: only when nobody will ask this server for a vote in it again. Fine if there is none.
pub fn remove(disk: &dyn Disk, tablet: TabletId) -> Result<()> {
    let path = path(tablet);
    match disk.remove(&path).and_then(|()| disk.sync_dir(DIR)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Error::io(format_args!("remove {path}"), &error))
        }
        _ => Ok(()),
    }
}

fn path(tablet: TabletId) -> String {
    format!("{DIR}/{tablet}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::mem::MemDisk;
    use crate::error::ErrorKind;
    use crate::ids::Uuid;
    use crate::raft::{Config, Peer};

    #[test]
    fn what_is_stored_is_found_after_a_crash() {
        let (disk, tablet) = (MemDisk::new(1), Uuid([5; 16]));
        assert_eq!(load(&disk, tablet).unwrap_err().kind, ErrorKind::NotFound);
        let config = Config::initial(vec![Peer::voter(Uuid([1; 16]), "a", 1)]);
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
