//! Remembering a failed sync for as long as the page cache does.
//!
//! A sync that fails leaves its pages in the cache, marked clean. A process that starts again reads them, and its own
//! sync of the file says yes without writing anything: the next power failure then leaves a hole. So whoever sees a
//! sync fail leaves a file beside the segments, and opening the log writes the last segment anew, into another file.
//! That file need not be durable: it goes when the cache goes, and what is read then comes from the device.

use std::io;
use std::sync::Arc;

use super::Segment;
use crate::disk::{self, Disk};
use crate::error::{Error, Result};

/// The file that tells.
const FILE: &str = "unsynced";

fn path(dir: &str) -> String {
    format!("{dir}/{FILE}")
}

/// Leaves the word that the device may lack what the cache has, and gives `error`, which says so if that failed, too.
pub(super) fn note(disk: &dyn Disk, dir: &str, error: Error) -> Error {
    match disk.create(&path(dir)) {
        Ok(_) => error,
        Err(noted) if noted.kind() == io::ErrorKind::AlreadyExists => error,
        Err(failed) => error.context(format_args!(
            "{} cannot be written ({failed}), so do not trust this log after a restart of the process alone",
            path(dir)
        )),
    }
}

/// Makes what was read of the last segment, at `segment_path`, durable.
pub(super) fn settle(
    disk: &Arc<dyn Disk>,
    dir: &str,
    segment_path: &str,
    segment: &mut Segment,
) -> Result<()> {
    match disk.open(&path(dir)) {
        Ok(_) => renew(&**disk, dir, segment_path, segment),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            // What was replayed may have been in the cache only.
            super::sync_dir(&**disk, dir)?;
            segment
                .file
                .sync()
                .map_err(|error| note(&**disk, dir, Error::io(format_args!("sync {segment_path}"), &error)))
        }
        Err(error) => Err(Error::io(format_args!("open {}", path(dir)), &error)),
    }
}

/// Writes the segment's batches into a new file that takes the old one's place.
fn renew(disk: &dyn Disk, dir: &str, segment_path: &str, segment: &mut Segment) -> Result<()> {
    let mut bytes = vec![0; segment.bytes as usize];
    let renewed = segment
        .file
        .read_at(0, &mut bytes)
        .and_then(|()| disk::replace_file(disk, segment_path, &bytes))
        .and_then(|()| disk.open(segment_path));
    segment.file = renewed
        .map_err(|error| Error::io(format_args!("write {segment_path} anew after a failed sync"), &error))?;
    disk.remove(&path(dir)).map_err(|error| Error::io(format_args!("remove {}", path(dir)), &error))
}
