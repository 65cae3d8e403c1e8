//! A simulated computer, as far as it outlives the node that runs on it: disks, clock error, memory, randomness.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use engine::disk::Disk;
use engine::disk::mem::{DiskCost, FaultCounts, MemDisk};
use engine::time::{Instant, WallTime};
use engine::watch::Watch;
use node::env::{Disks, MemoryBudget, Rng};
use rand_chacha::ChaCha12Rng;
use rand_chacha::rand_core::{Rng as _, SeedableRng};

use crate::fuse::Fuses;
use crate::trace::EventLog;

pub struct Machine {
    pub name: String,
    pub log: EventLog,
    devices: Mutex<Devices>,
    files: Mutex<BTreeMap<String, Vec<u8>>>,
    rng: Mutex<ChaCha12Rng>,
    memory_bytes: AtomicU64,
    clock: Mutex<WallClock>,
    cpu_factor: AtomicU64,
    watch: Mutex<Watch>,
    fuses: Fuses,
}

struct Devices {
    /// By the directory they are mounted at.
    mounted: BTreeMap<String, Device>,
    cost: DiskCost,
    /// What became of devices that were thrown away.
    counts_before: Vec<FaultCounts>,
}

/// One device: what waits for it waits in line.
struct Device {
    disk: MemDisk,
    busy_until: Instant,
    /// Everything takes so many times as long.
    factor: u32,
}

/// How far a wall clock is from the true time.
#[derive(Debug, Clone, Copy)]
struct WallClock {
    offset_us: i64,
    drift_ppm: i64,
    /// Since when it drifts by that, in true time.
    drifts_since_us: u64,
    error_us: u64,
}

/// A disk of flash: 20 us an operation, 2 GB/s, half a millisecond a sync.
const COST: DiskCost = DiskCost {
    op: Duration::from_micros(20),
    kib: Duration::from_nanos(500),
    sync: Duration::from_micros(500),
};
const MEMORY_BYTES: u64 = 1 << 30;
const CLOCK_ERROR_MICROS: u64 = 1_000;
/// What a piece of work takes on top of its disk operations.
const CPU_NANOS: u64 = 2_000;

impl Machine {
    /// `seed`: decides its disks' crashes and its node's randomness.
    pub fn new(name: &str, seed: u64, log: EventLog) -> Machine {
        let devices = Devices { mounted: BTreeMap::new(), cost: COST, counts_before: Vec::new() };
        let clock =
            WallClock { offset_us: 0, drift_ppm: 0, drifts_since_us: 0, error_us: CLOCK_ERROR_MICROS };
        Machine {
            name: name.to_string(),
            log,
            devices: Mutex::new(devices),
            files: Mutex::default(),
            rng: Mutex::new(ChaCha12Rng::seed_from_u64(seed)),
            memory_bytes: AtomicU64::new(MEMORY_BYTES),
            clock: Mutex::new(clock),
            cpu_factor: AtomicU64::new(1),
            watch: Mutex::default(),
            fuses: Fuses::default(),
        }
    }

    /// The disk behind a directory, made when it is first asked for.
    pub fn disk(&self, dir: &str) -> MemDisk {
        let mut devices = self.devices();
        if let Some(device) = devices.mounted.get(dir) {
            return device.disk.clone();
        }
        let disk = MemDisk::new(self.next_u64());
        disk.set_cost(devices.cost);
        let device = Device { disk: disk.clone(), busy_until: Instant(0), factor: 1 };
        devices.mounted.insert(dir.to_string(), device);
        disk
    }

    /// What operations of every device take from now on.
    pub fn set_cost(&self, cost: DiskCost) {
        let mut devices = self.devices();
        devices.cost = cost;
        devices.mounted.values().for_each(|device| device.disk.set_cost(cost));
    }

    /// The device behind `dir` does nothing until then.
    pub fn stall(&self, dir: &str, until: Instant) {
        if let Some(device) = self.devices().mounted.get_mut(dir) {
            device.busy_until = device.busy_until.max(until);
        }
    }

    /// The device behind `dir` takes so many times as long.
    pub fn slow_disk(&self, dir: &str, factor: u32) {
        if let Some(device) = self.devices().mounted.get_mut(dir) {
            device.factor = factor;
        }
    }

    /// All that burns CPU takes so many times as long.
    pub fn slow_cpu(&self, factor: u64) {
        self.cpu_factor.store(factor, Ordering::Relaxed);
    }

