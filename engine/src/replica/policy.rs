//! Which piece of maintenance is most worth doing next. Pure.
//!
//! ```text
//!   first    memory is short            the flush that frees the most
//!            an old schema left rows    their flush
//!            a log is too long          the longest one: the flush of what the oldest operation is in, or a checkpoint
//!            something is too large     the largest flush
//!            something is too old       the flush of what has waited longest
//!   last     rowsets are better merged  the merge that saves the most lookups for a byte that it reads and writes
//! ```
//!
//! What each of them may cost is bounded before it comes here: a merge by its budget, a flush by the sizes above. Not
//! here: which rowsets of a tablet are merged (`tablet::merge_policy`).

use std::cmp::Reverse;
use std::time::Duration;

use super::JobKind;
use crate::config::TabletConfig;
use crate::tablet::merge_policy;
use crate::tablet::rowset::RowSetId;

/// What is known of one tablet, at one moment.
#[derive(Debug, Clone, Default)]
pub struct TabletView {
    /// Bytes of rows that were never flushed.
    pub rows_bytes: u64,
    /// How long there have been such rows; `None` if there are none.
    pub rows_age: Option<Duration>,
    /// The first operation of the log that is needed because of them.
    pub rows_from: u64,
    /// Whether some of them are frozen already and only wait to be written.
    pub frozen: bool,
    /// Changes of flushed rows that are in memory only.
    pub deltas: Vec<DeltasView>,
    /// DiskRowSets that are worth merging.
    pub merge: Option<merge_policy::Choice>,
    pub log_bytes: u64,
    /// Bytes of the log that could go if nothing were in memory only: what other members of the group still need is
    /// not among them.
    pub log_held_bytes: u64,
    /// The log's size when a checkpoint last let go of what it could.
    pub log_bytes_at_checkpoint: u64,
}

/// Unflushed changes of one DiskRowSet.
#[derive(Debug, Clone, Copy)]
pub struct DeltasView {
    pub rowset: RowSetId,
    pub bytes: u64,
    pub age: Duration,
    /// The first operation of the log that is needed because of them.
    pub from: u64,
}

/// A choice: which of the tablets, and what to do there.
pub type Choice = (usize, JobKind);

/// Picks the next job, if any is due.
pub fn choose(tablets: &[TabletView], config: &TabletConfig, memory_short: bool) -> Option<Choice> {
    memory_short
        .then(|| most_memory(tablets))
        .flatten()
        .or_else(|| tablets.iter().position(|tablet| tablet.frozen).map(|i| (i, JobKind::FlushRows)))
        .or_else(|| longest_log(tablets, config))
        .or_else(|| too_large(tablets, config))
        .or_else(|| too_old(tablets, config))
        .or_else(|| best_merge(tablets))
}

/// The merge that saves the most lookups for its bytes: short ones that save much come before long ones, so that the
/// sum of lookups falls as fast as it can.
fn best_merge(tablets: &[TabletView]) -> Option<Choice> {
    let merges = tablets.iter().enumerate().filter_map(|(i, tablet)| Some((i, tablet.merge.as_ref()?)));
    let worth = |merge: &merge_policy::Choice| {
        (i128::from(merge.gain) * i128::from(merge_policy::WHOLE)) / i128::from(merge.bytes.max(1))
    };
    let best = merges.min_by_key(|(i, merge)| (Reverse(worth(merge)), *i));
    best.map(|(i, merge)| match (merge.only_changes, &merge.rowsets[..]) {
        (true, [rowset]) => (i, JobKind::MergeDeltas(*rowset)),
        (_, rowsets) => (i, JobKind::Compact(rowsets.to_vec())),
    })
}

/// The flush that frees the most.
fn most_memory(tablets: &[TabletView]) -> Option<Choice> {
    let flushes = tablets.iter().enumerate().flat_map(|(i, tablet)| {
        let deltas =
            tablet.deltas.iter().map(move |deltas| (deltas.bytes, i, JobKind::FlushDeltas(deltas.rowset)));
        let rows = tablet.rows_age.map(|_| (tablet.rows_bytes, i, JobKind::FlushRows));
        rows.into_iter().chain(deltas)
    });
    let most = flushes.min_by_key(|(bytes, i, _)| (Reverse(*bytes), *i));
    most.map(|(_, i, kind)| (i, kind))
}

/// What to do about the longest of the logs that are too long.
fn longest_log(tablets: &[TabletView], config: &TabletConfig) -> Option<Choice> {
    let due =
        |(i, tablet): (usize, &TabletView)| Some((tablet.log_held_bytes, i, log_holder(tablet, config)?));
    let longest = tablets.iter().enumerate().filter_map(due).min_by_key(|(held, i, _)| (Reverse(*held), *i));
    longest.map(|(_, i, kind)| (i, kind))
}

/// What to do about a log that has grown too long: write down what its oldest operation is in, or, if nothing is in
/// memory, say in the superblock that the log may go. A checkpoint that just freed nothing is not repeated at once.
fn log_holder(tablet: &TabletView, config: &TabletConfig) -> Option<JobKind> {
    if tablet.log_held_bytes <= config.wal_retain_bytes {
        return None;
    }
    let rows = tablet.rows_age.map(|_| (tablet.rows_from, JobKind::FlushRows));
    let deltas = tablet.deltas.iter().map(|deltas| (deltas.from, JobKind::FlushDeltas(deltas.rowset)));
    match rows.into_iter().chain(deltas).min_by_key(|(from, _)| *from) {
        Some((_, flush)) => Some(flush),
        None => {
            let grown = tablet.log_bytes >= tablet.log_bytes_at_checkpoint + config.wal_segment_bytes_max;
            grown.then_some(JobKind::Checkpoint)
        }
    }
}

/// The largest of those above their limits.
fn too_large(tablets: &[TabletView], config: &TabletConfig) -> Option<Choice> {
    let (rows_max, deltas_max) = (config.mrs_flush_bytes as u64, config.dms_flush_bytes as u64);
    let large = tablets.iter().enumerate().flat_map(|(i, tablet)| {
        let rows = (tablet.rows_bytes >= rows_max && tablet.rows_age.is_some()).then_some((
            tablet.rows_bytes,
            i,
            JobKind::FlushRows,
        ));
        let deltas = tablet.deltas.iter().filter(move |deltas| deltas.bytes >= deltas_max);
        let deltas = deltas.map(move |deltas| (deltas.bytes, i, JobKind::FlushDeltas(deltas.rowset)));
        rows.into_iter().chain(deltas)
    });
    let largest = large.min_by_key(|(bytes, i, _)| (Reverse(*bytes), *i));
    largest.map(|(_, i, kind)| (i, kind))
}

/// What has waited longest of what has waited too long.
fn too_old(tablets: &[TabletView], config: &TabletConfig) -> Option<Choice> {
    let rows_max = Duration::from_millis(config.mrs_flush_age_ms);
    let deltas_max = Duration::from_millis(config.dms_flush_age_ms);
    let old = tablets.iter().enumerate().flat_map(|(i, tablet)| {
        let rows = tablet.rows_age.filter(|age| *age >= rows_max).map(|age| (age, i, JobKind::FlushRows));
        let deltas = tablet.deltas.iter().filter(move |deltas| deltas.age >= deltas_max);
        let deltas = deltas.map(move |deltas| (deltas.age, i, JobKind::FlushDeltas(deltas.rowset)));
        rows.into_iter().chain(deltas)
    });
    let oldest = old.min_by_key(|(age, i, _)| (Reverse(*age), *i));
    oldest.map(|(_, i, kind)| (i, kind))
}
