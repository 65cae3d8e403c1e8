//! Making a replica, and bringing one back from its superblock and its log.
//!
//! ```text
//!   superblock: schema, rowsets, replay_from
//!   log:   r1 r2 c1 r3 c2 | r4 c3 r5 c4            r = replicate, c = commit (what applying it did)
//!                         └ replay_from = 3: r3 and later are applied again, as their commit says;
//!                           r5 has none: it is pending, until the group has committed it or taken it back
//! ```
//!
//! The consensus metadata says which term this replica is in and for whom it voted. A replica that is the only voter of
//! its group opens its next term at once: it leads as soon as it is open, and commits what is pending with the no-op
//! that begins its term.
//!
//! Replaying is idempotent: a row whose effect has reached a DiskRowSet is passed over, by timestamps.

use std::collections::VecDeque;
use std::sync::Arc;

use super::applier::Applier;
use super::payload::{self, Applied};
use super::requests::Requests;
use super::tombstone::remove_dir;
use super::types::{OpResult, RequestId};
use super::{Pending, Replica, cmeta};
use crate::cfile::cache::PageCache;
use crate::config::TabletConfig;
use crate::disk::{self, Disk};
use crate::error::{Error, ErrorKind, Result};
use crate::ids::{OpId, PeerId, TabletId, Term};
use crate::note::Note;
use crate::raft::message::kind;
use crate::raft::{Boot, Config, ConsensusMeta, Output, Peer, Raft, RaftOptions};
use crate::tablet::Tablet;
use crate::tablet::apply::Mode;
use crate::tablet::flush::data_dir;
use crate::tablet::meta::{DataState, TabletMeta};
use crate::time::Timestamp;
use crate::wal::{Commit, Entry, Replicate, Wal, WalConfig, WalRecovery};

/// Who a replica is in its group, and how the group is to be run.
#[derive(Debug, Clone)]
pub struct GroupSetup {
    /// This server as a voter. A tablet that was made before groups were written down has this one member.
    pub me: Peer,
    pub options: RaftOptions,
    /// For the random part of timeouts; another one for each replica and each life.
    pub seed: u64,
}

/// What opening a replica found.
#[derive(Debug, Default)]
pub struct BootstrapReport {
    /// Operations applied again.
    pub replayed: u64,
    /// Operations at the end of the log that the group has yet to decide on.
    pub pending: u64,
    /// The newest timestamp in use: the clock must be moved past it before anything is proposed.
    pub last_timestamp: Timestamp,
    /// Requests that the log still remembers, so that their retries get the same answer; in the log's order.
    pub completed_requests: Vec<(RequestId, Timestamp, Result<OpResult>)>,
    pub notes: Vec<Note>,
}

impl Replica {
    /// Makes a tablet: its log, its consensus metadata, then its superblock, which is what makes it exist.
    ///
    /// `members` is the first configuration of its group; `setup.me` need not be in it. `AlreadyPresent` if there is
    /// one. What an interrupted creation or deletion left behind is removed.
    pub fn create(
        wal: Arc<dyn Disk>,
        data: Arc<dyn Disk>,
        meta: TabletMeta,
        members: Config,
        setup: GroupSetup,
        config: TabletConfig,
        cache: Arc<PageCache>,
    ) -> Result<(Replica, Wal)> {
        let tablet = meta.tablet;
        match TabletMeta::load(&*data, tablet) {
            Err(error) if error.kind == ErrorKind::NotFound => {}
            Ok(_) => return Err(Error::already_present(format!("tablet {tablet} is already here"))),
            Err(error) => return Err(error),
        }
        remove_dir(&*wal, &wal_dir(tablet))?;
        remove_dir(&*data, &data_dir(tablet))?;
        let mut log = Wal::create(wal, &wal_dir(tablet), wal_config(&config))?;
        let made = disk::create_dir_durably(&*data, &data_dir(tablet));
        made.map_err(|e| Error::io(format_args!("make directory {}", data_dir(tablet)), &e))?;
        let mut group = ConsensusMeta::new(tablet, members);
        let elected = group.elect_only_voter(setup.me.id, 0);
        cmeta::store(&*data, &group)?;
        meta.store(&*data)?;
        let tablet = Arc::new(Tablet::open(&data, &meta, config, cache)?);
        log.counted_by(tablet.hold_log());
        let boot = boot(&setup, group, elected);
        let raft = Raft::new(setup.options, Boot { fresh: true, ..boot });
        Ok((Replica::new(data, Applier::new(tablet, meta), raft), log))
    }

