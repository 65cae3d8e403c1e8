//! The tablet budget of a request: its tablets are counted before any of them is built.
//!
//! A request of a hundred bytes can ask for billions of hash buckets. All tablets of a request are stored by one
//! operation of the system tablet, which must fit into a message of `rpc_max_message_size` (50 MiB).

use super::error::{CatalogError, CatalogErrorCode, CatalogResult};
use crate::error::Error;
use crate::schema::partition::PartitionSchema;
use crate::schema::partition_range::{PartitionRange, RangeOpLimits};

/// Tablets that one request may create. A tablet's record takes up to 2,000 bytes besides its keys, with seven replicas
/// on hosts with the longest names: 40 MB in all.
pub(super) const TABLETS_MAX: u64 = 20_000;
/// Bytes of the partition keys and dimension labels of these tablets. Each tablet's record repeats them.
pub(super) const KEY_BYTES_MAX: u64 = 4 << 20;
/// Bytes of one hash bucket in a tablet's record: in both keys, and by itself.
const BUCKET_BYTES: u64 = 13;

/// Tablets that a request creates so far.
#[derive(Debug, Default)]
pub(super) struct TabletBudget {
    tablets: u64,
    key_bytes: u64,
}

impl TabletBudget {
    /// Limits of operations that can fit into a budget. Each split row and each pair of bounds makes a tablet, and keys
    /// are at least as long as their cells.
    pub(super) const OP_LIMITS: RangeOpLimits =
        RangeOpLimits { count: 2 * TABLETS_MAX as usize, cell_bytes: KEY_BYTES_MAX as usize };

    /// Counts the tablets of one range. Returns `Invalid` if the request creates too many.
    pub(super) fn add(
        &mut self,
        partition_schema: &PartitionSchema,
        range: &PartitionRange,
        label: Option<&str>,
    ) -> CatalogResult<()> {
        let tablets = partition_schema.partition_count(range);
        let text_bytes = range.lower.len() + range.upper.len() + label.unwrap_or_default().len();
        let bucket_bytes = BUCKET_BYTES.saturating_mul(partition_schema.hash.len() as u64);
        let key_bytes = tablets.saturating_mul(bucket_bytes.saturating_add(text_bytes as u64));
        self.tablets = self.tablets.saturating_add(tablets);
        self.key_bytes = self.key_bytes.saturating_add(key_bytes);
        self.check()
    }

    /// Counts the ranges that these splits add. Each split is the upper bound of one range and the lower bound of the
    /// next.
    pub(super) fn add_splits(
        &mut self,
        partition_schema: &PartitionSchema,
        splits: &[Vec<u8>],
        label: Option<&str>,
    ) -> CatalogResult<()> {
        splits.iter().try_for_each(|split| {
            let bounds = PartitionRange { lower: split.clone(), upper: split.clone() };
            self.add(partition_schema, &bounds, label)
        })
    }

    fn check(&self) -> CatalogResult<()> {
        let message = if self.tablets > TABLETS_MAX {
            format!(
                "partitions: too many tablets in one request (at least {}, limit {TABLETS_MAX}); use fewer hash \
                 buckets, or add range partitions in several requests",
                self.tablets
            )
        } else if self.key_bytes > KEY_BYTES_MAX {
            format!(
                "partitions: the keys and labels of {} tablets are too long for one request (at least {} bytes, limit \
                 {KEY_BYTES_MAX}); use shorter bounds, or add range partitions in several requests",
                self.tablets, self.key_bytes
            )
        } else {
            return Ok(());
        };
        Err(CatalogError::new(CatalogErrorCode::TooManyTablets, Error::invalid(message)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::ColumnId;
    use crate::schema::partition::HashDimension;

    fn hashed(buckets: &[u32]) -> PartitionSchema {
        let dimension =
            |buckets: &u32| HashDimension { columns: vec![ColumnId(0)], buckets: *buckets, seed: 0 };
        PartitionSchema { hash: buckets.iter().map(dimension).collect(), ..PartitionSchema::default() }
    }

    fn refusal(added: CatalogResult<()>) -> String {
        let error = added.expect_err("too much");
        assert_eq!(error.code, CatalogErrorCode::TooManyTablets);
        error.error.message
    }

    #[test]
    fn hash_buckets_multiply_without_overflow() {
        let all = PartitionRange::default();
        assert_eq!(TabletBudget::default().add(&hashed(&[100, 200]), &all, None), Ok(()));
        let message = refusal(TabletBudget::default().add(&hashed(&[100, 201]), &all, None));
        assert!(message.contains("at least 20100, limit 20000"), "{message}");
        let huge = hashed(&[u32::MAX; 3]);
        let message = refusal(TabletBudget::default().add(&huge, &all, None));
        assert!(message.contains(&u64::MAX.to_string()), "{message}");
    }

    #[test]
    fn ranges_and_splits_of_a_request_add_up() {
        let (schema, mut budget) = (hashed(&[5_000]), TabletBudget::default());
        assert_eq!(budget.add(&schema, &PartitionRange::default(), None), Ok(()));
        assert_eq!(budget.add_splits(&schema, &vec![vec![1]; 3], None), Ok(()));
        let message = refusal(budget.add_splits(&schema, &[vec![2]], None));
        assert!(message.contains("at least 25000, limit 20000"), "{message}");
    }

    #[test]
    fn a_range_with_its_own_hash_counts_by_it() {
        let mut schema = hashed(&[2]);
        let own = PartitionRange { lower: vec![1], upper: vec![2] };
        schema.set_custom(&own, hashed(&[30_000]).hash);
        assert_eq!(TabletBudget::default().add(&schema, &PartitionRange::default(), None), Ok(()));
        refusal(TabletBudget::default().add(&schema, &own, None));
    }

    #[test]
    fn long_bounds_and_labels_count_for_each_tablet() {
        let long = PartitionRange { lower: Vec::new(), upper: vec![1; 1 << 20] };
        assert_eq!(TabletBudget::default().add(&hashed(&[3]), &long, None), Ok(()));
        let message = refusal(TabletBudget::default().add(&hashed(&[4]), &long, None));
        assert!(message.contains("keys and labels of 4 tablets"), "{message}");
        let label = "x".repeat(1 << 20);
        refusal(TabletBudget::default().add(&hashed(&[4]), &PartitionRange::default(), Some(&label)));
    }
}
