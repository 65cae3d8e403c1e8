//! Partition keys that a scan has to read: pruned by a partitioning that is not older than the locations.
//!
//! ```text
//!   KnownPartitioning ── prune ──► ranges of keys ── location lookup ──► tablet or gap
//!          ▲                                               │
//!          └── GetTableSchema ◄── locations are newer? ────┘
//! ```
//!
//! - A range that was added since the table was opened may have more hash buckets than the others, or hash other
//!   columns: a partitioning that does not know it prunes its rows. So keys are pruned again, by what the masters
//!   know, once any location of the table is newer than the partitioning.
//! - Keys that nothing narrows have no bounds: they are the same by any partitioning.
//!
//! *Not here:* a range in a gap of the location cache, which is not found until the gap expires or is dropped.

use std::collections::VecDeque;
use std::sync::Arc;

use engine::error::{Error, Result};
use engine::schema::partition::PartitionSchema;
use engine::schema::partition_range::PartitionRange;
use engine::time::Instant;

use super::Table;
use super::location_cache::{LocationLookup, TabletLocation};
use super::scan_spec::ScanSpec;
use super::table::{KnownPartitioning, schemas_from_reply};
use nyala_proto::kudu::master::TableIdentifierPb;

/// Partition keys that a scan has still to read.
pub(super) struct ScanKeys {
    /// Keys of rows that may match. The lower bound of the first range advances.
    ranges: VecDeque<PartitionRange>,
    /// Keys, pruned or not, that were neither read nor skipped yet; `None` at the end.
    left: Option<PartitionRange>,
    /// The partitioning that `ranges` depend on; `None` if they are the same by any.
    pruned_by: Option<Arc<PartitionSchema>>,
}

impl ScanKeys {
    /// Returns the keys of a scan that begins.
    pub(super) fn new(table: &Table, spec: &ScanSpec) -> ScanKeys {
        let known = table.info.partitioning.lock().schema.clone();
        ScanKeys::pruned(table, spec, known, Some(spec.partitions.clone()))
    }

    fn pruned(
        table: &Table,
        spec: &ScanSpec,
        by: Arc<PartitionSchema>,
        left: Option<PartitionRange>,
    ) -> ScanKeys {
        let all = by.prune(table.schema(), &spec.predicates, &spec.keys);
        let ranges = match &left {
            Some(left) => all.iter().filter_map(|range| range.intersection(left)).collect(),
            None => VecDeque::new(),
        };
        // Only ranges of a table with hash buckets have buckets of their own. No partitioning has keys for limits that
        // contradict each other.
        let has_own_buckets = !by.hash.is_empty() && !by.range_columns.is_empty();
        let is_same_by_any = all.is_empty() || all == [PartitionRange::default()];
        let pruned_by = (has_own_buckets && !is_same_by_any).then_some(by);
        ScanKeys { ranges, left, pruned_by }
    }

    /// Returns the tablet of the next key that has one; `None` at the end.
    pub(super) async fn next_tablet(
        &mut self,
        table: &Table,
        spec: &ScanSpec,
        deadline: Instant,
    ) -> Result<Option<Arc<TabletLocation>>> {
        while let Some(located) = self.locate(table, spec, deadline).await? {
            match located {
                LocationLookup::Tablet(tablet) => return Ok(Some(tablet)),
                LocationLookup::Gap { end } => {
                    table.client.env().observer.mark("client: scan skipped a non-covered range");
                    self.advance(&end);
                }
                LocationLookup::Unknown => {
                    return Err(Error::not_ready("the master returned no location for a key"));
                }
            }
        }
        Ok(None)
    }

    /// Returns the location of the next key; `None` at the end.
    async fn locate(
        &mut self,
        table: &Table,
        spec: &ScanSpec,
        deadline: Instant,
    ) -> Result<Option<LocationLookup>> {
        if self.ranges.is_empty() && self.left.as_ref() == Some(&spec.partitions) {
            // Nothing was read: an old partitioning may have pruned all keys.
            self.prune_again(table, spec, deadline).await?;
        }
        while let Some(range) = self.ranges.front() {
            let located = table.client.locate(table, &range.lower, deadline).await?;
            if !self.prune_again(table, spec, deadline).await? {
                return Ok(Some(located));
            }
        }
        Ok(None)
    }

    /// Prunes the keys that are left by the current partitioning. Returns true if it differs from the one before.
    async fn prune_again(&mut self, table: &Table, spec: &ScanSpec, deadline: Instant) -> Result<bool> {
        let Some(before) = &self.pruned_by else { return Ok(false) };
        let current = table.current_partitioning(deadline).await?;
        if current == *before {
            return Ok(false);
        }
        *self = ScanKeys::pruned(table, spec, current, self.left.take());
        Ok(true)
    }

    /// Drops all keys before `end`; an empty `end` is the end of all keys.
    pub(super) fn advance(&mut self, end: &[u8]) {
        let rest = PartitionRange { lower: end.to_vec(), upper: Vec::new() };
        self.left = self.left.take().filter(|_| !end.is_empty()).and_then(|left| left.intersection(&rest));
        while let Some(range) = self.ranges.front_mut() {
            let over = end.is_empty() || (!range.upper.is_empty() && range.upper.as_slice() <= end);
            if !over {
                if range.lower.as_slice() < end {
                    range.lower = end.to_vec();
                }
                return;
            }
            self.ranges.pop_front();
        }
    }
}

impl Table {
    /// Returns the partitioning. The masters are asked for it if a location of the table is newer than the known one.
    async fn current_partitioning(&self, deadline: Instant) -> Result<Arc<PartitionSchema>> {
        let known = self.info.partitioning.lock().clone();
        if self.client.looked_up(self.id()).is_none_or(|at| at <= known.as_of) {
            return Ok(known.schema);
        }
        let as_of = self.client.env().now().mono;
        let by_id = TableIdentifierPb { table_id: Some(self.id_bytes()), table_name: None };
        let reply = self.client.table_schema(by_id, deadline).await?;
        let (_, schema) = schemas_from_reply(&reply)?;
        let mut known = self.info.partitioning.lock();
        // Another scan may have asked later.
        if known.as_of < as_of {
            let schema = if *known.schema == schema { known.schema.clone() } else { Arc::new(schema) };
            *known = KnownPartitioning { schema, as_of };
        }
        Ok(known.schema.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(lower: &str, upper: &str) -> PartitionRange {
        PartitionRange { lower: lower.into(), upper: upper.into() }
    }

    #[test]
    fn keys_before_the_end_of_a_tablet_are_left_behind() {
        let ranges = [range("a", "c"), range("d", "f"), range("h", "")];
        let mut keys = ScanKeys { ranges: ranges.into(), left: Some(range("a", "x")), pruned_by: None };
        let mut first_and_left_after = |end: &str| {
            keys.advance(end.as_bytes());
            (keys.ranges.front().cloned(), keys.left.clone())
        };
        assert_eq!(first_and_left_after("b"), (Some(range("b", "c")), Some(range("b", "x"))));
        assert_eq!(first_and_left_after("c"), (Some(range("d", "f")), Some(range("c", "x"))));
        assert_eq!(first_and_left_after("g"), (Some(range("h", "")), Some(range("g", "x"))));
        assert_eq!(first_and_left_after("x"), (Some(range("x", "")), None));
        assert_eq!(first_and_left_after(""), (None, None));
    }
}
