//! A simulated machine, which outlives the node on it: disks, clock error, memory, randomness.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use engine::disk::Disk;
use engine::disk::mem::{DiskCost, FaultCounts, MemDisk};
use engine::observer::ObserverHandle;
use engine::sync::{Mutex, MutexGuard};
use engine::time::{Instant, WallTime};
use nyala_common::env::kerberos::Kerberos;
use nyala_common::env::kerberos_double::KerberosDouble;
use nyala_common::env::{Disks, MemoryBudget, Rng};
use sim_plan::RandomStream;

use crate::draws::{DrawSource, Purpose, keyed, name_word};
use crate::event_log::EventLog;
use crate::live_tasks::{LiveTaskGuard, LiveTasks};
use crate::trigger::Triggers;

pub struct Machine {
    pub name: String,
    pub log: EventLog,
    devices: Mutex<MachineDevices>,
    files: Mutex<BTreeMap<String, Vec<u8>>>,
    draws: Mutex<MachineDraws>,
    memory_bytes: AtomicU64,
    clock: Mutex<WallClock>,
    cpu_factor: AtomicU64,
    /// Spans in which work had to wait for devices.
    overloads: Mutex<Vec<(Instant, Instant)>>,
    observer: Mutex<ObserverHandle>,
    triggers: Triggers,
    kerberos: Mutex<Option<KerberosDouble>>,
    /// Tasks of the running process.
    tasks: Mutex<LiveTasks>,
}

struct MachineDevices {
    /// Devices by mount directory.
    mounted: BTreeMap<String, Device>,
    cost: DiskCost,
    /// Counters of devices that were replaced.
    counts_before: Vec<FaultCounts>,
    /// Number of times that all disks were replaced.
    replaced: u64,
}

/// Draws of a machine. By key, those of a node are named by its start and their number since.
struct MachineDraws {
    source: DrawSource,
    /// The machine's name, in keys.
    host: u64,
    starts: u64,
    drawn: u64,
}

impl MachineDraws {
    fn next(&mut self) -> u64 {
        self.drawn += 1;
        self.source.draw(Purpose::Node, [self.host, self.starts, self.drawn])
    }
}

/// Work that a thread of the pool takes late, one in this many; and the longest time until then, all bits set.
const LATE_ONE_IN: u64 = 8;
const POOL_NANOS_MAX: u64 = (1 << 18) - 1;
/// Waiting time for a device from which on it is overloaded.
const OVERLOADED_FROM: Duration = Duration::from_secs(1);

/// One device: operations are served one after the other.
struct Device {
    disk: MemDisk,
    busy_until: Instant,
    /// Factor by which all operations are slower.
    factor: u32,
}

/// Difference of a wall clock from the true time.
#[derive(Debug, Clone, Copy)]
struct WallClock {
    offset_us: i64,
    drift_ppm: i64,
    /// True time in microseconds since which it drifts.
    drifts_since_us: u64,
    error_us: u64,
    /// Time of the world since which it has this error.
    error_since: Duration,
}

/// A flash disk: 20 us per operation, 2 GB/s, half a millisecond per sync.
const COST: DiskCost = DiskCost {
    op: Duration::from_micros(20),
    kib: Duration::from_nanos(500),
    sync: Duration::from_micros(500),
};
const MEMORY_BYTES: u64 = 1 << 30;
const CLOCK_ERROR_MICROS: u64 = 1_000;
/// CPU time of a piece of work in addition to its disk operations.
const CPU_NANOS: u64 = 2_000;

impl Machine {
    /// `seed`: decides its disks' crashes and its node's randomness, as a stream.
    pub fn new(name: &str, seed: u64, log: EventLog) -> Machine {
        Machine::drawing(name, DrawSource::Stream(Box::new(RandomStream::unnamed(seed))), log)
    }

