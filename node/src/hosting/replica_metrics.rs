//! Counts and times of one running replica.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use engine::raft::ReplicationBacklog;
use engine::replica::JobKind;
use engine::time::Instant;
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
    major_delta_compaction: JobMetrics,
    minor_delta_compaction: JobMetrics,
    /// From the proposal of a write to its commit.
    pub replication: Histogram,
    pub snapshot_wait: Histogram,
    pub commit_wait: Histogram,
    /// Writes without and with commit wait.
    pub write_propagated: Histogram,
    pub write_commit_wait: Histogram,
    scan_time: Histogram,
    log_bytes: AtomicU64,
    log_gc_running: AtomicU64,
    log_entries_read: AtomicU64,
    log_bytes_read: AtomicU64,
    alters: AtomicU64,
    scans_started: AtomicU64,
    rows_returned: AtomicU64,
    cells_returned: AtomicU64,
    bytes_returned: AtomicU64,
    pages_bytes: AtomicU64,
    /// Times of the latest scan, write and message of a leader, in nanoseconds of the monotonic clock.
    last_read: AtomicU64,
    last_write: AtomicU64,
    leader_heard: AtomicU64,
    /// Index of the last operation that a leader has reported, and of this replica's last one.
    leader_index: AtomicU64,
    own_index: AtomicU64,
    uncommitted: AtomicU64,
    committed_lag: AtomicU64,
}

/// Running jobs of a kind and their times.
#[derive(Debug, Default)]
pub struct JobMetrics {
    running: AtomicU64,
    duration: Histogram,
}

/// Guard that counts an operation as running until it is dropped.
pub struct RunningGuard<'a>(&'a AtomicU64);

impl<'a> RunningGuard<'a> {
    fn new(running: &'a AtomicU64) -> RunningGuard<'a> {
        running.fetch_add(1, Ordering::Relaxed);
        RunningGuard(running)
    }
}

impl Drop for RunningGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl ReplicaMetrics {
    /// Returns the metrics of a kind of job; checkpoints of the log have none.
    fn of(&self, kind: &JobKind) -> Option<&JobMetrics> {
        match kind {
            JobKind::FlushRows => Some(&self.flush_rows),
            JobKind::FlushDeltas(_) => Some(&self.flush_deltas),
            JobKind::Compact(_) => Some(&self.compact),
            JobKind::MajorDeltaCompaction(_) => Some(&self.major_delta_compaction),
            JobKind::MinorDeltaCompaction(_) => Some(&self.minor_delta_compaction),
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
            JobKind::MajorDeltaCompaction(_) => job.duration.record(time.as_secs()),
            _ => job.duration.record_millis(time),
        }
    }

    /// Begins the times since the latest scan, write and message of a leader.
    pub fn opened(&self, now: Instant) {
        [&self.last_read, &self.last_write, &self.leader_heard]
            .into_iter()
            .for_each(|at| at.store(now.0, Ordering::Relaxed));
    }

    pub fn scan_started(&self, now: Instant) {
        self.scans_started.fetch_add(1, Ordering::Relaxed);
        self.last_read.store(now.0, Ordering::Relaxed);
    }

    pub fn scan_ended(&self, time: Duration) {
        self.scan_time.record_millis(time);
    }

