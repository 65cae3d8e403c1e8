//! Ids of permanently deleted tablets, whose tables were dropped: they must not be created or copied here again.
//!
//! A leader that does not know of the drop takes a server without a replica for one that lost it, and orders a copy.
//! That copy would restore a tablet that the master has deleted. Masters delete the leader's replica first; this set
//! covers the case that they could not. A request to create the tablet that its master has given up may also still be
//! in flight.
//!
//! The set is in memory only. After a restart such orders are no longer in flight, and a restored tablet is reported to
//! the master, which deletes it again.

use std::collections::BTreeMap;

use engine::ids::TabletId;

/// Number of ids that are remembered; the oldest go first.
const MAX: usize = 1 << 16;

/// Tablets permanently deleted since the server started.
#[derive(Debug, Default)]
pub(super) struct DeletedTablets {
    /// Deleted tablets with the sequence number of their deletion.
    tablets: BTreeMap<TabletId, u64>,
    by_age: BTreeMap<u64, TabletId>,
    count: u64,
}

impl DeletedTablets {
    pub(super) fn insert(&mut self, tablet: TabletId) {
        self.remove(tablet);
        self.count += 1;
        self.tablets.insert(tablet, self.count);
        self.by_age.insert(self.count, tablet);
        if self.by_age.len() > MAX
            && let Some((_, oldest)) = self.by_age.pop_first()
        {
            self.tablets.remove(&oldest);
        }
    }

    fn remove(&mut self, tablet: TabletId) {
        if let Some(number) = self.tablets.remove(&tablet) {
            self.by_age.remove(&number);
        }
    }

    pub(super) fn contains(&self, tablet: TabletId) -> bool {
        self.tablets.contains_key(&tablet)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::ids::Uuid;

    #[test]
    fn the_newest_deletions_are_remembered() {
        let tablet = |n: usize| Uuid((n as u128).to_be_bytes());
        let mut deleted = DeletedTablets::default();
        for n in 0..=MAX {
            deleted.insert(tablet(n));
            deleted.insert(tablet(n));
        }
        assert!(!deleted.contains(tablet(0)));
        assert!((1..=MAX).all(|n| deleted.contains(tablet(n))));
    }
}
