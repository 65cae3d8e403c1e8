//! What the two compactions of a DiskRowSet's deltas have in common: they write one file in steps, which then replaces
//! others of the rowset. Row ids do not change, so nothing is relocated.

use std::sync::Arc;

use super::diskrowset::{DiskRowSet, RowSetMeta};
use crate::error::Result;
use crate::note::Note;
use crate::observer::ObserverHandle;

/// A delta compaction of one DiskRowSet in progress. No other job works on the rowset at the same time.
pub trait DeltaCompaction: Send {
    fn rowset(&self) -> &Arc<DiskRowSet>;

    /// Returns the path of the new file.
    fn path(&self) -> &String;

    /// Returns the files that the compaction replaces.
    fn old_files(&self) -> Vec<String>;

    /// Processes up to `rows` rows. Returns true if there is more to do.
    fn step(&mut self, rows: usize) -> Result<bool>;

    /// Returns the bytes of memory allocated during a step and between steps.
    fn allocated(&self) -> usize;

    /// Makes the file durable and returns the rowset's new metadata. Called after the last step.
    fn finish(&mut self) -> Result<RowSetMeta>;

    /// Records coverage marks, before the new file is installed.
    fn mark(&self, observer: &ObserverHandle);

    /// Returns the note about the compaction that made `created`.
    fn note(&self, created: &RowSetMeta) -> Note;
}