    /// Opens a tablet and replays its log.
    ///
    /// `NotFound` if there is none or its data is gone on purpose, `Corrupt` if superblock, log and files
    /// contradict each other.
    pub fn open(
        wal: Arc<dyn Disk>,
        data: Arc<dyn Disk>,
        tablet: TabletId,
        setup: GroupSetup,
        config: TabletConfig,
        cache: Arc<PageCache>,
    ) -> Result<(Replica, Wal, BootstrapReport)> {
        let meta = TabletMeta::load(&*data, tablet)?;
        if meta.data_state != DataState::Ready {
            return Err(Error::not_found(format!("tablet {tablet} is {:?}", meta.data_state)));
        }
        let mut group = match cmeta::load(&*data, tablet) {
            Err(error) if error.kind == ErrorKind::NotFound => {
                ConsensusMeta::new(tablet, Config::initial(vec![setup.me.clone()]))
            }
            loaded => loaded?,
        };
        let wal_config = wal_config(&config);
        let mut replay = Replay::new(data.clone(), meta, config, cache)?;
        replay.remove_orphans()?;
        let mut feed = |entry| replay.entry(entry);
        let (mut log, found) = Wal::open(wal, &wal_dir(tablet), wal_config, &mut feed)?;
        let commits = replay.finish(found.last_op)?;
        mark_opening(&replay, &found, commits.len());
        log.append(&commits)?;
        if let Some(committed) =
            replay.group.take().filter(|found| found.opid_index > group.committed.opid_index)
        {
            group.committed = committed;
        }
        let elected = group.elect_only_voter(setup.me.id, found.last_op.term);
        cmeta::store(&*data, &group)?;
        let Replay { applier, waiting, mut report, .. } = replay;
        let boot = Boot {
            committed: applier.last_applied,
            committed_at: applier.applied_at,
            pending: waiting.iter().cloned().collect(),
            ..boot(&setup, group, elected)
        };
        let mut replica = Replica::new(data, applier, Raft::new(setup.options, boot));
        let (ops, last, config) = (report.replayed, found.last_op, replica.raft.config_index());
        report.notes.push(Note::Replayed { ops, last, config });
        replica.resume(waiting)?;
        log.counted_by(replica.tablet().hold_log());
        Ok((replica, log, report))
    }

    fn new(data: Arc<dyn Disk>, applier: Applier, raft: Raft) -> Replica {
        Replica {
            log_held: applier.tablet.hold_log(),
            raft,
            agreed: Output::default(),
            pending: VecDeque::new(),
            requests: Requests::default(),
            auto_increment: applier.auto_increment,
            applier,
            passed: Timestamp::MIN,
            failed: None,
            data,
            job_running: false,
        }
    }

    /// What the log holds and the group has yet to decide on is in flight again.
    fn resume(&mut self, waiting: VecDeque<Replicate>) -> Result<()> {
        for entry in waiting {
            let request = self.begin_foreign(&entry)?;
            self.pending.push_back(Pending::new(entry, request));
        }
        Ok(())
    }
}

/// A log being replayed.
struct Replay {
    applier: Applier,
    data: Arc<dyn Disk>,
    /// Replicates whose commit has not been seen.
    waiting: VecDeque<Replicate>,
    /// The newest configuration that was committed.
    group: Option<Config>,
    last: OpId,
    last_timestamp: Timestamp,
    report: BootstrapReport,
}

impl Replay {
    fn new(
        data: Arc<dyn Disk>,
        meta: TabletMeta,
        config: TabletConfig,
        cache: Arc<PageCache>,
    ) -> Result<Replay> {
        let tablet = Arc::new(Tablet::open(&data, &meta, config, cache)?);
        Ok(Replay {
            applier: Applier::new(tablet, meta),
            data,
            waiting: VecDeque::new(),
            group: None,
            last: OpId::MIN,
            last_timestamp: Timestamp::MIN,
            report: BootstrapReport::default(),
        })
    }

    /// Removes files of jobs that a crash cut short.
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

    fn entry(&mut self, entry: Entry) -> Result<()> {
        match entry {
            Entry::Replicate(replicate) => self.replicate(replicate),
            Entry::Commit(commit) => self.commit(commit),
        }
    }

    fn replicate(&mut self, replicate: Replicate) -> Result<()> {
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
        self.waiting.push_back(replicate);
        Ok(())
    }

    /// Commits come in the order of the operations. One whose operation was cut off the log's front is passed over.
    fn commit(&mut self, commit: Commit) -> Result<()> {
        match self.waiting.front() {
            Some(front) if front.op == commit.op => {}
            Some(front) if front.op.index > commit.op.index => return Ok(()),
            None if commit.op.index <= self.last.index || self.last == OpId::MIN => return Ok(()),
            _ => {
                return Err(Error::corrupt(format!(
                    "the log says what operation {} did before the operations up to it",
                    commit.op
                )));
            }
        }
        let replicate = self.waiting.pop_front().expect("it was just looked at");
        let applied = Applied::decode(&commit.payload)
            .map_err(|error| error.context(format_args!("outcome of operation {}", commit.op)))?;
        self.apply(&replicate, Some(applied)).map(drop)
    }

