//! The tablet table: every tablet that has a superblock here, opened at start, created, altered and deleted.
//!
//! ```text
//!  start ──▶ BOOTSTRAPPING ──▶ RUNNING ──▶ STOPPING ──▶ tombstoned or deleted    (tombstones.rs)
//!  create ──────┘     └──▶ FAILED ◀──┘ (storage error; reported to the master)
//!                 full log device: opened again when there is space
//!  StartTabletCopy ──▶ COPYING ──▶ BOOTSTRAPPING, or back                         (copy/)
//! ```
//!
//! Recovery after a crash:
//! - A superblock without data is an empty tablet.
//! - A tablet marked deleted is deleted at start; one marked copying becomes the tombstone that it was.
//! - Data, empty logs and consensus metadata without a superblock are removed at start.
//! - An unreadable superblock fails only its own tablet, and so do two of one tablet.

use engine::sync::{Mutex, MutexGuard};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use engine::cfile::cache::{CacheStats, PageCache};
use engine::config::TabletConfig;
use engine::error::{Error, Result};
use engine::ids::TabletId;
use engine::memory::MemTracker;
use engine::raft::{Peer, RaftConfig, RaftOptions};
use engine::replica::{Replica, ReplicaSetup, tombstone};
use engine::tablet::superblock::{DataState, Superblock};
use engine::wal::Wal;
use tokio::sync::Notify;

use super::deleted_tablets::DeletedTablets;
use super::leftovers::remove_leftovers;
use super::memory_pressure;
use super::raft_transport::{RaftTransport, RaftTransportConfig};
use super::replica::{OnCompleted, ReplicaConfig, ReplicaHandle};
use super::space::{SpaceReserves, SpaceWatch};
use super::tablet_entry::{EntryState, TabletEntry, TabletSizes};
use super::tablet_reports::{PendingReport, ReportLog};
use crate::changed_flag::LiveSeconds;
use crate::dirs::{Directory, ServerDirs};
use crate::server_clock::ServerClock;
use nyala_common::env::Env;
use nyala_common::security::RpcCaller;
use nyala_common::wire::errors::{TabletError, TabletErrorCode};
use nyala_proto::kudu::app_status_pb::ErrorCode;

/// Configuration of a server's replicas; the fields are those of the server's configuration.
#[derive(Debug, Clone)]
pub struct TabletManagerConfig {
    /// Name and credentials of calls to other servers.
    pub caller: RpcCaller,
    pub raft: RaftOptions,
    /// Silence after which a member counts as failed; from `raft` until its flag is changed.
    pub follower_failed_after: LiveSeconds,
    pub tablet: TabletConfig,
    pub consensus_timeout: Duration,
    pub log_sync: bool,
    pub replica_pending_bytes_max: usize,
    /// Longest frame that the tablets' other servers accept, in bytes.
    pub frame_bytes_max: usize,
    pub page_cache_bytes: usize,
    pub memory_soft_percent: u64,
    /// Space that stays free.
    pub reserves: SpaceReserves,
}

/// The data directories that have a superblock of a tablet, for each tablet.
type SuperblockDirs = BTreeMap<TabletId, Vec<Arc<Directory>>>;

/// Bootstraps of a start of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BootstrapCounts {
    pub all: usize,
    /// Those that have ended, whether the tablet runs, has failed or was deleted meanwhile.
    pub ended: usize,
}

impl BootstrapCounts {
    /// Returns the number of bootstraps that have not ended.
    pub fn left(&self) -> usize {
        self.all - self.ended
    }
}

/// All tablets of one server.
pub struct TabletManager {
    env: Env,
    clock: ServerClock,
    dirs: ServerDirs,
    space: SpaceWatch,
    config: TabletManagerConfig,
    cache: Arc<PageCache>,
    completed: OnCompleted,
    peers: RaftTransport,
    /// This server as a member of Raft groups.
    me: Peer,
    entries: Mutex<BTreeMap<TabletId, Arc<TabletEntry>>>,
    /// Tablets whose bootstrap has not begun.
    opening: Mutex<VecDeque<TabletId>>,
    bootstraps: Mutex<BootstrapCounts>,
    reports: Arc<Mutex<ReportLog>>,
    /// Notified when a report should be sent soon.
    hint: Arc<Notify>,
    deleted_tablets: Mutex<DeletedTablets>,
}

