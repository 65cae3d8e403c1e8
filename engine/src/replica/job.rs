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

use super::{Replica, ReplicaEffects};
use crate::config::TabletConfig;
use crate::disk::Disk;
use crate::error::{Error, Result};
use crate::memory::TrackedBytes;
use crate::note::Note;
use crate::tablet::Tablet;
use crate::tablet::delta_compaction::DeltaCompaction;
use crate::tablet::diskrowset::{ColumnFileConfig, DiskRowSet, RowSetMeta};
use crate::tablet::flush::{MemRowSetFlush, column_path, delta_path};
use crate::tablet::rowset::RowSetId;
use crate::tablet::rowset_compaction::RowsetCompaction;
use crate::tablet::superblock::Superblock;
use crate::tablet::writer::FreezePoint;

/// Kind of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobKind {
    /// MemRowSet flush: writes the oldest MemRowSet to disk.
    FlushRows,
    /// Delta flush: writes the DeltaMemStore of a DiskRowSet to a delta file.
    FlushDeltas(RowSetId),
    /// Rowset compaction: rewrites DiskRowSets into non-overlapping ones.
    Compact(Vec<RowSetId>),
    /// Major delta compaction: folds a DiskRowSet's delta files into the changed base columns.
    MergeDeltas(RowSetId),
    /// Storing of the superblock, so that log GC can remove the log before it.
    Checkpoint,
}

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
    work: JobWork,
    stage: JobStage,
    meta: Option<Superblock>,
    /// Size of the stored superblock.
    superblock_bytes: usize,
    notes: Vec<Note>,
    rows_per_step: usize,
    /// Memory used by the job.
    tracked: TrackedBytes,
    column_config: ColumnFileConfig,
}

enum JobWork {
    Rows {
        copy: Box<MemRowSetFlush>,
        freeze: FreezePoint,
        rows: u64,
        created: Vec<Arc<DiskRowSet>>,
    },
    Deltas {
        rowset: Arc<DiskRowSet>,
        freeze: u64,
        path: String,
        created: Option<RowSetMeta>,
    },
    Merge {
        merge: Box<RowsetCompaction>,
        index: u64,
        rows: u64,
        created: Vec<Arc<DiskRowSet>>,
        old: Vec<String>,
    },
    Columns {
        merge: Box<DeltaCompaction>,
        created: Option<RowSetMeta>,
        old: Vec<String>,
    },
    Nothing,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum JobStage {
    Writing,
    /// Everything is written; a turn has to create the superblock.
    Written,
    /// The superblock is created; the log has to be synced.
    SuperblockReady,
    Storing,
    /// The superblock is stored; a turn has to swap.
    Stored,
    Swapped,
}

impl JobWork {
    /// Memory used, in bytes.
    fn allocated(&self) -> usize {
        match self {
            JobWork::Rows { copy, .. } => copy.allocated(),
            JobWork::Merge { merge, .. } => merge.allocated(),
            JobWork::Columns { merge, .. } => merge.allocated(),
            JobWork::Deltas { .. } | JobWork::Nothing => 0,
        }
    }

    /// Rows to process in one step.
    fn step_rows(&self, config: &TabletConfig) -> usize {
        match self {
            JobWork::Rows { copy, rows, .. } => config.step_rows(*rows, copy.source_bytes()),
            JobWork::Merge { merge, rows, .. } => {
                config.step_rows(*rows, merge.inputs().map(|rowset| rowset.raw_bytes()).sum())
            }
            JobWork::Columns { merge, .. } => {
                config.step_rows(merge.rowset().meta().rows.into(), merge.rowset().raw_bytes())
            }
            JobWork::Deltas { .. } | JobWork::Nothing => config.job_step_rows,
        }
    }
}

impl Job {
    pub fn kind(&self) -> &JobKind {
        &self.kind
    }

