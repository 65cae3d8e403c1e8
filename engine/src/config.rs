//! Configuration of a tablet; each name carries its unit.

use crate::memory::MemoryHandle;
use crate::observer::ObserverHandle;
use crate::schema::Compression;

/// Limits of a tablet, and thresholds of its maintenance. `default()` is for servers. [`TabletConfig::tiny`] is for
/// tests that should reach every threshold within a few rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TabletConfig {
    /// Most bytes of one cell of a write; a longer cell fails its row.
    pub cell_bytes_max: usize,
    /// Most bytes of the encoded primary key of an insert; a longer key fails its row.
    pub key_bytes_max: usize,
    /// Bytes at which a MemRowSet is flushed.
    pub mrs_flush_bytes: usize,
    /// Age of its first row at which a MemRowSet is flushed, whatever its size.
    pub mrs_flush_age_ms: u64,
    /// Bytes at which a DeltaMemStore is flushed.
    pub dms_flush_bytes: usize,
    /// Age at which a DeltaMemStore is flushed, whatever its size.
    pub dms_flush_age_ms: u64,
    /// Bytes of a DiskRowSet at which a flush or compaction starts the next one.
    pub rowset_roll_bytes: u64,
    /// Bytes of the WAL above which the stores that anchor it are flushed.
    pub wal_retain_bytes: u64,
    /// Bytes of DiskRowSets that one compaction rewrites (its budget).
    pub compaction_budget_bytes: u64,
    /// Lookups per 100 random keys that a rowset compaction must save.
    pub merge_gain_min_percent: u32,
    /// Number of adjacent small DiskRowSets that are compacted, and number of delta files of one DiskRowSet that
    /// trigger a delta compaction.
    pub merge_min: usize,
    /// Deltas in files per 100 rows from which that is a major delta compaction, below which it is a minor one.
    pub major_delta_percent: u32,
    /// Rows of a scan's block, and their approximate bytes.
    pub scan_block_rows: usize,
    pub scan_block_bytes: usize,
    /// Rows from which on an ordered scan returns a run of one rowset as a block by itself.
    pub scan_long_run_rows: usize,
    /// Target rows of a block that an ordered scan assembles from shorter runs.
    pub scan_combined_rows: usize,
    /// Rows of one step of a maintenance job, and their approximate bytes.
    pub job_step_rows: usize,
    pub job_step_bytes: usize,
    /// Bytes at which a WAL segment is closed.
    pub wal_segment_bytes_max: u64,
    /// True if a segment's disk space is allocated when the segment is created.
    pub wal_preallocate: bool,
    /// True if WAL batches are compressed with LZ4, where that saves bytes.
    pub wal_compress: bool,
    /// Bytes of the WAL up to which log GC keeps the segments that other members of the group still need.
    pub wal_spared_bytes_max: u64,
    /// Replies to requests that a replica keeps for retries; more than clients have in flight to one tablet.
    pub tracked_replies_max: usize,
    /// Most bytes of the results in these replies.
    pub tracked_result_bytes_max: usize,
    /// Layout of column files on disk.
    pub columns: ColumnFileConfig,
    /// Observer of marks and notes.
    pub observer: ObserverHandle,
    /// Memory tracker of the tablet's owner.
    pub memory: MemoryHandle,
}

impl Default for TabletConfig {
    fn default() -> TabletConfig {
        TabletConfig {
            cell_bytes_max: 64 << 10,
            key_bytes_max: 16 << 10,
            mrs_flush_bytes: 128 << 20,
            mrs_flush_age_ms: 120_000,
            dms_flush_bytes: 16 << 20,
            dms_flush_age_ms: 120_000,
            rowset_roll_bytes: 32 << 20,
            wal_retain_bytes: 256 << 20,
            compaction_budget_bytes: 128 << 20,
            merge_gain_min_percent: 10,
            merge_min: 8,
            major_delta_percent: 10,
            scan_block_rows: 1024,
            scan_block_bytes: 1 << 20,
            scan_long_run_rows: 128,
            scan_combined_rows: 512,
            job_step_rows: 4096,
            job_step_bytes: 1 << 20,
            wal_segment_bytes_max: 8 << 20,
            wal_preallocate: true,
            wal_compress: false,
            wal_spared_bytes_max: 640 << 20,
            tracked_replies_max: 512,
            tracked_result_bytes_max: 4 << 20,
            columns: ColumnFileConfig::default(),
            observer: ObserverHandle::default(),
            memory: MemoryHandle::default(),
        }
    }
}