impl TabletManager {
    /// `addr` is the address that peers use. `completed` is called for every tracked request that took effect without a
    /// call to this server, or before this server started.
    pub fn new(
        env: &Env,
        clock: &ServerClock,
        dirs: ServerDirs,
        addr: (String, u16),
        config: TabletManagerConfig,
        memory: &Arc<MemTracker>,
        completed: OnCompleted,
    ) -> TabletManager {
        let me = Peer::voter(dirs.uuid, addr.0, addr.1);
        let transport = RaftTransportConfig::of(&config.raft, config.consensus_timeout);
        TabletManager {
            env: env.clone(),
            clock: clock.clone(),
            space: SpaceWatch::new(&dirs, config.reserves),
            dirs,
            cache: page_cache(&config, memory),
            peers: RaftTransport::new(env, transport, config.caller.clone()),
            config,
            completed,
            me,
            entries: Mutex::default(),
            opening: Mutex::default(),
            bootstraps: Mutex::default(),
            reports: Arc::default(),
            hint: Arc::default(),
            deleted_tablets: Mutex::default(),
        }
    }

    pub fn dirs(&self) -> &ServerDirs {
        &self.dirs
    }

    /// Returns the free space of the directories.
    pub fn space(&self) -> &SpaceWatch {
        &self.space
    }

    /// Returns `THROTTLED` if the server has no space for another replica.
    pub fn check_space(&self) -> Result<(), TabletError> {
        match self.space.refuse_replicas() {
            None => Ok(()),
            Some(why) => {
                Err(TabletError::new(TabletErrorCode::Throttled, ErrorCode::ServiceUnavailable, why))
            }
        }
    }

    /// Shrinks the page cache by up to `bytes`, but keeps the pages that key lookups need.
    pub fn shrink_page_cache(&self, bytes: u64) {
        self.cache.release_pages(bytes);
    }

    /// Returns the bytes that the page cache may hold now.
    pub fn cache_capacity(&self) -> u64 {
        self.cache.capacity_bytes()
    }

    /// Returns the statistics of the page cache.
    pub fn cache_stats(&self) -> CacheStats {
        self.cache.stats()
    }

