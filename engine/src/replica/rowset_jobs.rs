//! Jobs on whole DiskRowSets: the MemRowSet flush, the rowset compaction, and the checkpoint.

use std::sync::Arc;

use super::applier::TabletApplier;
use super::job_work::{JobWork, find_rowset};
use crate::config::TabletConfig;
use crate::disk::Disk;
use crate::error::Result;
use crate::note::Note;
use crate::tablet::diskrowset::DiskRowSet;
use crate::tablet::flush::MemRowSetFlush;
use crate::tablet::rowset::RowSetId;
use crate::tablet::rowset_compaction::RowsetCompaction;
use crate::tablet::superblock::Superblock;
use crate::tablet::writer::{FreezePoint, TabletWriter};

/// Writes the oldest MemRowSet to disk.
pub(super) struct RowsFlush {
    copy: MemRowSetFlush,
    freeze: FreezePoint,
    rows: u64,
    created: Vec<Arc<DiskRowSet>>,
}

impl RowsFlush {
    pub(super) fn start(data: &Arc<dyn Disk>, applier: &mut TabletApplier) -> Option<RowsFlush> {
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

/// Rewrites DiskRowSets into non-overlapping ones.
pub(super) struct Compaction {
    merge: RowsetCompaction,
    /// The last operation that was applied to the inputs when the job started.
    index: u64,
    rows: u64,
    created: Vec<Arc<DiskRowSet>>,
    old: Vec<String>,
}

impl Compaction {
    pub(super) fn start(
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
        config.step_rows(self.rows, self.merge.input_bytes())
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

/// Stores the superblock and nothing else.
pub(super) struct Checkpoint;

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
