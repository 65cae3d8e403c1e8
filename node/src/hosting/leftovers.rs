//! Removal of what a tablet has in directories of this server: after its deletion, or before it is created or copied.

use std::sync::Arc;

use engine::disk::Disk;
use engine::error::{Error, ErrorKind, Result};
use engine::ids::TabletId;
use engine::replica::tombstone;

use crate::dirs::Directory;

/// Removes what earlier creations and copies of a tablet that is not here have left in `dirs`, all data directories: a
/// server has a tablet once.
pub(super) fn remove_leftovers(wal: &dyn Disk, dirs: &[Arc<Directory>], tablet: TabletId) -> Result<()> {
    remove_from(wal, dirs.iter(), tablet)
}

/// Removes all that `dirs` have of a tablet, and its log.
pub(super) fn remove_from<'a>(
    wal: &dyn Disk,
    mut dirs: impl Iterator<Item = &'a Arc<Directory>>,
    tablet: TabletId,
) -> Result<()> {
    dirs.try_for_each(|dir| tombstone::delete(wal, &*dir.disk, tablet).or_else(ignore_not_found))
}

fn ignore_not_found(error: Error) -> Result<()> {
    if error.kind == ErrorKind::NotFound { Ok(()) } else { Err(error) }
}
