//! Bootstrap: creates a replica, or opens one from its superblock and its log.
//!
//! ```text
//!   superblock: schema, rowsets, replay_from
//!   log:   r1 r2 c1 r3 c2 | r4 c3 r5 c4            r = replicate, c = commit (its outcome)
//!                         └ replay_from = 3: r3 and later are applied again, with the recorded outcome;
//!                           r5 has none: it is pending, until the group commits or truncates it
//! ```
//!
//! The consensus metadata holds this replica's term and vote. A replica that is the only voter of its group opens its
//! next term at once. It leads as soon as it is open, and commits pending operations with the no-op of its term. On a
//! full device it leads once there is space for the term.
//!
//! Order: superblock and consensus metadata are synced before anything is done because of them. The process before may
//! have failed at the last step of a store, so they may be in the cache alone.
//!
//! Replay is idempotent: a row whose change has reached a DiskRowSet is skipped, by timestamps.

use std::collections::VecDeque;
use std::sync::Arc;

use super::applier::TabletApplier;
use super::dirs::{remove_dir, wal_dir};
use super::interface::{LogWrite, OpResult, RequestId, write_log};
use super::log_payload::{self, CommitPayload};
use super::request_tracker::RequestTracker;
use super::{PendingOp, Replica, consensus_meta_store};
use crate::cfile::cache::PageCache;
use crate::config::TabletConfig;
use crate::disk::{self, Disk};
use crate::error::{Error, ErrorKind, Result};
use crate::ids::{OpId, PeerId, TabletId, Term};
use crate::note::Note;
use crate::raft::interface::kind;
use crate::raft::{BootState, ConsensusMeta, Peer, Raft, RaftConfig, RaftEffects, RaftOptions};
use crate::tablet::Tablet;
use crate::tablet::apply::ApplyMode;
use crate::tablet::flush::data_dir;
use crate::tablet::superblock::{DataState, Superblock};
use crate::time::Timestamp;
use crate::wal::{CommitEntry, LogEntry, ReplicateEntry, Wal, WalConfig, WalRecovery};

/// Identity of a replica in its group, and the options of the group.
#[derive(Debug, Clone)]
pub struct ReplicaSetup {
    /// This server as a voter, at its present address; without a port for a replica without callers.
    pub me: Peer,
    pub options: RaftOptions,
    /// Seed of random timeouts; different for each replica and start.
    pub seed: u64,
}

/// Result of opening a replica.
#[derive(Debug, Default)]
pub struct BootstrapReport {
    /// Number of operations applied again.
    pub replayed: u64,
    /// Number of operations at the end of the log that are not yet committed.
    pub pending: u64,
    /// The newest timestamp in use: the clock must be moved past it before any proposal.
    pub last_timestamp: Timestamp,
    /// Results of requests in the log, so that their retries get the same reply; in log order.
    pub completed_requests: Vec<(RequestId, Timestamp, Result<OpResult>)>,
    pub notes: Vec<Note>,
}

impl Replica {
    /// Creates a tablet. Order: its log, its consensus metadata, then its superblock, as only a superblock makes a
    /// tablet exist.
    ///
    /// `members` is the first configuration of its group; `setup.me` need not be in it. `AlreadyPresent` if the tablet
    /// exists, `Corrupt` if its superblock was lost, which a log with operations proves. Leftovers of an interrupted
    /// creation or deletion are removed.
    pub fn create(
        wal: Arc<dyn Disk>,
        data: Arc<dyn Disk>,
        meta: Superblock,
        members: RaftConfig,
        setup: ReplicaSetup,
        config: TabletConfig,
        cache: Arc<PageCache>,
    ) -> Result<(Replica, Wal)> {
        let tablet = meta.tablet;
        match Superblock::load(&*data, tablet) {
            Err(error) if error.kind == ErrorKind::NotFound => {}
            Ok(_) => return Err(Error::already_present(format!("tablet {tablet} is already here"))),
            Err(error) => return Err(error),
        }
        if !Wal::is_unused(&*wal, &wal_dir(tablet))? {
            return Err(Error::corrupt(format!(
                "tablet {tablet} has a log with operations but no superblock; bring back the data directory that has it"
            )));
        }
        remove_dir(&*wal, &wal_dir(tablet))?;
        remove_dir(&*data, &data_dir(tablet))?;
        let mut log = Wal::create(wal, &wal_dir(tablet), wal_config(&config))?;
        let created = disk::create_dir_durably(&*data, &data_dir(tablet));
        created.map_err(|e| Error::io(format_args!("make directory {}", data_dir(tablet)), &e))?;
        let mut consensus = ConsensusMeta::new(tablet, members);
        let elected = consensus.elect_only_voter(setup.me.id, 0);
        consensus_meta_store::store(&*data, &consensus)?;
        meta.store(&*data)?;
        let tablet = Arc::new(Tablet::open(&data, &meta, config, cache)?);
        log.counted_by(tablet.hold_log());
        let boot = boot(&setup, consensus, elected);
        let raft = Raft::new(setup.options, BootState { fresh: true, ..boot });
        Ok((Replica::new(data, TabletApplier::new(tablet, meta), raft), log))
    }

