//! What the calls of one tablet server share.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use engine::error::Result;
use engine::ids::Uuid;
use engine::time::Timestamp;

use super::config::TserverConfig;
use super::live::Live;
use super::maintenance::MemoryPressure;
use super::numbers::Numbers;
use super::scan::OpenScanner;
use super::scanners::ScannerTable;
use super::tablets::Tablets;
use crate::env::Env;
use crate::proto::kudu::app_status_pb::ErrorCode;
use crate::server::Common;
use crate::server_clock::ServerClock;
use crate::wire::status::{TabletError, TabletErrorCode};

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
            memory: MemoryPressure::new(env, config.memory_soft_percent),
            common,
            clock,
            tablets,
            config,
            numbers: Numbers::default(),
            live,
            scanners,
            quiescing: AtomicBool::new(false),
        })
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
        let uuid = self.uuid().to_string();
        match dest_uuid {
            Some(dest) if dest.as_ref() != uuid.as_bytes() => Err(TabletError::new(
                TabletErrorCode::WrongServerUuid,
                ErrorCode::InvalidArgument,
                format!("this is server {uuid}, not {}", String::from_utf8_lossy(dest)),
            )),
            _ => Ok(()),
        }
    }

    /// Why no write may begin now, if none may: memory is short.
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
