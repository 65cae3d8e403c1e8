//! The replica of a trial, its disks, and the leader that is made up for it.
//!
//! ```text
//! leader's log   1 2 3 4 5 6 7          terms rise; what is not committed may be replaced
//!                    │   └ committed
//!                    └──► Update ──► Replica ──► Wal, superblock, files on two MemDisks
//! ```
//!
//! The leader knows all that a majority has. After a restart it sends what the replica's log lacks.

use std::sync::Arc;

use bytes::Bytes;
use engine::cfile::cache::PageCache;
use engine::config::TabletConfig;
use engine::disk::Disk;
use engine::disk::mem::MemDisk;
use engine::error::{Error, Result};
use engine::ids::{OpId, TableId, TabletId, Uuid};
use engine::raft::interface::UpdateRequest;
use engine::raft::{Peer, RaftConfig, RaftEvent, RaftOptions, RaftReply};
use engine::replica::{
    Job, JobKind, JobStep, Replica, ReplicaEffects, ReplicaSetup, consensus_meta_store, wal_dir, write_log,
};
use engine::schema::Schema;
use engine::schema::partition::{Partition, PartitionSchema};
use engine::tablet::Tablet;
use engine::tablet::flush::data_dir;
use engine::tablet::superblock::Superblock;
use engine::time::{ClockReading, Timestamp};
use engine::wal::{ReplicateEntry, Wal};

const TABLET: TabletId = Uuid([7; 16]);
const TABLE: TableId = Uuid([9; 16]);
const ME: Uuid = Uuid([0xfe; 16]);
const LEADER: Uuid = Uuid([0xff; 16]);
/// Bytes of the page cache: few, so that pages are read again.
const CACHE_BYTES: usize = 64 << 10;
/// Timestamp before the first operation.
const BEGINNING: u64 = 100;

/// A replica and its leader.
pub(super) struct TrialReplica {
    pub(super) wal_disk: MemDisk,
    pub(super) data_disk: MemDisk,
    config: TabletConfig,
    open: Option<(Replica, Wal)>,
    term: u64,
    /// The leader's log from index 1 on.
    log: Vec<ReplicateEntry>,
    /// Index up to which the leader has committed.
    committed: u64,
    /// Each change of leaders that replaced entries: the term before it, and the index up to which entries stayed.
    replaced: Vec<(u64, u64)>,
    clock: u64,
    /// Index up to which the replica's log was synced.
    durable: u64,
    /// Number of the data disk's operation that is to fail, or that has failed in the last step of a job.
    failed_op: Option<u64>,
    /// Number of starts.
    opened: u64,
}

impl TrialReplica {
    pub(super) fn create(
        seed: u64,
        schema: Schema,
        partition: PartitionSchema,
        config: TabletConfig,
    ) -> Result<TrialReplica> {
        let mut trial = TrialReplica {
            wal_disk: MemDisk::new(seed),
            data_disk: MemDisk::new(seed ^ 1),
            config,
            open: None,
            term: 1,
            log: Vec::new(),
            committed: 0,
            replaced: Vec::new(),
            clock: BEGINNING,
            durable: 0,
            failed_op: None,
            opened: 0,
        };
        let meta = Superblock::new(TABLET, TABLE, "trial", schema, 0, partition, Partition::default());
        let members = RaftConfig::initial(vec![Peer::voter(LEADER, "", 0)]);
        let (wal, data) = trial.disks();
        let (config, cache) = (trial.config.clone(), PageCache::new(CACHE_BYTES));
        trial.open = Some(Replica::create(wal, data, meta, members, setup(), config, cache)?);
        Ok(trial)
    }

    fn disks(&self) -> (Arc<dyn Disk>, Arc<dyn Disk>) {
        (Arc::new(self.wal_disk.clone()), Arc::new(self.data_disk.clone()))
    }

    fn replica(&self) -> Result<&Replica> {
        self.open.as_ref().map(|(replica, _)| replica).ok_or_else(closed)
    }

    pub(super) fn tablet(&self) -> Result<&Arc<Tablet>> {
        Ok(self.replica()?.tablet())
    }

    /// Returns the number of starts after the first one.
    pub(super) fn opened(&self) -> u64 {
        self.opened
    }

    /// Returns the first operation that a restart needs, the last one that is applied, and the last one in the log.
    pub(super) fn log_needs(&self) -> Result<(u64, u64, u64)> {
        let replica = self.replica()?;
        Ok((replica.log_keep_from(), replica.last_applied().index, replica.last_op().index))
    }

    /// Returns the timestamp of the last committed operation.
    pub(super) fn committed_at(&self) -> u64 {
        self.log[..self.committed as usize].last().map_or(BEGINNING, |entry| entry.timestamp.0)
    }

