//! Faults that strike at a certain kind of operation, or at random.

use std::collections::BTreeMap;

use rustix::io::Errno;

use super::{MemDisk, State, content};

/// Where rows lie. What a server needs to know who it is lies elsewhere, and is spared.
pub(super) const ROWS: &str = "data/";

/// What an operation asks of the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum OpKind {
    Read,
    Append,
    /// Of a file or of a directory.
    Sync,
    /// Everything else: names, lengths, reservations.
    Other,
}

/// What a device does to a write that it reports as done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Damage {
    /// It never reaches the platter, synced or not.
    Lost,
    /// It goes to another place: its own stays as it was, and bytes of some other file are overwritten.
    Misdirected,
}

/// Faults that wait for their moment.
#[derive(Debug, Default)]
pub(super) struct Armed {
    /// Operations so far, by kind.
    counts: BTreeMap<OpKind, u64>,
    failures: BTreeMap<(OpKind, u64), Errno>,
    power_cut_at: Option<(OpKind, u64)>,
    damages: BTreeMap<u64, Damage>,
    /// Of the operations of a kind, so many in a thousand fail.
    rates: BTreeMap<OpKind, (u16, Errno)>,
}

/// What an armed fault does to the operation at hand.
pub(super) enum Strike {
    Fail(Errno),
    PowerCut,
}

impl Armed {
    /// The power is back, or the device is another.
    pub fn disarm(&mut self) {
        self.failures.clear();
        self.power_cut_at = None;
        self.damages.clear();
    }

    /// Nothing fails any more.
    pub fn heal(&mut self) {
        self.disarm();
        self.rates.clear();
    }

    pub fn count(&self, kind: OpKind) -> u64 {
        self.counts.get(&kind).copied().unwrap_or_default()
    }

    /// Counts an operation; `draw` is a number from 0 to 999.
    pub fn strike(&mut self, kind: OpKind, draw: impl FnOnce() -> usize) -> Option<Strike> {
        let count = self.counts.entry(kind).or_default();
        *count += 1;
        let count = *count;
        if self.power_cut_at == Some((kind, count)) {
            return Some(Strike::PowerCut);
        }
        if let Some(errno) = self.failures.remove(&(kind, count)) {
            return Some(Strike::Fail(errno));
        }
        let (per_mille, errno) = self.rates.get(&kind).copied()?;
        (draw() < usize::from(per_mille)).then_some(Strike::Fail(errno))
    }

    /// What becomes of the append that was just counted, if its file holds rows: damage that is due waits for one.
    pub fn damage(&mut self, holds_rows: impl FnOnce() -> bool) -> Option<Damage> {
        let count = self.count(OpKind::Append);
        let due = self.damages.first_entry().filter(|first| *first.key() <= count)?;
        holds_rows().then(|| due.remove())
    }
}

impl MemDisk {
    /// Makes the `k`-th operation of a kind from now (the next is 1) fail with `errno`.
    pub fn fail_nth(&self, kind: OpKind, k: u64, errno: i32) {
        let mut state = self.state();
        let at = state.armed.count(kind) + k.max(1);
        state.armed.failures.insert((kind, at), Errno::from_raw_os_error(errno));
    }

    /// Operations of a kind so far.
    pub fn op_count_of(&self, kind: OpKind) -> u64 {
        self.state().armed.count(kind)
    }

    /// Cuts the power within the `k`-th operation of a kind from now, as [`MemDisk::cut_power_at`] does.
    pub fn cut_power_at_nth(&self, kind: OpKind, k: u64) {
        let mut state = self.state();
        let at = state.armed.count(kind) + k.max(1);
        state.armed.power_cut_at = Some((kind, at));
    }

    /// From now on so many in a thousand operations of a kind fail with `errno`; 0 ends that.
    pub fn fail_some(&self, kind: OpKind, per_mille: u16, errno: i32) {
        let mut state = self.state();
        match per_mille {
            0 => drop(state.armed.rates.remove(&kind)),
            _ => drop(state.armed.rates.insert(kind, (per_mille, Errno::from_raw_os_error(errno)))),
        }
    }

    /// Lets the `k`-th append from now, or the first one after it to a file that holds rows, come to harm unnoticed.
    /// Data is lost that was reported as durable. What else is lost so, a vote, nothing can bring back.
    pub fn damage_append(&self, k: u64, damage: Damage) {
        let mut state = self.state();
        let at = state.armed.count(OpKind::Append) + k.max(1);
        state.armed.damages.insert(at, damage);
    }

    /// Flips a bit at `count` random places of random files that hold rows; how many there was room for.
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

/// Counts what becomes of a write of `bytes` that its own file will not keep, and puts them elsewhere if they go there.
pub(super) fn inflict(state: &mut State, damage: Damage, bytes: &[u8]) {
    match damage {
        Damage::Lost => state.counts.writes_phantom += 1,
        Damage::Misdirected => {
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
