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
//! The cost of each is bounded beforehand: a compaction by its budget, a flush by the sizes above. A table's priority
//! scales sizes, ages and gains in the last three choices, as in Kudu: the others protect the server. *Not here:* the
//! choice of a tablet's rowsets to compact (`tablet::compaction_policy`).

use std::cmp::Reverse;
use std::time::Duration;

use super::JobKind;
use crate::config::TabletConfig;
use crate::tablet::Tablet;
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
    /// The table's priority, from -5 to 5; values beyond count as the nearest of these.
    pub priority: i32,
}

/// Weights of the priorities from -5 to 5, per mille: 1.1 to the power of the priority, as in Kudu.
const WEIGHTS_PER_MILLE: [u32; 11] = [621, 683, 751, 826, 909, 1000, 1100, 1210, 1331, 1464, 1611];
const PRIORITY_MAX: i32 = 5;

impl MaintenanceInput {
    /// Returns the stores of a tablet that are in memory. Their ages are zero: the caller knows when it first
    /// saw them.
    pub fn of_stores(tablet: &Tablet) -> MaintenanceInput {
        let (state, anchors) = (tablet.state(), tablet.log_anchors());
        let in_memory = || state.frozen.iter().chain([&state.active]);
        let has_rows = in_memory().any(|rows| rows.rows() > 0);
        let changed = state.disk.iter().filter(|rowset| rowset.dms_len() > 0);
        let deltas = changed.map(|rowset| {
            let (rowset, bytes) = (rowset.meta().id, rowset.dms_bytes() as u64);
            let from = anchors.deltas.get(&rowset).copied().unwrap_or(u64::MAX);
            DeltaInput { rowset, bytes, age: Duration::ZERO, from }
        });
        let mut deltas: Vec<DeltaInput> = deltas.collect();
        deltas.sort_unstable_by_key(|deltas| deltas.rowset);
        MaintenanceInput {
            rows_bytes: in_memory().map(|rows| rows.bytes() as u64).sum(),
            rows_age: has_rows.then_some(Duration::ZERO),
            rows_from: anchors.rows.unwrap_or(u64::MAX),
            frozen: !state.frozen.is_empty(),
            deltas,
            ..MaintenanceInput::default()
        }
    }

    /// Returns the factor, per mille, by which the table's priority scales the scores of its jobs.
    fn weight(&self) -> u32 {
        WEIGHTS_PER_MILLE[(self.priority.clamp(-PRIORITY_MAX, PRIORITY_MAX) + PRIORITY_MAX) as usize]
    }

    fn weigh_bytes(&self, bytes: u64) -> u128 {
        u128::from(bytes) * u128::from(self.weight())
    }

    fn weigh_age(&self, age: Duration) -> u128 {
        age.as_nanos() * u128::from(self.weight())
    }
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
    let worth = |i: usize, merge: &CompactionChoice| {
        let gain = i128::from(merge.gain) * i128::from(compaction_policy::WHOLE);
        gain / i128::from(merge.bytes.max(1)) * i128::from(tablets[i].weight())
    };
    let best = merges.min_by_key(|(i, merge)| (Reverse(worth(*i, merge)), *i));
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

/// Selects the largest of the stores above their limits, scaled by priority.
fn too_large(tablets: &[MaintenanceInput], config: &TabletConfig) -> Option<ChosenJob> {
    let (rows_max, deltas_max) = (config.mrs_flush_bytes as u64, config.dms_flush_bytes as u64);
    let large = tablets.iter().enumerate().flat_map(|(i, tablet)| {
        let rows = (tablet.rows_bytes >= rows_max && tablet.rows_age.is_some()).then_some((
            tablet.weigh_bytes(tablet.rows_bytes),
            i,
            JobKind::FlushRows,
        ));
        let deltas = tablet.deltas.iter().filter(move |deltas| deltas.bytes >= deltas_max);
        let deltas = deltas
            .map(move |deltas| (tablet.weigh_bytes(deltas.bytes), i, JobKind::FlushDeltas(deltas.rowset)));
        rows.into_iter().chain(deltas)
    });
    let largest = large.min_by_key(|(score, i, _)| (Reverse(*score), *i));
    largest.map(|(_, i, kind)| (i, kind))
}

/// Selects the oldest of the stores above their age limits, scaled by priority.
fn too_old(tablets: &[MaintenanceInput], config: &TabletConfig) -> Option<ChosenJob> {
    let rows_max = Duration::from_millis(config.mrs_flush_age_ms);
    let deltas_max = Duration::from_millis(config.dms_flush_age_ms);
    let old = tablets.iter().enumerate().flat_map(|(i, tablet)| {
        let rows = tablet.rows_age.filter(|age| *age >= rows_max);
        let rows = rows.map(|age| (tablet.weigh_age(age), i, JobKind::FlushRows));
        let deltas = tablet.deltas.iter().filter(move |deltas| deltas.age >= deltas_max);
        let deltas =
            deltas.map(move |deltas| (tablet.weigh_age(deltas.age), i, JobKind::FlushDeltas(deltas.rowset)));
        rows.into_iter().chain(deltas)
    });
    let oldest = old.min_by_key(|(score, i, _)| (Reverse(*score), *i));
    oldest.map(|(_, i, kind)| (i, kind))
}