    /// Runs the next step; returns the one after it.
    pub fn step(&mut self) -> Result<JobStep> {
        match self.stage {
            JobStage::Writing => {
                let more = self.write()?;
                self.tracked.set(self.work.allocated() as u64, 0);
                if more {
                    return Ok(JobStep::More);
                }
                self.stage = JobStage::Written;
                Ok(JobStep::Turn)
            }
            JobStage::SuperblockReady => {
                self.stage = JobStage::Storing;
                Ok(JobStep::SyncLog)
            }
            JobStage::Storing => {
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
                if let JobWork::Merge { old, .. } | JobWork::Columns { old, .. } = &self.work {
                    self.remove(old);
                }
                Ok(JobStep::Done)
            }
        }
    }

    /// Writes the next part; returns false when all is written, durable and open.
    fn write(&mut self) -> Result<bool> {
        match &mut self.work {
            JobWork::Rows { copy, created, .. } => {
                if copy.step(self.rows_per_step)? {
                    return Ok(true);
                }
                *created = copy.finish()?;
            }
            JobWork::Deltas { rowset, path, created, .. } => {
                *created = Some(rowset.flush_frozen(path, &self.column_config)?);
            }
            JobWork::Merge { merge, created, .. } => {
                if merge.step(self.rows_per_step)? {
                    return Ok(true);
                }
                *created = merge.finish()?;
            }
            JobWork::Columns { merge, created, .. } => {
                if merge.step(self.rows_per_step)? {
                    return Ok(true);
                }
                *created = Some(merge.finish()?);
            }
            JobWork::Nothing => {}
        }
        Ok(false)
    }

