//! Long work, in steps, between which the replica goes on.
//!
//! ```text
//!   Replica::start_job ──► Job
//!        ┌─────────────────┘
//!        ▼
//!   Job::step ──► More          step again; no hurry
//!             ──► SyncLog       make the log durable as far as it was appended to, then step again
//!             ──► Turn          Replica::job_turn, then step again
//!             ──► Done          Replica::end_job
//! ```
//!
//! Steps touch disks and may run beside the replica, on another thread; turns and ends run where the replica's
//! steps do, and are brief. What every job comes to:
//!
//! 1. steps write new files, which nothing refers to yet;
//! 2. a turn writes down the superblock that will refer to them, as of this moment;
//! 3. the log is synced: it must hold every operation, and its commit, that this superblock knows of;
//! 4. a step stores the superblock;
//! 5. a turn puts the new files in the place of what they replace;
//! 6. a step removes files that nothing refers to any more.
//!
//! A crash in between leaves files that the next opening removes, and one superblock or the other. A job that
//! fails before 4 is given up by [`Replica::end_job`] and may be started again; one that fails in 4 ends the
//! replica, because nobody knows which superblock is stored.

use std::sync::Arc;

use super::{Effects, Replica};
use crate::config::TabletConfig;
use crate::disk::Disk;
use crate::error::{Error, Result};
use crate::memory::Held;
use crate::note::Note;
use crate::tablet::Tablet;
use crate::tablet::compact::Merge;
use crate::tablet::delta_merge::DeltaMerge;
use crate::tablet::diskrowset::{ColumnFileConfig, DiskRowSet, RowSetMeta};
use crate::tablet::flush::{MrsCopy, column_path, delta_path};
use crate::tablet::meta::TabletMeta;
use crate::tablet::rowset::RowSetId;
use crate::tablet::writer::Freeze;

/// What there is to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobKind {
    /// Write the oldest MemRowSet to disk.
    FlushRows,
    /// Write the recent changes of a DiskRowSet to disk.
    FlushDeltas(RowSetId),
    /// Merge DiskRowSets into ones that do not overlap.
    Compact(Vec<RowSetId>),
    /// Take a DiskRowSet's files of changes into the columns that they changed.
    MergeDeltas(RowSetId),
    /// Store the superblock, so that the log before it can go.
    Checkpoint,
}

/// What is to happen next to a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobStep {
    More,
    SyncLog,
    Turn,
    Done,
}

/// A piece of long work on one replica.
pub struct Job {
    kind: JobKind,
    data: Arc<dyn Disk>,
    work: Work,
    stage: Stage,
    meta: Option<TabletMeta>,
    notes: Vec<Note>,
    rows_per_step: usize,
    /// What it works with.
    held: Held,
    columns: ColumnFileConfig,
}

enum Work {
    Rows { copy: Box<MrsCopy>, freeze: Freeze, rows: u64, made: Vec<Arc<DiskRowSet>> },
    Deltas { rowset: Arc<DiskRowSet>, freeze: u64, path: String, made: Option<RowSetMeta> },
    Merge { merge: Box<Merge>, index: u64, rows: u64, made: Vec<Arc<DiskRowSet>>, old: Vec<String> },
    Columns { merge: Box<DeltaMerge>, made: Option<RowSetMeta>, old: Vec<String> },
    Nothing,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Writing,
    /// Everything is written; a turn is to make the superblock.
    Written,
    /// The superblock is made; the log is to be synced.
    Described,
    Storing,
    /// The superblock is stored; a turn is to swap.
    Stored,
    Swapped,
}

impl Work {
    /// Bytes of memory taken.
    fn allocated(&self) -> usize {
        match self {
            Work::Rows { copy, .. } => copy.allocated(),
            Work::Merge { merge, .. } => merge.allocated(),
            Work::Columns { merge, .. } => merge.allocated(),
            Work::Deltas { .. } | Work::Nothing => 0,
        }
    }

