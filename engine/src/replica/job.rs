//! Maintenance jobs: background work in steps, between which the replica continues.
//!
//! ```text
//!   Replica::start_job ──► Job
//!        ┌─────────────────┘
//!        ▼
//!   Job::step ──► More          step again; not urgent
//!             ──► SyncLog       make the appended part of the log durable, then step again
//!             ──► Turn          Replica::job_turn, then step again
//!             ──► Done          Replica::end_job
//! ```
//!
//! Steps access disks and may run beside the replica, on another thread. Turns and ends run where the replica's steps
//! do, and are brief. The protocol of every job:
//!
//! 1. steps write new files, which no superblock refers to yet;
//! 2. a turn creates the superblock that will refer to them, from the current state;
//! 3. the log is synced: it must hold every operation, and its commit, that this superblock mentions;
//! 4. a step stores the superblock;
//! 5. a turn replaces the old files by the new ones;
//! 6. a step removes the orphan files.
//!
//! A crash in between leaves one superblock or the other, and orphan files that the next bootstrap removes. A job that
//! fails before 4 is abandoned by [`Replica::end_job`] and may be started again. A failure in 4 fails the replica,
//! because the stored superblock is unknown.

use std::sync::Arc;

use super::job_start;
pub use super::job_work::JobKind;
use super::job_work::JobWork;
use super::{Replica, ReplicaEffects};
use crate::disk::Disk;
use crate::error::{Error, ErrorKind, Result};
use crate::memory::TrackedBytes;
use crate::note::Note;
use crate::tablet::superblock::Superblock;

/// The next step of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobStep {
    More,
    SyncLog,
    Turn,
    Done,
}

/// A maintenance job on one replica.
pub struct Job {
    kind: JobKind,
    data: Arc<dyn Disk>,
    work: Box<dyn JobWork>,
    stage: JobStage,
    meta: Option<Superblock>,
    /// Size of the stored superblock.
    superblock_bytes: usize,
    notes: Vec<Note>,
    rows_per_step: usize,
    /// Memory used by the job.
    tracked: TrackedBytes,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum JobStage {
    Writing,
    /// Everything is written; a turn has to create the superblock.
    Written,
    /// The superblock is created; the log has to be synced.
    SuperblockReady,
    /// The log is being synced. Nothing is stored yet, so the job may still be abandoned.
    SyncingLog,
    Storing,
    /// The superblock is stored; a turn has to swap.
    Stored,
    Swapped,
}

impl Job {
    pub fn kind(&self) -> &JobKind {
        &self.kind
    }

    /// Runs the next step; returns the one after it.
    pub fn step(&mut self) -> Result<JobStep> {
        match self.stage {
            JobStage::Writing => {
                let more = self.work.write(self.rows_per_step)?;
                self.tracked.set(self.work.allocated() as u64, 0);
                if more {
                    return Ok(JobStep::More);
                }
                self.stage = JobStage::Written;
                Ok(JobStep::Turn)
            }
            JobStage::SuperblockReady => {
                self.stage = JobStage::SyncingLog;
                Ok(JobStep::SyncLog)
            }
            JobStage::SyncingLog | JobStage::Storing => {
                self.stage = JobStage::Storing;
                let meta = self.meta.as_ref().expect("created by the turn before");
                if let Err(error) = meta.store(&*self.data) {
                    // On a full device the stored superblock is usually still the old one: then only the job fails.
                    let unchanged =
                        || Superblock::load(&*self.data, meta.tablet).is_ok_and(|now| now != *meta);
                    if error.is_no_space() && unchanged() {
                        self.stage = JobStage::SuperblockReady;
                    }
                    return Err(error);
                }
                self.superblock_bytes = meta.encode().len();
                self.stage = JobStage::Stored;
                Ok(JobStep::Turn)
            }
            JobStage::Written | JobStage::Stored => Ok(JobStep::Turn),
            JobStage::Swapped => {
                self.remove(self.work.old_files());
                Ok(JobStep::Done)
            }
        }
    }

