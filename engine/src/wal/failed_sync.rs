//! Record of a failed sync that lives as long as the page cache.
//!
//! A failed sync leaves its pages in the cache, marked clean. A restarted process reads them, and its own sync of the
//! file succeeds without writing: the next power cut then leaves a hole. So a failed sync leaves a file beside the
//! segments, and opening the log rewrites the last segment into another file. The record need not be durable: it is
//! lost together with the cache, and then reads come from the device.
//!
//! A device that fails may fail the record, too. So opening the log without one first asks the kernel to drop the last
//! segment from the cache: what the device does not have is a torn tail then, as after a power cut.

use std::io;
use std::sync::Arc;

use super::segment::{Segment, sync_dir};
use crate::disk::{self, Disk, DiskFile};
use crate::error::{Error, Result};

/// Name of the record of a failed sync.
const FILE: &str = "unsynced";

fn path(dir: &str) -> String {
    format!("{dir}/{FILE}")
}

/// Records that the device may lack data that the cache has. Returns `error`, with context if the record cannot be
/// written.
pub(super) fn note(disk: &dyn Disk, dir: &str, error: Error) -> Error {
    match disk.create(&path(dir)) {
        Ok(_) => error,
        Err(noted) if noted.kind() == io::ErrorKind::AlreadyExists => error,
        Err(failed) => error.context(format_args!(
            "{} cannot be written ({failed}), so a restarted process reads the last segment from the device alone",
            path(dir)
        )),
    }
}

/// Lets the last segment be read from the device, unless a record says that the cache has more.
pub(super) fn read_from_device(disk: &dyn Disk, dir: &str, segment: &dyn DiskFile) -> io::Result<()> {
    match disk.open(&path(dir)) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            segment.will_verify();
            Ok(())
        }
        Err(error) => Err(error),
    }
}

/// Makes the replayed data of the last segment, at `segment_path`, durable.
pub(super) fn rewrite_last_segment(
    disk: &Arc<dyn Disk>,
    dir: &str,
    segment_path: &str,
    segment: &mut Segment,
) -> Result<()> {
    match disk.open(&path(dir)) {
        Ok(_) => rewrite(&**disk, dir, segment_path, segment),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            // Replayed data may have been in the cache only.
            sync_dir(&**disk, dir)?;
            segment
                .file
                .sync()
                .map_err(|error| note(&**disk, dir, Error::io(format_args!("sync {segment_path}"), &error)))
        }
        Err(error) => Err(Error::io(format_args!("open {}", path(dir)), &error)),
    }
}

/// Writes the segment's batches into a new file that replaces the old one.
fn rewrite(disk: &dyn Disk, dir: &str, segment_path: &str, segment: &mut Segment) -> Result<()> {
    let mut bytes = vec![0; segment.bytes as usize];
    let rewritten = segment
        .file
        .read_at(0, &mut bytes)
        .and_then(|()| disk::replace_file(disk, segment_path, &bytes))
        .and_then(|()| disk.open(segment_path));
    segment.file = rewritten
        .map_err(|error| Error::io(format_args!("rewrite {segment_path} after a failed sync"), &error))?;
    disk.remove(&path(dir)).map_err(|error| Error::io(format_args!("remove {}", path(dir)), &error))
}
