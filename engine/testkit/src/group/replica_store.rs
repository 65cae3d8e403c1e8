//! Stored state of a server on which no replica runs: nothing, a tombstone, a copy in progress, or a failed replica.
//! The engine's own code stores it on a disk in memory, so that state the engine loses is lost here too.

use std::sync::Arc;

use engine::disk;
use engine::disk::mem::MemDisk;
use engine::error::Result;
use engine::ids::OpId;
use engine::raft::ConsensusMeta;
use engine::replica::copy::{
    CopyChunk, CopyLeader, CopyManifest, CopyPart, CopySink, LocalData, LocalReplica, SegmentInfo,
};
use engine::replica::{consensus_meta_store, tombstone};
use engine::schema::partition::{Partition, PartitionSchema};
use engine::schema::{ColumnSchema, DataType, Schema};
use engine::tablet::superblock::{DataState, Superblock};
use engine::wal::{ReplicateEntry, segment_name};

use super::ids::TABLET;
use super::server_disk::Disk;

pub struct ReplicaStore {
    disk: MemDisk,
    arriving: Option<Arriving>,
}

/// The only segment of a log that is copied.
const SEGMENT: u64 = 1;

/// A copy in progress. Its log is modelled beside the engine's files: the segment there has one byte for each entry.
struct Arriving {
    sink: CopySink,
    log: Vec<ReplicateEntry>,
    gc_before: u64,
}

impl ReplicaStore {
    pub fn empty() -> ReplicaStore {
        ReplicaStore { disk: MemDisk::new(0), arriving: None }
    }

    /// Creates the store of a failed replica with this metadata.
    pub fn failed(meta: &ConsensusMeta) -> ReplicaStore {
        let store = ReplicaStore::empty();
        let stored =
            consensus_meta_store::store(&store.disk, meta).and_then(|()| superblock().store(&store.disk));
        stored.expect("this disk does not fail");
        store
    }

    /// Creates the store of a deleted replica with this metadata; `last` is the last operation in its log, if known.
    pub fn tombstone(meta: &ConsensusMeta, last: Option<OpId>) -> ReplicaStore {
        let store = ReplicaStore::failed(meta);
        let disk = &store.disk;
        tombstone::tombstone(disk, disk, TABLET, last).expect("this disk does not fail");
        store
    }

    /// Returns the last operation that a tombstone, or a copy in progress, records of the log.
    pub fn last_op(&self) -> Option<OpId> {
        Superblock::load(&self.disk, TABLET).ok()?.tombstone_last_op
    }

    pub fn meta(&self) -> Option<ConsensusMeta> {
        consensus_meta_store::load(&self.disk, TABLET).ok()
    }

    pub fn store(&self, meta: &ConsensusMeta) {
        consensus_meta_store::store(&self.disk, meta).expect("this disk does not fail");
    }

    pub fn is_copying(&self) -> bool {
        self.arriving.is_some()
    }

    /// Returns the local data, if there is any.
    pub fn has(&self) -> LocalData {
        match Superblock::load(&self.disk, TABLET).map(|meta| meta.data_state) {
            Ok(DataState::Ready) => LocalData::Failed,
            Ok(_) => LocalData::Tombstone,
            Err(_) => LocalData::Nothing,
        }
    }

    /// Begins a copy, if the engine admits it.
    pub fn begin(
        &mut self,
        local: &LocalReplica,
        leader: CopyLeader,
        manifest: CopyManifest,
        (log, gc_before): (Vec<ReplicateEntry>, u64),
    ) -> Result<()> {
        let disk = Arc::new(self.disk.clone());
        let bytes = log.len() as u64;
        let manifest = CopyManifest { segments: vec![SegmentInfo { sequence: SEGMENT, bytes }], ..manifest };
        let mut sink = CopySink::begin(disk.clone(), disk, local, Some(leader), manifest)?;
        let chunk = CopyChunk::new(0, vec![0; log.len()], bytes);
        sink.put(CopyPart::Segment(SEGMENT), &chunk).expect("this disk does not fail");
        self.arriving = Some(Arriving { sink, log, gc_before });
        Ok(())
    }

    /// Completes the copy. Returns the disk of the copied replica, if the superblock is READY. Its log has the entries
    /// that would survive a power failure.
    pub fn finish(&mut self) -> Option<Disk> {
        let Arriving { sink, mut log, gc_before } = self.arriving.take()?;
        sink.finish().expect("this disk does not fail");
        self.disk.crash();
        let ready = self.has() == LocalData::Failed;
        let segment = format!("wals/{TABLET}/{}", segment_name(SEGMENT));
        log.truncate(disk::read_file(&self.disk, &segment).map_or(0, |bytes| bytes.len()));
        let committed = sink.manifest().committed;
        ready.then(|| Disk { meta: self.meta(), log, committed, tombstone: None, gc_before })
    }

    /// Aborts the copy.
    pub fn abort(&mut self) {
        if let Some(arriving) = self.arriving.take() {
            arriving.sink.abort().expect("this disk does not fail");
        }
    }

    /// Simulates a power failure and restart of the server.
    pub fn crash(&mut self) {
        self.arriving = None;
        self.disk.crash();
        if self.has() != LocalData::Nothing {
            tombstone::recover(&self.disk, &self.disk, TABLET).expect("this disk does not fail");
        }
    }
}

/// Returns the superblock of a tablet without rows.
pub(super) fn superblock() -> Superblock {
    let schema = Schema::new(vec![ColumnSchema::new(0, "k", DataType::Int32)], 1).expect("a key is enough");
    let (how, range) = (PartitionSchema::default(), Partition::default());
    Superblock::new(TABLET, TABLET, "t", schema, 0, how, range)
}