    /// `source`: the draws for its disks' crashes and its node's randomness.
    pub fn drawing(name: &str, source: DrawSource, log: EventLog) -> Machine {
        let devices =
            MachineDevices { mounted: BTreeMap::new(), cost: COST, counts_before: Vec::new(), replaced: 0 };
        let clock = WallClock {
            offset_us: 0,
            drift_ppm: 0,
            drifts_since_us: 0,
            error_us: CLOCK_ERROR_MICROS,
            error_since: Duration::ZERO,
        };
        Machine {
            name: name.to_string(),
            log,
            devices: Mutex::new(devices),
            files: Mutex::default(),
            draws: Mutex::new(MachineDraws { source, host: name_word(name), starts: 0, drawn: 0 }),
            memory_bytes: AtomicU64::new(MEMORY_BYTES),
            clock: Mutex::new(clock),
            cpu_factor: AtomicU64::new(1),
            overloads: Mutex::new(Vec::new()),
            observer: Mutex::default(),
            triggers: Triggers::default(),
            kerberos: Mutex::default(),
            tasks: Mutex::default(),
        }
    }

    /// Lets the node's randomness come from another seed from now on. Crashes of its disks stay as they were.
    pub fn reseed(&self, seed: u64) {
        let source = &mut self.draws.lock().source;
        *source = match source {
            DrawSource::Stream(_) => DrawSource::Stream(Box::new(RandomStream::unnamed(seed))),
            DrawSource::Keyed(_) => DrawSource::Keyed(seed),
        };
    }

    /// Begins the draws of another start of its node.
    pub fn begin_start(&self) {
        let mut draws = self.draws.lock();
        (draws.starts, draws.drawn) = (draws.starts + 1, 0);
    }

    /// Gives the machine a ticket, and the means to use it.
    pub fn set_kerberos(&self, kerberos: KerberosDouble) {
        *self.kerberos.lock() = Some(kerberos);
    }

    /// Returns the machine's Kerberos; `None` in a cluster without security.
    pub fn kerberos(&self) -> Option<Arc<dyn Kerberos>> {
        self.kerberos.lock().clone().map(|kerberos| Arc::new(kerberos) as Arc<dyn Kerberos>)
    }

    /// Returns the disk behind a directory; creates it at the first call.
    pub fn disk(&self, dir: &str) -> MemDisk {
        let mut devices = self.devices();
        if let Some(device) = devices.mounted.get(dir) {
            return device.disk.clone();
        }
        let disk = self.new_disk(dir, devices.replaced);
        disk.set_cost(devices.cost);
        let device = Device { disk: disk.clone(), busy_until: Instant(0), factor: 1 };
        devices.mounted.insert(dir.to_string(), device);
        disk
    }

    /// Creates a disk. By key, its draws are named by the directory and the number of times that disks were replaced.
    fn new_disk(&self, dir: &str, replaced: u64) -> MemDisk {
        let draws = &mut *self.draws.lock();
        match &mut draws.source {
            DrawSource::Stream(stream) => MemDisk::new(stream.next_u64()),
            DrawSource::Keyed(seed) => {
                MemDisk::keyed(keyed(*seed, Purpose::Disk, [draws.host, name_word(dir), replaced]))
            }
        }
    }

    /// Sets the latencies of every device.
    pub fn set_cost(&self, cost: DiskCost) {
        let mut devices = self.devices();
        devices.cost = cost;
        devices.mounted.values().for_each(|device| device.disk.set_cost(cost));
    }

    /// Stalls the device behind `dir` until then.
    pub fn stall(&self, dir: &str, until: Instant) {
        if let Some(device) = self.devices().mounted.get_mut(dir) {
            device.busy_until = device.busy_until.max(until);
        }
    }

    /// Makes the device behind `dir` this many times as slow.
    pub fn slow_disk(&self, dir: &str, factor: u32) {
        if let Some(device) = self.devices().mounted.get_mut(dir) {
            device.factor = factor;
        }
    }

    /// Makes all CPU work this many times as slow.
    pub fn slow_cpu(&self, factor: u64) {
        self.cpu_factor.store(factor, Ordering::Relaxed);
    }

    /// Cuts the power: every disk keeps what is durable and perhaps some of the rest.
    pub fn crash_disks(&self) {
        self.forget_tasks();
        let mut devices = self.devices();
        for device in devices.mounted.values_mut() {
            device.disk.crash();
            device.busy_until = Instant(0);
        }
    }

    /// Ends the node's process as the operating system does, which closes its files. Memory of it that leaks in a
    /// reference cycle must not keep a lock.
    pub fn end_process(&self) {
        self.forget_tasks();
        self.devices().mounted.values().for_each(|device| device.disk.end_process());
    }

    /// Counts a task of the running process until the guard is dropped.
    pub fn begin_task(&self, name: &'static str) -> LiveTaskGuard {
        self.tasks.lock().begin(name)
    }