    /// Rows to handle in one step.
    fn step_rows(&self, config: &TabletConfig) -> usize {
        match self {
            Work::Rows { copy, rows, .. } => config.step_rows(*rows, copy.source_bytes()),
            Work::Merge { merge, rows, .. } => {
                config.step_rows(*rows, merge.inputs().map(|rowset| rowset.raw_bytes()).sum())
            }
            Work::Columns { merge, .. } => {
                config.step_rows(merge.rowset().meta().rows.into(), merge.rowset().raw_bytes())
            }
            Work::Deltas { .. } | Work::Nothing => config.job_step_rows,
        }
    }
}

impl Job {
    pub fn kind(&self) -> &JobKind {
        &self.kind
    }

    /// Does the next piece of work, and says what is to come after it.
    pub fn step(&mut self) -> Result<JobStep> {
        match self.stage {
            Stage::Writing => {
                let more = self.write()?;
                self.held.set(self.work.allocated() as u64, 0);
                if more {
                    return Ok(JobStep::More);
                }
                self.stage = Stage::Written;
                Ok(JobStep::Turn)
            }
            Stage::Described => {
                self.stage = Stage::Storing;
                Ok(JobStep::SyncLog)
            }
            Stage::Storing => {
                let meta = self.meta.as_ref().expect("the turn before made it");
                meta.store(&*self.data)?;
                self.stage = Stage::Stored;
                Ok(JobStep::Turn)
            }
            Stage::Written | Stage::Stored => Ok(JobStep::Turn),
            Stage::Swapped => {
                if let Work::Merge { old, .. } | Work::Columns { old, .. } = &self.work {
                    self.remove(old);
                }
                Ok(JobStep::Done)
            }
        }
    }

    /// Writes some more; false when all is written, durable and open.
    fn write(&mut self) -> Result<bool> {
        match &mut self.work {
            Work::Rows { copy, made, .. } => {
                if copy.step(self.rows_per_step)? {
                    return Ok(true);
                }
                *made = copy.finish()?;
            }
            Work::Deltas { rowset, path, made, .. } => {
                *made = Some(rowset.flush_frozen(path, &self.columns)?);
            }
            Work::Merge { merge, made, .. } => {
                if merge.step(self.rows_per_step)? {
                    return Ok(true);
                }
                *made = merge.finish()?;
            }
            Work::Columns { merge, made, .. } => {
                if merge.step(self.rows_per_step)? {
                    return Ok(true);
                }
                *made = Some(merge.finish()?);
            }
            Work::Nothing => {}
        }
        Ok(false)
    }

    /// Removes what a job that was given up has written.
    fn abandon(&self) {
        match &self.work {
            Work::Rows { copy, .. } => self.remove(copy.files()),
            Work::Deltas { path, .. } => self.remove(std::slice::from_ref(path)),
            Work::Merge { merge, .. } => self.remove(merge.files()),
            Work::Columns { merge, .. } => self.remove(std::slice::from_ref(merge.path())),
            Work::Nothing => {}
        }
    }

    /// Removes files that nothing refers to. What cannot be removed now, the next opening removes.
    fn remove(&self, files: &[String]) {
        for file in files {
            let _ = self.data.remove(file);
        }
    }
}