    /// Returns the number of entries in the leader's log.
    pub(super) fn appended(&self) -> u64 {
        self.log.len() as u64
    }

    pub(super) fn timestamp(&self, index: u64) -> u64 {
        self.log[index as usize - 1].timestamp.0
    }

    /// Returns kind and payload of an operation in the leader's log.
    pub(super) fn payload(&self, index: u64) -> (u8, Bytes) {
        let entry = &self.log[index as usize - 1];
        (entry.kind, entry.payload.clone())
    }

    /// Appends an operation to the leader's log alone.
    pub(super) fn append(&mut self, (kind, payload): (u8, Bytes), ticks: u64) {
        self.clock += ticks.max(1);
        let op = OpId { term: self.term, index: self.log.len() as u64 + 1 };
        self.log.push(ReplicateEntry { op, timestamp: Timestamp(self.clock), kind, payload });
    }

    /// Lets another leader begin whose log ends with the last committed operation.
    pub(super) fn replace_leader(&mut self) {
        self.replaced.push((self.term, self.committed));
        self.log.truncate(self.committed as usize);
        self.durable = self.durable.min(self.committed);
        self.term += 1;
    }

    /// Sends what the replica lacks, and the index `committed`.
    pub(super) fn replicate(&mut self, committed: u64) -> Result<()> {
        self.committed = committed.max(self.committed);
        let preceding = self.preceding()?;
        let request = UpdateRequest {
            tablet: TABLET,
            caller: LEADER,
            dest: ME,
            term: self.term,
            sent: 0,
            preceding,
            entries: self.log[preceding.index as usize..].to_vec(),
            committed: self.committed,
            all_replicated: 0,
            safe_time: None,
        };
        self.step(RaftEvent::Update { ticket: 0, request })
    }

    /// Returns the last entry that the replica has of the leader's log.
    fn preceding(&self) -> Result<OpId> {
        let last = self.replica()?.last_op();
        let stayed = self.replaced.iter().filter(|(term, _)| *term >= last.term).map(|(_, index)| *index);
        let index = stayed.min().unwrap_or(last.index).min(last.index);
        Ok(self.log[..index as usize].last().map_or(OpId::MIN, |entry| entry.op))
    }

    /// Makes the replica's log durable.
    pub(super) fn sync(&mut self) -> Result<()> {
        let (_, wal) = self.open.as_mut().ok_or_else(closed)?;
        wal.sync()?;
        let last = wal.last_op();
        self.durable = last.index.min(self.appended());
        if last == OpId::MIN { Ok(()) } else { self.step(RaftEvent::Persisted(last)) }
    }

    /// Removes log segments that a restart does not need.
    pub(super) fn gc(&mut self) -> Result<()> {
        let (replica, wal) = self.open.as_mut().ok_or_else(closed)?;
        wal.gc(replica.log_keep_from()).map(drop)
    }

    fn step(&mut self, event: RaftEvent) -> Result<()> {
        let (replica, wal) = self.open.as_mut().ok_or_else(closed)?;
        let mut out = ReplicaEffects::default();
        let clock = Timestamp(self.clock);
        replica.step(ClockReading::default(), event, &mut || clock, &mut out);
        write_log(wal, out.log)?;
        replica.failure().map_or(Ok(()), |error| Err(error.clone()))?;
        for (_, reply) in out.replies {
            if let RaftReply::Update(response) = reply
                && let Some(error) = response.error
            {
                return Err(Error::corrupt(format!("an update is refused: {}", error.message)));
            }
        }
        let Some((number, meta)) = out.meta else { return Ok(()) };
        consensus_meta_store::store(&self.data_disk, &meta)?;
        self.step(RaftEvent::MetaPersisted(number))
    }

    /// Starts a job; `None` if there is nothing for it to do.
    pub(super) fn start_job(&mut self, kind: JobKind) -> Result<Option<Job>> {
        let (replica, _) = self.open.as_mut().ok_or_else(closed)?;
        replica.start_job(kind)
    }

    pub(super) fn end_job(&mut self, job: Job) -> Result<()> {
        let (replica, _) = self.open.as_mut().ok_or_else(closed)?;
        replica.end_job(job, None, &mut ReplicaEffects::default());
        replica.failure().map_or(Ok(()), |error| Err(error.clone()))
    }

    /// Lets the `op`-th operation of the data disk fail within the next step of a job.
    pub(super) fn fail_op(&mut self, op: u64, errno: i32) {
        self.failed_op = Some(self.data_disk.op_count() + op);
        self.data_disk.fail_op(op, errno);
    }

