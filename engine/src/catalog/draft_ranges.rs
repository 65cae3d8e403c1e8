//! Ranges of a table that is being altered, with the tablets of each.
//!
//! Invariant: no two ranges overlap. So a new range is compared with its two neighbours only, and a step costs little,
//! however many ranges the table has.

use std::collections::BTreeMap;

use crate::ids::TabletId;
use crate::schema::partition::Partition;
use crate::schema::partition_range::PartitionRange;

/// A partition of the altered table: an existing one with its tablet, or an added one with its label.
#[derive(Debug)]
pub(super) enum DraftTablet {
    Old(TabletId, Partition),
    New(Partition, Option<String>),
}

/// Ranges of the altered table, each with its tablets.
#[derive(Debug, Default)]
pub(super) struct DraftRanges(BTreeMap<PartitionRange, Vec<DraftTablet>>);

impl DraftRanges {
    /// Adds an existing tablet to its range.
    pub(super) fn add_old(&mut self, tablet: TabletId, partition: Partition) {
        self.0.entry(partition.range()).or_default().push(DraftTablet::Old(tablet, partition));
    }

    /// Adds a range that overlaps no other.
    pub(super) fn add_new(
        &mut self,
        range: PartitionRange,
        partitions: Vec<Partition>,
        label: &Option<String>,
    ) {
        let tablets = partitions.into_iter().map(|partition| DraftTablet::New(partition, label.clone()));
        self.0.insert(range, tablets.collect());
    }

    /// Returns a range that overlaps this one, if there is one.
    pub(super) fn overlapping(&self, range: &PartitionRange) -> Option<&PartitionRange> {
        let before = self.0.range::<PartitionRange, _>(..=range).next_back();
        let after = self.0.range::<PartitionRange, _>(range..).next();
        let mut neighbours = before.into_iter().chain(after).map(|(other, _)| other);
        neighbours.find(|other| other.overlaps(range))
    }

    /// Removes a range and returns its tablets, if it exists.
    pub(super) fn remove(&mut self, range: &PartitionRange) -> Option<Vec<DraftTablet>> {
        self.0.remove(range)
    }

    pub(super) fn tablets(&self) -> impl Iterator<Item = &DraftTablet> {
        self.0.values().flatten()
    }

    /// Returns the added partitions with their labels, in the order of their keys.
    pub(super) fn into_added(self) -> Vec<(Partition, Option<String>)> {
        let added = self.0.into_values().flatten().filter_map(|tablet| match tablet {
            DraftTablet::Old(..) => None,
            DraftTablet::New(partition, label) => Some((partition, label)),
        });
        let mut added: Vec<_> = added.collect();
        added.sort_by(|(a, _), (b, _)| a.start.cmp(&b.start));
        added
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(lower: &[u8], upper: &[u8]) -> PartitionRange {
        PartitionRange { lower: lower.to_vec(), upper: upper.to_vec() }
    }

    #[test]
    fn a_range_is_compared_with_the_neighbours_it_may_overlap() {
        let mut ranges = DraftRanges::default();
        for (lower, upper) in [(10, 20), (30, 40), (50, 60)] {
            ranges.add_new(range(&[lower], &[upper]), Vec::new(), &None);
        }
        let overlapping = |lower: &[u8], upper: &[u8]| ranges.overlapping(&range(lower, upper)).cloned();
        let free: [(&[u8], &[u8]); 4] = [(&[], &[10]), (&[20], &[30]), (&[40], &[45]), (&[60], &[])];
        for (lower, upper) in free {
            assert_eq!(overlapping(lower, upper), None, "{lower:?}..{upper:?}");
        }
        let taken: [(&[u8], &[u8]); 7] = [
            (&[30], &[40]),
            (&[30], &[35]),
            (&[30], &[45]),
            (&[30], &[]),
            (&[35], &[36]),
            (&[39], &[40]),
            (&[25], &[31]),
        ];
        for (lower, upper) in taken {
            assert_eq!(overlapping(lower, upper), Some(range(&[30], &[40])), "{lower:?}..{upper:?}");
        }
        assert_eq!(overlapping(&[], &[]), Some(range(&[10], &[20])));
        assert_eq!(overlapping(&[55], &[]), Some(range(&[50], &[60])));
    }

    #[test]
    fn a_range_without_bounds_overlaps_every_other() {
        let mut ranges = DraftRanges::default();
        ranges.add_new(PartitionRange::default(), Vec::new(), &None);
        assert!(ranges.overlapping(&range(&[1], &[2])).is_some());
        assert!(ranges.remove(&range(&[], &[2])).is_none(), "that is another range");
        assert!(ranges.remove(&PartitionRange::default()).is_some());
        assert_eq!(ranges.overlapping(&range(&[1], &[2])), None);
    }
}
