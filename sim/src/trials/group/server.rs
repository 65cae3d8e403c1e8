//! A server of a group trial: its disks, its replica or what is left of one, and its clock.

use std::collections::BTreeMap;
use std::sync::Arc;

use engine::cfile::cache::PageCache;
use engine::config::TabletConfig;
use engine::disk::Disk;
use engine::disk::mem::MemDisk;
use engine::error::{Error, ErrorKind, Result};
use engine::ids::OpId;
use engine::raft::interface::{LogReadRequest, VoteRequest, VoteResponse};
use engine::raft::{ConfigPosition, ConsensusMeta, RaftConfig, RaftEvent, RaftOptions, decide_vote};
use engine::replica::copy::{LocalData, LocalReplica, RejectedSource};
use engine::replica::{
    LogWrite, OpResult, Replica, ReplicaEffects, ReplicaEvent, ReplicaSetup, consensus_meta_store, tombstone,
};
use engine::tablet::superblock::{DataState, Superblock};
use engine::time::{ClockReading, HybridClock, Timestamp};
use engine::wal::Wal;

use super::copy_state::CopyState;
use super::ids::{TABLET, id_of, peer_of};
use super::links::ReplyTarget;
use super::published::PublishedStatus;

/// Bytes of the page cache: few, so that pages are read again.
const CACHE_BYTES: usize = 64 << 10;
/// Microseconds that a timestamp may be ahead of a clock: any.
const AHEAD_MICROS: u64 = 1 << 40;

/// A server.
pub(super) struct TrialServer {
    pub number: usize,
    pub wal_disk: MemDisk,
    pub data_disk: MemDisk,
    config: TabletConfig,
    pub is_up: bool,
    pub open: Option<(Replica, Wal)>,
    /// True if its replica could not be opened.
    pub failed: bool,
    /// True if a file of it was damaged since it was last whole.
    pub rotten: bool,
    pub copy: Option<CopyState>,
    /// Number of starts.
    pub life: u64,
    pub clock: HybridClock,
    pub skew_micros: u64,
    pub out: ReplicaEffects,
    /// Writes of the log and of metadata that the disk has yet to do, and reads of the log.
    pub unwritten: Vec<LogWrite>,
    pub meta: Option<(u64, ConsensusMeta)>,
    pub reads: Vec<LogReadRequest>,
    /// True while its log waits for the disk.
    pub stalled: bool,
    /// True while its log's device has little space, and true if a write has waited for space since.
    pub is_full: bool,
    pub has_waited: bool,
    /// True if its log has operations that are not synced.
    pub unsynced: bool,
    /// Number of its replicas that were deleted, and of those that were closed.
    pub deleted: u64,
    pub closed: u64,
    pub tickets: u64,
    pub reply_targets: BTreeMap<u64, ReplyTarget>,
    /// The last operation of its log, as far as the server knows without a running replica.
    pub known_last: Option<OpId>,
    pub rejected: Option<RejectedSource>,
    /// Results of requests, with which retries are answered.
    pub results: BTreeMap<i64, OpResult>,
    /// True once it is lost permanently.
    pub is_lost: bool,
    /// Index up to which it has acknowledged its log to a leader.
    pub acknowledged: u64,
    /// The status that its replica has published since it was opened.
    pub published: Option<PublishedStatus>,
    /// The ancient history mark, which a server derives from its clock again after a start.
    pub mark: u64,
}

impl TrialServer {
    pub(super) fn new(number: usize, seed: u64, config: TabletConfig, skew_micros: u64) -> TrialServer {
        TrialServer {
            number,
            wal_disk: MemDisk::new(seed),
            data_disk: MemDisk::new(seed ^ 1),
            config,
            is_up: true,
            open: None,
            failed: false,
            rotten: false,
            copy: None,
            life: 1,
            clock: HybridClock::new(AHEAD_MICROS),
            skew_micros,
            out: ReplicaEffects::default(),
            unwritten: Vec::new(),
            meta: None,
            reads: Vec::new(),
            stalled: false,
            is_full: false,
            has_waited: false,
            unsynced: false,
            deleted: 0,
            closed: 0,
            tickets: 0,
            reply_targets: BTreeMap::new(),
            known_last: None,
            rejected: None,
            results: BTreeMap::new(),
            is_lost: false,
            acknowledged: 0,
            published: None,
            mark: 0,
        }
    }

