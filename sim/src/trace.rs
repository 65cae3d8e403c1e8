//! What happened, in order: hashed, so that two runs can be compared, and kept as text if asked for.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};

/// The events of one run; clones share them.
#[derive(Debug, Clone)]
pub struct EventLog {
    log: Arc<Mutex<Log>>,
}

#[derive(Debug)]
struct Log {
    hash: u64,
    count: u64,
    lines: Option<Vec<String>>,
}

/// What a run came to. Equal for equal seeds, or something escaped the simulation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fingerprint {
    pub events: u64,
    pub hash: u64,
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} events, hash {:016x}", self.events, self.hash)
    }
}

/// FNV-1a, 64 bits.
const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const PRIME: u64 = 0x0000_0100_0000_01b3;

fn hash(hash: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(hash, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(PRIME))
}

impl EventLog {
    /// `keep`: whether every event is kept as a line of text, to find where two runs part.
    pub fn new(keep: bool) -> EventLog {
        let log = Log { hash: OFFSET, count: 0, lines: keep.then(Vec::new) };
        EventLog { log: Arc::new(Mutex::new(log)) }
    }

    /// At `nanos` of simulated time `what` happened on `host`, with these bytes.
    pub fn record(&self, nanos: u64, host: &str, what: &str, bytes: &[u8]) {
        let mut log = self.lock();
        log.count += 1;
        for part in [&nanos.to_le_bytes(), host.as_bytes(), what.as_bytes(), bytes] {
            log.hash = hash(log.hash, &(part.len() as u64).to_le_bytes());
            log.hash = hash(log.hash, part);
        }
        let state = log.hash;
        if let Some(lines) = &mut log.lines {
            let millis = nanos / 1_000_000;
            lines.push(format!("{millis:>8} ms {host} {what} {} bytes {state:016x}", bytes.len()));
        }
    }

    pub fn fingerprint(&self) -> Fingerprint {
        let log = self.lock();
        Fingerprint { events: log.count, hash: log.hash }
    }

    /// The events as text; none if they are not kept.
    pub fn lines(&self) -> Vec<String> {
        self.lock().lines.clone().unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, Log> {
        self.log.lock().expect("nothing panics while it holds the log")
    }
}
