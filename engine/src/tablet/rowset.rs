//! The scan interface of a rowset, in memory or on disk.
//!
//! ```text
//!            Tablet::scan                 one RowSetScanSpec, shared by every rowset
//!                 │
//!      ┌──────────┼───────────┐
//!  MemRowSet  DiskRowSet  DiskRowSet     each returns a RowSetScan: blocks in key order,
//!                                        with visibility, deltas and predicates applied
//! ```
//!
//! Invariant: a key is in one rowset of a tablet at a time, as a live row or a ghost row. Inserting a deleted row again
//! is a REINSERT in the rowset that has its history. So a union of rowsets never returns a key twice.

use std::sync::Arc;

use crate::error::Result;
use crate::ids::ColumnId;
use crate::schema::predicate::Predicate;
use crate::schema::row_block::{Bitmap, ProjectedColumn, RowBlock};
use crate::time::Timestamp;

pub use crate::ids::RowSetId;

/// A snapshot: it sees exactly the operations with timestamps below `before`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Snapshot {
    pub before: Timestamp,
}

impl Snapshot {
    /// Returns the snapshot that sees every operation up to and including the one at `last`.
    pub fn including(last: Timestamp) -> Snapshot {
        Snapshot { before: last.next() }
    }

    pub fn sees(self, op: Timestamp) -> bool {
        op < self.before
    }
}

/// A scan of one rowset.
///
/// A row's state at the snapshot is its base with every UNDO of `ts >= before` applied, newest first, and every REDO of
/// `ts < before`, oldest first. Both can matter below the base's own timestamp: a row deleted in memory before its
/// flush has its last live values as the base, and a REDO DELETE.
#[derive(Debug, Clone)]
pub struct RowSetScanSpec {
    /// Columns of [`ScannedBlock::block`], in order: first the reader's projection, then columns that only predicates
    /// need. Never the virtual IS_DELETED column. A column that the rowset does not have reads its `read_default`, or
    /// NULL.
    pub columns: Arc<[ProjectedColumn]>,
    /// Predicates that must all hold. Each names a column in `columns`.
    pub predicates: Arc<[Predicate]>,
    /// Encoded primary key, inclusive.
    pub lower_key: Option<Vec<u8>>,
    /// Encoded primary key, exclusive.
    pub upper_key: Option<Vec<u8>>,
    pub snapshot: Snapshot,
    /// Start of a diff scan. It returns rows that an operation with `diff_from <= ts < snapshot.before` changed, and
    /// that were live before it or are live at the snapshot. Rows deleted at the snapshot are returned with their key
    /// and their last values, whatever the predicates.
    pub diff_from: Option<Timestamp>,
    /// True if [`ScannedBlock::keys`] are to be filled.
    pub want_keys: bool,
    /// Target rows of a block.
    pub block_rows: usize,
    /// Approximate bytes at which a block ends before it has `block_rows` rows. One row may have more.
    pub block_bytes: usize,
}

impl RowSetScanSpec {
    /// Returns a scan of columns of all rows, at the latest snapshot, without their keys. Its blocks have any number of
    /// bytes.
    pub fn latest(columns: Arc<[ProjectedColumn]>, block_rows: usize) -> RowSetScanSpec {
        RowSetScanSpec {
            columns,
            predicates: Arc::new([]),
            lower_key: None,
            upper_key: None,
            snapshot: Snapshot { before: Timestamp::MAX },
            diff_from: None,
            want_keys: false,
            block_rows,
            block_bytes: usize::MAX,
        }
    }

    /// Returns true if the range contains one key: no key is between a key and the same key with a zero appended.
    pub fn is_one_key(&self) -> bool {
        let bounds = self.lower_key.as_deref().zip(self.upper_key.as_deref());
        bounds.is_some_and(|(lower, upper)| upper.strip_prefix(lower) == Some(&[0]))
    }

    /// Returns an empty block for the rows of a scan. That of one key has memory for its row only.
    pub fn new_block(&self) -> RowBlock {
        match self.is_one_key() {
            true => RowBlock::with_capacity(&self.columns, 1),
            false => RowBlock::new(&self.columns),
        }
    }