    /// Repeats an operation, if what it did is not durable elsewhere; gives what it did.
    fn apply(&mut self, record: &Replicate, recorded: Option<Applied>) -> Result<Applied> {
        if record.kind == kind::CONFIG {
            let config = Config::decode(&record.payload)
                .map_err(|error| error.context(format_args!("operation {}", record.op)))?;
            self.group = Some(Config { opid_index: Some(record.op.index), ..config });
        }
        let applier = &mut self.applier;
        let needed = record.op.index >= applier.meta.replay_from;
        let applied = match (recorded, needed) {
            (Some(applied), false) => applied,
            (Some(applied @ Applied::Failed(_)), true) => applied,
            (recorded, _) => {
                self.report.replayed += 1;
                let outcome = match &recorded {
                    Some(Applied::Written(outcome)) => Some(outcome),
                    _ => None,
                };
                let TabletMeta { mrs_durable, history_mark, .. } = applier.meta;
                let mode = Mode::Replay { recorded: outcome, mrs_durable, history_mark };
                let again = applier.apply_record(record, mode, &mut self.report.notes)?;
                recorded.unwrap_or(again)
            }
        };
        applier.passed(record.op, record.timestamp);
        if let Some(request) = payload::request_of(record.kind, &record.payload) {
            let result = applied.clone().into_result();
            self.report.completed_requests.push((request, record.timestamp, result));
        }
        Ok(applied)
    }

    /// Checks that the log went as far as the superblock says, and gives the commits that it lacks up to there: what a
    /// superblock speaks of was committed, even if the disk failed before the log said so.
    ///
    /// `last` is the last operation the log knows of; it may have been cut off the log's front.
    fn finish(&mut self, last: OpId) -> Result<Vec<Entry>> {
        let (known, known_at) = (self.applier.meta.last_op, self.applier.meta.last_timestamp);
        if last.index < known.index {
            let what = format!("the log ends with operation {last}, but {known} was applied");
            return Err(Error::corrupt(what));
        }
        let mut commits = Vec::new();
        while let Some(record) = self.waiting.pop_front_if(|record| record.op.index <= known.index) {
            let applied = self.apply(&record, None)?;
            commits.push(Entry::Commit(Commit { op: record.op, payload: applied.encode() }));
        }
        let (applier, report) = (&mut self.applier, &mut self.report);
        if applier.last_applied.index < known.index {
            applier.passed(known, known_at);
        }
        applier.tablet.mvcc().restore(applier.applied_at);
        report.last_timestamp = self.last_timestamp.max(known_at);
        report.pending = self.waiting.len() as u64;
        Ok(commits)
    }
}

/// Says what this opening had to cope with.
fn mark_opening(replay: &Replay, found: &WalRecovery, commits: usize) {
    let (watch, report) = (&replay.applier.tablet.config().watch, &replay.report);
    watch.mark_if(found.cut_bytes > 0, "opening: a torn tail was cut off the log");
    watch.mark_if(found.void > 0, "opening: entries that were taken back are passed over");
    watch.mark_if(found.segments > 1, "opening: the log has several segments");
    watch.mark_if(found.replicates == 0, "opening: the log is empty");
    watch.mark_if(found.commits > found.replicates, "opening: outcomes outlived their operations");
    watch.mark_if(commits > 0, "opening: the superblock knew of a commit that the log lacks");
    watch.mark_if(report.pending > 0, "opening: the group has yet to decide on operations");
    watch.mark_if(report.replayed > 0, "opening: operations are applied again");
    watch.mark_if(found.replicates > report.replayed, "opening: operations are on disk already");
    watch.mark_if(!report.completed_requests.is_empty(), "opening: answers of requests are remembered");
    watch.mark_if(replay.group.is_some(), "opening: the log holds a configuration");
}

/// What the core of a group knows on an empty log.
fn boot(setup: &GroupSetup, meta: ConsensusMeta, elected: Option<(Term, Option<PeerId>)>) -> Boot {
    Boot {
        me: setup.me.id,
        meta,
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

/// The directory of all logs.
pub(super) const WAL_DIR: &str = "wals";

/// The directory of a tablet's log.
pub fn wal_dir(tablet: TabletId) -> String {
    format!("{WAL_DIR}/{tablet}")
}