    fn entries(&self) -> MutexGuard<'_, BTreeMap<TabletId, Arc<TabletEntry>>> {
        self.entries.lock()
    }

    /// Returns all tablets, ordered by id.
    pub fn all(&self) -> Vec<Arc<TabletEntry>> {
        self.entries().values().cloned().collect()
    }

    pub fn get(&self, id: TabletId) -> Option<Arc<TabletEntry>> {
        self.entries().get(&id).cloned()
    }

    /// Finds the tablet that a request names, as 32 hex characters.
    pub fn find(&self, id: &[u8]) -> Result<Arc<TabletEntry>, TabletError> {
        TabletId::parse(id).ok().and_then(|id| self.get(id)).ok_or_else(|| {
            let message = format!("Tablet not found: {}", String::from_utf8_lossy(id));
            TabletError::new(TabletErrorCode::TabletNotFound, ErrorCode::NotFound, message)
        })
    }

    /// Reads every superblock, completes interrupted changes, and removes orphan files. An error fails only the tablet
    /// it concerns; the master replaces that replica.
    pub fn load(&self) -> Result<()> {
        let in_dir = |dir: &Directory, error: Error| error.context(format!("the directory {}", dir.path));
        let mut found = SuperblockDirs::new();
        for dir in &self.dirs.data {
            for id in Superblock::list(&*dir.disk).map_err(|error| in_dir(dir, error))? {
                found.entry(id).or_default().push(dir.clone());
            }
        }
        for dir in &self.dirs.data {
            self.load_dir(dir, &found).map_err(|error| in_dir(dir, error))?;
        }
        let known: Vec<TabletId> = found.into_keys().collect();
        for dir in &self.dirs.data {
            self.remove_stray_metadata(dir, &known).map_err(|error| in_dir(dir, error))?;
        }
        self.remove_stray_logs(&known).map_err(|error| in_dir(&self.dirs.wal, error))
    }

    /// Loads the tablets that have a superblock in a data directory.
    fn load_dir(&self, dir: &Arc<Directory>, found: &SuperblockDirs) -> Result<()> {
        let mut ids = Vec::new();
        for (id, dirs) in found.iter().filter(|(_, dirs)| dirs.iter().any(|home| home.path == dir.path)) {
            ids.push(*id);
            match dirs.as_slice() {
                [_] => self.load_tablet(*id, dir),
                [first, others @ ..] if first.path == dir.path => self.put_ambiguous(*id, first, others),
                _ => {}
            }
        }
        let removed = tombstone::remove_strays(&*dir.disk, &ids)?;
        if removed > 0 {
            tracing::warn!(dir = dir.path, removed, "removed rows of tablets that have no superblock");
        }
        Ok(())
    }

    /// Enters a tablet with one superblock, and queues it for its bootstrap if it has data.
    fn load_tablet(&self, id: TabletId, dir: &Arc<Directory>) {
        let entry = match tombstone::recover(&*self.dirs.wal.disk, &*dir.disk, id) {
            Ok(Some(meta)) => TabletEntry::new(meta, dir.clone()),
            Ok(None) => return self.mark_deleted(id),
            Err(error) => failed_entry(id, dir, error),
        };
        if entry.meta.data_state == DataState::Deleted {
            self.mark_deleted(id);
        }
        self.note_restart(&entry);
        if matches!(entry.state(), EntryState::Bootstrapping) {
            self.opening().push_back(id);
            self.bootstraps.lock().all += 1;
        }
        self.put(Arc::new(entry));
        self.report_log().changed(id);
    }

    /// Enters a tablet that has several superblocks, as one of a directory that was given up and is back. It has
    /// failed: with an old one the replica would vote twice in a term. Nothing of it is changed.
    fn put_ambiguous(&self, tablet: TabletId, first: &Arc<Directory>, others: &[Arc<Directory>]) {
        let paths: Vec<&str> = [first].into_iter().chain(others).map(|dir| dir.path.as_str()).collect();
        let why = format!(
            "several data directories have a superblock of this tablet ({}), and only one of them is new; stop the \
             server, and move tablet-meta/{tablet}, consensus-meta/{tablet} and data/{tablet} out of the others",
            paths.join(", ")
        );
        let mut entry = failed_entry(tablet, first, Error::corrupt(why));
        entry.duplicates = others.to_vec();
        self.note_restart(&entry);
        self.put(Arc::new(entry));
        self.report_log().changed(tablet);
    }

    fn remove_stray_metadata(&self, dir: &Directory, known: &[TabletId]) -> Result<()> {
        let removed = tombstone::remove_stray_metadata(&*self.dirs.wal.disk, &*dir.disk, known)?;
        if removed > 0 {
            tracing::warn!(dir = dir.path, removed, "removed interrupted replacements and stray votes");
        }
        Ok(())
    }

    fn remove_stray_logs(&self, known: &[TabletId]) -> Result<()> {
        let orphans = tombstone::remove_stray_logs(&*self.dirs.wal.disk, known)?;
        if orphans.removed > 0 {
            tracing::warn!(
                removed = orphans.removed,
                "removed empty logs of tablets that have no superblock"
            );
        }
        orphans.kept.into_iter().for_each(|tablet| self.put_lost(tablet));
        Ok(())
    }

    /// Enters a tablet whose superblock and vote were lost with a data directory. It has failed, and does not vote: a
    /// copy may replace it only once its group has evicted it and added it again, as with an unreadable vote.
    fn put_lost(&self, tablet: TabletId) {
        let why = "there is a log but no superblock of this tablet, which was in a directory that is missing or was \
                   declared lost; the log stays until the replica is replaced";
        let entry = failed_entry(tablet, &self.emptiest_data_dir(), Error::corrupt(why));
        self.note_restart(&entry);
        self.put(Arc::new(entry));
        self.report_log().changed(tablet);
    }

    fn opening(&self) -> MutexGuard<'_, VecDeque<TabletId>> {
        self.opening.lock()
    }

    /// Bootstraps the tablets that [`TabletManager::load`] found, one after another. Several tasks may do this at once:
    /// each tablet is queued once, and the task that takes it from the queue opens it.
    pub async fn bootstrap(&self) {
        loop {
            let Some(id) = self.opening().pop_front() else { return };
            if let Some(entry) = self.get(id)
                && matches!(entry.state(), EntryState::Bootstrapping)
            {
                self.open(&entry).await;
            }
            self.bootstraps.lock().ended += 1;
        }
    }

    /// Returns the counts of the bootstraps of this start. Tablets that are created or copied later are not among them.
    pub fn bootstraps(&self) -> BootstrapCounts {
        *self.bootstraps.lock()
    }

    /// Opens the tablets again that a full device kept from opening.
    pub async fn reopen_after_full_device(&self) {
        let is_unopened =
            |state: &EntryState| matches!(state, EntryState::Failed(error) if error.is_no_space());
        for entry in self.all() {
            if self.check_not_deleted(entry.id).is_err() {
                continue;
            }
            let found = entry.transition(|state| is_unopened(state).then_some(EntryState::Bootstrapping));
            if is_unopened(&found) {
                tracing::info!(tablet = %entry.id, "there is space again; the tablet is opened");
                self.open(&entry).await;
            }
        }
    }

    /// Opens a replica and starts it. A failure is stored for the master's report.
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
            // A retry may repeat an operation that could not be applied.
            if let Ok(result) = result {
                (self.completed)(request, *timestamp, result);
            }
        }
        for note in &report.notes {
            tracing::info!(tablet = %entry.id, %note);
            self.env.observer.note(entry.id, note);
        }
        Ok((replica, wal))
    }

    /// Starts an opened replica, or stores the failure for the master's report.
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
            reports.lock().changed(id);
            hint.notify_waiters();
        });
        let config = ReplicaConfig {
            log_sync: self.config.log_sync,
            pending_bytes_max: self.config.replica_pending_bytes_max,
            frame_bytes_max: self.config.frame_bytes_max,
            peers: self.peers.clone(),
            follower_failed_after: self.config.follower_failed_after.clone(),
            is_replaced: true,
            on_failure: changed.clone(),
            on_change: changed,
            on_completed: self.completed.clone(),
        };
        ReplicaHandle::start(&self.env, &self.clock, replica, wal, config)
    }

    /// Creates an empty tablet and starts it.
    pub async fn create(&self, meta: Superblock, members: RaftConfig) -> Result<(), TabletError> {
        let id = meta.tablet;
        // The request may be old: a permanently deleted tablet is never created again.
        self.check_not_deleted(id)?;
        self.check_space()?;
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
        self.env.observer.mark("create: begins");
        let created = self.env.run(|| self.create_replica(meta, members, &dir)).await;
        if let Err(error) = &created {
            self.env.observer.mark("create: failed");
            self.discard_creation(&entry).await;
            return Err(TabletError::of(TabletErrorCode::UnknownError, error));
        }
        self.settle(&entry, created);
        Ok(())
    }

    /// Removes what a failed creation has left. What cannot be removed, the next creation or the next start removes.
    async fn discard_creation(&self, entry: &TabletEntry) {
        let left = self.env.run(|| self.remove_leftovers(entry.id)).await;
        if let Err(left) = left {
            tracing::warn!(tablet = %entry.id, error = %left, "what a failed creation left is still there");
        }
        self.entries().remove(&entry.id);
        self.report_log().removed(entry.id);
    }

    /// Removes what earlier creations of a tablet that is not here have left, in any data directory: a server has a
    /// tablet once.
    fn remove_leftovers(&self, id: TabletId) -> Result<()> {
        remove_leftovers(&*self.dirs.wal.disk, &self.dirs.data, id)
    }

    fn create_replica(
        &self,
        meta: Superblock,
        members: RaftConfig,
        dir: &Directory,
    ) -> Result<(Replica, Wal)> {
        self.remove_leftovers(meta.tablet)?;
        let (wal_disk, data_disk) = (self.dirs.wal.disk.clone(), dir.disk.clone());
        let (config, cache) = (self.config.tablet.clone(), self.cache.clone());
        Replica::create(wal_disk, data_disk, meta, members, self.setup(), config, cache)
    }

    /// Returns the identity of this server's replica in its group, for one life of the replica.
    fn setup(&self) -> ReplicaSetup {
        ReplicaSetup { me: self.me.clone(), options: self.config.raft.clone(), seed: self.env.rng.next_u64() }
    }

    /// Returns the data directory with the fewest tablets, of those with plenty of space if there is one.
    fn emptiest_data_dir(&self) -> Arc<Directory> {
        let entries = self.entries();
        let count =
            |dir: &Directory| entries.values().filter(|entry| entry.data_dir.path == dir.path).count();
        let short = |dir: &Directory| !self.space.has_plenty(&dir.path);
        let emptiest = self.dirs.data.iter().min_by_key(|dir| (short(dir), count(dir)));
        emptiest.expect("a server has a data directory").clone()
    }

    pub(super) fn env(&self) -> &Env {
        &self.env
    }

    /// Returns the tablet of this id; or a new entry reserved for a copy, and true.
    pub(super) fn get_or_reserve(&self, id: TabletId) -> (Arc<TabletEntry>, bool) {
        let dir = self.emptiest_data_dir();
        let mut entries = self.entries();
        if let Some(known) = entries.get(&id) {
            return (known.clone(), false);
        }
        let entry = Arc::new(TabletEntry::new(Superblock::unreadable(id), dir));
        entry.set_state(EntryState::Copying);
        entries.insert(id, entry.clone());
        (entry, true)
    }

    /// Replaces the tablet's entry.
    pub(super) fn put(&self, entry: Arc<TabletEntry>) {
        self.entries().insert(entry.id, entry);
    }

    /// Removes the entry of a deleted tablet.
    pub(super) fn forget(&self, id: TabletId) {
        self.entries().remove(&id);
        self.report_log().removed(id);
        self.hint.notify_waiters();
    }

    /// Records a permanent deletion: no leader may have the tablet copied here again.
    pub fn mark_deleted(&self, id: TabletId) {
        self.lock_deleted().insert(id);
    }

    fn lock_deleted(&self) -> MutexGuard<'_, DeletedTablets> {
        self.deleted_tablets.lock()
    }

    /// Returns `TABLET_NOT_FOUND` for a permanently deleted tablet.
    pub fn check_not_deleted(&self, id: TabletId) -> Result<(), TabletError> {
        if !self.lock_deleted().contains(id) {
            return Ok(());
        }
        let message = format!("Tablet {id} was deleted here for good, as its table was dropped");
        Err(TabletError::new(TabletErrorCode::TabletNotFound, ErrorCode::NotFound, message))
    }

    fn report_log(&self) -> MutexGuard<'_, ReportLog> {
        self.reports.lock()
    }

    /// Queues the tablet for a report soon.
    pub fn mark_changed(&self, id: TabletId) {
        self.report_log().changed(id);
        self.hint.notify_waiters();
    }

    /// Queues the tablet, or its removal, for a report soon.
    pub(super) fn mark_changed_if_here(&self, id: TabletId) {
        if self.get(id).is_some() {
            self.mark_changed(id);
        }
    }

    /// Queues the tablet for the next regular report, unless it was deleted meanwhile: its removal stays queued then.
    pub fn mark_changed_quietly(&self, id: TabletId) {
        if self.get(id).is_some() {
            self.report_log().changed(id);
        }
    }

    /// Queues the tablet for the next regular report if its sizes have changed.
    pub fn mark_if_resized(&self, entry: &TabletEntry) {
        if let Some(sizes) = entry.sizes() {
            self.report_log().sizes_are(entry.id, sizes);
        }
    }

    /// Returns the sizes of an open tablet for a report.
    pub fn sizes_to_report(&self, entry: &TabletEntry) -> Option<TabletSizes> {
        let sizes = entry.sizes()?;
        self.report_log().sizes_reported(entry.id, sizes);
        Some(sizes)
    }

    /// Returns the changes that a master does not know, given the number it has acknowledged.
    pub fn changes_since(&self, acknowledged: Option<u64>) -> PendingReport {
        self.report_log().since(acknowledged)
    }

    /// Notified when a report should be sent soon.
    pub fn hint(&self) -> &Notify {
        &self.hint
    }

    /// Stops every replica in order: proposals in flight finish, then the logs are closed.
    pub async fn stop(&self) {
        for entry in self.all() {
            if let EntryState::Running(replica) = entry.state() {
                entry.set_state(EntryState::Stopped);
                drop(replica.stop().await);
            }
        }
    }
}

