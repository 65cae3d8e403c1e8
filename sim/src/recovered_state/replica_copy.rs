//! A replica that is opened from copies of a server's disks, where nothing else runs.

use std::sync::Arc;

use engine::cfile::cache::PageCache;
use engine::config::TabletConfig;
use engine::disk::Disk;
use engine::disk::mem::MemDisk;
use engine::error::Result;
use engine::ids::{TabletId, Uuid};
use engine::memory::MemoryHandle;
use engine::observer::ObserverHandle;
use engine::raft::interface::UpdateRequest;
use engine::raft::{Peer, RaftConfig, RaftEvent, RaftOptions};
use engine::replica::{JobKind, JobStep, Replica, ReplicaEffects, ReplicaSetup, wal_dir};
use engine::tablet::Tablet;
use engine::time::{ClockReading, Timestamp};
use engine::wal::{LogEntry, Wal, WalConfig};

/// Bytes of the page cache of a server's copies.
const CACHE_BYTES: usize = 1 << 20;

/// Server that opens the copies, and the leader of which it is told. Neither is a member of any group.
const OPENER: Uuid = Uuid([0xfe; 16]);
const LEADER: Uuid = Uuid([0xff; 16]);

/// Copies of the disks of a server, and how it opens tablets.
pub(super) struct DiskCopies {
    wal: Arc<dyn Disk>,
    data: Arc<dyn Disk>,
    cache: Arc<PageCache>,
    config: TabletConfig,
}

impl DiskCopies {
    /// Copies the disks. Opened tablets tell no observer and no tracker of memory.
    pub(super) fn of(wal: &MemDisk, data: &MemDisk, config: &TabletConfig) -> DiskCopies {
        let (observer, memory) = (ObserverHandle::default(), MemoryHandle::default());
        DiskCopies {
            wal: Arc::new(wal.image()),
            data: Arc::new(data.image()),
            cache: PageCache::new(CACHE_BYTES),
            config: TabletConfig { observer, memory, ..config.clone() },
        }
    }
}

/// Operations in the log of a replica up to the last one that is applied.
#[derive(Debug, Clone, Default)]
pub(super) struct LogOps {
    /// Index of the last one; 0 without any.
    pub(super) last_index: u64,
    pub(super) timestamps: Vec<Timestamp>,
}

/// A replica opened from copies.
pub(super) struct ReplicaCopy<'a> {
    disks: &'a DiskCopies,
    replica: Replica,
    wal: Wal,
    pub(super) ops: LogOps,
}

impl<'a> ReplicaCopy<'a> {
    /// Opens the replica as a follower, and lets its leader report operations up to the timestamp `applied` as
    /// committed: the log of an idle replica may end before the commit entries of its last operations.
    pub(super) fn open(
        disks: &'a DiskCopies,
        tablet: TabletId,
        applied: Timestamp,
    ) -> Result<ReplicaCopy<'a>> {
        let ops = log_ops(disks, tablet, applied)?;
        let setup = ReplicaSetup { me: Peer::voter(OPENER, "", 0), options: RaftOptions::default(), seed: 0 };
        let (wal, data, cache) = (disks.wal.clone(), disks.data.clone(), disks.cache.clone());
        let (mut replica, wal, report) =
            Replica::open(wal, data, tablet, setup, disks.config.clone(), cache)?;
        commit(&mut replica, tablet, ops.last_index, report.last_timestamp);
        replica.failure().map_or(Ok(()), |error| Err(error.clone()))?;
        Ok(ReplicaCopy { disks, replica, wal, ops })
    }

    /// Closes the replica and opens it again from its files.
    pub(super) fn reopen(self) -> Result<ReplicaCopy<'a>> {
        let (disks, tablet) = (self.disks, self.tablet().tablet);
        let applied = self.tablet().mvcc().last_applied();
        drop(self);
        ReplicaCopy::open(disks, tablet, applied)
    }

    pub(super) fn tablet(&self) -> &Tablet {
        self.replica.tablet()
    }

    /// Returns the term and the committed configuration.
    pub(super) fn consensus(&self) -> (u64, &RaftConfig) {
        let consensus = self.replica.consensus_meta();
        (consensus.term, &consensus.committed)
    }

    /// Runs a maintenance job to its end; false if there was nothing for it to do.
    pub(super) fn run_job(&mut self, kind: JobKind) -> Result<bool> {
        let Some(mut job) = self.replica.start_job(kind)? else { return Ok(false) };
        let mut out = ReplicaEffects::default();
        loop {
            match job.step()? {
                JobStep::More => {}
                JobStep::SyncLog => self.wal.sync()?,
                JobStep::Turn => self.replica.job_turn(&mut job, &mut out)?,
                JobStep::Done => break,
            }
        }
        self.replica.end_job(job, None, &mut out);
        self.replica.failure().map_or(Ok(true), |error| Err(error.clone()))
    }
}

/// Returns a tablet's columns, version, table name and extra configuration as text.
pub(super) fn schema_text(tablet: &Tablet) -> String {
    let schema = tablet.table_schema();
    let (columns, version) = (&schema.schema, schema.version);
    format!("{} version {version}: {columns:?} {:?}", schema.table_name, schema.extra)
}

/// Returns the operations of the log with timestamps up to `until`.
fn log_ops(disks: &DiskCopies, tablet: TabletId, until: Timestamp) -> Result<LogOps> {
    let config = WalConfig {
        segment_bytes_max: disks.config.wal_segment_bytes_max,
        preallocate: disks.config.wal_preallocate,
        compress: disks.config.wal_compress,
    };
    let mut ops = LogOps::default();
    let mut feed = |entry| {
        if let LogEntry::Replicate(entry) = entry
            && entry.timestamp <= until
        {
            ops.last_index = entry.op.index;
            ops.timestamps.push(entry.timestamp);
        }
        Ok(())
    };
    Wal::open(disks.wal.clone(), &wal_dir(tablet), config, &mut feed)?;
    Ok(ops)
}

/// Applies the operations of the log up to an index, as at the request of a leader.
fn commit(replica: &mut Replica, tablet: TabletId, committed: u64, newest: Timestamp) {
    let request = UpdateRequest {
        tablet,
        caller: LEADER,
        dest: OPENER,
        term: replica.consensus_meta().term,
        sent: 0,
        preceding: replica.last_op(),
        entries: Vec::new(),
        committed,
        all_replicated: 0,
        safe_time: None,
    };
    let event = RaftEvent::Update { ticket: 0, request };
    let mut out = ReplicaEffects::default();
    replica.step(ClockReading::default(), event, &mut || newest.next(), &mut out);
}
