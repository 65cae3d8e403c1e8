//! Directories that run full: replicas are created where space is, and writes refused where none is.

use std::time::Duration;

use engine::ids::TabletId;
use node::hosting::space::{SpaceReserve, SpaceReserves};

use super::ServingTrial;
use crate::cluster::{DATA_DIR, WAL_DIR};
use crate::trials::fleet::host;
use crate::world::World;

/// Data directories of a server, each on a device of its own.
pub(super) const DATA: [&str; 2] = [DATA_DIR, "data-2"];
/// Free bytes that servers keep, those of a directory below it, and those of an empty one.
const RESERVE: u64 = 256 << 20;
const SHORT: u64 = 200 << 20;
const PLENTY: u64 = 1 << 40;
pub(super) const RESERVES: SpaceReserves =
    SpaceReserves { wal: SpaceReserve::Bytes(RESERVE), data: SpaceReserve::Bytes(RESERVE) };
/// Time within which a server knows of a change of space.
const NOTICED: Duration = Duration::from_millis(1_500);
/// Percentage of changes that concern the WAL directory.
const WAL_PERCENT: u64 = 20;

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

impl ServingTrial {
    /// Fills a directory of a server, or frees one that was full, and lets the server notice it.
    pub(super) fn change_space(&mut self, server: usize) {
        let of = &mut self.directories[server];
        let (path, short) = if self.random.percent(WAL_PERCENT) {
            (WAL_DIR, &mut of.wal_short)
        } else {
            let at = self.random.below(DATA.len() as u64) as usize;
            (DATA[at], &mut of.data_short[at])
        };
        *short = !*short;
        let bytes = if *short { SHORT } else { PLENTY };
        self.fleet.world.machine(&host(server).name()).disk(path).set_free(bytes);
        self.fleet.note(format!("{path} of {server} has {bytes} bytes"));
        self.pass(NOTICED);
    }

    /// Ends what the trial has filled.
    pub(super) fn free_all(&mut self) {
        for server in 0..self.directories.len() {
            self.directories[server] = Directories::default();
            let machine = self.fleet.world.machine(&host(server).name());
            [WAL_DIR].iter().chain(&DATA).for_each(|path| machine.disk(path).set_free(PLENTY));
        }
        self.pass(NOTICED);
    }

    /// Returns the number of a server's tablets in each data directory.
    pub(super) fn placed(&self, server: usize) -> [usize; DATA.len()] {
        let entries = self.fleet.running(server).map(|running| running.tablets.all()).unwrap_or_default();
        DATA.map(|dir| entries.iter().filter(|entry| entry.data_dir.path == dir).count())
    }

    /// Reports a new replica in a directory that has more tablets than another one with space.
    pub(super) fn check_place(&mut self, server: usize, tablet: TabletId, before: [usize; DATA.len()]) {
        let short = self.directories[server].data_short;
        let Some(entry) = self.fleet.entry(server, tablet) else { return };
        let Some(chosen) = DATA.iter().position(|dir| entry.data_dir.path == *dir) else { return };
        // Another tablet may have come by a copy meanwhile.
        let mut after = self.placed(server);
        after[chosen] -= 1;
        let is_least = |of: [usize; DATA.len()]| {
            (0..DATA.len()).map(|at| (short[at], of[at])).min() == Some((short[chosen], of[chosen]))
        };
        if !is_least(before) && !is_least(after) {
            let what = format!(
                "server {server} has placed a replica in {}, short {short:?}, tablets before {before:?}",
                entry.data_dir.path
            );
            self.fleet.report(what);
        }
    }
}
