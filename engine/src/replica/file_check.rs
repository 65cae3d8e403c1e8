//! Checks of the stored files of a replica in use, each in small steps: a scrubber's reads.
//!
//! ```text
//!   consensus-meta/<tablet>                      decoded
//!   data/<tablet>/<file>                         every page, by its checksum and owner (`cfile/page_file/verify.rs`)
//!   tablet-meta/<tablet>                         decoded
//!   wals/<tablet>/<sequence>.wal, truncations    every batch (`wal/verify.rs`)
//! ```
//!
//! Files of pages and segments stay readable while a check has them open. The others are replaced as a whole, so a
//! check sees the old or the new one.

use std::sync::Arc;

use super::{consensus_meta_store, wal_dir};
use crate::cfile::page_file::{PageFile, PageFileCheck};
use crate::disk::{self, Disk};
use crate::error::{Error, Result};
use crate::ids::TabletId;
use crate::tablet::superblock::Superblock;
use crate::wal::{self, SegmentCheck, SegmentSnapshot};

/// Directories of a server that hold files of tablets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileHome {
    Data,
    Wal,
}

/// A check of one file.
pub struct FileCheck {
    path: String,
    home: FileHome,
    work: CheckWork,
}

/// Progress of a [`FileCheck`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CheckStep {
    /// Bytes checked by this step.
    pub bytes: u64,
    /// True if the whole file is checked.
    pub done: bool,
}

enum CheckWork {
    Superblock(Arc<dyn Disk>, TabletId),
    ConsensusMeta(Arc<dyn Disk>, TabletId),
    Truncations(Arc<dyn Disk>, TabletId),
    Pages(PageFileCheck),
    Segment(SegmentCheck),
}

impl FileCheck {
    pub fn superblock(data: Arc<dyn Disk>, tablet: TabletId) -> FileCheck {
        let (path, work) = (Superblock::path(tablet), CheckWork::Superblock(data, tablet));
        FileCheck { path, home: FileHome::Data, work }
    }

    pub fn consensus_meta(data: Arc<dyn Disk>, tablet: TabletId) -> FileCheck {
        let (path, work) = (consensus_meta_store::path(tablet), CheckWork::ConsensusMeta(data, tablet));
        FileCheck { path, home: FileHome::Data, work }
    }

    /// Creates a check of the file of truncations of a replica's log; it may be missing.
    pub fn truncations(wal: Arc<dyn Disk>, tablet: TabletId) -> FileCheck {
        let path = format!("{}/{}", wal_dir(tablet), wal::TRUNCATIONS);
        FileCheck { path, home: FileHome::Wal, work: CheckWork::Truncations(wal, tablet) }
    }

    /// Creates a check of a file of a rowset.
    pub fn pages(file: PageFile) -> FileCheck {
        let path = file.path().to_string();
        FileCheck { path, home: FileHome::Data, work: CheckWork::Pages(PageFileCheck::new(file)) }
    }

    /// Creates a check of a segment of a replica's log.
    pub fn segment(tablet: TabletId, segment: SegmentSnapshot) -> FileCheck {
        let check = SegmentCheck::new(&wal_dir(tablet), segment);
        FileCheck { path: check.path().to_string(), home: FileHome::Wal, work: CheckWork::Segment(check) }
    }

    /// Path of the file in its directory.
    pub fn path(&self) -> &str {
        &self.path
    }

    pub fn home(&self) -> FileHome {
        self.home
    }

    /// Reads and checks a part of the file. `Corrupt` or `Unsupported` if it is damaged, `NotFound` if it is missing.
    pub fn step(&mut self) -> Result<CheckStep> {
        let whole = |bytes| Ok(CheckStep { bytes, done: true });
        match &mut self.work {
            CheckWork::Superblock(disk, tablet) => {
                Superblock::load(&**disk, *tablet).and_then(|meta| whole(meta.encode().len() as u64))
            }
            CheckWork::ConsensusMeta(disk, tablet) => consensus_meta_store::load(&**disk, *tablet)
                .and_then(|meta| whole(meta.encode().len() as u64)),
            CheckWork::Truncations(disk, tablet) => {
                wal::check_truncations(&**disk, &wal_dir(*tablet))?;
                whole(size_if_present(&**disk, &self.path)?)
            }
            CheckWork::Pages(check) => check.step().map(of_bytes),
            CheckWork::Segment(check) => check.step().map(of_bytes),
        }
    }
}

/// Returns the progress of a check whose last step reads nothing.
fn of_bytes(bytes: u64) -> CheckStep {
    CheckStep { bytes, done: bytes == 0 }
}

fn size_if_present(disk: &dyn Disk, path: &str) -> Result<u64> {
    match disk::read_file(disk, path) {
        Ok(bytes) => Ok(bytes.len() as u64),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(0),
        Err(error) => Err(Error::io(format_args!("read {path}"), &error)),
    }
}
