//! The log of a tablet: operations as agreed, and what applying them did.

use bytes::Bytes;

use crate::ids::OpId;
use crate::time::Timestamp;

/// How a log is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WalConfig {
    /// A segment that has reached this many bytes gets no further batch.
    pub segment_bytes_max: u64,
    /// Reserve a segment's space on the device when it is made, so that syncs need not find it.
    pub preallocate: bool,
}

/// One record of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    Replicate(Replicate),
    Commit(Commit),
}

/// An operation as agreed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replicate {
    pub op: OpId,
    pub timestamp: Timestamp,
    /// What kind of operation; the log does not look at it.
    pub kind: u8,
    pub payload: Bytes,
}

/// What applying an operation did, so that a restart can repeat it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Commit {
    pub op: OpId,
    pub payload: Bytes,
}
