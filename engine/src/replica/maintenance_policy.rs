//! Maintenance policy: selects the next job of all tablets. Pure.
//!
//! ```text
//!   first    memory pressure            the flush that frees the most
//!            a frozen MemRowSet         its flush
//!            a log is too long          the longest one: the flush of its oldest log anchor, or a checkpoint
//!            a store is too large       the largest flush
//!            a store is too old         the flush of the oldest one
//!   last     rowsets worth compacting   the compaction that saves the most lookups per byte read and written
//! ```
//!
//! The cost of each is bounded beforehand: a compaction by its budget, a flush by the sizes above. *Not here:* the
//! choice of a tablet's rowsets to compact (`tablet::compaction_policy`).

use std::cmp::Reverse;
use std::time::Duration;

use super::JobKind;
use crate::config::TabletConfig;
use crate::tablet::compaction_policy::{self, CompactionChoice, CompactionKind};
use crate::tablet::rowset::RowSetId;

/// State of one tablet at one time.
#[derive(Debug, Clone, Default)]
pub struct MaintenanceInput {
    /// Bytes of unflushed rows.
    pub rows_bytes: u64,
    /// Age of the oldest unflushed row; `None` if there are none.
    pub rows_age: Option<Duration>,
    /// Log anchor of the unflushed rows: the first operation needed for them.
    pub rows_from: u64,
    /// True if a frozen MemRowSet waits for its flush.
    pub frozen: bool,
    /// DeltaMemStores with unflushed deltas.
    pub deltas: Vec<DeltaInput>,
    /// DiskRowSets worth compacting.
    pub merge: Option<CompactionChoice>,
    pub log_bytes: u64,
    /// Bytes of the log that log GC could free if everything were flushed. Entries that other members of the group
    /// still need are not included.
    pub log_held_bytes: u64,
    /// The log's size in bytes after the log GC of the last checkpoint.
    pub log_bytes_at_checkpoint: u64,
}

/// Unflushed deltas of one DiskRowSet.
#[derive(Debug, Clone, Copy)]
pub struct DeltaInput {
    pub rowset: RowSetId,
    pub bytes: u64,
    pub age: Duration,
    /// Log anchor of these deltas: the first operation needed for them.
    pub from: u64,
}

/// A choice: index of the tablet, and the job.
pub type ChosenJob = (usize, JobKind);

/// Selects the next job, if any is due.
pub fn choose(tablets: &[MaintenanceInput], config: &TabletConfig, memory_short: bool) -> Option<ChosenJob> {
    memory_short
        .then(|| most_memory(tablets))
        .flatten()
        .or_else(|| tablets.iter().position(|tablet| tablet.frozen).map(|i| (i, JobKind::FlushRows)))
        .or_else(|| longest_log(tablets, config))
        .or_else(|| too_large(tablets, config))
        .or_else(|| too_old(tablets, config))
        .or_else(|| best_merge(tablets))
}

/// Selects the compaction that saves the most lookups per byte. Short ones with a large gain precede long ones, so that
/// the sum of lookups falls as fast as possible.
fn best_merge(tablets: &[MaintenanceInput]) -> Option<ChosenJob> {
    let merges = tablets.iter().enumerate().filter_map(|(i, tablet)| Some((i, tablet.merge.as_ref()?)));
    let worth = |merge: &CompactionChoice| {
        (i128::from(merge.gain) * i128::from(compaction_policy::WHOLE)) / i128::from(merge.bytes.max(1))
    };
    let best = merges.min_by_key(|(i, merge)| (Reverse(worth(merge)), *i));
    best.map(|(i, merge)| (i, compaction_job(merge)))
}

/// Returns the job that does a chosen compaction.
pub fn compaction_job(choice: &CompactionChoice) -> JobKind {
    match (choice.kind, &choice.rowsets[..]) {
        (CompactionKind::MajorDelta, [rowset]) => JobKind::MajorDeltaCompaction(*rowset),
        (CompactionKind::MinorDelta, [rowset]) => JobKind::MinorDeltaCompaction(*rowset),
        (_, rowsets) => JobKind::Compact(rowsets.to_vec()),
    }
}

/// Selects the flush that frees the most memory.
fn most_memory(tablets: &[MaintenanceInput]) -> Option<ChosenJob> {
    let flushes = tablets.iter().enumerate().flat_map(|(i, tablet)| {
        let deltas =
            tablet.deltas.iter().map(move |deltas| (deltas.bytes, i, JobKind::FlushDeltas(deltas.rowset)));
        let rows = tablet.rows_age.map(|_| (tablet.rows_bytes, i, JobKind::FlushRows));
        rows.into_iter().chain(deltas)
    });
    let most = flushes.min_by_key(|(bytes, i, _)| (Reverse(*bytes), *i));
    most.map(|(_, i, kind)| (i, kind))
}

/// Selects the job for the longest of the logs that are too long.
fn longest_log(tablets: &[MaintenanceInput], config: &TabletConfig) -> Option<ChosenJob> {
    let due = |(i, tablet): (usize, &MaintenanceInput)| {
        Some((tablet.log_held_bytes, i, log_holder(tablet, config)?))
    };
    let longest =
        tablets.iter().enumerate().filter_map(due).min_by_key(|(bytes, i, _)| (Reverse(*bytes), *i));
    longest.map(|(_, i, kind)| (i, kind))
}

/// Selects the job for a log that is too long: the flush of its oldest anchor, or a checkpoint if all is flushed. A
/// checkpoint that has just freed nothing is not repeated at once.
fn log_holder(tablet: &MaintenanceInput, config: &TabletConfig) -> Option<JobKind> {
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

/// Selects the largest of the stores above their limits.
fn too_large(tablets: &[MaintenanceInput], config: &TabletConfig) -> Option<ChosenJob> {
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

/// Selects the oldest of the stores above their age limits.
fn too_old(tablets: &[MaintenanceInput], config: &TabletConfig) -> Option<ChosenJob> {
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
