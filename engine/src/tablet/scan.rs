//! Scans of a tablet: what to read, and reading it block by block.

use crate::schema::block::ProjectedColumn;
use crate::schema::predicate::Predicate;
use crate::time::Timestamp;

/// The moment a scan reads at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SnapshotAt {
    /// Everything applied when the scan begins.
    Latest,
    /// Operations with smaller timestamps. The caller has waited until they are all applied and no more of
    /// them can come.
    At(Timestamp),
}

/// What to read of a tablet.
#[derive(Debug, Clone)]
pub struct ScanSpec {
    /// Columns of the blocks returned. At most one has no id: IS_DELETED, only in diff scans.
    pub projection: Vec<ProjectedColumn>,
    /// All must hold.
    pub predicates: Vec<Predicate>,
    /// Encoded primary key, inclusive.
    pub lower_key: Option<Vec<u8>>,
    /// Encoded primary key, exclusive.
    pub upper_key: Option<Vec<u8>>,
    /// Begin after this encoded primary key.
    pub last_key: Option<Vec<u8>>,
    pub snapshot: SnapshotAt,
    /// Only rows changed by operations at or after this timestamp; wants `ordered` and a snapshot in time.
    pub diff_from: Option<Timestamp>,
    /// Rows in primary key order.
    pub ordered: bool,
    /// Stop after so many rows.
    pub limit: Option<u64>,
}
