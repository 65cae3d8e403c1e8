//! [`MemDisk`]: a disk in memory that provides exactly the durability contract, and no more.
//!
//! ```text
//!            live (reads see it)            durable (survives a crash)
//! a file     synced bytes + later bytes     synced bytes       [`file_content`]
//! the names  the tree now                   the tree as of the last sync of each directory   [`namespace`]
//! ```
//!
//! [`MemDisk::crash`] chooses, by the seed, a state that the contract allows. Of each file it keeps the synced bytes
//! and a prefix of the later writes, the last of them torn at sectors of 512 bytes; of each directory a prefix of its
//! changes. Handles from before a crash fail with `ESTALE`. After [`MemDisk::scatter_unsynced`] it keeps any pages of
//! the later writes instead.
//!
//! Faults that a test injects: the k-th operation fails ([`MemDisk::fail_op`]), a power cut within the k-th
//! operation ([`MemDisk::cut_power_at`]), a full device ([`MemDisk::set_free`]), bit rot ([`MemDisk::flip_bit`]).
//! `faults` has those that apply to a kind of operation or at random, and devices that report writes falsely.
//! A failed sync marks its bytes clean without writing them: reads still see them, a later sync succeeds, and a
//! crash drops them. [`MemDisk::fault_counts`] counts the faults that happened, so that a test can notice a fault
//! that never fired.

use crate::sync::{Mutex, MutexGuard};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;

use super::{Disk, DiskFile, DiskSpace, EntryKind, check_path};
use armed_faults::{ArmedFaults, FaultEffect};
pub use armed_faults::{DiskOpKind, WriteDamage};
pub use fault_counts::FaultCounts;
use file_content::{FileContent, UnsyncedKept, content};
use namespace::{Namespace, NamespaceEntry};

mod armed_faults;
mod fault_counts;
mod faults;
mod file_content;
mod namespace;
mod split_mix;

/// A disk in memory. Clones are handles of the same disk.
#[derive(Clone)]
pub struct MemDisk {
    state: Arc<Mutex<State>>,
}

impl DiskCost {
    /// Costs of a spinning disk: a seek for each operation.
    pub const HDD: DiskCost = DiskCost {
        op: Duration::from_micros(4_000),
        kib: Duration::from_nanos(6_000),
        sync: Duration::from_micros(8_000),
    };
    /// Costs of flash behind a bus.
    pub const SSD: DiskCost = DiskCost {
        op: Duration::from_micros(80),
        kib: Duration::from_nanos(2_000),
        sync: Duration::from_micros(1_000),
    };
    /// Costs of flash without one.
    pub const NVME: DiskCost = DiskCost {
        op: Duration::from_micros(10),
        kib: Duration::from_nanos(300),
        sync: Duration::from_micros(60),
    };
}

/// Simulated time that operations take; all zero by default.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DiskCost {
    /// Time of every operation.
    pub op: Duration,
    /// For each KiB read or appended.
    pub kib: Duration,
    /// Additional time of a sync of a file or directory.
    pub sync: Duration,
}

struct State {
    names: Namespace,
    rng: split_mix::SplitMix64,
    /// Number of crashes; a handle of an earlier epoch is stale.
    epoch: u64,
    ops: u64,
    failures: BTreeMap<u64, Errno>,
    power_cut_at: Option<u64>,
    /// Unsynced bytes that the next crash keeps.
    unsynced_kept: UnsyncedKept,
    armed: ArmedFaults,
    free: u64,
    locks: BTreeSet<String>,
    cost: DiskCost,
    owed: Duration,
    counts: FaultCounts,
}

/// Outcome of one operation.
#[derive(Clone, Copy)]
enum OpOutcome {
    Proceed,
    Fail(Errno),
    /// The power is cut while the operation runs: it may have had its effect, but its caller gets an error.
    PowerCut,
}

const INITIAL_FREE: u64 = 1 << 40;

