//! Upper bound of the memory that a write can use: the size of its reservation.
//!
//! ```text
//!   rows × (index + fixed cells + defaults)  +  bytes × copies  +  chunks      without the stores' next chunks,
//!                                                                              which the stores reserve themselves
//! ```
//!
//! The bound holds whether rows are inserted, become deltas or are rejected. The quick estimate is high: it assumes as
//! many rows as the bytes could encode. Where that exceeds the available memory, the rows are counted.

use super::Tablet;
use super::memrowset::COPY_SHARE;
use super::memstore::arena::CHUNK_BYTES_MAX;
use super::memstore::mutations::RECORD_BYTES;
use super::memstore::tree::ENTRY_BYTES_MAX;
use super::superblock::TabletSchema;
use crate::error::Result;
use crate::schema::row_ops::{ClientColumn, RowOpLimits, RowOpsReader, row_bytes_min};

/// Bytes that a store adds to a row: the location of the row or of the changed row, its entry in the tree, and the
/// record of a row change.
const INDEX_BYTES_MAX: usize = ENTRY_BYTES_MAX + RECORD_BYTES + 64;
/// Lists that grow by chunks: leaves, branches, rows, their bytes, records, row changes.
const LISTS: usize = 6;
/// Bytes that a row change adds to each value it sets: column id and length.
const CHANGED_COLUMN_BYTES_MAX: usize = 8;
/// Fixed bytes of a batch until it is applied.
const BATCH_BYTES_MAX: usize = 256;
/// Bytes that a log entry adds to rows and columns: its position, and the request id.
const LOG_ENTRY_BYTES_MAX: usize = 512;

/// Method of counting the rows of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GrowthEstimate {
    /// Computed from the size of the request; usually too high.
    Quick,
    /// Rows are decoded and counted.
    Exact,
}

impl Tablet {
    /// Returns the most bytes of memory that these rows can use once they are applied.
    ///
    /// Returns 0 for rows that cannot be decoded, as they are never applied.
    pub fn growth_max(
        &self,
        columns: &[ClientColumn],
        rows: &[u8],
        indirect: &[u8],
        counting: GrowthEstimate,
    ) -> u64 {
        let schema = self.table_schema();
        growth_max(&schema, columns, (rows, indirect), counting).unwrap_or(0)
    }
}

fn growth_max(
    schema: &TabletSchema,
    columns: &[ClientColumn],
    (rows, indirect): (&[u8], &[u8]),
    counting: GrowthEstimate,
) -> Result<u64> {
    let count = match counting {
        GrowthEstimate::Quick => rows.len().div_ceil(row_bytes_min(columns, &schema.schema)?),
        GrowthEstimate::Exact => {
            RowOpsReader::new(columns, &schema.schema, rows, indirect, RowOpLimits::default())?
                .count_rows()?
        }
    };
    let defaults = schema.schema.columns().iter().filter_map(|column| column.write_default.as_deref());
    let defaults: usize = defaults.map(<[u8]>::len).sum();
    let per_row = INDEX_BYTES_MAX
        + COPY_SHARE * RECORD_BYTES
        + 2 * (schema.layout.fixed_len() + defaults)
        + CHANGED_COLUMN_BYTES_MAX * schema.schema.columns().len();
    // Copies: the decoded batch, with keys twice and their zeros escaped; the stored rows; the row changes once more,
    // and each copy that the flush of their store makes; the log's copies.
    let copies = (8 + COPY_SHARE) * (rows.len() + indirect.len())
        + 2 * indirect.len()
        + CHANGED_COLUMN_BYTES_MAX * columns.len();
    // A list that starts a second chunk may allocate twice the bytes that its rows fill.
    let chunks = (2 * (count * INDEX_BYTES_MAX + rows.len() + indirect.len())).min(LISTS * CHUNK_BYTES_MAX);
    Ok((count * per_row + copies + chunks + BATCH_BYTES_MAX + LOG_ENTRY_BYTES_MAX) as u64)
}
