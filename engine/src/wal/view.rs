//! A log as it stands at one moment, for whoever takes it to another server.

use std::sync::Arc;

use super::{Wal, segment_name};
use crate::disk::File;
use crate::error::Result;
use crate::ids::OpId;

/// Everything a log held, durably, when [`Wal::view`] was called.
///
/// The log goes on meanwhile. What is appended later is not seen; segments that [`Wal::gc`] removes later are still
/// read here, because an open file stays good when its name is gone: the view is what pins them.
pub struct WalView {
    /// In order of sequence.
    pub segments: Vec<SegmentView>,
    /// What the file [`TRUNCATIONS`](super::TRUNCATIONS) has to hold beside the segments; nothing: no such file.
    pub truncations: Vec<u8>,
    /// The first index that is there, if any is.
    pub first_index: Option<u64>,
    /// The last replicate that is in force.
    pub last_op: OpId,
}

/// One segment, as far as it counts.
pub struct SegmentView {
    pub sequence: u64,
    pub bytes: u64,
    pub file: Arc<dyn File>,
}

impl SegmentView {
    /// Its name in the log's directory.
    pub fn name(&self) -> String {
        segment_name(self.sequence)
    }
}

impl Wal {
    /// Makes durable what was appended, and gives a view of it.
    ///
    /// A copy must not hold what its source may still lose: the copy would vouch for it.
    pub fn view(&mut self) -> Result<WalView> {
        self.sync()?;
        let view = |segment: &super::Segment| SegmentView {
            sequence: segment.sequence,
            bytes: segment.bytes,
            file: segment.file.clone(),
        };
        Ok(WalView {
            segments: self.segments.iter().map(view).collect(),
            truncations: self.voids.encode(),
            first_index: self.first_index(),
            last_op: self.last_op,
        })
    }
}
