//! Work of maintenance jobs: one type for each kind, behind one trait.
//!
//! ```text
//!   JobKind ──► start ──► JobWork:   write … write │ list_rowsets │ mark_swap, swap │ old_files are removed
//! ```
//!
//! `job.rs` runs the protocol, which is the same for all kinds. A new kind is a variant of [`JobKind`], a type with
//! [`JobWork`], and a line in [`start`].

use std::sync::Arc;

use super::applier::TabletApplier;
use crate::config::TabletConfig;
use crate::disk::Disk;
use crate::error::{Error, Result};
use crate::note::Note;
use crate::tablet::Tablet;
use crate::tablet::delta_compaction::DeltaCompaction;
use crate::tablet::diskrowset::{ColumnFileConfig, DiskRowSet, RowSetMeta};
use crate::tablet::flush::{MemRowSetFlush, column_path, delta_path};
use crate::tablet::rowset::RowSetId;
use crate::tablet::rowset_compaction::RowsetCompaction;
use crate::tablet::superblock::Superblock;
use crate::tablet::writer::{FreezePoint, TabletWriter};

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

/// Part of a maintenance job that depends on its kind.
pub(super) trait JobWork: Send {
    /// Memory used, in bytes.
    fn allocated(&self) -> usize {
        0
    }

    /// Rows to process in one step.
    fn step_rows(&self, config: &TabletConfig) -> usize {
        config.job_step_rows
    }

    /// Writes the next part, of `rows` rows; returns false when all is written, durable and open.
    fn write(&mut self, rows: usize) -> Result<bool>;

    /// New files, which are removed if the job is abandoned.
    fn new_files(&self) -> &[String];

    /// Files that are orphans after the swap.
    fn old_files(&self) -> &[String] {
        &[]
    }

    /// Puts the written rowsets into the superblock. Returns the first operation that only memory has after the swap.
    fn list_rowsets(&self, meta: &mut Superblock, writer: &TabletWriter) -> Option<u64>;

    /// Records coverage marks of changes made while the job wrote. Order: before [`JobWork::swap`].
    fn mark_swap(&self, applier: &TabletApplier);

    /// Replaces the old data by the new.
    fn swap(&mut self, writer: &mut TabletWriter) -> Result<Option<Note>>;
}

/// Starts a job's work; `None` if there is nothing for it to do.
pub(super) fn start(
    kind: &JobKind,
    data: &Arc<dyn Disk>,
    applier: &mut TabletApplier,
) -> Result<Option<Box<dyn JobWork>>> {
    Ok(match kind {
        JobKind::FlushRows => boxed(RowsFlush::start(data, applier)),
        JobKind::FlushDeltas(id) => boxed(DeltasFlush::start(*id, applier)?),
        JobKind::Compact(ids) => boxed(Compaction::start(ids, data, applier)?),
        JobKind::MergeDeltas(id) => boxed(DeltasMerge::start(*id, data, applier)?),
        JobKind::Checkpoint => boxed(Some(Checkpoint)),
    })
}

fn boxed<W: JobWork + 'static>(work: Option<W>) -> Option<Box<dyn JobWork>> {
    work.map(|work| Box::new(work) as Box<dyn JobWork>)
}

struct RowsFlush {
    copy: MemRowSetFlush,
    freeze: FreezePoint,
    rows: u64,
    created: Vec<Arc<DiskRowSet>>,
}

impl RowsFlush {
    fn start(data: &Arc<dyn Disk>, applier: &mut TabletApplier) -> Option<RowsFlush> {
        let (index, timestamp) = (applier.last_applied.index, applier.applied_at);
        if !applier.writer.freeze(index, timestamp) {
            return None;
        }
        let (mrs, freeze) = applier.writer.oldest_frozen().expect("one was just frozen");
        let rows = mrs.rows();
        let copy = MemRowSetFlush::new(data.clone(), applier.tablet.clone(), mrs, freeze.timestamp);
        Some(RowsFlush { copy, freeze, rows, created: Vec::new() })
    }
}

impl JobWork for RowsFlush {
    fn allocated(&self) -> usize {
        self.copy.allocated()
    }

    fn step_rows(&self, config: &TabletConfig) -> usize {
        config.step_rows(self.rows, self.copy.source_bytes())
    }

    fn write(&mut self, rows: usize) -> Result<bool> {
        if self.copy.step(rows)? {
            return Ok(true);
        }
        self.created = self.copy.finish()?;
        Ok(false)
    }

    fn new_files(&self) -> &[String] {
        self.copy.files()
    }

    fn list_rowsets(&self, meta: &mut Superblock, writer: &TabletWriter) -> Option<u64> {
        meta.rowsets.extend(self.created.iter().map(|rowset| (*rowset.meta()).clone()));
        meta.mrs_durable = self.freeze.timestamp;
        writer.log_anchor(true, &[]).into_iter().chain([self.freeze.index + 1]).min()
    }

