//! Making a replica, and bringing one back from its superblock and its log.
//!
//! ```text
//!   superblock: schema, rowsets, replay_from
//!   log:   r1 r2 c1 r3 c2 | r4 c3 r5 c4            r = replicate, c = commit (what applying it did)
//!                         └ replay_from = 3: r3 and later are applied again, as their commit says;
//!                           r5 has none: it is durable, so it is applied, and its commit is added
//! ```
//!
//! Replaying is idempotent: a row whose effect has reached a DiskRowSet is passed over, by timestamps.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use super::Replica;
use super::payload::{Applied, Logged};
use super::types::{OpResult, RequestId};
use crate::cfile::cache::PageCache;
use crate::config::TabletConfig;
use crate::disk::{self, Disk};
use crate::error::{Error, Result};
use crate::ids::{OpId, TabletId};
use crate::note::Note;
use crate::tablet::Tablet;
use crate::tablet::apply::Mode;
use crate::tablet::flush::data_dir;
use crate::tablet::meta::{DataState, TabletMeta};
use crate::tablet::writer::TabletWriter;
use crate::time::Timestamp;
use crate::wal::{Commit, Entry, Replicate, Wal, WalConfig};

/// What opening a replica found.
#[derive(Debug, Default)]
pub struct BootstrapReport {
    /// Operations applied again.
    pub replayed: u64,
    /// The newest timestamp in use: the clock must be moved past it before anything is proposed.
    pub last_timestamp: Timestamp,
    /// Requests that the log still remembers, so that their retries get the same answer; in the log's order.
    pub completed_requests: Vec<(RequestId, Timestamp, Result<OpResult>)>,
    pub notes: Vec<Note>,
}

impl Replica {
    /// Makes a tablet: its log, then its superblock, which is what makes it exist.
    ///
    /// `AlreadyPresent` if there is one. What an interrupted creation or deletion left behind is removed.
    pub fn create(
        wal: Arc<dyn Disk>,
        data: Arc<dyn Disk>,
        meta: TabletMeta,
        config: TabletConfig,
        cache: Arc<PageCache>,
    ) -> Result<(Replica, Wal)> {
        let tablet = meta.tablet;
        match TabletMeta::load(&*data, tablet) {
            Err(error) if error.kind == crate::error::ErrorKind::NotFound => {}
            Ok(_) => return Err(Error::already_present(format!("tablet {tablet} is already here"))),
            Err(error) => return Err(error),
        }
        remove_dir(&*wal, &wal_dir(tablet))?;
        remove_dir(&*data, &data_dir(tablet))?;
        let log = Wal::create(wal, &wal_dir(tablet), wal_config(&config))?;
        let made = disk::create_dir_durably(&*data, &data_dir(tablet));
        made.map_err(|e| Error::io(format_args!("make directory {}", data_dir(tablet)), &e))?;
        meta.store(&*data)?;
        Ok((Replica::new(data, meta, config, cache)?, log))
    }

    /// Opens a tablet and replays its log.
    ///
    /// `NotFound` if there is none or its data is gone on purpose, `Corrupt` if superblock, log and files
    /// contradict each other.
    pub fn open(
        wal: Arc<dyn Disk>,
        data: Arc<dyn Disk>,
        tablet: TabletId,
        config: TabletConfig,
        cache: Arc<PageCache>,
    ) -> Result<(Replica, Wal, BootstrapReport)> {
        let meta = TabletMeta::load(&*data, tablet)?;
        if meta.data_state != DataState::Ready {
            return Err(Error::not_found(format!("tablet {tablet} is {:?}", meta.data_state)));
        }
        let wal_config = wal_config(&config);
        let mut replay = Replay {
            replica: Replica::new(data, meta, config, cache)?,
            waiting: VecDeque::new(),
            last: OpId::MIN,
            last_timestamp: Timestamp::MIN,
            report: BootstrapReport::default(),
        };
        replay.remove_orphans()?;
        let mut feed = |entry| replay.entry(entry);
        let (mut log, found) = Wal::open(wal, &wal_dir(tablet), wal_config, &mut feed)?;
        let commits = replay.finish(found.last_op)?;
        log.append(&commits)?;
        let Replay { replica, report, .. } = replay;
        Ok((replica, log, report))
    }

    fn new(
        data: Arc<dyn Disk>,
        meta: TabletMeta,
        config: TabletConfig,
        cache: Arc<PageCache>,
    ) -> Result<Replica> {
        let tablet = Arc::new(Tablet::open(&data, &meta, config, cache)?);
        Ok(Replica {
            writer: TabletWriter::new(tablet.clone()),
            tablet,
            pending: VecDeque::new(),
            last_op: meta.last_op,
            last_applied: meta.last_op,
            applied_at: meta.last_timestamp,
            auto_increment: meta.auto_increment,
            meta,
            alters: VecDeque::new(),
            failed: None,
            data,
            job_running: false,
        })
    }

