//! [`MemDisk`]: a disk in memory that keeps the durability contract to the letter, and no more than that.
//!
//! ```text
//!            live (what reads see)          durable (what a crash cannot take)
//! a file     synced bytes + what followed   synced bytes       [`content`]
//! the names  the tree now                   the tree as of the last sync of each directory   [`names`]
//! ```
//!
//! [`MemDisk::crash`] chooses, by the seed, a state that the contract allows: of each file the synced bytes and
//! an ordered part of what followed, the last of it torn at sectors of 512 bytes; of each directory an ordered part
//! of its changes. Handles from before a crash fail with `ESTALE`.
//!
//! Faults that a test asks for: the k-th operation fails ([`MemDisk::fail_op`]), power goes away within the
//! k-th operation ([`MemDisk::cut_power_at`]), the device is full ([`MemDisk::set_free`]), a bit rots
//! ([`MemDisk::flip_bit`]). [`faults`] has those that strike a kind of operation or at random, and devices that
//! lie. A sync that fails marks its bytes clean without having written them: reads go on seeing them, a later sync
//! succeeds, and a crash takes them away. [`MemDisk::fault_counts`] tells what really happened, so that a
//! test can notice a fault that never struck.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use rustix::io::Errno;

use super::{Disk, File, Space, check_path};
use content::Content;
use faults::{Armed, Strike};
pub use faults::{Damage, OpKind};
use names::{Names, Node};

mod content;
mod faults;
mod names;
mod rng;

/// A disk in memory. Clones are handles on the same disk.
#[derive(Clone)]
pub struct MemDisk {
    state: Arc<Mutex<State>>,
}

impl DiskCost {
    /// A spinning disk: a seek for each operation.
    pub const HDD: DiskCost = DiskCost {
        op: Duration::from_micros(4_000),
        kib: Duration::from_nanos(6_000),
        sync: Duration::from_micros(8_000),
    };
    /// Flash behind a bus.
    pub const SSD: DiskCost = DiskCost {
        op: Duration::from_micros(80),
        kib: Duration::from_nanos(2_000),
        sync: Duration::from_micros(1_000),
    };
    /// Flash without one.
    pub const NVME: DiskCost = DiskCost {
        op: Duration::from_micros(10),
        kib: Duration::from_nanos(300),
        sync: Duration::from_micros(60),
    };
}

/// Simulated time that operations take; all zero unless set.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DiskCost {
    /// For every operation.
    pub op: Duration,
    /// For each KiB read or appended.
    pub kib: Duration,
    /// For a sync of a file or directory, on top.
    pub sync: Duration,
}

/// How often each fault struck, since the disk was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FaultCounts {
    pub crashes: u64,
    /// Appends and truncations that a crash took back whole.
    pub writes_lost: u64,
    /// Appends that a crash kept in part.
    pub writes_torn: u64,
    /// Creations, renames and removals that a crash took back.
    pub names_lost: u64,
    /// Operations that failed because [`MemDisk::fail_op`] said so.
    pub ops_failed: u64,
    /// Syncs that failed and left bytes marked clean that are not on the device.
    pub syncs_failed: u64,
    /// Syncs of files one of whose syncs had failed: they tell nothing, so nobody should ask.
    pub syncs_repeated: u64,
    /// Appends and reservations refused because the device was full.
    pub full: u64,
    pub bits_flipped: u64,
    /// Appends that were reported as done, and synced perhaps, and never reached the device.
    pub writes_phantom: u64,
    /// Appends that went to another place.
    pub writes_misdirected: u64,
    /// Power cuts within a sync.
    pub power_cuts_in_sync: u64,
}

struct State {
    names: Names,
    rng: rng::SplitMix,
    /// Counts crashes; a handle of an earlier one is stale.
    epoch: u64,
    ops: u64,
    failures: BTreeMap<u64, Errno>,
    power_cut_at: Option<u64>,
    armed: Armed,
    free: u64,
    locks: BTreeSet<String>,
    cost: DiskCost,
    owed: Duration,
    counts: FaultCounts,
}

/// What becomes of one operation.
#[derive(Clone, Copy)]
enum Fate {
    Proceed,
    Fail(Errno),
    /// Power goes away while it runs: it may have had its effect, and nobody will hear of it.
    PowerCut,
}

const INITIAL_FREE: u64 = 1 << 40;

impl MemDisk {
    /// An empty disk whose crashes and partial failures follow `seed`.
    pub fn new(seed: u64) -> MemDisk {
        let state = State {
            names: Names::default(),
            rng: rng::SplitMix::new(seed),
            epoch: 0,
            ops: 0,
            failures: BTreeMap::new(),
            power_cut_at: None,
            armed: Armed::default(),
            free: INITIAL_FREE,
            locks: BTreeSet::new(),
            cost: DiskCost::default(),
            owed: Duration::ZERO,
            counts: FaultCounts::default(),
        };
        MemDisk { state: Arc::new(Mutex::new(state)) }
    }

