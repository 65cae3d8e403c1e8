//! The features of a run, by axis.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use serde::{Deserialize, Serialize};

/// The axes of features.
pub const AXES: [&str; 4] = ["states", "order", "disturbance", "workload"];
/// Indices of the axes.
pub const STATES: usize = 0;
pub const ORDER: usize = 1;
pub const DISTURBANCE: usize = 2;
pub const WORKLOAD: usize = 3;

/// The features of one run by axis. No feature is on two axes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunFeatures {
    pub axes: [BTreeSet<u64>; AXES.len()],
}

impl RunFeatures {
    /// Returns all features.
    pub fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        self.axes.iter().flatten().copied()
    }
}

/// Returns the feature of a situation on an axis.
pub(super) fn feature(axis: usize, situation: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    (axis, situation).hash(&mut hasher);
    hasher.finish()
}