    /// Returns true if a rowset with these first and last keys can have rows in the range.
    pub fn may_overlap(&self, min: &[u8], max: &[u8]) -> bool {
        self.lower_key.as_deref().is_none_or(|lower| lower <= max)
            && self.upper_key.as_deref().is_none_or(|upper| min < upper)
    }
}

/// Returns the bytes that each row of a rowset has in those `columns` that the rowset lacks: their read defaults.
pub(super) fn default_bytes(columns: &[ProjectedColumn], has: impl Fn(ColumnId) -> bool) -> u64 {
    let default = |column: &ProjectedColumn| {
        let default = column.read_default.as_ref()?;
        column.id.is_some_and(|id| !has(id)).then_some(default.len() as u64)
    };
    columns.iter().filter_map(default).sum()
}

/// Rows of one rowset that passed the scan.
#[derive(Debug, Clone, Default)]
pub struct ScannedBlock {
    pub block: RowBlock,
    /// Encoded primary keys, one per row, if requested.
    pub keys: Vec<Vec<u8>>,
    /// Diff scans only: rows that are deleted at the snapshot.
    pub deleted: Option<Bitmap>,
}

impl ScannedBlock {
    /// Returns rows `start..end`.
    pub fn slice(&self, start: usize, end: usize) -> ScannedBlock {
        let keys = self.keys.get(start..end).unwrap_or_default().to_vec();
        let deleted = self.deleted.as_ref().map(|flags| {
            let mut sliced = Bitmap::default();
            sliced.extend_from(flags, start, end);
            sliced
        });
        ScannedBlock { block: self.block.slice(start, end - start), keys, deleted }
    }

    /// Appends rows `start..end` of another block of the same scan.
    pub fn append(&mut self, from: &ScannedBlock, start: usize, end: usize) {
        self.block.extend(&from.block, start, end - start);
        self.keys.extend_from_slice(from.keys.get(start..end).unwrap_or_default());
        if let (Some(mine), Some(theirs)) = (&mut self.deleted, &from.deleted) {
            mine.extend_from(theirs, start, end);
        }
    }
}

/// A scan in progress. It owns or shares all it needs; writes, flushes and compactions do not affect it.
pub trait RowSetScan: Send {
    /// Returns the next rows in key order; `None` at the end. It examines at least one batch of rows. The block is
    /// empty if the budget is spent before a row passes.
    fn read(&mut self, budget: &mut ReadBudget) -> Result<Option<ScannedBlock>>;

    /// Appends the cells of the rows that [`RowSetScan::read`] would return to a block of the spec's columns. Returns
    /// false at the end.
    fn append(&mut self, out: &mut RowBlock, budget: &mut ReadBudget) -> Result<bool>;

    /// Returns the next rows in key order, at least one; `None` at the end.
    fn next(&mut self) -> Result<Option<ScannedBlock>> {
        self.read(&mut ReadBudget::unlimited())
    }
}

/// Rows that one read may still examine. A read that finds no row ends when they are spent: otherwise it would last as
/// long as the scan, whatever deadline its caller has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadBudget {
    rows_left: u64,
}

/// Rows that one read may examine.
const READ_ROWS_MAX: u64 = 64 << 10;
/// Least rows that a batch counts for. Batches of long rows have few, and a page that a zone map excludes has none.
const BATCH_ROWS_MIN: u64 = 1 << 10;

impl ReadBudget {
    pub fn of_one_read() -> ReadBudget {
        ReadBudget { rows_left: READ_ROWS_MAX }
    }

    pub fn unlimited() -> ReadBudget {
        ReadBudget { rows_left: u64::MAX }
    }

    /// Counts a batch of rows as examined.
    pub fn spend(&mut self, rows: usize) {
        self.rows_left = self.rows_left.saturating_sub((rows as u64).max(BATCH_ROWS_MIN));
    }

    pub fn is_spent(&self) -> bool {
        self.rows_left == 0
    }
}

/// Cost of key lookups, for metrics and tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ProbeStats {
    /// Bloom filters consulted.
    pub blooms: u64,
    /// Key indexes searched because no Bloom filter excluded the key.
    pub keys: u64,
}
