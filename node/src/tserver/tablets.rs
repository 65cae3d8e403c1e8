//! The tablet table: every tablet that has a superblock here, opened at start, created, altered and deleted.
//!
//! ```text
//!  start ──▶ BOOTSTRAPPING ──▶ RUNNING ──▶ STOPPING ──▶ tombstoned, or gone
//!  create ──────┘     └──▶ FAILED ◀──┘ (storage error; the master is told)
//! ```
//!
//! What a crash leaves: a superblock without data is an empty tablet; one marked deleted is deleted on start; data
//! without a superblock is removed when its tablet is created again, and cannot be reached before.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use engine::cfile::cache::{CacheStats, PageCache};
use engine::error::{Error, ErrorKind, Result};
use engine::ids::{OpId, TabletId};
use engine::replica::{OpResult, Replica, RequestId};
use engine::tablet::meta::{DataState, TabletMeta};
use engine::time::Timestamp;
use engine::wal::Wal;
use tokio::sync::Notify;

use super::config::TserverConfig;
use super::entry::{EntryState, TabletEntry};
use super::replica::{ReplicaConfig, ReplicaHandle};
use super::reports::{Pending, ReportLog};
use crate::dirs::{Directory, ServerDirs};
use crate::env::Env;
use crate::proto::kudu::app_status_pb::ErrorCode;
use crate::server_clock::ServerClock;
use crate::wire::status::{TabletError, TabletErrorCode};

/// Told of every tracked request that a log shows to have taken effect.
pub type RestoreRequest = Box<dyn Fn(&RequestId, Timestamp, &OpResult) + Send + Sync>;

/// All tablets of one server.
pub struct Tablets {
    env: Env,
    clock: ServerClock,
    dirs: ServerDirs,
    config: TserverConfig,
    cache: Arc<PageCache>,
    restore: RestoreRequest,
    entries: Mutex<BTreeMap<TabletId, Arc<TabletEntry>>>,
    reports: Arc<Mutex<ReportLog>>,
    /// Rung when the masters should hear something soon.
    hint: Arc<Notify>,
}

impl Tablets {
    pub fn new(
        env: &Env,
        clock: &ServerClock,
        dirs: ServerDirs,
        config: &TserverConfig,
        restore: RestoreRequest,
    ) -> Tablets {
        Tablets {
            env: env.clone(),
            clock: clock.clone(),
            dirs,
            config: config.clone(),
            cache: PageCache::new(config.page_cache_bytes),
            restore,
            entries: Mutex::default(),
            reports: Arc::default(),
            hint: Arc::default(),
        }
    }

    pub fn dirs(&self) -> &ServerDirs {
        &self.dirs
    }

