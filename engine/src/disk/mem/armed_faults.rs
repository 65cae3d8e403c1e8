//! Faults that wait for their operation.

use std::collections::BTreeMap;

use rustix::io::Errno;

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
    pub(super) counts: BTreeMap<DiskOpKind, u64>,
    pub(super) failures: BTreeMap<(DiskOpKind, u64), Errno>,
    pub(super) power_cut_at: Option<(DiskOpKind, u64)>,
    pub(super) damages: BTreeMap<u64, WriteDamage>,
    /// Failure rate by kind of operation, per mille.
    pub(super) rates: BTreeMap<DiskOpKind, (u16, Errno)>,
}

/// Effect of an armed fault on the current operation.
pub(super) enum FaultEffect {
    Fail(Errno),
    PowerCut,
}

impl ArmedFaults {
    /// Drops all faults of the device: after a power cycle, or for another device.
    pub(super) fn disarm(&mut self) {
        self.failures.clear();
        self.power_cut_at = None;
        self.damages.clear();
    }

    /// Ends all failures.
    pub(super) fn end(&mut self) {
        self.disarm();
        self.rates.clear();
    }

    pub(super) fn count(&self, kind: DiskOpKind) -> u64 {
        self.counts.get(&kind).copied().unwrap_or_default()
    }

    /// Counts an operation and returns the fault that applies to it. `draw` returns a number from 0 to 999.
    pub(super) fn next_effect(
        &mut self,
        kind: DiskOpKind,
        draw: impl FnOnce() -> usize,
    ) -> Option<FaultEffect> {
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
    pub(super) fn damage(&mut self, holds_rows: impl FnOnce() -> bool) -> Option<WriteDamage> {
        let count = self.count(DiskOpKind::Append);
        let due = self.damages.first_entry().filter(|first| *first.key() <= count)?;
        holds_rows().then(|| due.remove())
    }
}
