//! Operations that only one follower gets, and that the next leader truncates there. Nothing of them may stay, neither
//! on disk nor in memory. The leader that sent them had no space for its own log, and ends.

use std::time::Duration;

use super::HostingTrial;
use super::bulk_writes::WriteOrder;
use crate::cluster::WAL_DIR;
use crate::trials::fleet::host;
use crate::world::World;

/// Requests that reach the follower, and rows of each.
const REQUESTS: usize = 3;
const ROWS: u64 = 300;
/// Time within which they reach it, within which the others elect a leader, and within which all are equal again.
const SENT: Duration = Duration::from_millis(300);
const ELECTION: Duration = Duration::from_secs(4);
const EQUAL: Duration = Duration::from_secs(3);
/// Interval and number of looks at the memory that is reserved: a call may be in progress at one of them.
const LOOK: Duration = Duration::from_millis(230);
const LOOKS: u32 = 3;
/// Bytes by which the reservations of a follower may differ: stores reserve what they may need next. The operations
/// reserve several times as many.
const SLACK: u64 = 1 << 20;
const PLENTY: u64 = 1 << 40;

impl HostingTrial {
    /// Lets operations reach one follower alone. Another leader truncates them.
    pub(super) fn truncate_entries(&mut self) {
        let Some((leader, status)) = self.calm_group() else { return };
        let [one, two] = self.followers(leader, &status)[..] else { return };
        let (follower, other) = self.random.pick(&[(one, two), (two, one)]);
        let before = self.reserved(follower);
        let wal = self.fleet.world.machine(&host(leader).name()).disk(WAL_DIR);
        wal.set_free(0);
        self.fleet.cut_links(leader, Some(other));
        let writes = self.start_writes(leader, (REQUESTS, ROWS), WriteOrder::AtOnce);
        self.fleet.pass(SENT);
        let during = self.reserved(follower);
        self.fleet.cut_links(follower, None);
        self.fleet.kill(leader);
        wal.set_free(PLENTY);
        self.fleet.repair_links();
        self.fleet.cut_links(follower, None);
        self.end_writes(&writes);
        self.fleet.restart(leader);
        self.fleet.pass(ELECTION);
        self.fleet.repair_links();
        self.fleet.pass(EQUAL);
        self.check_truncated(follower, before, during);
    }

    /// Checks that a follower keeps no memory for operations which it has no more.
    fn check_truncated(&mut self, follower: usize, before: Option<u64>, during: Option<u64>) {
        let Some(leader) = self.leader().filter(|leader| *leader != follower) else { return };
        let applied = self.applied(follower);
        let is_equal = applied.is_some() && applied == self.applied(leader);
        if !is_equal || !self.fleet.is_connected() {
            return;
        }
        let most = before.map(|before| before + SLACK);
        let mut after = self.reserved(follower);
        for _ in 1..LOOKS {
            self.fleet.pass(LOOK);
            after = after.min(self.reserved(follower));
        }
        let had = if during > most { "had operations" } else { "had none" };
        self.fleet.note(format!("{follower} {had}: reserved were {before:?}, {during:?}, and are {after:?}"));
        if after > most {
            self.fleet.report(format!(
                "server {follower} has {after:?} bytes of memory reserved, {before:?} before it got operations that \
                 were truncated"
            ));
        }
    }

    /// Returns the bytes of memory that a server has reserved beyond what it uses.
    fn reserved(&self, server: usize) -> Option<u64> {
        let memory = &self.fleet.running(server)?.common.memory;
        Some(memory.reserved_bytes().saturating_sub(memory.bytes()))
    }
}
