//! What a server has of the tablet while no replica runs there: nothing, a tombstone, or a copy under way. The engine's
//! own code keeps it on a disk in memory, so that what it forgets is forgotten here too.
#![allow(dead_code)] // each test uses a part

use std::sync::Arc;

use engine::disk::mem::MemDisk;
use engine::error::Result;
use engine::ids::{OpId, Term};
use engine::raft::ConsensusMeta;
use engine::replica::copy::{CopySink, Has, Local, Manifest};
use engine::replica::{cmeta, tombstone};
use engine::schema::partition::{Partition, PartitionSchema};
use engine::schema::{ColumnSchema, DataType, Schema};
use engine::tablet::meta::{DataState, TabletMeta};
use engine::wal::Replicate;

use super::TABLET;
use super::node::Disk;

pub struct Shelf {
    disk: MemDisk,
    arriving: Option<Arriving>,
}

/// A copy under way. Its log comes beside the engine's files, of which there are none.
struct Arriving {
    sink: CopySink,
    log: Vec<Replicate>,
    gc_before: u64,
}

impl Shelf {
    pub fn empty() -> Shelf {
        Shelf { disk: MemDisk::new(0), arriving: None }
    }

    /// A replica with this metadata is deleted; `last` is the last operation in its log.
    pub fn tombstone(meta: &ConsensusMeta, last: OpId) -> Shelf {
        let shelf = Shelf::empty();
        let disk = &shelf.disk;
        let stored = cmeta::store(disk, meta).and_then(|()| superblock().store(disk));
        let deleted = stored.and_then(|()| tombstone::tombstone(disk, disk, TABLET, Some(last)));
        deleted.expect("this disk does not fail");
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

    /// Whether anything is there at all.
    pub fn has(&self) -> Has {
        match TabletMeta::load(&self.disk, TABLET) {
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
        let sink = CopySink::begin(disk.clone(), disk, local, Some(term), manifest)?;
        self.arriving = Some(Arriving { sink, log, gc_before });
        Ok(())
    }

    /// Everything has arrived: the disk of the replica that is there now, if the superblock says that one is.
    pub fn finish(&mut self) -> Option<Disk> {
        let Arriving { sink, log, gc_before } = self.arriving.take()?;
        sink.finish().expect("this disk does not fail");
        let ready = TabletMeta::load(&self.disk, TABLET).ok()?.data_state == DataState::Ready;
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
