//! Jobs on the deltas of one DiskRowSet: the delta flush, and the delta compactions.

use std::sync::Arc;

use super::applier::TabletApplier;
use super::job_work::{JobWork, find_rowset};
use crate::config::TabletConfig;
use crate::disk::Disk;
use crate::error::Result;
use crate::note::Note;
use crate::tablet::Tablet;
use crate::tablet::delta_compaction::DeltaCompaction;
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

/// A major or minor delta compaction of one DiskRowSet.
pub(super) struct DeltaCompactionJob {
    compaction: Box<dyn DeltaCompaction>,
    created: Option<RowSetMeta>,
    old: Vec<String>,
}

impl DeltaCompactionJob {
    /// Folds the delta files into the changed base columns.
    pub(super) fn major(
        id: RowSetId,
        data: &Arc<dyn Disk>,
        applier: &mut TabletApplier,
    ) -> Result<Option<DeltaCompactionJob>> {
        let tablet = &applier.tablet;
        let Some(rowset) = rowset_with_delta_files(tablet, id, 1)? else { return Ok(None) };
        let path = column_path(tablet.tablet, id, tablet.new_rowset_id());
        Ok(Some(DeltaCompactionJob::new(MajorDeltaCompaction::new(data.clone(), tablet, rowset, path))))
    }

    /// Merges the delta files into one.
    pub(super) fn minor(
        id: RowSetId,
        data: &Arc<dyn Disk>,
        applier: &mut TabletApplier,
    ) -> Result<Option<DeltaCompactionJob>> {
        let tablet = &applier.tablet;
        let Some(rowset) = rowset_with_delta_files(tablet, id, 2)? else { return Ok(None) };
        let path = delta_path(tablet.tablet, id, tablet.new_rowset_id());
        Ok(Some(DeltaCompactionJob::new(MinorDeltaCompaction::new(data.clone(), tablet, rowset, path))))
    }

    fn new(compaction: impl DeltaCompaction + 'static) -> DeltaCompactionJob {
        let old = compaction.old_files();
        DeltaCompactionJob { compaction: Box::new(compaction), created: None, old }
    }
}

/// Returns the rowset if it has at least this many delta files.
fn rowset_with_delta_files(tablet: &Tablet, id: RowSetId, least: usize) -> Result<Option<Arc<DiskRowSet>>> {
    let rowset = find_rowset(tablet, id)?;
    Ok(Some(rowset).filter(|rowset| rowset.meta().delta_files.len() >= least))
}

impl JobWork for DeltaCompactionJob {
    fn allocated(&self) -> usize {
        self.compaction.allocated()
    }

    fn step_rows(&self, config: &TabletConfig) -> usize {
        let rowset = self.compaction.rowset();
        config.step_rows(rowset.meta().rows.into(), rowset.raw_bytes())
    }

    fn write(&mut self, rows: usize) -> Result<bool> {
        if self.compaction.step(rows)? {
            return Ok(true);
        }
        self.created = Some(self.compaction.finish()?);
        Ok(false)
    }

    fn new_files(&self) -> &[String] {
        std::slice::from_ref(self.compaction.path())
    }

    fn old_files(&self) -> &[String] {
        &self.old
    }

    fn list_rowsets(&self, meta: &mut Superblock, writer: &TabletWriter) -> Option<u64> {
        replace_rowset(meta, self.created.as_ref().expect("written before"));
        writer.log_anchor(false, &[])
    }

    fn mark_swap(&self, applier: &TabletApplier) {
        self.compaction.mark(&applier.tablet.config().observer);
    }

    fn swap(&mut self, _writer: &mut TabletWriter) -> Result<Option<Note>> {
        let created = self.created.take().expect("written before");
        let note = self.compaction.note(&created);
        self.compaction.rowset().install_compacted(created)?;
        Ok(Some(note))
    }
}

/// Replaces a rowset's metadata by that of a job's result.
fn replace_rowset(meta: &mut Superblock, created: &RowSetMeta) {
    let place = meta.rowsets.iter_mut().find(|rowset| rowset.id == created.id);
    *place.expect("a rowset that a job works on is not replaced") = created.clone();
}
