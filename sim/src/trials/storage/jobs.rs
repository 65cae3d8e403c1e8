//! Jobs of a trial: others write between their steps, disk operations fail within them, and now and then the
//! process is killed there.

use engine::error::Result;
use engine::replica::maintenance_policy::compaction_job;
use engine::replica::{Job, JobKind};
use engine::tablet::rowset::RowSetId;

use super::Trial;
use super::step::{self, Step};
use crate::trigger::EIO;

/// Percentage of a job's steps after which something is written, and after which the process is killed.
const WRITE_PERCENT: u64 = 25;
const KILL_PERCENT: u64 = 3;
/// Percentage of a job's steps in which a disk operation fails, and most operations of a step before it.
const FAIL_PERCENT: u64 = 4;
const FAIL_OPS_MAX: u64 = 4;
/// Errors of the operating system: input/output error, no space left.
pub(super) const ERRNOS: [i32; 2] = [EIO, 28];

impl Trial {
    pub(super) fn rowsets(&self) -> Result<Vec<RowSetId>> {
        Ok(self.replica.tablet()?.state().disk.iter().map(|rowset| rowset.meta().id).collect())
    }

    pub(super) fn some_rowsets(&mut self) -> Result<Vec<RowSetId>> {
        let (all, rowsets) = (self.random.percent(40), self.rowsets()?);
        Ok(rowsets.into_iter().filter(|_| all || self.random.percent(50)).collect())
    }

    pub(super) fn jobs(&mut self, kind: fn(RowSetId) -> JobKind) -> Result<()> {
        for rowset in self.some_rowsets()? {
            if self.rowsets()?.contains(&rowset) {
                self.job(kind(rowset))?;
            }
        }
        Ok(())
    }

    /// Runs a job. Others write between its steps, and now and then the process is killed there.
    pub(super) fn job(&mut self, kind: JobKind) -> Result<()> {
        let Some(mut job) = self.replica.start_job(kind)? else { return Ok(()) };
        loop {
            match self.job_step(&mut job) {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) if self.replica.has_failed_op() => return self.replica.give_up_job(job, error),
                Err(error) => return Err(error),
            }
            if self.random.percent(WRITE_PERCENT) {
                self.act_beside_a_job()?;
            }
            self.read_paused_scan()?;
            if self.random.percent(KILL_PERCENT) {
                drop(job);
                return self.replica.restart();
            }
        }
        self.replica.end_job(job)
    }

    /// Runs a job to its end beside which nothing happens; returns false if there is nothing for it to do.
    pub(super) fn job_alone(&mut self, kind: JobKind) -> Result<bool> {
        let Some(mut job) = self.replica.start_job(kind)? else { return Ok(false) };
        self.replica.fail_none();
        while self.replica.job_step(&mut job)? {}
        self.replica.end_job(job)?;
        Ok(true)
    }

    /// Runs the next step of a job; one of its disk operations may fail.
    fn job_step(&mut self, job: &mut Job) -> Result<bool> {
        self.replica.fail_none();
        if self.random.percent(FAIL_PERCENT) && !self.is_cut {
            let (op, errno) = (self.random.between(1, FAIL_OPS_MAX), self.random.pick(&ERRNOS));
            self.replica.fail_op(op, errno);
        }
        self.replica.job_step(job)
    }

    fn act_beside_a_job(&mut self) -> Result<()> {
        match step::draw_beside_a_job(&mut self.random) {
            Step::Alter => self.alter(),
            Step::Append => self.append_only(),
            Step::OtherLeader => self.replace_leader(),
            Step::Forget => self.forget(),
            _ => self.write(true),
        }
    }

    pub(super) fn chosen_compaction(&mut self) -> Result<()> {
        let Some(choice) = self.replica.tablet()?.choose_compaction() else { return Ok(()) };
        self.job(compaction_job(&choice))
    }
}
