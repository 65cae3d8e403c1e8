//! A scan between two calls.

use std::sync::Arc;

use engine::schema::row_block::ProjectedColumn;
use engine::tablet::scan::Scan;

use super::scan_log::ScanLogEntry;
use crate::hosting::replica::ReplicaHandle;
use nyala_common::wire::rows::RowsFormat;

/// A scan between two calls.
pub struct OpenScanner {
    pub(super) replica: ReplicaHandle,
    pub(super) scan: Scan,
    pub(super) projection: Arc<[ProjectedColumn]>,
    pub(super) layout: RowsFormat,
    pub(super) ordered: bool,
    pub(super) entry: ScanLogEntry,
}