/// Least rows of a step and of a block, however long the rows are.
const STEP_ROWS_MIN: u64 = 64;
const BLOCK_ROWS_MIN: u64 = 8;

/// Returns how many of `rows` rows with `bytes` bytes in total fit into `most` bytes, but at least `least`.
fn fitting(rows: u64, bytes: u64, most: usize, least: u64) -> usize {
    let fitting = (most as u64).saturating_mul(rows).checked_div(bytes);
    let fitting = fitting.map_or(u64::MAX, |rows| rows.max(least));
    usize::try_from(fitting).unwrap_or(usize::MAX)
}

/// Least bytes of the histories of a step, so that short ones never shorten it.
const HISTORY_BYTES_MIN: usize = 64 << 10;

impl TabletConfig {
    /// Returns the bytes of keys and deltas of one job step, for each of `inputs` rowsets. One row may have more.
    pub fn step_history_bytes(&self, inputs: usize) -> usize {
        (self.job_step_bytes / inputs.max(1)).max(HISTORY_BYTES_MIN)
    }

    /// Returns the rows of one job step, for `rows` rows with `bytes` bytes in total.
    pub fn step_rows(&self, rows: u64, bytes: u64) -> usize {
        self.job_step_rows.min(fitting(rows, bytes, self.job_step_bytes, STEP_ROWS_MIN))
    }

    /// Returns the rows of a scan block, for `rows` rows with `bytes` bytes in total.
    pub fn block_rows(&self, rows: u64, bytes: u64) -> usize {
        self.scan_block_rows.min(fitting(rows, bytes, self.scan_block_bytes, BLOCK_ROWS_MIN))
    }

    /// Returns limits so low that every threshold is reached within a few rows.
    pub fn tiny() -> TabletConfig {
        TabletConfig {
            cell_bytes_max: 1 << 10,
            key_bytes_max: 256,
            mrs_flush_bytes: 3 << 10,
            mrs_flush_age_ms: 1_000,
            dms_flush_bytes: 2 << 10,
            dms_flush_age_ms: 1_000,
            rowset_roll_bytes: 1 << 10,
            wal_retain_bytes: 8 << 10,
            compaction_budget_bytes: 16 << 10,
            merge_gain_min_percent: 50,
            merge_min: 3,
            major_delta_percent: 60,
            scan_block_rows: 4,
            scan_block_bytes: 1 << 20,
            scan_long_run_rows: 4,
            scan_combined_rows: 6,
            job_step_rows: 3,
            job_step_bytes: 1 << 20,
            wal_segment_bytes_max: 1 << 10,
            wal_preallocate: false,
            wal_compress: true,
            wal_spared_bytes_max: 32 << 10,
            tracked_replies_max: 512,
            tracked_result_bytes_max: 4 << 20,
            columns: ColumnFileConfig::tiny(),
            observer: ObserverHandle::default(),
            memory: MemoryHandle::default(),
        }
    }
}

/// Layout of column files where the schema does not specify it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ColumnFileConfig {
    /// Bytes of cells in a page of a column without a block size in the schema.
    pub page_bytes: usize,
    /// Bytes of cells in a page of keys; smaller, because a lookup decodes one page.
    pub key_page_bytes: usize,
    /// Bytes of row changes in a page of deltas.
    pub delta_page_bytes: usize,
    /// Codec of columns with compression DEFAULT.
    pub compression: Compression,
}

impl Default for ColumnFileConfig {
    fn default() -> ColumnFileConfig {
        ColumnFileConfig {
            page_bytes: 256 << 10,
            key_page_bytes: 32 << 10,
            delta_page_bytes: 64 << 10,
            compression: Compression::None,
        }
    }
}

impl ColumnFileConfig {
    /// Returns page sizes so small that a few rows fill several pages.
    pub fn tiny() -> ColumnFileConfig {
        ColumnFileConfig {
            page_bytes: 64,
            key_page_bytes: 48,
            delta_page_bytes: 64,
            compression: Compression::None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_longer_rows_have_fewer_rows() {
        let config = TabletConfig::default();
        let of = |rows, row_bytes: u64| config.block_rows(rows, rows * row_bytes);
        assert_eq!([of(5_000, 100), of(5_000, 1 << 10), of(5_000, 4 << 10)], [1024, 1024, 256]);
        assert_eq!(
            [of(3, 1 << 20), of(0, 0)],
            [8, 1024],
            "long rows have a minimum, and no rows use the maximum"
        );
    }
}
