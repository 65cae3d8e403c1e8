//! Faults that apply to a kind of operation, or at random.

use std::collections::BTreeMap;

use rustix::io::Errno;

use super::{MemDisk, State, content};

/// Directory of files that hold rows. Random damage applies only to it and spares the files that identify a server.
pub(super) const ROWS: &str = "data/";

/// Kind of a device operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum DiskOpKind {
    Read,
    Append,
    /// Sync of a file or of a directory.
    Sync,
    /// Everything else: names, lengths, reservations.
    Other,
}

/// Damage to a write that the device reports as done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteDamage {
    /// The write never reaches the medium, synced or not.
    Lost,
    /// The write goes to another place: its own stays as it was, and bytes of another file are overwritten.
    Misdirected,
}

/// Faults that have not fired yet.
#[derive(Debug, Default)]
pub(super) struct ArmedFaults {
    /// Number of operations by kind.
    counts: BTreeMap<DiskOpKind, u64>,
    failures: BTreeMap<(DiskOpKind, u64), Errno>,
    power_cut_at: Option<(DiskOpKind, u64)>,
    damages: BTreeMap<u64, WriteDamage>,
    /// Failure rate by kind of operation, per mille.
    rates: BTreeMap<DiskOpKind, (u16, Errno)>,
}

/// Effect of an armed fault on the current operation.
pub(super) enum FaultEffect {
    Fail(Errno),
    PowerCut,
}

impl ArmedFaults {
    /// Drops all faults of the device: after a power cycle, or for another device.
    pub fn disarm(&mut self) {
        self.failures.clear();
        self.power_cut_at = None;
        self.damages.clear();
    }

    /// Ends all failures.
    pub fn heal(&mut self) {
        self.disarm();
        self.rates.clear();
    }

    pub fn count(&self, kind: DiskOpKind) -> u64 {
        self.counts.get(&kind).copied().unwrap_or_default()
    }

    /// Counts an operation and returns the fault that applies to it. `draw` returns a number from 0 to 999.
    pub fn next_effect(&mut self, kind: DiskOpKind, draw: impl FnOnce() -> usize) -> Option<FaultEffect> {
        let count = self.counts.entry(kind).or_default();
        *count += 1;
        let count = *count;
        if self.power_cut_at == Some((kind, count)) {
            return Some(FaultEffect::PowerCut);
        }
        if let Some(errno) = self.failures.remove(&(kind, count)) {
            return Some(FaultEffect::Fail(errno));
        }
        let (per_mille, errno) = self.rates.get(&kind).copied()?;
        (draw() < usize::from(per_mille)).then_some(FaultEffect::Fail(errno))
    }

    /// Returns the damage to the append that was just counted, if its file holds rows. Damage that is due waits for
    /// such an append.
    pub fn damage(&mut self, holds_rows: impl FnOnce() -> bool) -> Option<WriteDamage> {
        let count = self.count(DiskOpKind::Append);
        let due = self.damages.first_entry().filter(|first| *first.key() <= count)?;
        holds_rows().then(|| due.remove())
    }
}

impl MemDisk {
    /// Makes the `k`-th operation of a kind from now (the next is 1) fail with `errno`.
    pub fn fail_nth(&self, kind: DiskOpKind, k: u64, errno: i32) {
        let mut state = self.state();
        let at = state.armed.count(kind) + k.max(1);
        state.armed.failures.insert((kind, at), Errno::from_raw_os_error(errno));
    }

    /// Returns the number of operations of a kind.
    pub fn op_count_of(&self, kind: DiskOpKind) -> u64 {
        self.state().armed.count(kind)
    }

    /// Cuts the power within the `k`-th operation of a kind from now, as [`MemDisk::cut_power_at`] does.
    pub fn cut_power_at_nth(&self, kind: DiskOpKind, k: u64) {
        let mut state = self.state();
        let at = state.armed.count(kind) + k.max(1);
        state.armed.power_cut_at = Some((kind, at));
    }

    /// Makes `per_mille` of 1,000 operations of a kind fail with `errno` from now on; 0 ends that.
    pub fn fail_some(&self, kind: DiskOpKind, per_mille: u16, errno: i32) {
        let mut state = self.state();
        match per_mille {
            0 => drop(state.armed.rates.remove(&kind)),
            _ => drop(state.armed.rates.insert(kind, (per_mille, Errno::from_raw_os_error(errno)))),
        }
    }

    /// Damages the `k`-th append from now, or the first one after it to a file that holds rows, without an error. Data
    /// is lost that was reported as durable. Other files are spared, because nothing can restore a lost vote.
    pub fn damage_append(&self, k: u64, damage: WriteDamage) {
        let mut state = self.state();
        let at = state.armed.count(DiskOpKind::Append) + k.max(1);
        state.armed.damages.insert(at, damage);
    }

    /// Flips a bit at `count` random places of random files that hold rows. Returns the number of bits flipped.
    pub fn rot_bits(&self, count: u64) -> u64 {
        let state = &mut *self.state();
        let mut flipped = 0;
        for _ in 0..count {
            let Some(file) = state.names.random_file(ROWS, &mut state.rng) else { break };
            let len = content(&file).len();
            let offset = state.rng.up_to(usize::try_from(len).unwrap_or(usize::MAX) - 1) as u64;
            flipped += u64::from(content(&file).flip_bit(offset).is_ok());
        }
        state.counts.bits_flipped += flipped;
        flipped
    }
}

/// Counts the damage to a write of `bytes` that its own file does not keep, and overwrites another file if the write is
/// misdirected.
pub(super) fn apply_damage(state: &mut State, damage: WriteDamage, bytes: &[u8]) {
    match damage {
        WriteDamage::Lost => state.counts.writes_phantom += 1,
        WriteDamage::Misdirected => {
            state.counts.writes_misdirected += 1;
            if let Some(victim) = state.names.random_file(ROWS, &mut state.rng) {
                let mut victim = content(&victim);
                let len = usize::try_from(victim.len()).unwrap_or(usize::MAX);
                let start = state.rng.up_to(len - 1);
                let end = len.min(start + bytes.len());
                victim.overwrite(start, &bytes[..end - start]);
            }
        }
    }
}
