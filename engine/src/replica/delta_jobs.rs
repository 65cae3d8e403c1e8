//! Jobs on the deltas of one DiskRowSet: the delta flush, and the delta compactions.

use std::sync::Arc;

use super::applier::TabletApplier;
use super::job_work::{JobWork, find_rowset};
use crate::config::TabletConfig;
use crate::disk::Disk;
use crate::error::Result;
use crate::note::Note;
use crate::tablet::diskrowset::{ColumnFileConfig, DiskRowSet, RowSetMeta};
use crate::tablet::flush::{column_path, delta_path};
use crate::tablet::major_delta_compaction::MajorDeltaCompaction;
use crate::tablet::minor_delta_compaction::MinorDeltaCompaction;
use crate::tablet::rowset::RowSetId;
use crate::tablet::superblock::Superblock;
use crate::tablet::writer::TabletWriter;

/// Writes the DeltaMemStore of a DiskRowSet to a delta file.
pub(super) struct DeltaFlush {
    rowset: Arc<DiskRowSet>,
    /// The last operation that may be in the frozen DeltaMemStore.
    freeze: u64,
    path: String,
    config: ColumnFileConfig,
    created: Option<RowSetMeta>,
}

impl DeltaFlush {
    pub(super) fn start(id: RowSetId, applier: &mut TabletApplier) -> Result<Option<DeltaFlush>> {
        let (index, timestamp) = (applier.last_applied.index, applier.applied_at);
        let rowset = find_rowset(&applier.tablet, id)?;
        let Some(freeze) = applier.writer.freeze_deltas(&rowset, index, timestamp) else { return Ok(None) };
        let tablet = &applier.tablet;
        let path = delta_path(tablet.tablet, id, tablet.new_rowset_id());
        let config = tablet.config().columns.clone();
        Ok(Some(DeltaFlush { rowset, freeze, path, config, created: None }))
    }
}

impl JobWork for DeltaFlush {
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

/// Folds the delta files of a DiskRowSet into the changed base columns.
pub(super) struct MajorCompaction {
    merge: MajorDeltaCompaction,
    created: Option<RowSetMeta>,
    old: Vec<String>,
}

impl MajorCompaction {
    pub(super) fn start(
        id: RowSetId,
        data: &Arc<dyn Disk>,
        applier: &mut TabletApplier,
    ) -> Result<Option<MajorCompaction>> {
        let tablet = &applier.tablet;
        let rowset = find_rowset(tablet, id)?;
        if rowset.meta().delta_files.is_empty() {
            return Ok(None);
        }
        let path = column_path(tablet.tablet, id, tablet.new_rowset_id());
        let merge = MajorDeltaCompaction::new(data.clone(), tablet, rowset, path);
        Ok(Some(MajorCompaction { old: merge.old_files(), merge, created: None }))
    }
}

impl JobWork for MajorCompaction {
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
        observer.mark_if(again, "major delta compaction: column rewritten before");
        observer.mark_if(rowset.dms_len() > 0, "major delta compaction: concurrent deltas");
    }

    fn swap(&mut self, _writer: &mut TabletWriter) -> Result<Option<Note>> {
        let created = self.created.take().expect("written before");
        let columns = created.column_file.iter().flat_map(|file| file.columns.clone()).collect();
        let note = Note::FoldedDeltas { rowset: created.id, columns };
        self.merge.rowset().install_compacted(created)?;
        Ok(Some(note))
    }
}

/// Merges the delta files of a DiskRowSet into one.
pub(super) struct MinorCompaction {
    merge: MinorDeltaCompaction,
    created: Option<RowSetMeta>,
    old: Vec<String>,
}

impl MinorCompaction {
    pub(super) fn start(
        id: RowSetId,
        data: &Arc<dyn Disk>,
        applier: &mut TabletApplier,
    ) -> Result<Option<MinorCompaction>> {
        let tablet = &applier.tablet;
        let rowset = find_rowset(tablet, id)?;
        if rowset.meta().delta_files.len() < 2 {
            return Ok(None);
        }
        let path = delta_path(tablet.tablet, id, tablet.new_rowset_id());
        let merge = MinorDeltaCompaction::new(data.clone(), tablet, rowset, path);
        Ok(Some(MinorCompaction { old: merge.old_files(), merge, created: None }))
    }
}

impl JobWork for MinorCompaction {
    fn allocated(&self) -> usize {
        self.merge.allocated()
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
        observer.mark_if(rowset.meta().column_file.is_some(), "minor delta compaction: beside a column file");
        observer.mark_if(rowset.dms_len() > 0, "minor delta compaction: concurrent deltas");
    }

    fn swap(&mut self, _writer: &mut TabletWriter) -> Result<Option<Note>> {
        let created = self.created.take().expect("written before");
        let note = Note::MergedDeltas { rowset: created.id, files: self.old.len() };
        self.merge.rowset().install_compacted(created)?;
        Ok(Some(note))
    }
}

/// Replaces a rowset's metadata by that of a job's result.
fn replace_rowset(meta: &mut Superblock, created: &RowSetMeta) {
    let place = meta.rowsets.iter_mut().find(|rowset| rowset.id == created.id);
    *place.expect("a rowset that a job works on is not replaced") = created.clone();
}
