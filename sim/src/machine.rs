//! A simulated computer, as far as it outlives the node that runs on it: disks, clock error, memory, randomness.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use engine::disk::Disk;
use engine::disk::mem::{DiskCost, MemDisk};
use engine::time::WallTime;
use node::env::{Disks, MemoryBudget, Rng};
use rand_chacha::ChaCha12Rng;
use rand_chacha::rand_core::{Rng as _, SeedableRng};

use crate::trace::EventLog;

pub struct Machine {
    pub name: String,
    pub log: EventLog,
    disks: Mutex<BTreeMap<String, MemDisk>>,
    files: Mutex<BTreeMap<String, Vec<u8>>>,
    rng: Mutex<ChaCha12Rng>,
    memory_bytes: AtomicU64,
    clock_skew_micros: AtomicI64,
    clock_error_micros: AtomicU64,
}

/// A disk of flash: 20 us an operation, 2 GB/s, half a millisecond a sync.
const COST: DiskCost = DiskCost {
    op: Duration::from_micros(20),
    kib: Duration::from_nanos(500),
    sync: Duration::from_micros(500),
};
const MEMORY_BYTES: u64 = 1 << 30;
const CLOCK_ERROR_MICROS: u64 = 1_000;

impl Machine {
    /// `seed`: decides its disks' crashes and its node's randomness.
    pub fn new(name: &str, seed: u64, log: EventLog) -> Machine {
        Machine {
            name: name.to_string(),
            log,
            disks: Mutex::default(),
            files: Mutex::default(),
            rng: Mutex::new(ChaCha12Rng::seed_from_u64(seed)),
            memory_bytes: AtomicU64::new(MEMORY_BYTES),
            clock_skew_micros: AtomicI64::new(0),
            clock_error_micros: AtomicU64::new(CLOCK_ERROR_MICROS),
        }
    }

    /// The disk behind a directory, made when it is first asked for.
    pub fn disk(&self, dir: &str) -> MemDisk {
        let mut disks = self.disks();
        if let Some(disk) = disks.get(dir) {
            return disk.clone();
        }
        let disk = MemDisk::new(self.next_u64());
        disk.set_cost(COST);
        disks.insert(dir.to_string(), disk.clone());
        disk
    }

    /// The power fails: every disk keeps what it must and perhaps some of the rest.
    pub fn crash_disks(&self) {
        self.disks().values().for_each(MemDisk::crash);
    }

    /// Time that disk operations since the last call would have taken.
    pub fn take_owed_latency(&self) -> Duration {
        self.disks().values().map(MemDisk::take_owed_latency).sum()
    }

    /// Puts a file outside of any disk.
    pub fn put_file(&self, path: &str, content: Vec<u8>) {
        self.files.lock().expect("nothing panics while it holds the files").insert(path.to_string(), content);
    }

    pub fn set_memory_bytes(&self, bytes: u64) {
        self.memory_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Sets how far the wall clock is from the true time, and how far it believes it may be. A `skew` beyond
    /// `error` breaks the clock's promise, as real clocks do.
    pub fn set_clock(&self, skew_micros: i64, error_micros: u64) {
        self.clock_skew_micros.store(skew_micros, Ordering::Relaxed);
        self.clock_error_micros.store(error_micros, Ordering::Relaxed);
    }

    /// The wall clock's reading at a true time.
    pub fn wall(&self, true_micros: u64) -> WallTime {
        let micros = true_micros.saturating_add_signed(self.clock_skew_micros.load(Ordering::Relaxed));
        WallTime { micros, error_micros: self.clock_error_micros.load(Ordering::Relaxed) }
    }

    fn disks(&self) -> MutexGuard<'_, BTreeMap<String, MemDisk>> {
        self.disks.lock().expect("nothing panics while it holds the disks")
    }
}

impl Disks for Machine {
    fn open(&self, dir: &str) -> io::Result<Arc<dyn Disk>> {
        Ok(Arc::new(self.disk(dir)))
    }

    fn read_file(&self, path: &str) -> io::Result<Vec<u8>> {
        let files = self.files.lock().expect("nothing panics while it holds the files");
        files.get(path).cloned().ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

impl MemoryBudget for Machine {
    fn limit_bytes(&self) -> u64 {
        self.memory_bytes.load(Ordering::Relaxed)
    }
}

impl Rng for Machine {
    fn next_u64(&self) -> u64 {
        self.rng.lock().expect("nothing panics while it holds the generator").next_u64()
    }
}
