//! Starts of a fleet's servers with other settings, which may be refused, and servers that are slow or pause.

use std::time::Duration;

use node::tserver::TserverConfig;

use super::fleet::{Fleet, START, host};
use crate::cluster::{self, DATA_DIR, WAL_DIR};
use crate::world::World;

/// Time that a server runs between two pauses.
const BETWEEN: Duration = Duration::from_micros(700);

impl Fleet {
    /// Starts a server with other settings; returns the error with which it ends, if it does.
    pub(super) fn reboot(&mut self, server: usize, config: TserverConfig) -> Option<String> {
        self.kill(server);
        let program = cluster::tablet_server(config, host(server), self.observer.running());
        (self.may_end, self.ended) = (true, None);
        self.world.boot(&host(server).name(), program);
        self.up[server] = true;
        self.restarts[server] += 1;
        self.pass(START);
        self.may_end = false;
        self.ended.take()
    }

    /// Makes the devices of a server this many times as slow.
    pub(super) fn slow_disks(&mut self, server: usize, factor: u32) {
        let machine = self.world.machine(&host(server).name());
        [WAL_DIR, DATA_DIR].iter().for_each(|dir| machine.slow_disk(dir, factor));
    }

    /// Pauses a server for these times, with short times between: what arrives in a pause is handled at once then.
    pub(super) fn run_in_bunches(&mut self, server: usize, pauses: Vec<Duration>) {
        for pause in pauses {
            self.world.pause(&host(server).name());
            self.pass(pause);
            self.world.resume(&host(server).name());
            self.pass(BETWEEN);
        }
    }
}
