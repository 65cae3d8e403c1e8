//! State shared by the calls of one tablet server.

use engine::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use bytes::Bytes;
use engine::error::{Error, Result};
use engine::ids::Uuid;
use engine::time::{Instant, Timestamp};
use tokio::sync::{Semaphore, SemaphorePermit};

use super::config::TserverConfig;
use super::copy_manager::CopyManager;
use super::held_history::HeldHistory;
use super::maintenance_log::MaintenanceLog;
use super::master_contacts::MasterContacts;
use super::metrics::TserverMetrics;
use super::open_scanner::OpenScanner;
use super::runtime_flags::RuntimeFlags;
use super::scan_log::ScanLog;
use super::scanners::{ScannerTable, ScannersGuard};
use crate::hosting::consensus_service;
use crate::hosting::copy::CopyService;
use crate::hosting::memory_pressure::MemoryPressure;
use crate::hosting::tablet_entry::TabletEntry;
use crate::hosting::tablet_manager::TabletManager;
use crate::scrub::Scrubber;
use crate::server::ServerContext;
use crate::server::security::ServerIdentity;
use crate::server_clock::ServerClock;
use nyala_common::env::Env;
use nyala_common::wire::errors::TabletError;

/// User name of calls to other servers in a cluster without access lists.
pub const USER: &str = "nyala";

/// Time before a call's deadline at which a wait ends with an error, so that the error can still arrive.
const REPLY_MARGIN: Duration = Duration::from_millis(10);

/// One tablet server.
pub struct TabletServer {
    pub env: Env,
    pub config: TserverConfig,
    pub common: ServerContext,
    pub clock: ServerClock,
    /// Certificate, token keys and access lists.
    pub identity: Arc<ServerIdentity>,
    pub tablets: TabletManager,
    pub memory: MemoryPressure,
    pub metrics: TserverMetrics,
    pub runtime_flags: RuntimeFlags,
    /// Open scans and the last ones that ended.
    pub scan_log: ScanLog,
    /// The running maintenance job and the last ones that ended.
    pub maintenance_log: MaintenanceLog,
    /// Verifies stored files in the background, unless it is off.
    pub scrubber: Option<Arc<Scrubber>>,
    /// Copies onto this server.
    pub copies: CopyManager,
    /// Last replies of the masters.
    pub master_contacts: MasterContacts,
    /// Holds on history, as the leading master listed them.
    pub held_history: HeldHistory,
    copy_service: OnceLock<Weak<CopyService>>,
    scanners: Mutex<ScannerTable<OpenScanner>>,
    /// Places of scans that gave up their call's slot to wait for a snapshot, and read now.
    late_scans: Semaphore,
    quiescing: AtomicBool,
}

impl TabletServer {
    pub fn new(
        env: &Env,
        config: TserverConfig,
        common: ServerContext,
        clock: ServerClock,
        identity: Arc<ServerIdentity>,
        tablets: TabletManager,
    ) -> Result<TabletServer> {
        let runtime_flags = RuntimeFlags::new(&config)?;
        let scrubber = Scrubber::new(env, config.scrub, &config.flags)?;
        let scanners = Mutex::new(ScannerTable::new(runtime_flags.scanner_ttl()));
        let late_scans = Semaphore::new(config.rpc.concurrency.max(1));
        Ok(TabletServer {
            env: env.clone(),
            memory: MemoryPressure::new(&common.memory, config.memory_soft_percent),
            common,
            clock,
            identity,
            tablets,
            config,
            metrics: TserverMetrics::default(),
            runtime_flags,
            scan_log: ScanLog::new(env.clock.clone()),
            maintenance_log: MaintenanceLog::default(),
            scrubber,
            copies: CopyManager::default(),
            master_contacts: MasterContacts::default(),
            held_history: HeldHistory::default(),
            copy_service: OnceLock::new(),
            scanners,
            late_scans,
            quiescing: AtomicBool::new(false),
        })
    }

