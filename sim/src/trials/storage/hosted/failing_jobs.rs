//! Jobs in which a disk operation fails once: the job must be ended, leave no file, and be made again, so
//! that memory and log do not grow.

use std::time::Duration;

use super::HostedTrial;
use crate::server_files::unreferenced_files;
use crate::trials::storage::jobs::ERRNOS;

/// Farthest operation that fails.
const OPS_AHEAD: u64 = 40;
/// Writes until some operation fails, and the time after each: stores are flushed after a second.
const WRITES: usize = 5;
const FLUSHED: Duration = Duration::from_millis(1_500);
/// Mark of a job that fails before its superblock, after which its files are removed.
const FAILED: &str = "job: failed before its superblock";
/// Time between two looks at files: those of a job in progress are gone by then.
const LOOK: Duration = Duration::from_secs(2);

impl HostedTrial {
    /// Lets an operation of the disk fail within a job, and checks that the tablet is maintained afterwards.
    pub(super) fn fail_jobs(&mut self) {
        let [_, data] = self.disks();
        let (op, errno) = (self.random.between(1, OPS_AHEAD), self.random.pick(&ERRNOS));
        let (failed, ended) = (data.fault_counts().ops_failed, self.fleet.observer.mark_count(FAILED));
        data.fail_op(op, errno);
        for _ in 0..WRITES {
            self.write();
            self.fleet.pass(FLUSHED);
            if data.fault_counts().ops_failed > failed {
                break;
            }
        }
        data.end_faults();
        let in_job = self.fleet.observer.mark_count(FAILED) > ended;
        self.fleet.note(format!("operation {op} fails with {errno}, in a job: {in_job}"));
        self.recover();
        self.check_upkeep();
        // The failure struck the job, so nothing kept its files from being removed.
        if in_job {
            self.check_files();
        }
    }

    /// Reports files that no rowset has.
    fn check_files(&mut self) {
        let [_, data] = self.disks();
        let before = unreferenced_files(&data.image());
        self.fleet.pass(LOOK);
        let left: Vec<String> = unreferenced_files(&data.image()).intersection(&before).cloned().collect();
        if !left.is_empty() {
            self.fleet.report(format!("files of a job that failed are left: {left:?}"));
        }
    }
}