impl MemDisk {
    /// Creates an empty disk. `seed` decides the outcome of crashes and partial failures.
    pub fn new(seed: u64) -> MemDisk {
        MemDisk::drawing(split_mix::SplitMix64::new(seed))
    }

    /// Creates an empty disk of which each outcome depends on its seed and occasion alone: the number of a crash and a
    /// file's path, the number of an operation. Outcomes that are not drawn change no other.
    pub fn keyed(seed: u64) -> MemDisk {
        MemDisk::drawing(split_mix::SplitMix64::keyed(seed))
    }

    fn drawing(rng: split_mix::SplitMix64) -> MemDisk {
        let state = State {
            names: Namespace::default(),
            rng,
            epoch: 0,
            ops: 0,
            failures: BTreeMap::new(),
            power_cut_at: None,
            unsynced_kept: UnsyncedKept::Prefix,
            armed: ArmedFaults::default(),
            free: INITIAL_FREE,
            locks: BTreeSet::new(),
            cost: DiskCost::default(),
            owed: Duration::ZERO,
            counts: FaultCounts::default(),
        };
        MemDisk { state: Arc::new(Mutex::new(state)) }
    }

    /// Simulates a power failure and restart. Open handles and locks become invalid, pending faults are dropped.
    pub fn crash(&self) {
        let state = &mut *self.state();
        state.epoch += 1;
        state.failures.clear();
        state.power_cut_at = None;
        state.armed.disarm();
        state.locks.clear();
        state.counts.crashes += 1;
        let before = state.names.bytes();
        let kept = std::mem::replace(&mut state.unsynced_kept, UnsyncedKept::Prefix);
        state.names.crash(kept, &mut state.rng, &mut state.counts);
        state.free = (state.free + before).saturating_sub(state.names.bytes());
    }

    /// Makes the next crash keep any pages of unsynced writes, instead of a prefix with a torn end: between two syncs
    /// devices and page caches write in any order.
    pub fn scatter_unsynced(&self) {
        self.state().unsynced_kept = UnsyncedKept::Pages;
    }

    /// Ends the process that used the disk, even if parts of its memory still exist: its files are closed and its locks
    /// released. The disk is unaffected.
    pub fn end_process(&self) {
        let mut state = self.state();
        state.epoch += 1;
        state.locks.clear();
    }

    /// Returns another disk with copies of all files, as a killed process leaves them. Faults and locks stay behind.
    pub fn image(&self) -> MemDisk {
        let image = MemDisk::new(0);
        image.state().names = self.state().names.image();
        image
    }

    /// Makes the `k`-th operation from now (the next is 1) fail with `errno`, an operating system value.
    ///
    /// A failed append has written some prefix. A failed sync has lost the bytes it should have kept.
    pub fn fail_op(&self, k: u64, errno: i32) {
        let mut state = self.state();
        let at = state.ops + k.max(1);
        state.failures.insert(at, Errno::from_raw_os_error(errno));
    }

    /// Cuts the power within the `k`-th operation from now: it and all later ones fail until [`MemDisk::crash`]. Of two
    /// cuts the first one counts, because a second cut does not restore power.
    pub fn cut_power_at(&self, k: u64) {
        let mut state = self.state();
        let at = state.ops + k.max(1);
        state.power_cut_at = Some(state.power_cut_at.map_or(at, |first| first.min(at)));
    }

    /// Returns true if the power was cut within an operation and [`MemDisk::crash`] has not followed yet.
    pub fn lost_power(&self) -> bool {
        let state = self.state();
        state.power_cut_at.is_some_and(|at| state.ops >= at)
    }

    /// Disarms injected faults that have not fired.
    pub fn end_faults(&self) {
        let mut state = self.state();
        state.failures.clear();
        state.power_cut_at = None;
        state.armed.end();
    }

    /// Number of operations begun: every call of [`Disk`] and [`DiskFile`] except `len` and `space`.
    pub fn op_count(&self) -> u64 {
        self.state().ops
    }