    /// Lets no operation fail.
    pub(super) fn fail_none(&mut self) {
        self.failed_op = None;
    }

    /// Returns true if an operation of the last step of a job failed.
    pub(super) fn has_failed_op(&self) -> bool {
        self.failed_op.is_some_and(|op| self.data_disk.op_count() >= op)
    }

    /// Ends a job that failed; a replica that failed with it is restarted.
    pub(super) fn give_up_job(&mut self, job: Job, error: Error) -> Result<()> {
        let (replica, wal) = self.open.as_mut().ok_or_else(closed)?;
        replica.end_job(job, Some(error), &mut ReplicaEffects::default());
        let has_failed = replica.failure().is_some() || wal.failure().is_some();
        if has_failed { self.restart() } else { Ok(()) }
    }

    /// Runs the next step of a job; returns false at its end.
    pub(super) fn job_step(&mut self, job: &mut Job) -> Result<bool> {
        let stepped = job.step();
        if self.failed_op.is_some() {
            self.data_disk.end_faults();
            self.failed_op = self.failed_op.filter(|_| self.has_failed_op());
        }
        match stepped? {
            JobStep::More => {}
            JobStep::SyncLog => self.sync()?,
            JobStep::Turn => {
                let (replica, _) = self.open.as_mut().ok_or_else(closed)?;
                replica.job_turn(job, &mut ReplicaEffects::default())?;
            }
            JobStep::Done => return Ok(false),
        }
        Ok(true)
    }

    /// Closes the replica and opens it from its files, as after a kill.
    pub(super) fn restart(&mut self) -> Result<()> {
        let last = self.open.take().map_or(0, |(_, wal)| wal.last_op().index);
        self.reopen(last.min(self.appended()))
    }

    /// Closes the replica, cuts the power of both disks and opens it. `scattered`: any pages of unsynced writes stay.
    pub(super) fn crash(&mut self, scattered: bool) -> Result<()> {
        self.open = None;
        for disk in [&self.wal_disk, &self.data_disk] {
            if scattered {
                disk.scatter_unsynced();
            }
            disk.crash();
        }
        self.reopen(self.durable)
    }

    /// Closes the replica.
    pub(super) fn close(&mut self) {
        self.open = None;
    }

    /// Opens the replica, whose log must have the entries up to an index, and lets the leader send the others.
    fn reopen(&mut self, kept: u64) -> Result<()> {
        let last = self.open_files()?;
        if last < kept {
            return Err(Error::corrupt(format!(
                "the log ends with operation {last}, although it had {kept}"
            )));
        }
        self.catch_up()
    }

    /// Opens the replica from its files; returns the index of the last operation in its log.
    pub(super) fn open_files(&mut self) -> Result<u64> {
        let (wal, data) = self.disks();
        let (config, cache) = (self.config.clone(), PageCache::new(CACHE_BYTES));
        let (replica, wal, _) = Replica::open(wal, data, TABLET, setup(), config, cache)?;
        let last = replica.last_op().index;
        self.opened += 1;
        self.open = Some((replica, wal));
        Ok(last)
    }

    /// Lets the leader send what the replica lacks.
    pub(super) fn catch_up(&mut self) -> Result<()> {
        self.replicate(self.committed)
    }

    /// Returns the index up to which the replica's log is durable.
    pub(super) fn durable(&self) -> u64 {
        self.durable
    }

    /// Returns true if one of the disks has lost its power.
    pub(super) fn lost_power(&self) -> bool {
        self.wal_disk.lost_power() || self.data_disk.lost_power()
    }

    /// Returns the files of the log: its segments in order, then others.
    pub(super) fn log_files(&self) -> Vec<String> {
        files(&self.wal_disk, &wal_dir(TABLET))
    }

    pub(super) fn row_files(&self) -> Vec<String> {
        files(&self.data_disk, &data_dir(TABLET))
    }

    /// Returns the bytes of all files of rows and changes.
    pub(super) fn row_bytes(&self) -> u64 {
        let bytes = |path: &String| self.data_disk.open(path).and_then(|file| file.len()).unwrap_or_default();
        self.row_files().iter().map(bytes).sum()
    }
}

fn files(disk: &MemDisk, dir: &str) -> Vec<String> {
    disk.list(dir).unwrap_or_default().into_iter().map(|name| format!("{dir}/{name}")).collect()
}

fn setup() -> ReplicaSetup {
    ReplicaSetup { me: Peer::voter(ME, "", 0), options: RaftOptions::default(), seed: 0 }
}

fn closed() -> Error {
    Error::not_ready("the replica is closed")
}
