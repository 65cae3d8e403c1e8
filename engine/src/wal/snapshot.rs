//! Snapshot of a log, for a tablet copy.

use std::sync::Arc;

use super::{Wal, segment_name};
use crate::disk::DiskFile;
use crate::error::Result;
use crate::ids::OpId;

/// The durable content of a log at the time of [`Wal::snapshot`].
///
/// The log continues to be written. Later appends are not included. Segments that [`Wal::gc`] removes later stay
/// readable here: their open files pin them.
pub struct WalSnapshot {
    /// In order of sequence.
    pub segments: Vec<SegmentSnapshot>,
    /// Content of the file [`TRUNCATIONS`](super::TRUNCATIONS) beside the segments; empty: no such file.
    pub truncations: Vec<u8>,
    /// The first index that is available, if any is.
    pub first_index: Option<u64>,
    /// The last replicate that is not void.
    pub last_op: OpId,
}

/// One segment, up to the end of its whole batches.
pub struct SegmentSnapshot {
    pub sequence: u64,
    pub bytes: u64,
    pub file: Arc<dyn DiskFile>,
}

impl SegmentSnapshot {
    /// Its name in the log's directory.
    pub fn name(&self) -> String {
        segment_name(self.sequence)
    }
}

impl Wal {
    /// Makes all appends durable, and returns a snapshot of the log.
    ///
    /// A copy must not hold data that its source may still lose: the copy would vouch for it.
    pub fn snapshot(&mut self) -> Result<WalSnapshot> {
        self.sync()?;
        let view = |segment: &super::Segment| SegmentSnapshot {
            sequence: segment.sequence,
            bytes: segment.bytes,
            file: segment.file.clone(),
        };
        Ok(WalSnapshot {
            segments: self.segments.iter().map(view).collect(),
            truncations: self.voids.encode(),
            first_index: self.first_index(),
            last_op: self.last_op,
        })
    }
}
