//! What the calls of one tablet server share.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::time::Duration;

use bytes::Bytes;
use engine::error::Result;
use engine::ids::Uuid;
use engine::time::Timestamp;

use super::config::TserverConfig;
use super::consensus;
use super::copy::{Copies, CopyService};
use super::live::Live;
use super::memory::MemoryPressure;
use super::numbers::Numbers;
use super::scan::OpenScanner;
use super::scanners::ScannerTable;
use super::tablets::Tablets;
use crate::env::Env;
use crate::server::Common;
use crate::server_clock::ServerClock;
use crate::wire::status::TabletError;

/// One tablet server.
pub struct Server {
    pub env: Env,
    pub config: TserverConfig,
    pub common: Common,
    pub clock: ServerClock,
    pub tablets: Tablets,
    pub memory: MemoryPressure,
    pub numbers: Numbers,
    pub live: Live,
    /// Copies onto this server.
    pub copies: Copies,
    copy_service: OnceLock<Weak<CopyService>>,
    scanners: Mutex<ScannerTable<OpenScanner>>,
    quiescing: AtomicBool,
}

impl Server {
    pub fn new(
        env: &Env,
        config: TserverConfig,
        common: Common,
        clock: ServerClock,
        tablets: Tablets,
    ) -> Result<Server> {
        let live = Live::new(&config)?;
        let scanners = Mutex::new(ScannerTable::new(live.scanner_ttl()));
        Ok(Server {
            env: env.clone(),
            memory: MemoryPressure::new(&common.memory, config.memory_soft_percent),
            common,
            clock,
            tablets,
            config,
            numbers: Numbers::default(),
            live,
            copies: Copies::default(),
            copy_service: OnceLock::new(),
            scanners,
            quiescing: AtomicBool::new(false),
        })
    }

    /// Copies from this server, if it serves.
    pub fn copy_service(&self) -> Option<Arc<CopyService>> {
        self.copy_service.get().and_then(Weak::upgrade)
    }

    /// The service refers to the server, so it is not owned by it.
    pub fn set_copy_service(&self, service: &Arc<CopyService>) {
        self.copy_service.get_or_init(|| Arc::downgrade(service));
    }

    pub fn uuid(&self) -> Uuid {
        self.tablets.dirs().uuid
    }

    pub fn scanners(&self) -> MutexGuard<'_, ScannerTable<OpenScanner>> {
        let mut scanners = self.scanners.lock().expect("nobody panics while holding the scanner table");
        scanners.set_ttl(self.live.scanner_ttl());
        scanners
    }

    /// A quiescing server finishes the scans it has and begins no others.
    pub fn is_quiescing(&self) -> bool {
        self.quiescing.load(Ordering::Relaxed)
    }

    pub fn set_quiescing(&self, quiescing: bool) {
        self.quiescing.store(quiescing, Ordering::Relaxed);
    }

    /// An error if the request is meant for another server.
    pub fn check_destination(&self, dest_uuid: Option<&Bytes>) -> Result<(), TabletError> {
        consensus::check_destination(self.uuid(), dest_uuid)
    }

    /// Why a write may not begin now, if it may not: memory is short.
    pub fn refuse_write(&self) -> Option<String> {
        self.memory.refuse(self.env.rng.next_u64())
    }

    /// Waits until every clock that keeps its error bound has passed `timestamp`.
    pub async fn wait_until_past(&self, timestamp: Timestamp) {
        loop {
            let wall = self.clock.reading().wall;
            let earliest = wall.micros.saturating_sub(wall.error_micros);
            if earliest > timestamp.micros() {
                return;
            }
            self.env.sleep(Duration::from_micros(timestamp.micros() - earliest + 1)).await;
        }
    }
}
