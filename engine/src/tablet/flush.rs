//! MemRowSet flush: writing a frozen MemRowSet to DiskRowSets.
//!
//! ```text
//!   freeze at F ── writes continue ───────────────────────► swap
//!                  rows as of F ──► files, step by step       mutations after F move to the files' DeltaMemStores
//! ```
//!
//! Until the swap the MemRowSet is read and mutated as before, and no superblock refers to the files.

use std::sync::Arc;

use super::Tablet;
use super::diskrowset::{DiskRowSet, DiskRowSetWriter, RowSetMeta};
use super::memrowset::MemRowSet;
use super::rowset::RowSetId;
use crate::cfile::page_file::{PageOwner, SealedFile, sync_all};
use crate::disk::Disk;
use crate::error::Result;
use crate::ids::{RowId, TabletId};
use crate::schema::Schema;
use crate::time::Timestamp;

/// Directory of all tablets' data.
pub const DATA_DIR: &str = "data";

/// Returns the directory of a tablet's data.
pub fn data_dir(tablet: TabletId) -> String {
    format!("{DATA_DIR}/{tablet}")
}

/// Returns the path of a DiskRowSet's base.
pub fn rowset_path(tablet: TabletId, rowset: RowSetId) -> String {
    format!("data/{tablet}/{rowset:08}.rows")
}

/// Returns the path of a delta file; `number` is unique to the file.
pub fn delta_path(tablet: TabletId, rowset: RowSetId, number: u64) -> String {
    format!("data/{tablet}/{rowset:08}-{number:08}.deltas")
}

/// Returns the path of a file of rewritten columns; `number` is unique to the file.
pub fn column_path(tablet: TabletId, rowset: RowSetId, number: u64) -> String {
    format!("data/{tablet}/{rowset:08}-{number:08}.columns")
}

/// Writer of rows in key order to DiskRowSets of limited size.
pub struct RollingRowSetWriter {
    data: Arc<dyn Disk>,
    tablet: Arc<Tablet>,
    schema: Arc<Schema>,
    /// Timestamp up to which every operation is in the files.
    base_ts: Timestamp,
    writer: Option<DiskRowSetWriter>,
    finished: Vec<RowSetMeta>,
    /// Files of the finished rowsets. They are synced together at the end; until then the device writes them at its own
    /// pace.
    sealed: Vec<SealedFile>,
    /// Files created, finished or not.
    files: Vec<String>,
}

impl RollingRowSetWriter {
    pub fn new(
        data: Arc<dyn Disk>,
        tablet: Arc<Tablet>,
        schema: Arc<Schema>,
        base_ts: Timestamp,
    ) -> RollingRowSetWriter {
        RollingRowSetWriter {
            data,
            tablet,
            schema,
            base_ts,
            writer: None,
            finished: Vec::new(),
            sealed: Vec::new(),
            files: Vec::new(),
        }
    }

    /// Returns the writer for the next rows, and the index of its rowset. Rows count towards the size limit at the next
    /// call only, so it must be called once per small batch.
    pub fn writer(&mut self) -> Result<(usize, &mut DiskRowSetWriter)> {
        let limit = self.tablet.config().rowset_roll_bytes;
        let is_full = |writer: &DiskRowSetWriter| writer.size_bytes() >= limit || writer.has_large_index();
        if self.writer.as_ref().is_some_and(is_full) {
            self.roll()?;
        }
        let number = self.finished.len();
        let writer = match self.writer.take() {
            Some(writer) => writer,
            None => self.begin()?,
        };
        Ok((number, self.writer.insert(writer)))
    }

    /// Returns the bytes of keys and deltas after which a step must end, so that they count towards the size limit.
    pub fn step_history_bytes(&self) -> usize {
        self.tablet.config().step_history_bytes(1)
    }

    fn begin(&mut self) -> Result<DiskRowSetWriter> {
        let (tablet, rowset) = (self.tablet.tablet, self.tablet.new_rowset_id());
        let path = rowset_path(tablet, rowset);
        self.files.push(path.clone());
        let identity = PageOwner { tablet, rowset };
        let config = &self.tablet.config().columns;
        DiskRowSetWriter::new(self.data.clone(), &path, identity, &self.schema, config)
    }

    fn roll(&mut self) -> Result<()> {
        let Some(writer) = self.writer.take() else { return Ok(()) };
        if writer.rows() > 0 {
            let (meta, sealed) = writer.seal(self.base_ts)?;
            self.finished.push(meta);
            self.sealed.push(sealed);
        } else if let Some(file) = self.files.pop() {
            // Every row was dropped. If the removal fails, the next bootstrap removes the orphan file.
            drop(writer);
            let _ = self.data.remove(&file);
        }
        Ok(())
    }