    /// Opens a tablet and replays its log.
    ///
    /// `NotFound` if it does not exist or is a tombstone, `Corrupt` if superblock, log and files contradict each other.
    /// A full data device does not keep a tablet from opening: a changed term or configuration is stored afterwards.
    pub fn open(
        wal: Arc<dyn Disk>,
        data: Arc<dyn Disk>,
        tablet: TabletId,
        setup: ReplicaSetup,
        config: TabletConfig,
        cache: Arc<PageCache>,
    ) -> Result<(Replica, Wal, BootstrapReport)> {
        let meta = Superblock::load(&*data, tablet)?;
        if meta.data_state != DataState::Ready {
            return Err(Error::not_found(format!("tablet {tablet} is {:?}", meta.data_state)));
        }
        let mut consensus = match consensus_meta_store::load(&*data, tablet) {
            // It is stored before the superblock, so it was lost. A replica without its vote must not take part.
            Err(error) if error.kind == ErrorKind::NotFound => return Err(Error::corrupt(error.message)),
            loaded => loaded?,
        };
        let known = consensus.clone();
        let wal_config = wal_config(&config);
        Superblock::sync_names(&*data)?;
        let mut replay = LogReplay::new(data.clone(), meta, config, cache)?;
        replay.remove_orphans()?;
        let mut feed = |entry| replay.entry(entry);
        let (mut log, recovery) = Wal::open(wal, &wal_dir(tablet), wal_config, &mut feed)?;
        let commits = replay.finish(recovery.last_op)?;
        record_recovery_marks(&replay, &recovery, commits.len());
        write_log(&mut log, commits.into_iter().map(LogWrite::Append))?;
        if let Some(committed) =
            replay.committed_config.take().filter(|config| config.opid_index > consensus.committed.opid_index)
        {
            consensus.committed = committed;
        }
        let elected = consensus.elect_only_voter(setup.me.id, recovery.last_op.term);
        let meta_stored = store_changed(&*data, &known, &mut consensus)?;
        let LogReplay { applier, pending, mut report, .. } = replay;
        let boot = BootState {
            meta_stored,
            committed: applier.last_applied,
            committed_at: applier.applied_at,
            pending: pending.iter().cloned().collect(),
            ..boot(&setup, consensus, elected.filter(|_| meta_stored))
        };
        let mut replica = Replica::new(data, applier, Raft::new(setup.options, boot));
        let (ops, last, config) = (report.replayed, recovery.last_op, replica.raft.config_index());
        report.notes.push(Note::Replayed { ops, last, config });
        replica.resume(pending)?;
        log.counted_by(replica.tablet().hold_log());
        Ok((replica, log, report))
    }

    fn new(data: Arc<dyn Disk>, applier: TabletApplier, raft: Raft) -> Replica {
        Replica {
            log_memory: applier.tablet.hold_log(),
            raft,
            raft_effects: RaftEffects::default(),
            pending: VecDeque::new(),
            requests: RequestTracker::new(applier.tablet.config(), applier.tablet.track_results()),
            auto_increment: applier.auto_increment,
            applier,
            timestamp_floor: Timestamp::MIN,
            truncated_term: None,
            failed: None,
            data,
            job_running: false,
        }
    }

    /// Registers the uncommitted operations of the log as in flight.
    fn resume(&mut self, pending: VecDeque<ReplicateEntry>) -> Result<()> {
        for entry in pending {
            let request = self.begin_replicated(&entry)?;
            self.pending.push_back(PendingOp::new(entry, request));
        }
        Ok(())
    }
}

/// State of a log replay.
struct LogReplay {
    applier: TabletApplier,
    data: Arc<dyn Disk>,
    /// Replicates without a commit entry yet.
    pending: VecDeque<ReplicateEntry>,
    /// The newest committed configuration in the log.
    committed_config: Option<RaftConfig>,
    last: OpId,
    last_timestamp: Timestamp,
    report: BootstrapReport,
}

