//! Segments: their files, names and marks.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use super::format::{self, SegmentHeader};
use crate::disk::{Disk, DiskFile};
use crate::error::{Error, Result};
use crate::ids::OpId;

pub(super) struct Segment {
    pub(super) sequence: u64,
    pub(super) file: Arc<dyn DiskFile>,
    /// Length of the whole batches, in bytes.
    pub(super) bytes: u64,
    pub(super) header_bytes: u64,
    pub(super) format: u16,
    /// The last operation before this segment.
    pub(super) base: OpId,
    /// The largest index of its replicates that are not void, 0 if none.
    pub(super) max_index: u64,
}

/// Position of a batch whose first replicate has `index`.
#[derive(Debug, Clone, Copy)]
pub(super) struct BatchMark {
    pub(super) index: u64,
    pub(super) sequence: u64,
    pub(super) offset: u64,
}

/// Least distance in bytes between marks of a segment: the most that a read has to skip.
const MARK_BYTES: u64 = 64 << 10;

/// Fails unless `next` can come right after `last`; the error describes the fault.
pub(super) fn check_follows(last: OpId, next: OpId) -> Result<(), String> {
    let first = last == OpId::MIN && next.index > 0;
    if first || (next.index == last.index + 1 && next.term >= last.term) {
        return Ok(());
    }
    Err(format!("operation {next} cannot follow {last} in a log"))
}

pub(super) fn mark(marks: &mut VecDeque<BatchMark>, mark: BatchMark) {
    let is_near = |last: &BatchMark| last.sequence == mark.sequence && mark.offset - last.offset < MARK_BYTES;
    if !marks.back().is_some_and(is_near) {
        marks.push_back(mark);
    }
}

/// The name of a segment in its log's directory.
pub fn segment_name(sequence: u64) -> String {
    format!("{sequence:010}.wal")
}

pub(super) fn segment_path(dir: &str, sequence: u64) -> String {
    format!("{dir}/{}", segment_name(sequence))
}

pub(super) fn sync_dir(disk: &dyn Disk, dir: &str) -> Result<()> {
    disk.sync_dir(dir).map_err(|error| Error::io(format_args!("sync the directory {dir}"), &error))
}

/// Writes an empty segment with `preallocate` bytes reserved, under its temporary name. The directory is yet to be
/// synced.
pub(super) fn write_segment(
    disk: &dyn Disk,
    dir: &str,
    preallocate: Option<u64>,
    header: &SegmentHeader,
) -> Result<Segment> {
    let tmp = format!("{}{TMP}", segment_path(dir, header.sequence));
    let bytes = format::encode_header(header);
    let write = || {
        let file = disk.create(&tmp)?;
        // A full device may still have space for the data actually written.
        let _hint = preallocate.map(|bytes| file.reserve(bytes));
        file.append(&bytes)?;
        file.sync()?;
        Ok(file)
    };
    let file = write().map_err(|error: io::Error| {
        // A leftover is harmless; opening the log removes it too.
        let _ = disk.remove(&tmp);
        Error::io(format_args!("write the log segment {tmp}"), &error)
    })?;
    let (sequence, base, bytes) = (header.sequence, header.last_op, bytes.len() as u64);
    let format = format::SEGMENT_VERSION;
    Ok(Segment { sequence, file, bytes, header_bytes: bytes, format, base, max_index: 0 })
}

/// Renames a segment to its final name, durably.
pub(super) fn publish_segment(disk: &dyn Disk, dir: &str, sequence: u64) -> io::Result<()> {
    let path = segment_path(dir, sequence);
    disk.rename(&format!("{path}{TMP}"), &path)?;
    disk.sync_dir(dir)
}

pub(super) const TMP: &str = ".tmp";

pub(super) fn damage(path: &str, offset: u64, why: &str) -> Error {
    Error::corrupt(format!("{path} is damaged at offset {offset}: {why}"))
}
