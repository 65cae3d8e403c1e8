//! What a tablet asks of each of its row sets, in memory or on disk.
//!
//! ```text
//!            Tablet::scan                 one RowSetScanSpec, shared by every row set
//!                 │
//!      ┌──────────┼───────────┐
//!  MemRowSet  DiskRowSet  DiskRowSet     each gives a RowSetScan: blocks in key order,
//!                                        with visibility, deltas and predicates applied
//! ```
//!
//! A key lives in one row set of a tablet at a time, dead or alive: inserting a deleted row again is a REINSERT
//! where its history is. So a union of row sets never shows a key twice.

use std::sync::Arc;

use crate::error::Result;
use crate::schema::block::{Bitmap, ProjectedColumn, RowBlock};
use crate::schema::predicate::Predicate;
use crate::time::Timestamp;

pub use crate::ids::RowSetId;

/// A moment to read at: it sees exactly the operations with timestamps below `before`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Snapshot {
    pub before: Timestamp,
}

impl Snapshot {
    /// Sees every operation up to and including the one at `last`.
    pub fn including(last: Timestamp) -> Snapshot {
        Snapshot { before: last.next() }
    }

    pub fn sees(self, op: Timestamp) -> bool {
        op < self.before
    }
}

/// A scan of one row set.
///
/// A row's state at the snapshot is its base with every UNDO of `ts >= before` applied, newest first, and every
/// REDO of `ts < before`, oldest first. (Both can matter below the base's own timestamp: a row deleted in
/// memory before its flush is a base of its last live values and a REDO DELETE.)
#[derive(Debug, Clone)]
pub struct RowSetScanSpec {
    /// Columns of [`ScannedBlock::block`], in order: first what the reader asked for, then columns that only
    /// predicates need. Never the virtual IS_DELETED column. A column that the row set does not have reads its
    /// `read_default`, or NULL.
    pub columns: Arc<[ProjectedColumn]>,
    /// All must hold. Each names a column in `columns`.
    pub predicates: Arc<[Predicate]>,
    /// Encoded primary key, inclusive.
    pub lower_key: Option<Vec<u8>>,
    /// Encoded primary key, exclusive.
    pub upper_key: Option<Vec<u8>>,
    pub snapshot: Snapshot,
    /// A diff scan: only rows that some operation with `diff_from <= ts < snapshot.before` touched and that
    /// were alive before it or are alive at the snapshot. Rows that are dead at the snapshot are returned with
    /// their key and whatever values they last had, without regard to predicates.
    pub diff_from: Option<Timestamp>,
    /// Fill [`ScannedBlock::keys`].
    pub want_keys: bool,
    /// Aim for this many rows in a block.
    pub block_rows: usize,
}

impl RowSetScanSpec {
    /// Whether it looks up one key: nothing lies between a key and the key with a zero added.
    pub fn is_one_key(&self) -> bool {
        let bounds = self.lower_key.as_deref().zip(self.upper_key.as_deref());
        bounds.is_some_and(|(lower, upper)| upper.strip_prefix(lower) == Some(&[0]))
    }

    /// Whether a row set whose first and last key are these can have rows in the range.
    pub fn may_overlap(&self, min: &[u8], max: &[u8]) -> bool {
        self.lower_key.as_deref().is_none_or(|lower| lower <= max)
            && self.upper_key.as_deref().is_none_or(|upper| min < upper)
    }
}

/// Rows of one row set that passed the scan; never empty.
#[derive(Debug, Clone, Default)]
pub struct ScannedBlock {
    pub block: RowBlock,
    /// Encoded primary keys, one per row, if they were wanted.
    pub keys: Vec<Vec<u8>>,
    /// Diff scans only: rows that are dead at the snapshot.
    pub deleted: Option<Bitmap>,
}

impl ScannedBlock {
    /// Rows `start..end` alone.
    pub fn slice(&self, start: usize, end: usize) -> ScannedBlock {
        let keys = self.keys.get(start..end).unwrap_or_default().to_vec();
        let deleted = self.deleted.as_ref().map(|flags| {
            let mut kept = Bitmap::default();
            kept.extend_from(flags, start, end);
            kept
        });
        ScannedBlock { block: self.block.slice(start, end - start), keys, deleted }
    }

    /// Adds rows `start..end` of another block of the same scan.
    pub fn append(&mut self, from: &ScannedBlock, start: usize, end: usize) {
        self.block.extend(&from.block, start, end - start);
        self.keys.extend_from_slice(from.keys.get(start..end).unwrap_or_default());
        if let (Some(mine), Some(theirs)) = (&mut self.deleted, &from.deleted) {
            mine.extend_from(theirs, start, end);
        }
    }
}

/// A scan in progress. It owns (shares) all it needs and is not disturbed by writes, flushes or compactions.
pub trait RowSetScan: Send {
    /// The next rows in key order; `None` at the end.
    fn next(&mut self) -> Result<Option<ScannedBlock>>;
}

/// What looking for keys cost, for metrics and tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ProbeStats {
    /// Bloom filters consulted.
    pub blooms: u64,
    /// Key indexes searched because no Bloom filter said no.
    pub keys: u64,
}