impl LogReplay {
    fn new(
        data: Arc<dyn Disk>,
        meta: Superblock,
        config: TabletConfig,
        cache: Arc<PageCache>,
    ) -> Result<LogReplay> {
        let tablet = Arc::new(Tablet::open(&data, &meta, config, cache)?);
        Ok(LogReplay {
            applier: TabletApplier::new(tablet, meta),
            data,
            pending: VecDeque::new(),
            committed_config: None,
            last: OpId::MIN,
            last_timestamp: Timestamp::MIN,
            report: BootstrapReport::default(),
        })
    }

    /// Removes files of jobs that a crash interrupted.
    fn remove_orphans(&mut self) -> Result<()> {
        let (data, meta) = (&self.data, &self.applier.meta);
        let dir = data_dir(meta.tablet);
        let known: Vec<&str> = meta.rowsets.iter().flat_map(|rowset| rowset.files()).collect();
        let names = data.list(&dir).map_err(|e| Error::io(format_args!("list {dir}"), &e))?;
        for file in names.into_iter().map(|name| format!("{dir}/{name}")) {
            if known.contains(&file.as_str()) {
                continue;
            }
            data.remove(&file).map_err(|e| Error::io(format_args!("remove {file}"), &e))?;
            self.report.notes.push(Note::RemovedOrphan { file });
        }
        Ok(())
    }

    fn entry(&mut self, entry: LogEntry) -> Result<()> {
        match entry {
            LogEntry::Replicate(replicate) => self.replicate(replicate),
            LogEntry::Commit(commit) => self.commit(commit),
        }
    }

    fn replicate(&mut self, replicate: ReplicateEntry) -> Result<()> {
        let (op, timestamp) = (replicate.op, replicate.timestamp);
        let follows = self.last == OpId::MIN || op.index == self.last.index + 1;
        if !follows || timestamp <= self.last_timestamp {
            return Err(Error::corrupt(format!(
                "the log has operation {op} at {timestamp} after {} at {}",
                self.last, self.last_timestamp
            )));
        }
        if self.last == OpId::MIN && op.index > self.applier.meta.replay_from {
            return Err(Error::corrupt(format!(
                "the log begins with operation {op}, but operations from {} on are needed",
                self.applier.meta.replay_from
            )));
        }
        (self.last, self.last_timestamp) = (op, timestamp);
        self.pending.push_back(replicate);
        Ok(())
    }

    /// Handles a commit entry. They come in log order. One whose operation was removed by log GC is skipped.
    fn commit(&mut self, commit: CommitEntry) -> Result<()> {
        match self.pending.front() {
            Some(front) if front.op == commit.op => {}
            Some(front) if front.op.index > commit.op.index => return Ok(()),
            None if commit.op.index <= self.last.index || self.last == OpId::MIN => return Ok(()),
            _ => {
                return Err(Error::corrupt(format!(
                    "corrupt log: the commit record of {} precedes its operation",
                    commit.op
                )));
            }
        }
        let replicate = self.pending.pop_front().expect("the front was checked");
        let applied = CommitPayload::decode(&commit.payload)
            .map_err(|error| error.context(format_args!("outcome of operation {}", commit.op)))?;
        self.apply(&replicate, Some(applied)).map(drop)
    }

    /// Applies an operation again unless its effect is durable in a DiskRowSet; returns its outcome.
    fn apply(&mut self, record: &ReplicateEntry, recorded: Option<CommitPayload>) -> Result<CommitPayload> {
        if record.kind == kind::CONFIG {
            let config = RaftConfig::decode(&record.payload)
                .map_err(|error| error.context(format_args!("operation {}", record.op)))?;
            self.committed_config = Some(RaftConfig { opid_index: Some(record.op.index), ..config });
        }
        let applier = &mut self.applier;
        let needed = record.op.index >= applier.meta.replay_from;
        let applied = match (recorded, needed) {
            (Some(applied), false) => applied,
            (Some(applied @ CommitPayload::Failed(_)), true) => applied,
            (recorded, _) => {
                self.report.replayed += 1;
                let outcome = match &recorded {
                    Some(CommitPayload::Written(outcome)) => Some(outcome),
                    _ => None,
                };
                let Superblock { mrs_durable, history_mark, .. } = applier.meta;
                let mode = ApplyMode::Replay { recorded: outcome, mrs_durable, history_mark };
                let again = applier.apply_record(record, mode, &mut self.report.notes)?;
                recorded.unwrap_or(again)
            }
        };
        applier.advance_to(record.op, record.timestamp);
        if let Some(request) = log_payload::request_of(record.kind, &record.payload) {
            let result = applied.clone().into_result();
            self.report.completed_requests.push((request, record.timestamp, result));
        }
        Ok(applied)
    }

