//! Faults of a hosting trial: processes, power, links and disks.

use std::time::Duration;

use engine::disk::mem::MemDisk;
use engine::raft::interface::PeerStatus;
use engine::replica::wal_dir;
use engine::tablet::flush::data_dir;
use node::hosting::tablet_entry::EntryState;
use sim_plan::faults::Trigger;

use super::{HostingTrial, MEMBERS, SERVERS, TABLET};
use crate::cluster::{DATA_DIR, WAL_DIR};
use crate::trials::fleet::host;
use crate::trials::rot;
use crate::trigger::{ArmedTrigger, EIO, TriggerAction};
use crate::world::World;

/// Farthest disk operation that fails, and most operations in a row that do.
const OPS_AHEAD: u64 = 14;
const OPS_IN_A_ROW: u64 = 4;
/// Percentage of failures that wait for a copy or a removal, and the farthest operation that fails then.
const TRIGGERED_PERCENT: u64 = 40;
const OPS_AFTER: u64 = 4;
/// Farthest disk operation of a start that fails, and most operations in a row that do: what cannot be read is read
/// once more.
const START_OPS: u64 = 12;
const START_OPS_IN_A_ROW: u64 = 4;
/// Most time of a copy before it is interrupted, in microseconds.
const COPY_MICROS: u64 = 40_000;

impl HostingTrial {
    /// Lets some of the next operations of one of a server's disks fail, or one right after its next copy or removal
    /// has begun or ended.
    pub(super) fn fail_disk(&mut self, server: usize) {
        let dir = if self.random.percent(30) { WAL_DIR } else { DATA_DIR };
        if self.random.percent(TRIGGERED_PERCENT) {
            return self.fail_disk_after(server, dir);
        }
        let (first, count) = (self.random.between(1, OPS_AHEAD), self.random.between(1, OPS_IN_A_ROW));
        let disk = self.fleet.world.machine(&host(server).name()).disk(dir);
        (first..first + count).for_each(|op| disk.fail_op(op, EIO));
        self.fleet.note(format!("{count} operations of {dir} at {server} fail from the {first}. on"));
    }

    fn fail_disk_after(&mut self, server: usize, dir: &str) {
        let trigger = self.random.pick(&[Trigger::Copy, Trigger::Copy, Trigger::GiveUp, Trigger::Remove]);
        let (nth, op) = (self.random.between(1, 2) as u32, self.random.between(1, OPS_AFTER) as u32);
        let machine = self.fleet.world.machine(&host(server).name());
        let action = TriggerAction::FailOp(machine.disk(dir), op);
        machine.triggers().arm(ArmedTrigger { trigger, nth, action });
        self.fleet.note(format!("operation {op} of {dir} at {server} fails after {}", trigger.word()));
    }

    /// Restarts a server whose replica does not run, and lets operations of its start fail: it may be unable to read
    /// what it knows. Its deletion reads it again.
    pub(super) fn restart_unread(&mut self) {
        let is_idle = |state| matches!(state, EntryState::Tombstoned(_) | EntryState::Failed(_));
        let idle: Vec<usize> = (0..SERVERS).filter(|at| self.state(*at).is_some_and(is_idle)).collect();
        if idle.is_empty() {
            return;
        }
        let server = self.random.pick(&idle);
        self.fleet.kill(server);
        let first = self.random.between(1, START_OPS);
        let count = self.random.between(2, START_OPS_IN_A_ROW);
        let [_, data] = self.disks(server);
        (first..first + count).for_each(|op| data.fail_op(op, EIO));
        self.fleet.note(format!("{count} operations of the start of {server} fail from the {first}. on"));
        self.fleet.restart(server);
        if self.has_failed(server) {
            self.end_disk_faults(server);
            self.ask_deleted(server);
        }
    }

    /// Disarms what is to fail at a server.
    pub(super) fn end_disk_faults(&mut self, server: usize) {
        self.fleet.world.machine(&host(server).name()).triggers().clear();
        self.disks(server).iter().for_each(MemDisk::end_faults);
    }

    /// Interrupts a copy: its source dies, disk operations of the sink fail, or both.
    pub(super) fn break_copy(&mut self) {
        if self.copying().is_none() {
            self.add();
        }
        let micros = self.random.below(COPY_MICROS);
        self.fleet.pass(Duration::from_micros(micros));
        let Some(sink) = self.copying() else { return };
        let (fails, dies) = self.random.pick(&[(true, false), (true, false), (true, true), (false, true)]);
        if fails {
            self.fail_disk(sink);
        }
        if let Some(leader) = self.leader().filter(|leader| *leader != sink && dies) {
            self.fleet.kill(leader);
        }
    }

    /// Returns a server that copies the tablet.
    fn copying(&self) -> Option<usize> {
        (0..SERVERS).find(|at| matches!(self.state(*at), Some(EntryState::Copying)))
    }

    /// Damages a file of a follower, if the group can do without it, and restarts its server. All others must have
    /// every operation: one that was cut off until now counts as healthy.
    pub(super) fn rot(&mut self) {
        let Some((leader, status)) = self.leader_at_rest() else { return };
        let whole = status.committed_config.voter_count() == MEMBERS
            && status.peers.iter().all(|peer| self.is_sound(peer) && self.has_applied_all(peer, leader));
        let followers = (0..SERVERS).filter(|at| *at != leader && self.replica(*at).is_some());
        let followers: Vec<usize> = followers.collect();
        if !whole || self.rotten.is_some() || followers.is_empty() {
            return;
        }
        let server = self.random.pick(&followers);
        self.fleet.kill(server);
        let damaged = self.damage(server);
        self.rotten = damaged.is_some().then_some(server);
        self.fleet.note(format!("rot of {damaged:?} at {server}"));
        self.fleet.restart(server);
    }

    /// Returns true if a member has applied what the leader has. A status does not tell: its numbers are as old as the
    /// last change of role or health.
    fn has_applied_all(&self, peer: &PeerStatus, leader: usize) -> bool {
        self.server_of(peer).is_some_and(|at| self.applied(at) == self.applied(leader))
    }

    fn damage(&mut self, server: usize) -> Option<String> {
        let [wal, data] = self.disks(server);
        let in_log = rot::whole_files(&wal, &wal_dir(TABLET));
        if !in_log.is_empty() && self.random.percent(40) {
            return rot::damage(&mut self.random, &wal, &in_log);
        }
        let dirs = ["tablet-meta".to_string(), "consensus-meta".to_string(), data_dir(TABLET)];
        let files: Vec<String> = dirs.iter().flat_map(|dir| rot::whole_files(&data, dir)).collect();
        rot::damage(&mut self.random, &data, &files)
    }
}