    /// Bytes of decoded pages in memory.
    pub fn cached_bytes(&self) -> u64 {
        self.cache.stats().bytes
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

    /// Reads every superblock. A tablet whose superblock cannot be read fails the start: nothing is known of it,
    /// so nobody could be told that it failed.
    pub fn load(&self) -> Result<()> {
        for dir in &self.dirs.data {
            let at = |error: Error| error.context(format!("the directory {}", dir.path));
            for id in TabletMeta::list(&*dir.disk).map_err(at)? {
                let meta = TabletMeta::load(&*dir.disk, id).map_err(at)?;
                if meta.data_state == DataState::Deleted {
                    Replica::delete(&*self.dirs.wal.disk, &*dir.disk, id, None).map_err(at)?;
                    continue;
                }
                self.entries().insert(id, Arc::new(TabletEntry::new(meta, dir.clone())));
                self.report_log().changed(id);
            }
        }
        Ok(())
    }

    /// Replays the log of every tablet that [`Tablets::load`] found, one after the other.
    pub async fn bootstrap(&self) {
        for entry in self.all() {
            if matches!(entry.state(), EntryState::Bootstrapping) {
                let opened = self.env.run(|| self.open_replica(&entry)).await;
                self.settle(&entry, opened);
            }
        }
    }

    fn open_replica(&self, entry: &TabletEntry) -> Result<(Replica, Wal)> {
        let (wal_disk, data_disk) = (self.dirs.wal.disk.clone(), entry.data_dir.disk.clone());
        let config = self.config.tablet.clone();
        let (replica, wal, report) =
            Replica::open(wal_disk, data_disk, entry.id, config, self.cache.clone())?;
        for (request, timestamp, result) in &report.completed_requests {
            // An operation that could not be done is none that a retry must not repeat.
            if let Ok(result) = result {
                (self.restore)(request, *timestamp, result);
            }
        }
        for note in &report.notes {
            tracing::info!(tablet = %entry.id, %note);
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
        let on_failure = move || {
            reports.lock().expect("nobody panics while holding it").changed(id);
            hint.notify_waiters();
        };
        let config = ReplicaConfig {
            log_sync: self.config.log_sync,
            pending_bytes_max: self.config.replica_pending_bytes_max,
            on_failure: Arc::new(on_failure),
        };
        ReplicaHandle::start(&self.env, &self.clock, replica, wal, config)
    }

    /// Makes a tablet without rows and starts it.
    pub async fn create(&self, meta: TabletMeta) -> Result<(), TabletError> {
        let id = meta.tablet;
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
        let created = self.env.run(|| self.create_replica(meta, &dir)).await;
        if let Err(error) = &created {
            let error = TabletError::of(TabletErrorCode::UnknownError, error);
            self.entries().remove(&id);
            self.report_log().removed(id);
            return Err(error);
        }
        self.settle(&entry, created);
        Ok(())
    }

    fn create_replica(&self, meta: TabletMeta, dir: &Directory) -> Result<(Replica, Wal)> {
        let (wal_disk, data_disk) = (self.dirs.wal.disk.clone(), dir.disk.clone());
        Replica::create(wal_disk, data_disk, meta, self.config.tablet.clone(), self.cache.clone())
    }

    /// Spreads tablets evenly over the data directories.
    fn emptiest_data_dir(&self) -> Arc<Directory> {
        let entries = self.entries();
        let count =
            |dir: &Directory| entries.values().filter(|entry| entry.data_dir.path == dir.path).count();
        let emptiest = self.dirs.data.iter().min_by_key(|dir| count(dir));
        emptiest.expect("a server has a data directory").clone()
    }

    /// Deletes a tablet's data. A tombstone keeps what the replica must never forget: how far its log went.
    pub async fn delete(&self, entry: &Arc<TabletEntry>, tombstone: bool) -> Result<(), TabletError> {
        let found = entry.transition(|state| match state {
            EntryState::Bootstrapping | EntryState::Stopping => None,
            EntryState::Tombstoned(_) if tombstone => None,
            _ => Some(EntryState::Stopping),
        });
        let last_op = match found {
            EntryState::Running(replica) => {
                drop(replica.stop().await);
                replica.last_op()
            }
            EntryState::Tombstoned(_) if tombstone => return Ok(()),
            EntryState::Tombstoned(last) => last,
            EntryState::Failed(_) | EntryState::Stopped => OpId::MIN,
            EntryState::Bootstrapping | EntryState::Stopping => {
                let what = format!("Tablet {} is {}", entry.id, entry.state_pb().as_str_name());
                let code = TabletErrorCode::AlreadyInprogress;
                return Err(TabletError::new(code, ErrorCode::AlreadyPresent, what));
            }
        };
        let deleted = self.env.run(|| self.delete_data(entry, tombstone, last_op)).await;
        if let Err(error) = deleted {
            entry.set_state(EntryState::Failed(error.clone()));
            self.mark_changed(entry.id);
            return Err(error.into());
        }
        if tombstone {
            entry.set_state(EntryState::Tombstoned(last_op));
            self.mark_changed(entry.id);
        } else {
            entry.set_state(EntryState::Stopped);
            self.entries().remove(&entry.id);
            self.report_log().removed(entry.id);
            self.hint.notify_waiters();
        }
        Ok(())
    }

    fn delete_data(&self, entry: &TabletEntry, tombstone: bool, last_op: OpId) -> Result<()> {
        let (wal, data) = (&*self.dirs.wal.disk, &*entry.data_dir.disk);
        match Replica::delete(wal, data, entry.id, tombstone.then_some(last_op)) {
            Err(error) if error.kind == ErrorKind::NotFound && !tombstone => Ok(()),
            deleted => deleted,
        }
    }

    fn report_log(&self) -> MutexGuard<'_, ReportLog> {
        self.reports.lock().expect("nobody panics while holding the report log")
    }

    /// The masters should hear of this tablet soon.
    pub fn mark_changed(&self, id: TabletId) {
        self.report_log().changed(id);
        self.hint.notify_waiters();
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

fn already_there(entry: &TabletEntry) -> TabletError {
    let (code, what) = match entry.state() {
        EntryState::Bootstrapping | EntryState::Stopping => {
            (TabletErrorCode::AlreadyInprogress, format!("Tablet {} is being worked on", entry.id))
        }
        _ => (TabletErrorCode::TabletAlreadyExists, format!("Tablet already exists: {}", entry.id)),
    };
    TabletError::new(code, ErrorCode::AlreadyPresent, what)
}
