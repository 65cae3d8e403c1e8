//! A scan between two calls.

use std::sync::Arc;

use engine::memory::TrackedBytes;
use engine::schema::aggregation::Aggregation;
use engine::schema::row_block::ProjectedColumn;
use engine::tablet::scan::Scan;

use super::scan_log::ScanLogEntry;
use crate::hosting::replica::ReplicaHandle;
use nyala_common::wire::rows::RowsFormat;

/// A scan between two calls.
pub struct OpenScanner {
    /// Method that opened it, and that alone continues it: `Checksum` needs other rights than `Scan`.
    pub(super) method: &'static str,
    pub(super) replica: ReplicaHandle,
    pub(super) scan: Scan,
    /// Columns of the replies: those of the scan, or the results of the aggregation.
    pub(super) projection: Arc<[ProjectedColumn]>,
    /// Aggregation whose partial results are returned instead of rows.
    pub(super) aggregation: Option<Arc<Aggregation>>,
    pub(super) layout: RowsFormat,
    pub(super) ordered: bool,
    pub(super) entry: ScanLogEntry,
    pub(super) predicate_bytes: u64,
    /// Its memory between two calls; `None` during the call that opens it.
    pub(super) held: Option<TrackedBytes>,
}
