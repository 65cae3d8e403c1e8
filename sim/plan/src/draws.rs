//! Draws and units shared by the generator and the scenarios.

use std::time::Duration;

use crate::client_ops::{ReadMode, ReplicaChoice};
use crate::random_stream::RandomStream;

pub(crate) const MS: Duration = Duration::from_millis(1);
pub(crate) const SECOND: Duration = Duration::from_secs(1);

/// Returns `span` in whole milliseconds, at least one, so that the plan's text stays readable.
pub(crate) fn rounded(span: Duration) -> Duration {
    Duration::from_millis((span.as_millis() as u64).max(1))
}

pub(crate) fn read_mode(random: &mut RandomStream) -> ReadMode {
    random.weighted(&[(ReadMode::Latest, 2), (ReadMode::Snapshot, 3), (ReadMode::YourWrites, 2)])
}

pub(crate) fn replica_choice(random: &mut RandomStream) -> ReplicaChoice {
    random.weighted(&[(ReplicaChoice::Leader, 3), (ReplicaChoice::Any, 1)])
}
