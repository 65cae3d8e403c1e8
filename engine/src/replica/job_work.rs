//! Work of a maintenance job: the part that depends on its kind.
//!
//! ```text
//!   JobKind ──► job_start ──► JobWork:   write … write │ list_rowsets │ mark_swap, swap │ old_files are removed
//! ```
//!
//! `job.rs` runs the protocol, which is the same for all kinds. A new kind is a variant of [`JobKind`], a type with
//! [`JobWork`] in `rowset_jobs.rs` or `delta_jobs.rs`, and a line in `job_start.rs`.

use std::sync::Arc;

use super::applier::TabletApplier;
use crate::config::TabletConfig;
use crate::error::{Error, Result};
use crate::note::Note;
use crate::tablet::Tablet;
use crate::tablet::diskrowset::DiskRowSet;
use crate::tablet::rowset::RowSetId;
use crate::tablet::superblock::Superblock;
use crate::tablet::writer::TabletWriter;

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
    MajorDeltaCompaction(RowSetId),
    /// Minor delta compaction: merges a DiskRowSet's delta files into one.
    MinorDeltaCompaction(RowSetId),
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

/// Returns the rowset with this id; `NotFound` if there is none.
pub(super) fn find_rowset(tablet: &Tablet, id: RowSetId) -> Result<Arc<DiskRowSet>> {
    let state = tablet.state();
    let found = state.disk.iter().find(|rowset| rowset.meta().id == id).cloned();
    found.ok_or_else(|| Error::not_found(format!("rowset {id}: not found")))
}