    pub(super) fn disks(&self) -> (Arc<dyn Disk>, Arc<dyn Disk>) {
        (Arc::new(self.wal_disk.clone()), Arc::new(self.data_disk.clone()))
    }

    fn setup(&self) -> ReplicaSetup {
        let seed = (self.number as u64) << 32 | self.life;
        ReplicaSetup { me: peer_of(self.number), options: RaftOptions::tiny(), seed }
    }

    /// Creates a replica of a new tablet.
    pub(super) fn create(&mut self, meta: Superblock, members: RaftConfig) -> Result<()> {
        let (wal, data) = self.disks();
        let (config, cache) = (self.config.clone(), PageCache::new(CACHE_BYTES));
        self.open = Some(Replica::create(wal, data, meta, members, self.setup(), config, cache)?);
        Ok(())
    }

    /// Starts the process: completes what a crash interrupted, and opens the replica if it is ready.
    pub(super) fn start(&mut self, now: ClockReading) -> Result<()> {
        self.life += 1;
        self.is_up = true;
        self.clock = HybridClock::new(AHEAD_MICROS);
        let (wal, data) = self.disks();
        match tombstone::recover(&*wal, &*data, TABLET) {
            Ok(Some(meta)) if meta.data_state == DataState::Ready => self.open_files(now),
            Ok(Some(meta)) => {
                self.known_last = meta.tombstone_last_op;
                Ok(())
            }
            Ok(None) => Ok(()),
            Err(error) if error.kind == ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Opens the replica from its files, and lets it take part in its group.
    pub(super) fn open_files(&mut self, now: ClockReading) -> Result<()> {
        let (wal, data) = self.disks();
        let (config, cache) = (self.config.clone(), PageCache::new(CACHE_BYTES));
        let (replica, wal, report) = Replica::open(wal, data, TABLET, self.setup(), config, cache)?;
        self.clock.pass(report.last_timestamp);
        let completed = report.completed_requests.into_iter();
        self.results =
            completed.filter_map(|(request, _, result)| Some((request.seq, result.ok()?))).collect();
        let last = replica.last_op();
        if last.index < self.acknowledged {
            let acknowledged = self.acknowledged;
            return Err(Error::corrupt(format!(
                "the log ends with {last}, although it was acknowledged up to {acknowledged}"
            )));
        }
        self.open = Some((replica, wal));
        self.published = None;
        self.begin(now);
        Ok(())
    }

    /// Lets the open replica take part in its group.
    pub(super) fn begin(&mut self, now: ClockReading) {
        let Some((replica, _)) = &mut self.open else { return };
        let clock = &mut self.clock;
        clock.pass(replica.tablet().mvcc().newest());
        replica.start(now, &mut || clock.now(now.wall), &mut self.out);
        replica.tablet().raise_history_mark(Timestamp(self.mark));
    }

    pub(super) fn replica(&self) -> Option<&Replica> {
        self.open.as_ref().map(|(replica, _)| replica)
    }

    /// Returns the replica if it runs and has not failed.
    pub(super) fn running(&self) -> Option<&Replica> {
        self.replica().filter(|replica| self.is_up && replica.failure().is_none())
    }

    pub(super) fn step(&mut self, now: ClockReading, event: impl Into<ReplicaEvent>) {
        let Some((replica, _)) = &mut self.open else { return };
        let clock = &mut self.clock;
        replica.step(now, event, &mut || clock.now(now.wall), &mut self.out);
        clock.pass(self.out.seen);
    }

    pub(super) fn lost_power(&self) -> bool {
        self.wal_disk.lost_power() || self.data_disk.lost_power()
    }

    /// Ends the process. Without `power` what was not synced is lost; `scattered`: any pages of it stay.
    pub(super) fn end(&mut self, power: bool, scattered: bool) {
        self.close();
        (self.copy, self.is_up) = (None, false);
        (self.known_last, self.rejected, self.failed) = (None, None, false);
        for disk in [&self.wal_disk, &self.data_disk] {
            match power {
                true => disk.end_process(),
                false => {
                    if scattered {
                        disk.scatter_unsynced();
                    }
                    disk.crash();
                }
            }
        }
    }

    /// Closes the replica, of which only files are left then.
    pub(super) fn close(&mut self) {
        self.closed += 1;
        if let Some((replica, _)) = self.open.take() {
            self.known_last = Some(replica.last_op());
        }
        self.out = ReplicaEffects::default();
        (self.unwritten, self.meta, self.reads) = (Vec::new(), None, Vec::new());
        (self.stalled, self.unsynced) = (false, false);
    }

    /// Returns the state that a copy would replace.
    pub(super) fn local(&self) -> Result<LocalReplica> {
        let server = id_of(self.number);
        let stored = match Superblock::load(&self.data_disk, TABLET) {
            Err(error) if error.kind == ErrorKind::NotFound => {
                return Ok(LocalReplica::nothing(server, TABLET));
            }
            loaded => loaded?,
        };
        let has = match (&self.open, stored.data_state) {
            (Some((replica, _)), _) if replica.failure().is_none() => LocalData::Replica,
            (Some(_), _) | (None, DataState::Ready) => LocalData::Failed,
            (None, _) => LocalData::Tombstone,
        };
        let last = self.replica().map(|replica| replica.last_op());
        let term = consensus_meta_store::load_known(&self.data_disk, TABLET)?.map_or(0, |meta| meta.term);
        Ok(LocalReplica {
            server,
            tablet: TABLET,
            has,
            last_op: last.or(self.known_last),
            at_least: stored.last_op,
            term,
            rejected: self.rejected,
        })
    }

    /// Decides about a vote by what is stored, where no replica runs.
    pub(super) fn stored_vote(&mut self, request: &VoteRequest) -> Result<VoteResponse> {
        let stored = Superblock::load(&self.data_disk, TABLET)?;
        if !matches!(stored.data_state, DataState::Tombstoned | DataState::Copying) || self.failed {
            return Err(Error::not_ready("the replica has failed"));
        }
        let known = consensus_meta_store::load(&self.data_disk, TABLET)?;
        self.rejected = None;
        let decision = decide_vote(&known, stored.tombstone_last_op, request, false);
        if let Some(changed) = &decision.meta {
            consensus_meta_store::store(&self.data_disk, changed)?;
        }
        Ok(decision.response(id_of(self.number), &known))
    }

    /// Deletes the replica to a tombstone, if an order that knows the configuration `cas` may.
    pub(super) fn delete(&mut self, now: ClockReading, cas: ConfigPosition) -> Result<()> {
        let stored = || consensus_meta_store::load_known(&self.data_disk, TABLET);
        let known = match self.replica() {
            Some(replica) => replica.status(now).active_position,
            None => ConfigPosition::at(stored()?.map_or(-1, |meta| meta.committed.kudu_index())),
        };
        let is_here = self.open.is_some() || self.failed;
        if !is_here || self.copy.is_some() || !tombstone::may_delete(known, Some(cas)) {
            return Ok(());
        }
        self.close();
        tombstone::tombstone(&self.wal_disk, &self.data_disk, TABLET, self.known_last)?;
        (self.failed, self.acknowledged) = (false, 0);
        self.deleted += 1;
        Ok(())
    }

    /// Sends a tick if one is due.
    pub(super) fn tick(&mut self, now: ClockReading) {
        if self.replica().is_some_and(|replica| replica.deadline() <= now.mono) {
            self.step(now, RaftEvent::Tick);
        }
    }
}

/// A member's reply that it has no replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MissingReplica {
    /// Life of the leader that got the reply.
    pub(super) life: u64,
    /// Number of the member's replicas that were deleted until then.
    pub(super) deleted: u64,
}
