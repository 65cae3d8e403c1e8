//! Space in the directories of a server.

use std::time::Duration;

use node::hosting::space::{SpaceReserve, SpaceReserves};

use crate::cluster::DATA_DIR;

/// Data directories of a server, each on a device of its own.
pub(super) const DATA: [&str; 2] = [DATA_DIR, "data-2"];
/// Free bytes that servers keep, those of a directory below it, and those of an empty one. Below a quarter of the
/// reserve followers refuse entries, too, and without any space what must be stored waits.
const RESERVE: u64 = 256 << 20;
pub(super) const SHORT: [u64; 3] = [200 << 20, 50 << 20, 0];
pub(super) const PLENTY: u64 = 1 << 40;
/// Time within which a log or a vote that waited for space is written once there is some.
const RETRIED: Duration = Duration::from_secs(6);
pub(super) const RESERVES: SpaceReserves =
    SpaceReserves { wal: SpaceReserve::Bytes(RESERVE), data: SpaceReserve::Bytes(RESERVE) };

/// Directories of a server that have too little space.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Directories {
    pub wal_short: bool,
    pub data_short: [bool; DATA.len()],
    /// Time at which a directory that was short had space again.
    pub freed: Duration,
}

impl Directories {
    /// Returns true if no replica can be added.
    pub(super) fn are_full(self) -> bool {
        self.wal_short || self.data_short.iter().all(|short| *short)
    }

    pub(super) fn is_short(self, path: &str) -> bool {
        let data = DATA.iter().position(|dir| *dir == path);
        data.map_or(self.wal_short, |at| self.data_short[at])
    }

    pub(super) fn set_short(&mut self, path: &str, is_short: bool) {
        match DATA.iter().position(|dir| *dir == path) {
            Some(at) => self.data_short[at] = is_short,
            None => self.wal_short = is_short,
        }
    }

    /// Frees all directories.
    pub(super) fn free(&mut self, now: Duration) {
        let was_short = self.wal_short || self.data_short.contains(&true);
        let freed = if was_short { now } else { self.freed };
        *self = Directories { freed, ..Directories::default() };
    }

    /// Returns true if replicas may still wait for the space that there is.
    pub(super) fn may_wait(self, now: Duration) -> bool {
        now < self.freed + RETRIED
    }

    /// Returns true if nothing may be written to tablets of a data directory.
    pub(super) fn refuse_writes(self, path: &str) -> bool {
        let short = DATA.iter().zip(self.data_short).any(|(dir, short)| short && *dir == path);
        self.wal_short || short
    }
}
