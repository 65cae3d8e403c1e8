//! Records of the log.

use bytes::Bytes;

use crate::ids::OpId;
use crate::time::Timestamp;

/// One record of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogEntry {
    Replicate(ReplicateEntry),
    Commit(CommitEntry),
}

/// A replicated operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplicateEntry {
    pub op: OpId,
    pub timestamp: Timestamp,
    /// Kind of the operation; the log does not interpret it.
    pub kind: u8,
    pub payload: Bytes,
}

/// Outcome of an applied operation, so that a restart can repeat it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommitEntry {
    pub op: OpId,
    pub payload: Bytes,
}