    fn mark_swap(&self, applier: &TabletApplier) {
        let (observer, state) = (&applier.tablet.config().observer, applier.tablet.state());
        observer.mark_if(applier.applied_at > self.freeze.timestamp, "flush: concurrent operations");
        observer.mark_if(self.created.len() > 1, "flush: several rowsets");
        observer.mark_if(self.created.is_empty() || self.rows == 0, "flush: no live rows");
        observer.mark_if(state.frozen.len() > 1, "flush: another frozen MemRowSet");
        observer.mark_if(state.active.rows() > 0, "flush: concurrent inserts");
    }

    fn swap(&mut self, writer: &mut TabletWriter) -> Result<Option<Note>> {
        self.copy.move_changes(self.freeze.mutations, &self.created)?;
        let rowsets = self.created.iter().map(|rowset| rowset.meta().id).collect();
        writer.swap_frozen(std::mem::take(&mut self.created));
        Ok(Some(Note::Flushed { at: self.freeze.timestamp, rows: self.rows, rowsets }))
    }
}

struct DeltasFlush {
    rowset: Arc<DiskRowSet>,
    /// The last operation that may be in the frozen DeltaMemStore.
    freeze: u64,
    path: String,
    config: ColumnFileConfig,
    created: Option<RowSetMeta>,
}

impl DeltasFlush {
    fn start(id: RowSetId, applier: &mut TabletApplier) -> Result<Option<DeltasFlush>> {
        let (index, timestamp) = (applier.last_applied.index, applier.applied_at);
        let rowset = find_rowset(&applier.tablet, id)?;
        let Some(freeze) = applier.writer.freeze_deltas(&rowset, index, timestamp) else { return Ok(None) };
        let tablet = &applier.tablet;
        let path = delta_path(tablet.tablet, id, tablet.new_rowset_id());
        let config = tablet.config().columns.clone();
        Ok(Some(DeltasFlush { rowset, freeze, path, config, created: None }))
    }
}

impl JobWork for DeltasFlush {
    fn write(&mut self, _rows: usize) -> Result<bool> {
        self.created = Some(self.rowset.flush_frozen(&self.path, &self.config)?);
        Ok(false)
    }

    fn new_files(&self) -> &[String] {
        std::slice::from_ref(&self.path)
    }

    fn list_rowsets(&self, meta: &mut Superblock, writer: &TabletWriter) -> Option<u64> {
        let created = self.created.as_ref().expect("written before");
        replace_rowset(meta, created);
        writer.log_anchor(false, &[created.id]).into_iter().chain([self.freeze + 1]).min()
    }

    fn mark_swap(&self, applier: &TabletApplier) {
        let observer = &applier.tablet.config().observer;
        observer.mark_if(self.rowset.dms_len() > 0, "delta flush: concurrent deltas");
    }

    fn swap(&mut self, writer: &mut TabletWriter) -> Result<Option<Note>> {
        let created = self.created.take().expect("written before");
        let (id, at) = (created.id, created.redo_ts);
        self.rowset.install(created)?;
        writer.deltas_flushed(&self.rowset);
        Ok(Some(Note::FlushedDeltas { rowset: id, at }))
    }
}

struct Compaction {
    merge: RowsetCompaction,
    /// The last operation that was applied to the inputs when the job started.
    index: u64,
    rows: u64,
    created: Vec<Arc<DiskRowSet>>,
    old: Vec<String>,
}

impl Compaction {
    fn start(
        ids: &[RowSetId],
        data: &Arc<dyn Disk>,
        applier: &mut TabletApplier,
    ) -> Result<Option<Compaction>> {
        let (index, timestamp) = (applier.last_applied.index, applier.applied_at);
        let rowsets = ids.iter().map(|id| find_rowset(&applier.tablet, *id)).collect::<Result<Vec<_>>>()?;
        if rowsets.is_empty() {
            return Ok(None);
        }
        let metas = || rowsets.iter().map(|rowset| rowset.meta());
        let rows = metas().map(|meta| u64::from(meta.rows)).sum();
        let old = metas().flat_map(|meta| meta.files().map(str::to_string).collect::<Vec<_>>()).collect();
        let merge = RowsetCompaction::new(data.clone(), &applier.tablet, rowsets, timestamp)?;
        Ok(Some(Compaction { merge, index, rows, created: Vec::new(), old }))
    }

    fn input_ids(&self) -> Vec<RowSetId> {
        self.merge.inputs().map(|rowset| rowset.meta().id).collect()
    }
}

impl JobWork for Compaction {
    fn allocated(&self) -> usize {
        self.merge.allocated()
    }

    fn step_rows(&self, config: &TabletConfig) -> usize {
        config.step_rows(self.rows, self.merge.inputs().map(|rowset| rowset.raw_bytes()).sum())
    }

    fn write(&mut self, rows: usize) -> Result<bool> {
        if self.merge.step(rows)? {
            return Ok(true);
        }
        self.created = self.merge.finish()?;
        Ok(false)
    }

    fn new_files(&self) -> &[String] {
        self.merge.files()
    }

    fn old_files(&self) -> &[String] {
        &self.old
    }

