//! Counts and times of one running replica.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use engine::raft::ReplicationBacklog;
use engine::replica::JobKind;
use nyala_common::metrics::{Entity, Histogram, table};

/// Counts and times of a replica since it was opened.
#[derive(Debug, Default)]
pub struct ReplicaMetrics {
    pub log_append: Histogram,
    pub log_sync: Histogram,
    pub log_group: Histogram,
    pub log_appends_per_group: Histogram,
    pub log_gc: Histogram,
    flush_rows: JobMetrics,
    flush_deltas: JobMetrics,
    compact: JobMetrics,
    merge_deltas: JobMetrics,
    scans_started: AtomicU64,
    rows_returned: AtomicU64,
    uncommitted: AtomicU64,
    committed_lag: AtomicU64,
}

/// Running jobs of a kind and their times.
#[derive(Debug, Default)]
pub struct JobMetrics {
    running: AtomicU64,
    duration: Histogram,
}

impl ReplicaMetrics {
    /// Returns the metrics of a kind of job; checkpoints of the log have none.
    fn of(&self, kind: &JobKind) -> Option<&JobMetrics> {
        match kind {
            JobKind::FlushRows => Some(&self.flush_rows),
            JobKind::FlushDeltas(_) => Some(&self.flush_deltas),
            JobKind::Compact(_) => Some(&self.compact),
            JobKind::MergeDeltas(_) => Some(&self.merge_deltas),
            JobKind::Checkpoint => None,
        }
    }

    pub fn job_began(&self, kind: &JobKind) {
        if let Some(job) = self.of(kind) {
            job.running.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub fn job_ended(&self, kind: &JobKind, time: Duration) {
        let Some(job) = self.of(kind) else { return };
        job.running.fetch_sub(1, Ordering::Relaxed);
        // Kudu's unit of major delta compactions is the second.
        match kind {
            JobKind::MergeDeltas(_) => job.duration.record(time.as_secs()),
            _ => job.duration.record_millis(time),
        }
    }

    pub fn scan_started(&self) {
        self.scans_started.fetch_add(1, Ordering::Relaxed);
    }

    pub fn rows_returned(&self, rows: usize) {
        self.rows_returned.fetch_add(rows as u64, Ordering::Relaxed);
    }

    /// Sets what the members of the replica's group lack.
    pub fn set_backlog(&self, backlog: ReplicationBacklog) {
        self.uncommitted.store(backlog.uncommitted, Ordering::Relaxed);
        self.committed_lag.store(backlog.committed, Ordering::Relaxed);
    }

    fn collect_backlog(&self, tablet: &mut Entity) {
        let (uncommitted, committed) =
            (self.uncommitted.load(Ordering::Relaxed), self.committed_lag.load(Ordering::Relaxed));
        tablet.gauge(&table::IN_PROGRESS_OPS, uncommitted);
        tablet.gauge(&table::MAJORITY_DONE_OPS, committed);
        tablet.gauge(&table::RAFT_REPLICA_LAG, uncommitted + committed);
    }

    /// Adds the samples of the log, the jobs and the scans to a tablet's entity.
    pub fn collect(&self, tablet: &mut Entity) {
        self.collect_backlog(tablet);
        tablet.histogram(&table::LOG_APPEND_LATENCY, &self.log_append);
        tablet.histogram(&table::LOG_SYNC_LATENCY, &self.log_sync);
        tablet.histogram(&table::LOG_GROUP_COMMIT_LATENCY, &self.log_group);
        tablet.histogram(&table::LOG_ENTRY_BATCHES_PER_GROUP, &self.log_appends_per_group);
        tablet.histogram(&table::LOG_GC_DURATION, &self.log_gc);
        let running = |job: &JobMetrics| job.running.load(Ordering::Relaxed);
        tablet.gauge(&table::FLUSH_MRS_RUNNING, running(&self.flush_rows));
        tablet.gauge(&table::FLUSH_DMS_RUNNING, running(&self.flush_deltas));
        tablet.gauge(&table::COMPACT_RS_RUNNING, running(&self.compact));
        tablet.gauge(&table::DELTA_MAJOR_COMPACT_RS_RUNNING, running(&self.merge_deltas));
        tablet.histogram(&table::FLUSH_MRS_DURATION, &self.flush_rows.duration);
        tablet.histogram(&table::FLUSH_DMS_DURATION, &self.flush_deltas.duration);
        tablet.histogram(&table::COMPACT_RS_DURATION, &self.compact.duration);
        tablet.histogram(&table::DELTA_MAJOR_COMPACT_RS_DURATION, &self.merge_deltas.duration);
        tablet.counter(&table::SCANS_STARTED, self.scans_started.load(Ordering::Relaxed));
        tablet.counter(&table::SCANNER_ROWS_RETURNED, self.rows_returned.load(Ordering::Relaxed));
    }
}