    /// Removes a tablet's log and data. Its superblock stays, as a tombstone with the last operation, or goes too.
    /// Nobody may be using the tablet. Doing it again after a crash completes it.
    pub fn delete(wal: &dyn Disk, data: &dyn Disk, tablet: TabletId, tombstone: Option<OpId>) -> Result<()> {
        let mut meta = TabletMeta::load(data, tablet)?;
        meta.data_state = if tombstone.is_some() { DataState::Tombstoned } else { DataState::Deleted };
        meta.tombstone_last_op = tombstone;
        meta.store(data)?;
        remove_dir(wal, &wal_dir(tablet))?;
        remove_dir(data, &data_dir(tablet))?;
        if tombstone.is_none() {
            TabletMeta::remove(data, tablet)?;
        }
        Ok(())
    }
}

/// A log being replayed.
struct Replay {
    replica: Replica,
    /// Replicates whose commit has not been seen.
    waiting: VecDeque<Replicate>,
    last: OpId,
    last_timestamp: Timestamp,
    report: BootstrapReport,
}

impl Replay {
    /// Removes files of jobs that a crash cut short.
    fn remove_orphans(&mut self) -> Result<()> {
        let Replica { data, meta, .. } = &self.replica;
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
        if self.last == OpId::MIN && op.index > self.replica.meta.replay_from {
            return Err(Error::corrupt(format!(
                "the log begins with operation {op}, but operations from {} on are needed",
                self.replica.meta.replay_from
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
        self.apply(replicate, Some(applied)).map(|_| ())
    }

    fn apply(&mut self, replicate: Replicate, recorded: Option<Applied>) -> Result<Applied> {
        let Replicate { op, timestamp, kind, payload } = replicate;
        let logged =
            Logged::decode(kind, &payload).map_err(|error| error.context(format_args!("operation {op}")))?;
        let request = logged.request.clone();
        let replica = &mut self.replica;
        let needed = op.index >= replica.meta.replay_from;
        let applied = match (recorded, needed) {
            (Some(applied), false) => applied,
            (Some(applied @ Applied::Failed(_)), true) => applied,
            (recorded, _) => {
                self.report.replayed += 1;
                let outcome = match &recorded {
                    Some(Applied::Written(outcome)) => Some(outcome),
                    _ => None,
                };
                let mode = Mode::Replay { recorded: outcome, mrs_durable: replica.meta.mrs_durable };
                let notes = &mut self.report.notes;
                let again = replica.apply_logged(logged, op, timestamp, mode, notes)?;
                recorded.unwrap_or(again)
            }
        };
        (replica.last_applied, replica.applied_at) = (op, timestamp);
        if let Some(request) = request {
            self.report.completed_requests.push((request, timestamp, applied.clone().into_result()));
        }
        Ok(applied)
    }

    /// Applies what has no commit, and gives the commits to add. `last` is the last operation the log knows of;
    /// it may have been cut off the log's front.
    fn finish(&mut self, last: OpId) -> Result<Vec<Entry>> {
        let mut commits = Vec::new();
        while let Some(replicate) = self.waiting.pop_front() {
            let op = replicate.op;
            let applied = self.apply(replicate, None)?;
            commits.push(Entry::Commit(Commit { op, payload: applied.encode() }));
        }
        let (replica, report) = (&mut self.replica, &mut self.report);
        if last.index < replica.meta.last_op.index {
            return Err(Error::corrupt(format!(
                "the log ends with operation {last}, but {} was applied",
                replica.meta.last_op
            )));
        }
        replica.last_op = last;
        replica.last_applied = replica.last_op;
        report.last_timestamp = self.last_timestamp.max(replica.meta.last_timestamp);
        replica.applied_at = report.last_timestamp;
        replica.tablet.mvcc().restore(report.last_timestamp);
        report.notes.push(Note::Replayed { ops: report.replayed, last: replica.last_op });
        Ok(commits)
    }
}

fn wal_config(config: &TabletConfig) -> WalConfig {
    WalConfig { segment_bytes_max: config.wal_segment_bytes_max, preallocate: config.wal_preallocate }
}

/// The directory of a tablet's log.
pub fn wal_dir(tablet: TabletId) -> String {
    format!("wals/{tablet}")
}

/// Removes a directory and the files in it; fine if it is not there.
fn remove_dir(disk: &dyn Disk, dir: &str) -> Result<()> {
    let failed = |e: &io::Error| Error::io(format_args!("remove {dir}"), e);
    let names = match disk.list(dir) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        names => names.map_err(|e| failed(&e))?,
    };
    for name in names {
        disk.remove(&format!("{dir}/{name}")).map_err(|e| failed(&e))?;
    }
    disk.sync_dir(dir).map_err(|e| failed(&e))?;
    disk.remove(dir).map_err(|e| failed(&e))
}
