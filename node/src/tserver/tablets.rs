//! The tablet table: every tablet that has a superblock here, opened at start, created, altered and deleted.
//!
//! ```text
//!  start ──▶ BOOTSTRAPPING ──▶ RUNNING ──▶ STOPPING ──▶ tombstoned, or gone       (tombstones.rs)
//!  create ──────┘     └──▶ FAILED ◀──┘ (storage error; the master is told)
//!  StartTabletCopy ──▶ COPYING ──▶ BOOTSTRAPPING, or back                         (copy/)
//! ```
//!
//! What a crash leaves: a superblock without data is an empty tablet; one marked deleted is deleted on start, one
//! marked copying becomes the tombstone it was; rows and empty logs without a superblock are removed on start. A
//! superblock that cannot be read fails its tablet alone.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use engine::cfile::cache::{CacheStats, PageCache};
use engine::error::{Error, Result};
use engine::ids::TabletId;
use engine::memory::MemTracker;
use engine::raft::{Config, Peer};
use engine::replica::{GroupSetup, Replica, tombstone};
use engine::tablet::meta::{DataState, TabletMeta};
use engine::wal::Wal;
use tokio::sync::Notify;

use super::buried::Buried;
use super::config::TserverConfig;
use super::entry::{EntryState, TabletEntry};
use super::memory;
use super::peers::{Peers, PeersConfig};
use super::replica::{OnCompleted, ReplicaConfig, ReplicaHandle};
use super::reports::{Pending, ReportLog};
use crate::dirs::{Directory, ServerDirs};
use crate::env::Env;
use crate::proto::kudu::app_status_pb::ErrorCode;
use crate::server_clock::ServerClock;
use crate::wire::status::{TabletError, TabletErrorCode};

/// All tablets of one server.
pub struct Tablets {
    env: Env,
    clock: ServerClock,
    dirs: ServerDirs,
    config: TserverConfig,
    cache: Arc<PageCache>,
    completed: OnCompleted,
    peers: Peers,
    /// This server as a member of groups.
    me: Peer,
    entries: Mutex<BTreeMap<TabletId, Arc<TabletEntry>>>,
    /// Tablets whose logs nobody replays yet.
    opening: Mutex<VecDeque<TabletId>>,
    reports: Arc<Mutex<ReportLog>>,
    /// Rung when the masters should hear something soon.
    hint: Arc<Notify>,
    buried: Mutex<Buried>,
}

impl Tablets {
    /// `addr` is where others reach this server. `completed` is told of every tracked request that took effect though
    /// its client did not ask here, or not since this server began.
    pub fn new(
        env: &Env,
        clock: &ServerClock,
        dirs: ServerDirs,
        addr: (String, u16),
        config: &TserverConfig,
        memory: &Arc<MemTracker>,
        completed: OnCompleted,
    ) -> Tablets {
        let me = Peer::voter(dirs.uuid, addr.0, addr.1);
        let timeout = Duration::from_millis(config.consensus_timeout_ms);
        Tablets {
            env: env.clone(),
            clock: clock.clone(),
            dirs,
            config: config.clone(),
            cache: page_cache(config, memory),
            completed,
            peers: Peers::new(env, PeersConfig::of(&config.raft, timeout)),
            me,
            entries: Mutex::default(),
            opening: Mutex::default(),
            reports: Arc::default(),
            hint: Arc::default(),
            buried: Mutex::default(),
        }
    }

    pub fn dirs(&self) -> &ServerDirs {
        &self.dirs
    }

    /// Lets go of pages, as far as keys can be looked up without: so many bytes should not be held.
    pub fn give_back_pages(&self, bytes: u64) {
        self.cache.give_back(bytes);
    }

    /// How the cache of pages does.
    pub fn cache_stats(&self) -> CacheStats {
        self.cache.stats()
    }