    /// Counts a batch of a scan, and the pages that it got.
    pub fn batch_returned(&self, rows: usize, columns: usize, bytes: usize) {
        self.rows_returned.fetch_add(rows as u64, Ordering::Relaxed);
        self.cells_returned.fetch_add((rows * columns) as u64, Ordering::Relaxed);
        self.bytes_returned.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub fn pages_got(&self, bytes: u64) {
        self.pages_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub fn write_began(&self, now: Instant) {
        self.last_write.store(now.0, Ordering::Relaxed);
    }

    pub fn log_written(&self, bytes: u64) {
        self.log_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub fn log_read(&self, entries: u64, bytes: u64) {
        self.log_entries_read.fetch_add(entries, Ordering::Relaxed);
        self.log_bytes_read.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts a deletion of log segments that runs, until the guard is dropped.
    pub fn log_gc_began(&self) -> RunningGuard<'_> {
        RunningGuard::new(&self.log_gc_running)
    }

    /// Counts an alteration of the schema in flight, until the guard is dropped.
    pub fn alter_began(&self) -> RunningGuard<'_> {
        RunningGuard::new(&self.alters)
    }

    /// Records a message of a leader, and the index of the last operation that it reports.
    pub fn leader_reported(&self, index: u64, now: Instant) {
        self.leader_index.store(index, Ordering::Relaxed);
        self.leader_heard.store(now.0, Ordering::Relaxed);
    }

    /// Sets what the members of the replica's group lack, and the last operation of this replica.
    pub fn set_backlog(&self, backlog: ReplicationBacklog, own_index: u64) {
        self.own_index.store(own_index, Ordering::Relaxed);
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

    fn collect_ages(&self, tablet: &mut Entity, now: Instant, leads: bool) {
        let since = |at: &AtomicU64| now.since(Instant(at.load(Ordering::Relaxed)));
        tablet.gauge(&table::LAST_READ_ELAPSED_TIME, since(&self.last_read).as_secs());
        tablet.gauge(&table::LAST_WRITE_ELAPSED_TIME, since(&self.last_write).as_secs());
        let (reported, own) =
            (self.leader_index.load(Ordering::Relaxed), self.own_index.load(Ordering::Relaxed));
        let (behind, silent) = match leads {
            true => (0, 0),
            false => (reported.saturating_sub(own), since(&self.leader_heard).as_millis() as u64),
        };
        tablet.gauge(&table::OPS_BEHIND_LEADER, behind);
        tablet.gauge(&table::TIME_SINCE_LAST_LEADER_HEARTBEAT, silent);
    }

    fn collect_log(&self, tablet: &mut Entity) {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        tablet.counter(&table::LOG_BYTES_LOGGED, read(&self.log_bytes));
        tablet.gauge(&table::LOG_GC_RUNNING, read(&self.log_gc_running));
        tablet.counter(&table::LOG_READER_ENTRIES_READ, read(&self.log_entries_read));
        tablet.counter(&table::LOG_READER_BYTES_READ, read(&self.log_bytes_read));
        tablet.histogram(&table::LOG_APPEND_LATENCY, &self.log_append);
        tablet.histogram(&table::LOG_SYNC_LATENCY, &self.log_sync);
        tablet.histogram(&table::LOG_GROUP_COMMIT_LATENCY, &self.log_group);
        tablet.histogram(&table::LOG_ENTRY_BATCHES_PER_GROUP, &self.log_appends_per_group);
        tablet.histogram(&table::LOG_GC_DURATION, &self.log_gc);
    }

    fn collect_writes(&self, tablet: &mut Entity) {
        tablet.gauge(&table::ALTER_SCHEMA_TRANSACTIONS_INFLIGHT, self.alters.load(Ordering::Relaxed));
        tablet.histogram(&table::REPLICATION_DURATION, &self.replication);
        tablet.histogram(&table::COMMIT_WAIT_DURATION, &self.commit_wait);
        tablet.histogram(&table::WRITE_OP_DURATION_CLIENT_PROPAGATED_CONSISTENCY, &self.write_propagated);
        tablet.histogram(&table::WRITE_OP_DURATION_COMMIT_WAIT_CONSISTENCY, &self.write_commit_wait);
    }

    fn collect_scans(&self, tablet: &mut Entity) {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        tablet.counter(&table::SCANS_STARTED, read(&self.scans_started));
        tablet.counter(&table::SCANNER_ROWS_RETURNED, read(&self.rows_returned));
        tablet.counter(&table::SCANNER_CELLS_RETURNED, read(&self.cells_returned));
        tablet.counter(&table::SCANNER_BYTES_RETURNED, read(&self.bytes_returned));
        tablet.counter(&table::SCANNER_BYTES_SCANNED_FROM_DISK, read(&self.pages_bytes));
        tablet.histogram(&table::SCAN_DURATION_WALL_TIME, &self.scan_time);
        tablet.histogram(&table::SNAPSHOT_READ_INFLIGHT_WAIT_DURATION, &self.snapshot_wait);
    }

    /// Adds the samples of the log, the writes, the jobs and the scans to a tablet's entity. `leads` is true on the
    /// leader.
    pub fn collect(&self, tablet: &mut Entity, now: Instant, leads: bool) {
        self.collect_backlog(tablet);
        self.collect_ages(tablet, now, leads);
        self.collect_log(tablet);
        self.collect_writes(tablet);
        self.collect_scans(tablet);
        let running = |job: &JobMetrics| job.running.load(Ordering::Relaxed);
        tablet.gauge(&table::FLUSH_MRS_RUNNING, running(&self.flush_rows));
        tablet.gauge(&table::FLUSH_DMS_RUNNING, running(&self.flush_deltas));
        tablet.gauge(&table::COMPACT_RS_RUNNING, running(&self.compact));
        tablet.gauge(&table::DELTA_MAJOR_COMPACT_RS_RUNNING, running(&self.major_delta_compaction));
        tablet.gauge(&table::DELTA_MINOR_COMPACT_RS_RUNNING, running(&self.minor_delta_compaction));
        tablet.histogram(&table::FLUSH_MRS_DURATION, &self.flush_rows.duration);
        tablet.histogram(&table::FLUSH_DMS_DURATION, &self.flush_deltas.duration);
        tablet.histogram(&table::COMPACT_RS_DURATION, &self.compact.duration);
        tablet.histogram(&table::DELTA_MAJOR_COMPACT_RS_DURATION, &self.major_delta_compaction.duration);
        tablet.histogram(&table::DELTA_MINOR_COMPACT_RS_DURATION, &self.minor_delta_compaction.duration);
    }
}
