//! What a server has of the tablet while no replica runs there: nothing, a tombstone, a copy under way, or a replica
//! that failed. The engine's own code keeps it on a disk in memory, so that what it forgets is forgotten here too.
#![allow(dead_code)] // each test uses a part

use std::sync::Arc;

use engine::disk;
use engine::disk::mem::MemDisk;
use engine::error::Result;
use engine::ids::{OpId, Term};
use engine::raft::ConsensusMeta;
use engine::replica::copy::{Chunk, CopySink, Has, Local, Manifest, Part, Segment};
use engine::replica::{cmeta, tombstone};
use engine::schema::partition::{Partition, PartitionSchema};
use engine::schema::{ColumnSchema, DataType, Schema};
use engine::tablet::meta::{DataState, TabletMeta};
use engine::wal::{Replicate, segment_name};

use super::TABLET;
use super::node::Disk;

pub struct Shelf {
    disk: MemDisk,
    arriving: Option<Arriving>,
}

/// The only segment of a log that is copied.
const SEGMENT: u64 = 1;

/// A copy under way. Its log comes beside the engine's files: the segment there has a byte for each entry.
struct Arriving {
    sink: CopySink,
    log: Vec<Replicate>,
    gc_before: u64,
}

impl Shelf {
    pub fn empty() -> Shelf {
        Shelf { disk: MemDisk::new(0), arriving: None }
    }

    /// A replica with this metadata that cannot be used.
    pub fn failed(meta: &ConsensusMeta) -> Shelf {
        let shelf = Shelf::empty();
        let stored = cmeta::store(&shelf.disk, meta).and_then(|()| superblock().store(&shelf.disk));
        stored.expect("this disk does not fail");
        shelf
    }

    /// A replica with this metadata is deleted; `last` is the last operation in its log, if that is known.
    pub fn tombstone(meta: &ConsensusMeta, last: Option<OpId>) -> Shelf {
        let shelf = Shelf::failed(meta);
        let disk = &shelf.disk;
        tombstone::tombstone(disk, disk, TABLET, last).expect("this disk does not fail");
        shelf
    }

    /// What a tombstone, or a copy that has not ended, remembers of the log.
    pub fn last_op(&self) -> Option<OpId> {
        TabletMeta::load(&self.disk, TABLET).ok()?.tombstone_last_op
    }

    pub fn meta(&self) -> Option<ConsensusMeta> {
        cmeta::load(&self.disk, TABLET).ok()
    }

    pub fn store(&self, meta: &ConsensusMeta) {
        cmeta::store(&self.disk, meta).expect("this disk does not fail");
    }

    pub fn is_copying(&self) -> bool {
        self.arriving.is_some()
    }

    /// What is there, if anything is.
    pub fn has(&self) -> Has {
        match TabletMeta::load(&self.disk, TABLET).map(|meta| meta.data_state) {
            Ok(DataState::Ready) => Has::Failed,
            Ok(_) => Has::Tombstone,
            Err(_) => Has::Nothing,
        }
    }

    /// A copy begins, if the code that copies admits it.
    pub fn begin(
        &mut self,
        local: &Local,
        term: Term,
        manifest: Manifest,
        (log, gc_before): (Vec<Replicate>, u64),
    ) -> Result<()> {
        let disk = Arc::new(self.disk.clone());
        let bytes = log.len() as u64;
        let manifest = Manifest { segments: vec![Segment { sequence: SEGMENT, bytes }], ..manifest };
        let mut sink = CopySink::begin(disk.clone(), disk, local, Some(term), manifest)?;
        let chunk = Chunk::new(0, vec![0; log.len()], bytes);
        sink.put(Part::Segment(SEGMENT), &chunk).expect("this disk does not fail");
        self.arriving = Some(Arriving { sink, log, gc_before });
        Ok(())
    }

    /// Everything has arrived: the disk of the replica that is there now, if the superblock says that one is. Of the log
    /// it has what would be there if the power went.
    pub fn finish(&mut self) -> Option<Disk> {
        let Arriving { sink, mut log, gc_before } = self.arriving.take()?;
        sink.finish().expect("this disk does not fail");
        self.disk.crash();
        let ready = self.has() == Has::Failed;
        let segment = format!("wals/{TABLET}/{}", segment_name(SEGMENT));
        log.truncate(disk::read_file(&self.disk, &segment).map_or(0, |bytes| bytes.len()));
        let committed = sink.manifest().committed;
        ready.then(|| Disk { meta: self.meta(), log, committed, tombstone: None, gc_before })
    }

    /// The copy is given up.
    pub fn abort(&mut self) {
        if let Some(arriving) = self.arriving.take() {
            arriving.sink.abort().expect("this disk does not fail");
        }
    }

    /// The server's power goes, and comes back.
    pub fn crash(&mut self) {
        self.arriving = None;
        self.disk.crash();
        if self.has() != Has::Nothing {
            tombstone::recover(&self.disk, &self.disk, TABLET).expect("this disk does not fail");
        }
    }
}

/// That of a tablet without rows.
pub fn superblock() -> TabletMeta {
    let schema = Schema::new(vec![ColumnSchema::new(0, "k", DataType::Int32)], 1).expect("a key is enough");
    let (how, range) = (PartitionSchema::default(), Partition::default());
    TabletMeta::new(TABLET, TABLET, "t", schema, 0, how, range)
}