/// Creates the server's page cache, which grows only while memory is not short.
fn page_cache(config: &TabletManagerConfig, memory: &Arc<MemTracker>) -> Arc<PageCache> {
    let (root, soft_percent) = (memory.clone(), config.memory_soft_percent);
    let soft = move || memory_pressure::soft_limit(root.limit_bytes(), soft_percent);
    PageCache::with_tracker(config.page_cache_bytes, &memory.child("page-cache"), soft)
}

/// Returns the entry of a tablet that could not be recovered.
pub(super) fn failed_entry(id: TabletId, dir: &Arc<Directory>, error: Error) -> TabletEntry {
    tracing::error!(tablet = %id, dir = dir.path, %error, "unreadable superblock");
    let meta = Superblock::load(&*dir.disk, id).unwrap_or_else(|_| Superblock::unreadable(id));
    TabletEntry::failed(meta, dir.clone(), error)
}

fn already_there(entry: &TabletEntry) -> TabletError {
    let (code, message) = match entry.state() {
        EntryState::Bootstrapping | EntryState::Copying | EntryState::Stopping => {
            (TabletErrorCode::AlreadyInprogress, format!("Tablet {} is being worked on", entry.id))
        }
        _ => (TabletErrorCode::TabletAlreadyExists, format!("Tablet already exists: {}", entry.id)),
    };
    TabletError::new(code, ErrorCode::AlreadyPresent, message)
}
