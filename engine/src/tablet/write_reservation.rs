//! Upper bound of the memory that a write can use: the size of its reservation.
//!
//! ```text
//!   rows × (index + fixed cells + defaults)  +  bytes × copies  +  chunks      without the stores' next chunks,
//!   or rows × error + texts, if that is more                                   which the stores reserve themselves
//! ```
//!
//! The bound holds whether rows are inserted, become deltas or are rejected. The quick estimate is high: it assumes as
//! many rows as the bytes could encode. Where that exceeds the available memory, the rows are counted.
//!
//! Cells that share bytes are outside the bound: a leader rejects them (`prepared_batch.rs`).

use super::Tablet;
use super::memrowset::COPY_SHARE;
use super::memstore::arena::CHUNK_BYTES_MAX;
use super::memstore::mutations::RECORD_BYTES;
use super::memstore::tree::ENTRY_BYTES_MAX;
use super::row_errors::{FIXED_TEXT_BYTES_MAX, TEXT_BYTES_MAX};
use super::superblock::TabletSchema;
use crate::error::Result;
use crate::schema::Schema;
use crate::schema::row_ops::{
    ClientColumn, RowError, RowOpLimits, RowOpsReader, op_bytes_min, row_bytes_min,
};

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
/// Bytes of an error without its text, from the list that grows to the reply: its entries, and its fixed text.
const ERROR_BYTES_MAX: usize = 6 * (size_of::<(u32, RowError)>() + FIXED_TEXT_BYTES_MAX);
/// Copies of the texts of errors: in the outcome, in the log's entry while it grows, and in the reply.
const TEXT_COPIES: usize = 4;

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
    // Rows without a key cannot be stored, but there may be many of them.
    let (count, errors) = match counting {
        GrowthEstimate::Quick => (
            rows.len().div_ceil(row_bytes_min(columns, &schema.schema)?),
            rows.len().div_ceil(op_bytes_min(columns)),
        ),
        GrowthEstimate::Exact => {
            let limits = RowOpLimits::default();
            let count = RowOpsReader::new(columns, &schema.schema, rows, indirect, limits)?.count_rows()?;
            (count, count)
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
    // A row is either stored or rejected.
    let stored_or_rejected = (count * per_row).max(errors_bytes_max(errors, &schema.schema));
    Ok((stored_or_rejected + copies + chunks + BATCH_BYTES_MAX + LOG_ENTRY_BYTES_MAX) as u64)
}

/// Returns the most bytes of this many errors of rows.
fn errors_bytes_max(count: usize, schema: &Schema) -> usize {
    let texts = count.saturating_mul(error_text_bytes_max(schema)).min(TEXT_BYTES_MAX);
    count * ERROR_BYTES_MAX + TEXT_COPIES * texts
}

/// Returns the most bytes of the text of an error: the names of all key columns with their types, or the description of
/// one column, and the words around them.
fn error_text_bytes_max(schema: &Schema) -> usize {
    let keys: usize = schema.key_columns().iter().map(|column| column.name.len() + 32).sum();
    let longest = schema.columns().iter().map(|column| column.name.len()).max().unwrap_or(0);
    128 + keys.max(longest)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::schema::row_ops::bind_columns;
    use crate::schema::{ColumnSchema, DataType};

    /// Updates without a key, of 3 bytes each.
    #[test]
    fn errors_of_rows_without_a_key_are_reserved() {
        let key = |id| ColumnSchema::new(id, &format!("{id}{}", "k".repeat(250)), DataType::String);
        let schema = Schema::new((0..10).map(key).collect(), 10).expect("a schema");
        let columns = bind_columns(schema.columns(), &schema).expect("its own columns");
        let schema = TabletSchema::new(schema, 0, "t".to_string(), BTreeMap::new());
        let growth = |rows, counting| {
            let rows = [2u8, 0, 0].repeat(rows);
            growth_max(&schema, &columns, (&rows, &[]), counting).expect("the rows decode") as usize
        };
        for counting in [GrowthEstimate::Quick, GrowthEstimate::Exact] {
            let (few, many) = (growth(100, counting), growth(100_000, counting));
            assert!(few >= 100 * (ERROR_BYTES_MAX + TEXT_COPIES * 2_500), "{counting:?}: {few}");
            assert!(many >= 100_000 * ERROR_BYTES_MAX + TEXT_COPIES * TEXT_BYTES_MAX, "{counting:?}: {many}");
        }
        let many = growth(100_000, GrowthEstimate::Quick);
        assert!(many < 100_000 * 2 * ERROR_BYTES_MAX, "texts are bounded: {many}");
    }
}