    /// Removes the files of an abandoned job.
    fn abandon(&self) {
        match &self.work {
            JobWork::Rows { copy, .. } => self.remove(copy.files()),
            JobWork::Deltas { path, .. } => self.remove(std::slice::from_ref(path)),
            JobWork::Merge { merge, .. } => self.remove(merge.files()),
            JobWork::Columns { merge, .. } => self.remove(std::slice::from_ref(merge.path())),
            JobWork::Nothing => {}
        }
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
        let Some(work) = self.work(&kind)? else { return Ok(None) };
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
            column_config: config.columns.clone(),
        }))
    }

    fn work(&mut self, kind: &JobKind) -> Result<Option<JobWork>> {
        let (index, timestamp) = (self.applier.last_applied.index, self.applier.applied_at);
        match kind {
            JobKind::FlushRows => {
                if !self.applier.writer.freeze(index, timestamp) {
                    return Ok(None);
                }
                let (mrs, freeze) = self.applier.writer.oldest_frozen().expect("one was just frozen");
                let rows = mrs.rows();
                let copy = MemRowSetFlush::new(
                    self.data.clone(),
                    self.applier.tablet.clone(),
                    mrs,
                    freeze.timestamp,
                );
                Ok(Some(JobWork::Rows { copy: Box::new(copy), freeze, rows, created: Vec::new() }))
            }
            JobKind::FlushDeltas(id) => {
                let rowset = rowset(&self.applier.tablet, *id)?;
                let Some(freeze) = self.applier.writer.freeze_deltas(&rowset, index, timestamp) else {
                    return Ok(None);
                };
                let path = delta_path(self.applier.tablet.tablet, *id, self.applier.tablet.new_rowset_id());
                Ok(Some(JobWork::Deltas { rowset, freeze, path, created: None }))
            }
            JobKind::Compact(ids) => {
                let rowsets =
                    ids.iter().map(|id| rowset(&self.applier.tablet, *id)).collect::<Result<Vec<_>>>()?;
                if rowsets.is_empty() {
                    return Ok(None);
                }
                let metas = || rowsets.iter().map(|rowset| rowset.meta());
                let rows = metas().map(|meta| u64::from(meta.rows)).sum();
                let old =
                    metas().flat_map(|meta| meta.files().map(str::to_string).collect::<Vec<_>>()).collect();
                let merge =
                    RowsetCompaction::new(self.data.clone(), &self.applier.tablet, rowsets, timestamp)?;
                Ok(Some(JobWork::Merge { merge: Box::new(merge), index, rows, created: Vec::new(), old }))
            }
            JobKind::MergeDeltas(id) => {
                let rowset = rowset(&self.applier.tablet, *id)?;
                if rowset.meta().delta_files.is_empty() {
                    return Ok(None);
                }
                let tablet = &self.applier.tablet;
                let path = column_path(tablet.tablet, *id, tablet.new_rowset_id());
                let merge = Box::new(DeltaCompaction::new(self.data.clone(), tablet, rowset, path));
                Ok(Some(JobWork::Columns { old: merge.old_files(), merge, created: None }))
            }
            JobKind::Checkpoint => Ok(Some(JobWork::Nothing)),
        }
    }

    /// Runs the replica's part of a job, when [`Job::step`] asks for it.
    pub fn job_turn(&mut self, job: &mut Job, out: &mut ReplicaEffects) -> Result<()> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        match job.stage {
            JobStage::Written => {
                job.meta = Some(self.superblock(&job.work));
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
    fn superblock(&self, work: &JobWork) -> Superblock {
        let state = self.applier.tablet.state();
        let mut meta = self.applier.meta.clone();
        meta.rowsets = state.disk.iter().map(|rowset| (*rowset.meta()).clone()).collect();
        meta.last_op = self.applier.last_applied;
        meta.last_timestamp = self.applier.applied_at;
        meta.auto_increment = self.applier.auto_increment;
        meta.next_rowset = self.applier.tablet.next_rowset_id();
        meta.history_mark = self.applier.tablet.history_mark();
        let needed = match work {
            JobWork::Rows { freeze, created, .. } => {
                meta.rowsets.extend(created.iter().map(|rowset| (*rowset.meta()).clone()));
                meta.mrs_durable = freeze.timestamp;
                self.applier.writer.log_anchor(true, &[]).into_iter().chain([freeze.index + 1]).min()
            }
            JobWork::Deltas { freeze, created, .. } => {
                let created = created.as_ref().expect("written before");
                replace_rowset(&mut meta, created);
                self.applier.writer.log_anchor(false, &[created.id]).into_iter().chain([freeze + 1]).min()
            }
            JobWork::Merge { merge, index, created, .. } => {
                let old: Vec<RowSetId> = merge.inputs().map(|rowset| rowset.meta().id).collect();
                meta.rowsets.retain(|rowset| !old.contains(&rowset.id));
                meta.rowsets.extend(created.iter().map(|rowset| (*rowset.meta()).clone()));
                self.applier.writer.log_anchor(false, &old).into_iter().chain([index + 1]).min()
            }
            JobWork::Columns { created, .. } => {
                let created = created.as_ref().expect("written before");
                replace_rowset(&mut meta, created);
                self.applier.writer.log_anchor(false, &[])
            }
            JobWork::Nothing => self.applier.writer.log_anchor(false, &[]),
        };
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
        self.mark_swap(&job.work);
        match &mut job.work {
            JobWork::Rows { copy, freeze, rows, created } => {
                copy.move_changes(freeze.mutations, created)?;
                let rowsets = created.iter().map(|rowset| rowset.meta().id).collect();
                self.applier.writer.swap_frozen(std::mem::take(created));
                job.notes.push(Note::Flushed { at: freeze.timestamp, rows: *rows, rowsets });
            }
            JobWork::Deltas { rowset, created, .. } => {
                let created = created.take().expect("written before");
                let (id, at) = (created.id, created.redo_ts);
                rowset.install(created)?;
                self.applier.writer.deltas_flushed(rowset);
                job.notes.push(Note::FlushedDeltas { rowset: id, at });
            }
            JobWork::Merge { merge, index, rows, created, .. } => {
                merge.move_changes(created)?;
                let from: Vec<RowSetId> = merge.inputs().map(|rowset| rowset.meta().id).collect();
                let into = created.iter().map(|rowset| rowset.meta().id).collect();
                self.applier.writer.swap_disk(&from, std::mem::take(created), *index);
                job.notes.push(Note::Compacted { from, into, rows: *rows });
            }
            JobWork::Columns { merge, created, .. } => {
                let created = created.take().expect("written before");
                let columns = created.column_file.iter().flat_map(|file| file.columns.clone()).collect();
                job.notes.push(Note::MergedDeltas { rowset: created.id, columns });
                merge.rowset().install_columns(created)?;
            }
            JobWork::Nothing => {}
        }
        self.applier.meta = job.meta.take().expect("stored before");
        self.tablet().set_superblock_bytes(job.superblock_bytes);
        let from = self.applier.meta.replay_from;
        self.applier.alters.retain(|(index, _)| *index >= from);
        Ok(())
    }

    /// Records coverage marks of changes made while a job wrote.
    fn mark_swap(&self, work: &JobWork) {
        let tablet = self.tablet();
        let (watch, state) = (&tablet.config().watch, tablet.state());
        match work {
            JobWork::Rows { created, freeze, rows, .. } => {
                watch.mark_if(self.applier.applied_at > freeze.timestamp, "flush: operations came meanwhile");
                watch.mark_if(created.len() > 1, "flush: the rows make several rowsets");
                watch.mark_if(created.is_empty() || *rows == 0, "flush: nothing was left to write");
                watch.mark_if(state.frozen.len() > 1, "flush: another MemRowSet waits");
                watch.mark_if(state.active.rows() > 0, "flush: new rows were inserted meanwhile");
            }
            JobWork::Deltas { rowset, .. } => {
                watch.mark_if(rowset.dms_len() > 0, "flush of changes: others came meanwhile");
            }
            JobWork::Merge { merge, created, .. } => {
                let changed = merge.inputs().any(|rowset| rowset.dms_len() > 0);
                watch.mark_if(changed, "merge: an input was changed meanwhile");
                watch.mark_if(merge.inputs().count() > 2, "merge: more than two rowsets");
                watch.mark_if(merge.inputs().count() == 1, "merge: a rowset takes its changes in");
                watch.mark_if(created.len() > 1, "merge: the rows make several rowsets");
                watch.mark_if(created.is_empty(), "merge: nothing was left");
                watch.mark_if(state.active.rows() > 0, "merge: rows are in memory beside it");
            }
            JobWork::Columns { merge, .. } => {
                let again = merge.rowset().meta().column_file.is_some();
                watch.mark_if(again, "merge of changes: into columns written anew before");
                watch.mark_if(merge.rowset().dms_len() > 0, "merge of changes: others came meanwhile");
            }
            JobWork::Nothing => watch.mark("checkpoint: a superblock without a flush"),
        }
    }

    /// Ends a job that is done, or one that failed with `error`.
    pub fn end_job(&mut self, job: Job, error: Option<Error>, out: &mut ReplicaEffects) {
        self.job_running = false;
        let Some(error) = error else { return };
        match job.stage {
            JobStage::Writing | JobStage::Written | JobStage::SuperblockReady => {
                self.tablet().config().watch.mark("job: failed before its superblock");
                job.abandon();
            }
            JobStage::Storing | JobStage::Stored | JobStage::Swapped => self.fail(error, out),
        }
    }
}

fn rowset(tablet: &Tablet, id: RowSetId) -> Result<Arc<DiskRowSet>> {
    let state = tablet.state();
    let found = state.disk.iter().find(|rowset| rowset.meta().id == id).cloned();
    found.ok_or_else(|| Error::not_found(format!("rowset {id}: not found")))
}

/// Replaces a rowset's metadata by that of a job's result.
fn replace_rowset(meta: &mut Superblock, created: &RowSetMeta) {
    let place = meta.rowsets.iter_mut().find(|rowset| rowset.id == created.id);
    *place.expect("a rowset that a job works on is not replaced") = created.clone();
}
