//! Minor delta compaction: merging a DiskRowSet's delta files into one.
//!
//! ```text
//!   file 1    row 0: a=1                row 7: DELETE
//!   file 2    row 0: a=2    row 3: b=5                        ──►  row 0: a=1, a=2    row 3: b=5    row 7: DELETE
//! ```
//!
//! A scan searches one file instead of several. No delta is dropped and no base column is read or written, so this
//! costs the bytes of the deltas alone; the values stay where they are until a major delta compaction folds them.
//!
//! The column file keeps its own deltas. Deltas that arrive during the compaction stay in the DeltaMemStore. Which of
//! the two delta compactions is due: [`compaction_policy`](super::compaction_policy).

use std::sync::Arc;

use super::Tablet;
use super::delta_compaction::DeltaCompaction;
use super::delta_tracker::RowsetDeltas;
use super::deltafile::{DeltaDirection, DeltaWriter};
use super::deltamemstore::DeltaMemStore;
use super::diskrowset::{DeltaFileMeta, DiskRowSet, RowSetMeta};
use super::history_window::HistoryWindow;
use crate::cfile::page_file::{FileKind, PageOwner, PageWriter};
use crate::disk::Disk;
use crate::error::{Error, Result};
use crate::ids::RowId;
use crate::note::Note;
use crate::observer::ObserverHandle;

/// A minor delta compaction in progress.
pub struct MinorDeltaCompaction {
    data: Arc<dyn Disk>,
    owner: PageOwner,
    page_bytes: usize,
    rowset: Arc<DiskRowSet>,
    meta: Arc<RowSetMeta>,
    /// The delta files, without other deltas of the rowset.
    inputs: RowsetDeltas,
    window: HistoryWindow,
    path: String,
    /// The new file, once the first step has created it.
    output: Option<(PageWriter, DeltaWriter)>,
    /// The first row whose deltas are not written yet.
    next: RowId,
    /// Bytes that the last step allocated temporarily.
    step_bytes: usize,
}

impl MinorDeltaCompaction {
    /// Creates a compaction into the file `path`.
    pub fn new(data: Arc<dyn Disk>, tablet: &Tablet, rowset: Arc<DiskRowSet>, path: String) -> Self {
        let (meta, mut deltas) = rowset.delta_file_state();
        // The deltas of the column file precede those of the delta files.
        let redo = deltas.redo.split_off(deltas.redo.len() - meta.delta_files.len());
        let recent = Arc::new(DeltaMemStore::default());
        MinorDeltaCompaction {
            data,
            owner: PageOwner { tablet: tablet.tablet, rowset: meta.id },
            page_bytes: tablet.config().columns.delta_page_bytes,
            rowset,
            inputs: RowsetDeltas { undo: Vec::new(), redo, frozen: None, recent },
            window: HistoryWindow::new(tablet.config().step_history_bytes(1)),
            meta,
            path,
            output: None,
            next: 0,
            step_bytes: 0,
        }
    }

    fn input_count(&self) -> u64 {
        self.inputs.redo.iter().map(|file| file.meta().count).sum()
    }
}

impl DeltaCompaction for MinorDeltaCompaction {
    fn rowset(&self) -> &Arc<DiskRowSet> {
        &self.rowset
    }

    fn path(&self) -> &String {
        &self.path
    }

    fn old_files(&self) -> Vec<String> {
        self.meta.delta_files.iter().map(|delta| delta.file.clone()).collect()
    }

    fn step(&mut self, rows: usize) -> Result<bool> {
        let (out, writer) = match &mut self.output {
            Some(output) => output,
            None => {
                let out = PageWriter::create(self.data.clone(), &self.path, FileKind::Delta, self.owner)?;
                self.output.insert((out, DeltaWriter::new(DeltaDirection::Redo, self.page_bytes)))
            }
        };
        let end = self.meta.rows.min(self.next.saturating_add(rows.max(1) as u32));
        // Several deltas of one operation are in one file, and keep their order.
        let history = self.window.redo(&self.inputs, &(self.next..end))?;
        self.step_bytes = history.allocated();
        history.redo.iter().try_for_each(|(row, ts, change)| writer.push(row, ts, change, out))?;
        self.next = history.rows.end;
        Ok(self.next < self.meta.rows)
    }

    fn allocated(&self) -> usize {
        let output = self.output.as_ref().map_or(0, |(out, writer)| out.allocated() + writer.allocated());
        self.step_bytes + output
    }

    fn finish(&mut self) -> Result<RowSetMeta> {
        let Some((mut out, writer)) = self.output.take().filter(|_| self.next == self.meta.rows) else {
            return Err(Error::invalid(format!("{}: not completely written", self.path)));
        };
        let written = writer.finish(&mut out)?;
        let deltas = written.filter(|written| written.count == self.input_count()).ok_or_else(|| {
            Error::corrupt(format!("{}: lacks deltas that the metadata of its inputs counts", self.path))
        })?;
        let footer = postcard::to_stdvec(&deltas).expect("integers always encode");
        let bytes = out.finish(&footer)?;
        let mut meta = RowSetMeta::clone(&self.meta);
        let old: u64 = meta.delta_files.iter().map(|delta| delta.bytes).sum();
        meta.bytes = meta.bytes - old + bytes;
        meta.delta_files = vec![DeltaFileMeta { file: self.path.clone(), bytes, deltas }];
        Ok(meta)
    }

    fn mark(&self, observer: &ObserverHandle) {
        observer.mark_if(self.meta.column_file.is_some(), "minor delta compaction: beside a column file");
        observer.mark_if(self.rowset.dms_len() > 0, "minor delta compaction: concurrent deltas");
    }

    fn note(&self, created: &RowSetMeta) -> Note {
        Note::MergedDeltas { rowset: created.id, files: self.inputs.redo.len() }
    }
}