    /// Checks that the log reaches the superblock's last operation, and returns the commit entries missing up to there.
    /// Operations that a superblock mentions were committed, even if the disk failed before the log recorded their
    /// outcome.
    ///
    /// `last` is the last operation the log knows of; log GC may have removed it.
    fn finish(&mut self, last: OpId) -> Result<Vec<LogEntry>> {
        let (known, known_at) = (self.applier.meta.last_op, self.applier.meta.last_timestamp);
        if last.index < known.index {
            let what = format!("the log ends with operation {last}, but {known} was applied");
            return Err(Error::corrupt(what));
        }
        let mut commits = Vec::new();
        while let Some(record) = self.pending.pop_front_if(|record| record.op.index <= known.index) {
            let applied = self.apply(&record, None)?;
            commits.push(LogEntry::Commit(CommitEntry { op: record.op, payload: applied.encode() }));
        }
        let (applier, report) = (&mut self.applier, &mut self.report);
        if applier.last_applied.index < known.index {
            applier.advance_to(known, known_at);
        }
        applier.tablet.mvcc().restore(applier.applied_at);
        report.last_timestamp = self.last_timestamp.max(known_at);
        report.pending = self.pending.len() as u64;
        Ok(commits)
    }
}

/// Records coverage marks of this recovery.
fn record_recovery_marks(replay: &LogReplay, recovery: &WalRecovery, commits: usize) {
    let (observer, report) = (&replay.applier.tablet.config().observer, &replay.report);
    observer.mark_if(recovery.cut_bytes > 0, "bootstrap: torn tail truncated");
    observer.mark_if(recovery.void > 0, "bootstrap: truncated entries skipped");
    observer.mark_if(recovery.segments > 1, "bootstrap: several segments");
    observer.mark_if(recovery.replicates == 0, "bootstrap: empty log");
    observer.mark_if(recovery.commits > recovery.replicates, "bootstrap: commit entries without operations");
    observer.mark_if(commits > 0, "bootstrap: superblock newer than the log's commits");
    observer.mark_if(report.pending > 0, "bootstrap: uncommitted operations");
    observer.mark_if(report.replayed > 0, "bootstrap: operations replayed");
    observer.mark_if(recovery.replicates > report.replayed, "bootstrap: operations already durable");
    observer.mark_if(!report.completed_requests.is_empty(), "bootstrap: results of requests restored");
    observer.mark_if(replay.committed_config.is_some(), "bootstrap: configuration in the log");
}

/// Makes the consensus metadata of a start durable: `meta`, or the stored one if it is the same. Returns false if the
/// device has no space for it. Then the old or the new one is stored, and `meta` has the old term and vote: the only
/// voter starts its election as a running replica does, which waits for space.
fn store_changed(data: &dyn Disk, stored: &ConsensusMeta, meta: &mut ConsensusMeta) -> Result<bool> {
    if *stored == *meta {
        return consensus_meta_store::sync(data, meta.tablet).map(|()| true);
    }
    match consensus_meta_store::store(data, meta) {
        Err(error) if error.is_no_space() => {
            (meta.term, meta.voted_for) = (stored.term, stored.voted_for);
            Ok(false)
        }
        result => result.map(|()| true),
    }
}

/// Boot state of a group with an empty log.
fn boot(setup: &ReplicaSetup, meta: ConsensusMeta, elected: Option<(Term, Option<PeerId>)>) -> BootState {
    BootState {
        me: setup.me.id,
        address: (setup.me.port != 0).then(|| (setup.me.host.clone(), setup.me.port)),
        meta,
        meta_stored: true,
        elected,
        fresh: false,
        committed: OpId::MIN,
        committed_at: Timestamp::MIN,
        pending: Vec::new(),
        seed: setup.seed,
    }
}

fn wal_config(config: &TabletConfig) -> WalConfig {
    WalConfig {
        segment_bytes_max: config.wal_segment_bytes_max,
        preallocate: config.wal_preallocate,
        compress: config.wal_compress,
    }
}
