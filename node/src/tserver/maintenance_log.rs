//! The maintenance job that runs, and the last ones that ended, for the web page.

use engine::sync::{Mutex, MutexGuard};
use std::collections::VecDeque;

use engine::ids::TabletId;
use engine::replica::JobKind;
use engine::time::Instant;

/// Ended jobs that are remembered.
const ENDED_MAX: usize = 8;

/// A maintenance job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobRecord {
    pub tablet: TabletId,
    pub name: &'static str,
    pub began: Instant,
    /// Time of the end, and true if the job did its work.
    pub ended: Option<(Instant, bool)>,
}

/// The running job, and ended ones, the latest first.
#[derive(Default)]
pub struct MaintenanceLog {
    jobs: Mutex<JobRecords>,
}

#[derive(Default)]
struct JobRecords {
    running: Option<JobRecord>,
    ended: VecDeque<JobRecord>,
}

/// Returns Kudu's name of a job, which dashboards show.
pub(super) fn job_name(kind: &JobKind) -> &'static str {
    match kind {
        JobKind::FlushRows => "FlushMRSOp",
        JobKind::FlushDeltas(_) => "FlushDeltaMemStoresOp",
        JobKind::Compact(_) => "CompactRowSetsOp",
        JobKind::MajorDeltaCompaction(_) => "MajorDeltaCompactionOp",
        JobKind::MinorDeltaCompaction(_) => "MinorDeltaCompactionOp",
        JobKind::Checkpoint => "LogGCOp",
    }
}

impl MaintenanceLog {
    fn jobs(&self) -> MutexGuard<'_, JobRecords> {
        self.jobs.lock()
    }

    pub fn begin(&self, tablet: TabletId, kind: &JobKind, now: Instant) {
        let record = JobRecord { tablet, name: job_name(kind), began: now, ended: None };
        self.jobs().running = Some(record);
    }

    pub fn end(&self, did: bool, now: Instant) {
        let mut jobs = self.jobs();
        let Some(mut record) = jobs.running.take() else { return };
        record.ended = Some((now, did));
        jobs.ended.push_front(record);
        jobs.ended.truncate(ENDED_MAX);
    }

    pub fn running(&self) -> Option<JobRecord> {
        self.jobs().running.clone()
    }

    /// Returns the ended jobs, the latest first.
    pub fn ended(&self) -> Vec<JobRecord> {
        self.jobs().ended.iter().cloned().collect()
    }
}
