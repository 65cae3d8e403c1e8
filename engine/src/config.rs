//! Limits of a tablet, each with its unit.

use crate::memory::Memory;
use crate::schema::Compression;
use crate::watch::Watch;

/// What a tablet may hold and when it acts on its own. `default()` is for servers, [`TabletConfig::tiny`] for
/// tests that should meet every rollover within a few rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TabletConfig {
    /// Bytes of one cell of a write; a longer one fails its row.
    pub cell_bytes_max: usize,
    /// Bytes of an encoded primary key of an insert; a longer one fails its row.
    pub key_bytes_max: usize,
    /// A MemRowSet this large is flushed.
    pub mrs_flush_bytes: usize,
    /// A MemRowSet whose first row is this old is flushed however small it is.
    pub mrs_flush_age_ms: u64,
    /// Recent deltas of one DiskRowSet of this size are flushed.
    pub dms_flush_bytes: usize,
    /// Recent deltas of one DiskRowSet are flushed at this age however few they are.
    pub dms_flush_age_ms: u64,
    /// A flush or compaction begins another DiskRowSet when one has this many bytes.
    pub rowset_roll_bytes: u64,
    /// When the log holds more than this, what keeps it from being cut is flushed.
    pub wal_retain_bytes: u64,
    /// Bytes of DiskRowSets that one merge rewrites.
    pub merge_budget_bytes: u64,
    /// Merge DiskRowSets when that saves so many lookups per hundred random keys.
    pub merge_gain_min_percent: u32,
    /// Merge so many small DiskRowSets that lie side by side, and rewrite one that has so many files of changes.
    pub merge_min: usize,
    /// Rows in a block of a scan, and about how many bytes of them.
    pub scan_block_rows: usize,
    pub scan_block_bytes: usize,
    /// Rows a job handles in one step, and about how many bytes of them.
    pub job_step_rows: usize,
    pub job_step_bytes: usize,
    /// Size at which a segment of the log is closed.
    pub wal_segment_bytes_max: u64,
    /// Reserve a segment's space when it is begun.
    pub wal_preallocate: bool,
    /// Compress what goes into the log with LZ4, where it helps.
    pub wal_compress: bool,
    /// While the log is shorter than this, what members of the group still need is not cut off it.
    pub wal_spared_bytes_max: u64,
    /// How rows are laid out on disk.
    pub columns: ColumnFileConfig,
    /// Who is told what happens inside.
    pub watch: Watch,
    /// Where the tablet's memory is counted.
    pub memory: Memory,
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
            merge_budget_bytes: 128 << 20,
            merge_gain_min_percent: 10,
            merge_min: 8,
            scan_block_rows: 1024,
            scan_block_bytes: 1 << 20,
            job_step_rows: 4096,
            job_step_bytes: 1 << 20,
            wal_segment_bytes_max: 8 << 20,
            wal_preallocate: true,
            wal_compress: false,
            wal_spared_bytes_max: 640 << 20,
            columns: ColumnFileConfig::default(),
            watch: Watch::default(),
            memory: Memory::default(),
        }
    }
}

/// Rows are not handled one by one, however long they are.
const STEP_ROWS_MIN: u64 = 64;
const BLOCK_ROWS_MIN: u64 = 8;

/// How many of `rows` rows of `bytes` bytes in all make `most` bytes, but no fewer than `least`.
fn fitting(rows: u64, bytes: u64, most: usize, least: u64) -> usize {
    let fitting = (most as u64).saturating_mul(rows).checked_div(bytes);
    let fitting = fitting.map_or(u64::MAX, |rows| rows.max(least));
    usize::try_from(fitting).unwrap_or(usize::MAX)
}

impl TabletConfig {
    /// How many of some rows, of `bytes` bytes in all, a job handles in one step.
    pub fn step_rows(&self, rows: u64, bytes: u64) -> usize {
        self.job_step_rows.min(fitting(rows, bytes, self.job_step_bytes, STEP_ROWS_MIN))
    }

    /// How many of them are in a block of a scan.
    pub fn block_rows(&self, rows: u64, bytes: u64) -> usize {
        self.scan_block_rows.min(fitting(rows, bytes, self.scan_block_bytes, BLOCK_ROWS_MIN))
    }

    /// Every rollover within a few rows.
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
            merge_budget_bytes: 16 << 10,
            merge_gain_min_percent: 50,
            merge_min: 3,
            scan_block_rows: 4,
            scan_block_bytes: 1 << 20,
            job_step_rows: 3,
            job_step_bytes: 1 << 20,
            wal_segment_bytes_max: 1 << 10,
            wal_preallocate: false,
            wal_compress: true,
            wal_spared_bytes_max: 32 << 10,
            columns: ColumnFileConfig::tiny(),
            watch: Watch::default(),
            memory: Memory::default(),
        }
    }
}

/// How column files are laid out, where the schema does not say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ColumnFileConfig {
    /// Bytes of cells in a page of a column without a block size of its own.
    pub page_bytes: usize,
    /// Bytes of cells in a page that keys are looked up in; smaller, as a lookup decodes one.
    pub key_page_bytes: usize,
    /// Bytes of changes in a page of deltas.
    pub delta_page_bytes: usize,
    /// What compression DEFAULT means.
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
    /// Several pages within a few rows.
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
    fn the_longer_rows_are_the_fewer_are_read_at_a_time() {
        let config = TabletConfig::default();
        let of = |rows, row_bytes: u64| config.block_rows(rows, rows * row_bytes);
        assert_eq!([of(5_000, 100), of(5_000, 1 << 10), of(5_000, 4 << 10)], [1024, 1024, 256]);
        assert_eq!([of(3, 1 << 20), of(0, 0)], [8, 1024], "not one by one, and nothing is not long");
    }
}
