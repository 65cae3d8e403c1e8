//! How much memory a write may come to hold at most: what is promised to it before it begins.
//!
//! ```text
//!   rows × (index + fixed cells + defaults)  +  bytes × copies  +  chunks      but for the stores' next chunks, which
//!                                                                              are promised to them
//! ```
//!
//! Whatever becomes of its rows, inserted, taken as changes or refused, this is enough. The first answer is quick and
//! high: as many rows as the bytes could be. Where that is too much, the rows are counted.

use super::Tablet;
use super::memrowset::COPY_SHARE;
use super::memstore::arena::CHUNK_BYTES_MAX;
use super::memstore::chain::RECORD_BYTES;
use super::memstore::tree::ENTRY_BYTES_MAX;
use super::meta::TabletSchema;
use crate::error::Result;
use crate::schema::ops::{OpLimits, RowOpsReader, WireColumn};

/// What a store keeps of a row besides its bytes: the row's place or the changed row's, its entry in the tree, and the
/// record of a change.
const INDEX_BYTES_MAX: usize = ENTRY_BYTES_MAX + RECORD_BYTES + 64;
/// Lists that grow by chunks: leaves, branches, rows, their bytes, records, changes.
const LISTS: usize = 6;
/// What a change keeps of each column it sets besides the value: id and length.
const CHANGED_COLUMN_BYTES_MAX: usize = 8;
/// What a batch keeps of itself until it is applied.
const BATCH_BYTES_MAX: usize = 256;
/// What an entry of the log keeps besides rows and columns: its place, and who asked for it.
const LOG_ENTRY_BYTES_MAX: usize = 512;

/// How the rows of a write are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counting {
    /// At once, and mostly too many.
    Quick,
    /// One by one.
    Exact,
}

impl Tablet {
    /// The most bytes that these rows may come to hold in memory once they are applied.
    ///
    /// What cannot be decoded holds nothing, as it will not be applied.
    pub fn growth_max(
        &self,
        columns: &[WireColumn],
        rows: &[u8],
        indirect: &[u8],
        counting: Counting,
    ) -> u64 {
        let schema = self.table_schema();
        growth_max(&schema, columns, (rows, indirect), counting).unwrap_or(0)
    }
}

fn growth_max(
    schema: &TabletSchema,
    columns: &[WireColumn],
    (rows, indirect): (&[u8], &[u8]),
    counting: Counting,
) -> Result<u64> {
    let reader = RowOpsReader::new(columns, &schema.schema, rows, indirect, OpLimits::default())?;
    let count = match counting {
        Counting::Quick => rows.len().div_ceil(reader.row_bytes_min()),
        Counting::Exact => reader.count_rows()?,
    };
    let defaults = schema.schema.columns().iter().filter_map(|column| column.write_default.as_deref());
    let defaults: usize = defaults.map(<[u8]>::len).sum();
    let per_row = INDEX_BYTES_MAX
        + COPY_SHARE * RECORD_BYTES
        + 2 * (schema.layout.fixed_len() + defaults)
        + CHANGED_COLUMN_BYTES_MAX * schema.schema.columns().len();
    // The batch as it is decoded, with keys twice and their zeros escaped, its rows as they are kept, and its changes
    // once more, and as often as they are copied when what they change is flushed; and the log's copies.
    let copies = (8 + COPY_SHARE) * (rows.len() + indirect.len())
        + 2 * indirect.len()
        + CHANGED_COLUMN_BYTES_MAX * columns.len();
    // Of a list that begins a second chunk, that may be twice as large as what the rows have filled.
    let chunks = (2 * (count * INDEX_BYTES_MAX + rows.len() + indirect.len())).min(LISTS * CHUNK_BYTES_MAX);
    Ok((count * per_row + copies + chunks + BATCH_BYTES_MAX + LOG_ENTRY_BYTES_MAX) as u64)
}