    /// Sets how many more bytes fit on the device.
    pub fn set_free(&self, bytes: u64) {
        self.state().free = bytes;
    }

    /// Flips one bit of the byte at `offset` of a file permanently: bit `offset % 8`.
    pub fn flip_bit(&self, path: &str, offset: u64) -> io::Result<()> {
        let mut state = self.state();
        let file = state.names.file(path)?;
        content(&file).flip_bit(offset)?;
        state.counts.bits_flipped += 1;
        Ok(())
    }

    pub fn set_cost(&self, cost: DiskCost) {
        self.state().cost = cost;
    }

    /// Returns and resets the time that operations since the last call would have taken. A caller in simulated time
    /// sleeps it.
    pub fn take_accrued_latency(&self) -> Duration {
        std::mem::take(&mut self.state().owed)
    }

    /// Adds to the time that [`MemDisk::take_accrued_latency`] returns: the device stalls.
    pub fn stall(&self, time: Duration) {
        self.state().owed += time;
    }

    pub fn fault_counts(&self) -> FaultCounts {
        self.state().counts
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    fn handle(&self, epoch: u64, content: Arc<Mutex<FileContent>>, access: FileAccess) -> Arc<dyn DiskFile> {
        Arc::new(MemFile { disk: self.clone(), epoch, content, access })
    }

    /// Runs one operation on the namespace: checked, counted, failed if a fault is due.
    fn names_op<T>(&self, work: impl FnOnce(&mut State) -> io::Result<T>) -> io::Result<T> {
        let mut state = self.state();
        match state.begin(DiskOpKind::Other, 0)? {
            OpOutcome::Proceed => work(&mut state),
            OpOutcome::Fail(errno) => Err(errno.into()),
            OpOutcome::PowerCut => {
                let unheard = work(&mut state);
                // Order: the state is unlocked before a lock guard is dropped, because the guard's drop locks it.
                drop(state);
                drop(unheard);
                Err(Errno::IO.into())
            }
        }
    }
}

impl State {
    fn accrue_sync_cost(&mut self) {
        self.owed += self.cost.sync;
    }

    /// Returns the number of bytes that an append writes before it fails.
    fn part_of(&mut self, bytes: usize) -> usize {
        self.rng.begin("append", self.ops);
        self.rng.up_to(bytes)
    }

    /// Counts an operation that moves `bytes` bytes and returns its outcome. Fails if there is no power.
    fn begin(&mut self, kind: DiskOpKind, bytes: usize) -> io::Result<OpOutcome> {
        self.ops += 1;
        self.owed += self.cost.op + self.cost.kib * u32::try_from(bytes / 1024).unwrap_or(u32::MAX);
        match self.power_cut_at {
            Some(at) if self.ops > at => return Err(Errno::IO.into()),
            Some(at) if self.ops == at => return Ok(OpOutcome::PowerCut),
            _ => {}
        }
        let due = self.failures.remove(&self.ops).map(FaultEffect::Fail);
        let rng = &mut self.rng;
        let op = self.ops;
        let armed = self.armed.next_effect(kind, || {
            rng.begin("operation", op);
            rng.up_to(999)
        });
        Ok(match due.or(armed) {
            Some(FaultEffect::Fail(errno)) => {
                self.counts.ops_failed += 1;
                OpOutcome::Fail(errno)
            }
            Some(FaultEffect::PowerCut) => {
                self.power_cut_at = Some(self.ops);
                self.counts.power_cuts_in_sync += u64::from(kind == DiskOpKind::Sync);
                OpOutcome::PowerCut
            }
            None => OpOutcome::Proceed,
        })
    }
}

impl Disk for MemDisk {
    fn create(&self, path: &str) -> io::Result<Arc<dyn DiskFile>> {
        check_path(path)?;
        self.names_op(|state| {
            let content = Arc::new(Mutex::new(FileContent::default()));
            state.names.add_file(path, content.clone())?;
            Ok(self.handle(state.epoch, content, FileAccess::Append))
        })
    }

