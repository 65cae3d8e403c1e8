//! Verification of the stored files of a log in use, in steps that a scrubber can pause between.

use super::batch_reader::{BatchReader, BatchStep};
use super::segment::{damage, segment_path};
use super::snapshot::SegmentSnapshot;
use super::truncations::Truncations;
use super::{format, recovery};
use crate::disk::Disk;
use crate::error::{Error, Result};

/// Bytes after which a step ends.
const STEP_BYTES: u64 = 1 << 20;

/// Checks the file of truncations of the log in `dir`, if there is one.
pub fn check_truncations(disk: &dyn Disk, dir: &str) -> Result<()> {
    Truncations::read(disk, dir).map(drop)
}

/// A check of one segment, up to the end of its whole batches at the time of the snapshot. It keeps the file open.
pub struct SegmentCheck {
    path: String,
    segment: SegmentSnapshot,
    /// Offset of the next batch; 0 before the header.
    offset: u64,
}

impl SegmentCheck {
    /// Creates a check of a segment of the log in `dir`.
    pub fn new(dir: &str, segment: SegmentSnapshot) -> SegmentCheck {
        SegmentCheck { path: segment_path(dir, segment.sequence), segment, offset: 0 }
    }

    pub fn path(&self) -> &str {
        &self.path
    }

    /// Checks the next batches, about a MiB of them. Returns the bytes checked; 0 after the last batch.
    pub fn step(&mut self) -> Result<u64> {
        let (start, end) = (self.offset, self.segment.bytes);
        if start == 0 {
            self.segment.file.will_verify();
            self.offset = self.check_header()?;
        }
        let failed = |error| Error::io(format_args!("read {}", self.path), &error);
        let mut reader = BatchReader::new(&*self.segment.file, self.segment.sequence, self.offset, end);
        while reader.offset() < end && reader.offset() - start < STEP_BYTES {
            let offset = reader.offset();
            match reader.next().map_err(failed)? {
                BatchStep::Batch(batch) => format::decode_entries(&batch.payload, &mut |_| Ok(()))
                    .map_err(|error| damage(&self.path, offset, &error.message))?,
                BatchStep::End => {
                    return Err(damage(&self.path, offset, "zeros follow, but there were batches"));
                }
                BatchStep::Damaged(found) => return Err(damage(&self.path, offset, found.why)),
            }
        }
        self.offset = reader.offset();
        Ok(self.offset - start)
    }

    /// Returns the offset of the first batch.
    fn check_header(&self) -> Result<u64> {
        let SegmentSnapshot { sequence, bytes, file } = &self.segment;
        let read = recovery::read_header(&**file, *bytes);
        let (header, len, _) = read.map_err(|error| error.context(&self.path))?;
        if header.sequence != *sequence {
            return Err(damage(&self.path, 0, &format!("its header is that of segment {}", header.sequence)));
        }
        Ok(len)
    }
}