    /// Removes the files of an abandoned job.
    fn abandon(&self) {
        self.remove(self.work.new_files());
    }

    /// Removes orphan files. The next bootstrap removes those that cannot be removed now.
    fn remove(&self, files: &[String]) {
        for file in files {
            let _ = self.data.remove(file);
        }
    }
}

impl Replica {
    /// Starts a job; `None` if there is nothing for it to do. One at a time.
    pub fn start_job(&mut self, kind: JobKind) -> Result<Option<Job>> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        if self.job_running {
            return Err(Error::not_ready("another job of this tablet is still running"));
        }
        let Some(work) = job_start::start(&kind, &self.data, &mut self.applier)? else { return Ok(None) };
        self.job_running = true;
        let tablet = &self.applier.tablet;
        let (config, tracked) = (tablet.config(), tablet.track_job_memory());
        tracked.set(work.allocated() as u64, 0);
        Ok(Some(Job {
            kind,
            data: self.data.clone(),
            rows_per_step: work.step_rows(config),
            work,
            stage: JobStage::Writing,
            meta: None,
            superblock_bytes: 0,
            notes: Vec::new(),
            tracked,
        }))
    }

    /// Runs the replica's part of a job, when [`Job::step`] asks for it.
    pub fn job_turn(&mut self, job: &mut Job, out: &mut ReplicaEffects) -> Result<()> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        match job.stage {
            JobStage::Written => {
                job.meta = Some(self.superblock(&*job.work));
                job.stage = JobStage::SuperblockReady;
                Ok(())
            }
            JobStage::Stored => {
                self.swap(job)?;
                job.stage = JobStage::Swapped;
                out.notes.append(&mut job.notes);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Creates the superblock that refers to the job's files.
    fn superblock(&self, work: &dyn JobWork) -> Superblock {
        let state = self.applier.tablet.state();
        let mut meta = self.applier.meta.clone();
        meta.rowsets = state.disk.iter().map(|rowset| (*rowset.meta()).clone()).collect();
        meta.last_op = self.applier.last_applied;
        meta.last_timestamp = self.applier.applied_at;
        meta.auto_increment = self.applier.auto_increment;
        meta.next_rowset = self.applier.tablet.next_rowset_id();
        meta.history_mark = self.applier.tablet.history_mark();
        let needed = work.list_rowsets(&mut meta, &self.applier.writer);
        meta.replay_from = needed.unwrap_or(self.applier.last_applied.index + 1);
        let schema = self.applier.alters.iter().take_while(|(index, _)| *index < meta.replay_from).last();
        if let Some((_, schema)) = schema {
            meta.schema = (*schema.schema).clone();
            meta.schema_version = schema.version;
            meta.table_name = schema.table_name.clone();
            meta.extra = schema.extra.clone();
        }
        meta
    }

    fn swap(&mut self, job: &mut Job) -> Result<()> {
        job.work.mark_swap(&self.applier);
        job.notes.extend(job.work.swap(&mut self.applier.writer)?);
        self.applier.meta = job.meta.take().expect("stored before");
        self.tablet().set_superblock_bytes(job.superblock_bytes);
        let from = self.applier.meta.replay_from;
        self.applier.alters.retain(|(index, _)| *index >= from);
        Ok(())
    }

    /// Ends a job that is done, or one that failed with `error`.
    pub fn end_job(&mut self, job: Job, error: Option<Error>, out: &mut ReplicaEffects) {
        self.job_running = false;
        let Some(error) = error else { return };
        match job.stage {
            JobStage::Writing | JobStage::Written | JobStage::SuperblockReady | JobStage::SyncingLog => {
                // A replica that stops gives its job up, which is no failure.
                if error.kind != ErrorKind::Aborted {
                    self.tablet().config().observer.mark("job: failed before its superblock");
                }
                job.abandon();
            }
            JobStage::Storing | JobStage::Stored | JobStage::Swapped => self.fail(error, out),
        }
    }
}