    fn open(&self, path: &str) -> io::Result<Arc<dyn DiskFile>> {
        check_path(path)?;
        self.names_op(|state| Ok(self.handle(state.epoch, state.names.file(path)?, FileAccess::Append)))
    }

    fn open_read(&self, path: &str) -> io::Result<Arc<dyn DiskFile>> {
        check_path(path)?;
        self.names_op(|state| Ok(self.handle(state.epoch, state.names.file(path)?, FileAccess::Read)))
    }

    fn entry_kind(&self, path: &str) -> io::Result<Option<EntryKind>> {
        check_path(path)?;
        self.names_op(|state| match state.names.node(path) {
            Ok(Some(NamespaceEntry::File(_))) => Ok(Some(EntryKind::File)),
            Ok(Some(NamespaceEntry::Dir)) => Ok(Some(EntryKind::Dir)),
            Ok(None) => Ok(None),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        })
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        check_path(from)?;
        check_path(to)?;
        self.names_op(|state| {
            if let Some(replaced) = state.names.rename(from, to)? {
                state.free += content(&replaced).len();
            }
            Ok(())
        })
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        check_path(path)?;
        self.names_op(|state| {
            if let NamespaceEntry::File(removed) = state.names.remove(path)? {
                state.free += content(&removed).len();
            }
            Ok(())
        })
    }

    fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        check_path(dir)?;
        self.names_op(|state| state.names.list(dir))
    }

    fn create_dir(&self, dir: &str) -> io::Result<()> {
        check_path(dir)?;
        self.names_op(|state| state.names.add_dirs(dir))
    }

    fn sync_dir(&self, dir: &str) -> io::Result<()> {
        check_path(dir)?;
        let mut state = self.state();
        state.accrue_sync_cost();
        match state.begin(DiskOpKind::Sync, 0)? {
            OpOutcome::Proceed => state.names.sync(dir),
            OpOutcome::Fail(errno) => Err(errno.into()),
            OpOutcome::PowerCut => Err(Errno::IO.into()),
        }
    }

    fn space(&self) -> io::Result<DiskSpace> {
        let state = self.state();
        Ok(DiskSpace { total: state.names.bytes() + state.free, free: state.free, device: None })
    }

    fn lock(&self, path: &str) -> io::Result<Box<dyn Send + Sync>> {
        check_path(path)?;
        self.names_op(|state| {
            match state.names.add_file(path, Arc::default()) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => drop(state.names.file(path)?),
                other => other?,
            }
            if !state.locks.insert(path.to_string()) {
                return Err(Errno::WOULDBLOCK.into());
            }
            let guard = LockGuard { disk: self.clone(), epoch: state.epoch, path: path.to_string() };
            Ok(Box::new(guard) as Box<dyn Send + Sync>)
        })
    }
}

struct LockGuard {
    disk: MemDisk,
    epoch: u64,
    path: String,
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        let mut state = self.disk.state();
        if state.epoch == self.epoch {
            state.locks.remove(&self.path);
        }
    }
}

struct MemFile {
    disk: MemDisk,
    epoch: u64,
    content: Arc<Mutex<FileContent>>,
    access: FileAccess,
}

/// Operations that a handle allows.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FileAccess {
    Read,
    /// Reads, appends and truncations.
    Append,
}

impl MemFile {
    fn begin(&self, kind: DiskOpKind, bytes: usize) -> io::Result<(MutexGuard<'_, State>, OpOutcome)> {
        let mut state = self.disk.state();
        if state.epoch != self.epoch {
            return Err(Errno::STALE.into());
        }
        let outcome = state.begin(kind, bytes)?;
        Ok((state, outcome))
    }

    /// Begins an operation that has no effect unless it succeeds.
    fn begin_simple(&self, kind: DiskOpKind, bytes: usize) -> io::Result<MutexGuard<'_, State>> {
        match self.begin(kind, bytes)? {
            (state, OpOutcome::Proceed) => Ok(state),
            (_, OpOutcome::Fail(errno)) => Err(errno.into()),
            (_, OpOutcome::PowerCut) => Err(Errno::IO.into()),
        }
    }
}