    /// Makes all files durable and opens their rowsets.
    pub fn finish(&mut self) -> Result<Vec<Arc<DiskRowSet>>> {
        self.roll()?;
        sync_all(&std::mem::take(&mut self.sealed))?;
        let open = |meta: &RowSetMeta| self.tablet.open_rowset(&self.data, meta.clone()).map(Arc::new);
        self.finished.iter().map(open).collect()
    }

    /// Returns the bytes of memory allocated.
    pub fn allocated(&self) -> usize {
        self.writer.as_ref().map_or(0, DiskRowSetWriter::allocated)
    }

    /// Returns the files that become orphans if the job ends here.
    pub fn files(&self) -> &[String] {
        &self.files
    }
}

/// New location of a row: index of the new rowset, and row in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RowRelocation {
    pub rowset: u32,
    pub row: RowId,
}

impl RowRelocation {
    /// The row was dropped.
    pub const NOWHERE: RowRelocation = RowRelocation { rowset: u32::MAX, row: u32::MAX };
}

/// The copying part of a MemRowSet flush.
pub struct MemRowSetFlush {
    mrs: Arc<MemRowSet>,
    at: Timestamp,
    /// History before the mark is dropped. Rows deleted before the mark are copied, because a write may reinsert them
    /// during the flush.
    mark: Timestamp,
    roller: RollingRowSetWriter,
    /// Key to resume at; `None` when all rows are copied.
    resume_key: Option<Vec<u8>>,
    /// New locations, by row id in the MemRowSet.
    relocations: Vec<RowRelocation>,
    /// Bytes that the last step allocated temporarily.
    step_bytes: usize,
}

impl MemRowSetFlush {
    /// Creates the flush of a MemRowSet that was frozen at `at`.
    pub fn new(
        data: Arc<dyn Disk>,
        tablet: Arc<Tablet>,
        mrs: Arc<MemRowSet>,
        at: Timestamp,
    ) -> MemRowSetFlush {
        let schema = mrs.schema().schema.clone();
        let (relocations, mark) =
            (vec![RowRelocation::default(); mrs.rows() as usize], tablet.history_mark());
        let roller = RollingRowSetWriter::new(data, tablet, schema, at);
        MemRowSetFlush { roller, mrs, at, mark, resume_key: Some(Vec::new()), relocations, step_bytes: 0 }
    }

    /// Returns the bytes of the MemRowSet.
    pub fn source_bytes(&self) -> u64 {
        self.mrs.bytes() as u64
    }

    /// Returns the bytes of memory allocated during a step and between steps.
    pub fn allocated(&self) -> usize {
        self.roller.allocated() + self.relocations.capacity() * size_of::<RowRelocation>() + self.step_bytes
    }

    /// Copies up to `rows` rows, fewer if they or their histories are long. Returns true if there are more.
    pub fn step(&mut self, rows: usize) -> Result<bool> {
        let Some(from) = self.resume_key.take() else { return Ok(false) };
        let limits = (rows, self.roller.step_history_bytes());
        let (histories, next) = self.mrs.histories(&from, self.at.next(), limits);
        self.resume_key = next;
        self.step_bytes = histories.block.allocated() + histories.history_bytes;
        let (rowset, writer) = self.roller.writer()?;
        let first = writer.rows();
        let keys: Vec<&[u8]> = histories.rows.iter().map(|row| row.key.as_slice()).collect();
        writer.append(&histories.block, &keys)?;
        for (row, history) in (first..).zip(&histories.rows) {
            for (ts, change) in history.undos.iter().filter(|(ts, _)| *ts >= self.mark) {
                writer.undo(row, *ts, change)?;
            }
            if let Some((ts, change)) = &history.redo {
                writer.redo(row, *ts, change)?;
            }
            self.relocations[history.row as usize] = RowRelocation { rowset: rowset as u32, row };
        }
        Ok(self.resume_key.is_some())
    }

    /// Makes the rowsets durable and opens them.
    pub fn finish(&mut self) -> Result<Vec<Arc<DiskRowSet>>> {
        self.roller.finish()
    }

    /// Copies the mutations since the freeze to the rowsets. `mutations` is their number at the freeze.
    pub fn move_changes(&self, mutations: usize, into: &[Arc<DiskRowSet>]) -> Result<()> {
        self.mrs.mutations_after(mutations, |row, ts, change| {
            let relocation = self.relocations[row as usize];
            into[relocation.rowset as usize].mutate(relocation.row, ts, change)
        })
    }

    pub fn files(&self) -> &[String] {
        self.roller.files()
    }
}