    /// Returns the tasks of the running process that have not ended.
    pub fn live_tasks(&self) -> LiveTasks {
        self.tasks.lock().clone()
    }

    /// Begins the counts of another process: tasks of a killed one may be dropped late, or never.
    fn forget_tasks(&self) {
        *self.tasks.lock() = LiveTasks::default();
    }

    /// Replaces the disks by empty ones.
    pub fn wipe_disks(&self) {
        let mut devices = self.devices();
        let gone = std::mem::take(&mut devices.mounted);
        devices.replaced += 1;
        devices.counts_before.extend(gone.values().map(|device| device.disk.fault_counts()));
    }

    /// Unmounts the disk of a directory, in whose place an empty one comes. The machine's process has ended.
    pub fn unmount(&self, dir: &str) -> MemDisk {
        let disk = self.disk(dir);
        let mut devices = self.devices();
        devices.mounted.remove(dir);
        devices.replaced += 1;
        disk
    }

    /// Mounts a disk at a directory, in place of the one that is there.
    pub fn mount(&self, dir: &str, disk: MemDisk) {
        let device = Device { disk, busy_until: Instant(0), factor: 1 };
        self.devices().mounted.insert(dir.to_string(), device);
    }

    /// Returns true if power was cut within an operation and is not back.
    pub fn lost_power(&self) -> bool {
        self.devices().mounted.values().any(|device| device.disk.lost_power())
    }

    /// Returns the fault counters of each of its disks, replaced ones included.
    pub fn fault_counts(&self) -> Vec<FaultCounts> {
        let devices = self.devices();
        let mounted = devices.mounted.values().map(|device| device.disk.fault_counts());
        devices.counts_before.iter().copied().chain(mounted).collect()
    }

    /// Returns the number of operations of its disks, those of replaced disks not included.
    pub fn disk_op_count(&self) -> u64 {
        self.devices().mounted.values().map(|device| device.disk.op_count()).sum()
    }

    /// Returns true if its disks have executed all operations correctly so far and have power.
    pub fn disks_are_fault_free(&self) -> bool {
        self.disks_were_at_most_full() && self.fault_counts().iter().all(|counts| counts.full == 0)
    }

    /// Returns true if its disks have power, and failed operations only for lack of space so far.
    pub fn disks_were_at_most_full(&self) -> bool {
        !self.lost_power() && self.fault_counts().iter().all(|counts| !had_disk_fault(counts))
    }

    /// Returns true if files of its disks are not as they were written, as far as the disks know.
    pub fn disks_are_damaged(&self) -> bool {
        self.fault_counts().iter().any(is_damaged)
    }

    /// Returns the time until a thread of the pool takes work that begins at `nanos` of the world: mostly none, now and
    /// then as long as a disk operation, so that what is checked before the work may have changed by then.
    pub fn pool_delay(&self, nanos: u64) -> Duration {
        let drawn = keyed(name_word(&self.name), Purpose::Pool, [nanos, 0, 0]);
        let is_late = drawn.is_multiple_of(LATE_ONE_IN);
        if is_late { Duration::from_nanos(drawn >> 8 & POOL_NANOS_MAX) } else { Duration::ZERO }
    }

    /// Returns the time at which the work just done would have ended: devices serve in turn.
    pub fn busy_until(&self, now: Instant) -> Instant {
        let cpu = CPU_NANOS * self.cpu_factor.load(Ordering::Relaxed);
        let mut end = now.after(Duration::from_nanos(cpu));
        for device in self.devices().mounted.values_mut() {
            let owed = device.disk.take_accrued_latency();
            if !owed.is_zero() {
                device.busy_until = device.busy_until.max(now).after(owed * device.factor);
                end = end.max(device.busy_until);
            }
        }
        if end.since(now) >= OVERLOADED_FROM {
            self.note_overload(now, end);
        }
        end
    }

    fn note_overload(&self, from: Instant, to: Instant) {
        let mut overloads = self.overloads.lock();
        match overloads.last_mut() {
            Some(last) if from <= last.1 => last.1 = last.1.max(to),
            _ => overloads.push((from, to)),
        }
    }

    /// Returns the spans in which work had to wait long for devices: they had more to do than they can.
    pub fn overloads(&self) -> Vec<(Instant, Instant)> {
        self.overloads.lock().clone()
    }