impl Replica {
    /// Begins a job; `None` if there is nothing for it to do. One at a time.
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
        let (config, held) = (tablet.config(), tablet.hold_work());
        held.set(work.allocated() as u64, 0);
        Ok(Some(Job {
            kind,
            data: self.data.clone(),
            rows_per_step: work.step_rows(config),
            work,
            stage: Stage::Writing,
            meta: None,
            notes: Vec::new(),
            held,
            columns: config.columns.clone(),
        }))
    }

    fn work(&mut self, kind: &JobKind) -> Result<Option<Work>> {
        let (index, timestamp) = (self.applier.last_applied.index, self.applier.applied_at);
        match kind {
            JobKind::FlushRows => {
                if !self.applier.writer.freeze(index, timestamp) {
                    return Ok(None);
                }
                let (mrs, freeze) = self.applier.writer.oldest_frozen().expect("one was just frozen");
                let rows = mrs.rows();
                let copy =
                    MrsCopy::new(self.data.clone(), self.applier.tablet.clone(), mrs, freeze.timestamp);
                Ok(Some(Work::Rows { copy: Box::new(copy), freeze, rows, made: Vec::new() }))
            }
            JobKind::FlushDeltas(id) => {
                let rowset = rowset(&self.applier.tablet, *id)?;
                let Some(freeze) = self.applier.writer.freeze_deltas(&rowset, index, timestamp) else {
                    return Ok(None);
                };
                let path = delta_path(self.applier.tablet.tablet, *id, self.applier.tablet.new_rowset_id());
                Ok(Some(Work::Deltas { rowset, freeze, path, made: None }))
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
                let merge = Merge::new(self.data.clone(), &self.applier.tablet, rowsets, timestamp)?;
                Ok(Some(Work::Merge { merge: Box::new(merge), index, rows, made: Vec::new(), old }))
            }
            JobKind::MergeDeltas(id) => {
                let rowset = rowset(&self.applier.tablet, *id)?;
                if rowset.meta().delta_files.is_empty() {
                    return Ok(None);
                }
                let tablet = &self.applier.tablet;
                let path = column_path(tablet.tablet, *id, tablet.new_rowset_id());
                let merge = Box::new(DeltaMerge::new(self.data.clone(), tablet, rowset, path));
                Ok(Some(Work::Columns { old: merge.old_files(), merge, made: None }))
            }
            JobKind::Checkpoint => Ok(Some(Work::Nothing)),
        }
    }

    /// The replica's part of a job, when [`Job::step`] asks for it.
    pub fn job_turn(&mut self, job: &mut Job, out: &mut Effects) -> Result<()> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        match job.stage {
            Stage::Written => {
                job.meta = Some(self.superblock(&job.work));
                job.stage = Stage::Described;
                Ok(())
            }
            Stage::Stored => {
                self.swap(job)?;
                job.stage = Stage::Swapped;
                out.notes.append(&mut job.notes);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// The superblock as it has to be once the job's files count.
    fn superblock(&self, work: &Work) -> TabletMeta {
        let state = self.applier.tablet.state();
        let mut meta = self.applier.meta.clone();
        meta.rowsets = state.disk.iter().map(|rowset| (*rowset.meta()).clone()).collect();
        meta.last_op = self.applier.last_applied;
        meta.last_timestamp = self.applier.applied_at;
        meta.auto_increment = self.applier.auto_increment;
        meta.next_rowset = self.applier.tablet.next_rowset_id();
        meta.history_mark = self.applier.tablet.history_mark();
        let needed = match work {
            Work::Rows { freeze, made, .. } => {
                meta.rowsets.extend(made.iter().map(|rowset| (*rowset.meta()).clone()));
                meta.mrs_durable = freeze.timestamp;
                self.applier.writer.needed_from(true, &[]).into_iter().chain([freeze.index + 1]).min()
            }
            Work::Deltas { freeze, made, .. } => {
                let made = made.as_ref().expect("it was written before");
                replace_rowset(&mut meta, made);
                self.applier.writer.needed_from(false, &[made.id]).into_iter().chain([freeze + 1]).min()
            }
            Work::Merge { merge, index, made, .. } => {
                let old: Vec<RowSetId> = merge.inputs().map(|rowset| rowset.meta().id).collect();
                meta.rowsets.retain(|rowset| !old.contains(&rowset.id));
                meta.rowsets.extend(made.iter().map(|rowset| (*rowset.meta()).clone()));
                self.applier.writer.needed_from(false, &old).into_iter().chain([index + 1]).min()
            }
            Work::Columns { made, .. } => {
                let made = made.as_ref().expect("it was written before");
                replace_rowset(&mut meta, made);
                self.applier.writer.needed_from(false, &[])
            }
            Work::Nothing => self.applier.writer.needed_from(false, &[]),
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
            Work::Rows { copy, freeze, rows, made } => {
                copy.move_changes(freeze.mutations, made)?;
                let rowsets = made.iter().map(|rowset| rowset.meta().id).collect();
                self.applier.writer.swap_frozen(std::mem::take(made));
                job.notes.push(Note::Flushed { at: freeze.timestamp, rows: *rows, rowsets });
            }
            Work::Deltas { rowset, made, .. } => {
                let made = made.take().expect("it was written before");
                let (id, at) = (made.id, made.redo_ts);
                rowset.install(made)?;
                self.applier.writer.deltas_flushed(rowset);
                job.notes.push(Note::FlushedDeltas { rowset: id, at });
            }
            Work::Merge { merge, index, rows, made, .. } => {
                merge.move_changes(made)?;
                let from: Vec<RowSetId> = merge.inputs().map(|rowset| rowset.meta().id).collect();
                let into = made.iter().map(|rowset| rowset.meta().id).collect();
                self.applier.writer.swap_disk(&from, std::mem::take(made), *index);
                job.notes.push(Note::Compacted { from, into, rows: *rows });
            }
            Work::Columns { merge, made, .. } => {
                let made = made.take().expect("it was written before");
                let columns = made.column_file.iter().flat_map(|file| file.columns.clone()).collect();
                job.notes.push(Note::MergedDeltas { rowset: made.id, columns });
                merge.rowset().install_columns(made)?;
            }
            Work::Nothing => {}
        }
        self.applier.meta = job.meta.take().expect("it was stored");
        let from = self.applier.meta.replay_from;
        self.applier.alters.retain(|(index, _)| *index >= from);
        Ok(())
    }

    /// Says what came in between while a job wrote.
    fn mark_swap(&self, work: &Work) {
        let tablet = self.tablet();
        let (watch, state) = (&tablet.config().watch, tablet.state());
        match work {
            Work::Rows { made, freeze, rows, .. } => {
                watch.mark_if(self.applier.applied_at > freeze.timestamp, "flush: operations came meanwhile");
                watch.mark_if(made.len() > 1, "flush: the rows make several rowsets");
                watch.mark_if(made.is_empty() || *rows == 0, "flush: nothing was left to write");
                watch.mark_if(state.frozen.len() > 1, "flush: another MemRowSet waits");
                watch.mark_if(state.active.rows() > 0, "flush: new rows were inserted meanwhile");
            }
            Work::Deltas { rowset, .. } => {
                watch.mark_if(rowset.dms_len() > 0, "flush of changes: others came meanwhile");
            }
            Work::Merge { merge, made, .. } => {
                let changed = merge.inputs().any(|rowset| rowset.dms_len() > 0);
                watch.mark_if(changed, "merge: an input was changed meanwhile");
                watch.mark_if(merge.inputs().count() > 2, "merge: more than two rowsets");
                watch.mark_if(merge.inputs().count() == 1, "merge: a rowset takes its changes in");
                watch.mark_if(made.len() > 1, "merge: the rows make several rowsets");
                watch.mark_if(made.is_empty(), "merge: nothing was left");
                watch.mark_if(state.active.rows() > 0, "merge: rows are in memory beside it");
            }
            Work::Columns { merge, .. } => {
                let again = merge.rowset().meta().column_file.is_some();
                watch.mark_if(again, "merge of changes: into columns written anew before");
                watch.mark_if(merge.rowset().dms_len() > 0, "merge of changes: others came meanwhile");
            }
            Work::Nothing => watch.mark("checkpoint: a superblock without a flush"),
        }
    }

    /// Ends a job that is done, or one that failed with `error`.
    pub fn end_job(&mut self, job: Job, error: Option<Error>, out: &mut Effects) {
        self.job_running = false;
        let Some(error) = error else { return };
        match job.stage {
            Stage::Writing | Stage::Written | Stage::Described => {
                self.tablet().config().watch.mark("job: failed before its superblock");
                job.abandon();
            }
            Stage::Storing | Stage::Stored | Stage::Swapped => self.fail(error, out),
        }
    }
}

fn rowset(tablet: &Tablet, id: RowSetId) -> Result<Arc<DiskRowSet>> {
    let state = tablet.state();
    let found = state.disk.iter().find(|rowset| rowset.meta().id == id).cloned();
    found.ok_or_else(|| Error::not_found(format!("there is no rowset {id}")))
}

/// Puts what a job made of a rowset in its place.
fn replace_rowset(meta: &mut TabletMeta, made: &RowSetMeta) {
    let place = meta.rowsets.iter_mut().find(|rowset| rowset.id == made.id);
    *place.expect("a rowset that a job works on is not replaced") = made.clone();
}
