//! Space in the directories of a server.

use node::hosting::space::{SpaceReserve, SpaceReserves};

use crate::cluster::DATA_DIR;

/// Data directories of a server, each on a device of its own.
pub(super) const DATA: [&str; 2] = [DATA_DIR, "data-2"];
/// Free bytes that servers keep, those of a directory below it, and those of an empty one.
const RESERVE: u64 = 256 << 20;
pub(super) const SHORT: u64 = 200 << 20;
pub(super) const PLENTY: u64 = 1 << 40;
pub(super) const RESERVES: SpaceReserves =
    SpaceReserves { wal: SpaceReserve::Bytes(RESERVE), data: SpaceReserve::Bytes(RESERVE) };

/// Directories of a server that have too little space.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Directories {
    pub wal_short: bool,
    pub data_short: [bool; DATA.len()],
}

impl Directories {
    /// Returns true if no replica can be added.
    pub(super) fn are_full(self) -> bool {
        self.wal_short || self.data_short.iter().all(|short| *short)
    }

    /// Returns true if nothing may be written to tablets of a data directory.
    pub(super) fn refuse_writes(self, path: &str) -> bool {
        let short = DATA.iter().zip(self.data_short).any(|(dir, short)| short && *dir == path);
        self.wal_short || short
    }
}