    /// Puts a file outside of any disk.
    pub fn put_file(&self, path: &str, content: Vec<u8>) {
        self.files.lock().insert(path.to_string(), content);
    }

    pub fn set_memory_bytes(&self, bytes: u64) {
        self.memory_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Sets the wall clock's offset from the true time, and its stated error. An offset beyond the stated error breaks
    /// the clock's contract, as real clocks do.
    pub fn set_clock(&self, skew_micros: i64, error_micros: u64) {
        let mut clock = self.clock();
        *clock = WallClock {
            offset_us: skew_micros,
            drift_ppm: 0,
            drifts_since_us: 0,
            error_us: error_micros,
            error_since: Duration::ZERO,
        };
    }

    /// Makes the wall clock jump.
    pub fn jump_clock(&self, micros: i64) {
        self.clock().offset_us += micros;
    }

    /// Sets the drift of the wall clock, in microseconds per second, from the true time `now_us` on.
    pub fn drift_clock(&self, ppm: i64, now_us: u64) {
        let mut clock = self.clock();
        clock.offset_us = clock.offset(now_us);
        clock.drift_ppm = ppm;
        clock.drifts_since_us = now_us;
    }

    pub fn set_clock_error(&self, micros: u64, now: Duration) {
        let mut clock = self.clock();
        (clock.error_us, clock.error_since) = (micros, now);
    }

    /// Returns how long the stated error has been above a limit; zero if it is not.
    pub fn clock_wrong_for(&self, limit_micros: u64, now: Duration) -> Duration {
        let clock = self.clock();
        if clock.error_us > limit_micros { now.saturating_sub(clock.error_since) } else { Duration::ZERO }
    }

    /// Returns the wall clock's reading at a true time.
    pub fn wall(&self, true_micros: u64) -> WallTime {
        let clock = self.clock();
        let micros = true_micros.saturating_add_signed(clock.offset(true_micros));
        WallTime { micros, error_micros: clock.error_us }
    }

    /// The triggers armed on its server.
    pub fn triggers(&self) -> &Triggers {
        &self.triggers
    }

    /// Sets the observer of programs that start on this machine from now on.
    pub fn set_observer(&self, observer: ObserverHandle) {
        *self.observer.lock() = observer;
    }

    pub fn observer(&self) -> ObserverHandle {
        self.observer.lock().clone()
    }

    fn clock(&self) -> MutexGuard<'_, WallClock> {
        self.clock.lock()
    }

    fn devices(&self) -> MutexGuard<'_, MachineDevices> {
        self.devices.lock()
    }
}

impl WallClock {
    fn offset(&self, true_us: u64) -> i64 {
        let drifted = true_us.saturating_sub(self.drifts_since_us) as i64 / 1_000 * self.drift_ppm / 1_000;
        self.offset_us + drifted
    }
}

/// Returns true if the device failed an operation though it had space, or executed a wrong one.
fn had_disk_fault(counts: &FaultCounts) -> bool {
    counts.ops_failed + counts.syncs_failed > 0 || is_damaged(counts)
}

/// Returns true if files of the device are not as they were written.
fn is_damaged(counts: &FaultCounts) -> bool {
    let writes = counts.writes_phantom + counts.writes_misdirected;
    counts.pages_unreadable + counts.bits_flipped + writes > 0
}

impl Disks for Machine {
    fn open(&self, dir: &str) -> io::Result<Arc<dyn Disk>> {
        Ok(Arc::new(self.disk(dir)))
    }

    fn read_file(&self, path: &str) -> io::Result<Vec<u8>> {
        let files = self.files.lock();
        files.get(path).cloned().ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

/// One disk as the only one of a machine.
#[derive(Clone)]
pub struct MountedDisk(pub MemDisk);

impl Disks for MountedDisk {
    fn open(&self, _dir: &str) -> io::Result<Arc<dyn Disk>> {
        Ok(Arc::new(self.0.clone()))
    }

    fn read_file(&self, _path: &str) -> io::Result<Vec<u8>> {
        Err(io::ErrorKind::NotFound.into())
    }
}

impl MemoryBudget for Machine {
    fn limit_bytes(&self) -> u64 {
        self.memory_bytes.load(Ordering::Relaxed)
    }
}

impl Rng for Machine {
    fn next_u64(&self) -> u64 {
        self.draws.lock().next()
    }
}