    /// Power fails and comes back. Open handles and locks are void, pending faults forgotten.
    pub fn crash(&self) {
        let state = &mut *self.state();
        state.epoch += 1;
        state.failures.clear();
        state.power_cut_at = None;
        state.armed.disarm();
        state.locks.clear();
        state.counts.crashes += 1;
        let before = state.names.bytes();
        state.names.crash(&mut state.rng, &mut state.counts);
        state.free = (state.free + before).saturating_sub(state.names.bytes());
    }

    /// The process that used the disk is gone, whatever of its memory is still there: what it had open is closed, its
    /// locks are free. The disk does not notice.
    pub fn end_process(&self) {
        let mut state = self.state();
        state.epoch += 1;
        state.locks.clear();
    }

    /// Makes the `k`-th operation from now (the next is 1) fail with `errno`, a value of the operating system.
    ///
    /// An append that fails has written some prefix; a sync that fails has lost what it should have kept.
    pub fn fail_op(&self, k: u64, errno: i32) {
        let mut state = self.state();
        let at = state.ops + k.max(1);
        state.failures.insert(at, Errno::from_raw_os_error(errno));
    }

    /// Cuts the power within the `k`-th operation from now: it and all later ones fail until [`MemDisk::crash`]. Of
    /// two cuts the first one counts: power that is gone does not come back because it is cut again.
    pub fn cut_power_at(&self, k: u64) {
        let mut state = self.state();
        let at = state.ops + k.max(1);
        state.power_cut_at = Some(state.power_cut_at.map_or(at, |first| first.min(at)));
    }

    /// Whether the power went away within an operation and [`MemDisk::crash`] has not followed yet.
    pub fn lost_power(&self) -> bool {
        let state = self.state();
        state.power_cut_at.is_some_and(|at| state.ops >= at)
    }

    /// Forgets faults that were asked for and have not struck.
    pub fn heal(&self) {
        let mut state = self.state();
        state.failures.clear();
        state.power_cut_at = None;
        state.armed.heal();
    }

    /// Operations begun so far: every call of [`Disk`] and [`File`] except `len` and `space`.
    pub fn op_count(&self) -> u64 {
        self.state().ops
    }

    /// Sets how many more bytes fit on the device.
    pub fn set_free(&self, bytes: u64) {
        self.state().free = bytes;
    }

    /// Flips one bit of the byte at `offset` of a file, for good: bit `offset % 8`.
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

    /// Time that operations since the last call would have taken. Whoever runs the engine in simulated time sleeps it.
    pub fn take_owed_latency(&self) -> Duration {
        std::mem::take(&mut self.state().owed)
    }

    /// Adds to what [`MemDisk::take_owed_latency`] will give: the device stalls.
    pub fn stall(&self, time: Duration) {
        self.state().owed += time;
    }

    pub fn fault_counts(&self) -> FaultCounts {
        self.state().counts
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics while it holds the disk")
    }

    fn handle(&self, epoch: u64, content: Arc<Mutex<Content>>) -> Arc<dyn File> {
        Arc::new(MemFile { disk: self.clone(), epoch, content })
    }

    /// One operation on the names: checked, counted, failed if a fault is due.
    fn names_op<T>(&self, work: impl FnOnce(&mut State) -> io::Result<T>) -> io::Result<T> {
        let mut state = self.state();
        match state.begin(OpKind::Other, 0)? {
            Fate::Proceed => work(&mut state),
            Fate::Fail(errno) => Err(errno.into()),
            Fate::PowerCut => {
                let unheard = work(&mut state);
                // A lock that nobody hears of looks at the disk when it is dropped.
                drop(state);
                drop(unheard);
                Err(Errno::IO.into())
            }
        }
    }
}

impl State {
    fn owe_sync(&mut self) {
        self.owed += self.cost.sync;
    }

    /// Counts an operation that moves `bytes` and says what becomes of it; an error if there is no power.
    fn begin(&mut self, kind: OpKind, bytes: usize) -> io::Result<Fate> {
        self.ops += 1;
        self.owed += self.cost.op + self.cost.kib * u32::try_from(bytes / 1024).unwrap_or(u32::MAX);
        match self.power_cut_at {
            Some(at) if self.ops > at => return Err(Errno::IO.into()),
            Some(at) if self.ops == at => return Ok(Fate::PowerCut),
            _ => {}
        }
        let due = self.failures.remove(&self.ops).map(Strike::Fail);
        let rng = &mut self.rng;
        let armed = self.armed.strike(kind, || rng.up_to(999));
        Ok(match due.or(armed) {
            Some(Strike::Fail(errno)) => {
                self.counts.ops_failed += 1;
                Fate::Fail(errno)
            }
            Some(Strike::PowerCut) => {
                self.power_cut_at = Some(self.ops);
                self.counts.power_cuts_in_sync += u64::from(kind == OpKind::Sync);
                Fate::PowerCut
            }
            None => Fate::Proceed,
        })
    }
}