    /// Returns the service for copies from this server, once it serves.
    pub fn copy_service(&self) -> Option<Arc<CopyService>> {
        self.copy_service.get().and_then(Weak::upgrade)
    }

    /// Sets the service, as a weak reference, because the service owns the server.
    pub fn set_copy_service(&self, service: &Arc<CopyService>) {
        self.copy_service.get_or_init(|| Arc::downgrade(service));
    }

    pub fn uuid(&self) -> Uuid {
        self.tablets.dirs().uuid
    }

    pub fn scanners(&self) -> ScannersGuard<'_, OpenScanner> {
        let mut scanners = ScannersGuard::new(self.scanners.lock());
        scanners.set_ttl(self.runtime_flags.scanner_ttl());
        scanners
    }

    /// Waits for a place to read in, after a wait without a slot. `Throttled` at the deadline.
    pub async fn late_scan(&self, deadline: Instant) -> Result<SemaphorePermit<'_>> {
        let left = deadline.since(self.env.now().mono);
        let place = self.env.timeout(left, self.late_scans.acquire()).await;
        place.and_then(Result::ok).ok_or_else(|| Error::throttled("too many scans read at once; retry"))
    }

    /// Returns true if the server is quiescing: it finishes its scans and rejects new ones.
    pub fn is_quiescing(&self) -> bool {
        self.quiescing.load(Ordering::Relaxed)
    }

    pub fn set_quiescing(&self, quiescing: bool) {
        self.quiescing.store(quiescing, Ordering::Relaxed);
    }

    /// Returns an error if the request is meant for another server.
    pub fn check_destination(&self, dest_uuid: Option<&Bytes>) -> Result<(), TabletError> {
        consensus_service::check_destination(self.uuid(), dest_uuid)
    }

    /// Returns the reason if a write may not begin now because memory is short.
    pub fn check_write_admission(&self) -> Option<String> {
        self.memory.refuse(self.env.rng.next_u64())
    }

    /// Returns the reason if clients may not write to a tablet for now, because of the clock or of disk space.
    pub fn refuse_writes(&self, entry: &TabletEntry) -> Option<String> {
        let why =
            self.common.clock.fault().or_else(|| self.tablets.space().refuse_writes(&entry.data_dir.path))?;
        Some(format!("tablet server {}: {why}; writes resume by themselves", self.uuid()))
    }

    /// Returns the time until every clock that keeps its error bound has passed `timestamp`; zero if all have.
    fn commit_wait(&self, timestamp: Timestamp) -> Duration {
        let wall = self.clock.reading().wall;
        let earliest = wall.micros.saturating_sub(wall.error_micros);
        let ahead = timestamp.micros().checked_sub(earliest);
        ahead.map_or(Duration::ZERO, |ahead| Duration::from_micros(ahead + 1))
    }

    /// Returns the reason if the commit wait of a write that begins now would outlast the call: timestamps are far
    /// ahead of a clock that was set back.
    pub fn refuse_commit_wait(&self, deadline: Option<Instant>) -> Option<String> {
        let left = deadline?.since(self.env.now().mono);
        let wait = self.commit_wait(self.clock.peek());
        (wait > left).then(|| {
            format!(
                "tablet server {}: a commit wait takes {wait:?} now, longer than the call ({left:?} left), as \
                 timestamps are ahead of the clock or its error is large; retry later, or without commit wait",
                self.uuid()
            )
        })
    }

    /// Waits until every clock that keeps its error bound has passed `timestamp`. Returns false if `deadline` is before
    /// that, slightly before it, so that the reply can still arrive in time.
    pub async fn wait_until_past(&self, timestamp: Timestamp, deadline: Option<Instant>) -> bool {
        loop {
            let wait = self.commit_wait(timestamp);
            if wait.is_zero() {
                return true;
            }
            let now = self.env.now().mono;
            let left = deadline.map_or(wait, |deadline| deadline.since(now.after(REPLY_MARGIN)));
            if left.is_zero() {
                return false;
            }
            self.env.sleep(wait.min(left)).await;
        }
    }
}