    fn entries(&self) -> MutexGuard<'_, BTreeMap<TabletId, Arc<TabletEntry>>> {
        self.entries.lock().expect("nobody panics while holding the tablet table")
    }

    /// All tablets, in the order of their ids.
    pub fn all(&self) -> Vec<Arc<TabletEntry>> {
        self.entries().values().cloned().collect()
    }

    pub fn get(&self, id: TabletId) -> Option<Arc<TabletEntry>> {
        self.entries().get(&id).cloned()
    }

    /// The tablet that a request names, as 32 hex characters.
    pub fn find(&self, id: &[u8]) -> Result<Arc<TabletEntry>, TabletError> {
        TabletId::parse(id).ok().and_then(|id| self.get(id)).ok_or_else(|| {
            let what = format!("Tablet not found: {}", String::from_utf8_lossy(id));
            TabletError::new(TabletErrorCode::TabletNotFound, ErrorCode::NotFound, what)
        })
    }

    /// Reads every superblock, completes what a crash interrupted, and removes what belongs to no tablet. A tablet
    /// for which that fails has failed, alone: the master replaces it.
    pub fn load(&self) -> Result<()> {
        let mut known = Vec::new();
        for dir in &self.dirs.data {
            let loaded = self.load_dir(dir);
            known.extend(loaded.map_err(|error| error.context(format!("the directory {}", dir.path)))?);
        }
        self.remove_stray_logs(&known)
            .map_err(|error| error.context(format!("the directory {}", self.dirs.wal.path)))
    }

    /// The tablets that had a superblock in a data directory.
    fn load_dir(&self, dir: &Arc<Directory>) -> Result<Vec<TabletId>> {
        let ids = TabletMeta::list(&*dir.disk)?;
        for id in &ids {
            let entry = match tombstone::recover(&*self.dirs.wal.disk, &*dir.disk, *id) {
                Ok(Some(meta)) => TabletEntry::new(meta, dir.clone()),
                Ok(None) => {
                    self.bury(*id);
                    continue;
                }
                Err(error) => failed_entry(*id, dir, error),
            };
            if entry.meta.data_state == DataState::Deleted {
                self.bury(*id);
            }
            self.note_back(&entry);
            if matches!(entry.state(), EntryState::Bootstrapping) {
                self.opening().push_back(*id);
            }
            self.put(Arc::new(entry));
            self.report_log().changed(*id);
        }
        let removed = tombstone::remove_strays(&*dir.disk, &ids)?;
        if removed > 0 {
            tracing::warn!(dir = dir.path, removed, "removed rows of tablets that have no superblock");
        }
        Ok(ids)
    }

    fn remove_stray_logs(&self, known: &[TabletId]) -> Result<()> {
        let strays = tombstone::remove_stray_logs(&*self.dirs.wal.disk, known)?;
        if strays.removed > 0 {
            tracing::warn!(removed = strays.removed, "removed empty logs of tablets that have no superblock");
        }
        for tablet in strays.kept {
            tracing::error!(
                %tablet,
                "there is a log but no superblock of this tablet; is a data directory missing? The log stays"
            );
        }
        Ok(())
    }

    fn opening(&self) -> MutexGuard<'_, VecDeque<TabletId>> {
        self.opening.lock().expect("nobody panics while holding it")
    }

    /// Replays the logs of tablets that [`Tablets::load`] found and that nobody else replays. Several may do this at
    /// once.
    pub async fn bootstrap(&self) {
        loop {
            let Some(id) = self.opening().pop_front() else { return };
            let Some(entry) = self.get(id) else { continue };
            if matches!(entry.state(), EntryState::Bootstrapping) {
                self.open(&entry).await;
            }
        }
    }

    /// Opens a replica and starts it; what fails that is kept for the master to see.
    pub(super) async fn open(&self, entry: &Arc<TabletEntry>) {
        let open = || self.open_replica(entry).inspect_err(|_| self.note_not_opened(entry));
        let opened = self.env.run(open).await;
        self.settle(entry, opened);
    }

    fn open_replica(&self, entry: &TabletEntry) -> Result<(Replica, Wal)> {
        let (wal_disk, data_disk) = (self.dirs.wal.disk.clone(), entry.data_dir.disk.clone());
        let config = self.config.tablet.clone();
        let (replica, wal, report) =
            Replica::open(wal_disk, data_disk, entry.id, self.setup(), config, self.cache.clone())?;
        for (request, timestamp, result) in &report.completed_requests {
            // An operation that could not be done is none that a retry must not repeat.
            if let Ok(result) = result {
                (self.completed)(request, *timestamp, result);
            }
        }
        for note in &report.notes {
            tracing::info!(tablet = %entry.id, %note);
            self.env.watch.note(entry.id, note);
        }
        Ok((replica, wal))
    }

    /// Starts what was opened, or keeps the failure for the master to see.
    fn settle(&self, entry: &Arc<TabletEntry>, opened: Result<(Replica, Wal)>) {
        let state = match opened {
            Ok((replica, wal)) => EntryState::Running(self.start_replica(entry, replica, wal)),
            Err(error) => {
                tracing::error!(tablet = %entry.id, %error, "a tablet cannot be opened");
                EntryState::Failed(error)
            }
        };
        entry.set_state(state);
        self.mark_changed(entry.id);
    }

    fn start_replica(&self, entry: &TabletEntry, replica: Replica, wal: Wal) -> ReplicaHandle {
        let (id, reports, hint) = (entry.id, self.reports.clone(), self.hint.clone());
        let changed: Arc<dyn Fn() + Send + Sync> = Arc::new(move || {
            reports.lock().expect("nobody panics while holding it").changed(id);
            hint.notify_waiters();
        });
        let config = ReplicaConfig {
            log_sync: self.config.log_sync,
            pending_bytes_max: self.config.replica_pending_bytes_max,
            frame_bytes_max: self.config.rpc.max_message_bytes,
            peers: self.peers.clone(),
            on_failure: changed.clone(),
            on_change: changed,
            on_completed: self.completed.clone(),
        };
        ReplicaHandle::start(&self.env, &self.clock, replica, wal, config)
    }

    /// Makes a tablet without rows and starts it.
    pub async fn create(&self, meta: TabletMeta, members: Config) -> Result<(), TabletError> {
        let id = meta.tablet;
        // An order that was given up long ago: a tablet is deleted for good once.
        self.check_not_buried(id)?;
        let dir = self.emptiest_data_dir();
        let entry = {
            let mut entries = self.entries();
            if let Some(known) = entries.get(&id) {
                return Err(already_there(known));
            }
            let entry = Arc::new(TabletEntry::new(meta.clone(), dir.clone()));
            entries.insert(id, entry.clone());
            entry
        };
        self.mark_changed(id);
        let created = self.env.run(|| self.create_replica(meta, members, &dir)).await;
        if let Err(error) = &created {
            let error = TabletError::of(TabletErrorCode::UnknownError, error);
            self.entries().remove(&id);
            self.report_log().removed(id);
            return Err(error);
        }
        self.settle(&entry, created);
        Ok(())
    }

    fn create_replica(&self, meta: TabletMeta, members: Config, dir: &Directory) -> Result<(Replica, Wal)> {
        let (wal_disk, data_disk) = (self.dirs.wal.disk.clone(), dir.disk.clone());
        let (config, cache) = (self.config.tablet.clone(), self.cache.clone());
        Replica::create(wal_disk, data_disk, meta, members, self.setup(), config, cache)
    }

    /// Who a replica of this server is in its group, for one life of the replica.
    fn setup(&self) -> GroupSetup {
        GroupSetup { me: self.me.clone(), options: self.config.raft.clone(), seed: self.env.rng.next_u64() }
    }

    /// Spreads tablets evenly over the data directories.
    fn emptiest_data_dir(&self) -> Arc<Directory> {
        let entries = self.entries();
        let count =
            |dir: &Directory| entries.values().filter(|entry| entry.data_dir.path == dir.path).count();
        let emptiest = self.dirs.data.iter().min_by_key(|dir| count(dir));
        emptiest.expect("a server has a data directory").clone()
    }

    pub(super) fn env(&self) -> &Env {
        &self.env
    }

    /// The tablet of this id; or a place for it, new and kept for a copy, and true.
    pub(super) fn get_or_reserve(&self, id: TabletId) -> (Arc<TabletEntry>, bool) {
        let dir = self.emptiest_data_dir();
        let mut entries = self.entries();
        if let Some(known) = entries.get(&id) {
            return (known.clone(), false);
        }
        let entry = Arc::new(TabletEntry::new(TabletMeta::unreadable(id), dir));
        entry.set_state(EntryState::Copying);
        entries.insert(id, entry.clone());
        (entry, true)
    }

    /// Puts an entry in the place of the tablet's last one.
    pub(super) fn put(&self, entry: Arc<TabletEntry>) {
        self.entries().insert(entry.id, entry);
    }

    /// The tablet is gone without a trace.
    pub(super) fn forget(&self, id: TabletId) {
        self.entries().remove(&id);
        self.report_log().removed(id);
        self.hint.notify_waiters();
    }

    /// The tablet's table was dropped: no leader is to have it copied here again.
    pub(super) fn bury(&self, id: TabletId) {
        self.buried().insert(id);
    }

    fn buried(&self) -> MutexGuard<'_, Buried> {
        self.buried.lock().expect("nobody panics while holding it")
    }

    /// `TABLET_NOT_FOUND` for a tablet that was deleted for good.
    pub(super) fn check_not_buried(&self, id: TabletId) -> Result<(), TabletError> {
        if !self.buried().contains(id) {
            return Ok(());
        }
        let what = format!("Tablet {id} was deleted here for good, as its table was dropped");
        Err(TabletError::new(TabletErrorCode::TabletNotFound, ErrorCode::NotFound, what))
    }

    fn report_log(&self) -> MutexGuard<'_, ReportLog> {
        self.reports.lock().expect("nobody panics while holding the report log")
    }

    /// The masters should hear of this tablet soon.
    pub fn mark_changed(&self, id: TabletId) {
        self.report_log().changed(id);
        self.hint.notify_waiters();
    }

    /// The masters should hear what became of this tablet, which may be gone.
    pub(super) fn mark_changed_if_here(&self, id: TabletId) {
        if self.get(id).is_some() {
            self.mark_changed(id);
        }
    }

    /// The masters should hear of this tablet with the next heartbeat.
    pub fn mark_changed_quietly(&self, id: TabletId) {
        self.report_log().changed(id);
    }

    /// What a master that acknowledged up to a number does not know.
    pub fn news_since(&self, acknowledged: Option<u64>) -> Pending {
        self.report_log().since(acknowledged)
    }

    /// Rung when the masters should hear something soon.
    pub fn hint(&self) -> &Notify {
        &self.hint
    }

    /// Stops every replica in order: what was proposed is finished, and the logs are closed.
    pub async fn stop(&self) {
        for entry in self.all() {
            if let EntryState::Running(replica) = entry.state() {
                entry.set_state(EntryState::Stopped);
                drop(replica.stop().await);
            }
        }
    }
}