impl DiskFile for MemFile {
    fn append(&self, bytes: &[u8]) -> io::Result<()> {
        if self.access == FileAccess::Read && !bytes.is_empty() {
            return Err(Errno::BADF.into());
        }
        let (mut state, outcome) = self.begin(DiskOpKind::Append, bytes.len())?;
        let fits = bytes.len().min(usize::try_from(state.free).unwrap_or(usize::MAX));
        let (written, result) = match outcome {
            OpOutcome::Proceed if fits == bytes.len() => (fits, Ok(())),
            OpOutcome::Proceed => {
                state.counts.full += 1;
                (fits, Err(Errno::NOSPC))
            }
            OpOutcome::Fail(errno) => (state.part_of(fits), Err(errno)),
            OpOutcome::PowerCut => (state.part_of(fits), Err(Errno::IO)),
        };
        state.free -= written as u64;
        content(&self.content).append(&bytes[..written]);
        let state = &mut *state;
        if let Some(damage) = state.armed.damage(|| state.names.is_in(armed_faults::ROWS, &self.content)) {
            content(&self.content).lose_last(written);
            apply_damage(state, damage, &bytes[..written]);
        }
        Ok(result?)
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let mut state = self.begin_simple(DiskOpKind::Read, out.len())?;
        let content = content(&self.content);
        if content.is_unreadable(offset, out.len()) {
            state.counts.pages_unreadable += 1;
            return Err(Errno::IO.into());
        }
        content.read_at(offset, out)
    }

    fn len(&self) -> io::Result<u64> {
        if self.disk.state().epoch != self.epoch {
            return Err(Errno::STALE.into());
        }
        Ok(content(&self.content).len())
    }

    fn truncate(&self, len: u64) -> io::Result<()> {
        if self.access == FileAccess::Read {
            return Err(Errno::INVAL.into());
        }
        let mut state = self.begin_simple(DiskOpKind::Other, 0)?;
        state.free += content(&self.content).truncate(len)?;
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let (mut state, outcome) = self.begin(DiskOpKind::Sync, 0)?;
        state.accrue_sync_cost();
        state.counts.syncs_repeated += u64::from(content(&self.content).has_failed());
        match outcome {
            OpOutcome::Proceed => content(&self.content).synced(),
            OpOutcome::Fail(errno) => {
                state.counts.syncs_failed += 1;
                content(&self.content).sync_failed();
                return Err(errno.into());
            }
            OpOutcome::PowerCut => return Err(Errno::IO.into()),
        }
        Ok(())
    }

    fn will_verify(&self) {
        content(&self.content).drop_clean();
    }

    fn reserve(&self, bytes: u64) -> io::Result<()> {
        let mut state = self.begin_simple(DiskOpKind::Other, 0)?;
        if bytes > state.free {
            state.counts.full += 1;
            return Err(Errno::NOSPC.into());
        }
        Ok(())
    }
}

/// Counts the damage to a write of `bytes` that its own file does not keep, and overwrites another file if the write is
/// misdirected.
fn apply_damage(state: &mut State, damage: WriteDamage, bytes: &[u8]) {
    match damage {
        WriteDamage::Lost => state.counts.writes_phantom += 1,
        WriteDamage::Misdirected => {
            state.counts.writes_misdirected += 1;
            state.rng.begin("misdirected", state.ops);
            if let Some(victim) = state.names.random_file(armed_faults::ROWS, &mut state.rng) {
                let mut victim = content(&victim);
                let len = usize::try_from(victim.len()).unwrap_or(usize::MAX);
                let start = state.rng.up_to(len - 1);
                let end = len.min(start + bytes.len());
                victim.overwrite(start, &bytes[..end - start]);
            }
        }
    }
}

#[cfg(test)]
mod tests;
