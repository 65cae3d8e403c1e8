//! Tablets whose tables were dropped: deleted here for good, so that nobody has them made here again.
//!
//! A leader that has not heard of the drop takes a server without a replica for one that lost it, and orders a copy:
//! it would bring back what the master has done with. Masters delete the leader's replica first; this is for when they
//! could not. And an order to create the tablet that its master has given up may still be on its way. It is forgotten
//! at a restart: such orders are gone then, and what comes back is reported to the master, which has it deleted once
//! more.

use std::collections::BTreeMap;

use engine::ids::TabletId;

/// The newest are remembered.
const MAX: usize = 1 << 16;

/// The tablets that were deleted for good since the server began.
#[derive(Debug, Default)]
pub struct Buried {
    /// With the number of the burial.
    tablets: BTreeMap<TabletId, u64>,
    by_age: BTreeMap<u64, TabletId>,
    count: u64,
}

impl Buried {
    pub fn insert(&mut self, tablet: TabletId) {
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

    pub fn contains(&self, tablet: TabletId) -> bool {
        self.tablets.contains_key(&tablet)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::ids::Uuid;

    #[test]
    fn the_newest_are_remembered() {
        let tablet = |n: usize| Uuid((n as u128).to_be_bytes());
        let mut buried = Buried::default();
        for n in 0..=MAX {
            buried.insert(tablet(n));
            buried.insert(tablet(n));
        }
        assert!(!buried.contains(tablet(0)));
        assert!((1..=MAX).all(|n| buried.contains(tablet(n))));
    }
}