fn content(file: &Mutex<Content>) -> MutexGuard<'_, Content> {
    file.lock().expect("nothing panics while it holds a file")
}

impl Disk for MemDisk {
    fn create(&self, path: &str) -> io::Result<Arc<dyn File>> {
        check_path(path)?;
        self.names_op(|state| {
            let content = Arc::new(Mutex::new(Content::default()));
            state.names.add_file(path, content.clone())?;
            Ok(self.handle(state.epoch, content))
        })
    }

    fn open(&self, path: &str) -> io::Result<Arc<dyn File>> {
        check_path(path)?;
        self.names_op(|state| Ok(self.handle(state.epoch, state.names.file(path)?)))
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
            if let Node::File(removed) = state.names.remove(path)? {
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
        state.owe_sync();
        match state.begin(OpKind::Sync, 0)? {
            Fate::Proceed => state.names.sync(dir),
            Fate::Fail(errno) => Err(errno.into()),
            Fate::PowerCut => Err(Errno::IO.into()),
        }
    }

    fn space(&self) -> io::Result<Space> {
        let state = self.state();
        Ok(Space { total: state.names.bytes() + state.free, free: state.free })
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
    content: Arc<Mutex<Content>>,
}

impl MemFile {
    fn begin(&self, kind: OpKind, bytes: usize) -> io::Result<(MutexGuard<'_, State>, Fate)> {
        let mut state = self.disk.state();
        if state.epoch != self.epoch {
            return Err(Errno::STALE.into());
        }
        let fate = state.begin(kind, bytes)?;
        Ok((state, fate))
    }

    /// Begins an operation that has no effect unless it succeeds.
    fn begin_simple(&self, kind: OpKind, bytes: usize) -> io::Result<MutexGuard<'_, State>> {
        match self.begin(kind, bytes)? {
            (state, Fate::Proceed) => Ok(state),
            (_, Fate::Fail(errno)) => Err(errno.into()),
            (_, Fate::PowerCut) => Err(Errno::IO.into()),
        }
    }
}

impl File for MemFile {
    fn append(&self, bytes: &[u8]) -> io::Result<()> {
        let (mut state, fate) = self.begin(OpKind::Append, bytes.len())?;
        let fits = bytes.len().min(usize::try_from(state.free).unwrap_or(usize::MAX));
        let (written, result) = match fate {
            Fate::Proceed if fits == bytes.len() => (fits, Ok(())),
            Fate::Proceed => {
                state.counts.full += 1;
                (fits, Err(Errno::NOSPC))
            }
            Fate::Fail(errno) => (state.rng.up_to(fits), Err(errno)),
            Fate::PowerCut => (state.rng.up_to(fits), Err(Errno::IO)),
        };
        state.free -= written as u64;
        content(&self.content).append(&bytes[..written]);
        let state = &mut *state;
        if let Some(damage) = state.armed.damage(|| state.names.is_in(faults::ROWS, &self.content)) {
            content(&self.content).lose_last(written);
            faults::inflict(state, damage, &bytes[..written]);
        }
        Ok(result?)
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let _state = self.begin_simple(OpKind::Read, out.len())?;
        content(&self.content).read_at(offset, out)
    }

    fn len(&self) -> io::Result<u64> {
        if self.disk.state().epoch != self.epoch {
            return Err(Errno::STALE.into());
        }
        Ok(content(&self.content).len())
    }

    fn truncate(&self, len: u64) -> io::Result<()> {
        let mut state = self.begin_simple(OpKind::Other, 0)?;
        state.free += content(&self.content).truncate(len)?;
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let (mut state, fate) = self.begin(OpKind::Sync, 0)?;
        state.owe_sync();
        state.counts.syncs_repeated += u64::from(content(&self.content).has_failed());
        match fate {
            Fate::Proceed => content(&self.content).synced(),
            Fate::Fail(errno) => {
                state.counts.syncs_failed += 1;
                content(&self.content).sync_failed();
                return Err(errno.into());
            }
            Fate::PowerCut => return Err(Errno::IO.into()),
        }
        Ok(())
    }

    fn reserve(&self, bytes: u64) -> io::Result<()> {
        let mut state = self.begin_simple(OpKind::Other, 0)?;
        if bytes > state.free {
            state.counts.full += 1;
            return Err(Errno::NOSPC.into());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