/// The cache of a server's pages, which become more only while memory is not short.
fn page_cache(config: &TserverConfig, memory: &Arc<MemTracker>) -> Arc<PageCache> {
    let (root, soft_percent) = (memory.clone(), config.memory_soft_percent);
    let soft = move || memory::soft_limit(root.limit_bytes(), soft_percent);
    PageCache::within(config.page_cache_bytes, &memory.child("page-cache"), soft)
}

/// What is left of a tablet that could not be recovered.
fn failed_entry(id: TabletId, dir: &Arc<Directory>, error: Error) -> TabletEntry {
    tracing::error!(tablet = %id, dir = dir.path, %error, "a tablet's superblock is of no use");
    let meta = TabletMeta::load(&*dir.disk, id).unwrap_or_else(|_| TabletMeta::unreadable(id));
    TabletEntry::failed(meta, dir.clone(), error)
}

fn already_there(entry: &TabletEntry) -> TabletError {
    let (code, what) = match entry.state() {
        EntryState::Bootstrapping | EntryState::Copying | EntryState::Stopping => {
            (TabletErrorCode::AlreadyInprogress, format!("Tablet {} is being worked on", entry.id))
        }
        _ => (TabletErrorCode::TabletAlreadyExists, format!("Tablet already exists: {}", entry.id)),
    };
    TabletError::new(code, ErrorCode::AlreadyPresent, what)
}
