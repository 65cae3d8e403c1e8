//! Writing a frozen MemRowSet to DiskRowSets.
//!
//! ```text
//!   freeze at F ── writes go on ──────────────────────────► swap
//!                  rows as of F ──► files, by and by          changes after F move to the files' DeltaMemStores
//! ```
//!
//! Until the swap the MemRowSet is read and changed as before; the files are nobody's.

use std::sync::Arc;

use super::Tablet;
use super::diskrowset::{DiskRowSet, DiskRowSetWriter, RowSetMeta};
use super::memrowset::MemRowSet;
use super::rowset::RowSetId;
use crate::cfile::frame::{Identity, Sealed, sync_all};
use crate::disk::Disk;
use crate::error::Result;
use crate::ids::{RowId, TabletId};
use crate::schema::Schema;
use crate::time::Timestamp;

/// The directory of all tablets' rows.
pub const DATA_DIR: &str = "data";

/// The directory of a tablet's rows.
pub fn data_dir(tablet: TabletId) -> String {
    format!("{DATA_DIR}/{tablet}")
}

/// The path of a DiskRowSet's base.
pub fn rowset_path(tablet: TabletId, rowset: RowSetId) -> String {
    format!("data/{tablet}/{rowset:08}.rows")
}

/// The path of a file of changes; `number` is used for this file only.
pub fn delta_path(tablet: TabletId, rowset: RowSetId, number: u64) -> String {
    format!("data/{tablet}/{rowset:08}-{number:08}.deltas")
}

/// The path of a file of columns written anew; `number` is used for this file only.
pub fn column_path(tablet: TabletId, rowset: RowSetId, number: u64) -> String {
    format!("data/{tablet}/{rowset:08}-{number:08}.columns")
}

/// Writes rows in key order to as many DiskRowSets as their size asks for.
pub struct Roller {
    data: Arc<dyn Disk>,
    tablet: Arc<Tablet>,
    schema: Arc<Schema>,
    /// Every operation up to here is in what is written.
    base_ts: Timestamp,
    writer: Option<DiskRowSetWriter>,
    finished: Vec<RowSetMeta>,
    /// The finished ones' files, which are made durable together at the end: until then the device writes them in its
    /// own time.
    sealed: Vec<Sealed>,
    /// Files begun, whether finished or not.
    files: Vec<String>,
}

impl Roller {
    pub fn new(data: Arc<dyn Disk>, tablet: Arc<Tablet>, schema: Arc<Schema>, base_ts: Timestamp) -> Roller {
        Roller {
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

    /// The writer to give the next rows to, and which of the rowsets it makes. Rows given to it are counted only
    /// at the next call: call it once per small batch.
    pub fn writer(&mut self) -> Result<(usize, &mut DiskRowSetWriter)> {
        let limit = self.tablet.config().rowset_roll_bytes;
        if self.writer.as_ref().is_some_and(|writer| writer.size_bytes() >= limit) {
            self.roll()?;
        }
        let number = self.finished.len();
        let writer = match self.writer.take() {
            Some(writer) => writer,
            None => self.begin()?,
        };
        Ok((number, self.writer.insert(writer)))
    }

    fn begin(&mut self) -> Result<DiskRowSetWriter> {
        let (tablet, rowset) = (self.tablet.tablet, self.tablet.new_rowset_id());
        let path = rowset_path(tablet, rowset);
        self.files.push(path.clone());
        let identity = Identity { tablet, rowset };
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
            // Every row was left behind. What cannot be removed now, the next opening removes.
            drop(writer);
            let _ = self.data.remove(&file);
        }
        Ok(())
    }

    /// Makes everything durable and opens it.
    pub fn finish(&mut self) -> Result<Vec<Arc<DiskRowSet>>> {
        self.roll()?;
        sync_all(&std::mem::take(&mut self.sealed))?;
        let open = |meta: &RowSetMeta| self.tablet.open_rowset(&self.data, meta.clone()).map(Arc::new);
        self.finished.iter().map(open).collect()
    }

    /// Bytes of memory taken.
    pub fn allocated(&self) -> usize {
        self.writer.as_ref().map_or(0, DiskRowSetWriter::allocated)
    }

    /// Files that nothing will refer to if the job ends here.
    pub fn files(&self) -> &[String] {
        &self.files
    }
}

/// Where a row went: which of the new rowsets, and which row of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NewPlace {
    pub rowset: u32,
    pub row: RowId,
}

impl NewPlace {
    /// The row was left behind.
    pub const NOWHERE: NewPlace = NewPlace { rowset: u32::MAX, row: u32::MAX };
}

/// The copying part of a flush.
pub struct MrsCopy {
    mrs: Arc<MemRowSet>,
    at: Timestamp,
    /// History from before it is left behind. Rows that died before it are not: they may be revived meanwhile.
    mark: Timestamp,
    roller: Roller,
    /// The key to go on at; `None` when all is copied.
    from: Option<Vec<u8>>,
    /// By the row's number in the MemRowSet.
    places: Vec<NewPlace>,
    /// What the last step took besides.
    step_bytes: usize,
}

impl MrsCopy {
    /// A copy of a MemRowSet that was frozen at `at`.
    pub fn new(data: Arc<dyn Disk>, tablet: Arc<Tablet>, mrs: Arc<MemRowSet>, at: Timestamp) -> MrsCopy {
        let schema = mrs.schema().schema.clone();
        let (places, mark) = (vec![NewPlace::default(); mrs.rows() as usize], tablet.history_mark());
        let roller = Roller::new(data, tablet, schema, at);
        MrsCopy { roller, mrs, at, mark, from: Some(Vec::new()), places, step_bytes: 0 }
    }

    /// Bytes of the MemRowSet.
    pub fn source_bytes(&self) -> u64 {
        self.mrs.bytes() as u64
    }

    /// Bytes of memory taken by a step and between steps.
    pub fn allocated(&self) -> usize {
        self.roller.allocated() + self.places.capacity() * size_of::<NewPlace>() + self.step_bytes
    }

    /// Copies up to `rows` rows; true if there are more.
    pub fn step(&mut self, rows: usize) -> Result<bool> {
        let Some(from) = self.from.take() else { return Ok(false) };
        let (histories, next) = self.mrs.histories(&from, self.at.next(), rows);
        self.from = next;
        self.step_bytes = histories.block.allocated();
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
            self.places[history.row as usize] = NewPlace { rowset: rowset as u32, row };
        }
        Ok(self.from.is_some())
    }

    /// Makes the rowsets durable and opens them.
    pub fn finish(&mut self) -> Result<Vec<Arc<DiskRowSet>>> {
        self.roller.finish()
    }

    /// Gives the rowsets what was changed since the freeze, `mutations` being how many there were at that time.
    pub fn move_changes(&self, mutations: usize, into: &[Arc<DiskRowSet>]) -> Result<()> {
        self.mrs.mutations_after(mutations, |row, ts, change| {
            let place = self.places[row as usize];
            into[place.rowset as usize].mutate(place.row, ts, change)
        })
    }

    pub fn files(&self) -> &[String] {
        self.roller.files()
    }
}
