//! Directories that run full: replicas are created where space is, and writes refused where none is.

use std::time::Duration;

use engine::ids::TabletId;

use super::ServingTrial;
use super::server_space::{DATA, PLENTY, SHORT};
use crate::cluster::WAL_DIR;
use crate::trials::fleet::host;
use crate::world::World;

/// Time within which a server knows of a change of space.
const NOTICED: Duration = Duration::from_millis(1_500);
/// Percentage of changes that concern the WAL directory.
const WAL_PERCENT: u64 = 20;

impl ServingTrial {
    /// Fills a directory of a server, or frees one that was full, and lets the server notice it. A server that runs
    /// short must give up leaderships that others can have.
    pub(super) fn change_space(&mut self, server: usize) {
        let path = if self.random.percent(WAL_PERCENT) { WAL_DIR } else { self.random.pick(&DATA) };
        if self.directories[server].is_short(path) {
            return self.free_directory(server, path);
        }
        let led = self.movable(server);
        self.fill(server, path);
        self.check_moved(server, led);
    }

    /// Leaves little space in a directory, or none, and lets the server notice it.
    pub(super) fn fill(&mut self, server: usize, path: &str) {
        let bytes = self.random.pick(&SHORT);
        self.set_space(server, path, bytes);
    }

    pub(super) fn free_directory(&mut self, server: usize, path: &str) {
        self.directories[server].freed = self.fleet.world.now();
        self.set_space(server, path, PLENTY);
    }

    fn set_space(&mut self, server: usize, path: &str, bytes: u64) {
        self.directories[server].set_short(path, bytes < PLENTY);
        self.fleet.world.machine(&host(server).name()).disk(path).set_free(bytes);
        self.fleet.note(format!("{path} of {server} has {bytes} bytes"));
        self.pass(NOTICED);
    }

    /// Ends what the trial has filled.
    pub(super) fn free_all(&mut self) {
        for server in 0..self.directories.len() {
            self.directories[server].free(self.fleet.world.now());
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
