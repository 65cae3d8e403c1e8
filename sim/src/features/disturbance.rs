//! Disturbance: marks, by the kinds of faults that were active when they were reached.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::feature_set::{DISTURBANCE, feature};
use crate::injector::disturbances::Disturbance;

/// Kind where no fault is active.
const NONE: &str = "none";

/// Number of times that each mark was reached under each kind of fault.
#[derive(Default)]
pub(super) struct Disturbed {
    active: BTreeSet<&'static str>,
    counts: BTreeMap<String, BTreeMap<&'static str, u64>>,
}

impl Disturbed {
    pub(super) fn set_active(&mut self, disturbances: &[Disturbance], now: Duration) {
        let is_active = |one: &&Disturbance| one.to.is_none_or(|to| to > now);
        self.active = disturbances.iter().filter(is_active).map(|one| one.kind).collect();
    }

    pub(super) fn mark(&mut self, mark: &str) {
        if !self.counts.contains_key(mark) {
            self.counts.insert(mark.to_string(), BTreeMap::new());
        }
        let Some(counts) = self.counts.get_mut(mark) else { return };
        for kind in &self.active {
            *counts.entry(*kind).or_default() += 1;
        }
        if self.active.is_empty() {
            *counts.entry(NONE).or_default() += 1;
        }
    }

    /// Returns the features: counts as powers of two, as twice as often is a new situation and once more is none.
    pub(super) fn found(&self) -> BTreeSet<u64> {
        let of_mark = |(mark, counts): (&String, &BTreeMap<&'static str, u64>)| -> Vec<u64> {
            let one = |(kind, count): (&&str, &u64)| feature(DISTURBANCE, (mark, kind, count.ilog2()));
            counts.iter().map(one).collect()
        };
        self.counts.iter().flat_map(of_mark).collect()
    }
}