    /// The power fails: every disk keeps what it must and perhaps some of the rest.
    pub fn crash_disks(&self) {
        let mut devices = self.devices();
        for device in devices.mounted.values_mut() {
            device.disk.crash();
            device.busy_until = Instant(0);
        }
    }

    /// Its program is gone, and the operating system closes what that had open. Memory of it that lingers in this
    /// process, held by itself in a circle, must not keep a lock.
    pub fn end_process(&self) {
        self.devices().mounted.values().for_each(|device| device.disk.end_process());
    }

    /// The disks are taken out, and empty ones put in.
    pub fn wipe_disks(&self) {
        let mut devices = self.devices();
        let gone = std::mem::take(&mut devices.mounted);
        devices.counts_before.extend(gone.values().map(|device| device.disk.fault_counts()));
    }

    /// Whether the power failed within an operation, and has not come back.
    pub fn lost_power(&self) -> bool {
        self.devices().mounted.values().any(|device| device.disk.lost_power())
    }

    /// What befell each of its disks, those thrown away included.
    pub fn fault_counts(&self) -> Vec<FaultCounts> {
        let devices = self.devices();
        let mounted = devices.mounted.values().map(|device| device.disk.fault_counts());
        devices.counts_before.iter().copied().chain(mounted).collect()
    }

    /// Whether its disks did all that they were asked to so far, and have their power.
    pub fn disks_obey(&self) -> bool {
        !self.lost_power() && self.fault_counts().iter().all(|counts| !has_disobeyed(counts))
    }

    /// When the work that was just done would have been done, had it taken its time: devices serve in turn.
    pub fn work_ends(&self, now: Instant) -> Instant {
        let cpu = CPU_NANOS * self.cpu_factor.load(Ordering::Relaxed);
        let mut end = now.after(Duration::from_nanos(cpu));
        for device in self.devices().mounted.values_mut() {
            let owed = device.disk.take_owed_latency();
            if !owed.is_zero() {
                device.busy_until = device.busy_until.max(now).after(owed * device.factor);
                end = end.max(device.busy_until);
            }
        }
        end
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
        let mut clock = self.clock();
        *clock =
            WallClock { offset_us: skew_micros, drift_ppm: 0, drifts_since_us: 0, error_us: error_micros };
    }

    /// The wall clock jumps by so much.
    pub fn jump_clock(&self, micros: i64) {
        self.clock().offset_us += micros;
    }

    /// From the true time `now_us` on the wall clock gains so many microseconds a second.
    pub fn drift_clock(&self, ppm: i64, now_us: u64) {
        let mut clock = self.clock();
        clock.offset_us = clock.offset(now_us);
        clock.drift_ppm = ppm;
        clock.drifts_since_us = now_us;
    }

    pub fn set_clock_error(&self, micros: u64) {
        self.clock().error_us = micros;
    }

    /// The wall clock's reading at a true time.
    pub fn wall(&self, true_micros: u64) -> WallTime {
        let clock = self.clock();
        let micros = true_micros.saturating_add_signed(clock.offset(true_micros));
        WallTime { micros, error_micros: clock.error_us }
    }

    /// Power cuts that wait for a moment of its server's.
    pub fn fuses(&self) -> &Fuses {
        &self.fuses
    }

    /// Who is told what happens in programs that start on this machine from now on.
    pub fn set_watch(&self, watch: Watch) {
        *self.watch.lock().expect("nothing panics while it holds the watch") = watch;
    }

    pub fn watch(&self) -> Watch {
        self.watch.lock().expect("nothing panics while it holds the watch").clone()
    }

    fn clock(&self) -> MutexGuard<'_, WallClock> {
        self.clock.lock().expect("nothing panics while it holds the clock")
    }

    fn devices(&self) -> MutexGuard<'_, Devices> {
        self.devices.lock().expect("nothing panics while it holds the devices")
    }
}

impl WallClock {
    fn offset(&self, true_us: u64) -> i64 {
        let drifted = true_us.saturating_sub(self.drifts_since_us) as i64 / 1_000 * self.drift_ppm / 1_000;
        self.offset_us + drifted
    }
}

/// Whether the device failed to do something, or did something else.
fn has_disobeyed(counts: &FaultCounts) -> bool {
    let refused = counts.ops_failed + counts.syncs_failed + counts.full;
    refused + counts.bits_flipped + counts.writes_phantom + counts.writes_misdirected > 0
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