    fn list_rowsets(&self, meta: &mut Superblock, writer: &TabletWriter) -> Option<u64> {
        let old = self.input_ids();
        meta.rowsets.retain(|rowset| !old.contains(&rowset.id));
        meta.rowsets.extend(self.created.iter().map(|rowset| (*rowset.meta()).clone()));
        writer.log_anchor(false, &old).into_iter().chain([self.index + 1]).min()
    }

    fn mark_swap(&self, applier: &TabletApplier) {
        let (observer, state) = (&applier.tablet.config().observer, applier.tablet.state());
        let changed = self.merge.inputs().any(|rowset| rowset.dms_len() > 0);
        observer.mark_if(changed, "compaction: concurrent change of an input");
        observer.mark_if(self.merge.inputs().count() > 2, "compaction: more than two rowsets");
        observer.mark_if(self.merge.inputs().count() == 1, "compaction: one rowset with its deltas");
        observer.mark_if(self.created.len() > 1, "compaction: several rowsets");
        observer.mark_if(self.created.is_empty(), "compaction: no live rows");
        observer.mark_if(state.active.rows() > 0, "compaction: rows in the MemRowSet");
    }

    fn swap(&mut self, writer: &mut TabletWriter) -> Result<Option<Note>> {
        self.merge.move_changes(&self.created)?;
        let from = self.input_ids();
        let into = self.created.iter().map(|rowset| rowset.meta().id).collect();
        writer.swap_disk(&from, std::mem::take(&mut self.created), self.index);
        Ok(Some(Note::Compacted { from, into, rows: self.rows }))
    }
}

struct DeltasMerge {
    merge: DeltaCompaction,
    created: Option<RowSetMeta>,
    old: Vec<String>,
}

impl DeltasMerge {
    fn start(id: RowSetId, data: &Arc<dyn Disk>, applier: &mut TabletApplier) -> Result<Option<DeltasMerge>> {
        let tablet = &applier.tablet;
        let rowset = find_rowset(tablet, id)?;
        if rowset.meta().delta_files.is_empty() {
            return Ok(None);
        }
        let path = column_path(tablet.tablet, id, tablet.new_rowset_id());
        let merge = DeltaCompaction::new(data.clone(), tablet, rowset, path);
        Ok(Some(DeltasMerge { old: merge.old_files(), merge, created: None }))
    }
}

impl JobWork for DeltasMerge {
    fn allocated(&self) -> usize {
        self.merge.allocated()
    }

    fn step_rows(&self, config: &TabletConfig) -> usize {
        let rowset = self.merge.rowset();
        config.step_rows(rowset.meta().rows.into(), rowset.raw_bytes())
    }

    fn write(&mut self, rows: usize) -> Result<bool> {
        if self.merge.step(rows)? {
            return Ok(true);
        }
        self.created = Some(self.merge.finish()?);
        Ok(false)
    }

    fn new_files(&self) -> &[String] {
        std::slice::from_ref(self.merge.path())
    }

    fn old_files(&self) -> &[String] {
        &self.old
    }

    fn list_rowsets(&self, meta: &mut Superblock, writer: &TabletWriter) -> Option<u64> {
        replace_rowset(meta, self.created.as_ref().expect("written before"));
        writer.log_anchor(false, &[])
    }

    fn mark_swap(&self, applier: &TabletApplier) {
        let (observer, rowset) = (&applier.tablet.config().observer, self.merge.rowset());
        let again = rowset.meta().column_file.is_some();
        observer.mark_if(again, "delta compaction: column rewritten before");
        observer.mark_if(rowset.dms_len() > 0, "delta compaction: concurrent deltas");
    }

    fn swap(&mut self, _writer: &mut TabletWriter) -> Result<Option<Note>> {
        let created = self.created.take().expect("written before");
        let columns = created.column_file.iter().flat_map(|file| file.columns.clone()).collect();
        let note = Note::MergedDeltas { rowset: created.id, columns };
        self.merge.rowset().install_columns(created)?;
        Ok(Some(note))
    }
}

struct Checkpoint;

impl JobWork for Checkpoint {
    fn write(&mut self, _rows: usize) -> Result<bool> {
        Ok(false)
    }

    fn new_files(&self) -> &[String] {
        &[]
    }

    fn list_rowsets(&self, _meta: &mut Superblock, writer: &TabletWriter) -> Option<u64> {
        writer.log_anchor(false, &[])
    }

    fn mark_swap(&self, applier: &TabletApplier) {
        applier.tablet.config().observer.mark("checkpoint: a superblock without a flush");
    }

    fn swap(&mut self, _writer: &mut TabletWriter) -> Result<Option<Note>> {
        Ok(None)
    }
}

fn find_rowset(tablet: &Tablet, id: RowSetId) -> Result<Arc<DiskRowSet>> {
    let state = tablet.state();
    let found = state.disk.iter().find(|rowset| rowset.meta().id == id).cloned();
    found.ok_or_else(|| Error::not_found(format!("rowset {id}: not found")))
}

/// Replaces a rowset's metadata by that of a job's result.
fn replace_rowset(meta: &mut Superblock, created: &RowSetMeta) {
    let place = meta.rowsets.iter_mut().find(|rowset| rowset.id == created.id);
    *place.expect("a rowset that a job works on is not replaced") = created.clone();
}
